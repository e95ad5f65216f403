"""Every kind of unit: its order, its shortcut, its gate; and the papers' equations."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import check_layer, close, distinct_draws, jacobian, sigmoid, strided_conv
from keras import ops

from zoo.layers import Highway, PreActResidual, Residual, ScanLayers
from zoo.layers.batch_norm import BatchNorm
from zoo.layers.residual import GATES, ORDERS, SHORTCUTS

# F and what follows the addition, read off Fig. 4 of He et al. 2016.
STEPS = {
    "original": ("conv norm relu conv norm", "relu"),
    "bn_after_addition": ("conv norm relu conv", "norm relu"),
    "relu_before_addition": ("conv norm relu conv norm relu", ""),
    "relu_only_preactivation": ("relu conv norm relu conv norm", ""),
    "full_preactivation": ("norm relu conv norm relu conv", ""),
}
# The second table of the class; gates of both kinds.
MIXES = {
    "A": {"shortcut": "A"},
    "B": {"shortcut": "B"},
    "scaled": {"shortcut": "constant_scaling", "scales": (0.5, 1.5)},
    "exclusive": {"shortcut": "exclusive_gating", "gate_bias": -1},
    "exclusive, twin": {
        "shortcut": "exclusive_gating", "gate": "twin", "gate_bias": -1
    },
    "shortcut only": {"shortcut": "shortcut_only_gating", "gate_bias": 0.5},
    "shortcut only, twin": {
        "shortcut": "shortcut_only_gating", "gate": "twin", "gate_bias": 0.5
    },
    "convolution": {"shortcut": "convolution"},
    "dropout": {"shortcut": "dropout", "rate": 0.25},
}  # fmt: skip
# Arguments and channels of the input: shape kept and shape changed.
SHAPES = {
    "same": ({"filters": 4}, 4),
    "strided": ({"filters": 6, "strides": 2}, 4),
    "bottleneck": ({"filters": 2, "bottleneck": True}, 8),
    "strided bottleneck": ({"filters": 2, "strides": 2, "bottleneck": True}, 6),
    "strides on 1x1": (
        {"filters": 2, "strides": 2, "bottleneck": True, "strides_on": "1x1"}, 6
    ),
    "one layer": ({"filters": 4, "skip": 1}, 4),
    "one strided layer": ({"filters": 6, "skip": 1, "strides": 2}, 4),
}  # fmt: skip

every_order = pytest.mark.parametrize("order", STEPS)
both_gates = pytest.mark.parametrize("gate", GATES)


def test_every_row_is_here():
    assert STEPS.keys() == ORDERS.keys()
    assert {row["shortcut"] for row in MIXES.values()} == set(SHORTCUTS)
    assert {row.get("gate", "1x1") for row in MIXES.values()} == set(GATES)


def draw(unit, shape):
    """Builds the unit with random weights and statistics; returns an input."""
    rng = np.random.default_rng(1)
    unit.build(shape)
    for weight in unit.weights:
        if weight.name.endswith(("gamma", "variance")):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        else:
            weight.assign(rng.normal(0, 0.5, weight.shape))
    return rng.normal(1, 2, (shape[0] or 3, *shape[1:])).astype("float32")


def copy_weights(source, target, skip=()):
    """Weights of one unit to another, by their path below the unit."""
    given = {w.path.split("/", 1)[1]: w for w in source.weights}
    for weight in target.weights:
        name = weight.path.split("/", 1)[1]
        if not name.startswith(skip or "/"):
            weight.assign(given[name])


def branch(unit):
    """F alone, with the unit's weights: 0·s + 1·F."""
    arguments = {"shortcut": "constant_scaling", "scales": (0.0, 1.0)}
    alone = Residual.from_config(
        {**Residual.get_config(unit), **arguments, "order": unit.order}
    )
    alone.build((None, None, None, unit.output_filters))
    copy_weights(unit, alone)
    return alone


