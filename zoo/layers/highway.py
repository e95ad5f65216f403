"""The highway layer. Its equation stands here and nowhere else."""

import inspect
import math
import numbers

import keras
from keras import ops

from zoo.layers.initializers import fork, share_a_draw

CARRIES = ("coupled", "separate", "identity")

# Layers of which a gate can be made by giving a copy a sigmoid and a bias.
_TWINS = (
    keras.layers.Dense,
    keras.layers.EinsumDense,
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
)


class BaseHighway(keras.layers.Layer):
    """What all highway layers share: the equation, dtypes, masks and checks.

    A subclass sets `transform`, `gate` and, for `carry="separate"`, `carry_gate`
    before or in `build`, and ends its `build` with `self.build_halves(input_shape)`.

    The state `x` keeps the dtype of the variables: float32 under a mixed policy.
    `transform` computes in half precision there, the gates in float32; half a
    sum over 100 layers would swallow the small updates of nearly closed gates.
    """

    def __init__(self, gate_bias=-2.0, carry="coupled", **kwargs):
        super().__init__(autocast=False, **kwargs)
        if carry not in CARRIES:
            raise ValueError(
                f"`carry` must be one of {', '.join(map(repr, CARRIES))}. "
                f"Received: carry={carry!r}"
            )
        self.gate_bias = check_gate_bias(gate_bias)
        self.carry = carry
        self.supports_masking = True
        self.transform = self.gate = self.carry_gate = None

    @property
    def gate_dtype(self):
        """Policy of the gates: float32 where the layer computes in half precision."""
        half = self.compute_dtype in ("float16", "bfloat16")
        return "float32" if half else self.dtype_policy

    def build_halves(self, input_shape):
        """Builds the sublayers and checks that they keep the shape."""
        for half in self.halves():
            if not half.built:
                half.build(input_shape)
            output_shape = tuple(half.compute_output_shape(input_shape))
            if not _same_shape(output_shape[1:], tuple(input_shape)[1:]):
                raise ValueError(
                    "A highway layer mixes H(x) with x, so its sublayers must keep "
                    "the shape of x; put a plain layer before it to change the "
                    f"shape. Received: input shape {tuple(input_shape)}, layer "
                    f"{half.name!r} with output shape {output_shape}"
                )

    def halves(self):
        """The sublayers that exist: transform, gate and perhaps a carry gate."""
        halves = (self.transform, self.gate, self.carry_gate)
        return [half for half in halves if half is not None]

    def parts(self, x, mask=None):
        """Returns (H, T, C): transform, transform gate and carry gate of `x`.

        C is None where no gate of its own computes it.
        """
        x = ops.cast(x, self.variable_dtype)
        return tuple(
            None if half is None else ops.cast(call_with_mask(half, x, mask), x.dtype)
            for half in (self.transform, self.gate, self.carry_gate)
        )

    def mix(self, x, transformed, gate, carry=None):
        """y = T·H + C·x. With C = 1 − T this is x + T·(H − x): one product less,
        and exactly x where T = 0."""
        if self.carry == "coupled":
            return x + gate * (transformed - x)
        if self.carry == "identity":
            return x + gate * transformed
        return gate * transformed + carry * x

    def call(self, x, mask=None):
        x = ops.cast(x, self.variable_dtype)
        return self.mix(x, *self.parts(x, mask))

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, x, mask=None):
        return keras.KerasTensor(x.shape, dtype=self.variable_dtype)

    def get_config(self):
        config = super().get_config()
        config.update(gate_bias=self.gate_bias, carry=self.carry)
        return config


