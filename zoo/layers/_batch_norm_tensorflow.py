"""TensorFlow's fused batch normalisation."""

import tensorflow as tf


def normalise(x, gamma, beta, epsilon):
    """(y, mean, variance) of a training batch `(batch, height, width, channels)`.

    γ and β are read in float32, also for half-precision inputs; the variance is the
    biased one, as Keras keeps it.
    """
    y, mean, variance, *_ = tf.raw_ops.FusedBatchNormV3(
        x=x,
        scale=tf.cast(gamma, "float32"),
        offset=tf.cast(beta, "float32"),
        mean=tf.zeros([0]),
        variance=tf.zeros([0]),
        epsilon=epsilon,
        is_training=True,
    )
    shape = tf.cast(tf.shape(x), "float32")
    count = shape[0] * shape[1] * shape[2]
    return y, mean, variance * (count - 1) / count