class Reference:
    """The unit in NumPy, from its weights by path."""

    def __init__(self, unit, arguments, order, training):
        self.weights = {w.path.split("/", 1)[1]: w.numpy() for w in unit.weights}
        self.arguments, self.order, self.training = arguments, order, training
        bottleneck = arguments.get("bottleneck")
        self.count = 3 if bottleneck else arguments.get("skip", 2)
        at = 1 if bottleneck and arguments.get("strides_on") != "1x1" else 0
        self.strides = [1] * self.count
        self.strides[at] = arguments.get("strides", 1)

    def norm(self, x, name):
        gamma, beta, mean, variance = (
            self.weights[f"{name}/{part}"]
            for part in ("gamma", "beta", "moving_mean", "moving_variance")
        )
        if self.training:
            mean, variance = x.mean((0, 1, 2)), x.var((0, 1, 2))
        return gamma * (x - mean) / np.sqrt(variance + 1e-5) + beta

    def conv(self, x, name, strides):
        return strided_conv(x, self.weights[f"{name}/kernel"], strides)

    def path(self, text, x, prefix="", norms=0, convs=0):
        """(result, what the first convolution takes, BNs so far)."""
        entry = None
        for step in text.split():
            if step == "relu":
                x = np.maximum(x, 0)
            elif step == "norm":
                norms += 1
                x = self.norm(x, f"{prefix}norm_{norms}")
            else:
                entry = x if entry is None else entry
                convs += 1
                name = f"{prefix}conv_{convs}"
                x = self.conv(x, name, self.strides[convs - 1])
        return x, entry, norms

    def __call__(self, x):
        arguments, strides = self.arguments, self.arguments.get("strides", 1)
        inside, after = STEPS[self.order]
        chain = " norm relu ".join(["conv"] * self.count)
        inside = inside.replace("conv norm relu conv", chain)
        if arguments.get("activated"):
            inside = inside[inside.index("conv") :]
        f, entry, norms = self.path(inside, x)
        x = entry if arguments.get("first") else x
        shortcut = arguments["shortcut"]
        if "projection/kernel" in self.weights:
            s = self.conv(entry, "projection", strides)
            if inside.endswith(("norm", "norm relu")):
                s = self.norm(s, "projection_norm")
        else:
            s = x[:, ::strides, ::strides]
            s = np.pad(s, [(0, 0)] * 3 + [(0, f.shape[-1] - s.shape[-1])])
        if shortcut == "constant_scaling":
            s, f = arguments["scales"][0] * s, arguments["scales"][1] * f
        elif shortcut == "dropout":
            s = s * (1 - arguments["rate"])
        elif "gating" in shortcut:
            if arguments.get("gate") == "twin":
                z, *_ = self.path(chain, x, "gate_")
                g = sigmoid(self.norm(z, "gate_norm"))
            else:
                z = self.conv(x, "gate", strides) + self.weights["gate/bias"]
                g = sigmoid(z)
            s = (1 - g) * s
            f = g * f if shortcut == "exclusive_gating" else f
        return self.path(after, s + f, norms=norms)[0]


def check_against_numpy(order, channels, training, **arguments):
    unit = Residual(order=order, **arguments)
    x = draw(unit, (3, 6, 5, channels))
    expected = Reference(unit, arguments, order, training)(x)
    assert close(unit(x, training=training), expected, 1e-5)


modes = pytest.mark.parametrize("training", [False, True], ids=["infer", "train"])


@pytest.mark.parametrize("shape", ["same", "strided"])
@pytest.mark.parametrize("mix", MIXES)
@every_order
def test_equals_numpy(order, mix, shape):
    sizes, channels = SHAPES[shape]
    for training in (False, True):
        if not (mix == "dropout" and training):  # random: has tests of its own
            check_against_numpy(order, channels, training, **MIXES[mix], **sizes)


@modes
@pytest.mark.parametrize("shape", list(SHAPES)[2:])
@every_order
def test_other_paths_equal_numpy(order, shape, training):
    sizes, channels = SHAPES[shape]
    for mix in ("B", "exclusive, twin"):
        check_against_numpy(order, channels, training, **MIXES[mix], **sizes)


@modes
@pytest.mark.parametrize("option", ["first", "activated"])
@every_order
def test_first_units_equal_numpy(order, option, training):
    for shape, mix in (
        ("same", "B"),
        ("strided", "A"),
        ("strided", "exclusive, twin"),
        ("bottleneck", "exclusive"),
        ("one layer", "B"),
    ):
        sizes, channels = SHAPES[shape]
        arguments = {**MIXES[mix], **sizes, option: True}
        check_against_numpy(order, channels, training, **arguments)


