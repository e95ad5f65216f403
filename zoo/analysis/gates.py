"""Which gates open, for which layer, unit, image and class."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis._inputs import check_images, check_labels
from zoo.layers import ScanLayers
from zoo.layers.highway import BaseHighway


class Trace(NamedTuple):
    """Gates and states of one batch; lists of arrays where shapes differ by layer.

    Attributes:
        gates: `(layers, batch, …)`, T of each layer.
        outputs: `(layers + 1, batch, …)`, the input of the first layer and the
            output of each.
        names: the layers' names.
    """

    gates: np.ndarray | list[np.ndarray]
    outputs: np.ndarray | list[np.ndarray]
    names: list[str]


def gated_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model's highway layers, and its loops over such, in order of depth.

    Raises:
        ValueError: the model has none.
    """
    layers = [layer for layer in model.layers if is_gated(layer)]
    if not layers:
        raise ValueError(
            "`model` must have highway layers; gradient_norms works on any net. "
            f"Received: {model.name!r} without one"
        )
    return layers


def is_gated(layer) -> bool:
    """Whether it is a highway layer, or a `ScanLayers` of highway layers."""
    layer = layer.template if isinstance(layer, ScanLayers) else layer
    return isinstance(layer, BaseHighway)


def names_of(layer) -> list[str]:
    """Names of the layers that a layer stands for: one, or a loop's copies."""
    return layer.copy_names if isinstance(layer, ScanLayers) else [layer.name]


def stages(model: keras.Model) -> list[list[keras.layers.Layer]]:
    """The highway layers in runs of equal shape."""
    runs = []
    for layer in gated_layers(model):
        if runs and runs[-1][-1].output.shape == layer.output.shape:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def look_inside(layer, x, mask=None):
    """(T, states) of a highway layer or loop on its input `x`.

    T is `(copies, batch, …)`, float32; the states, `(copies, batch, …)`, are the
    output of each copy.
    """

    def copy(highway, x, _):
        transformed, gate, carry = highway.parts(x, mask)
        y = highway.mix(x, transformed, gate, carry)
        return y, (ops.cast(gate, "float32"), y)

    if isinstance(layer, ScanLayers):
        dtypes = ("float32", layer.state_dtype)
        return layer.map_copies(copy, x, dtypes=dtypes)[1]
    _, values = copy(layer, ops.cast(x, layer.variable_dtype), ())
    return [value[None] for value in values]


def with_gates_times(factors, layer, x, mask=None):
    """Output of a highway layer or loop whose gates are multiplied by `factors`.

    `factors` is `(copies, groups)`: the batch consists of as many groups of equal
    size, one after the other, each with a factor of its own; 0 closes a gate.
    """
    groups = factors.shape[1]

    def copy(highway, x, factor):
        transformed, gate, carry = highway.parts(x, mask)
        rest = gate.shape[1:]
        factor = ops.reshape(factor[0], (groups, 1, *(1 for _ in rest)))
        gate = ops.reshape(gate, (groups, -1, *rest)) * ops.cast(factor, gate.dtype)
        gate = ops.reshape(gate, (-1, *rest))
        return highway.mix(x, transformed, gate, carry), ()

    if isinstance(layer, ScanLayers):
        return layer.map_copies(copy, x, (factors,))[0]
    return copy(layer, ops.cast(x, layer.variable_dtype), (factors[0],))[0]


class Probe(keras.layers.Layer):
    """Gates and outputs of a highway layer or loop of another model, batch first."""

    def __init__(self, layer, reduce=False):
        super().__init__(name=f"{layer.name}_probe", autocast=False)
        self.inner, self.reduce = layer, reduce
        self.supports_masking = True

    def compute_mask(self, x, mask=None):
        return None

    def call(self, x, mask=None):
        gates, states = look_inside(self.inner, x, mask)
        if self.reduce:  # the mean over pixels, no states
            axes = tuple(range(2, len(gates.shape) - 1))
            gates = ops.mean(gates, axis=axes) if axes else gates
            return ops.moveaxis(gates, 0, 1)
        return ops.moveaxis(gates, 0, 1), ops.moveaxis(states, 0, 1)


