import keras
import numpy as np
import pytest
from helpers import check_layer, close, conv, conv_gradients, gradients

from zoo.layers import MaxoutConv, MaxoutDense


def built(layer, shape):
    """The layer with drawn weights, its biases too."""
    rng = np.random.default_rng(2)
    layer.build(shape)
    for w in layer.trainable_weights:
        w.assign(rng.normal(0, 0.5, w.shape))
    return layer


def by_piece(layer):
    """(W_k, b_k) for each piece."""
    kernel, bias = (w.numpy().astype("float64") for w in layer.weights)
    width = kernel.shape[-1] // layer.pieces
    cuts = [slice(k * width, (k + 1) * width) for k in range(layer.pieces)]
    return [(kernel[..., cut], bias[cut]) for cut in cuts]


def maxout(x, pieces, dy):
    """y = max_k (W_k ∗ x + b_k), 'same', and the gradients of sum(dy · y), by hand.

    Arrays are (n, h, w, c); a dense layer is a 1×1 convolution. Gradients of kernels
    and biases come with the pieces side by side.
    """
    z = np.stack([conv(x, kernel) + bias for kernel, bias in pieces])
    dx, kernels, biases = 0.0, [], []
    for k, (kernel, _) in enumerate(pieces):
        dz = dy * (z.argmax(0) == k)  # the winner takes the gradient
        back, dkernel = conv_gradients(x, kernel, dz)
        dx = dx + back
        kernels.append(dkernel)
        biases.append(dz.sum((0, 1, 2)))
    return z.max(0), dx, [np.concatenate(kernels, -1), np.concatenate(biases)]


def test_layer_contract_dense(tmp_path):
    def make(dtype=None):
        return MaxoutDense(5, bias_initializer="ones", dtype=dtype)

    check_layer(make, (3, 4), 2, tmp_path)


def test_layer_contract_conv(tmp_path):
    def make(dtype=None):
        return MaxoutConv(5, (3, 2), pieces=3, padding="same", dtype=dtype)

    check_layer(make, (2, 6, 5, 4), 2, tmp_path)


def test_layer_contract_conv_valid(tmp_path):
    def make(dtype=None):
        return MaxoutConv(5, 3, kernel_initializer="he_normal", dtype=dtype)

    check_layer(make, (2, 6, 5, 4), 2, tmp_path)


def test_dense_by_hand():
    layer = MaxoutDense(2, pieces=3)
    layer.build((None, 2))
    # x = (1, 2); units a and b of pieces 1, 2, 3 side by side:
    # a: 1 + 2 = 3, −1 + 4 − 1 = 2, 0;  b: −1, −2 + .5 = −1.5, −1 − 2 = −3
    layer.linear.kernel.assign([[1, -1, -1, 0, 0, -1], [1, 0, 2, -1, 0, -1]])
    layer.linear.bias.assign([0, 0, -1, 0.5, 0, 0])
    assert np.array_equal(layer(np.array([[1.0, 2.0]])), [[3, -1]])


def test_conv_by_hand():
    layer = MaxoutConv(1, 1)
    layer.build((None, 2, 2, 1))
    layer.linear.kernel.assign([[[[1, -1]]]])  # max(x, −x)
    x = np.array([[[[1], [-2]], [[-3], [4]]]], "float32")
    assert np.array_equal(layer(x), np.abs(x))


@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_dense_equals_numpy(dtype, tolerance):
    rng = np.random.default_rng(3)
    layer = built(MaxoutDense(6, pieces=4, dtype=dtype), (None, 5))
    x, dy = (rng.normal(size=(7, n)).astype(dtype) for n in (5, 6))
    y, dx, dw = gradients(layer, x, dy, layer.trainable_weights)
    pieces = [(kernel[None, None], bias) for kernel, bias in by_piece(layer)]
    y_, dx_, (dkernel, dbias) = maxout(x[:, None, None], pieces, dy[:, None, None])
    assert y.dtype == dtype
    assert close(y, y_[:, 0, 0], tolerance)
    assert close(dx, dx_[:, 0, 0], tolerance)
    assert close(dw[0], dkernel[0, 0], tolerance)
    assert close(dw[1], dbias, tolerance)