# Number of weights: a convolution has 1, a BN 4, a 1×1 gate 2; F has two of each.
CONTRACTS = {
    **{(order, "B", "same"): 10 for order in STEPS},
    ("original", "B", "strided"): 15,  # + projection and its BN
    ("bn_after_addition", "B", "strided"): 11,
    ("relu_before_addition", "B", "strided"): 15,
    ("relu_only_preactivation", "B", "strided"): 15,
    ("full_preactivation", "B", "strided"): 11,
    **{(order, "exclusive", "same"): 12 for order in STEPS},
    ("original", "A", "strided"): 10,
    ("original", "scaled", "same"): 10,
    ("original", "exclusive, twin", "same"): 20,
    ("original", "shortcut only", "strided"): 17,
    ("original", "shortcut only, twin", "strided"): 25,
    ("original", "convolution", "same"): 15,
    ("original", "dropout", "same"): 10,
    ("original", "B", "bottleneck"): 15,
    ("original", "B", "strides on 1x1"): 20,
    ("original", "B", "one layer"): 5,
}


@pytest.mark.parametrize("kind", CONTRACTS, ids=", ".join)
def test_layer_contract(kind, tmp_path):
    order, mix, shape = kind
    sizes, channels = SHAPES[shape]

    def make(dtype=None):
        return Residual(order=order, **MIXES[mix], **sizes, dtype=dtype)

    check_layer(make, (2, 6, 5, channels), CONTRACTS[kind], tmp_path)


def test_every_argument_is_in_the_config():
    arguments = {
        "filters": 3,
        "strides": 2,
        "bottleneck": True,
        "skip": 1,
        "order": "bn_after_addition",
        "first": True,
        "activated": True,
        "shortcut": "dropout",
        "scales": [0.25, 2.0],
        "gate": "twin",
        "gate_bias": -3.5,
        "rate": 0.25,
        "strides_on": "1x1",
        "seed": 7,
    }
    config = Residual(**arguments, kernel_regularizer="l2").get_config()
    assert {key: config[key] for key in arguments} == arguments
    assert config["kernel_regularizer"]["class_name"] == "L2"
    assert config["kernel_initializer"]["class_name"] == "VarianceScaling"


# -- shortcuts -----------------------------------------------------------------------


@pytest.mark.parametrize("shape", ["same", "strided"])
@every_order
def test_zeroed_last_kernel_leaves_the_shortcut(order, shape):
    sizes, channels = SHAPES[shape]
    unit = Residual(order=order, **sizes)
    x = np.random.default_rng(1).normal(size=(2, 6, 5, channels)).astype("float32")
    unit.build(x.shape)
    unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))
    s = x
    if unit.projection:
        activated = {"relu_only_preactivation": ops.relu}.get(order, lambda x: x)(x)
        if order == "full_preactivation":
            activated = ops.relu(unit.norms[0](x))
        s = unit.projection(activated)
        s = s if unit.projection_norm is None else unit.projection_norm(s)
    if order == "original":
        s = ops.relu(s)
    elif order == "bn_after_addition":
        s = ops.relu(unit.norms[1](s))
    assert np.array_equal(unit(x), s)


@both_gates
@pytest.mark.parametrize("shape", ["same", "strided"])
def test_saturated_gates(shape, gate):
    sizes, channels = SHAPES[shape]
    arguments = {"order": "relu_before_addition", "gate": gate, **sizes}
    plain = Residual(order="relu_before_addition", **sizes)
    x = draw(plain, (3, 6, 5, channels))
    s = plain.projection_norm(plain.projection(x)) if plain.projection else x
    both = np.array(plain(x))
    f = both - s
    for shortcut, open_gate, closed in (
        ("exclusive_gating", f, s),
        ("shortcut_only_gating", f, both),
    ):
        for bias, expected, tolerance in ((-100, closed, 0), (100, open_gate, 1e-6)):
            unit = Residual(shortcut=shortcut, gate_bias=bias, **arguments)
            unit.build(x.shape)
            copy_weights(plain, unit, skip=("gate",))
            assert close(unit(x), expected, tolerance), (shortcut, bias)


