"""Residual units: five orders of activation, six kinds of shortcut."""

import math
import numbers
from typing import NamedTuple

import keras
from keras import ops

from zoo import _replicas
from zoo._checks import check_int, known
from zoo.layers.batch_norm import BatchNorm
from zoo.layers.highway import check_gate_bias
from zoo.layers.initializers import fork, he_fan_out


class Order(NamedTuple):
    """Where a unit normalises and activates: before F, after its last convolution,
    and after the addition. Between two convolutions it is always BN, ReLU."""

    before: tuple = ()
    last: tuple = ()
    after: tuple = ()


# Fig. 4 and Table 2 of He et al. 2016.
ORDERS = {
    "original": Order(last=("norm",), after=("relu",)),
    "bn_after_addition": Order(after=("norm", "relu")),
    "relu_before_addition": Order(last=("norm", "relu")),
    "relu_only_preactivation": Order(before=("relu",), last=("norm",)),
    "full_preactivation": Order(before=("norm", "relu")),
}
# Fig. 2 and Table 1; A and B are the identity, and say what to do where it cannot be.
SHORTCUTS = (
    "A",
    "B",
    "constant_scaling",
    "exclusive_gating",
    "shortcut_only_gating",
    "convolution",
    "dropout",
)
GATES = ("1x1", "twin")


