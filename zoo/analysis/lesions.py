"""Which layers a net needs: close a layer's gates and measure the loss."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis._inputs import check_images, check_labels
from zoo.analysis.gates import gated_layers, is_gated, look_inside, names_of


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


def lesions(model: keras.Model, images, labels, batch_size: int = 128) -> Lesions:
    """Closes the gates of one highway layer (T = 0), for each layer in turn.

    Args:
        model: functional or Sequential model with highway layers; it is not changed.
        images: raw images.
        labels: class of each image.
        batch_size: images computed at a time.

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
    probe, switches = _with_switches(model)

    def measure():
        logits = probe.predict(images, batch_size=batch_size, verbose=0)
        logits = logits.astype(np.float64)
        top = logits.max(1, keepdims=True)
        log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(1))
        loss = np.mean(log_sum - logits[np.arange(len(labels)), labels])
        predicted = logits.argmax(1)
        return loss, np.mean(predicted == labels), predicted

    intact_loss, intact_accuracy, intact = measure()
    rows = []
    for switch in switches:
        gates = np.ones(switch.open.shape)
        for i in range(len(gates)):
            switch.open.assign(np.where(np.arange(len(gates)) == i, 0.0, gates))
            loss, accuracy, predicted = measure()
            rows.append((loss, accuracy, np.mean(predicted != intact)))
        switch.open.assign(gates)
    for switch in switches:
        switch.open.assign(np.zeros(switch.open.shape))
    closed_loss, closed_accuracy, _ = measure()
    return Lesions(
        *np.array(rows).T,
        float(intact_loss),
        float(intact_accuracy),
        float(closed_loss),
        float(closed_accuracy),
        [name for layer in gated_layers(model) for name in names_of(layer)],
    )


class _Switch(keras.layers.Layer):
    """A highway layer or loop of another model with a factor on each copy's gates."""

    def __init__(self, layer):
        super().__init__(name=layer.name, autocast=False)
        self.inner = layer
        self.open = self.add_weight(
            shape=(len(names_of(layer)),),
            initializer="ones",
            trainable=False,
            name="open",
        )

    def call(self, x, mask=None):
        return look_inside(self.inner, x, mask, ops.convert_to_tensor(self.open))[0]

    def compute_output_spec(self, x, mask=None):
        return self.inner.compute_output_spec(x, mask)


def _with_switches(model):
    """A model on the same weights, and the switch of each highway layer."""
    gated_layers(model)  # raises where there are none
    switches = []

    def call(layer, *args, **kwargs):
        if is_gated(layer):
            layer = _Switch(layer)
            switches.append(layer)
            kwargs.pop("training", None)
        return layer(*args, **kwargs)

    functional = keras.Model(model.inputs[0], model.outputs[0])
    probe = keras.models.clone_model(
        functional, clone_function=lambda layer: layer, call_function=call
    )
    return probe, switches
