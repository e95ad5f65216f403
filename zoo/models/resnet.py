"""Residual networks."""

from collections.abc import Sequence

import keras

from zoo._checks import check_int
from zoo.layers import PadCropFlip, PreActResidual
from zoo.layers.batch_norm import BatchNorm
from zoo.layers.preact_residual import he_fan_out
from zoo.models._builder import (
    builder,
    check_image_shape,
    layer_names,
    logits_layer,
)
from zoo.models.convert import apply_scan, repeat

# Mean and deviation of the CIFAR-10 training images for each channel, in raw units.
CIFAR10_MEAN = tuple(255 * m for m in (0.4914, 0.4822, 0.4465))
CIFAR10_STD = tuple(255 * s for s in (0.2470, 0.2435, 0.2616))


@builder
def preact_resnet(
    depth: int = 1001,
    num_classes: int = 10,
    input_shape: Sequence[int | None] = (32, 32, 3),
    bottleneck: bool | None = None,
    *,
    shortcut: str = "B",
    strides_on: str = "3x3",
    include_top: bool = True,
    pooling: str | None = None,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augment: bool = False,
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """Pre-activation ResNet for small images: three stages of 16, 32, 64 filters.

    3×3 convolution of 16 → three stages of n units, the second and third at half
    the resolution → BN, ReLU → global average → logits.

    Args:
        depth: weight layers on the main path: 6n + 2 for basic units (20, 32, 44,
            56, 110, 1202), 9n + 2 for bottlenecks (29, 164, 1001).
        num_classes: classes, 10 by default.
        input_shape: (height, width, channels); height and width may be None.
        bottleneck: units of 1×1, 3×3, 1×1 convolutions instead of two 3×3. None (the
            default) is True for 164 and for depths that only fit 9n + 2, else False.
        shortcut, strides_on: as in `PreActResidual`.
        include_top: False leaves the logits away: the output is the map after the
            last BN and ReLU, or its mean or maximum with `pooling`.
        pooling: "avg" or "max", for include_top=False.
        mean, std: of the raw pixels for each channel; (x − mean)/std goes in. None is
            CIFAR-10's for three channels, else 127.5 and 63.75.
        augment: in training, `PadCropFlip(4)` after the normalisation.
        scan: whether the equal units of a stage run as a loop, see `ScanLayers`:
            True, False or "auto" (the default): from 3 on.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32; or features `(batch, height/4, width/4,
        channels)`, `(batch, channels)` with `pooling`.

    Raises:
        ValueError: a depth that fits no rule, with the nearest that do; `pooling`
            together with include_top=True; an argument out of its range.

    Example:
        >>> import zoo
        >>> model = zoo.preact_resnet(20)
        >>> sum(w.numpy().size for w in model.trainable_weights)
        272282

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks",
        Table 3 and the appendix.
    """
    units, bottleneck = _units(depth, bottleneck)
    check_int("num_classes", num_classes)
    height, width, channels = check_image_shape(input_shape)
    mean, std = _statistics(mean, std, channels)
    if include_top and pooling is not None:
        raise ValueError(
            "`pooling` is for include_top=False; the classifier averages already. "
            f"Received: include_top=True, pooling={pooling!r}"
        )
    if pooling not in (None, "avg", "max"):
        raise ValueError(
            f"`pooling` must be None, 'avg' or 'max'. Received: pooling={pooling!r}"
        )

    x = inputs = keras.Input((height, width, channels), name="image")
    x = keras.layers.Rescaling(  # (x − mean)/std
        [1 / s for s in std],
        [-m / s for m, s in zip(mean, std, strict=True)],
        name="normalise",
    )(x)
    if augment:
        x = PadCropFlip(4, name="augment")(x)
    x = keras.layers.Conv2D(
        16,
        3,
        padding="same",
        use_bias=False,
        data_format="channels_last",
        kernel_initializer=he_fan_out(),
        name="stem",
    )(x)
    names = iter(layer_names("unit", 3 * units))
    for stage, filters in enumerate((16, 32, 64)):

        def unit(name, filters=filters, **kwargs):
            return PreActResidual(
                filters,
                bottleneck=bottleneck,
                shortcut=shortcut,
                strides_on=strides_on,
                name=name,
                **kwargs,
            )

        first = {"first": True} if stage == 0 else {"strides": 2}
        x = unit(next(names), **first)(x)
        rest = [next(names) for _ in range(units - 1)]
        x = repeat(unit(f"unit_stage_{stage + 1}"), rest, x)
    x = BatchNorm(name="post_norm")(x)
    x = keras.layers.ReLU(name="post_relu")(x)
    if include_top or pooling == "avg":
        x = keras.layers.GlobalAveragePooling2D("channels_last", name="gap")(x)
    elif pooling == "max":
        x = keras.layers.GlobalMaxPooling2D("channels_last", name="gmp")(x)
    if include_top:
        x = logits_layer(num_classes, he_fan_out())(x)
    model = keras.Model(inputs, x, name=name or f"preact_resnet_{depth}")
    return apply_scan(model, scan)


def _units(depth, bottleneck):
    """(units a stage, bottleneck) of a depth; ValueError with the nearest depths."""
    whole = type(depth) is int
    fits = {False: whole and depth >= 8 and depth % 6 == 2}
    fits[True] = whole and depth >= 11 and depth % 9 == 2
    if bottleneck is None:
        bottleneck = fits[True] and (depth == 164 or not fits[False])
        wanted = (False, True)
    else:
        wanted = (bool(bottleneck),)
    if not any(fits[kind] for kind in wanted):
        rules = {False: "6n + 2 (basic units)", True: "9n + 2 (bottlenecks)"}
        nearest = ""
        if whole:
            near = [f"{_nearest(depth, kind)} {_KIND[kind]}" for kind in wanted]
            nearest = f"; nearest: {', '.join(near)}"
        raise ValueError(
            f"`depth` must be {' or '.join(rules[kind] for kind in wanted)}, n ≥ 1"
            f"{nearest}. Received: depth={depth!r}"
        )
    return (depth - 2) // (9 if bottleneck else 6), bool(bottleneck)


_KIND = {False: "basic", True: "bottleneck"}


def _nearest(depth, bottleneck):
    step = 9 if bottleneck else 6
    return step * max(1, round((depth - 2) / step)) + 2


def _statistics(mean, std, channels):
    if (mean is None) != (std is None):
        raise ValueError(
            "`mean` and `std` go together: give both or none. "
            f"Received: mean={mean}, std={std}"
        )
    if mean is None:
        if channels == 3:
            return list(CIFAR10_MEAN), list(CIFAR10_STD)
        return [127.5] * channels, [63.75] * channels
    mean, std = list(mean), list(std)
    if not (len(mean) == len(std) == channels) or min(std) <= 0:
        raise ValueError(
            f"`mean` and `std` must have one value for each of the {channels} "
            f"channels, std above 0. Received: mean={mean}, std={std}"
        )
    return mean, std
