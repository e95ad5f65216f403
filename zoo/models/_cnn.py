"""The convolutional stack that highway_cnn and plain_cnn share."""

import itertools
import math

import keras

from zoo._checks import check_int, known
from zoo.layers import ContrastNormalization, Dropout, MeanImage, PadCropFlip
from zoo.layers.initializers import fork
from zoo.models._builder import (
    Net,
    check_image_shape,
    check_outputs,
    layer_names,
    logits_layer,
    pool_features,
)
from zoo.models.convert import apply_scan, repeat

HEADS = ("conv_gap", "gap_dense", "dense")


def he_fan_in():
    """N(0, √(2/fan_in)), not truncated: the draw of the authors' own CNN files."""
    return keras.initializers.VarianceScaling(2.0, "fan_in", "untruncated_normal")


def conv_stack(
    make_layer,
    layer_prefix,
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
    outputs,
    preparation,
    kernel_initializer,
    stem_initializer,
    head_initializer,
    scan,
    name,
):
    """dropout → plain convolution → layers → pool, stage by stage, then the head.

    `make_layer(stage, name, filters, size, kernels)` returns one layer; a plain
    convolution comes before a stage only where the width changes.
    """
    include_top, pooling, stage_outputs = outputs
    check_outputs(include_top, pooling, stage_outputs)
    check_int("num_classes", num_classes)
    stages = _check_stages(stages)
    sizes = _check_sizes(kernel_size)
    known("head", head, HEADS)
    check_int("head_units", head_units)
    known("stem_padding", stem_padding, ("same", "valid"))
    check_int("stem_kernel", stem_kernel)
    pools = _check_pools(pool, len(stages))
    dropouts = _check_dropouts(dropout, len(stages) + 1)
    minimum = stem_kernel if stem_padding == "valid" else 1
    input_shape = check_image_shape(input_shape, minimum)
    if include_top and head == "dense" and None in input_shape:
        raise ValueError(
            "`input_shape` must be known for head='dense'; head='conv_gap' takes any "
            f"size. Received: input_shape={input_shape}"
        )
    kernels = keras.initializers.get(kernel_initializer or he_fan_in())

    def convolution(name, filters, size, padding="same", initializer=kernels):
        return keras.layers.Conv2D(
            filters,
            size,
            padding=padding,
            activation="relu",
            data_format="channels_last",
            kernel_initializer=fork(initializer, name),
            name=name,
        )

    def drop(name, rate, x):
        return Dropout(rate, name=name)(x) if rate else x

    x = inputs = keras.Input(input_shape, name="image")
    x = _prepare(x, *preparation)
    names = iter(layer_names(layer_prefix, sum(count for _, count in stages)))
    width, maps = None, {}
    for stage, (filters, count) in enumerate(stages, 1):
        x = drop(f"dropout_{stage}", dropouts[stage - 1], x)
        if stage == 1:
            stem = keras.initializers.get(stem_initializer or kernels)
            x = convolution("stem", filters, stem_kernel, stem_padding, stem)(x)
        elif filters != width:
            x = convolution(f"widen_{stage}", filters, 3)(x)
        width = filters
        names_here = [next(names) for _ in range(count)]
        if len(sizes) == 1:
            stage_name = f"{layer_prefix}_stage_{stage}"
            draw = fork(kernels, f"stage_{stage}")
            template = make_layer(stage, stage_name, filters, sizes[0], draw)
            x = repeat(template, names_here, x)
        else:  # sizes in turn
            for one, size in zip(names_here, itertools.cycle(sizes), strict=False):
                x = make_layer(stage, one, filters, size, fork(kernels, one))(x)
        maps[f"stage_{stage}"] = x
        if stage <= len(pools):
            size, strides = pools[stage - 1]
            x = keras.layers.MaxPooling2D(  # "same" rounds up, as Caffe does
                size,
                strides,
                "same",
                data_format="channels_last",
                name=f"pool_{stage}",
            )(x)
    if stage_outputs:
        x = maps
    elif not include_top:
        x = pool_features(pooling, x)
    else:
        if head == "conv_gap":  # Lin et al. 2014; [T15] §3.3
            x = convolution("head_conv", 100, 1)(x)
        if head != "dense":
            x = pool_features("avg", x)
        if head == "gap_dense":
            x = keras.layers.Dense(
                head_units,
                "relu",
                kernel_initializer=fork(kernels, "head_dense"),
                name="head_dense",
            )(x)
        x = drop("dropout_head", dropouts[-1], x)
        if head == "dense":
            x = keras.layers.Flatten("channels_last", name="flatten")(x)
        head_kernel = keras.initializers.get(head_initializer or kernels)
        x = logits_layer(num_classes, head_kernel)(x)
    model = Net(inputs, x, name=name)
    return apply_scan(model, scan)


