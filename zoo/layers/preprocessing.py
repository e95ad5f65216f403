"""What models do to images before the first weight: augmentation."""

import keras
from keras import ops

from zoo._checks import check_int


@keras.saving.register_keras_serializable("zoo")
class PadCropFlip(keras.layers.Layer):
    """Pads with zeros, crops at a random place, mirrors at random; in training only.

    Each image of a batch has an offset and a flip of its own. The size stays. Outside
    of training the layer is the identity. Put it after the normalisation, so that the
    zeros are the mean pixel.

    Args:
        padding: int, pixels added on every side, of which the crop then leaves some
            out; 4 by default (He et al. for CIFAR; 8 in the highway paper).
        flip: bool, whether half of the images are mirrored left to right. True by
            default; False for digits and text.
        seed: of the draws; None (the default) takes one from Keras' global seed.

    Call arguments:
        images: float tensor.
        training: bool.

    Input shape:
        `(batch, height, width, channels)`; height and width may be unknown.

    Output shape:
        The input's.

    Raises:
        ValueError: `padding` is no integer of 0 or more.

    Example:
        >>> import keras, zoo
        >>> layer = zoo.layers.PadCropFlip(4)
        >>> layer(keras.ops.ones((2, 32, 32, 3)), training=True).shape
        TensorShape([2, 32, 32, 3])

    Reference:
        He, Zhang, Ren, Sun 2016, "Deep Residual Learning for Image Recognition",
        §4.2 (the augmentation of Lee et al. 2015).
    """

    def __init__(self, padding=4, flip=True, seed=None, **kwargs):
        super().__init__(**kwargs)
        check_int("padding", padding, 0)
        self.padding = padding
        self.flip = flip
        self.seed = seed
        self.generator = keras.random.SeedGenerator(seed)

    def call(self, images, training=False):
        if not training:
            return images
        batch, height, width, channels = ops.shape(images)
        pad = self.padding
        offsets = keras.random.randint(
            (2, batch, 1), 0, 2 * pad + 1, seed=self.generator
        )
        rows = offsets[0] + ops.arange(height)  # (batch, height)
        columns = offsets[1] + ops.arange(width)
        if self.flip:
            mirrored = keras.random.uniform((batch, 1), seed=self.generator) < 0.5
            columns = ops.where(mirrored, ops.flip(columns, axis=1), columns)
        padded = ops.pad(images, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
        # one gather over the pixels of the whole batch
        firsts = ops.arange(batch)[:, None, None] * (height + 2 * pad)
        pixels = (firsts + rows[:, :, None]) * (width + 2 * pad) + columns[:, None]
        return ops.take(ops.reshape(padded, (-1, channels)), pixels, axis=0)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        config = super().get_config()
        config.update(padding=self.padding, flip=self.flip, seed=self.seed)
        return config
