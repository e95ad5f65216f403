import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import (
    check_layer,
    close,
    distinct_draws,
    gradients,
    highway_stack,
    jacobian,
    sigmoid,
)

from zoo.layers import Highway, HighwayConv


def built(shape, *args, **arguments):
    layer = HighwayConv(*args, **arguments)
    layer.build(shape)
    return layer


def test_layer_contract_1d(tmp_path):
    def make(dtype=None):
        return HighwayConv(4, gate_kernel_size=1, carry="separate", dtype=dtype)

    check_layer(make, (2, 7, 4), 6, tmp_path)


def test_layer_contract_2d(tmp_path):
    check_layer(HighwayConv, (2, 6, 5, 4), 4, tmp_path)


def test_layer_contract_3d(tmp_path):
    def make(dtype=None):
        return HighwayConv(3, (1, 3, 2), activation="tanh", dtype=dtype)

    check_layer(make, (2, 3, 4, 5, 3), 4, tmp_path)


def test_names():
    layer = built((None, 5, 5, 4), name="highway_01")
    assert [w.path for w in layer.weights] == [
        f"highway_01/{half}/{weight}"
        for half in ("transform", "gate")
        for weight in ("kernel", "bias")
    ]


@pytest.mark.parametrize("carry", ["coupled", "separate", "identity"])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_stack_equals_numpy(carry, dtype, tolerance):
    rng = np.random.default_rng(2)
    sizes = [(3, None), (2, 3), ((1, 4), 1)]
    layers = [
        built((None, 5, 4, 3), None, *size, carry=carry, dtype=dtype) for size in sizes
    ]
    weights = [w for layer in layers for w in layer.trainable_weights]
    for w in weights:
        w.assign(rng.normal(0, 0.4, w.shape))
    x, dy = rng.normal(size=(2, 2, 5, 4, 3)).astype(dtype)

    def stack(x):
        for layer in layers:
            x = layer(x)
        return x

    def pairs(layer):
        arrays = [w.numpy().astype("float64") for w in layer.weights]
        return tuple(zip(arrays[::2], arrays[1::2], strict=True))

    y, dx, dw = gradients(stack, x, dy, weights)
    x, dy = x.astype("float64"), dy.astype("float64")
    y_, dx_, dw_ = highway_stack(x, [pairs(la) for la in layers], dy, carry)
    assert y.dtype == dtype
    assert close(y, y_, tolerance)
    assert close(dx, dx_, tolerance)
    for mine, theirs in zip(dw, dw_, strict=True):
        assert close(mine, theirs, tolerance)


def test_gradients_equal_finite_differences():
    rng = np.random.default_rng(3)
    layer = built((None, 4, 4, 2), activation="tanh", gate_bias=-1, dtype="float64")
    x, dy = rng.normal(size=(2, 1, 4, 4, 2))
    _, dx, dw = gradients(layer, x, dy, layer.trainable_weights)
    step, loss = 1e-5, lambda: np.sum(dy * layer(x))
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        up, down = np.sum(dy * layer(x + moved)), np.sum(dy * layer(x - moved))
        assert abs(dx[place] - (up - down) / (2 * step)) < 1e-8
    for weight, gradient in zip(layer.trainable_weights, dw, strict=True):
        value = weight.numpy()
        for place in list(np.ndindex(value.shape))[::5]:
            ends = []
            for sign in (1, -1):
                moved = value.copy()
                moved[place] += sign * step
                weight.assign(moved)
                ends.append(loss())
            weight.assign(value)
            assert abs(gradient[place] - (ends[0] - ends[1]) / (2 * step)) < 1e-8


def test_closed_gate_carries_exactly():
    x = np.random.default_rng(4).normal(size=(2, 3, 3, 2)).astype("float32")
    layer = built(x.shape, gate_bias=-100)
    assert np.array_equal(layer(x), x)
    flat = jacobian_of_flat(layer, x)
    assert np.array_equal(flat, np.broadcast_to(np.eye(18), (2, 18, 18)))


def test_open_gate_transforms_exactly():
    rng = np.random.default_rng(5)
    x = rng.integers(-3, 4, (2, 3, 3, 2)).astype("float32")  # exact in float32
    layer = built(x.shape, gate_bias=100)
    for half in (layer.transform, layer.gate):
        half.kernel.assign(rng.integers(-1, 2, half.kernel.shape))
    assert np.array_equal(layer(x), layer.transform(x))
    assert np.array_equal(
        jacobian_of_flat(layer, x), jacobian_of_flat(layer.transform, x)
    )
    layer = built(x.shape, gate_bias=100)
    assert close(layer(x), layer.transform(x), 1e-6)


