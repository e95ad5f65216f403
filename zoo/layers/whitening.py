"""Whitening of images with statistics of a data set."""

import keras
import numpy as np
from keras import ops

_CHUNK = 1000  # images of an array that are taken at a time


@keras.saving.register_keras_serializable("zoo")
class ZCAWhitening(keras.layers.Layer):
    """ZCA whitening: y = (x − μ)·P with P = U·(Λ + ε)^(−1/2)·Uᵀ.

    x is an image of d = height · width · channels values in a row, μ the mean and
    U·Λ·Uᵀ the covariance of the images given to `adapt`. Of all matrices that whiten,
    P is the one that changes the images least. Mean (d,) and matrix (d, d) are
    weights that are not trained, so they are saved with the model; for 32×32×3 the
    matrix takes 37 MB. Before `adapt` they are 0 and 1: the layer is the identity.

    Args:
        epsilon: float, added to the variances, above 0; .1 by default: the
            `filter_bias` of pylearn2, whose whitened CIFAR-10 the maxout nets and
            FitNets saw, for images of variance 1 (`ContrastNormalization`). Towards 0
            the covariance becomes 1 exactly and noise is blown up.

    Call arguments:
        images: float tensor.

    Input shape:
        `(batch, height, width, channels)`, all known but the batch.

    Output shape:
        The input's.

    Raises:
        ValueError: `epsilon` is not above 0; an unknown size.

    Example:
        >>> import keras, zoo
        >>> layer = zoo.layers.ZCAWhitening()
        >>> layer.adapt(keras.random.normal((100, 4, 4, 3)))
        >>> layer(keras.ops.ones((2, 4, 4, 3))).shape
        TensorShape([2, 4, 4, 3])

    Reference:
        Bell, Sejnowski 1997, "The 'independent components' of natural scenes are edge
        filters"; Krizhevsky 2009, "Learning Multiple Layers of Features from Tiny
        Images", appendix A.
    """

    def __init__(self, epsilon=0.1, **kwargs):
        super().__init__(autocast=False, **kwargs)
        if not epsilon > 0:
            raise ValueError(f"`epsilon` must be above 0. Received: epsilon={epsilon}")
        self.epsilon = epsilon

    def build(self, input_shape):
        sizes = tuple(input_shape)[1:]
        if len(sizes) != 3 or None in sizes:
            raise ValueError(
                "ZCAWhitening takes images (batch, height, width, channels) of known "
                f"size. Received: input_shape={tuple(input_shape)}"
            )
        d = int(np.prod(sizes))
        still = {"trainable": False, "autocast": False}
        self.mean = self.add_weight((d,), "zeros", name="mean", **still)
        identity = keras.initializers.Identity()
        self.matrix = self.add_weight((d, d), identity, name="matrix", **still)
        self._sizes = sizes

    def adapt(self, data):
        """Takes mean and covariance from images, anew at each call.

        Args:
            data: images as they come to this layer, behind what normalises them: an
                array `(images, height, width, channels)`, or an iterable of batches
                such as a `tf.data.Dataset`, of images or of (images, labels).

        Raises:
            ValueError: images of another size than before, or none.
        """
        count, total, products = 0, 0.0, 0.0
        for images in _batches(data):
            if not self.built:
                self.build(images.shape)
                self.built = True
            if images.shape[1:] != self._sizes:
                raise ValueError(
                    f"`data` must be images of size {self._sizes}, those of the "
                    f"layer's input. Received: a batch of shape {images.shape}"
                )
            rows = images.reshape(len(images), -1).astype("float64")
            count += len(rows)
            total += rows.sum(0)
            products += rows.T @ rows
        if not count:
            raise ValueError("`data` must hold images. Received: none")
        mean = total / count
        covariance = products / count - np.outer(mean, mean)
        variances, vectors = np.linalg.eigh(covariance)
        scales = 1 / np.sqrt(np.maximum(variances, 0) + self.epsilon)  # −1e-17 is 0
        self.mean.assign(mean)
        self.matrix.assign((vectors * scales) @ vectors.T)

    def call(self, images):
        # float32 under a mixed policy: sums over an image want more than half.
        x = ops.cast(images, self.variable_dtype)
        x = ops.reshape(x, (-1, self.mean.shape[0]))
        x = ops.matmul(x - self.mean, self.matrix)
        return ops.cast(ops.reshape(x, (-1, *self._sizes)), self.compute_dtype)

    def compute_output_shape(self, input_shape):
        return input_shape

    def get_config(self):
        return {**super().get_config(), "epsilon": self.epsilon}


def _batches(data):
    """Arrays of images from an array, or from batches with or without labels."""
    if hasattr(data, "shape"):
        for first in range(0, len(data), _CHUNK):
            yield np.asarray(data[first : first + _CHUNK])
    else:
        for batch in data:
            images = batch[0] if isinstance(batch, (tuple, list)) else batch
            yield ops.convert_to_numpy(images)
