import json

import keras
import numpy as np
import pytest
from helpers import close, distinct_draws

import zoo
from zoo import models
from zoo.layers import ContrastNormalization, MaxoutConv, MaxoutDense

# A 3×3 convolution of two pieces has 2·(9·inputs·outputs + outputs) parameters, the
# dense layer 5·(last + 1)·500, the logits 500·10 + 10 = 5,010.
PARAMETERS = {
    # Σ inputs·outputs = 3·16 + 2·16² + 16·32 + 2·32² + 32·48 + 48² + 48·64 = 10,032;
    # 2·(9·10,032 + 304) = 181,184; 5·65·500 = 162,500
    1: 348_694,
    # Σ = 3·16 + 16·32 + 32² + 32·48 + 48·64 + 64·80 + 80·96 + 96² + 96·128 = 40,496;
    # 2·(9·40,496 + 592) = 730,112; 5·129·500 = 322,500, as for 3 and 4
    2: 1_057_622,
    # Σ = 3·32 + 32·48 + 48·64 + 64² + 64·80 + 3·80² + 80·128 + 2·128² = 76,128;
    # 2·(9·76,128 + 912) = 1,372,128
    3: 1_699_638,
    # Σ = 3·32 + 2·32² + 32·48 + 48² + 48·80 + 5·80² + 80·128 + 5·128² = 133,984;
    # 2·(9·133,984 + 1,440) = 2,414,592
    4: 2_742_102,
}
GUIDED = {1: 6, 2: 6, 3: 8, 4: 11}  # Romero et al.: the layer that is given hints
DEPTHS = {1: 11, 2: 11, 3: 13, 4: 19}


@pytest.mark.parametrize("number", PARAMETERS)
def test_parameters(number):
    assert zoo.fitnet(number).count_params() == PARAMETERS[number]


@pytest.mark.parametrize("number", PARAMETERS)
def test_layers(number):
    model = zoo.fitnet(number)
    convolutions = [la for la in model.layers if isinstance(la, MaxoutConv)]
    assert len(convolutions) + 2 == DEPTHS[number]  # dense and logits
    assert all(la.pieces == 2 and la.kernel_size == (3, 3) for la in convolutions)
    names = [layer.name for layer in model.layers]
    assert names[:3] == ["image", "contrast", "conv_01"]
    assert names[-3:] == ["pool_3", "dense", "logits"]
    assert [n for n in names if n[:5] == "conv_"] == sorted(
        layer.name for layer in convolutions
    )
    # The guided layer ends the second stage.
    assert names[names.index("pool_2") - 1] == f"conv_{GUIDED[number]:02d}"
    shapes = [tuple(model.get_layer(f"pool_{i}").output.shape) for i in (1, 2, 3)]
    width = convolutions[-1].filters
    assert shapes[0][:3] == (None, 16, 16) and shapes[1][:3] == (None, 8, 8)
    assert shapes[2] == (None, width)
    dense = model.get_layer("dense")
    assert isinstance(dense, MaxoutDense)
    assert (dense.units, dense.pieces) == (500, 5)


def test_last_pool_is_8_by_8():
    x = np.random.default_rng(1).uniform(0, 255, (2, 32, 32, 3)).astype("float32")
    model = zoo.fitnet(1, kernel_initializer="lecun_normal")
    maps = keras.Model(model.input, model.get_layer("conv_09").output)(x)
    pooled = keras.Model(model.input, model.get_layer("pool_3").output)(x)
    by_8 = keras.layers.MaxPooling2D(8)(maps)
    assert by_8.shape == (2, 1, 1, 64)
    assert np.array_equal(pooled, np.reshape(by_8, (2, 64)))


@pytest.mark.parametrize(
    "arguments, count",
    [
        # 8²·3·192 + 192 = 37,056; 8²·96·384 + 384 = 2,359,680; 5²·192·384 + 384 =
        # 1,843,584; (3·3·192 + 1)·2,500 = 4,322,500; 5,010
        ({}, 8_567_830),
        # half of it: 8²·3·96 + 96 = 18,528; 8²·48·192 + 192 = 590,016; 5²·96·192 +
        # 192 = 460,992; (3·3·96 + 1)·1,250 = 1,081,250; 250·10 + 10 = 2,510
        ({"width": 0.5}, 2_153_296),
    ],
)
def test_parameters_of_the_teacher(arguments, count):
    assert zoo.fitnet_teacher(**arguments).count_params() == count


