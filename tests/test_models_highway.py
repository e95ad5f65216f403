import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close, distinct_draws

import zoo
from zoo.layers import HighwayConv, HighwayDense
from zoo.models import HIGHWAY_VARIANTS
from zoo.models._cnn import depth_of

# The trained parameters of each variant, gates included, and its depth.
COUNTS = {
    "mnist_10": (151_690, 10),
    "mnist_10_w16": (38_986, 10),
    "cifar_19": (2_256_838, 19),
    "cifar_19_fc": (2_312_438, 19),  # 13,910 of the 1×1-100 head less, 69,510 more
    "cifar_11": (236_328, 11),
    "cifar_32": (1_264_502, 32),
}


def trainable(model):
    return sum(int(np.prod(w.shape)) for w in model.trainable_weights)


def kernels(model):
    return [w.numpy() for w in model.weights if w.path.endswith("kernel")]


def highways(model):
    kinds = HighwayConv, HighwayDense
    return [layer for layer in model.layers if isinstance(layer, kinds)]


def small_cnn(**arguments):
    """A net with every kind of layer of highway_cnn."""
    stages = [(8, 1), (12, 2)]
    return zoo.highway_cnn(input_shape=(8, 8, 3), stages=stages, **arguments)


def test_every_variant_has_a_count():
    assert COUNTS.keys() == HIGHWAY_VARIANTS.keys()


@pytest.mark.parametrize("variant", COUNTS)
def test_parameters_of_variants(variant):
    row = HIGHWAY_VARIANTS[variant]
    depth = depth_of(row["stages"], row["head"])
    assert (trainable(zoo.highway_cnn(variant)), depth) == COUNTS[variant]


def test_parameters_of_the_cifar_nets():
    assert zoo.highway_cnn().count_params() == 2_256_838
    assert zoo.highway_cnn(num_classes=100).count_params() == 2_265_928
    model = zoo.highway_cnn("cifar_19", num_classes=100, head_initializer=None)
    assert trainable(model) == 2_265_928
    # the mean image is a weight too
    assert model.count_params() - trainable(model) == 32 * 32 * 3


@pytest.mark.parametrize(
    "depth, count", [(10, 85_660), (20, 136_660), (50, 289_660), (100, 544_660)]
)
def test_parameters_of_highway_mlp(depth, count):
    model = zoo.highway_mlp(depth=depth)
    assert model.count_params() == count
    assert model.name == f"highway_mlp_{depth}"


def test_parameters_of_the_digits_net():
    assert zoo.highway_mlp((8, 8, 1), depth=51, units=64).count_params() == 420_810


def test_depth_counts_the_layers_without_the_logits():
    model = zoo.highway_mlp(depth=10, scan=False)
    names = [f"highway_{i:02d}" for i in range(1, 10)]
    expected = ["features", "stem", *names, "logits"]
    assert [layer.name for layer in model.layers] == expected


def test_layers_of_the_mnist_net():
    model = zoo.highway_cnn("mnist_10", scan=False)
    assert [layer.name for layer in model.layers] == [
        "image", "rescale",
        "dropout_1", "stem", "highway_01", "highway_02", "pool_1",
        "dropout_2", "highway_03", "highway_04", "highway_05", "pool_2",
        "dropout_3", "highway_06", "highway_07", "highway_08", "pool_3",
        "dropout_head", "flatten", "logits",
    ]  # fmt: skip
    outputs = {layer.name: layer.output.shape for layer in model.layers}
    sizes = [outputs[name][1] for name in ("stem", "pool_1", "pool_2", "pool_3")]
    assert sizes == [24, 12, 6, 3]  # rounded up
    dropouts = [la.rate for la in model.layers if la.name.startswith("dropout")]
    assert dropouts == [0.2, 0.3, 0.4, 0.5]
    assert all(np.all(layer.gate.bias == -1) for layer in highways(model))
    x = np.full((1, 28, 28, 1), 64.0)
    assert np.all(model.get_layer("rescale")(x) == 0.25)
    assert abs(np.std(model.get_layer("logits").kernel) - 0.1) < 0.01


