"""What a net costs: multiplications, and milliseconds on this machine."""

import time
from collections.abc import Sequence

import keras
import numpy as np

from zoo.analysis._graph import predictor
from zoo.analysis._inputs import check_images, check_model
from zoo.layers import Residual, ScanLayers
from zoo.layers.highway import BaseHighway

_CONVOLUTIONS = (keras.layers.Conv1D, keras.layers.Conv2D, keras.layers.Conv3D)


def flops(model: keras.Model) -> int:
    """Operations of one image's forward pass: two for each multiply and add of a
    matrix product or convolution. What is done element by element is left out.

    Args:
        model: functional or Sequential model whose input shape is known.

    Raises:
        ValueError: an open height or width; a layer with kernels of a kind that is
            not counted.

    Example:
        >>> import zoo
        >>> zoo.analysis.flops(zoo.highway_mlp((8, 8, 1), depth=3, units=16))
        4416
    """
    check_model(model)
    if None in model.inputs[0].shape[1:]:
        raise ValueError(
            "`model` must have a known input shape. "
            f"Received: {tuple(model.inputs[0].shape)}"
        )
    return 2 * sum(
        _products(layer, (1, *layer.input.shape[1:]))
        for layer in model.layers
        if layer.weights
    )


def _products(layer, shape):
    """Multiplications of a layer on one input `(1, …)`."""
    if isinstance(layer, ScanLayers):
        return layer.length * _products(layer.template, shape)
    if isinstance(layer, BaseHighway):
        return sum(_products(half, shape) for half in layer.halves())
    if isinstance(layer, Residual):
        single = [layer.projection, getattr(layer, "gate_conv", None)]
        paths = [layer.convs, getattr(layer, "gate_convs", ()), *([p] for p in single)]
        return sum(_path(path, shape) for path in paths if path[:1] != [None])
    if isinstance(layer, (keras.layers.Dense, *_CONVOLUTIONS)):
        places = layer.compute_output_shape(shape)
        if getattr(layer, "data_format", None) == "channels_first":
            places = (*places[:1], *places[2:], places[1])
        return int(np.prod(layer.kernel.shape) * np.prod(places[:-1]))
    if all(len(weight.shape) < 2 for weight in layer.weights):
        return 0  # BN and the like
    raise ValueError(
        "`model` must have dense layers, convolutions, highway layers and residual "
        f"units only. Received: {layer.name!r} of type {type(layer).__name__}"
    )


def _path(convolutions, shape):
    """Multiplications of a residual unit's convolutions, one after the other; a
    strided one pads by itself, so the pixels are counted by its strides."""
    total = 0
    for conv in convolutions:
        height, width = (
            -(-n // s) for n, s in zip(shape[1:3], conv.strides, strict=True)
        )
        total += int(np.prod(conv.kernel.shape)) * height * width
        shape = (1, height, width, conv.filters)
    return total


def latency(models: Sequence[keras.Model], images, repeats: int = 10) -> list[float]:
    """Milliseconds that each model takes for a batch: the median of several turns.

    Args:
        models: they take turns, so that what else the machine does meets all.
        images: the batch.
        repeats: turns, after one that is not counted.
    """
    for model in models:
        images = check_images(model, images)
    times = [[] for _ in models]
    runs = [predictor(model) for model in models]
    for turn in range(repeats + 1):
        for run, mine in zip(runs, times, strict=True):
            began = time.perf_counter()
            run(images)
            if turn:
                mine.append(1000 * (time.perf_counter() - began))
    return [float(np.median(mine)) for mine in times]