@both_gates
def test_an_open_exclusive_gate_passes_the_gradient_of_f_only(gate):
    """And a closed one the shortcut's: g = 0 gives dy/dx = I."""
    rng = np.random.default_rng(1)
    x = rng.normal(size=(2, 8))

    def slopes(**arguments):
        unit = Residual(
            2, order="relu_before_addition", gate=gate, dtype="float64", **arguments
        )
        unit.build((None, 2, 2, 2))
        copy_weights(plain, unit, skip=("gate",))
        return jacobian(lambda x: flat(unit(ops.reshape(x, (-1, 2, 2, 2)))), x)

    plain = Residual(2, order="relu_before_addition", dtype="float64")
    draw(plain, (None, 2, 2, 2))
    identity = np.eye(8)[None].repeat(2, 0)
    whole = slopes(shortcut="B")
    closed = slopes(shortcut="exclusive_gating", gate_bias=-100)
    opened = slopes(shortcut="exclusive_gating", gate_bias=100)
    assert close(closed, identity, 1e-12)
    assert close(opened, whole - identity, 1e-12)
    assert np.abs(opened).max() > 0.1


def flat(y):
    return ops.reshape(y, (-1, int(np.prod(y.shape[1:]))))


@pytest.mark.parametrize("mix", MIXES)
def test_gradients_equal_finite_differences(mix):
    unit = Residual(2, order="full_preactivation", **MIXES[mix], dtype="float64")
    draw(unit, (None, 2, 2, 2))
    x = np.random.default_rng(2).normal(size=(1, 8))

    def function(x):
        return flat(unit(ops.reshape(x, (-1, 2, 2, 2))))

    step = 1e-6 * np.eye(8)
    numeric = (np.array(function(x + step)) - np.array(function(x - step))) / 2e-6
    assert close(jacobian(function, x)[0], numeric.T, 1e-6)


def test_constant_scaling_of_both_halves():
    plain = Residual(4, order="full_preactivation")
    x = draw(plain, (2, 6, 5, 4))
    f = np.array(branch(plain)(x))
    for scales in ((0.0, 1.0), (0.5, 1.0), (0.5, 0.5), (1.0, 0.0)):
        unit = Residual(
            4, order="full_preactivation", shortcut="constant_scaling", scales=scales
        )
        unit.build(x.shape)
        copy_weights(plain, unit)
        assert close(unit(x), scales[0] * x + scales[1] * f, 1e-6)


@pytest.mark.parametrize("rate", [0.0, 0.25, 0.5])
def test_dropout_cuts_the_shortcut_and_keeps_its_expectation(rate):
    unit = Residual(4, order="relu_before_addition", shortcut="dropout", rate=rate)
    x = np.random.default_rng(1).uniform(1, 2, (20, 10, 10, 4)).astype("float32")
    unit.build(x.shape)
    unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))  # F = 0
    y = np.array(unit(x, training=True))
    kept = y != 0
    assert close(y[kept], x[kept], 1e-6)  # cut, or as it was
    assert abs(1 - kept.mean() - rate) < 0.02  # 8,000 values: ± 3.6 deviations
    other = np.array(unit(x, training=True)) != 0
    assert (rate == 0) == np.array_equal(other, kept)
    assert close(unit(x), (1 - rate) * x, 1e-6)


def test_the_state_of_dropout_has_the_same_path_in_every_loop():
    """Weights are found again by their paths."""
    paths = set()
    for _ in range(2):
        loop = ScanLayers(Residual(4, shortcut="dropout"), 2, name="loop")
        loop.build((None, 4, 4, 4))
        paths.add(tuple(w.path for w in loop.weights))
    assert len(paths) == 1
    assert "loop/dropout/seed_generator_state" in paths.pop()


def test_dropout_repeats_with_a_seed():
    x = np.ones((4, 6, 6, 4), "float32")
    masks = []
    for seed in (3, 3, 4, None):
        unit = Residual(4, shortcut="dropout", seed=seed)
        unit.build(x.shape)
        unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))
        masks.append(np.array(unit(x, training=True)))
    assert np.array_equal(masks[0], masks[1])
    assert not np.array_equal(masks[0], masks[2])
    assert not np.array_equal(masks[2], masks[3])


def test_gates_tells_what_the_mix_takes():
    for gate in GATES:
        unit = Residual(
            6, 2, order="relu_before_addition", shortcut="exclusive_gating", gate=gate
        )
        x = draw(unit, (2, 6, 5, 4))
        g = np.array(unit.gates(x))
        assert g.shape == unit(x).shape and 0 <= g.min() < g.max() <= 1
        s = np.array(unit.projection_norm(unit.projection(x)))
        plain = Residual(6, 2, order="relu_before_addition")
        plain.build(x.shape)
        copy_weights(unit, plain)
        assert close(unit(x), (1 - g) * s + g * (np.array(plain(x)) - s), 1e-5)


