import keras
import numpy as np
import pytest
from helpers import again, check_layer, close, distinct_draws, jacobian, sigmoid

from zoo.layers import Highway, HighwayDense

layers = keras.layers


def gru(width=4, **arguments):
    return layers.GRU(width, return_sequences=True, **arguments)


def gate(width=4, **arguments):
    return layers.Dense(width, "sigmoid", **arguments)


def normal(*shape):
    return np.random.default_rng(1).normal(size=shape).astype("float32")


def test_layer_contract_around_dense(tmp_path):
    def make(dtype=None):
        return Highway(layers.Dense(8, "relu", dtype=dtype), dtype=dtype)

    check_layer(make, (3, 8), 4, tmp_path)


def test_layer_contract_around_a_convolution_with_separate_carry(tmp_path):
    def make(dtype=None):
        inner = layers.Conv1D(4, 3, padding="same", use_bias=False, dtype=dtype)
        return Highway(inner, carry="separate", dtype=dtype)

    check_layer(make, (3, 6, 4), 5, tmp_path)


def test_layer_contract_around_a_sequential(tmp_path):
    def make(dtype=None):
        two = [layers.Dense(6, "tanh", dtype=dtype), layers.Dense(4, dtype=dtype)]
        return Highway(keras.Sequential(two), gate(dtype=dtype), dtype=dtype)

    check_layer(make, (3, 4), 6, tmp_path)


def test_layer_contract_around_a_gru(tmp_path):
    def make(dtype=None):
        return Highway(gru(dtype=dtype), gate(dtype=dtype), dtype=dtype)

    check_layer(make, (3, 5, 4), 5, tmp_path)


def test_equation_by_hand():
    x, transformed, gates = (
        np.array(a, "float32") for a in ([1, -0.5], [2, 0], [0.1, 0.8])
    )
    coupled, separate, identity = (
        Highway(layers.Dense(2), carry=carry)
        for carry in ("coupled", "separate", "identity")
    )
    assert close(coupled.mix(x, transformed, gates), [1.1, -0.1], 1e-6)
    assert close(separate.mix(x, transformed, gates, 2 * gates), [0.4, -0.8], 1e-6)
    assert close(identity.mix(x, transformed, gates), [1.2, -0.5], 1e-6)


def test_equals_highway_dense_of_the_same_weights():
    x = normal(3, 4)
    ready = HighwayDense(dtype="float64")
    around = Highway(layers.Dense(4, "relu", dtype="float64"), dtype="float64")
    ready.build(x.shape)
    around.build(x.shape)
    around.set_weights(ready.get_weights())
    assert np.array_equal(around(x), ready(x))


def test_around_a_gru():
    x = normal(3, 5, 4)
    layer = Highway(gru(), gate())
    y = layer(x)
    t = np.array(layer.gate(x))
    assert np.all(layer.gate.bias == -2)
    assert close(y, t * layer.transform(x) + (1 - t) * x, 1e-6)


def test_closed_and_open_gates():
    x = normal(5, 4)
    closed = Highway(layers.Dense(4, "tanh"), gate_bias=-100)
    assert np.array_equal(closed(x), x)
    assert np.array_equal(jacobian(closed, x), np.broadcast_to(np.eye(4), (5, 4, 4)))
    opened = Highway(layers.Dense(4, "tanh"), gate_bias=100)
    assert close(opened(x), opened.transform(x), 1e-6)
    assert close(jacobian(opened, x), jacobian(opened.transform, x), 1e-6)