def trace(model: keras.Model, images, batch_size: int = 128) -> Trace:
    """Gates and block outputs of each highway layer for a batch of images.

    Args:
        model: functional or Sequential model with highway layers; inference mode.
        images: raw images, as the model takes them.
        batch_size: images computed at a time; the result does not depend on it.

    Returns:
        `Trace(gates, outputs, names)`.

    Raises:
        ValueError: no highway layer; images that do not fit the model.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16)
        >>> zoo.analysis.trace(model, np.zeros((3, 8, 8, 1))).gates.shape
        (5, 3, 16)
    """
    images = check_images(model, images)
    layers = gated_layers(model)
    outputs = [layers[0].input]
    for layer in layers:
        outputs.extend(Probe(layer)(layer.input))
    first, *rest = _predict(keras.Model(model.inputs[0], outputs), images, batch_size)
    gates = [gate for group in rest[::2] for gate in group.swapaxes(0, 1)]
    states = [state for group in rest[1::2] for state in group.swapaxes(0, 1)]
    names = [name for layer in layers for name in names_of(layer)]
    return Trace(_stack(gates), _stack([first, *states]), names)


def gate_biases(model: keras.Model) -> np.ndarray | list[np.ndarray]:
    """Biases of the transform gates as they are now, `(layers, units)`.

    Raises:
        ValueError: no highway layer, or a gate without a bias.
    """
    biases = []
    for layer in gated_layers(model):
        looped = isinstance(layer, ScanLayers)
        gate = layer.template.gate if looped else layer.gate
        bias = getattr(gate, "bias", None)
        if bias is None:
            raise ValueError(
                "`model` must have gates with a bias. "
                f"Received: {layer.name!r} with gate {gate.name!r}"
            )
        biases.extend(layer.stack_of(bias).numpy() if looped else [bias.numpy()])
    return _stack(biases)


def mean_gates(
    model: keras.Model, images, batch_size: int = 128
) -> np.ndarray | list[np.ndarray]:
    """Mean of T over images (and pixels, for convolutions), `(layers, units)`.

    Args and errors as for `trace`. Sums are in float64; the memory needed does not
    grow with the number of images.
    """
    classes = np.zeros(len(check_images(model, images)), int)
    by_class = _class_means(model, images, classes, 1, batch_size)
    return _stack([means[0] for means in by_class])


def gates_by_class(
    model: keras.Model, images, labels, batch_size: int = 128
) -> np.ndarray | list[np.ndarray]:
    """Mean of T over the images of each class, `(classes, layers, units)`.

    Args:
        labels: class of each image. The mean of a class without images is NaN.
        model, images, batch_size: as for `trace`.

    Returns:
        Array; a list over layers of `(classes, units)` where the widths differ.

    Raises:
        ValueError: as for `trace`; labels that are not one class an image.
    """
    images = check_images(model, images)
    labels = check_labels(model, images, labels)
    num_classes = model.outputs[0].shape[-1]
    means = _stack(_class_means(model, images, labels, num_classes, batch_size))
    return means.swapaxes(0, 1) if isinstance(means, np.ndarray) else means


def _class_means(model, images, labels, num_classes, batch_size):
    """For each layer the mean gate of each class, (classes, units) in float64."""
    gates = [Probe(layer, reduce=True)(layer.input) for layer in gated_layers(model)]
    probe = keras.Model(model.inputs[0], gates)
    members = np.eye(num_classes)[labels]  # (images, classes)
    sums = []
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        arrays = [
            gate.astype(np.float64)
            for group in _predict(probe, images[part], batch_size)
            for gate in group.swapaxes(0, 1)  # (batch, units)
        ]
        sums = sums or [0.0] * len(arrays)
        sums = [s + members[part].T @ a for s, a in zip(sums, arrays, strict=True)]
    counts = members.sum(0)[:, None]
    with np.errstate(invalid="ignore"):
        return [np.where(counts > 0, total, np.nan) / counts for total in sums]


def _predict(model, images, batch_size):
    arrays = model.predict(images, batch_size=batch_size, verbose=0)
    return arrays if isinstance(arrays, list) else [arrays]


def _stack(arrays):
    """One array over layers where the shapes allow it, else the list."""
    same = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if same else list(arrays)
