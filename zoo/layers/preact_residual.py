"""The pre-activation residual unit."""

import keras

from zoo._checks import known
from zoo.layers.residual import Residual


@keras.saving.register_keras_serializable("zoo")
class PreActResidual(Residual):
    """Pre-activation residual unit: y = x + F(x), all activations inside F.

    With a = ReLU(BN(x)), F is the loop (BN, ReLU, convolution) over two 3×3 kernels,
    or over 1×1, 3×3, 1×1 for a bottleneck. Where the shape stays, the shortcut
    carries the raw x; where it changes, a 1×1 projection takes the *activated* a,
    without a BN of its own. The first unit of a net activates before the split:
    y = a + F(x). It is `Residual` with order="full_preactivation".

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
        **kwargs: `skip`, `activated`, `kernel_initializer`, `kernel_regularizer` of
            `Residual`.

    Call arguments:
        x: float tensor.
        training: bool, whether BN uses the statistics of the batch.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        `(batch, ⌈height/strides⌉, ⌈width/strides⌉, channels)`.

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

    _FIXED = ("order", "scales", "gate", "gate_bias", "rate", "seed")

    def __init__(
        self,
        filters,
        strides=1,
        bottleneck=False,
        first=False,
        shortcut="B",
        strides_on="3x3",
        **kwargs,
    ):
        known("shortcut", shortcut, ("A", "B"))
        for name in {*self._FIXED} & {*kwargs}:
            raise ValueError(
                f"`{name}` is not an argument of PreActResidual; `Residual` has it. "
                f"Received: {name}={kwargs[name]!r}"
            )
        super().__init__(
            filters,
            strides,
            bottleneck,
            order="full_preactivation",
            first=first,
            shortcut=shortcut,
            strides_on=strides_on,
            **kwargs,
        )

    def get_config(self):
        config = super().get_config()
        return {key: config[key] for key in config if key not in self._FIXED}