def jacobian_of_flat(function, x):
    rows = x.reshape(len(x), -1)
    return jacobian(
        lambda r: tf.reshape(function(tf.reshape(r, x.shape)), rows.shape), rows
    )


def test_initial_biases():
    layer = built((None, 8, 8, 16), 16, 3)
    assert np.all(layer.gate.bias == -2)
    assert np.all(layer.transform.bias == 0)
    layer.gate.kernel.assign(np.zeros((3, 3, 16, 16)))
    x = np.random.default_rng(6).normal(size=(2, 8, 8, 16)).astype("float32")
    assert close(np.mean(layer.gate(x)), sigmoid(-2), 1e-6)


def test_halves_draw_apart():
    shared, seeded = keras.initializers.HeNormal(), keras.initializers.HeNormal(seed=3)
    for initializer in (shared, seeded):
        layer = built(
            (None, 5, 5, 4),
            carry="separate",
            kernel_initializer=initializer,
            gate_kernel_initializer=initializer,
        )
        assert distinct_draws(half.kernel.numpy() for half in layer.halves())


def test_kernel_sizes():
    layer = built((None, 8, 8, 4), 4, 3, 1)
    assert layer.transform.kernel.shape == (3, 3, 4, 4)
    assert layer.gate.kernel.shape == (1, 1, 4, 4)
    layer = built((None, 8, 8, 4), 4, (5, 1))
    assert layer.transform.kernel.shape == layer.gate.kernel.shape == (5, 1, 4, 4)


def test_dilation_spreads_the_kernel():
    x = np.random.default_rng(7).normal(size=(2, 7, 7, 2)).astype("float32")
    dilated = built(x.shape, kernel_size=3, dilation_rate=2)
    spread = built(x.shape, kernel_size=5)
    for mine, its in zip(dilated.halves(), spread.halves(), strict=True):
        kernel = np.zeros((5, 5, 2, 2))
        kernel[::2, ::2] = mine.kernel
        its.kernel.assign(kernel)
    assert close(dilated(x), spread(x), 1e-6)


def test_channels_first_equals_channels_last_transposed():
    x = np.random.default_rng(8).normal(size=(2, 5, 6, 3)).astype("float32")
    last = built(x.shape, data_format="channels_last")
    first = built((2, 3, 5, 6), data_format="channels_first")
    first.set_weights(last.get_weights())
    try:
        y = np.array(first(x.transpose(0, 3, 1, 2)))
    except (tf.errors.UnimplementedError, tf.errors.InvalidArgumentError) as error:
        if "NHWC" not in str(error):  # another fault than the format
            raise
        pytest.skip("this machine has no convolution of channels_first images")
    assert close(y.transpose(0, 2, 3, 1), last(x), 1e-6)


def test_equals_highway_around_a_convolution():
    x = np.random.default_rng(9).normal(size=(2, 5, 3)).astype("float32")
    ready = built(x.shape)
    around = Highway(keras.layers.Conv1D(3, 3, padding="same", activation="relu"))
    around.build(x.shape)
    around.set_weights(ready.get_weights())
    assert np.array_equal(around(x), ready(x))


def test_wrong_width_names_both_and_the_remedy():
    with pytest.raises(ValueError, match="plain layer before it.*filters=16.*width 8"):
        HighwayConv(16)(np.ones((1, 5, 5, 8)))


@pytest.mark.parametrize("arguments", [{"strides": 2}, {"padding": "valid"}])
def test_neither_strides_nor_padding(arguments):
    ((name, value),) = arguments.items()
    with pytest.raises(ValueError, match=f"`{name}` is not.*plain.*{name}={value!r}"):
        HighwayConv(16, 3, **arguments)


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`filters` must be a positive.*filters=-1"):
        HighwayConv(-1)
    with pytest.raises(ValueError, match="`data_format` must be .*='last'"):
        HighwayConv(4, data_format="last")
    with pytest.raises(ValueError, match=r"rank 3, 4 or 5.*\(2, 4\)"):
        HighwayConv(4)(np.ones((2, 4)))
