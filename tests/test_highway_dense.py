import keras
import numpy as np
import pytest
from helpers import (
    again,
    check_layer,
    close,
    distinct_draws,
    gradients,
    highway_stack,
    jacobian,
    sigmoid,
)

from zoo.layers import HighwayDense

CARRIES = ("coupled", "separate", "identity")


def built(width=4, **arguments):
    layer = HighwayDense(**arguments)
    layer.build((None, width))
    return layer


def test_layer_contract(tmp_path):
    check_layer(HighwayDense, (3, 8), 4, tmp_path)


def test_layer_contract_of_a_sequence_with_separate_carry(tmp_path):
    def make(dtype=None):
        return HighwayDense(
            8, "tanh", -1, "separate", kernel_regularizer="l2", dtype=dtype
        )

    check_layer(make, (3, 5, 8), 6, tmp_path)


def test_names():
    layer = built(carry="separate", name="highway_01")
    assert [w.path for w in layer.weights] == [
        f"highway_01/{half}/{weight}"
        for half in ("transform", "gate", "carry")
        for weight in ("kernel", "bias")
    ]


def test_case_by_hand():
    layer = built(2, gate_bias=0)
    zeros, gate = np.zeros((2, 2)), np.log([0.1 / 0.9, 0.8 / 0.2])
    layer.set_weights([zeros, np.array([2, 0]), zeros, gate])
    assert close(layer(np.array([[1.0, -0.5]])), [[1.10, -0.10]], 1e-6)


@pytest.mark.parametrize(
    "gate_bias, mean_gate, change",
    [(0, 0.513, 0.360), (-2, 0.128, 0.083), (-5, 0.007, 0.005)],
)
def test_tanh_layer_of_four_units(gate_bias, mean_gate, change):
    rng = np.random.default_rng(0)
    w_h, w_t = rng.normal(0, 0.5, (4, 4)), rng.normal(0, 0.5, (4, 4))
    x = rng.normal(size=4)[None]
    layer = built(activation="tanh", gate_bias=gate_bias, dtype="float64")
    layer.transform.kernel.assign(w_h.T)  # Keras multiplies x·W, the tutorial W·x
    layer.gate.kernel.assign(w_t.T)
    assert close(np.mean(layer.gate(x)), mean_gate, 5e-4)
    assert close(np.linalg.norm(layer(x) - x), change, 5e-4)


@pytest.mark.parametrize("carry", CARRIES)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-12), ("float32", 1e-5)])
def test_stack_equals_numpy(carry, dtype, tolerance):
    rng = np.random.default_rng(2)
    layers = [built(5, carry=carry, dtype=dtype) for _ in range(4)]
    weights = [w for layer in layers for w in layer.trainable_weights]
    for w in weights:
        w.assign(rng.normal(0, 0.7, w.shape))
    x, dy = rng.normal(size=(2, 6, 5)).astype(dtype)

    def stack(x):
        for layer in layers:
            x = layer(x)
        return x

    y, dx, dw = gradients(stack, x, dy, weights)

    def pairs(layer):  # a dense layer is a 1×1 convolution of 1×1 images
        arrays = [w.numpy().astype("float64") for w in layer.weights]
        kernels = [kernel[None, None] for kernel in arrays[::2]]
        return tuple(zip(kernels, arrays[1::2], strict=True))

    x, dy = (a.astype("float64")[:, None, None] for a in (x, dy))
    y_, dx_, dw_ = highway_stack(x, [pairs(la) for la in layers], dy, carry)
    assert y.dtype == dtype
    assert close(y, y_[:, 0, 0], tolerance)
    assert close(dx, dx_[:, 0, 0], tolerance)
    for mine, theirs in zip(dw, dw_, strict=True):
        assert close(mine, theirs.reshape(mine.shape), tolerance)


@pytest.mark.parametrize("carry", CARRIES)
def test_gradients_equal_finite_differences(carry):
    rng = np.random.default_rng(3)
    layer = built(3, activation="tanh", gate_bias=-1, carry=carry, dtype="float64")
    x, dy = rng.normal(size=(2, 4, 3))
    _, dx, dw = gradients(layer, x, dy, layer.trainable_weights)

    def difference(array, index, evaluate, step=1e-5):
        ends = []
        for sign in (1, -1):
            moved = array.copy()
            moved[index] += sign * step
            ends.append(np.sum(dy * evaluate(moved)))
        return (ends[0] - ends[1]) / (2 * step)

    for index in np.ndindex(x.shape):
        assert abs(dx[index] - difference(x, index, layer)) < 1e-8
    for weight, gradient in zip(layer.trainable_weights, dw, strict=True):
        value = weight.numpy()

        def evaluate(moved, weight=weight):
            weight.assign(moved)
            return layer(x)

        for index in np.ndindex(value.shape):
            assert abs(gradient[index] - difference(value, index, evaluate)) < 1e-8
        weight.assign(value)


def test_closed_gate_carries_exactly():
    layer = built(gate_bias=-100)
    x = np.random.default_rng(4).normal(size=(5, 4)).astype("float32")
    assert np.array_equal(layer(x), x)
    assert np.array_equal(jacobian(layer, x), np.broadcast_to(np.eye(4), (5, 4, 4)))


def test_open_gate_transforms_exactly():
    rng = np.random.default_rng(5)
    layer = built(gate_bias=100)
    # Small integers, with which float32 computes exactly.
    layer.transform.kernel.assign(rng.integers(-3, 4, (4, 4)))
    layer.gate.kernel.assign(rng.integers(-1, 2, (4, 4)))
    x = rng.integers(-3, 4, (5, 4)).astype("float32")
    assert np.array_equal(layer(x), np.maximum(x @ layer.transform.kernel.numpy(), 0))
    assert np.array_equal(jacobian(layer, x), jacobian(layer.transform, x))

    layer, x = built(gate_bias=100), rng.normal(size=(5, 4)).astype("float32")
    assert close(layer(x), layer.transform(x), 1e-6)
    assert close(jacobian(layer, x), jacobian(layer.transform, x), 1e-6)


