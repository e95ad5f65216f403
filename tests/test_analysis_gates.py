from itertools import repeat

import keras
import numpy as np
import pytest
from helpers import close, conv, sigmoid

import zoo
from zoo import analysis, datasets

NAMES = ["highway_01", "highway_02", "highway_03"]

both_forms = pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])


def digits(count):
    images, labels = datasets.arrays("digits", "test")
    return images[:count], labels[:count]


def dense_net(scan=False, gate_bias=-1.0):
    return zoo.highway_mlp(
        (8, 8, 1),
        depth=4,
        units=8,
        gate_bias=gate_bias,
        rescale=1 / 16,
        bias_initializer="random_normal",
        scan=scan,
    )


def conv_net(scan=False):
    return zoo.highway_cnn(
        input_shape=(8, 8, 1),
        stages=((4, 2), (6, 1)),
        dropout=0.5,
        gate_bias=-1.0,
        rescale=1 / 16,
        scan=scan,
    )


def by_hand(model, images):
    """T and y of the layers of `dense_net`, in float64."""
    weights = zoo.convert(model, scan=False).weights
    weights = {w.path: np.float64(w) for w in weights}

    def linear(x, layer):
        return x @ weights[layer + "/kernel"] + weights[layer + "/bias"]

    x = np.maximum(linear(images.reshape(len(images), 64) / 16, "stem"), 0)
    gates, outputs = [], [x]
    for name in NAMES:
        t = sigmoid(linear(x, name + "/gate"))
        x = t * np.maximum(linear(x, name + "/transform"), 0) + (1 - t) * x
        gates.append(t)
        outputs.append(x)
    return np.array(gates), np.array(outputs)


@both_forms
def test_trace_of_a_dense_net(scan):
    model, (images, _) = dense_net(scan), digits(7)
    trace = analysis.trace(model, images)
    gates, outputs = by_hand(model, images)
    assert trace.names == NAMES
    assert trace.gates.shape == (3, 7, 8)
    assert trace.outputs.shape == (4, 7, 8)
    assert close(trace.gates, gates, 1e-6)
    assert close(trace.outputs, outputs, 1e-6)


@both_forms
def test_trace_of_a_convolutional_net(scan):
    model, (images, _) = conv_net(scan), digits(3)
    trace = analysis.trace(model, images)
    shapes = [(3, 8, 8, 4), (3, 8, 8, 4), (3, 4, 4, 6)]
    assert [gates.shape for gates in trace.gates] == shapes
    assert [output.shape for output in trace.outputs] == [shapes[0], *shapes]
    layer = zoo.convert(model, scan=False).get_layer("highway_02")
    kernel, bias = np.float64(layer.gate.kernel), np.float64(layer.gate.bias)
    assert close(trace.gates[1], sigmoid(conv(trace.outputs[1], kernel) + bias), 1e-5)


def test_trace_of_a_net_that_is_no_builders():
    keras.utils.set_random_seed(1)
    gate = keras.layers.Dense(5, activation="sigmoid")
    recurrent = keras.layers.GRU(5, return_sequences=True)
    model = keras.Sequential(
        [
            keras.Input((6, 5)),
            zoo.layers.Highway(recurrent, gate, name="around_a_gru"),
            zoo.layers.HighwayDense(name="dense"),
        ]
    )
    x = np.random.default_rng(1).normal(size=(2, 6, 5)).astype("float32")
    trace = analysis.trace(model, x)
    assert trace.names == ["around_a_gru", "dense"]
    assert close(trace.gates[0], gate(x), 1e-6)
    assert close(trace.outputs[0], x, 0)
    assert close(trace.outputs[2], model(x), 1e-6)


@both_forms
def test_gates_are_float32_under_mixed_precision(scan, policy):
    policy("mixed_bfloat16")
    model, (images, _) = dense_net(scan), digits(7)
    trace = analysis.trace(model, images)
    assert trace.gates.dtype == np.float32
    assert close(trace.gates, by_hand(model, images)[0], 0.02)  # bfloat16 stem