@keras.saving.register_keras_serializable("zoo")
class Highway(BaseHighway):
    """Highway layer around any layer that keeps its input's shape.

    y = T(x)·H(x) + C(x)·x, with C = 1 − T unless `carry` says otherwise. T = 0
    gives y = x and dy/dx = I; T = 1 gives y = H(x) and dy/dx = H'(x).

    Args:
        transform: Keras layer, H. It must return the shape of its input.
        gate: Keras layer, T, its activation included: values in [0, 1], same shape
            as x or one that broadcasts against it over no axis. None makes one of
            the type of `transform` with a sigmoid and an initial draw of its own;
            that works for dense and convolution layers.
        gate_bias: float, initial bias of the transform gate, −2 by default
            (Srivastava et al. 2015, CIFAR nets). Negative carries: at −2 a layer
            starts with T = 0.12, and 50 such layers still pass a gradient. It is
            set on the given `gate` too (on its last layer, for a Sequential);
            None leaves that gate's own bias as it is.
        carry: "coupled", C = 1 − T (the papers' choice); "separate", C a gate of its
            own with initial bias −`gate_bias`; "identity", C = 1 (a gated residual
            unit).

    Call arguments:
        x: float tensor.
        mask: passed to the sublayers that take one, and on to the next layer.

    Input shape:
        `(batch, …)`, whatever `transform` accepts.

    Output shape:
        The input's.

    Raises:
        ValueError: no gate can be made of `transform`; `transform` changes the
            shape; `gate` is `transform` itself, or has a linear activation, or a
            bias that contradicts `gate_bias`.

    Example:
        >>> import keras, zoo
        >>> x = keras.ops.ones((2, 7, 16))
        >>> recurrent = keras.layers.GRU(16, return_sequences=True)
        >>> gate = keras.layers.Dense(16, activation="sigmoid")
        >>> zoo.layers.Highway(recurrent, gate)(x).shape
        TensorShape([2, 7, 16])

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §2.
    """

    def __init__(self, transform, gate=None, gate_bias=-2.0, carry="coupled", **kwargs):
        super().__init__(gate_bias=gate_bias, carry=carry, **kwargs)
        for name, layer in (("transform", transform), ("gate", gate)):
            if not isinstance(layer, keras.layers.Layer) and (
                layer is not None or name == "transform"
            ):
                raise ValueError(f"`{name}` must be a Keras layer. Received: {layer!r}")
        if gate is transform:
            raise ValueError(
                "`gate` must be a layer of its own, not `transform` itself. "
                f"Received: gate={gate.name!r}, transform={transform.name!r}"
            )
        self.transform = transform
        self.own_gate = gate is None
        self._came_built = transform.built, gate is not None and gate.built
        self.gate = self._twin("gate", gate_bias) if gate is None else self._take(gate)
        if carry == "separate":
            self.carry_gate = self._twin(
                "carry", 0.0 if gate_bias is None else -gate_bias
            )

    def _twin(self, name, bias):
        """A gate like `transform`: same type, sigmoid, bias, an own initial draw."""
        if not isinstance(self.transform, _TWINS):
            raise ValueError(
                f"`{name}`: no gate can be made of a "
                f"{type(self.transform).__name__}; pass gate=, a layer that returns T "
                "with its activation, for example Dense(units, activation='sigmoid'), "
                "and leave `carry` at 'coupled' or 'identity'. "
                f"Received: transform={self.transform.name!r}"
            )
        config = self.transform.get_config()
        for key in [k for k in config if k.endswith("_initializer")]:
            config[key] = fork(getattr(self.transform, key), name)
        config.update(name=name, activation="sigmoid", dtype=self.gate_dtype)
        config["bias_initializer"] = keras.initializers.Constant(bias or 0.0)
        if isinstance(self.transform, keras.layers.EinsumDense):
            config["bias_axes"] = config["bias_axes"] or config["equation"][-1]
        else:
            config["use_bias"] = True
        return type(self.transform).from_config(config)

    def _take(self, gate):
        """The user's gate, with `gate_bias` on it and no draw shared with H."""
        last = gate.layers[-1] if isinstance(gate, keras.Sequential) else gate
        if getattr(last, "activation", None) is keras.activations.linear:
            raise ValueError(
                "`gate` must return values in [0, 1]: give it activation='sigmoid'. "
                f"Received: gate={last.name!r} with a linear activation"
            )
        mine = getattr(last, "kernel_initializer", None)
        if share_a_draw(mine, getattr(self.transform, "kernel_initializer", None)):
            last.kernel_initializer = fork(mine, "gate")
        if self.gate_bias is None:
            return gate
        given = getattr(last, "bias_initializer", None)
        if not _has_bias(last):
            given = None
        if (
            isinstance(given, keras.initializers.Constant)
            and given.value == self.gate_bias
        ):
            return gate
        if not isinstance(given, keras.initializers.Zeros) or last.built:
            raise ValueError(
                f"`gate_bias` cannot be set on the given gate {last.name!r}, which "
                "has no bias of its own, another initial bias, or is built already; "
                "pass gate_bias=None to keep the gate as it is. "
                f"Received: gate_bias={self.gate_bias}"
            )
        last.bias_initializer = keras.initializers.Constant(self.gate_bias)
        return gate

    def build(self, input_shape):
        self.build_halves(input_shape)

    def get_config(self):
        config = super().get_config()
        halves = self.transform, None if self.own_gate else self.gate
        for key, half, came_built in zip(
            ("transform", "gate"), halves, self._came_built, strict=True
        ):
            config[key] = keras.saving.serialize_keras_object(half)
            if half is not None and not came_built:
                config[key] = _unbuilt(config[key])
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        for key in ("transform", "gate"):
            config[key] = keras.saving.deserialize_keras_object(
                config[key], custom_objects=custom_objects
            )
        return cls(**config)