@pytest.mark.parametrize(
    "transform, shape",
    [
        (layers.Dense(4), (2, 4)),
        (layers.EinsumDense("abc,cd->abd", (None, 4)), (2, 3, 4)),
        (layers.Conv1D(4, 3, padding="same"), (2, 5, 4)),
        (layers.Conv2D(4, 3, padding="same"), (2, 5, 5, 4)),
        (layers.Conv3D(4, 3, padding="same"), (2, 3, 3, 3, 4)),
        (layers.DepthwiseConv1D(3, padding="same"), (2, 5, 4)),
        (layers.DepthwiseConv2D(3, padding="same"), (2, 5, 5, 4)),
        (layers.SeparableConv1D(4, 3, padding="same"), (2, 5, 4)),
        (layers.SeparableConv2D(4, 3, padding="same"), (2, 5, 5, 4)),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_makes_a_gate_like_the_transform(transform, shape):
    layer = Highway(transform, gate_bias=-3)
    layer.build(shape)
    assert type(layer.gate) is type(transform)
    assert layer.gate.activation is keras.activations.sigmoid
    assert np.all(layer.gate.bias == -3)
    for mine, its in zip(transform.weights, layer.gate.weights, strict=False):
        drawn = np.ptp(mine) > 0
        assert not (drawn and np.array_equal(mine, its))
    x = normal(*shape)
    t = np.array(layer.gate(x))
    assert close(layer(x), t * transform(x) + (1 - t) * x, 1e-5)


def test_sets_the_bias_of_a_given_gate():
    assert np.all(built(Highway(layers.Dense(4), gate(), gate_bias=-3)).gate.bias == -3)
    two = keras.Sequential([layers.Dense(3, "tanh"), gate()])
    layer = built(Highway(layers.Dense(4), two, gate_bias=-3.5))
    assert np.all(two.layers[0].bias == 0)
    assert np.all(two.layers[1].bias == -3.5)
    assert np.all(layer.transform.bias == 0)
    assert np.all(built(again(layer)).gate.layers[1].bias == -3.5)


def test_no_gate_bias_keeps_the_gate():
    mine = gate(bias_initializer="ones")
    layer = built(Highway(layers.Dense(4), mine, gate_bias=None))
    assert layer.gate_bias is None
    assert np.all(layer.gate.bias == 1)
    ready = gate()
    ready.build((None, 4))
    assert Highway(layers.Dense(4), ready, gate_bias=None).gate is ready


def built(layer, width=4):
    layer.build((None, width))
    return layer


@pytest.mark.parametrize("seed", [None, 3])
def test_halves_draw_apart(seed):
    shared = keras.initializers.HeNormal(seed=seed)
    mine = gate(8, kernel_initializer=shared)
    transform = layers.Dense(8, kernel_initializer=shared)
    for layer in (
        Highway(transform, carry="separate"),
        Highway(layers.Dense(8, kernel_initializer=shared), mine),
    ):
        built(layer, 8)
        assert distinct_draws(half.kernel.numpy() for half in layer.halves())


def test_halves_with_equal_seeds_draw_apart():
    transform, mine = (
        make(8, kernel_initializer=keras.initializers.HeNormal(seed=3))
        for make in (layers.Dense, gate)
    )
    layer = built(Highway(transform, mine), 8)
    draws = [half.kernel.numpy() for half in layer.halves()]
    assert distinct_draws(draws)
    copy = built(again(layer), 8)
    assert np.array_equal([half.kernel.numpy() for half in copy.halves()], draws)


def test_dropout_within_the_transform():
    two = keras.Sequential([layers.Dense(4), layers.Dropout(0.5)])
    layer = Highway(two, gate())
    x = normal(8, 4)
    assert np.array_equal(layer(x), layer(x, training=False))
    assert not np.array_equal(layer(x, training=True), layer(x, training=False))


@pytest.mark.parametrize(
    "make",
    [
        lambda: HighwayDense(),
        lambda: Highway(gru(), gate()),
        lambda: Highway(gru(dtype="float64"), gate(), dtype="float64"),  # casts x
    ],
)
@pytest.mark.parametrize("left", [True, False])
def test_masked_steps_change_nothing(make, left):
    words = np.array([[3, 1, 4, 1, 5]])
    padding = ((0, 0), (3, 0) if left else (0, 3))
    inputs = keras.Input((None,), dtype="int32")
    x = layers.Embedding(6, 4, mask_zero=True)(inputs)
    model = keras.Model(inputs, layers.LSTM(3)(make()(x)))
    assert close(model(np.pad(words, padding)), model(words), 1e-6)


def test_regularizers_and_constraints_stay_with_their_half():
    layer = Highway(
        layers.Dense(4, kernel_regularizer="l2"), gate(kernel_constraint="non_neg")
    )
    built(layer)
    kernel = layer.transform.kernel
    assert close(layer.losses[0], 0.01 * np.sum(np.square(kernel)), 1e-6)
    assert len(layer.losses) == 1
    assert layer.gate.kernel.constraint is not None
    assert kernel.constraint is layer.gate.bias.constraint is None


def test_copies_have_the_weight_paths_of_the_original():
    early = layers.Dense(4, name="early")
    early.build((None, 4))
    deep = keras.Sequential([layers.Dense(4, name="deep")], name="deep")
    for transform in (early, deep, layers.Dense(4, name="late")):
        inputs = keras.Input((4,))
        layer = Highway(transform, gate(name="gate"), name="highway_01")
        model = keras.Model(inputs, layer(inputs))
        paths = [w.path for w in model.weights]
        assert "highway_01/gate/bias" in paths
        copy = keras.models.clone_model(model)
        assert [w.path for w in copy.weights] == paths


def test_transform_is_no_layer():
    with pytest.raises(ValueError, match="`transform` must be a Keras layer.*'dense'"):
        Highway("dense")
    with pytest.raises(ValueError, match="`gate` must be a Keras layer.*'sigmoid'"):
        Highway(layers.Dense(4), "sigmoid")


def test_gru_needs_a_gate():
    with pytest.raises(ValueError, match="no gate can be made of a GRU; pass gate="):
        Highway(gru())


def test_gate_is_the_transform():
    one = gate()
    with pytest.raises(ValueError, match="`gate` must be a layer of its own"):
        Highway(one, one)


def test_linear_gate():
    with pytest.raises(ValueError, match="values in \\[0, 1\\].*linear activation"):
        Highway(layers.Dense(4), layers.Dense(4))


def test_contradictory_gate_bias():
    message = "`gate_bias` cannot be set on the given gate.*gate_bias=-2.0"
    ready = gate()
    ready.build((None, 4))
    for mine in (
        gate(bias_initializer="ones"),
        gate(bias_initializer=keras.initializers.Constant(-3.0)),
        gate(use_bias=False),
        gru(activation="sigmoid"),
        ready,
    ):
        with pytest.raises(ValueError, match=message):
            Highway(layers.Dense(4), mine)
    same = gate(bias_initializer=keras.initializers.Constant(-2.0))
    assert np.all(built(Highway(layers.Dense(4), same)).gate.bias == -2)


def test_transform_changes_the_shape():
    message = r"keep\s+the shape of x; put a plain layer.*\(2, 4\).*\(2, 5\)"
    with pytest.raises(ValueError, match=message):
        Highway(layers.Dense(5))(normal(2, 4))
    with pytest.raises(ValueError, match="'gate.*' with output shape"):
        Highway(layers.Dense(4), gate(3, name="gate_3"))(normal(2, 4))


def test_mean_gate_without_a_kernel():
    layer = Highway(layers.Dense(4), gate(kernel_initializer="zeros"), gate_bias=-3)
    layer.build((None, 4))
    assert close(np.mean(layer.gate(normal(2, 4))), sigmoid(-3), 1e-6)
