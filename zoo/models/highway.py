"""Highway networks: dense and convolutional."""

from collections.abc import Sequence

import keras

from zoo.layers import HighwayConv, HighwayDense
from zoo.layers.initializers import fork
from zoo.models._builder import builder
from zoo.models._cnn import conv_stack
from zoo.models._mlp import dense_stack


def _normal(stddev):
    return {"class_name": "RandomNormal", "config": {"stddev": stddev}}


_MNIST_10 = {
    "input_shape": (28, 28, 1),
    "stages": ((32, 2), (32, 3), (32, 3)),
    "stem_kernel": 5,
    "stem_padding": "valid",
    "pool": ((3, 2), (3, 2), (2, 2)),
    "dropout": (0.2, 0.3, 0.4, 0.5),
    "head": "dense",
    "gate_bias": -1.0,
    "rescale": 1 / 256,
    "head_initializer": _normal(0.1),
}


_CIFAR = {
    "input_shape": (32, 32, 3),
    "stem_kernel": 3,
    "pool": 2,
    "dropout": 0.2,
    "gate_bias": -2.0,
    "contrast": True,
    "augment": True,
    "mean_image": True,
    "stem_initializer": _normal(0.05),
    "head_initializer": _normal(0.05),  # None for 100 classes
}
_STAGES_19 = ((32, 4), (80, 5), (128, 5))

#: Variant → arguments of `highway_cnn`. The trained nets of "Training Very Deep
#: Networks", §3.2 (the authors' Caffe files fix what the paper leaves open).
HIGHWAY_VARIANTS = {
    "mnist_10": _MNIST_10,
    "mnist_10_w16": {**_MNIST_10, "stages": ((16, 2), (16, 3), (16, 3))},
    "cifar_19": {**_CIFAR, "stages": _STAGES_19, "head": "conv_gap"},
    "cifar_19_fc": {  # Highway B
        **_CIFAR,
        "stages": _STAGES_19,
        "head": "gap_dense",
        "head_units": 500,
    },
    # The widths of A and C were never published: these hit the printed counts.
    "cifar_11": {  # Highway A
        **_CIFAR,
        "stages": ((16, 2), (32, 2), (64, 2)),
        "head": "gap_dense",
        "head_units": 250,
    },
    "cifar_32": {  # Highway C
        **_CIFAR,
        "stages": ((32, 9), (64, 9), (96, 9)),
        "kernel_size": (1, 3),
        "head": "conv_gap",
    },
}