@keras.saving.register_keras_serializable("zoo")
class Residual(keras.layers.Layer):
    """Residual unit: y = f(h(x) + F(x)), with F a path of two or three convolutions.

    `order` says where BN and ReLU are in F and what f is; `shortcut` says what h is:

    ==========================  ===================================================
    order                       unit
    ==========================  ===================================================
    "original"                  conv-BN-ReLU-conv-BN, add, ReLU
    "bn_after_addition"         conv-BN-ReLU-conv, add, BN-ReLU
    "relu_before_addition"      conv-BN-ReLU-conv-BN-ReLU, add
    "relu_only_preactivation"   ReLU-conv-BN-ReLU-conv-BN, add
    "full_preactivation"        BN-ReLU-conv-BN-ReLU-conv, add
    ==========================  ===================================================

    ==========================  ===================================================
    shortcut                    sum, with s the shortcut's tensor and g the gate
    ==========================  ===================================================
    "A", "B"                    s + F(x)
    "constant_scaling"          λ·s + μ·F(x), `scales` = (λ, μ)
    "exclusive_gating"          (1 − g)·s + g·F(x): a highway layer
    "shortcut_only_gating"      (1 − g)·s + F(x)
    "convolution"               conv1×1(s) + F(x), in every unit
    "dropout"                   s·mask + F(x); at inference s·(1 − `rate`) + F(x)
    ==========================  ===================================================

    s is x where the shape stays. Where it changes, s is a 1×1 convolution, for "A" a
    sub-sampling with zeros for the new channels. A convolution on the shortcut is
    followed by a BN where the last one of F is. The gate is g = σ(W_g x + b_g), a
    1×1 convolution of the unit's input.

    Args:
        filters: int, inner width; a bottleneck puts out 4·`filters` channels.
        strides: int, 1 by default.
        bottleneck: bool; 1×1, 3×3, 1×1 convolutions instead of 3×3 ones. False by
            default.
        skip: int, 3×3 convolutions in F: 2 by default; 1 for the one-layer skip of
            Table 3. Bottlenecks have 3 convolutions.
        order: a row of the first table; "original" by default.
        first: bool; the first unit of a pre-activation net activates before it
            splits, so that the shortcut takes the activated tensor. False by default.
        activated: bool; the input is activated already, by a stem: the unit leaves
            out what its order has before F. False by default.
        shortcut: a row of the second table; "B" by default.
        scales: (λ, μ) of "constant_scaling"; (0.5, 0.5) by default, the best of the
            paper's.
        gate: "1x1" (the default), or "twin": a path like F, with a sigmoid at its
            end (Highway-110); `gate_bias` is then the β of its last BN.
        gate_bias: float, b_g: −6 by default, the best of the paper's search from 0 to
            −10. Negative carries.
        rate: share of values that dropout cuts; 0.5 by default, as in the paper.
        strides_on: "3x3" (the default, as in most libraries) or "1x1" (the first
            convolution, as in the authors' own code); for bottlenecks.
        kernel_initializer: N(0, √(2/fan_out)) by default (He et al. 2015).
        kernel_regularizer: none by default.
        seed: of the dropout; None takes one from Keras' global seed.

    Call arguments:
        x: float tensor.
        training: bool, whether BN uses the statistics of the batch, and dropout cuts.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, ⌈height/strides⌉, ⌈width/strides⌉, channels)`. A strided 3×3
        convolution pads by one on every side, so that its centres are the pixels
        which the projection takes.

    Raises:
        ValueError: an argument out of its range; `shortcut="A"` on an input with
            more channels than the unit puts out.

    Example:
        >>> import keras, zoo
        >>> unit = zoo.layers.Residual(16, shortcut="exclusive_gating", gate_bias=-6)
        >>> unit(keras.ops.ones((2, 32, 32, 16))).shape
        TensorShape([2, 32, 32, 16])

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks", §3.1
        (shortcuts), §4.1 (orders), appendix (first unit).
    """

    def __init__(
        self,
        filters,
        strides=1,
        bottleneck=False,
        skip=2,
        order="original",
        first=False,
        activated=False,
        shortcut="B",
        scales=(0.5, 0.5),
        gate="1x1",
        gate_bias=-6.0,
        rate=0.5,
        strides_on="3x3",
        kernel_initializer="he_fan_out",
        kernel_regularizer=None,
        seed=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        check_int("filters", filters)
        check_int("strides", strides)
        check_int("skip", skip)
        known("order", order, ORDERS)
        known("shortcut", shortcut, SHORTCUTS)
        known("gate", gate, GATES)
        known("strides_on", strides_on, ("3x3", "1x1"))
        if not (isinstance(rate, numbers.Real) and 0 <= rate < 1):
            raise ValueError(
                f"`rate` must be a number in [0, 1). Received: rate={rate!r}"
            )
        if gate_bias is None:
            raise ValueError("`gate_bias` must be a number. Received: gate_bias=None")
        self.filters = filters
        self.strides = strides
        self.bottleneck = bottleneck
        self.skip = skip
        self.order = order
        self.first = first
        self.activated = activated
        self.shortcut = shortcut
        self.scales = check_scales(scales)
        self.gate = gate
        self.gate_bias = check_gate_bias(gate_bias)
        self.rate = rate
        self.strides_on = strides_on
        if kernel_initializer == "he_fan_out":
            kernel_initializer = he_fan_out()
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.seed = seed

    @property
    def output_filters(self):
        return 4 * self.filters if self.bottleneck else self.filters

    @property
    def is_gated(self):
        return self.shortcut in ("exclusive_gating", "shortcut_only_gating")

    def _convolutions(self):
        """(kernel size, width, stride) of each convolution of F."""
        if not self.bottleneck:
            strides = [self.strides] + [1] * (self.skip - 1)
            return [(3, self.filters, s) for s in strides]
        early = self.strides if self.strides_on == "1x1" else 1
        return [
            (1, self.filters, early),
            (3, self.filters, self.strides // early),
            (1, self.output_filters, 1),
        ]

    def _conv(self, name, size, width, strides, channels, **arguments):
        conv = keras.layers.Conv2D(
            width,
            size,
            strides,
            padding="same" if strides == 1 else "valid",
            data_format="channels_last",
            kernel_initializer=fork(self.kernel_initializer, name),
            kernel_regularizer=self.kernel_regularizer,
            name=name,
            **{"use_bias": False, "dtype": self.dtype_policy, **arguments},
        )
        conv.build((None, None, None, channels))
        return conv

    def _norm(self, name, channels, **arguments):
        norm = BatchNorm(name=name, **{"dtype": self.dtype_policy, **arguments})
        norm.build((None, None, None, channels))
        return norm

    def _build_path(self, prefix, plan, channels):
        """BN and convolution layers of a path, in the order of its steps."""
        norms, convs, sizes = [], [], iter(self._convolutions())
        for step in plan:
            if step == "conv":
                size, width, strides = next(sizes)
                name = f"{prefix}conv_{len(convs) + 1}"
                convs.append(self._conv(name, size, width, strides, channels))
                channels = width
            elif step == "norm":
                norms.append(self._norm(f"{prefix}norm_{len(norms) + 1}", channels))
        return norms, convs

    def build(self, input_shape):
        channels, width = input_shape[-1], self.output_filters
        order = ORDERS[self.order]
        inner = ("conv", *("norm", "relu", "conv") * (len(self._convolutions()) - 1))
        self._before = () if self.activated else order.before
        self._inner = (*inner, *order.last)
        self.norms, self.convs = self._build_path(
            "", (*self._before, *self._inner, *order.after), channels
        )
        self.resamples = self.strides != 1 or channels != width
        self.projection = self.projection_norm = None
        everywhere = self.shortcut == "convolution"
        if everywhere or (self.resamples and self.shortcut != "A"):
            self.projection = self._conv("projection", 1, width, self.strides, channels)
            if "norm" in order.last:
                self.projection_norm = self._norm("projection_norm", width)
        elif channels > width:
            raise ValueError(
                "`shortcut='A'` pads channels with zeros and cannot drop any; use 'B'. "
                f"Received: {channels} channels, unit of {width}"
            )
        self._build_gate(inner, channels)
        if self.shortcut == "dropout":  # named, for the path of its state in a loop
            self.generator = keras.random.SeedGenerator(self.seed, name="dropout")

    def _build_gate(self, inner, channels):
        bias = keras.initializers.Constant(self.gate_bias)
        half = self.compute_dtype in ("float16", "bfloat16")
        self.gate_dtype = "float32" if half else self.dtype_policy
        if not self.is_gated:
            return
        if self.gate == "1x1":
            self.gate_conv = self._conv(
                "gate",
                1,
                self.output_filters,
                self.strides,
                channels,
                use_bias=True,
                bias_initializer=bias,
                dtype=self.gate_dtype,
            )
            return
        self._gate_plan = (*inner, "norm")
        self.gate_norms, self.gate_convs = self._build_path("gate_", inner, channels)
        self.gate_norms.append(
            self._norm(
                "gate_norm",
                self.output_filters,
                beta_initializer=bias,
                dtype=self.gate_dtype,
            )
        )

    def call(self, x, training=None):
        norms, convs = iter(self.norms), iter(self.convs)
        x, activated = self._split(x, norms)
        transformed = _run(self._inner, activated, norms, convs)
        y = self._mix(x, self._carry(x, activated), transformed, training)
        return _run(ORDERS[self.order].after, y, norms, convs)

    def gates(self, x):
        """g of the unit's input, at inference; for gated shortcuts."""
        return self._gates(self._split(x, iter(self.norms))[0])

    def skipped(self, x):
        """What is left of the unit without F, at inference: x itself where the shape
        stays, else what the shortcut makes of it."""
        if not self.resamples:
            return x
        carried = self._carry(*self._split(x, iter(self.norms)))
        return _run(ORDERS[self.order].after, carried, iter(self.norms[-1:]), ())

    def _split(self, x, norms):
        """(tensor of shortcut and gate, tensor of F): x before and after `before`."""
        activated = _run(self._before, x, norms, ())
        return (activated if self.first else x), activated

    def _gates(self, x):
        if self.gate == "1x1":
            z = self.gate_conv(x)
        else:
            z = _run(self._gate_plan, x, iter(self.gate_norms), iter(self.gate_convs))
        return ops.sigmoid(z)

    def _carry(self, x, activated):
        """s: x in the shape of F's output; a projection takes `activated`."""
        if self.projection is not None:
            x = self.projection(activated)
            return x if self.projection_norm is None else self.projection_norm(x)
        if not self.resamples:
            return x
        x = x[:, :: self.strides, :: self.strides]
        return ops.pad(x, ((0, 0),) * 3 + ((0, self.output_filters - x.shape[-1]),))

    def _mix(self, x, carried, transformed, training):
        """h(x) + F: the second table of the class."""
        if self.shortcut == "constant_scaling":
            return self.scales[0] * carried + self.scales[1] * transformed
        if self.shortcut == "dropout":
            if training and self.rate:  # divides what it keeps by 1 − rate
                draws = _replicas.OwnDraws(self.generator)
                carried = keras.random.dropout(carried, self.rate, seed=draws)
            return (1 - self.rate) * carried + transformed
        if not self.is_gated:
            return carried + transformed
        gate = self._gates(x)
        s, f = (ops.cast(part, gate.dtype) for part in (carried, transformed))
        y = (
            s + gate * (f - s)
            if self.shortcut == "exclusive_gating"
            else f + s - gate * s
        )
        return ops.cast(y, self.compute_dtype)

    def compute_output_shape(self, input_shape):
        batch, height, width, _ = input_shape
        height, width = (
            None if n is None else -(-n // self.strides) for n in (height, width)
        )
        return (batch, height, width, self.output_filters)

    def get_config(self):
        config = super().get_config()
        for name in (
            "filters",
            "strides",
            "bottleneck",
            "skip",
            "order",
            "first",
            "activated",
            "shortcut",
            "scales",
            "gate",
            "gate_bias",
            "rate",
            "strides_on",
            "seed",
        ):
            config[name] = getattr(self, name)
        config["kernel_initializer"] = keras.initializers.serialize(
            self.kernel_initializer
        )
        config["kernel_regularizer"] = keras.regularizers.serialize(
            self.kernel_regularizer
        )
        return config


def _run(plan, x, norms, convs):
    """Takes the steps of a path, with the next BN or convolution at each."""
    for step in plan:
        if step == "relu":
            x = ops.relu(x)
        elif step == "norm":
            x = next(norms)(x)
        else:
            conv = next(convs)
            if conv.strides[0] > 1 and conv.kernel_size[0] == 3:
                x = ops.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
            x = conv(x)
    return x


def check_scales(scales):
    """`scales` as a pair of finite numbers; ValueError if they are not."""
    pair = list(scales) if isinstance(scales, (list, tuple)) else []
    if len(pair) != 2 or not all(
        isinstance(s, numbers.Real) and math.isfinite(s) for s in pair
    ):
        raise ValueError(
            "`scales` must be two numbers, of the shortcut and of F. "
            f"Received: scales={scales}"
        )
    return pair