@pytest.mark.parametrize("make", [dense_net, conv_net])
def test_batch_size_does_not_matter(make):
    model, (images, labels) = make(), digits(7)
    trace, parts = (analysis.trace(model, images, n) for n in (128, 3))
    by_class, sums = (
        analysis.gates_by_class(model, images, labels, n) for n in (128, 3)
    )
    for one, other in ((trace.gates, parts.gates), (trace.outputs, parts.outputs)):
        assert all(map(close, one, other, repeat(1e-6)))
    for one, other in zip(by_class, sums, strict=True):
        assert np.allclose(one, other, atol=1e-6, equal_nan=True)


@both_forms
def test_mean_gates(scan):
    model, (images, _) = dense_net(scan), digits(50)
    means = analysis.mean_gates(model, images)
    assert means.shape == (3, 8)
    assert close(means, by_hand(model, images)[0].mean(1), 1e-6)


@both_forms
def test_mean_gates_of_convolutions_are_over_pixels_too(scan):
    model, (images, _) = conv_net(scan), digits(5)
    means = analysis.mean_gates(model, images)
    gates = analysis.trace(model, images).gates
    assert [mean.shape for mean in means] == [(4,), (4,), (6,)]
    for mean, gate in zip(means, gates, strict=True):
        assert close(mean, gate.mean((0, 1, 2)), 1e-6)


@both_forms
def test_gates_by_class(scan):
    model, (images, labels) = dense_net(scan), digits(60)
    by_class = analysis.gates_by_class(model, images, labels)
    gates, _ = by_hand(model, images)
    assert by_class.shape == (10, 3, 8)
    for label in range(10):
        assert close(by_class[label], gates[:, labels == label].mean(1), 1e-6)
    counts = np.bincount(labels, minlength=10)
    weighted = np.tensordot(counts, by_class, 1) / counts.sum()
    assert close(weighted, analysis.mean_gates(model, images), 1e-12)  # both float64


def test_a_class_without_images_is_nan():
    model, (images, labels) = dense_net(), digits(60)
    by_class = analysis.gates_by_class(model, images, np.where(labels == 3, 4, labels))
    assert [label for label in range(10) if np.isnan(by_class[label]).all()] == [3]
    assert np.isfinite(np.delete(by_class, 3, axis=0)).all()


def test_gates_by_class_of_different_widths_are_a_list_over_layers():
    means = analysis.gates_by_class(conv_net(), *digits(5))
    assert [mean.shape for mean in means] == [(10, 4), (10, 4), (10, 6)]


@both_forms
def test_gate_biases(scan):
    model = dense_net(scan, gate_bias=-3.5)
    assert np.array_equal(analysis.gate_biases(model), np.full((3, 8), -3.5))
    for weight in (w for w in model.weights if w.path.endswith("gate/bias")):
        weight.assign_add(weight)
    assert np.array_equal(analysis.gate_biases(model), np.full((3, 8), -7.0))
    assert [len(bias) for bias in analysis.gate_biases(conv_net(scan))] == [4, 4, 6]


def test_gate_without_bias():
    gate = keras.layers.Dense(4, activation="sigmoid", use_bias=False, name="no_bias")
    highway = zoo.layers.Highway(keras.layers.Dense(4), gate, None, name="highway_01")
    model = keras.Sequential([keras.Input((4,)), highway])
    with pytest.raises(ValueError, match="'highway_01' with gate 'no_bias'"):
        analysis.gate_biases(model)


@both_forms
def test_dropout_is_off(scan):
    model, (images, _) = conv_net(scan), digits(3)
    trace = analysis.trace(model, images)
    probe = keras.Model(model.input, model.get_layer("head_conv").input)
    assert close(trace.outputs[3], probe(images, training=False), 1e-6)
    again = analysis.trace(model, images)
    assert all(map(np.array_equal, trace.gates, again.gates))