def test_layers_of_the_cifar_net():
    model = zoo.highway_cnn(scan=False)
    stages = [["stem"], ["widen_2"], ["widen_3"]]
    numbers = iter(range(1, 15))
    for stage, count in zip(stages, (4, 5, 5), strict=True):
        stage += [f"highway_{next(numbers):02d}" for _ in range(count)]
    assert [layer.name for layer in model.layers] == [
        "image", "rescale", "dropout_1", *stages[0], "pool_1", "dropout_2", *stages[1],
        "pool_2", "dropout_3", *stages[2], "head_conv", "gap", "dropout_head", "logits",
    ]  # fmt: skip
    assert model.get_layer("gap").input.shape == (None, 8, 8, 100)
    plain = ("stem", "widen_2", "widen_3", "head_conv")
    assert all(model.get_layer(p).activation is keras.activations.relu for p in plain)
    assert all(np.all(layer.gate.bias == -2) for layer in highways(model))
    deviation = np.std(model.get_layer("widen_3").kernel)
    assert abs(deviation / np.sqrt(2 / (9 * 80)) - 1) < 0.02


def test_arguments_override_the_variant():
    overrides = {"num_classes": 7, "gate_bias": -3, "dropout": 0}
    model = zoo.highway_cnn("mnist_10", scan=False, **overrides)
    assert model.output_shape == (None, 7)
    assert all(np.all(layer.gate.bias == -3) for layer in highways(model))
    assert not [la for la in model.layers if isinstance(la, keras.layers.Dropout)]


def test_inputs():
    assert zoo.highway_mlp(depth=2).input.name == "features"
    assert zoo.highway_mlp(64, depth=2).input_shape == (None, 64)
    assert zoo.highway_mlp((8, 8, 1), depth=2).input.name == "image"
    assert small_cnn().input.name == "image"
    open_size = zoo.highway_cnn(input_shape=(None, None, 3), stages=[(4, 1), (6, 1)])
    assert open_size(np.ones((2, 9, 7, 3))).shape == (2, 10)


def test_rescales_images_and_leaves_vectors():
    pixels = np.full((1, 8, 8, 1), 255.0)
    assert np.all(zoo.highway_mlp((8, 8, 1)).get_layer("rescale")(pixels) == 1)
    assert np.all(small_cnn().get_layer("rescale")(pixels) == 1)
    names = [layer.name for layer in zoo.highway_mlp().layers]
    assert "rescale" not in names
    sixteenth = zoo.highway_mlp((8, 8, 1), rescale=1 / 16).get_layer("rescale")
    assert np.all(sixteenth(pixels[..., :1] * 16 / 255) == 1)


def test_names_sort_by_depth():
    model = zoo.highway_mlp(4, depth=121, units=2, scan=False)
    names = [layer.name for layer in highways(model)]
    assert names[0] == "highway_001"
    assert names[-1] == "highway_120"
    assert names == sorted(names)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy, name):
    policy(name)
    model = zoo.highway_mlp((8, 8, 1), depth=31, units=16, gate_bias=-6)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(1)
    x, labels = rng.uniform(0, 255, (32, 8, 8, 1)), rng.integers(0, 10, 32)
    losses = [float(model.train_on_batch(x, labels)) for _ in range(4)]
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]
    assert model(x).dtype == model.outputs[0].dtype == "float32"
    assert all(np.isfinite(w).all() for w in model.get_weights())

    stem = model.get_layer("stem")(model.get_layer("flatten")(x / 255))
    y = stem
    for layer in highways(zoo.convert(model, scan=False)):
        layer.gate.bias.assign([-200.0] * 16)  # T = 0
        y = layer(y)
    assert np.array_equal(y, np.array(stem, "float32"))


def test_gate_bias_survives_saving_and_serving(tmp_path):
    model = zoo.highway_mlp(4, depth=3, units=4, gate_bias=-3.5, scan=False)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    for layer in highways(keras.models.clone_model(model)) + highways(loaded):
        assert layer.gate_bias == -3.5
        assert np.all(layer.gate.bias == -3.5)
        assert np.all(layer.transform.bias == 0)
    model.export(tmp_path / "served", verbose=False)
    served = tf.saved_model.load(tmp_path / "served")
    biases = [v for v in served.variables if v.shape == (4,)]
    values = sorted(np.unique(bias).tolist() for bias in biases)
    assert values == [[-3.5], [-3.5], [0.0], [0.0], [0.0]]  # gates; stem, transforms


def test_gate_bias_of_a_tuner():
    kt = pytest.importorskip("keras_tuner")

    class Net(kt.HyperModel):
        def build(self, hp):
            gate_bias = hp.Float("gate_bias", -10.0, 0.0, step=0.5)
            return zoo.highway_mlp(4, depth=3, gate_bias=gate_bias, scan=False)

    hp = kt.HyperParameters()
    Net().build(hp)
    hp.values["gate_bias"] = -3.5
    for layer in highways(Net().build(hp)):
        assert np.all(layer.gate.bias == -3.5)
        assert np.all(layer.transform.bias == 0)


