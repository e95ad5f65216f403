import keras
import numpy as np
import pytest
from helpers import check_layer, close, distinct_draws, strided_conv

from zoo.layers import PreActResidual, Residual

# A unit of each kind: arguments, channels of its input, number of weights.
UNITS = {
    "identity": ({"filters": 4}, 4, 10),
    "first": ({"filters": 4, "first": True}, 4, 10),
    "projection": ({"filters": 6, "strides": 2}, 4, 11),
    "wider": ({"filters": 6}, 4, 11),
    "padding": ({"filters": 6, "strides": 2, "shortcut": "A"}, 4, 10),
    "bottleneck": ({"filters": 2, "bottleneck": True}, 8, 15),
    "strided 3x3": ({"filters": 3, "strides": 2, "bottleneck": True}, 4, 16),
    "strided 1x1": (
        {"filters": 3, "strides": 2, "bottleneck": True, "strides_on": "1x1"}, 4, 16
    ),
}  # fmt: skip

every_kind = pytest.mark.parametrize("kind", UNITS)


def random_unit(kind, size=(6, 5)):
    """A unit with random weights, and an input."""
    arguments, channels, _ = UNITS[kind]
    rng = np.random.default_rng(1)
    x = rng.normal(1, 2, (3, *size, channels)).astype("float32")
    unit = PreActResidual(**arguments)
    unit.build(x.shape)
    for weight in unit.weights:
        if weight.name.endswith(("gamma", "variance")):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        else:
            weight.assign(rng.normal(0, 0.5, weight.shape))
    return unit, x


def batch_norm(x, norm, training=False):
    """BN of the batch in training, of the moving statistics otherwise."""
    gamma, beta, mean, variance = (w.numpy() for w in norm.weights)
    if training:
        mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
    return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta


def reference(kind, unit, x, training):
    """The unit of the paper in NumPy."""
    arguments, channels, _ = UNITS[kind]
    strides = arguments.get("strides", 1)
    at = {"strided 3x3": 1}.get(kind, 0)  # the convolution that has the strides
    y, carry = x, x
    for i, (norm, conv) in enumerate(zip(unit.norms, unit.convs, strict=True)):
        y = np.maximum(batch_norm(y, norm, training), 0)
        if i == 0 and (unit.first or unit.projection):
            carry = y
        y = strided_conv(y, conv.kernel.numpy(), strides if i == at else 1)
    if unit.projection:
        carry = strided_conv(carry, unit.projection.kernel.numpy(), strides)
    elif kind == "padding":
        extra = y.shape[-1] - channels
        carry = np.pad(carry[:, ::strides, ::strides], [(0, 0)] * 3 + [(0, extra)])
    return carry + y


@every_kind
def test_layer_contract(kind, tmp_path):
    arguments, channels, weights = UNITS[kind]

    def make(dtype=None):
        return PreActResidual(**arguments, dtype=dtype)

    check_layer(make, (2, 6, 5, channels), weights, tmp_path)


@every_kind
@pytest.mark.parametrize("training", [False, True])
def test_equals_numpy(kind, training):
    for size in ((6, 5), (4, 8), (7, 7)):
        unit, x = random_unit(kind, size)
        expected = reference(kind, unit, x, training)
        assert close(unit(x, training=training), expected, 1e-5)


def test_moving_statistics_have_the_momentum_of_the_paper():
    unit, x = random_unit("identity")
    before = unit.norms[0].moving_mean.numpy()
    unit(x, training=True)
    expected = 0.9 * before + 0.1 * x.mean((0, 1, 2))
    assert close(unit.norms[0].moving_mean, expected, 1e-6)


@every_kind
def test_zeroed_last_kernel_leaves_the_shortcut(kind):
    unit, x = random_unit(kind)
    last = unit.convs[-1].kernel
    last.assign(np.zeros(last.shape))
    y, activated = np.array(unit(x)), keras.ops.relu(unit.norms[0](x))
    if unit.projection:
        assert np.array_equal(y, unit.projection(activated))
    elif kind == "first":
        assert np.array_equal(y, activated)
    elif kind == "padding":
        assert np.array_equal(y[..., :4], x[:, ::2, ::2])
        assert not y[..., 4:].any()
    else:
        assert np.array_equal(y, x)


