"""TensorFlow's fused batch normalisation."""

import tensorflow as tf

from zoo import _replicas


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


def normalise_together(x, gamma, beta, epsilon, axis):
    """(y, mean, variance) of a batch that is spread over the replicas of a strategy.

    The statistics are those of all replicas, in float32 at least: first the mean,
    then the mean square of the distance from it.
    """
    rank = len(x.shape)
    axis %= rank
    axes = [i for i in range(rank) if i != axis]
    dtype = "float64" if x.dtype == "float64" else "float32"
    wide = tf.cast(x, dtype)
    sums = tf.reduce_sum(wide, axes)  # (channels,)
    count = tf.cast(tf.size(x) // tf.shape(x)[axis], dtype)
    real = tf.cast(_replicas.real(), dtype)
    sums = _replicas.total(tf.concat([sums, [count]], 0) * real)
    mean, count = sums[:-1] / sums[-1], sums[-1]

    def along(values):
        return tf.reshape(values, [-1 if i == axis else 1 for i in range(rank)])

    centred = wide - along(mean)
    squares = tf.reduce_sum(tf.square(centred), axes) * real
    variance = _replicas.total(squares) / count
    scale = tf.math.rsqrt(variance + epsilon)
    if gamma is not None:
        scale *= tf.cast(gamma, dtype)
    y = centred * along(scale)
    if beta is not None:
        y += along(tf.cast(beta, dtype))
    return tf.cast(y, x.dtype), mean, variance