@both_forms
def test_model_is_left_alone(scan):
    model, (images, labels) = conv_net(scan), digits(8)
    model.compile("sgd", "sparse_categorical_crossentropy")
    weights, logits = model.get_weights(), model.predict(images, verbose=0)
    config, layers = model.to_json(), list(model.layers)
    analysis.trace(model, images)
    analysis.mean_gates(model, images)
    analysis.gates_by_class(model, images, labels)
    assert model.to_json() == config
    assert model.layers == layers
    assert all(map(np.array_equal, model.get_weights(), weights))
    assert np.array_equal(model.predict(images, verbose=0), logits)
    model.train_on_batch(images, labels)
    assert not np.array_equal(model.get_weights()[0], weights[0])


IMAGES, LABELS = np.ones((2, 8, 8, 1)), np.array([0, 1])


@pytest.mark.parametrize("function", ["trace", "mean_gates", "gates_by_class"])
def test_net_without_highway_layers(function):
    labels = [LABELS] if function == "gates_by_class" else []
    with pytest.raises(ValueError, match="must have highway layers.*'plain_mlp_3'"):
        getattr(analysis, function)(zoo.plain_mlp((8, 8, 1), depth=3), IMAGES, *labels)


@pytest.mark.parametrize("function", ["trace", "mean_gates", "gates_by_class"])
@pytest.mark.parametrize("shape", [(2, 8, 9, 1), (2, 64), (8, 8, 1), (0, 8, 8, 1)])
def test_images_that_do_not_fit(function, shape):
    labels = [LABELS] if function == "gates_by_class" else []
    message = r"`images` must have the shape \(batch, 8, 8, 1\) with at least one image"
    with pytest.raises(ValueError, match=message):
        getattr(analysis, function)(dense_net(), np.ones(shape), *labels)


@pytest.mark.parametrize(
    "labels, message",
    [
        ([0, 10], r"`labels` must lie in 0 … 9.*Received: 0 … 10"),
        ([-1, 9], r"`labels` must lie in 0 … 9.*Received: -1 … 9"),
        ([0], r"`labels` must be 2 integers.*labels.shape=\(1,\)"),
        ([[0], [1]], r"`labels` must be 2 integers.*labels.shape=\(2, 1\)"),
        ([0.0, 1.0], r"`labels` must be 2 integers.*dtype=float64"),
    ],
)
def test_labels_that_do_not_fit(labels, message):
    with pytest.raises(ValueError, match=message):
        analysis.gates_by_class(dense_net(), IMAGES, labels)


def test_model_with_two_inputs():
    inputs = [keras.Input((4,)), keras.Input((4,))]
    sums = keras.layers.Add()(inputs)
    model = keras.Model(inputs, zoo.layers.HighwayDense()(sums))
    with pytest.raises(ValueError, match="`model` must have one input. Received: 2"):
        analysis.trace(model, np.ones((1, 4)))


def test_images_that_are_no_finite_numbers():
    model = zoo.highway_mlp((8, 8, 1), depth=3, units=4)
    for images in (np.full((1, 8, 8, 1), np.nan), np.zeros((1, 8, 8, 1)).astype(str)):
        with pytest.raises(ValueError, match="`images` must be finite numbers"):
            analysis.trace(model, images)
    with pytest.raises(ValueError, match="`model` must be a live keras.Model"):
        analysis.mean_gates(None, np.zeros((1, 8, 8, 1)))


@pytest.mark.parametrize(
    "arguments, scan",
    [
        ({"shortcut": "exclusive_gating", "order": "full_preactivation"}, True),
        ({"shortcut": "shortcut_only_gating"}, False),
        ({"shortcut": "exclusive_gating", "gate": "twin"}, True),
    ],
    ids=["exclusive", "shortcut_only", "twin"],
)
def test_gated_residual_units(arguments, scan):
    net = zoo.resnet(20, input_shape=(8, 8, 1), gate_bias=-1.0, scan=False, **arguments)
    model, (images, _) = zoo.convert(net, scan), digits(3)
    trace = analysis.trace(model, images)
    assert trace.names == [f"unit_0{i}" for i in range(1, 10)]
    for i, name in enumerate(trace.names):
        unit, x = net.get_layer(name), trace.outputs[i]
        assert close(trace.gates[i], unit.gates(x), 1e-6)
        assert close(trace.outputs[i + 1], unit(x), 1e-5)
    means = analysis.mean_gates(model, images)
    for mean, gates in zip(means, trace.gates, strict=True):
        assert close(mean, gates.mean((0, 1, 2)), 1e-6)
    assert {float(b.mean()) for b in analysis.gate_biases(model)} == {-1.0}
    assert len(analysis.gate_biases(model)) == 9


