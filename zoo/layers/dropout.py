"""Dropout that differs between replicas."""

import keras

from zoo import _replicas


@keras.saving.register_keras_serializable("zoo")
class Dropout(keras.layers.Dropout):
    """Keras' Dropout, with a mask of its own on each replica of a strategy.

    Keras' own draws the same mask on every replica, so that images of a batch share
    masks. On one device it is Keras' own, bit for bit.

    Args:
        rate, noise_shape, seed: as in `keras.layers.Dropout`.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.Dropout(0.5)(keras.ops.ones((2, 3)), training=True).shape
        TensorShape([2, 3])
    """

    def call(self, inputs, training=False):
        if not training or self.rate == 0:
            return inputs
        return keras.random.dropout(
            inputs,
            self.rate,
            noise_shape=self.noise_shape,
            seed=_replicas.OwnDraws(self.seed_generator),
        )
