import importlib
import pathlib

import keras
import pytest

from recipes import configs
from zoo import models
from zoo.layers import MaxoutConv, MaxoutDense
from zoo.models._cnn import depth_of

# Depth in the papers' count, and parameters: for digits a stem 64 → 64, then 4,160 a
# plain layer or 8,320 a highway layer, then 64 → 10.
NETS = {
    "highway_mlp_digits_5": (6, 46_410),
    "highway_mlp_digits_20": (21, 171_210),
    "highway_mlp_digits_50": (51, 420_810),
    "highway_mlp_digits_900": (900, 1_901_098),  # 32 units
    "plain_mlp_digits_5": (6, 25_610),
    "plain_mlp_digits_20": (21, 88_010),
    "plain_mlp_digits_50": (51, 212_810),
    # stem 3,072 → 50, then 2,550 a plain layer or 5,100 a highway layer, then 50 → 100
    "highway_mlp_cifar100_900": (900, 4_743_650),
    "plain_mlp_cifar100_100": (100, 411_200),
    "highway_mlp_mnist_50": (50, 289_660),
    # stem 3,072 → 50, 49 times 5,100, then 50 → 100
    "highway_mlp_cifar100_50": (50, 408_650),
    "highway_cnn_mnist_10": (10, 151_690),
    "highway_cnn_mnist_10_w16": (10, 38_986),
    "highway_cnn_fashion_mnist_10": (10, 151_690),
    "plain_cnn_mnist_10": (10, 77_706),
    # with the 3,072 values of the mean image
    "highway_cnn_cifar10_11": (11, 239_400),
    "highway_cnn_cifar10_19": (19, 2_259_910),
    # 272,282 trainable, and 2 × 688 moving statistics
    "preact_resnet_cifar10_20": (20, 273_658),
    # without the 3,072² + 3,072 values of the whitening
    "fitnet_cifar10_11_1": (11, 348_694),
    "fitnet_cifar10_11_2": (11, 1_057_622),
    "fitnet_cifar10_13_3": (13, 1_699_638),
    "fitnet_cifar10_19_4": (19, 2_742_102),
    "fitnet_teacher_cifar10_5": (5, 8_567_830),
}
# Encoder of 99 ids, two LSTMs, logits: worked out in test_char_cnn.py.
CHARACTERS = {
    "char_cnn_docstrings_1": 588_435 + 525 * 4 + 4,
    "char_cnn_ag_news_subset_1": 588_435 + 525 * 4 + 4,
    "char_lstm_python_docs_1": 588_435
    + 4 * 300 * (525 + 300 + 1)
    + 4 * 300 * (300 + 300 + 1)
    + 300 * 6000
    + 6000,
    "char_lstm_lm1b_2": 4_923_485
    + 4 * 650 * (1100 + 650 + 1)
    + 4 * 650 * (650 + 650 + 1)
    + 650 * 10_000
    + 10_000,
}


def test_every_config_is_counted():
    assert sorted([*NETS, *CHARACTERS]) == configs.names()


@pytest.mark.parametrize("name", CHARACTERS)
def test_parameters_of_character_nets(name):
    config = configs.load(name)
    model = getattr(models, config.builder)(**config.model)
    assert model.count_params() == CHARACTERS[name]


def test_every_file_is_a_config():
    folder = pathlib.Path(configs.__file__).parent
    assert configs.names() == sorted(
        file.stem for file in folder.glob("*.py") if file.stem != "__init__"
    )


@pytest.mark.parametrize("name", configs.names())
def test_docstring_gives_the_claim_and_the_command(name):
    assert configs.claim(name)
    module = importlib.import_module(f"recipes.configs.{name}")
    assert f"python recipes/train.py {name}\n" in module.__doc__


@pytest.mark.parametrize("name", NETS)
def test_depth_and_parameters(name):
    config = configs.load(name)
    if config.model.get("whiten"):
        config = config.replace(model={"whiten": False})
    model = getattr(models, config.builder)(**config.model)
    depth = config.model.get("depth")
    if "fitnet" in name:
        kinds = (MaxoutConv, MaxoutDense, keras.layers.Dense)
        depth = sum(isinstance(layer, kinds) for layer in model.layers)
    elif depth is None:
        depth = depth_of(config.model["stages"], config.model["head"])
    assert (depth, model.count_params()) == NETS[name]