# -- gate bias -----------------------------------------------------------------------


def biases(layer):
    """{path below the unit: values} of all that is added: biases and β."""
    return {
        w.path.split("/", 1)[1]: np.unique(w.numpy()).tolist()
        for w in layer.weights
        if w.path.endswith(("bias", "beta"))
    }


@both_gates
@pytest.mark.parametrize("shortcut", ["exclusive_gating", "shortcut_only_gating"])
def test_gate_bias_reaches_the_gate_only_and_stays(shortcut, gate, tmp_path):
    x = inputs = keras.Input((6, 6, 4))
    unit = Residual(6, 2, shortcut=shortcut, gate=gate, gate_bias=-3.5, name="unit")
    loop = ScanLayers(
        Residual(6, shortcut=shortcut, gate=gate, gate_bias=-3.5), 3, name="loop"
    )
    model = keras.Model(inputs, loop(unit(x)))
    model.save(tmp_path / "model.keras")
    for copy in (
        model,
        keras.models.clone_model(model),
        keras.models.load_model(tmp_path / "model.keras"),
        keras.Model.from_config(model.get_config()),
    ):
        assert copy.get_layer("unit").gate_bias == -3.5
        for name in ("unit", "loop"):
            found = biases(copy.get_layer(name))
            its = "gate/bias" if gate == "1x1" else "gate_norm/beta"
            assert found.pop(its) == [-3.5]
            assert len(found) >= 2 and all(v == [0.0] for v in found.values())


@both_gates
def test_gates_start_at_sigma_of_their_bias(gate):
    unit = Residual(4, shortcut="exclusive_gating", gate=gate, gate_bias=-6.0)
    x = draw(unit, (3, 6, 6, 4))
    if gate == "1x1":
        unit.gate_conv.kernel.assign(np.zeros(unit.gate_conv.kernel.shape))
        unit.gate_conv.bias.assign([-6.0] * 4)
    else:
        fresh = Residual(4, shortcut="exclusive_gating", gate=gate, gate_bias=-6.0)
        fresh.build(x.shape)
        unit = fresh
        unit.gate_convs[-1].kernel.assign(np.zeros(unit.gate_convs[-1].kernel.shape))
    assert close(unit.gates(x), np.full(x.shape, sigmoid(-6)), 1e-8)


@pytest.mark.parametrize("seed", [None, 3])
def test_all_kernels_draw_apart(seed):
    draws = keras.initializers.HeNormal(seed=seed)
    for gate in GATES:
        unit = Residual(
            8, 2, shortcut="exclusive_gating", gate=gate, kernel_initializer=draws
        )
        unit.build((None, 8, 8, 8))
        kernels = [w.numpy() for w in unit.weights if w.path.endswith("kernel")]
        assert len(kernels) == {"1x1": 4, "twin": 5}[gate]
        assert distinct_draws(kernels)


def test_regularizer_reaches_every_kernel_and_nothing_else():
    unit = Residual(
        6, 2, shortcut="exclusive_gating", kernel_regularizer=keras.regularizers.L2(1.0)
    )
    unit.build((None, 8, 8, 4))
    kernels = [w.numpy() for w in unit.weights if w.path.endswith("kernel")]
    expected = sum(np.sum(np.square(kernel)) for kernel in kernels)
    assert len(kernels) == 4
    assert close(sum(unit.losses), expected, 1e-6)


# -- loops and precision -------------------------------------------------------------

LOOPS = {
    **{order: {"order": order} for order in STEPS},
    **{mix: {"order": "relu_before_addition", **row} for mix, row in MIXES.items()},
    "one layer": {"skip": 1},
}
del LOOPS["A"]  # as B where the shape stays


def loop_and_units(arguments, length=2, **options):
    """Two models with equal weights: a loop, and its copies one by one."""
    loop = ScanLayers(Residual(4, **arguments), length, **options)
    x = inputs = keras.Input((4, 4, 4))
    looped = keras.Model(inputs, loop(x))
    units = []
    for i, name in enumerate(loop.copy_names):
        unit = Residual(4, **arguments, name=name)
        x = unit(x)
        for variable, value in zip(unit.variables, loop.copy_weights(i), strict=True):
            variable.assign(value)
        units.append(unit)
    return loop, looped, units, keras.Model(inputs, x)