@builder
def highway_mlp(
    input_shape: Sequence[int] = (784,),
    num_classes: int = 10,
    depth: int = 10,
    units: int = 50,
    activation: str = "relu",
    gate_bias: float = -2.0,
    *,
    carry: str = "coupled",
    rescale: float | None = None,
    contrast: bool = False,
    kernel_initializer="he_normal",
    gate_kernel_initializer="glorot_uniform",
    bias_initializer="zeros",
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """Dense highway network: one plain layer, then depth − 1 highway layers.

    Args:
        input_shape: (height, width, channels), flattened in the model whose input
            is then `image`; or (features,), input `features`.
        num_classes: classes, 10 by default.
        depth: weight layers without the softmax layer, as the paper counts: 10 is
            the stem and 9 highway layers.
        units: width of all layers, 50 by default (the paper's).
        activation: of the stem and of each H; "relu" or "tanh" in the paper.
        gate_bias: initial bias of the transform gates, −2 by default: at depth 51
            and width 64 a layer then starts by changing its input by 10 to 27 %, and
            the gradient's norm in the first layer is .25 to .36 of the last's
            (6 seeds). The deeper, the more negative: −5 trained better at 50 layers,
            900 want −7.
        carry: as in `HighwayDense`.
        rescale: factor on the raw input; None is 1/255 for images, 1 for vectors.
        contrast: `ContrastNormalization` of the image in place of `rescale`.
        kernel_initializer: of stem, H and logits.
        gate_kernel_initializer: of the gates.
        bias_initializer: of all biases but the gates'.
        scan: whether equal layers run as a loop, see `ScanLayers`: True, False or
            "auto" (the default): from 16 dense or 3 convolutional layers on. All
            forms start from the same draw.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of raw inputs that gives logits
        `(batch, num_classes)`, float32.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.highway_mlp((8, 8, 1), depth=51, units=64).count_params()
        420810

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.1.
    """

    def layer(name, kernels, biases):
        return HighwayDense(
            units,
            activation,
            gate_bias,
            carry,
            kernel_initializer=kernels,
            gate_kernel_initializer=fork(gate_kernels, name),
            bias_initializer=biases,
            name=name,
        )

    gate_kernels = keras.initializers.get(gate_kernel_initializer)
    return dense_stack(
        layer,
        "highway",
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
        name or f"highway_mlp_{depth}",
    )


@builder(variants=HIGHWAY_VARIANTS)
def highway_cnn(
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
    gate_bias: float | Sequence[float] = -2.0,
    carry: str = "coupled",
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
    """Convolutional highway network: stages of highway layers of one width.

    Each stage: dropout → a plain convolution where the width changes → its highway
    layers → max-pool. `highway_cnn("mnist_10")` takes a row of `HIGHWAY_VARIANTS`,
    of which any argument can be overridden; the defaults are the layers of the
    19-layer CIFAR net.

    Args:
        variant: name of a row of `HIGHWAY_VARIANTS`, positional.
        input_shape: (height, width, channels); height and width may be None under
            head="conv_gap".
        num_classes: classes, 10 by default.
        stages: (filters, highway layers) of each stage.
        stem_kernel: size of the first convolution.
        stem_padding: "same", or "valid" as in the MNIST nets.
        kernel_size: of the highway layers, 3 by default; sizes such as (1, 3) are
            taken in turn, and those layers never loop.
        pool: max-pool between the stages; or (size, strides) after each stage, or
            each but the last. Pools round up.
        dropout: a rate; or one before each stage and one before the logits.
        head: "conv_gap": 1×1 convolution of 100 channels, ReLU, global average;
            "gap_dense": global average, dense layer of `head_units`, ReLU; "dense":
            flatten.
        head_units: 500 by default.
        include_top, pooling, stage_outputs: as in `preact_resnet`; the maps of the
            stages are those before their pools.
        gate_bias: initial bias of the transform gates: −2 in the CIFAR nets, −1 in
            the MNIST nets. Or one for each stage.
        carry: as in `HighwayConv`.
        rescale: factor on the raw pixels; None is 1/255.
        contrast: `ContrastNormalization` in place of `rescale`.
        augment: in training, `PadCropFlip(8)` after that; "flip" mirrors only.
        mean_image: `MeanImage` after that; `zoo.training.adapt` sets it.
        kernel_initializer: of all kernels but the logits'; None is N(0, √(2/fan_in)),
            untruncated, as in the authors' files.
        stem_initializer: of the first convolution; None is `kernel_initializer`. The
            CIFAR variants have N(0, .05), as meant; the published file ran N(0, 1).
        head_initializer: of the logits' kernel; None is `kernel_initializer`.
        scan: whether equal layers run as a loop, see `ScanLayers`: True, False or
            "auto" (the default): from 16 dense or 3 convolutional layers on. All
            forms start from the same draw.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32.

    Raises:
        ValueError: an unknown variant, with the known ones; an argument out of its
            range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.highway_cnn("mnist_10").count_params()
        151690

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.2–3.3.
    """

    one_bias = isinstance(gate_bias, (int, float))
    if not one_bias and len(gate_bias) != len(stages):
        raise ValueError(
            "`gate_bias` must be a number, or one for each of the "
            f"{len(stages)} stages. Received: gate_bias={gate_bias}"
        )

    def layer(stage, name, filters, size, kernels):
        return HighwayConv(
            filters,
            size,
            gate_bias=gate_bias if one_bias else gate_bias[stage - 1],
            carry=carry,
            kernel_initializer=fork(kernels, name),
            gate_kernel_initializer=fork(kernels, name + "_gate"),
            data_format="channels_last",
            name=name,
        )

    return conv_stack(
        layer,
        "highway",
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
        name or "highway_cnn",
    )
