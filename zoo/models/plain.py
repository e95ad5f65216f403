"""Plain networks: the stacks of the highway networks without gates."""

from collections.abc import Sequence

import keras

from zoo.layers.initializers import fork
from zoo.models._builder import builder
from zoo.models._cnn import conv_stack
from zoo.models._mlp import dense_stack
from zoo.models.highway import HIGHWAY_VARIANTS

#: Variant → arguments of `plain_cnn`: the rows of `HIGHWAY_VARIANTS` without gates.
PLAIN_VARIANTS = {
    name: {k: v for k, v in row.items() if k != "gate_bias"}
    for name, row in HIGHWAY_VARIANTS.items()
}


@builder
def plain_mlp(
    input_shape: Sequence[int] = (784,),
    num_classes: int = 10,
    depth: int = 10,
    units: int = 71,
    activation: str = "relu",
    *,
    rescale: float | None = None,
    contrast: bool = False,
    kernel_initializer="he_normal",
    bias_initializer="zeros",
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """Dense network of `depth` plain layers and a softmax layer.

    Args:
        input_shape, num_classes, depth, activation, rescale, contrast,
            kernel_initializer, bias_initializer, scan, name: as in `highway_mlp`.
        units: width, 71 by default: about as many parameters a layer as a highway
            layer of 50.

    Returns:
        An uncompiled `keras.Model` of raw inputs that gives logits
        `(batch, num_classes)`, float32.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.plain_mlp(depth=10).count_params()
        102463

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.1.
    """

    def layer(name, kernels, biases):
        return keras.layers.Dense(
            units,
            activation,
            kernel_initializer=kernels,
            bias_initializer=biases,
            name=name,
        )

    return dense_stack(
        layer,
        "plain",
        input_shape,
        num_classes,
        depth,
        units,
        activation,
        kernel_initializer,
        bias_initializer,
        rescale,
        contrast,
        scan,
        name or f"plain_mlp_{depth}",
    )


@builder(variants=PLAIN_VARIANTS)
def plain_cnn(
    *,
    input_shape: Sequence[int | None] = (32, 32, 3),
    num_classes: int = 10,
    stages: Sequence[tuple[int, int]] = ((32, 4), (80, 5), (128, 5)),
    stem_kernel: int = 3,
    stem_padding: str = "same",
    kernel_size: int | Sequence[int] = 3,
    pool: int | Sequence = 2,
    dropout: float | Sequence[float] = 0.2,
    head: str = "conv_gap",
    head_units: int = 500,
    include_top: bool = True,
    pooling: str | None = None,
    stage_outputs: bool = False,
    rescale: float | None = None,
    contrast: bool = False,
    augment: bool | str = False,
    mean_image: bool = False,
    kernel_initializer=None,
    stem_initializer=None,
    head_initializer=None,
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """Convolutional network of the stages of `highway_cnn` without gates.

    Args:
        variant: name of a row of `PLAIN_VARIANTS`, positional.
        input_shape, …: as in `highway_cnn`; a stage is (filters, convolutions).

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32.

    Raises:
        ValueError: an unknown variant, with the known ones; an argument out of its
            range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.plain_cnn("mnist_10").count_params()
        77706
    """

    def layer(stage, name, filters, size, kernels):
        return keras.layers.Conv2D(
            filters,
            size,
            padding="same",
            activation="relu",
            data_format="channels_last",
            kernel_initializer=fork(kernels, name),
            name=name,
        )

    return conv_stack(
        layer,
        "plain",
        input_shape,
        num_classes,
        stages,
        stem_kernel,
        stem_padding,
        kernel_size,
        pool,
        dropout,
        head,
        head_units,
        (include_top, pooling, stage_outputs),
        (rescale, contrast, augment, mean_image),
        kernel_initializer,
        stem_initializer,
        head_initializer,
        scan,
        name or "plain_cnn",
    )