def test_layers_of_the_teacher():
    model = zoo.fitnet_teacher(width=0.125)
    convolutions = [la for la in model.layers if isinstance(la, MaxoutConv)]
    assert [la.filters for la in convolutions] == [12, 24, 24]
    assert [la.kernel_size[0] for la in convolutions] == [8, 8, 5]
    sizes = [model.get_layer(f"pool_{i}").output.shape[1] for i in (1, 2, 3)]
    assert sizes == [15, 6, 3]
    rates = [la.rate for la in model.layers if isinstance(la, keras.layers.Dropout)]
    assert rates == [0.2, 0.5, 0.5, 0.5, 0.5]
    model = zoo.fitnet_teacher(width=0.125, dropout=False)
    assert not any(isinstance(la, keras.layers.Dropout) for la in model.layers)


NETS = {
    "fitnet": lambda **kwargs: zoo.fitnet(1, 7, (16, 16, 3), **kwargs),
    "fitnet_teacher": lambda **kwargs: zoo.fitnet_teacher(
        0.1, 7, (16, 16, 3), **kwargs
    ),
}


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_initial_weights(make):
    model = make()
    for layer in model.layers:
        for w in getattr(layer, "linear", layer).weights:
            if w.path.endswith("bias"):
                assert not np.any(w)
            else:
                assert 0.0045 < np.abs(w).max() <= 0.005
    kernels = [w.numpy() for w in model.weights if w.path.endswith("kernel")]
    assert distinct_draws(kernels)
    given = make(kernel_initializer="he_normal")
    assert np.abs(given.get_layer("conv_01").linear.kernel).max() > 0.1


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_takes_raw_pixels_and_gives_logits(make, policy):
    policy("mixed_float16")
    model = make(whiten=True)
    assert model.inputs[0].name == "image"
    assert model.output.shape == (None, 7) and model.output.dtype == "float32"
    x = np.random.default_rng(1).integers(0, 256, (3, 16, 16, 3), "uint8")
    assert np.isfinite(model.predict(x, verbose=0)).all()
    # contrast normalisation: neither brightness nor contrast of an image matters
    logits = model.predict(x / 4 + 100, verbose=0)
    assert close(logits, model.predict(x, verbose=0), 1e-4)


def test_whitens_when_fitted():
    x = np.random.default_rng(1).uniform(0, 255, (40, 16, 16, 3)).astype("float32")
    plain = zoo.fitnet(1, 7, (16, 16, 3), kernel_initializer="lecun_normal")
    model = zoo.fitnet(1, 7, (16, 16, 3), whiten=True)
    whiten = model.get_layer("whiten")
    assert model.count_params() == plain.count_params() + 768**2 + 768
    assert len(model.trainable_weights) == len(plain.trainable_weights)
    for layer in plain.layers:
        model.get_layer(layer.name).set_weights(layer.get_weights())
    assert close(model(x), plain(x), 1e-4)  # the identity until then
    contrast = ContrastNormalization()(x)
    whiten.adapt(model.get_layer("contrast")(x))
    rest = keras.Model(model.get_layer("conv_01").input, model.output)
    assert close(model(x), rest(whiten(contrast)), 1e-4)
    assert not close(model(x), plain(x), 1e-3)


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_data_preparation_is_that_of_numpy(make):
    """Contrast, then whitening; nothing else, in training neither."""
    rng = np.random.default_rng(1)
    images = rng.integers(0, 256, (16, 16, 16, 3)).astype("float32")
    others = rng.integers(0, 256, (40, 16, 16, 3)).astype("float32")
    model = make(whiten=True)
    assert zoo.training.adapt(model, others, batch_size=16) == ["whiten"]

    def contrast(x):
        x = x - x.mean((1, 2, 3), keepdims=True)
        return (x / x.std((1, 2, 3), keepdims=True)).reshape(len(x), -1)

    mean = contrast(others).mean(0)
    _, s, vectors = np.linalg.svd(contrast(others) - mean, full_matrices=False)
    # 768 values of 40 images: outside of their span the variance is 0
    rest = np.eye(768) - vectors.T @ vectors
    matrix = vectors.T @ np.diag((s**2 / 40 + 0.1) ** -0.5) @ vectors + rest / 0.1**0.5
    expected = ((contrast(images) - mean) @ matrix).reshape(images.shape)
    prepared = keras.Model(model.input, model.get_layer("whiten").output)
    for training in (False, True):
        assert close(prepared(images, training=training), expected, 1e-4)