def test_initial_biases():
    layer = built(16)
    assert np.all(layer.gate.bias == -2)
    assert np.all(layer.transform.bias == 0)
    layer.gate.kernel.assign(np.zeros((16, 16)))
    x = np.random.default_rng(6).normal(size=(8, 16)).astype("float32")
    assert close(np.mean(layer.gate(x)), sigmoid(-2), 1e-6)

    separate = built(carry="separate", gate_bias=-3)
    assert np.all(separate.gate.bias == -3)
    assert np.all(separate.carry_gate.bias == 3)


def test_gate_bias_survives_copies():
    layer = again(HighwayDense(gate_bias=-3.5))
    model = keras.Sequential([keras.Input((4,)), layer])
    clone = keras.models.clone_model(model).layers[0]
    for copy in (layer, clone):
        assert copy.gate_bias == -3.5
        assert np.all(copy.gate.bias == -3.5)
        assert np.all(copy.transform.bias == 0)


def test_gate_bias_survives_saving(tmp_path):
    model = keras.Sequential([keras.Input((4,)), HighwayDense(gate_bias=-3.5)])
    model.save(tmp_path / "model.keras")
    layer = keras.models.load_model(tmp_path / "model.keras").layers[0]
    assert layer.gate_bias == -3.5
    assert np.all(layer.gate.bias == -3.5)
    assert np.all(layer.transform.bias == 0)


def test_halves_draw_apart():
    shared, seeded = keras.initializers.HeNormal(), keras.initializers.HeNormal(seed=3)
    for initializer in (shared, seeded, "he_normal"):
        layer = built(
            8,
            carry="separate",
            kernel_initializer=initializer,
            gate_kernel_initializer=initializer,
        )
        assert distinct_draws(half.kernel.numpy() for half in layer.halves())
    one, two = (built(8, kernel_initializer=shared) for _ in range(2))
    assert distinct_draws([one.transform.kernel, two.transform.kernel])
    one, two = (built(8, kernel_initializer=seeded) for _ in range(2))
    assert np.array_equal(one.transform.kernel, two.transform.kernel)  # as asked


def test_regularizers_reach_their_half():
    l2 = keras.regularizers.L2
    layer = built(
        bias_initializer="ones",
        kernel_regularizer=l2(1.0),
        bias_regularizer=l2(10.0),
        gate_kernel_regularizer=l2(100.0),
        gate_bias_regularizer=l2(1000.0),
    )
    squares = [np.sum(np.square(w)) for w in layer.weights]
    assert close(sum(layer.losses), np.dot(squares, [1, 10, 100, 1000]), 1e-6)


class Fill(keras.constraints.Constraint):
    def __init__(self, value):
        self.value = value

    def __call__(self, w):
        return 0 * w + self.value


def test_constraints_reach_their_half():
    layer = HighwayDense(
        carry="separate",
        kernel_constraint=Fill(1.0),
        bias_constraint=Fill(2.0),
        gate_kernel_constraint=Fill(3.0),
        gate_bias_constraint=Fill(4.0),
    )
    model = keras.Sequential([keras.Input((4,)), layer])
    model.compile("sgd", "mse", run_eagerly=True)
    model.train_on_batch(np.ones((2, 4)), np.ones((2, 4)))
    assert [np.unique(w).tolist() for w in layer.weights] == [
        [1.0], [2.0], [3.0], [4.0], [3.0], [4.0]
    ]  # fmt: skip


def test_halves_follow_the_policy_of_the_layer():
    layer = built(dtype="mixed_bfloat16")
    assert layer.transform.compute_dtype == "bfloat16"
    assert layer.gate.compute_dtype == "float32"
    assert layer(np.ones((1, 4))).dtype == "float32"
    layer = built(dtype="float64")
    assert layer.gate.compute_dtype == layer.transform.compute_dtype == "float64"


def test_small_updates_add_up_in_half_precision():
    x = np.ones((1, 4), "float32")
    layer = built(gate_bias=-8, dtype="mixed_bfloat16")
    layer.transform.bias.assign([3.0] * 4)  # H = 3 + …: every step adds 0.07 %
    layer.transform.kernel.assign(np.zeros((4, 4)))
    layer.gate.kernel.assign(np.zeros((4, 4)))
    y = x
    for _ in range(100):
        y = layer(y)
    expected = 3 - 2 * (1 - sigmoid(-8)) ** 100
    assert close(y, np.full((1, 4), expected), 1e-5)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"units": 0}, "`units` must be a positive integer.*units=0"),
        ({"units": 2.0}, "`units` must be a positive integer.*units=2.0"),
        ({"gate_bias": None}, "`gate_bias` must be a number"),
        ({"gate_bias": "low"}, "`gate_bias` must be a finite number.*'low'"),
        ({"gate_bias": np.inf}, "`gate_bias` must be a finite number.*inf"),
        ({"gate_bias": True}, "`gate_bias` must be a finite number.*True"),
        ({"carry": "none"}, "`carry` must be one of 'coupled', .*carry='none'"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        HighwayDense(**arguments)


def test_wrong_width_names_both_and_the_remedy():
    with pytest.raises(ValueError, match="plain layer before it.*units=64.*width 32"):
        HighwayDense(64)(np.ones((2, 32)))


def test_numpy_gate_bias():
    assert HighwayDense(gate_bias=np.float32(-3)).get_config()["gate_bias"] == -3.0