@both_forms
def test_separate_carry_gates(scan):
    model = zoo.highway_mlp((4,), depth=4, units=3, carry="separate", scan=scan)
    x = np.random.default_rng(0).normal(size=(5, 4)).astype("float32")
    trace = analysis.trace(model, x)
    assert trace.carry_gates.shape == trace.gates.shape == (3, 5, 3)
    layer = zoo.convert(model, False).get_layer("highway_02")
    assert close(trace.carry_gates[1], layer.carry_gate(trace.outputs[1]), 1e-6)
    assert analysis.trace(dense_net(scan), IMAGES).carry_gates is None


@both_forms
def test_pixel_means_of_a_trace(scan):
    model, (images, _) = conv_net(scan), digits(3)
    maps, means = (analysis.trace(model, images, pixels=p) for p in ("map", "mean"))
    for field in ("gates", "outputs"):
        for one, mean in zip(getattr(maps, field), getattr(means, field), strict=True):
            assert close(mean, one.mean((1, 2)), 1e-6)
    with pytest.raises(ValueError, match="`pixels` must be one of"):
        analysis.trace(model, images, pixels="max")


@both_forms
def test_sparsity(scan):
    model, (images, _) = dense_net(scan, gate_bias=0.0), digits(40)
    sparsity = analysis.gate_sparsity(model, images, 0.6, batch_size=16)
    gates, _ = by_hand(model, images)
    assert np.allclose(sparsity.open, (gates > 0.6).mean((1, 2)), atol=1e-9)
    assert np.allclose(sparsity.ever_open, (gates > 0.6).any(1).mean(1))
    assert 0 < sparsity.open.max() < sparsity.ever_open.max()
    assert sparsity.names == NAMES and sparsity.threshold == 0.6
    with pytest.raises(ValueError, match="`threshold` must lie between 0 and 1"):
        analysis.gate_sparsity(model, images, 1.0)


@both_forms
def test_initial_biases(scan):
    model = dense_net(scan, gate_bias=-3.5)
    for weight in (w for w in model.weights if w.path.endswith("gate/bias")):
        weight.assign_add(weight)
    initial = analysis.gate_biases(model, initial=True)
    assert np.array_equal(initial, np.full((3, 8), -3.5))


def test_initial_biases_that_were_drawn():
    gate = keras.layers.Dense(4, "sigmoid", bias_initializer="random_normal")
    layer = zoo.layers.Highway(keras.layers.Dense(4), gate, None)
    model = keras.Sequential([keras.Input((4,)), layer])
    assert np.isnan(analysis.gate_biases(model, initial=True)).all()


def test_data_sets_stream():
    model, data = dense_net(), datasets.load("digits", "test", 32).take(3)
    images, labels = digits(96)
    assert close(
        analysis.mean_gates(model, data), analysis.mean_gates(model, images), 1e-6
    )
    by_class = analysis.gates_by_class(model, data)
    expected = analysis.gates_by_class(model, images, labels)
    assert np.allclose(by_class, expected, atol=1e-6, equal_nan=True)


@pytest.mark.parametrize(
    "data, message",
    [
        (lambda data: data.take(0), "a data set with at least one batch"),
        (lambda data: data.repeat(), "a data set that ends; use .take"),
        (lambda data: data.map(lambda x, y: x), "`labels` must be given"),
        (lambda data: 3, "must be an array or a data set.*Received: int"),
        (
            lambda data: data.map(lambda x, y: (x[:, 1:], y)),
            r"`images` must have the shape \(batch, 8, 8, 1\)",
        ),
    ],
    ids=["empty", "endless", "no_labels", "number", "size"],
)
def test_data_sets_that_do_not_fit(data, message):
    data = data(datasets.load("digits", "test", 32))
    with pytest.raises(ValueError, match=message):
        analysis.gates_by_class(dense_net(), data)


