"""Maxout layers: dense and convolutional."""

import functools

import keras
from keras import ops

from zoo._checks import check_int


class _Maxout(keras.layers.Layer):
    """What the maxout layers share. Their equation stands in `call`.

    A subclass makes `linear`, a layer with `pieces` times the width, whose output
    holds the first piece of all units, then the second of all units, ….
    """

    def __init__(self, width, pieces, kernel_initializer, bias_initializer, **kwargs):
        super().__init__(**kwargs)
        check_int(self._WIDTH, width)
        check_int("pieces", pieces)
        self.width = width
        self.pieces = pieces
        self.kernel_initializer = keras.initializers.get(kernel_initializer)
        self.bias_initializer = keras.initializers.get(bias_initializer)

    def build(self, input_shape):
        self.linear.build(input_shape)

    def call(self, x):
        # Halves, not a reduction over an axis: a quarter of the time on a CPU.
        return functools.reduce(
            ops.maximum, ops.split(self.linear(x), self.pieces, axis=-1)
        )

    def compute_output_shape(self, input_shape):
        return (*self.linear.compute_output_shape(input_shape)[:-1], self.width)

    def get_config(self):
        config = super().get_config()
        config.update({self._WIDTH: self.width, "pieces": self.pieces})
        for key in ("kernel_initializer", "bias_initializer"):
            config[key] = keras.initializers.serialize(getattr(self, key))
        return config


@keras.saving.register_keras_serializable("zoo")
class MaxoutDense(_Maxout):
    """Dense maxout layer on the last axis of its input.

    y = max over k of (x·W_k + b_k), k = 1 … pieces. All pieces are one product, the
    sublayer `linear` of units · pieces outputs: output (k − 1)·units + i is piece k
    of unit i. Weight paths end in `linear/kernel` and `linear/bias`.

    Args:
        units: int, width of the output.
        pieces: int, linear functions that each unit takes the maximum of; 5 by
            default (Goodfellow et al. 2013, CIFAR-10 net; FitNets). 1 is a linear
            layer.
        kernel_initializer: "lecun_normal" by default, which for inputs of mean
            square 1 gives each piece the variance 1: the maximum of two such pieces
            has the mean square 1 again, so that depth neither blows up nor damps.
        bias_initializer: "zeros" by default.

    Call arguments:
        x: float tensor.

    Input shape:
        `(batch, …, features)`.

    Output shape:
        `(batch, …, units)`.

    Raises:
        ValueError: `units` or `pieces` is not a positive integer.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.MaxoutDense(500)(keras.ops.ones((2, 64))).shape
        TensorShape([2, 500])

    Reference:
        Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, "Maxout Networks".
    """

    _WIDTH = "units"

    def __init__(
        self,
        units,
        pieces=5,
        kernel_initializer="lecun_normal",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(units, pieces, kernel_initializer, bias_initializer, **kwargs)
        self.linear = keras.layers.Dense(
            units * pieces,
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="linear",
        )

    @property
    def units(self):
        return self.width


@keras.saving.register_keras_serializable("zoo")
class MaxoutConv(_Maxout):
    """Convolutional maxout layer of images, with stride 1.

    y = max over k of (W_k ∗ x + b_k), k = 1 … pieces, at each place of the map. All
    pieces are one convolution, the sublayer `linear` of filters · pieces channels:
    channel (k − 1)·filters + i is piece k of filter i. Weight paths end in
    `linear/kernel` and `linear/bias`. The published nets pool the maximum afterwards,
    with a layer of its own.

    Args:
        filters: int, channels of the output.
        kernel_size: int or (height, width).
        pieces: int, linear functions that each filter takes the maximum of; 2 by
            default (Goodfellow et al. 2013, CIFAR-10 net; FitNets). 1 is a linear
            convolution.
        padding: "valid" (the default, as in `keras.layers.Conv2D`) or "same".
        kernel_initializer: "lecun_normal" by default, which keeps the mean square
            of two pieces, see `MaxoutDense`.
        bias_initializer: "zeros" by default.

    Call arguments:
        x: float tensor.

    Input shape:
        `(batch, height, width, channels)`; height and width may be unknown.

    Output shape:
        `(batch, height, width, filters)`; "valid" takes kernel_size − 1 off height
        and width.

    Raises:
        ValueError: `filters` or `pieces` is not a positive integer; Keras refuses
            the kernel's size or the padding; the input is not of rank 4.

    Example:
        >>> import keras, zoo
        >>> x = keras.ops.ones((2, 32, 32, 3))
        >>> zoo.layers.MaxoutConv(16, 3, padding="same")(x).shape
        TensorShape([2, 32, 32, 16])

    Reference:
        Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, "Maxout Networks".
    """

    _WIDTH = "filters"

    def __init__(
        self,
        filters,
        kernel_size,
        pieces=2,
        padding="valid",
        kernel_initializer="lecun_normal",
        bias_initializer="zeros",
        **kwargs,
    ):
        super().__init__(
            filters, pieces, kernel_initializer, bias_initializer, **kwargs
        )
        self.linear = keras.layers.Conv2D(
            filters * pieces,
            kernel_size,
            padding=padding,
            data_format="channels_last",
            kernel_initializer=self.kernel_initializer,
            bias_initializer=self.bias_initializer,
            dtype=self.dtype_policy,
            name="linear",
        )
        self.kernel_size = self.linear.kernel_size
        self.padding = self.linear.padding

    @property
    def filters(self):
        return self.width

    def build(self, input_shape):
        if len(input_shape) != 4:
            raise ValueError(
                "MaxoutConv takes inputs of rank 4: (batch, height, width, channels). "
                f"Received: input_shape={tuple(input_shape)}"
            )
        super().build(input_shape)

    def get_config(self):
        config = super().get_config()
        config.update(kernel_size=self.kernel_size, padding=self.padding)
        return config