@pytest.mark.parametrize(
    "make, maps, last",
    [
        (NETS["fitnet"], [(16, 16, 16), (8, 8, 32), (4, 4, 64)], (4, 4, 64)),
        (NETS["fitnet_teacher"], [(16, 16, 10), (7, 7, 19), (2, 2, 19)], (1, 1, 19)),
    ],
    ids=NETS,
)
def test_features_instead_of_logits(make, maps, last):
    x = np.random.default_rng(1).uniform(0, 255, (2, 16, 16, 3))
    draw = {"kernel_initializer": "lecun_normal", "include_top": False}
    model = make(**draw)
    assert model.output_shape == (None, *last)
    assert model.layers[-1].name == ("conv_09" if last[0] == 4 else "pool_3")
    for pooling, reduce in (("avg", np.mean), ("max", np.max)):
        pooled = make(**draw, pooling=pooling)
        pooled.set_weights(model.get_weights())
        assert close(pooled(x), reduce(model(x), (1, 2)), 1e-6)
    stages = make(**draw, stage_outputs=True)
    assert {k: v.shape for k, v in stages.output.items()} == {
        f"stage_{i}": (None, *shape) for i, shape in enumerate(maps, 1)
    }
    stages.set_weights(model.get_weights())
    before = keras.Model(model.input, model.get_layer("conv_03").output)
    name = "stage_1" if last[0] == 4 else "stage_3"
    assert np.array_equal(stages(x)[name], before(x))
    assert json.loads(model.zoo_spec)["arguments"]["include_top"] is False


def test_other_sizes():
    assert zoo.fitnet(4, 100, (None, None, 1)).output_shape == (None, 100)
    model = zoo.fitnet(2, input_shape=(4, 5, 1))
    assert model(np.ones((2, 4, 5, 1))).shape == (2, 10)
    teacher = zoo.fitnet_teacher(0.01, input_shape=(14, 15, 1))
    assert teacher(np.ones((2, 14, 15, 1))).shape == (2, 10)
    assert teacher.get_layer("conv_02").filters == 2
    assert teacher.get_layer("dense").units == 5
    teacher = zoo.fitnet_teacher(0.01, 10, (None, 20, 1), include_top=False)
    assert teacher.output_shape == (None, None, 1, 2)


@pytest.mark.parametrize("name", NETS)
def test_spec_rebuilds_the_net(name):
    model = NETS[name](whiten=True, kernel_initializer=keras.initializers.HeNormal(3))
    spec = json.loads(model.zoo_spec)
    assert spec["builder"] == name in models.BUILDERS
    again = getattr(models, name)(**spec["arguments"])
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    for a, b in zip(again.get_weights(), model.get_weights(), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("make", NETS.values(), ids=NETS)
def test_saves_and_loads(make, tmp_path):
    model = make(whiten=True, kernel_initializer="lecun_normal")
    x = np.random.default_rng(1).uniform(0, 255, (20, 16, 16, 3)).astype("float32")
    model.get_layer("whiten").adapt(model.get_layer("contrast")(x))
    model.save(tmp_path / "net.keras")
    assert np.array_equal(keras.models.load_model(tmp_path / "net.keras")(x), model(x))


def test_comes_back_from_an_export(tmp_path):
    model = NETS["fitnet"](whiten=True, kernel_initializer="lecun_normal")
    x = np.random.default_rng(1).uniform(0, 255, (20, 16, 16, 3)).astype("float32")
    model.get_layer("whiten").adapt(model.get_layer("contrast")(x))
    zoo.export.export_saved_model(model, tmp_path / "net")
    assert np.array_equal(zoo.load(tmp_path / "net")(x), model(x))


def test_names():
    assert zoo.fitnet(3).name == "fitnet_3"
    assert zoo.fitnet(3, name="fitnet_cifar10_13_3").name == "fitnet_cifar10_13_3"
    assert zoo.fitnet_teacher(0.1).name == "fitnet_teacher"


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: zoo.fitnet(5), "`number` must be 1, 2, 3 or 4. Received: number=5"),
        (lambda: zoo.fitnet("1"), "`number` must be .*number='1'"),
        (lambda: zoo.fitnet(True), "`number` must be .*number=True"),
        (lambda: zoo.fitnet(1, 0), "`num_classes` must be .*num_classes=0"),
        (lambda: zoo.fitnet(1, 10, (3, 32, 3)), "`input_shape`: .* at least 4×4"),
        (lambda: zoo.fitnet(1, 10, (32, 32)), "`input_shape` must be"),
        (lambda: zoo.fitnet(1, input_shape=(None, 8, 3), whiten=True), "known size"),
        (lambda: zoo.fitnet(1, depth=3), "fitnet: .*'depth'.*It takes number"),
        (lambda: zoo.fitnet_teacher(0), "`width` must be above 0. Received: width=0"),
        (lambda: zoo.fitnet_teacher(-1.0), "`width` must be above 0.*width=-1.0"),
        (lambda: zoo.fitnet_teacher(1, 0), "`num_classes` must be"),
        (lambda: zoo.fitnet(1, pooling="avg"), "`pooling` is for include_top=False"),
        (
            lambda: zoo.fitnet_teacher(0.1, stage_outputs=True),
            "`stage_outputs` is for include_top=False",
        ),
        (lambda: zoo.fitnet_teacher(1, 10, (13, 14, 3)), "at least 14×14"),
        (lambda: zoo.fitnet_teacher(1, 10, (32, None, 3)), "must be known.*None"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises((ValueError, TypeError), match=message):
        make()
