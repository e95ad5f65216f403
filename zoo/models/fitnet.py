"""FitNets: thin and deep maxout nets, and the wide, shallow net that teaches them."""

from collections.abc import Sequence

import keras

from zoo._checks import check_int
from zoo.layers import (
    ContrastNormalization,
    Dropout,
    MaxoutConv,
    MaxoutDense,
    ZCAWhitening,
)
from zoo.layers.initializers import fork
from zoo.models._builder import (
    Net,
    builder,
    check_image_shape,
    check_outputs,
    layer_names,
    logits_layer,
    pool_features,
)

# Filters of the 3×3 convolutions, stage by stage; a pool ends each stage.
FITNETS = {
    1: ((16, 16, 16), (32, 32, 32), (48, 48, 64)),
    2: ((16, 32, 32), (48, 64, 80), (96, 96, 128)),
    3: ((32, 48, 64, 64), (80, 80, 80, 80), (128, 128, 128)),
    4: ((32, 32, 32, 48, 48), (80,) * 6, (128,) * 6),
}
# Filters, kernel size, pool, its stride
TEACHER = ((96, 8, 4, 2), (192, 8, 4, 2), (192, 5, 2, 2))


@builder
def fitnet(
    number: int = 1,
    num_classes: int = 10,
    input_shape: Sequence[int | None] = (32, 32, 3),
    *,
    whiten: bool = False,
    include_top: bool = True,
    pooling: str | None = None,
    stage_outputs: bool = False,
    kernel_initializer=None,
    name: str | None = None,
) -> keras.Model:
    """One of the four FitNets: three stages of 3×3 maxout convolutions.

    Contrast normalisation (→ ZCA whitening) → convolutions of two pieces, 2×2
    max-pool → the same → convolutions, 8×8 max-pool → dense maxout of 500 units and
    5 pieces → logits. The last pool is global: 8×8 for images of 32×32.

    | number | layers | filters | parameters | printed |
    |---|---|---|---|---|
    | 1 | 11 | 16, 16, 16 / 32, 32, 32 / 48, 48, 64 | 348,694 | ~250K |
    | 2 | 11 | 16, 32, 32 / 48, 64, 80 / 96, 96, 128 | 1,057,622 | ~862K |
    | 3 | 13 | 32, 48, 64, 64 / 4 of 80 / 3 of 128 | 1,699,638 | ~1.6M |
    | 4 | 19 | 32, 32, 32, 48, 48 / 6 of 80 / 6 of 128 | 2,742,102 | ~2.5M |

    The layers are the paper's (those of FitNet 4 are in the authors' file too); with
    two pieces they have more parameters than the paper prints.

    From weights this small a deep net does not start by itself: train it with hints
    (`zoo.training.HintTrainer`), then with its teacher's answers (`Distiller`).

    Args:
        number: 1 to 4.
        num_classes: classes, 10 by default.
        input_shape: (height, width, channels), 4×4 pixels at least; height and width
            may be None without `whiten`.
        whiten: a `ZCAWhitening` after the contrast normalisation, as in the paper.
            False by default: it holds a matrix of 37 MB for 32×32×3, and is the
            identity until `zoo.training.adapt` has measured it. On data that do not
            fit into memory: `model.get_layer("whiten").adapt(data.map(lambda x, y:
            model.get_layer("contrast")(x)))`.
        include_top, pooling, stage_outputs: as in `preact_resnet`; the maps of the
            stages are those before their pools.
        kernel_initializer: of all kernels; None is U(±.005), the paper's.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32; or features `(batch, height/4, width/4,
        channels)`, `(batch, channels)` with `pooling`.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.fitnet(1).count_params()
        348694

    Reference:
        Romero, Ballas, Kahou, Chassang, Gatta, Bengio 2015, "FitNets: Hints for Thin
        Deep Nets", arXiv 1412.6550; github.com/adri-romsor/FitNets.
    """
    if type(number) is not int or number not in FITNETS:
        raise ValueError(f"`number` must be 1, 2, 3 or 4. Received: number={number!r}")
    check_outputs(include_top, pooling, stage_outputs)
    stages = FITNETS[number]
    kernels = _kernels(kernel_initializer)
    names = iter(layer_names("conv", sum(map(len, stages))))
    inputs, x = _normalised(num_classes, input_shape, 4, whiten)
    maps = {}
    for stage, widths in enumerate(stages, 1):
        for filters in widths:
            x = _convolution(filters, 3, kernels, next(names))(x)
        maps[f"stage_{stage}"] = x
        if stage < len(stages):
            x = keras.layers.MaxPooling2D(
                2, data_format="channels_last", name=f"pool_{stage}"
            )(x)
    if stage_outputs:
        x = maps
    elif not include_top:
        x = pool_features(pooling, x)
    else:
        x = keras.layers.GlobalMaxPooling2D("channels_last", name="pool_3")(x)
        x = MaxoutDense(500, kernel_initializer=fork(kernels, "dense"), name="dense")(x)
        x = logits_layer(num_classes, kernels)(x)
    return Net(inputs, x, name=name or f"fitnet_{number}")


