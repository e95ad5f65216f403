"""Functions as graphs, one trace for batches of any size."""

import functools

import keras
import numpy as np
from keras import ops


def compiled(function, *specs):
    """The function as a graph; `specs` are dtype and shape of each argument."""
    if keras.backend.backend() == "tensorflow":
        import tensorflow as tf

        signature = [tf.TensorSpec(shape, dtype) for dtype, shape in specs]
        # TensorFlow counts traces by the function's code and would warn of many, since
        # each block has a graph of its own; a partial has no code.
        function = functools.partial(function)
        graph = tf.function(function, input_signature=signature, autograph=False)
    elif keras.backend.backend() == "jax":
        import jax

        graph = jax.jit(function)
    else:
        raise RuntimeError(
            "analysis works on the backends tensorflow and jax. "
            f"Received: KERAS_BACKEND={keras.backend.backend()}"
        )

    def run(*arguments):
        pairs = zip(arguments, specs, strict=True)
        return graph(*(ops.cast(x, dtype) for x, (dtype, _) in pairs))

    return run


def predictor(model, outputs=None):
    """Function of images, in inference mode: the outputs, a flat list of arrays.

    `outputs`, symbolic tensors of the model, take the place of its own. With
    `batch_size` so many images are computed at a time; texts all at once, since the
    longest of a batch decides on the shape.
    """
    if outputs is not None:
        model = keras.Model(model.inputs[0], outputs)
    entry = model.inputs[0]
    graph = compiled(
        lambda x: keras.tree.flatten(model(x, training=False)),
        (entry.dtype, (None, *entry.shape[1:])),
    )

    def run(images, batch_size=None):
        size = batch_size or len(images)
        size = len(images) if entry.dtype == "string" else size
        starts = range(0, len(images), size)
        parts = [graph(images[start : start + size]) for start in starts]
        columns = zip(*parts, strict=True)
        return [np.concatenate([*map(ops.convert_to_numpy, c)]) for c in columns]

    return run