@pytest.mark.parametrize("size", [3, (2, 5), 1])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_conv_equals_numpy(size, dtype, tolerance):
    rng = np.random.default_rng(4)
    layer = MaxoutConv(4, size, pieces=3, padding="same", dtype=dtype)
    layer = built(layer, (None, 6, 5, 3))
    x, dy = (rng.normal(size=(2, 6, 5, n)).astype(dtype) for n in (3, 4))
    y, dx, dw = gradients(layer, x, dy, layer.trainable_weights)
    y_, dx_, dw_ = maxout(x.astype("float64"), by_piece(layer), dy.astype("float64"))
    assert y.dtype == dtype
    assert close(y, y_, tolerance)
    assert close(dx, dx_, tolerance)
    assert all(close(a, b, tolerance) for a, b in zip(dw, dw_, strict=True))


def test_gradients_equal_finite_differences():
    rng = np.random.default_rng(5)
    layer = built(MaxoutConv(2, 3, dtype="float64"), (None, 4, 4, 2))
    x, dy = rng.normal(size=(2, 4, 4, 2)), rng.normal(size=(2, 2, 2, 2))
    _, dx, _ = gradients(layer, x, dy, layer.trainable_weights)
    step = 1e-6
    for place in np.ndindex(x.shape):
        moved = np.zeros_like(x)
        moved[place] = step
        up, down = np.sum(dy * layer(x + moved)), np.sum(dy * layer(x - moved))
        assert abs(dx[place] - (up - down) / (2 * step)) < 1e-7


def test_valid_is_the_inside_of_same():
    x = np.random.default_rng(6).normal(size=(2, 7, 6, 3)).astype("float32")
    same = built(MaxoutConv(4, 3, padding="same"), x.shape)
    valid = built(MaxoutConv(4, 3), x.shape)
    assert close(valid(x), same(x)[:, 1:-1, 1:-1], 1e-6)


def test_one_piece_is_linear():
    x = np.random.default_rng(7).normal(size=(2, 5, 5, 3)).astype("float32")
    for layer in (MaxoutDense(4, pieces=1), MaxoutConv(4, 3, pieces=1)):
        layer = built(layer, x.shape)
        assert np.array_equal(layer(x), layer.linear(x))


def test_default_draw_keeps_the_mean_square_of_two_pieces():
    """E max(a, b)² = E a² for independent a and b, symmetric around 0."""
    x = np.random.default_rng(8).normal(size=(4000, 200)).astype("float32")
    y = np.array(MaxoutDense(300, pieces=2)(x))
    assert abs(np.mean(y**2) - 1) < 0.03


def test_names_and_initial_values():
    layer = MaxoutConv(
        4,
        3,
        kernel_initializer=keras.initializers.RandomUniform(-0.005, 0.005),
        name="conv_01",
    )
    layer.build((None, 8, 8, 16))
    assert [w.path for w in layer.weights] == [
        "conv_01/linear/kernel",
        "conv_01/linear/bias",
    ]
    kernel, bias = layer.get_weights()
    assert kernel.shape == (3, 3, 16, 8) and not bias.any()
    assert 0.0049 < np.abs(kernel).max() <= 0.005
    one, two = by_piece(layer)
    assert not np.array_equal(one[0], two[0])
    assert (layer.filters, layer.kernel_size, layer.padding) == (4, (3, 3), "valid")
    assert MaxoutDense(7).units == 7


def test_unknown_sizes():
    layer = MaxoutConv(4, 3, padding="same")
    assert layer(keras.Input((None, None, 3))).shape == (None, None, None, 4)
    assert MaxoutDense(6)(keras.Input((None, 3))).shape == (None, None, 6)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: MaxoutDense(0), "`units` must be an integer of at least 1.*units=0"),
        (lambda: MaxoutDense(2.0), "`units` must be an integer.*units=2.0"),
        (lambda: MaxoutDense(4, pieces=0), "`pieces` must be an integer.*pieces=0"),
        (lambda: MaxoutConv("a", 3), "`filters` must be an integer.*filters='a'"),
        (lambda: MaxoutConv(4, 3, pieces=None), "`pieces` must be.*pieces=None"),
        (lambda: MaxoutConv(4, 0), "kernel_size"),
        (lambda: MaxoutConv(4, 3, padding="half"), "padding"),
        (lambda: MaxoutConv(4, 3)(np.ones((2, 5, 4))), r"of rank 4.*\(2, 5, 4\)"),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()