@builder
def fitnet_teacher(
    width: float = 1.0,
    num_classes: int = 10,
    input_shape: Sequence[int] = (32, 32, 3),
    *,
    dropout: bool = True,
    whiten: bool = False,
    include_top: bool = True,
    pooling: str | None = None,
    stage_outputs: bool = False,
    kernel_initializer=None,
    name: str | None = None,
) -> keras.Model:
    """The teacher of the FitNets: the maxout net for CIFAR-10, wide and shallow.

    Contrast normalisation (→ ZCA whitening) → maxout convolutions of 96, 192 and 192
    filters and two pieces, each with a max-pool → dense maxout of 500 units and 5
    pieces → logits: 8,567,830 parameters, printed ~9M.

    The FitNets paper gives the widths. Assumed here are kernels of 8, 8, 5 and pools
    4, 4, 2 of stride 2, from the published file of the maxout paper's net. That file
    pads by 4, 3 and 3; "same" convolutions and pools without padding are chosen here
    because they give the printed count.

    Args:
        width: factor on the widths, those of the convolutions and the 500 units; .5
            is a teacher of 2,153,296 parameters for a small machine.
        num_classes: classes, 10 by default.
        input_shape: (height, width, channels), 14×14 pixels at least.
        dropout: in training, of .2 before the first convolution and .5 before all
            other layers, as in the maxout paper's file. True by default; False for a
            short training.
        whiten, include_top, pooling, stage_outputs, kernel_initializer, name: as in
            `fitnet`; the map without logits is that after the last pool.

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32; or features as in `fitnet`.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.fitnet_teacher(width=0.5).get_layer("pool_2").output.shape
        (None, 6, 6, 96)

    Reference:
        Goodfellow, Warde-Farley, Mirza, Courville, Bengio 2013, "Maxout Networks",
        §5.2; Romero et al. 2015, "FitNets: Hints for Thin Deep Nets".
    """
    if not width > 0:
        raise ValueError(f"`width` must be above 0. Received: width={width}")

    def scaled(count):
        return max(1, round(width * count))

    def drop(place, rate, x):
        name = f"dropout_{place}"
        return Dropout(rate, name=name)(x) if dropout else x

    check_outputs(include_top, pooling, stage_outputs)
    kernels = _kernels(kernel_initializer)
    inputs, x = _normalised(num_classes, input_shape, 14, whiten)
    if include_top and None in x.shape[1:]:
        raise ValueError(
            "`input_shape` must be known for the teacher's dense layer. "
            f"Received: input_shape={tuple(input_shape)}"
        )
    names = layer_names("conv", len(TEACHER))
    maps = {}
    for i, (filters, size, pool, strides) in enumerate(TEACHER, 1):
        x = drop(i, 0.2 if i == 1 else 0.5, x)
        x = maps[f"stage_{i}"] = _convolution(
            scaled(filters), size, kernels, names[i - 1]
        )(x)
        x = keras.layers.MaxPooling2D(
            pool, strides, data_format="channels_last", name=f"pool_{i}"
        )(x)  # 32 → 15 → 6 → 3
    if stage_outputs:
        x = maps
    elif not include_top:
        x = pool_features(pooling, x)
    else:
        x = keras.layers.Flatten("channels_last", name="flatten")(x)
        x = drop("dense", 0.5, x)
        x = MaxoutDense(
            scaled(500), kernel_initializer=fork(kernels, "dense"), name="dense"
        )(x)
        x = drop("logits", 0.5, x)
        x = logits_layer(num_classes, kernels)(x)
    return Net(inputs, x, name=name or "fitnet_teacher")


def _kernels(initializer):
    return keras.initializers.get(
        initializer or keras.initializers.RandomUniform(-0.005, 0.005)
    )


def _normalised(num_classes, input_shape, minimum, whiten):
    """(input, normalised images) of a net whose shape is checked."""
    check_int("num_classes", num_classes)
    shape = check_image_shape(input_shape, minimum)
    x = inputs = keras.Input(shape, name="image")
    x = ContrastNormalization(name="contrast")(x)
    if whiten:
        x = ZCAWhitening(name="whiten")(x)
    return inputs, x


def _convolution(filters, size, kernels, name):
    return MaxoutConv(
        filters,
        size,
        padding="same",
        kernel_initializer=fork(kernels, name),
        name=name,
    )