@both_forms
def test_a_saved_model_gives_the_live_gates(scan, tmp_path):
    model, (images, labels) = conv_net(scan), digits(20)
    served = zoo.load_served(zoo.export.export_saved_model(model, tmp_path / "net"))
    trace, live = (analysis.trace(m, images[:3]) for m in (served, model))
    assert trace.names == live.names and trace.outputs is None
    assert all(map(close, trace.gates, live.gates, repeat(1e-6)))
    for function, rest in (
        (analysis.mean_gates, ()),
        (analysis.gates_by_class, (labels,)),
        (analysis.gate_sparsity, (0.3, 7)),
    ):
        for one, other in zip(
            function(served, images, *rest), function(model, images, *rest), strict=True
        ):
            if isinstance(other, np.ndarray):
                assert np.allclose(one, other, atol=1e-6, equal_nan=True)
    with pytest.raises(ValueError, match="needs.*live|live keras.Model.*endpoints"):
        analysis.lesions(served, images, labels)
    with pytest.raises(ValueError, match=r"`images` must have the shape \(batch, 8, 8"):
        analysis.mean_gates(served, np.ones((1, 9, 8, 1)))
    with pytest.raises(ValueError, match="`labels` must lie in 0 … 9"):
        analysis.gates_by_class(served, images, labels + 10)


def test_a_saved_model_without_gates(tmp_path):
    model = zoo.plain_mlp((8, 8, 1), depth=2, units=4)
    served = zoo.load_served(zoo.export.export_saved_model(model, tmp_path / "net"))
    with pytest.raises(ValueError, match="the endpoint 'gates'.*serve, serve_uint8"):
        analysis.mean_gates(served, IMAGES)


def test_a_net_without_gates_hears_what_works():
    model = zoo.preact_resnet(14, input_shape=(8, 8, 1))
    with pytest.raises(ValueError, match="without gates there are.*lesions.*prune"):
        analysis.mean_gates(model, IMAGES)


@pytest.fixture(scope="module")
def reader():
    """A net for text: which characters open its gates?"""
    return zoo.char_cnn("abcdefgh ", words=5, characters=8, num_classes=3)


TEXTS = ["abc def", "", "häh ab a b a b a b"]


def test_text(reader):
    found = analysis.trace(reader, TEXTS)
    assert found.gates.shape[:3] == (1, 3, 5)  # layers, texts, words
    units = found.gates.shape[3]
    one = analysis.trace(reader, np.array([b"abc def"], object))
    assert np.allclose(one.gates[:, 0], found.gates[:, 0], atol=1e-6)
    assert not np.allclose(found.gates[:, 0, 0], found.gates[:, 0, 1])  # other words
    assert analysis.mean_gates(reader, TEXTS).shape == (1, units)
    by_class = analysis.gates_by_class(reader, TEXTS, np.array([0, 1, 2]))
    assert by_class.shape == (3, 1, units)


def test_text_as_it_is_served(reader, tmp_path):
    path = zoo.export.export_saved_model(reader, tmp_path / "net")
    served = analysis.trace(zoo.load_served(path), TEXTS)
    assert np.allclose(served.gates, analysis.trace(reader, TEXTS).gates, atol=1e-6)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (np.ones((2, 5, 8)), r"since the net reads text.*\(2, 5, 8\)"),
        ([1, 2], "beginning with 1"),
        ([["a"], ["b"]], r"shape \(2, 1\)"),
        ([], r"shape \(0,\)"),
    ],
)
def test_what_is_no_text(reader, texts, message):
    with pytest.raises(ValueError, match=f"`images` must be strings, .*{message}"):
        analysis.trace(reader, texts)
