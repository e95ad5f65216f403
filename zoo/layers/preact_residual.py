"""The pre-activation residual unit."""

import keras
from keras import ops

from zoo.layers.batch_norm import BatchNorm
from zoo.layers.initializers import fork


@keras.saving.register_keras_serializable("zoo")
class PreActResidual(keras.layers.Layer):
    """Pre-activation residual unit: y = x + F(x), all activations inside F.

    With a = ReLU(BN(x)), F is the loop (BN, ReLU, convolution) over two 3×3 kernels,
    or over 1×1, 3×3, 1×1 for a bottleneck. Where the shape stays, the shortcut
    carries the raw x; where it changes, a 1×1 projection takes the *activated* a,
    without a BN of its own. The first unit of a net activates before the split:
    y = a + F(x).

    Args:
        filters: int, inner width; a bottleneck puts out 4·`filters` channels.
        strides: int, 1 by default.
        bottleneck: bool, False by default.
        first: bool, False by default; True for the first unit of a net, whose
            shortcut takes a.
        shortcut: where the shape changes, "B" (the default) projects with a 1×1
            convolution, "A" sub-samples the raw x and pads its channels with zeros.
        strides_on: "3x3" (the default, as in most libraries) or "1x1" (the first
            convolution, as in the authors' own code); for bottlenecks.
        kernel_initializer: N(0, √(2/fan_out)) by default (He et al. 2015).
        kernel_regularizer: none by default.

    Call arguments:
        x: float tensor.
        training: bool, whether BN uses the statistics of the batch.

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
        >>> unit = zoo.layers.PreActResidual(32, strides=2)
        >>> unit(keras.ops.ones((2, 32, 32, 16))).shape
        TensorShape([2, 16, 16, 32])

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks",
        Fig. 4(e) and the appendix (first and last unit).
    """

    def __init__(
        self,
        filters,
        strides=1,
        bottleneck=False,
        first=False,
        shortcut="B",
        strides_on="3x3",
        kernel_initializer="he_fan_out",
        kernel_regularizer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        for name, value in (("filters", filters), ("strides", strides)):
            if type(value) is not int or value < 1:
                raise ValueError(
                    f"`{name}` must be a positive integer. Received: {name}={value!r}"
                )
        for name, value, known in (
            ("shortcut", shortcut, ("A", "B")),
            ("strides_on", strides_on, ("3x3", "1x1")),
        ):
            if value not in known:
                raise ValueError(
                    f"`{name}` must be {known[0]!r} or {known[1]!r}. "
                    f"Received: {name}={value!r}"
                )
        self.filters = filters
        self.strides = strides
        self.bottleneck = bottleneck
        self.first = first
        self.shortcut = shortcut
        self.strides_on = strides_on
        if kernel_initializer == "he_fan_out":
            kernel_initializer = he_fan_out()
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.kernel_regularizer = keras.regularizers.get(kernel_regularizer)

    @property
    def output_filters(self):
        return 4 * self.filters if self.bottleneck else self.filters

    def _plan(self):
        """(kernel size, width, stride) of each convolution on the residual path."""
        if not self.bottleneck:
            return [(3, self.filters, self.strides), (3, self.filters, 1)]
        early = self.strides if self.strides_on == "1x1" else 1
        return [
            (1, self.filters, early),
            (3, self.filters, self.strides // early),
            (1, self.output_filters, 1),
        ]

    def _conv(self, name, size, width, strides):
        return keras.layers.Conv2D(
            width,
            size,
            strides,
            padding="same" if strides == 1 else "valid",
            use_bias=False,
            data_format="channels_last",
            kernel_initializer=fork(self.kernel_initializer, name),
            kernel_regularizer=self.kernel_regularizer,
            dtype=self.dtype_policy,
            name=name,
        )

    def build(self, input_shape):
        channels = input_shape[-1]
        shape = (None, None, None, channels)  # the size plays no part in the weights
        self.norms, self.convs, self.projection = [], [], None
        for i, (size, width, strides) in enumerate(self._plan(), 1):
            norm = BatchNorm(name=f"norm_{i}", dtype=self.dtype_policy)
            norm.build(shape)
            conv = self._conv(f"conv_{i}", size, width, strides)
            conv.build(shape)
            self.norms.append(norm)
            self.convs.append(conv)
            shape = (*shape[:-1], width)
        self.resamples = self.strides != 1 or channels != self.output_filters
        if self.resamples and self.shortcut == "B":
            self.projection = self._conv(
                "projection", 1, self.output_filters, self.strides
            )
            self.projection.build((None, None, None, channels))
        elif channels > self.output_filters:
            raise ValueError(
                "`shortcut='A'` pads channels with zeros and cannot drop any; use 'B'. "
                f"Received: {channels} channels, unit of {self.output_filters}"
            )

    def call(self, x):
        y = x
        for norm, conv in zip(self.norms, self.convs, strict=True):
            y = ops.relu(norm(y))
            if norm is self.norms[0] and (self.first or self.projection is not None):
                x = y  # the shortcut takes the activated input
            if conv.strides[0] > 1 and conv.kernel_size[0] == 3:
                y = ops.pad(y, ((0, 0), (1, 1), (1, 1), (0, 0)))
            y = conv(y)
        return self._carry(x) + y

    def _carry(self, x):
        if self.projection is not None:
            return self.projection(x)
        if not self.resamples:
            return x
        x = x[:, :: self.strides, :: self.strides]
        return ops.pad(x, ((0, 0),) * 3 + ((0, self.output_filters - x.shape[-1]),))

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
            "first",
            "shortcut",
            "strides_on",
        ):
            config[name] = getattr(self, name)
        config["kernel_initializer"] = keras.initializers.serialize(
            self.kernel_initializer
        )
        config["kernel_regularizer"] = keras.regularizers.serialize(
            self.kernel_regularizer
        )
        return config


def he_fan_out():
    """N(0, √(2/fan_out)), not truncated: the initial draw of He's residual nets."""
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