@every_kind
def test_normalises_before_convolutions_only(kind):
    unit, _ = random_unit(kind)
    names = [w.path.split("/", 1)[1] for w in unit.weights]
    count = 3 if unit.bottleneck else 2
    norms = [f"norm_{i}/gamma" for i in range(1, count + 1)]
    kernels = [f"conv_{i}/kernel" for i in range(1, count + 1)]
    assert [n for n in names if n.endswith("gamma")] == norms
    projection = ["projection/kernel"] if unit.projection else []
    assert [n for n in names if n.endswith("kernel")] == kernels + projection
    assert not [n for n in names if n.endswith("bias")]


def test_unknown_size():
    x = PreActResidual(8, strides=2)(keras.Input((None, None, 4)))
    assert x.shape == (None, None, None, 8)
    x = PreActResidual(8, strides=2)(keras.Input((33, None, 4)))
    assert x.shape == (None, 17, None, 8)


@pytest.mark.parametrize("seed", [None, 3])
def test_convolutions_draw_apart(seed):
    unit = PreActResidual(
        6, strides=2, kernel_initializer=keras.initializers.HeNormal(seed=seed)
    )
    unit.build((None, 8, 8, 8))
    kernels = [conv.kernel.numpy() for conv in (*unit.convs, unit.projection)]
    assert distinct_draws(kernels)


def test_initial_draw_is_he_fan_out():
    unit = PreActResidual(64)
    unit.build((None, 8, 8, 64))
    kernel = unit.convs[0].kernel.numpy()
    expected = np.sqrt(2 / (9 * 64))
    assert abs(kernel.std() / expected - 1) < 0.02
    assert np.abs(kernel).max() > 3 * expected  # not truncated at 2 deviations


def test_regularizer_reaches_every_kernel():
    unit = PreActResidual(6, strides=2, kernel_regularizer=keras.regularizers.L2(1.0))
    unit.build((None, 8, 8, 4))
    kernels = [w for w in unit.weights if w.path.endswith("kernel")]
    expected = sum(np.sum(np.square(kernel)) for kernel in kernels)
    assert len(kernels) == 3
    assert close(sum(unit.losses), expected, 1e-6)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filters": 0}, "`filters` must be an integer of at least 1.*filters=0"),
        ({"filters": 8, "strides": 1.5}, "`strides` must be an integer.*strides=1.5"),
        ({"filters": 8, "shortcut": "C"}, "`shortcut` must be one of .*A.*'C'"),
        ({"filters": 8, "strides_on": "5x5"}, "`strides_on` must be one of 3x3, 1x1"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        PreActResidual(**arguments)


def test_is_a_residual_unit_of_the_last_order():
    unit, x = random_unit("strided 3x3")
    other = Residual(
        **UNITS["strided 3x3"][0], order="full_preactivation", name=unit.name
    )
    other.build(x.shape)
    assert [w.path for w in other.weights] == [w.path for w in unit.weights]
    other.set_weights(unit.get_weights())
    assert np.array_equal(other(x), unit(x))


def test_config_of_files_in_use():
    """Older files have no `skip` and no `activated`; none has what is fixed."""
    config = PreActResidual(4, first=True).get_config()
    fixed = {"order", "scales", "gate", "gate_bias", "rate", "seed"}
    assert not fixed & config.keys()
    old = {k: v for k, v in config.items() if k not in ("skip", "activated")}
    assert PreActResidual.from_config(old).get_config() == config


def test_zero_padding_cannot_drop_channels():
    with pytest.raises(ValueError, match="use 'B'. Received: 16 channels, unit of 8"):
        PreActResidual(8, shortcut="A")(np.ones((1, 4, 4, 16)))