def test_deep_highway_starts_alive():
    """50 layers with the default gate bias: each changes x by 8 to 35 %, and the
    gradient at the first is a tenth of the last one's or more (six seeds: 10 to 27 %,
    0.25 to 0.36)."""
    rng = np.random.default_rng(1)
    model = zoo.highway_mlp(64, depth=51, units=64, scan=False)
    x, labels = rng.normal(size=(256, 64)), rng.integers(0, 10, 256)
    changes = []
    y = model.get_layer("stem")(x)
    for layer in highways(model):
        y, before = layer(y), y
        changes.append(np.linalg.norm(y - before) / np.linalg.norm(before))
    assert 0.08 < min(changes) <= max(changes) < 0.35
    assert 0.1 < gradient_ratio(model, x, labels) < 1


def gradient_ratio(model, x, labels):
    """Norm of the gradient of H's kernel, first layer ÷ last; sums in float64."""
    first, *_, last = highways(model)
    with tf.GradientTape() as tape:
        loss = keras.losses.sparse_categorical_crossentropy(
            labels, model(x), from_logits=True
        )
        loss = tf.reduce_mean(loss)
    ends = [layer.transform.kernel.value for layer in (first, last)]
    norms = [np.linalg.norm(np.array(g, "float64")) for g in tape.gradient(loss, ends)]
    return norms[0] / norms[1]


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("build", [zoo.highway_mlp, small_cnn], ids=["mlp", "cnn"])
def test_all_kernels_draw_apart(build, seed):
    for arguments in ({}, {"carry": "separate"}):
        assert distinct_draws(kernels(build(**arguments, scan=False)))
    shared = keras.initializers.HeNormal(seed=seed)
    arguments = {"kernel_initializer": shared}
    if build is zoo.highway_mlp:
        arguments["gate_kernel_initializer"] = shared
    else:
        arguments["head_initializer"] = shared
    draws, again = (kernels(build(**arguments, scan=False)) for _ in range(2))
    assert distinct_draws(draws)
    same = all(map(np.array_equal, draws, again))
    assert same == (seed is not None)


def test_biases_draw_apart():
    draw = keras.initializers.RandomUniform(-0.1, 0.1, seed=3)
    model = zoo.highway_mlp(64, depth=4, units=64, bias_initializer=draw, scan=False)
    biases = [layer.transform.bias.numpy() for layer in highways(model)]
    assert distinct_draws([*biases, model.get_layer("stem").bias.numpy()])
    assert all(np.all(layer.gate.bias == -2) for layer in highways(model))


@pytest.mark.parametrize("build", [zoo.highway_mlp, small_cnn], ids=["mlp", "cnn"])
def test_one_draw_and_one_function_in_every_form(build):
    nets = []
    for scan in ("auto", True, False):
        keras.utils.set_random_seed(5)
        nets.append(build(scan=scan))
    draws = [zoo.convert(net, scan=False).get_weights() for net in nets]
    assert all(map(np.array_equal, draws[0], draws[1]))
    assert all(map(np.array_equal, draws[0], draws[2]))
    x = np.random.default_rng(1).uniform(0, 1, (2, *nets[0].input_shape[1:]))
    assert close(nets[0](x), nets[2](x), 1e-5)
    assert close(nets[1](x), nets[2](x), 1e-5)


def test_spec_rebuilds_the_net():
    draw = keras.initializers.TruncatedNormal(stddev=0.02, seed=3)
    models = [
        zoo.highway_mlp((4, 4, 1), depth=3, activation="tanh", carry="identity"),
        zoo.highway_mlp(8, depth=3, kernel_initializer=draw, gate_bias=np.float32(-3)),
        small_cnn(pool=[(3, 2), 2], dropout=[0.1, 0, 0.2], head_initializer=draw),
        zoo.highway_cnn("mnist_10_w16", num_classes=7),
    ]
    for model in models:
        spec = json.loads(model.zoo_spec)
        copy = getattr(zoo, spec["builder"])(**spec["arguments"])
        assert copy.zoo_spec == model.zoo_spec
        assert [w.path for w in copy.weights] == [w.path for w in model.weights]
        copy.set_weights(model.get_weights())
        x = np.random.default_rng(1).uniform(0, 9, (2, *model.input_shape[1:]))
        assert np.array_equal(copy(x), model(x))


