"""Highway layer with two convolutions."""

import keras

from zoo.layers.highway import KernelHighway

_CONVOLUTIONS = {3: keras.layers.Conv1D, 4: keras.layers.Conv2D, 5: keras.layers.Conv3D}


@keras.saving.register_keras_serializable("zoo")
class HighwayConv(KernelHighway):
    """Convolutional highway layer; 1D, 2D or 3D by the rank of its input.

    y = x + T·(H − x), with H = activation(W_H ∗ x + b_H) and T = σ(W_T ∗ x + b_T).
    The resolution stays: stride 1 and padding "same" always. Sublayers and weight
    paths as in `HighwayDense`.

    Args:
        filters: int, channels of the input, which the layer keeps; None (the
            default) takes them from the input. Given, it is checked.
        kernel_size: int or tuple, of H; 3 by default, as in the papers' nets.
        gate_kernel_size: int or tuple, of the gates; None (the default) is
            `kernel_size`.
        activation: of H; "relu" by default.
        gate_bias: float, initial bias of the transform gate, −2 by default
            (Srivastava et al. 2015, CIFAR nets; −1 in the MNIST nets). Negative
            carries.
        carry: "coupled" (C = 1 − T), "separate" (C a gate of its own with initial
            bias −`gate_bias`) or "identity" (C = 1).
        dilation_rate: int or tuple, of all the convolutions; 1 by default.
        data_format: "channels_last" or "channels_first"; None is Keras' setting.
        kernel_initializer, …: as in `HighwayDense`.

    Call arguments:
        x: float tensor.
        mask: passed on.

    Input shape:
        `(batch, height, width, channels)`; one axis less or more for 1D and 3D;
        channels second for "channels_first".

    Output shape:
        The input's.

    Raises:
        ValueError: `filters` is not the input's number of channels; the input's
            rank is not 3, 4 or 5; strides or padding are given.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.HighwayConv(16, 3)(keras.ops.ones((2, 28, 28, 16))).shape
        TensorShape([2, 28, 28, 16])

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §2.1, §3.
    """

    _WIDTH = "filters"

    def __init__(
        self,
        filters=None,
        kernel_size=3,
        gate_kernel_size=None,
        activation="relu",
        gate_bias=-2.0,
        carry="coupled",
        dilation_rate=1,
        data_format=None,
        **kwargs,
    ):
        for name in ("strides", "padding"):
            if name in kwargs:
                raise ValueError(
                    f"`{name}` is not an argument of HighwayConv, which keeps the "
                    "resolution of its input (stride 1, 'same'); change it with a "
                    f"plain convolution or a pool before it. Received: "
                    f"{name}={kwargs[name]!r}"
                )
        super().__init__(filters, activation, gate_bias, carry, **kwargs)
        self.kernel_size = kernel_size
        self.gate_kernel_size = gate_kernel_size
        self.dilation_rate = dilation_rate
        self.data_format = data_format or keras.config.image_data_format()
        if self.data_format not in ("channels_last", "channels_first"):
            raise ValueError(
                "`data_format` must be 'channels_last' or 'channels_first'. "
                f"Received: data_format={data_format!r}"
            )

    @property
    def filters(self):
        return self.width

    def make_half(self, name, width, **arguments):
        size = self.kernel_size if name == "transform" else self.gate_kernel_size
        return self._convolution(
            width,
            size or self.kernel_size,
            padding="same",
            dilation_rate=self.dilation_rate,
            data_format=self.data_format,
            name=name,
            **arguments,
        )

    def build(self, input_shape):
        if len(input_shape) not in _CONVOLUTIONS:
            raise ValueError(
                "HighwayConv takes inputs of rank 3, 4 or 5: (batch, …, channels). "
                f"Received: input_shape={tuple(input_shape)}"
            )
        self._convolution = _CONVOLUTIONS[len(input_shape)]
        self.make_halves(input_shape[-1 if self.data_format == "channels_last" else 1])
        self.build_halves(input_shape)

    def get_config(self):
        config = super().get_config()
        for name in ("kernel_size", "gate_kernel_size", "dilation_rate", "data_format"):
            config[name] = getattr(self, name)
        return config
