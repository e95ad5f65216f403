"""What models do to images before the first weight."""

import keras
from keras import ops

from zoo import _replicas
from zoo._checks import check_int


@keras.saving.register_keras_serializable("zoo")
class ContrastNormalization(keras.layers.Layer):
    """Per-image contrast normalisation: (x − mean)/max(std, ε).

    Mean and standard deviation are those of one image over height, width and
    channels. The papers of the time call it global contrast normalisation.

    Args:
        epsilon: float, least deviation that is divided by, 1e-8 by default: an image
            of one colour becomes 0.

    Call arguments:
        images: float tensor.

    Input shape:
        `(batch, height, width, channels)`.

    Output shape:
        The input's.

    Raises:
        ValueError: `epsilon` is not above 0.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.ContrastNormalization()(keras.ops.ones((2, 32, 32, 3))).shape
        TensorShape([2, 32, 32, 3])

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.3.
    """

    def __init__(self, epsilon=1e-8, **kwargs):
        super().__init__(autocast=False, **kwargs)
        if not epsilon > 0:
            raise ValueError(f"`epsilon` must be above 0. Received: epsilon={epsilon}")
        self.epsilon = epsilon

    def call(self, images):
        x = ops.cast(images, "float32")  # sums over an image overflow half precision
        x = x - ops.mean(x, axis=(1, 2, 3), keepdims=True)
        std = ops.sqrt(ops.mean(ops.square(x), axis=(1, 2, 3), keepdims=True))
        return ops.cast(x / ops.maximum(std, self.epsilon), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


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
        draws = _replicas.OwnDraws(self.generator)
        offsets = keras.random.randint((2, batch, 1), 0, 2 * pad + 1, seed=draws)
        rows = offsets[0] + ops.arange(height)  # (batch, height)
        columns = offsets[1] + ops.arange(width)
        if self.flip:
            mirrored = keras.random.uniform((batch, 1), seed=draws) < 0.5
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


@keras.saving.register_keras_serializable("zoo")
class MeanImage(keras.layers.Layer):
    """Subtracts the mean image of a training set: x − m.

    m is a weight that is not trained: zero, until `zoo.training.adapt` measures it on
    the images that reach the layer.

    Call arguments:
        images: float tensor.

    Input shape:
        `(batch, height, width, channels)`, of known size.

    Output shape:
        The input's.

    Raises:
        ValueError: height or width are unknown.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.MeanImage()(keras.ops.ones((2, 32, 32, 3))).shape
        TensorShape([2, 32, 32, 3])

    Reference:
        The data layers of Srivastava, Greff, Schmidhuber 2015, "Training Very Deep
        Networks", §3.3.
    """

    def build(self, input_shape):
        shape = tuple(input_shape)[1:]
        if None in shape:
            raise ValueError(
                "MeanImage needs images of known height and width. "
                f"Received: input_shape={tuple(input_shape)}"
            )
        self.mean = self.add_weight(
            shape=shape, initializer="zeros", trainable=False, name="mean"
        )

    def call(self, images):
        return images - ops.cast(self.mean, images.dtype)

    def compute_output_shape(self, input_shape):
        return input_shape
