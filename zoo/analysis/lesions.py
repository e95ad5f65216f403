"""Which layers a net needs: close a layer's gates and measure the loss."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis._inputs import check_images, check_labels
from zoo.analysis.gates import gated_layers, is_gated, names_of, with_gates_times


class Lesions(NamedTuple):
    """What closing the gates of one layer at a time does, arrays `(layers,)`.

    Attributes:
        loss: mean cross-entropy with that layer's gates closed.
        accuracy: share of right predictions then.
        changed: share of predictions that differ from the intact net's.
        intact_loss, intact_accuracy: of the net as it is (Fig. 4's dashed line).
        closed_loss, closed_accuracy: with the gates of all layers closed.
        names: the layers' names.
    """

    loss: np.ndarray
    accuracy: np.ndarray
    changed: np.ndarray
    intact_loss: float
    intact_accuracy: float
    closed_loss: float
    closed_accuracy: float
    names: list[str]


def lesions(model: keras.Model, images, labels, batch_size: int = 2048) -> Lesions:
    """Closes the gates of one highway layer (T = 0), for each layer in turn.

    Args:
        model: functional or Sequential model with highway layers; it is not changed.
        images: raw images.
        labels: class of each image.
        batch_size: images computed at a time. Where it is several times the number
            of images, as many lesions are computed together.

    Returns:
        `Lesions`.

    Raises:
        ValueError: no highway layer; images or labels that do not fit.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16)
        >>> result = zoo.analysis.lesions(model, np.ones((3, 8, 8, 1)), [0, 1, 2])
        >>> result.accuracy.shape
        (5,)

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §4.2.
    """
    images = check_images(model, images)
    labels = check_labels(model, images, labels)
    names = [name for layer in gated_layers(model) for name in names_of(layer)]
    layers = len(names)
    # One row for the intact net, one for each layer closed, one for all of them.
    factors = np.ones((layers + 2, layers), np.float32)
    factors[range(1, layers + 1), range(layers)] = 0
    factors[-1] = 0
    groups = min(len(factors), max(1, batch_size // len(images)))
    probe, switches = _with_switches(model, groups)
    rows, intact = [], None
    for start in range(0, len(factors), groups):
        part = factors[start : start + groups]
        padded = np.concatenate([part, np.ones((groups - len(part), layers))])
        place = 0
        for switch in switches:
            copies = switch.factors.shape[0]
            switch.factors.assign(padded[:, place : place + copies].T)
            place += copies
        for logits in _logits(probe, images, groups, batch_size)[: len(part)]:
            loss, predicted = _cross_entropy(logits, labels), logits.argmax(1)
            intact = predicted if intact is None else intact
            rows.append((loss, np.mean(predicted == labels), predicted != intact))
    loss, accuracy, changed = zip(*rows, strict=True)
    return Lesions(
        np.array(loss[1:-1]),
        np.array(accuracy[1:-1]),
        np.array([np.mean(row) for row in changed[1:-1]]),
        float(loss[0]),
        float(accuracy[0]),
        float(loss[-1]),
        float(accuracy[-1]),
        names,
    )


def _logits(probe, images, groups, batch_size):
    """(groups, images, classes) of a probe that computes `groups` lesions a batch."""
    size = max(1, batch_size // groups)
    parts = []
    for start in range(0, len(images), size):
        part = images[start : start + size]
        tiled = np.concatenate([part] * groups)
        logits = ops.convert_to_numpy(probe.predict_on_batch(tiled))
        parts.append(logits.reshape(groups, len(part), -1))
    return np.concatenate(parts, axis=1).astype(np.float64)


def _cross_entropy(logits, labels):
    top = logits.max(1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(1))
    return np.mean(log_sum - logits[np.arange(len(labels)), labels])


class _Switch(keras.layers.Layer):
    """A highway layer or loop of another model with factors on its gates."""

    def __init__(self, layer, groups):
        super().__init__(name=layer.name, autocast=False)
        self.inner = layer
        self.factors = self.add_weight(
            shape=(len(names_of(layer)), groups),
            initializer="ones",
            trainable=False,
            name="factors",
        )

    def call(self, x, mask=None):
        factors = ops.convert_to_tensor(self.factors)
        return with_gates_times(factors, self.inner, x, mask)

    def compute_output_spec(self, x, mask=None):
        return self.inner.compute_output_spec(x, mask)


def _with_switches(model, groups):
    """A model on the same weights, and the switch of each highway layer."""
    switches = []

    def call(layer, *args, **kwargs):
        if is_gated(layer):
            layer = _Switch(layer, groups)
            switches.append(layer)
            kwargs.pop("training", None)
        return layer(*args, **kwargs)

    functional = keras.Model(model.inputs[0], model.outputs[0])
    probe = keras.models.clone_model(
        functional, clone_function=lambda layer: layer, call_function=call
    )
    return probe, switches
