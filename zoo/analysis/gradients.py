"""How much gradient reaches each layer, and how far each moves what it gets."""

import functools
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis import _blocks
from zoo.analysis._graph import predictor
from zoo.analysis._inputs import batches, check_images, check_labels
from zoo.analysis.gates import probed
from zoo.layers import ScanLayers
from zoo.layers.highway import BaseHighway


class OutputChange(NamedTuple):
    """How much each block moves the state, arrays `(layers,)`.

    Attributes:
        change: mean over images of ‖y − x‖, x the block's input and y its output; of
            a unit that changes the shape, x is what its shortcut makes of it.
        relative: the same ÷ the mean of ‖x‖.
        names: the layers' names.
    """

    change: np.ndarray
    relative: np.ndarray
    names: list[str]


def gradient_norms(model: keras.Model, images, labels) -> np.ndarray:
    """Norm of the loss gradient with respect to each layer's kernel, `(layers,)`.

    The loss is the mean cross-entropy of the logits. Layers are the highway layers,
    by the kernels of their transform, and residual units; in a net without any, all
    layers with kernels but the first and the last (stem and logits). Squares are
    summed in float64: the elements of a 50-layer plain net's gradient are about 1e-22,
    whose squares are zero in float32.

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
        copies = len(_blocks.names_of(layer))
        squares = sum(
            np.square(next(gradients)).reshape(copies, -1).sum(1) for _ in group
        )
        norms.extend(np.sqrt(squares))
    return np.array(norms)


def layer_names(model: keras.Model) -> list[str]:
    """Names of the layers over which arrays run: of highway layers and residual units;
    in a net without any, of the layers that `gradient_norms` measures."""
    return [n for layer in _weight_layers(model) for n in _blocks.names_of(layer)]


def jacobian_norms(
    model: keras.Model, images, *, vectors: int = 8, seed: int = 0
) -> np.ndarray:
    """Size of each block's own Jacobian dy/dx at the images, `(layers,)`.

    √(mean of ‖J‖² / n) over images, with the Frobenius norm and n the size of y: how
    much a gradient of random direction grows on its way back through the block. A
    block that carries has 1 exactly, whatever the depth: the product over layers is
    what a plain net loses.

    Args:
        model: functional or Sequential model with highway layers or residual units;
            inference mode.
        images: raw images, one batch.
        vectors: random vectors v of ±1 for each image; ‖J‖² is the mean of ‖vᵀJ‖².
        seed: of the vectors.

    Returns:
        float64 array, from the first layer to the last.

    Raises:
        ValueError: no highway layer and no residual unit; images that do not fit.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16, gate_bias=-30.0)
        >>> zoo.analysis.jacobian_norms(model, np.ones((3, 8, 8, 1))).round(6)
        array([1., 1., 1., 1., 1.])
    """
    images = check_images(model, images)
    rng, norms = np.random.default_rng(seed), []
    layers = _blocks.blocks(model)
    inputs = [_blocks.input_of(layer) for layer in layers]
    masks = [_blocks.mask_of(layer) for layer in layers]
    present = [mask for mask in masks if mask is not None]
    values = predictor(model, [*inputs, *present])(images, 128)
    states, present = values[: len(layers)], iter(values[len(layers) :])
    for layer, x, mask in zip(layers, states, masks, strict=True):
        x = np.concatenate([x] * vectors)
        if mask is not None:
            mask = np.concatenate([next(present)] * vectors)
        for i in range(len(_blocks.names_of(layer))):
            function = functools.partial(_blocks.call_copy, layer, i, mask)
            x, back = _vjp(function, x, mask, rng)
            size = x.size if mask is None else mask.sum() * (x.size / mask.size)
            norms.append(np.sqrt(np.square(back, dtype=np.float64).sum() / size))
    return np.array(norms)


def output_change(model: keras.Model, images, batch_size: int = 128) -> OutputChange:
    """How much each block moves the state: ‖y − x‖.

    Args:
        model: functional or Sequential model with highway layers or residual units;
            inference mode.
        images: raw images, or a data set of batches; the memory needed does not grow
            with their number.
        batch_size: images computed at a time; the result does not depend on it.

    Returns:
        `OutputChange(change, relative, names)`.

    Raises:
        ValueError: as for `mean_gates`.
    """

    def norm(x, mask):
        x = _blocks.masked(ops.cast(x, "float32"), mask)
        return ops.norm(ops.reshape(x, (ops.shape(x)[0], -1)), axis=1)

    def measure(block, x, mask):
        y = _blocks.output_of(block, x, mask)
        left = ops.cast(_blocks.left_of(block, x, without=True), y.dtype)
        return y, (norm(y - left, mask), norm(left, mask))

    parts = batches(model, images, batch_size=batch_size)
    layers = _blocks.blocks(model)
    values = probed(model, layers, measure, ("float32",) * 2)
    sums, count = 0.0, 0
    for images_here, _ in parts:
        norms = np.array(list(values(images_here)), np.float64)  # (layers, 2, batch)
        sums, count = sums + norms.sum(2), count + len(images_here)
    change, size = sums.T
    relative = np.divide(change, size, out=np.zeros_like(change), where=size > 0)
    return OutputChange(change / count, relative, _blocks.layer_names(model))


def carry_products(gates) -> np.ndarray:
    """∏(1 − T) over layers, `(layers,)`: what is left of the input after each layer if
    the gates stood at their means, for coupled gates.

    Args:
        gates: `(layers, …)`, or a list of arrays; T is averaged in each layer.

    Example:
        >>> import zoo
        >>> zoo.analysis.carry_products([[0.5, 0.5], [0.2, 0.2]])
        array([0.5, 0.4])
    """
    return np.cumprod([1 - np.mean(gate, dtype=np.float64) for gate in gates])


def _weight_layers(model):
    layers = [layer for layer in model.layers if _blocks.is_block(layer)]
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
    one = _blocks.one_of(layer)
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
    else:
        jax = _jax("gradient_norms")

        def loss(trainable):
            rest = [v.value for v in model.non_trainable_variables]
            logits, _ = model.stateless_call(trainable, rest, images, training=False)
            return loss_of(logits)

        place = {id(v): i for i, v in enumerate(model.trainable_variables)}
        gradients = jax.grad(loss)([v.value for v in model.trainable_variables])
        gradients = [gradients[place[id(v)]] for v in variables]
    return [ops.convert_to_numpy(g).astype(np.float64) for g in gradients]


def _vjp(function, x, mask, rng):
    """(y, vᵀJ) of a function at `x` for a random v of ±1, 0 where the mask leaves
    something out, both in NumPy."""

    def draw(y):
        v = ops.cast(rng.integers(0, 2, y.shape) * 2 - 1, y.dtype)
        return _blocks.masked(v, mask)

    x = ops.convert_to_tensor(x)
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        with tf.GradientTape() as tape:
            tape.watch(x)
            y = function(x)
        back = tape.gradient(y, x, draw(y))
    else:
        jax = _jax("jacobian_norms")
        y, pull = jax.vjp(function, x)
        (back,) = pull(draw(y))
    return ops.convert_to_numpy(y), ops.convert_to_numpy(back)


def _jax(name):
    if keras.backend.backend() != "jax":
        raise RuntimeError(
            f"{name} works on the backends tensorflow and jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )
    import jax

    return jax
