import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import jacobian, sigmoid

import zoo
from recipes import configs
from recipes.tables import digits as tables
from zoo import analysis, datasets


@pytest.mark.parametrize(
    "kind, layers, printed",
    [
        ("plain", 10, 1.43e-3),
        ("highway", 10, 7.84e-1),
        ("plain", 50, 4.76e-19),
        ("highway", 50, 3.31e-2),
    ],
)
def test_ratios_that_the_tutorial_prints(kind, layers, printed):
    norms = analysis.gradient_norms(*tables.tutorial_net(kind, layers))
    assert norms.shape == (layers,)
    assert norms.dtype == np.float64
    assert (norms > 0).all()
    assert float(f"{norms[0] / norms[-1]:.2e}") == printed


@pytest.mark.parametrize(
    "kind, low, high", [("plain", 0, 1e-15), ("highway", 0.01, 0.1)]
)
def test_ratio_of_the_recipes_initial_draw_at_depth_50(kind, low, high):
    arguments = configs.load(f"{kind}_mlp_digits_50").model
    arguments = {**arguments, "input_shape": (64,), "rescale": 1.0}
    if kind == "highway":
        arguments["gate_bias"] = -2.0
    model = getattr(zoo, f"{kind}_mlp")(**arguments)
    rng = np.random.default_rng(1)
    images, labels = rng.normal(size=(256, 64)), rng.integers(0, 10, 256)
    norms = analysis.gradient_norms(model, images, labels)
    assert low < norms[0] / norms[-1] < high


@pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])
@pytest.mark.parametrize("kind", ["plain", "highway"])
def test_agrees_with_numpy(kind, scan):
    model = getattr(zoo, f"{kind}_mlp")(
        (8, 8, 1), depth=6, units=16, rescale=1 / 16, bias_initializer="random_normal"
    )
    model = zoo.convert(model, scan=False)
    rng = np.random.default_rng(1)
    images, labels = rng.integers(0, 17, (20, 8, 8, 1)), rng.integers(0, 10, 20)
    expected = kernel_gradients(model, images.reshape(20, 64) / 16, labels)
    expected = [np.linalg.norm(gradient) for gradient in expected]
    norms = analysis.gradient_norms(zoo.convert(model, scan), images, labels)
    assert np.allclose(norms, expected, rtol=1e-4)  # float32 against float64


def test_a_plain_net_is_measured_between_its_first_and_last_layer():
    model = zoo.plain_mlp((8, 8, 1), depth=4, units=8)
    assert analysis.gradient_norms(model, np.ones((2, 8, 8, 1)), [0, 1]).shape == (3,)


def test_a_layer_with_several_kernels_counts_all_of_them():
    model = zoo.preact_resnet(8, input_shape=(8, 8, 3))
    images, labels = np.random.default_rng(1).normal(size=(4, 8, 8, 3)), np.arange(4)
    norms = analysis.gradient_norms(model, images, labels)
    assert norms.shape == (3,)  # units, each of two or three kernels
    unit = model.get_layer("unit_02")
    kernels = [conv.kernel.value for conv in (*unit.convs, unit.projection)]
    with tf.GradientTape() as tape:
        logits = model(images, training=False)
        losses = keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        loss = tf.reduce_mean(losses)
    squares = [np.sum(np.square(g)) for g in tape.gradient(loss, kernels)]
    assert np.isclose(norms[1], np.sqrt(sum(squares)), rtol=1e-5)


def test_dropout_is_off():
    model = zoo.highway_cnn(
        input_shape=(8, 8, 1), stages=((4, 2), (6, 2)), dropout=0.5, rescale=1.0
    )
    images, labels = np.random.default_rng(1).normal(size=(4, 8, 8, 1)), [0, 1, 2, 3]
    norms = analysis.gradient_norms(model, images, labels)
    assert norms.shape == (4,)
    assert np.array_equal(norms, analysis.gradient_norms(model, images, labels))


def test_model_is_left_alone():
    model = zoo.highway_mlp((8, 8, 1), depth=3, units=8)
    weights, config = model.get_weights(), model.to_json()
    analysis.gradient_norms(model, np.ones((2, 8, 8, 1)), [0, 1])
    assert model.to_json() == config
    assert all(map(np.array_equal, model.get_weights(), weights))


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (np.ones((2, 9, 8, 1)), [0, 1], r"`images` must have the shape \(batch, 8, 8"),
        (np.ones((0, 8, 8, 1)), [], "with at least one image"),
        (np.ones((2, 8, 8, 1)), [0, 10], r"`labels` must lie in 0 … 9"),
        (np.ones((2, 8, 8, 1)), [0], r"`labels` must be 2 integers"),
        (np.ones((2, 8, 8, 1)), [0.0, 1.0], r"`labels` must be 2 integers"),
    ],
)
def test_input_that_does_not_fit(images, labels, message):
    with pytest.raises(ValueError, match=message):
        analysis.gradient_norms(zoo.plain_mlp((8, 8, 1), depth=3), images, labels)