class KernelHighway(BaseHighway):
    """Highway layers that make their halves from kernels: dense and convolution.

    `kernel_*` and `bias_*` arguments go to the transform, their `gate_*` twins to
    the gates. A subclass implements `make_half(name, width, **arguments)`.
    """

    _HALF = (
        "kernel_initializer",
        "bias_initializer",
        "kernel_regularizer",
        "bias_regularizer",
        "kernel_constraint",
        "bias_constraint",
    )

    def __init__(
        self,
        width,
        activation="relu",
        gate_bias=-2.0,
        carry="coupled",
        kernel_initializer="he_normal",
        gate_kernel_initializer="glorot_uniform",
        bias_initializer="zeros",
        kernel_regularizer=None,
        gate_kernel_regularizer=None,
        bias_regularizer=None,
        gate_bias_regularizer=None,
        kernel_constraint=None,
        gate_kernel_constraint=None,
        bias_constraint=None,
        gate_bias_constraint=None,
        **kwargs,
    ):
        super().__init__(gate_bias=gate_bias, carry=carry, **kwargs)
        if self.gate_bias is None:
            raise ValueError("`gate_bias` must be a number. Received: gate_bias=None")
        if width is not None and (type(width) is not int or width < 1):
            raise ValueError(
                f"`{self._WIDTH}` must be a positive integer, or None for the input's "
                f"width. Received: {self._WIDTH}={width!r}"
            )
        self.width = width
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.gate_kernel_initializer = keras.initializers.get(gate_kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)
        self.gate_kernel_regularizer = keras.regularizers.get(gate_kernel_regularizer)
        self.bias_regularizer = keras.regularizers.get(bias_regularizer)
        self.gate_bias_regularizer = keras.regularizers.get(gate_bias_regularizer)
        self.kernel_constraint = keras.constraints.get(kernel_constraint)
        self.gate_kernel_constraint = keras.constraints.get(gate_kernel_constraint)
        self.bias_constraint = keras.constraints.get(bias_constraint)
        self.gate_bias_constraint = keras.constraints.get(gate_bias_constraint)

    def make_halves(self, input_width):
        """Makes the sublayers for inputs of this width, each with its own draw."""
        if self.width not in (None, input_width):
            raise ValueError(
                f"`{self._WIDTH}` must equal the width of the input, since the layer "
                "mixes its output with its input; change the width with a plain layer "
                f"before it. Received: {self._WIDTH}={self.width}, input width "
                f"{input_width}"
            )

        def half(name, bias=None):
            prefix = "" if bias is None else "gate_"
            arguments = {key: getattr(self, prefix + key, None) for key in self._HALF}
            arguments["kernel_initializer"] = fork(
                arguments["kernel_initializer"], name
            )
            if bias is None:
                arguments.update(activation=self.activation, dtype=self.dtype_policy)
                arguments["bias_initializer"] = fork(self.bias_initializer, name)
            else:
                arguments.update(activation="sigmoid", dtype=self.gate_dtype)
                arguments["bias_initializer"] = keras.initializers.Constant(bias)
            return self.make_half(name, input_width, **arguments)

        self.transform = half("transform")
        self.gate = half("gate", self.gate_bias)
        if self.carry == "separate":
            self.carry_gate = half("carry", -self.gate_bias)

    def get_config(self):
        config = super().get_config()
        config[self._WIDTH] = self.width
        config["activation"] = keras.activations.serialize(self.activation)
        for prefix in ("", "gate_"):
            for key in self._HALF:
                if prefix + key == "gate_bias_initializer":
                    continue  # `gate_bias` is that
                module = getattr(keras, key.split("_")[1] + "s")
                config[prefix + key] = module.serialize(getattr(self, prefix + key))
        return config


def check_gate_bias(value):
    """`value` as a float, or None; ValueError for anything but a finite number."""
    if value is None:
        return None
    number = isinstance(value, numbers.Real) and not isinstance(value, bool)
    if not number or not math.isfinite(value):
        raise ValueError(
            f"`gate_bias` must be a finite number. Received: gate_bias={value!r}"
        )
    return float(value)


def _same_shape(a, b):
    """Whether two shapes agree where both are known."""
    return len(a) == len(b) and all(
        None in pair or pair[0] == pair[1] for pair in zip(a, b, strict=True)
    )


def _has_bias(layer):
    """Whether `bias_initializer` of the layer is the bias of what it returns."""
    return (
        getattr(layer, "use_bias", True)
        and getattr(layer, "bias_axes", True)  # EinsumDense
        and not isinstance(layer, keras.layers.RNN)
    )


def _unbuilt(config):
    """A layer's config without its build shapes: a copy is built by its parent, as
    the original was, so that weight paths start with the parent's name."""
    config.pop("build_config", None)
    if config["class_name"] == "Sequential":
        inner = config["config"]
        inner.pop("build_input_shape", None)
        inner["layers"] = [
            _unbuilt(layer)
            for layer in inner["layers"]
            if layer["class_name"] != "InputLayer"
        ]
    return config


def call_with_mask(layer, x, mask):
    if mask is not None and "mask" in inspect.signature(layer.call).parameters:
        return layer(x, mask=mask)
    return layer(x)
