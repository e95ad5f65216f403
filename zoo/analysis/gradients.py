"""How much gradient reaches each layer."""

import keras
import numpy as np
from keras import ops

from zoo.analysis._inputs import check_images, check_labels
from zoo.analysis.gates import is_gated
from zoo.layers import ScanLayers
from zoo.layers.highway import BaseHighway


def gradient_norms(model: keras.Model, images, labels) -> np.ndarray:
    """Norm of the loss gradient with respect to each layer's kernel, `(layers,)`.

    The loss is the mean cross-entropy of the logits. Layers are the highway layers,
    by the kernels of their transform; in a net without any, all layers with weights
    but the first and the last (stem and logits). Squares are summed in float64: the
    elements of a 50-layer plain net's gradient are about 1e-22, whose squares are
    zero in float32.

    Args:
        model: functional or Sequential model; inference mode.
        images: raw images, one batch.
        labels: class of each image.

    Returns:
        float64 array, from the first layer to the last.

    Raises:
        ValueError: images or labels that do not fit; no layer to measure.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.plain_mlp((8, 8, 1), depth=6, units=16)
        >>> zoo.analysis.gradient_norms(model, np.ones((3, 8, 8, 1)), [0, 1, 2]).shape
        (5,)
    """
    images = check_images(model, images)
    labels = check_labels(model, images, labels)
    layers = _weight_layers(model)
    groups = [_kernels(layer) for layer in layers]
    variables = [variable for group in groups for variable in group]
    gradients = iter(_gradients(model, images, labels, variables))
    norms = []
    for layer, group in zip(layers, groups, strict=True):
        copies = layer.length if isinstance(layer, ScanLayers) else 1
        squares = sum(
            np.square(next(gradients)).reshape(copies, -1).sum(1) for _ in group
        )
        norms.extend(np.sqrt(squares))
    return np.array(norms)


def _weight_layers(model):
    layers = [layer for layer in model.layers if is_gated(layer)]
    layers = layers or [layer for layer in model.layers if _kernels(layer)][1:-1]
    if not layers:
        raise ValueError(
            "`model` must have weight layers between its first and its last. "
            f"Received: {model.name!r} without one"
        )
    return layers


def _kernels(layer):
    """The trainable kernels (rank 2 and more) of H, or of the whole layer; of a
    loop their stacks."""
    one = layer.template if isinstance(layer, ScanLayers) else layer
    one = one.transform if isinstance(one, BaseHighway) else one
    kernels = [w for w in one.trainable_weights if len(w.shape) > 1]
    if isinstance(layer, ScanLayers):
        return [layer.stack_of(kernel) for kernel in kernels]
    return kernels


def _gradients(model, images, labels, variables):
    """Gradients of the mean cross-entropy as float64 arrays."""

    def loss_of(logits):
        losses = keras.losses.sparse_categorical_crossentropy(
            labels, logits, from_logits=True
        )
        return ops.mean(losses)

    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            loss = loss_of(model(images, training=False))
        gradients = tape.gradient(loss, [v.value for v in variables])
    elif keras.backend.backend() == "jax":
        import jax

        def loss(trainable):
            rest = [v.value for v in model.non_trainable_variables]
            logits, _ = model.stateless_call(trainable, rest, images, training=False)
            return loss_of(logits)

        place = {id(v): i for i, v in enumerate(model.trainable_variables)}
        gradients = jax.grad(loss)([v.value for v in model.trainable_variables])
        gradients = [gradients[place[id(v)]] for v in variables]
    else:
        raise RuntimeError(
            "gradient_norms works on the backends tensorflow and jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    return [ops.convert_to_numpy(g).astype(np.float64) for g in gradients]
