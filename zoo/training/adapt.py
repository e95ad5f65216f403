"""Statistics of the training images that layers of a model keep."""

import keras
import numpy as np
from keras import ops

from zoo.layers import MeanImage, ZCAWhitening


def adapt(model: keras.Model, images: np.ndarray, batch_size: int = 256) -> list[str]:
    """Measures what every `MeanImage` and `ZCAWhitening` of a model keeps.

    The images go through the layers before it as at inference, without augmentation.

    Args:
        model: functional model with one input.
        images: raw training images, `(images, height, width, channels)`.
        batch_size: images at a time.

    Returns:
        The names of the layers that were set; empty for a model without any.

    Raises:
        ValueError: no images.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_cnn("cifar_19")
        >>> zoo.training.adapt(model, np.zeros((4, 32, 32, 3)))
        ['mean_image']
    """
    if len(images) == 0:
        raise ValueError("`images` must hold an image at least. Received: none")
    kinds = (MeanImage, ZCAWhitening)
    layers = [layer for layer in model.layers if isinstance(layer, kinds)]
    for layer in layers:
        before = keras.Model(model.inputs, layer.input)
        batches = (
            ops.convert_to_numpy(
                before(ops.cast(images[start : start + batch_size], "float32"))
            )
            for start in range(0, len(images), batch_size)
        )
        if isinstance(layer, ZCAWhitening):
            layer.adapt(batches)
        else:
            sums = (batch.sum(axis=0, dtype="float64") for batch in batches)
            layer.mean.assign(sum(sums) / len(images))
    return [layer.name for layer in layers]