def test_net_without_a_layer_between_stem_and_logits():
    with pytest.raises(ValueError, match="between its first and its last"):
        analysis.gradient_norms(zoo.plain_mlp((4,), depth=1), np.ones((1, 4)), [0])


def kernel_gradients(model, x, labels):
    """Gradients of the mean cross-entropy with respect to the kernel of each H."""
    weights = iter(np.float64(w) for w in model.get_weights())
    x = np.maximum(x @ next(weights) + next(weights), 0)
    steps = []
    for layer in model.layers[4:-1]:  # after image, rescale, flatten and stem
        w_h, b_h = next(weights), next(weights)
        h, t, w_t = np.maximum(x @ w_h + b_h, 0), 1.0, None
        if layer.name.startswith("highway"):
            w_t, b_t = next(weights), next(weights)
            t = sigmoid(x @ w_t + b_t)
        steps.append((x, h, t, w_h, w_t))
        x = x + t * (h - x)
    kernel, bias = next(weights), next(weights)
    odds = np.exp(x @ kernel + bias)
    error = odds / odds.sum(1, keepdims=True) - np.eye(10)[labels]
    dy, gradients = error @ kernel.T / len(labels), []
    for x, h, t, w_h, w_t in reversed(steps):
        dz = dy * t * (h > 0)
        gradients.insert(0, x.T @ dz)
        dx = dz @ w_h.T + dy * (1 - t)
        if w_t is not None:
            dx += (dy * (h - x) * t * (1 - t)) @ w_t.T
        dy = dx
    return gradients


def stack(scan=False):
    return zoo.highway_mlp(
        (8, 8, 1), depth=4, units=6, gate_bias=0.0, rescale=1 / 16, scan=scan
    )


def test_jacobian_norms_are_those_of_the_jacobian():
    model, (images, _) = stack(), datasets.arrays("digits", "test")
    images = images[:8]
    norms = analysis.jacobian_norms(model, images, vectors=4000)
    states = analysis.trace(model, images).outputs
    for i, norm in enumerate(norms):
        layer = model.get_layer(f"highway_0{i + 1}")
        squares = np.square(jacobian(layer, states[i])).sum((1, 2))
        assert np.isclose(norm, np.sqrt(squares.mean() / 6), rtol=0.02)


def test_jacobian_norms_of_both_forms():
    model, images = stack(), np.ones((2, 8, 8, 1))
    loop = zoo.convert(model, True)
    one, other = (analysis.jacobian_norms(m, images) for m in (model, loop))
    assert np.allclose(one, other, rtol=1e-6)
    assert not np.allclose(one, analysis.jacobian_norms(model, images, seed=1))


def test_a_layer_that_carries_has_jacobian_1():
    model = zoo.highway_mlp((8, 8, 1), depth=4, units=6, gate_bias=-200.0, scan=True)
    norms = analysis.jacobian_norms(model, np.ones((2, 8, 8, 1)))
    assert np.array_equal(norms, np.ones(3))


@pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])
def test_output_change(scan):
    model, (images, _) = stack(scan), datasets.arrays("digits", "test")
    change = analysis.output_change(model, images[:30], batch_size=7)
    states = np.float64(analysis.trace(model, images[:30]).outputs)
    moved = np.linalg.norm(np.diff(states, axis=0), axis=2).mean(1)
    size = np.linalg.norm(states[:-1], axis=2).mean(1)
    assert np.allclose(change.change, moved, rtol=1e-5)
    assert np.allclose(change.relative, moved / size, rtol=1e-5)
    assert change.names == ["highway_01", "highway_02", "highway_03"]


def test_output_change_of_units_that_change_the_shape():
    model = zoo.preact_resnet(14, input_shape=(8, 8, 1))
    unit = model.get_layer("unit_03")
    unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))
    images = np.random.default_rng(0).normal(100, 50, (3, 8, 8, 1))
    change = analysis.output_change(model, images).change
    assert change[2] == 0 and (np.delete(change, 2) > 0).all()


def test_layer_names():
    assert analysis.layer_names(stack(True)) == [f"highway_0{i}" for i in (1, 2, 3)]
    plain = zoo.plain_mlp((8, 8, 1), depth=3)
    norms = analysis.gradient_norms(plain, np.ones((1, 8, 8, 1)), [0])
    assert len(analysis.layer_names(plain)) == len(norms) == 2