def train(model, x, y, **options):
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), "mse", **options)
    return [float(model.train_on_batch(x, y)) for _ in range(2)]


@pytest.mark.parametrize("kind", LOOPS)
def test_loop_equals_its_copies(kind):
    loop, looped, units, unrolled = loop_and_units(LOOPS[kind], jit=False)
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 6, 4, 4, 4)).astype("float32")
    assert close(looped(x), unrolled(x), 1e-5)
    before = [stack.numpy() for stack in loop.stacks]
    losses = train(looped, x, y)
    assert close(losses, train(unrolled, x, y, run_eagerly=True), 1e-5)
    for i, unit in enumerate(units):  # statistics and seeds too
        for value, variable in zip(loop.copy_weights(i), unit.variables, strict=True):
            assert close(value, variable, 1e-5), variable.path
    for old, stack in zip(before, loop.stacks, strict=True):
        assert not np.array_equal(old, stack), stack.path


FORMS = ({"jit": False}, {"jit": True}, {"jit": False, "remat": True})


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_the_backward_loop_cuts_what_the_forward_loop_cut(form):
    """Also where it computes each copy again. With F = 0 the slope is the mask."""
    arguments = {"order": "relu_before_addition", "shortcut": "dropout"}
    loop = ScanLayers(Residual(4, **arguments), 2, **form)
    x = tf.ones((4, 6, 6, 4))
    loop.build(x.shape)
    close_branches(loop)

    @tf.function
    def outputs_and_slopes(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = loop(x, training=True)
        return y, tape.gradient(y, x)

    y, slopes = outputs_and_slopes(x)
    assert 0.15 < np.mean(y) < 0.35
    assert np.array_equal(y, slopes)


def close_branches(loop):
    """F = 0 in every copy."""
    for stack in loop.stacks:
        if stack.path.endswith("conv_2/kernel"):
            stack.assign(np.zeros(stack.shape))


def test_dropout_differs_in_each_copy_and_step():
    for seed in (None, 3):
        arguments = {
            "order": "relu_before_addition",
            "shortcut": "dropout",
            "seed": seed,
        }
        loop = ScanLayers(Residual(4, **arguments), 2, jit=False)
        x = np.ones((10, 6, 6, 4), "float32")
        loop.build(x.shape)
        close_branches(loop)
        step = tf.function(lambda x, loop=loop: loop(x, training=True))
        masks = [np.array(step(x)) for _ in range(3)]
        assert len({mask.tobytes() for mask in masks}) == 3
        assert set(np.unique(masks)) == {0.0, 1.0}
        # 4,320 values, 3.8 deviations; equal masks would keep a half
        assert 0.225 < np.mean(masks) < 0.275


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
@both_gates
def test_gates_stay_float32_and_closed_ones_carry_exactly(policy, name, gate):
    policy(name)
    unit = Residual(
        4,
        order="relu_before_addition",
        shortcut="exclusive_gating",
        gate=gate,
        gate_bias=-100,
    )
    x = np.random.default_rng(1).normal(size=(2, 6, 6, 4)).astype("float32")
    half = ops.cast(x, name.removeprefix("mixed_"))
    y = unit(x)
    assert y.dtype == half.dtype
    assert np.array_equal(ops.cast(y, "float32"), ops.cast(half, "float32"))
    assert unit.gates(half).dtype == "float32"


@pytest.mark.parametrize("mix", ["exclusive, twin", "dropout"])
def test_trains_in_half_precision(policy, mix):
    policy("mixed_float16")
    inputs = keras.Input((4, 4, 4))
    x = ScanLayers(Residual(4, **MIXES[mix]), 2, jit=False)(inputs)
    x = keras.layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, keras.layers.Dense(1, dtype="float32")(x))
    rng = np.random.default_rng(1)
    x = rng.normal(size=(8, 4, 4, 4))
    losses = train(model, x, x.mean((1, 2, 3))[:, None])
    assert np.isfinite(losses).all()
    assert all(np.isfinite(w).all() for w in model.get_weights())


# -- what the units have to do with each other ---------------------------------------