def test_unknown_name_lists_the_nearest_first():
    with pytest.raises(ValueError, match="must be one of highway_mlp_digits_50, "):
        configs.load("highway_mlp_digit_50")


@pytest.fixture
def config():
    return configs.load("highway_mlp_digits_50")


@pytest.mark.parametrize(
    "assignment, get, value",
    [
        ("epochs=3", lambda c: c.epochs, 3),
        ("decay=1e-4", lambda c: c.decay, 1e-4),
        ("decay=1", lambda c: c.decay, 1.0),
        ("dataset=mnist", lambda c: c.dataset, "mnist"),
        ("dataset='mnist'", lambda c: c.dataset, "mnist"),
        ("jit_compile=true", lambda c: c.jit_compile, True),
        ("train_split=train", lambda c: c.train_split, "train"),
        ("model.gate_bias=-3", lambda c: c.model["gate_bias"], -3.0),
        ("model.activation=tanh", lambda c: c.model["activation"], "tanh"),
        ("model.carry=separate", lambda c: c.model["carry"], "separate"),
        (
            "model.input_shape=(28, 28, 1)",
            lambda c: c.model["input_shape"],
            (28, 28, 1),
        ),
        (
            "model.kernel_initializer=he_normal",
            lambda c: c.model["kernel_initializer"],
            "he_normal",
        ),
        ("optimizer.learning_rate=1", lambda c: c.optimizer["learning_rate"], 1.0),
    ],
)
def test_set(config, assignment, get, value):
    changed = config.set(assignment)
    assert get(changed) == value
    assert type(get(changed)) is type(value)
    assert config == configs.load("highway_mlp_digits_50")
    same = {key: v for key, v in changed.flat().items() if config.flat()[key] == v}
    assert len(same) == len(config.flat()) - 1  # nothing else has changed


@pytest.mark.parametrize(
    "assignment, message",
    [
        ("epochs", "`--set` takes key=value. Received: 'epochs'"),
        ("epoch=3", "such as epochs. Received: 'epoch'"),
        ("gate_bias=-3", r"such as model\.gate_bias. Received: 'gate_bias'"),
        ("model.gatebias=-3", r"such as model\.gate_bias, "),
        ("model.name=other", r"Received: 'model\.name'"),
        ("colour=red", "`--set` takes a field of the config"),
        (
            "epochs=3.5",
            "`epochs` must be of type int, such as 30. Received: epochs=3.5",
        ),
        ("epochs=many", "`epochs` must be of type int"),
        ("epochs=True", "`epochs` must be of type int"),
        ("jit_compile=1", "`jit_compile` must be of type bool"),
        ("dataset=5", "`dataset` must be of type str"),
        ("model.gate_bias=low", r"`model\.gate_bias` must be of type float"),
        ("model.input_shape=8", r"`model\.input_shape` must be of type tuple"),
    ],
)
def test_set_refuses(config, assignment, message):
    with pytest.raises(ValueError, match=message):
        config.set(assignment)


def test_replace_merges_dicts(config):
    changed = config.replace(seed=1, model={"depth": 3}, optimizer={"beta_1": 0.5})
    assert changed.seed == 1
    assert changed.model == {**config.model, "depth": 3}
    assert changed.optimizer == {**config.optimizer, "beta_1": 0.5}
    assert config == configs.load("highway_mlp_digits_50")
    assert (config.seed, config.model["depth"]) == (0, 51)
    assert "beta_1" not in config.optimizer


def test_configs_do_not_share_what_they_hold(config):
    before = configs.load("highway_mlp_digits_20")
    config.replace(model={"units": 8}).model["units"] = 16
    assert configs.load("highway_mlp_digits_20") == before
    assert config.model["units"] == 64


def test_flat_names_every_argument_of_the_builder(config):
    flat = config.flat()
    assert flat["model.depth"] == 51
    assert flat["model.carry"] == "coupled"  # the builder's default
    assert flat["optimizer.name"] == "adam"
    assert "model" not in flat


def test_set_takes_what_the_builder_and_the_optimizer_take(config):
    assert config.set("model.scan=false").model["scan"] is False
    assert config.set("model.rescale=none").model["rescale"] is None
    assert config.set("optimizer.clipnorm=1").optimizer["clipnorm"] == 1