def test_signature_shows_the_variant():
    with pytest.raises(TypeError):
        zoo.highway_cnn("mnist_10", 7)
    with pytest.raises(TypeError, match="depth"):
        zoo.highway_cnn(depth=19)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"depth": 0}, "`depth` must be an integer of at least 1.*depth=0"),
        ({"depth": "10"}, "`depth` must be an integer.*depth='10'"),
        ({"units": 2.5}, "`units` must be an integer.*units=2.5"),
        ({"num_classes": 0}, "`num_classes` must be an integer.*num_classes=0"),
        ({"input_shape": (0,)}, "`input_shape` must be an integer of at least 1"),
        ({"input_shape": (8, 8)}, r"`input_shape` must be \(height.*\(8, 8\)"),
        ({"input_shape": (None, 8, 1)}, "must be known for a dense net.*None"),
        ({"gate_bias": None}, "`gate_bias` must be a number"),
        ({"gate_bias": "-2"}, "`gate_bias` must be a finite number.*'-2'"),
        ({"carry": "open"}, "`carry` must be one of.*'open'"),
        ({"scan": "always"}, "`scan` must be 'auto', True or False.*'always'"),
    ],
)
def test_wrong_arguments_of_highway_mlp(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.highway_mlp(**arguments)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"num_classes": True}, "`num_classes` must be an integer.*True"),
        ({"stages": []}, r"`stages` must be pairs.*stages=\[\]"),
        ({"stages": [32, 80]}, r"`stages` must be pairs.*\[32, 80\]"),
        ({"stages": [(32, -1)]}, r"`stages` must be pairs.*\[\(32, -1\)\]"),
        ({"stem_kernel": 0}, "`stem_kernel` must be an integer.*=0"),
        ({"stem_padding": "full"}, "`stem_padding` must be one of.*'full'"),
        ({"head": "gap"}, "`head` must be one of conv_gap, gap_dense.*head='gap'"),
        ({"pool": 0}, r"`pool` must be a positive integer.*\(3 stages\).*pool=0"),
        ({"pool": [2]}, r"`pool` must be .*\(3 stages\).*pool=\[2\]"),
        ({"pool": "max"}, "`pool` must be .*pool='max'"),
        ({"dropout": 1}, r"`dropout` must be a rate in \[0, 1\).*dropout=1"),
        ({"dropout": [0.2, 0.2]}, r"\(4\). Received: dropout=\[0.2, 0.2\]"),
        ({"dropout": float("nan")}, "`dropout` must be .*nan"),
        ({"input_shape": (32, 32)}, r"`input_shape` must be \(height.*\(32, 32\)"),
        ({"gate_bias": float("inf")}, "`gate_bias` must be a finite number.*inf"),
    ],
)
def test_wrong_arguments_of_highway_cnn(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.highway_cnn(**arguments)


def test_image_too_small_or_unknown():
    with pytest.raises(ValueError, match=r"at least 5×5 pixels.*\(4, 28, 1\)"):
        zoo.highway_cnn("mnist_10", input_shape=(4, 28, 1))
    assert zoo.highway_cnn("mnist_10", input_shape=(5, 5, 1)).output_shape == (None, 10)
    with pytest.raises(ValueError, match="known for head='dense'.*None"):
        zoo.highway_cnn("mnist_10", input_shape=(None, None, 1))


def test_unknown_variant_lists_the_nearest_first():
    with pytest.raises(ValueError, match="one of mnist_10_w16, mnist_10.*'mnist_w16'"):
        zoo.highway_cnn("mnist_w16")


def test_learns_32_digits():
    digits = pytest.importorskip("sklearn.datasets").load_digits()
    x, labels = digits.images[:32, :, :, None], digits.target[:32]
    model = zoo.highway_mlp((8, 8, 1), depth=6, rescale=1 / 16)
    model.compile(
        keras.optimizers.Adam(3e-3),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    steps = np.tile(np.arange(32), 10)  # 10 × 10 steps of all 32
    history = model.fit(x[steps], labels[steps], epochs=10, verbose=0)
    trained = history.history["accuracy"][-1]
    assert trained >= 0.9
    evaluated = model.evaluate(x, labels, verbose=0, return_dict=True)
    assert evaluated["accuracy"] >= trained - 0.1


def test_an_unknown_argument_names_the_builder_and_its_arguments():
    with pytest.raises(TypeError, match="highway_cnn: got an unexpected.*It takes"):
        zoo.highway_cnn("mnist_10", block="foo")


def test_layers_of_the_cifar_nets():
    model = zoo.highway_cnn("cifar_19", scan=False)
    highways_of = {
        stage: [f"highway_{i:02d}" for i in numbers]
        for stage, numbers in ((1, range(1, 5)), (2, range(5, 10)), (3, range(10, 15)))
    }
    assert [layer.name for layer in model.layers] == [
        "image", "contrast", "augment", "mean_image",
        "dropout_1", "stem", *highways_of[1], "pool_1",
        "dropout_2", "widen_2", *highways_of[2], "pool_2",
        "dropout_3", "widen_3", *highways_of[3],
        "head_conv", "gap", "dropout_head", "logits",
    ]  # fmt: skip
    assert model.get_layer("gap").input.shape == (None, 8, 8, 100)
    assert model.get_layer("augment").padding == 8
    mirror = zoo.highway_cnn("mnist_10_w16", augment="flip").get_layer("augment")
    assert mirror.flip and mirror.padding == 0
    stem, logits = model.get_layer("stem").kernel, model.get_layer("logits").kernel
    assert abs(np.std(stem) / 0.05 - 1) < 0.05 and abs(np.std(logits) / 0.05 - 1) < 0.1
    widen = model.get_layer("widen_3").kernel  # N(0, √(2/fan_in)), untruncated
    assert abs(np.std(widen) / np.sqrt(2 / (9 * 80)) - 1) < 0.02

    model = zoo.highway_cnn("cifar_32", scan=False)
    sizes = [layer.transform.kernel_size[0] for layer in highways(model)]
    assert sizes == 3 * [1, 3, 1, 3, 1, 3, 1, 3, 1]
    names = [layer.name for layer in zoo.highway_cnn("cifar_11").layers]
    assert names[-4:] == ["gap", "head_dense", "dropout_head", "logits"]


def test_published_start_of_the_first_convolution():
    published = {"class_name": "RandomNormal", "config": {"stddev": 1.0}}
    model = zoo.highway_cnn("cifar_19", stem_initializer=published)
    assert abs(np.std(model.get_layer("stem").kernel) - 1) < 0.1


def test_data_preparation_is_that_of_numpy():
    """Contrast, then padding with zeros and mirror, then the mean image."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (16, 32, 32, 3)).astype("float32")
    model = zoo.highway_cnn("cifar_11")
    others = rng.integers(0, 256, (40, 32, 32, 3)).astype("float32")

    def contrast(x):
        axes = (1, 2, 3)
        return (x - x.mean(axes, keepdims=True)) / x.std(axes, keepdims=True)

    mean = contrast(others).mean(0)
    assert zoo.training.adapt(model, others, batch_size=16) == ["mean_image"]
    prepared = keras.Model(model.input, model.get_layer("mean_image").output)
    assert close(prepared(images), contrast(images) - mean, 1e-5)
    trained = np.array(prepared(images, training=True)) + mean
    offsets, flips = set(), set()
    for one, image in zip(trained, contrast(images), strict=True):
        padded = np.pad(image, ((8, 8), (8, 8), (0, 0)))
        found = [
            (i, j, flip)
            for i in range(17)
            for j in range(17)
            for flip in (1, -1)
            if np.abs(one - padded[i : i + 32, j : j + 32][:, ::flip]).max() < 1e-4
        ]
        assert len(found) == 1
        offsets.add(found[0][:2])
        flips.add(found[0][2])
    assert len(offsets) > 8 and flips == {1, -1}


def test_features_instead_of_logits():
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    model = small_cnn(include_top=False, num_classes=7)
    assert model.output_shape == (None, 4, 4, 12)
    pooled = small_cnn(include_top=False, pooling="avg")
    pooled.set_weights(model.get_weights())
    assert close(pooled(x), np.mean(model(x), (1, 2)), 1e-6)
    maps = small_cnn(include_top=False, stage_outputs=True)
    assert {k: v.shape for k, v in maps.output.items()} == {
        "stage_1": (None, 8, 8, 8),
        "stage_2": (None, 4, 4, 12),
    }


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"kernel_size": 0}, "`kernel_size` must be an integer of at least 1"),
        ({"kernel_size": ()}, "`kernel_size` must be a size, or sizes.*=\\(\\)"),
        ({"augment": "mirror"}, "`augment` must be False, True"),
        ({"contrast": True, "rescale": 0.1}, "`contrast` takes the place of `rescale`"),
        ({"head_units": 0}, "`head_units` must be an integer of at least 1"),
        ({"pooling": "avg"}, "`pooling` is for include_top=False"),
        ({"stage_outputs": True}, "`stage_outputs` is for include_top=False"),
        (
            {"mean_image": True, "input_shape": (None, None, 3)},
            "MeanImage needs images",
        ),
    ],
)
def test_wrong_arguments_of_the_new_parts(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.highway_cnn(**arguments)