@modes
@pytest.mark.parametrize("order", ["relu_before_addition", "full_preactivation"])
def test_exclusive_gating_is_a_highway_layer(order, training):
    unit = Residual(4, order=order, shortcut="exclusive_gating", gate_bias=-1)
    x = draw(unit, (3, 6, 5, 4))
    gate = keras.layers.Conv2D(4, 1, activation="sigmoid")
    highway = Highway(branch(unit), gate, gate_bias=-1)
    highway.build(x.shape)
    gate.set_weights(unit.gate_conv.get_weights())
    assert close(highway(x, training=training), unit(x, training=training), 1e-6)


@modes
@every_order
def test_a_highway_layer_with_open_gates_and_whole_carry_is_the_unit(order, training):
    """y = x + 1·F; the activation after the addition is a layer by itself."""
    unit = Residual(4, order=order)
    x = draw(unit, (3, 6, 5, 4))
    inside = branch(unit)
    after = {
        "original": lambda y: ops.relu(y),
        "bn_after_addition": lambda y: ops.relu(unit.norms[1](y, training=training)),
    }.get(order, lambda y: y)
    if order in ("original", "bn_after_addition"):
        inside = Inside(unit)
    one = keras.layers.Conv2D(
        4, 1, activation="sigmoid", kernel_initializer="zeros", name="one"
    )
    highway = Highway(inside, one, gate_bias=100, carry="identity")
    y = np.array(after(highway(x, training=training)))
    assert np.all(one(x) == 1)
    assert close(unit(x, training=training), y, 1e-6)


class Inside(keras.layers.Layer):
    """F of a unit that activates after the addition, with the unit's own layers."""

    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def call(self, x):
        unit = self.unit
        x = ops.relu(unit.norms[0](unit.convs[0](x)))
        x = unit.convs[1](x)
        return unit.norms[1](x) if unit.order == "original" else x

    def compute_output_shape(self, input_shape):
        return input_shape


@modes
def test_moving_the_activation_makes_the_unit_pre_activated(training):
    """Fig. 5: where the activation after the addition acts on the next unit's F only,
    it is the pre-activation of that unit."""
    count = 4
    units = [PreActResidual(4) for _ in range(count)]
    post = BatchNorm()
    x = draw(units[0], (3, 6, 5, 4))
    for layer in (*units[1:], post):
        draw(layer, x.shape)

    chain = x
    for unit in units:
        chain = unit(chain, training=training)
    chain = ops.relu(post(chain, training=training))

    # Asymmetrical units: convolutions first, the activation last.
    activations = [unit.norms[0] for unit in units[1:]] + [post]

    def norm(layer, y):
        mean, variance = layer.moving_mean.value, layer.moving_variance.value
        if training:
            mean, variance = tf.nn.moments(y, [0, 1, 2])
        beta, gamma = layer.beta.value, layer.gamma.value
        return tf.nn.batch_normalization(y, mean, variance, beta, gamma, 1e-5)

    def convolve(layer, y):
        return tf.nn.conv2d(y, layer.kernel.value, 1, "SAME")

    # The moving statistics are those of before the chain's training step.
    if training:
        norm(units[0].norms[0], x)
    carried, activated = x, tf.nn.relu(norm(units[0].norms[0], x))
    for unit, activation in zip(units, activations, strict=True):
        y = tf.nn.relu(norm(unit.norms[1], convolve(unit.convs[0], activated)))
        carried = carried + convolve(unit.convs[1], y)
        activated = tf.nn.relu(norm(activation, carried))
    assert close(chain, activated, 1e-5)


def states(units, x):
    """x_0 … x_L and F(x_0) … F(x_{L−1})."""
    branches, outputs = [], [x]
    for unit in units:
        branches.append(branch(unit)(outputs[-1]))
        outputs.append(unit(outputs[-1]))
    return outputs, branches


def chain_of(length, channels, dtype="float64", **arguments):
    units = []
    for i in range(length):
        unit = Residual(channels, order="full_preactivation", dtype=dtype, **arguments)
        draw(unit, (None, 2, 2, channels))
        rng = np.random.default_rng(i)
        for conv in unit.convs:
            conv.kernel.assign(rng.normal(0, 0.3, conv.kernel.shape))
        units.append(unit)
    return units


