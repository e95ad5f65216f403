"""Residual networks: the pre-activation nets, the original ones, what lies between."""

from collections.abc import Sequence
from typing import NamedTuple

import keras

from zoo._checks import check_int, known
from zoo.layers import PadCropFlip, PreActResidual, Residual
from zoo.layers.batch_norm import BatchNorm
from zoo.layers.initializers import he_fan_out
from zoo.layers.residual import GATES, ORDERS, SHORTCUTS
from zoo.models._builder import (
    Net,
    builder,
    check_image_shape,
    check_outputs,
    layer_names,
    logits_layer,
    pool_features,
)
from zoo.models.convert import apply_scan, repeat

# Mean and deviation of the training images for each channel, in raw units.
CIFAR10_MEAN = tuple(255 * m for m in (0.4914, 0.4822, 0.4465))
CIFAR10_STD = tuple(255 * s for s in (0.2470, 0.2435, 0.2616))
IMAGENET_MEAN = tuple(255 * m for m in (0.485, 0.456, 0.406))
IMAGENET_STD = tuple(255 * s for s in (0.229, 0.224, 0.225))


class Stem(NamedTuple):
    """A family of nets: inner widths of the stages, and the statistics of its data."""

    filters: tuple
    mean: tuple
    std: tuple


STEMS = {
    "cifar": Stem((16, 32, 64), CIFAR10_MEAN, CIFAR10_STD),
    "imagenet": Stem((64, 128, 256, 512), IMAGENET_MEAN, IMAGENET_STD),
}
# depth: units of each stage, bottleneck
IMAGENET_STAGES = {
    18: ((2, 2, 2, 2), False),
    34: ((3, 4, 6, 3), False),
    50: ((3, 4, 6, 3), True),
    101: ((3, 4, 23, 3), True),
    152: ((3, 8, 36, 3), True),
    200: ((3, 24, 36, 3), True),
}

# Rows of the paper's tables: arguments of `resnet`, all on ResNet-110 there.
TABLE_1 = {
    "original": {"order": "original"},
    "constant scaling 0, 1": {"shortcut": "constant_scaling", "scales": (0.0, 1.0)},
    "constant scaling .5, 1": {"shortcut": "constant_scaling", "scales": (0.5, 1.0)},
    "constant scaling .5, .5": {"shortcut": "constant_scaling", "scales": (0.5, 0.5)},
    **{
        f"exclusive gating, b {bias}": {
            "shortcut": "exclusive_gating",
            "gate_bias": float(bias),
        }
        for bias in (0, -5, -6, -7)
    },
    "shortcut-only gating, b 0": {"shortcut": "shortcut_only_gating", "gate_bias": 0.0},
    "shortcut-only gating, b -6": {
        "shortcut": "shortcut_only_gating",
        "gate_bias": -6.0,
    },
    "1x1 conv shortcut": {"shortcut": "convolution"},
    "dropout shortcut .5": {"shortcut": "dropout", "rate": 0.5},
}
TABLE_2 = {
    "original": {"order": "original"},
    "BN after addition": {"order": "bn_after_addition"},
    "ReLU before addition": {"order": "relu_before_addition"},
    "ReLU-only pre-activation": {"order": "relu_only_preactivation"},
    "full pre-activation": {"order": "full_preactivation"},
}

# Srivastava's answer to ResNet-110 (2025): 2,649,918 parameters.
RESNET_VARIANTS = {
    "highway_110": {
        "depth": 110,
        "order": "relu_before_addition",
        "shortcut": "exclusive_gating",
        "gate": "twin",
        "gate_bias": -6.0,
        "filters": (14, 28, 56),
    },
}


