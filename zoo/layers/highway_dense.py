"""Highway layer with two Dense sublayers."""

import keras

from zoo.layers.highway import KernelHighway


@keras.saving.register_keras_serializable("zoo")
class HighwayDense(KernelHighway):
    """Dense highway layer on the last axis of its input.

    y = x + T·(H − x), with H = activation(x·W_H + b_H) and T = σ(x·W_T + b_T). The
    sublayers are `transform` and `gate` (and `carry`): weight paths end in
    `transform/kernel`, `transform/bias`, `gate/kernel`, `gate/bias`.

    Args:
        units: int, width of the input, which the layer keeps; None (the default)
            takes it from the input. Given, it is checked.
        activation: of H; "relu" by default.
        gate_bias: float, initial bias of the transform gate, −2 by default
            (Srivastava et al. 2015). Negative carries; deeper nets want less:
            −5 at 50 layers, −7 at 900.
        carry: "coupled" (C = 1 − T), "separate" (C a gate of its own with initial
            bias −`gate_bias`) or "identity" (C = 1).
        kernel_initializer: of H; "he_normal" by default, which suits ReLU.
        gate_kernel_initializer: of the gates; "glorot_uniform" by default, which
            suits the sigmoid.
        bias_initializer: of H's bias; "zeros" by default. The gates' is `gate_bias`.
        kernel_regularizer, bias_regularizer, kernel_constraint, bias_constraint: of
            H, none by default; with the prefix `gate_` of the gates.

    Call arguments:
        x: float tensor.
        mask: passed on.

    Input shape:
        `(batch, …, units)`.

    Output shape:
        The input's.

    Raises:
        ValueError: `units` is not the input's width; an argument out of its range.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.HighwayDense(gate_bias=-3)(keras.ops.ones((2, 64))).shape
        TensorShape([2, 64])

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Highway Networks" and "Training Very
        Deep Networks", §2.
    """

    _WIDTH = "units"

    def __init__(
        self, units=None, activation="relu", gate_bias=-2.0, carry="coupled", **kwargs
    ):
        super().__init__(units, activation, gate_bias, carry, **kwargs)

    @property
    def units(self):
        return self.width

    def make_half(self, name, width, **arguments):
        return keras.layers.Dense(width, name=name, **arguments)

    def build(self, input_shape):
        self.make_halves(input_shape[-1])
        self.build_halves(input_shape)