def _prepare(x, rescale, contrast, augment, mean_image):
    """normalise → augment → subtract the mean image, each where it is asked for."""
    if contrast and rescale is not None:
        raise ValueError(
            "`contrast` takes the place of `rescale`. Received: "
            f"contrast={contrast}, rescale={rescale}"
        )
    if augment not in (False, True, "flip"):
        raise ValueError(
            "`augment` must be False, True (pad 8, crop, mirror) or 'flip' (mirror). "
            f"Received: augment={augment!r}"
        )
    rescale = 1 / 255 if rescale is None else rescale
    if contrast:
        x = ContrastNormalization(name="contrast")(x)
    elif rescale != 1:
        x = keras.layers.Rescaling(rescale, name="rescale")(x)
    if augment:
        x = PadCropFlip(0 if augment == "flip" else 8, name="augment")(x)
    if mean_image:
        x = MeanImage(name="mean_image")(x)
    return x


def depth_of(stages, head):
    """Weight layers on the main path, gates excluded: stem, stages, head."""
    widths = [filters for filters, _ in stages]
    plain = 1 + sum(a != b for a, b in zip(widths, widths[1:], strict=False))
    return plain + sum(count for _, count in stages) + (1 if head == "dense" else 2)


def _check_stages(stages):
    try:
        stages = [(filters, count) for filters, count in stages]
        for filters, count in stages:
            check_int("stages", filters)
            check_int("stages", count, 0)
        if not stages:
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            "`stages` must be pairs (filters, layers) of positive integers, such as "
            f"[(32, 4), (80, 5)]. Received: stages={stages!r}"
        ) from None
    return stages


def _check_sizes(kernel_size):
    sizes = [kernel_size] if isinstance(kernel_size, int) else list(kernel_size)
    if not sizes:
        raise ValueError(
            "`kernel_size` must be a size, or sizes that the layers take in turn. "
            f"Received: kernel_size={kernel_size!r}"
        )
    for size in sizes:
        check_int("kernel_size", size)
    return sizes


def _check_pools(pool, stages):
    """[(size, strides)] for the first stages; an int pools between stages."""
    each = [(pool, pool)] * (stages - 1) if type(pool) is int else pool
    try:
        pools = [(p, p) if type(p) is int else tuple(p) for p in each]
        for size, strides in pools:
            check_int("pool", size)
            check_int("pool", strides)
        if len(pools) not in (stages - 1, stages):
            raise ValueError
    except (TypeError, ValueError):
        raise ValueError(
            "`pool` must be a positive integer, or (size, strides) for each stage or "
            f"each but the last ({stages} stages). Received: pool={pool!r}"
        ) from None
    return pools


def _check_dropouts(dropout, places):
    rates = [dropout] * places if isinstance(dropout, (int, float)) else list(dropout)
    if len(rates) != places or not all(
        isinstance(r, (int, float)) and math.isfinite(r) and 0 <= r < 1 for r in rates
    ):
        raise ValueError(
            "`dropout` must be a rate in [0, 1), or one before each stage and one "
            f"before the logits ({places}). Received: dropout={dropout!r}"
        )
    return rates