@builder
def preact_resnet(
    depth: int = 1001,
    num_classes: int = 10,
    input_shape: Sequence[int | None] = (32, 32, 3),
    bottleneck: bool | None = None,
    *,
    stem: str = "cifar",
    shortcut: str = "B",
    strides_on: str = "3x3",
    skip: int = 2,
    include_top: bool = True,
    pooling: str | None = None,
    stage_outputs: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augment: bool = False,
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """Pre-activation ResNet, for small images or for ImageNet.

    stem="cifar": 3×3 convolution of 16 → three stages of n units of 16, 32, 64
    filters, the second and third at half the resolution → BN, ReLU → global average
    → logits. stem="imagenet": 7×7 convolution of 64, stride 2 → BN, ReLU → 3×3
    max-pool, stride 2 → four stages of 64, 128, 256, 512; the first unit takes the
    stem's activation for its own.

    Args:
        depth: weight layers on the main path. For "cifar" 6n + 2 with basic units
            (20, 32, 44, 56, 110, 1202), 9n + 2 with bottlenecks (29, 164, 1001); for
            "imagenet" 18, 34, 50, 101, 152 or 200.
        num_classes: classes, 10 by default.
        input_shape: (height, width, channels); height and width may be None.
        bottleneck: units of 1×1, 3×3, 1×1 convolutions instead of two 3×3. None (the
            default) is True for 164 and for depths that only fit 9n + 2, else False;
            for "imagenet" from 50 on.
        stem: "cifar" (the default) or "imagenet", whatever the size of the images.
        shortcut, strides_on: as in `PreActResidual`.
        skip: 3×3 convolutions in a basic unit, 2 by default. 1 makes twice as many
            units of one convolution (Table 3, "1-layer skip").
        include_top: False leaves the logits away: the output is the map after the
            last BN and ReLU, or its mean or maximum with `pooling`.
        pooling: "avg" or "max", for include_top=False.
        stage_outputs: for include_top=False: the outputs are the maps after each
            stage, a dict {"stage_1": …}; the last one is after the last BN and ReLU.
        mean, std: of the raw pixels for each channel; (x − mean)/std goes in. None is
            that of CIFAR-10 or ImageNet for three channels, else 127.5 and 63.75.
        augment: in training, `PadCropFlip(4)` after the normalisation.
        scan: whether the equal units of a stage run as a loop, see `ScanLayers`:
            True, False or "auto" (the default): from 3 on.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of raw pixels, input `image`, that gives logits
        `(batch, num_classes)`, float32; or features `(batch, height/4, width/4,
        channels)` (/32 for "imagenet"), `(batch, channels)` with `pooling`.

    Raises:
        ValueError: a depth that fits no rule, with the nearest that do; `pooling`
            or `stage_outputs` together with include_top=True; an argument out of its
            range.

    Example:
        >>> import zoo
        >>> model = zoo.preact_resnet(20)
        >>> sum(w.numpy().size for w in model.trainable_weights)
        272282

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks",
        Tables 3 and 5 and the appendix.
    """
    known("shortcut", shortcut, ("A", "B"))

    def unit(filters, **kwargs):
        return PreActResidual(
            filters, skip=skip, shortcut=shortcut, strides_on=strides_on, **kwargs
        )

    return _resnet(
        unit,
        "full_preactivation",
        depth,
        num_classes,
        input_shape,
        bottleneck,
        stem,
        skip,
        None,
        (include_top, pooling, stage_outputs),
        (mean, std),
        augment,
        scan,
        name or f"preact_resnet_{depth}",
    )


@builder(variants=RESNET_VARIANTS)
def resnet(
    depth: int = 110,
    num_classes: int = 10,
    input_shape: Sequence[int | None] = (32, 32, 3),
    bottleneck: bool | None = None,
    *,
    stem: str = "cifar",
    order: str = "original",
    shortcut: str = "B",
    scales: Sequence[float] = (0.5, 0.5),
    gate: str = "1x1",
    gate_bias: float = -6.0,
    rate: float = 0.5,
    strides_on: str = "3x3",
    skip: int = 2,
    filters: Sequence[int] | None = None,
    include_top: bool = True,
    pooling: str | None = None,
    stage_outputs: bool = False,
    mean: Sequence[float] | None = None,
    std: Sequence[float] | None = None,
    augment: bool = False,
    scan: bool | str = "auto",
    name: str | None = None,
) -> keras.Model:
    """ResNet of the original unit, or of any row of the paper's Tables 1 and 2.

    As `preact_resnet`, with convolution-BN-ReLU for a stem, and no BN and ReLU after
    the last unit, except for the two pre-activation orders. `TABLE_1` and `TABLE_2`
    of `zoo.models.resnet` say which arguments are which row of the paper.
    `resnet("highway_110")` is Highway-110, whose shortcuts are gated by a path of
    convolutions.

    Args:
        variant: "highway_110"; other arguments override its own.
        depth, …: as in `preact_resnet`; depth 110 by default, the paper's.
        order, shortcut, scales, gate, gate_bias, rate: as in `Residual`. The gate and
            the constants act on every unit; where the shape changes, on the
            projection.
        filters: inner width of each stage; (16, 32, 64) by default, (64, 128, 256,
            512) for "imagenet".

    Returns:
        As `preact_resnet`.

    Raises:
        ValueError: as in `preact_resnet`; an order, shortcut or gate that is not one.

    Example:
        >>> import zoo
        >>> model = zoo.models.resnet("highway_110")
        >>> sum(w.numpy().size for w in model.trainable_weights)
        2649918

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks",
        Tables 1 to 3; "Deep Residual Learning for Image Recognition", 2016.
    """
    known("order", order, ORDERS)
    known("shortcut", shortcut, SHORTCUTS)
    known("gate", gate, GATES)

    def unit(filters, **kwargs):
        return Residual(
            filters,
            skip=skip,
            order=order,
            shortcut=shortcut,
            scales=scales,
            gate=gate,
            gate_bias=gate_bias,
            rate=rate,
            strides_on=strides_on,
            **kwargs,
        )

    return _resnet(
        unit,
        order,
        depth,
        num_classes,
        input_shape,
        bottleneck,
        stem,
        skip,
        filters,
        (include_top, pooling, stage_outputs),
        (mean, std),
        augment,
        scan,
        name or f"resnet_{depth}",
    )


def _resnet(
    unit,
    order,
    depth,
    num_classes,
    input_shape,
    bottleneck,
    stem,
    skip,
    filters,
    head,
    statistics,
    augment,
    scan,
    name,
):
    """stem → stages of units → head. `unit(filters, **kwargs)` makes one."""
    known("stem", stem, STEMS)
    if bottleneck not in (None, True, False):
        raise ValueError(
            "`bottleneck` must be True, False or None. "
            f"Received: bottleneck={bottleneck!r}"
        )
    stages, bottleneck = _stages(depth, bottleneck, stem, skip)
    widths = _widths(filters, stem)
    check_int("num_classes", num_classes)
    height, width, channels = check_image_shape(input_shape)
    mean, std = _statistics(*statistics, channels, stem)
    include_top, pooling, stage_outputs = head
    check_outputs(include_top, pooling, stage_outputs)
    before = ORDERS[order].before  # what a pre-activation unit begins with

    x = inputs = keras.Input((height, width, channels), name="image")
    x = keras.layers.Rescaling(  # (x − mean)/std
        [1 / s for s in std],
        [-m / s for m, s in zip(mean, std, strict=True)],
        name="normalise",
    )(x)
    if augment:
        x = PadCropFlip(4, name="augment")(x)
    x = _stem_layers(stem, before, x)
    names = iter(layer_names("unit", sum(stages)))
    maps = {}
    for stage, (count, filters) in enumerate(zip(stages, widths, strict=True), 1):
        names_here = [next(names) for _ in range(count)]
        options = {"bottleneck": bottleneck}
        special = {}  # what the first unit of the stage has of its own
        if stage > 1:
            special["strides"] = 2
        elif before:
            special["activated" if stem == "imagenet" else "first"] = True
        template = unit(filters, **options, name=f"unit_stage_{stage}")
        if special or x.shape[-1] != template.output_filters:
            first, *names_here = names_here
            x = unit(filters, **options, **special, name=first)(x)
        x = repeat(template, names_here, x)
        maps[f"stage_{stage}"] = x
    if "norm" in before:
        x = BatchNorm(name="post_norm")(x)
    if before:
        x = keras.layers.ReLU(name="post_relu")(x)
    if stage_outputs:
        x = {**maps, f"stage_{len(stages)}": x}
    else:
        x = pool_features("avg" if include_top else pooling, x)
    if include_top:
        x = logits_layer(num_classes, he_fan_out())(x)
    model = Net(inputs, x, name=name)
    return apply_scan(model, scan)


def _stem_layers(stem, before, x):
    """Convolution, and the BN and ReLU that the first unit does not bring along."""
    size, filters, strides = (3, 16, 1) if stem == "cifar" else (7, 64, 2)
    if strides == 2:  # centred, as in Torch
        x = keras.layers.ZeroPadding2D(3, "channels_last", name="stem_pad")(x)
    x = keras.layers.Conv2D(
        filters,
        size,
        strides,
        padding="same" if strides == 1 else "valid",
        use_bias=False,
        data_format="channels_last",
        kernel_initializer=he_fan_out(),
        name="stem",
    )(x)
    steps = ("norm", "relu")
    if stem == "cifar" and before:  # the first unit activates before it splits
        steps = [step for step in steps if step not in before]
    if "norm" in steps:
        x = BatchNorm(name="stem_norm")(x)
    if "relu" in steps:
        x = keras.layers.ReLU(name="stem_relu")(x)
    if stem == "imagenet":
        x = keras.layers.ZeroPadding2D(1, "channels_last", name="stem_pool_pad")(x)
        x = keras.layers.MaxPooling2D(  # zeros change nothing after a ReLU
            3, 2, data_format="channels_last", name="stem_pool"
        )(x)
    return x


def _stages(depth, bottleneck, stem, skip):
    """(units of each stage, bottleneck) of a depth."""
    if stem == "imagenet":
        if depth not in list(IMAGENET_STAGES):
            raise ValueError(
                "`depth` must be one of "
                f"{', '.join(map(str, IMAGENET_STAGES))} for stem='imagenet'. "
                f"Received: depth={depth!r}"
            )
        stages, bottlenecks = IMAGENET_STAGES[depth]
        if bottleneck not in (None, bottlenecks):
            raise ValueError(
                f"`bottleneck` must be {bottlenecks} or None for depth={depth} and "
                f"stem='imagenet'. Received: bottleneck={bottleneck!r}"
            )
    else:
        units, bottlenecks = _units(depth, bottleneck)
        stages = (units,) * 3
    if skip == 2:
        return stages, bottlenecks
    if skip != 1 or bottlenecks:
        raise ValueError(
            "`skip` must be 2, or 1 without bottlenecks. "
            f"Received: skip={skip!r}, bottleneck={bottlenecks}"
        )
    return tuple(2 * count for count in stages), bottlenecks


def _widths(filters, stem):
    default = STEMS[stem].filters
    if filters is None:
        return default
    filters = tuple(filters) if isinstance(filters, Sequence) else filters
    if type(filters) is not tuple or len(filters) != len(default):
        raise ValueError(
            f"`filters` must be {len(default)} widths, one a stage. "
            f"Received: filters={filters}"
        )
    for width in filters:
        check_int("filters", width)
    return filters


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


def _statistics(mean, std, channels, stem):
    if (mean is None) != (std is None):
        raise ValueError(
            "`mean` and `std` go together: give both or none. "
            f"Received: mean={mean}, std={std}"
        )
    if mean is None:
        if channels == 3:
            return list(STEMS[stem].mean), list(STEMS[stem].std)
        return [127.5] * channels, [63.75] * channels
    mean, std = list(mean), list(std)
    if not (len(mean) == len(std) == channels) or min(std) <= 0:
        raise ValueError(
            f"`mean` and `std` must have one value for each of the {channels} "
            f"channels, std above 0. Received: mean={mean}, std={std}"
        )
    return mean, std
