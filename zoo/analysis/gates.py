"""Which gates open, for which layer, unit, image and class."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis._inputs import check_images, check_labels
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


def gated_layers(model: keras.Model) -> list[BaseHighway]:
    """The model's highway layers in order of depth.

    Raises:
        ValueError: the model has none.
    """
    layers = [layer for layer in model.layers if isinstance(layer, BaseHighway)]
    if not layers:
        raise ValueError(
            "`model` must have highway layers; gradient_norms works on any net. "
            f"Received: {model.name!r} without one"
        )
    return layers


def stages(model: keras.Model) -> list[list[BaseHighway]]:
    """The highway layers in runs of equal shape."""
    runs = []
    for layer in gated_layers(model):
        if runs and runs[-1][-1].output.shape == layer.output.shape:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


def gates_model(model: keras.Model) -> keras.Model:
    """A model with the same input and weights that gives each layer's gate T."""
    return keras.Model(model.inputs, [_gate(layer) for layer in gated_layers(model)])


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
    layers = gated_layers(model)
    images = check_images(model, images)
    states = [layers[0].input, *(layer.output for layer in layers)]
    probe = keras.Model(model.inputs, [*(_gate(layer) for layer in layers), *states])
    arrays = _predict(probe, images, batch_size)
    return Trace(
        _stack(arrays[: len(layers)]),
        _stack(arrays[len(layers) :]),
        [layer.name for layer in layers],
    )


def gate_biases(model: keras.Model) -> np.ndarray | list[np.ndarray]:
    """Biases of the transform gates as they are now, `(layers, units)`.

    Raises:
        ValueError: no highway layer, or a gate without a bias.
    """
    biases = []
    for layer in gated_layers(model):
        bias = getattr(layer.gate, "bias", None)
        if bias is None:
            raise ValueError(
                "`model` must have gates with a bias. "
                f"Received: {layer.name!r} with gate {layer.gate.name!r}"
            )
        biases.append(ops.convert_to_numpy(bias))
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


class _Gate(keras.layers.Layer):
    """T of a highway layer of another model."""

    def __init__(self, highway):
        super().__init__(name=f"{highway.name}_gate", autocast=False)
        self.highway = highway

    def call(self, x, mask=None):
        _, gate, _ = self.highway.parts(x, mask)
        return ops.cast(gate, "float32")


def _gate(layer):
    return _Gate(layer)(layer.input)


def _class_means(model, images, labels, num_classes, batch_size):
    """For each layer the mean gate of each class, (classes, units) in float64."""
    gates = []
    for layer in gated_layers(model):
        gate = _gate(layer)  # (batch, …, units)
        spatial = tuple(range(1, len(gate.shape) - 1))
        gates.append(ops.mean(gate, axis=spatial) if spatial else gate)
    probe = keras.Model(model.inputs, gates)
    members = np.eye(num_classes)[labels]  # (images, classes)
    sums = 0
    for start in range(0, len(images), batch_size):
        part = slice(start, start + batch_size)
        arrays = _predict(probe, images[part], batch_size)
        sums = [
            total + members[part].T @ array.astype(np.float64)
            for total, array in zip(sums or [0.0] * len(arrays), arrays, strict=True)
        ]
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