def test_equation_4_a_state_is_an_earlier_one_and_a_sum():
    """x_L = x_l + Σ F(x_i)."""
    units = chain_of(6, 4, "float32")
    x = np.random.default_rng(1).normal(size=(3, 2, 2, 4)).astype("float32")
    outputs, branches = states(units, x)
    for start in (0, 2, 5):
        total = sum(np.array(f, "float64") for f in branches[start:])
        assert close(outputs[-1], np.array(outputs[start], "float64") + total, 1e-6)


def test_equation_5_the_gradient_has_a_term_that_skips_all_weights():
    """dE/dx_l = dE/dx_L · (1 + d/dx_l Σ F)."""
    units = chain_of(4, 2)
    x = np.random.default_rng(1).normal(size=(2, 8))

    def last(x):
        return flat(states(units, ops.reshape(x, (-1, 2, 2, 2)))[0][-1])

    def total(x):
        return flat(sum(states(units, ops.reshape(x, (-1, 2, 2, 2)))[1]))

    def loss(y):
        return ops.sum(y**3 + y)

    x = tf.constant(x)
    with tf.GradientTape(persistent=True) as tape:
        tape.watch(x)
        y = last(x)
        value = loss(y)
    at_l, at_L = (np.array(tape.gradient(value, at)) for at in (x, y))
    slope = jacobian(total, x)
    assert np.abs(slope).max() > 0.1
    assert close(at_l, at_L + np.einsum("bi,bij->bj", at_L, slope), 1e-10)


@pytest.mark.parametrize("scale", [0.5, 1.5])
def test_equation_8_a_scaled_shortcut_scales_the_gradient_with_depth(scale):
    """dE/dx_l = dE/dx_L · (λ^depth + …): through the shortcuts alone, F's last kernel
    being zero, exactly that."""
    x = tf.constant(np.random.default_rng(1).normal(size=(2, 2, 2, 2)))
    for depth in (1, 5, 20):
        units = chain_of(depth, 2, shortcut="constant_scaling", scales=(scale, 1.0))
        for unit in units:
            unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = x
            for unit in units:
                y = unit(y)
            value = tf.reduce_sum(y**2) / 2
        assert close(y, scale**depth * x, 1e-12)
        expected = scale**depth * y.numpy()  # dE/dx_L = y
        assert close(tape.gradient(value, x) / expected, np.ones(x.shape), 1e-9)


# -- errors --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"filters": 0}, "`filters` must be an integer of at least 1.*filters=0"),
        ({"filters": 8.0}, "`filters` must be an integer.*filters=8.0"),
        ({"strides": 1.5}, "`strides` must be an integer of at least 1.*strides=1.5"),
        ({"skip": 0}, "`skip` must be an integer of at least 1.*skip=0"),
        ({"order": "orginal"}, "`order` must be one of original, .*'orginal'"),
        ({"shortcut": "C"}, "`shortcut` must be one of .*shortcut='C'"),
        ({"shortcut": "gating"}, "one of exclusive_gating, .*shortcut='gating'"),
        ({"gate": "3x3"}, "`gate` must be one of 1x1, twin.*gate='3x3'"),
        ({"strides_on": "5x5"}, "`strides_on` must be one of 3x3, 1x1.*'5x5'"),
        ({"scales": (0.5,)}, r"`scales` must be two numbers.*scales=\(0.5,\)"),
        ({"scales": 0.5}, "`scales` must be two numbers.*scales=0.5"),
        ({"scales": (0.5, float("nan"))}, "`scales` must be two numbers.*nan"),
        ({"scales": ("a", 1)}, "`scales` must be two numbers.*'a'"),
        ({"rate": 1.0}, r"`rate` must be a number in \[0, 1\).*rate=1.0"),
        ({"rate": -0.1}, r"`rate` must be a number in \[0, 1\).*rate=-0.1"),
        ({"rate": "half"}, r"`rate` must be a number in \[0, 1\).*rate='half'"),
        ({"gate_bias": None}, "`gate_bias` must be a number.*gate_bias=None"),
        ({"gate_bias": "-6"}, "`gate_bias` must be a finite number.*'-6'"),
        ({"gate_bias": float("inf")}, "`gate_bias` must be a finite number.*inf"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Residual(**{"filters": 8, **arguments})


def test_zero_padding_cannot_drop_channels():
    with pytest.raises(ValueError, match="use 'B'. Received: 16 channels, unit of 8"):
        Residual(8, shortcut="A")(np.ones((1, 4, 4, 16)))
