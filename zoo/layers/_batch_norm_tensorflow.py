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


def normalise_together(x, gamma, beta, epsilon, axis, near):
    """(y, mean, variance) of a batch that is spread over the replicas of a strategy.

    Each replica sums up its part in float32 at least, and one exchange of the sums
    gives the statistics of the whole batch, another one in the backward pass the
    gradient through them. `near` is a guess of the mean, such as the moving mean, from
    which differences of replicas are taken, so that nothing cancels.
    """
    rank = len(x.shape)
    axis %= rank
    axes = [i for i in range(rank) if i != axis]
    dtype = tf.float64 if x.dtype == tf.float64 else tf.float32
    channels = x.shape[axis]
    gamma = tf.ones(channels, dtype) if gamma is None else tf.cast(gamma, dtype)
    beta = tf.zeros(channels, dtype) if beta is None else tf.cast(beta, dtype)
    near = tf.cast(near, dtype)
    real = tf.cast(_replicas.real(), dtype)

    def along(values):
        return tf.reshape(values, [-1 if i == axis else 1 for i in range(rank)])

    @tf.custom_gradient
    def run(x, gamma, beta):
        wide = tf.cast(x, dtype)
        own_mean, own_variance = tf.nn.moments(wide, axes)
        own_count = tf.cast(tf.size(x) // channels, dtype)
        off = own_mean - near
        sums = [[1.0], off, own_variance + tf.square(off)]
        sums = _replicas.total(tf.concat(sums, 0) * own_count * real)
        count = sums[0]
        off, squares = tf.split(sums[1:] / count, 2)
        variance = squares - tf.square(off)
        mean = near + off
        inverse = tf.math.rsqrt(variance + epsilon)
        normal = (wide - along(mean)) * along(inverse)
        y = tf.cast(normal * along(gamma) + along(beta), x.dtype)

        def gradient(dy, *_):  # the statistics themselves get none
            dy = tf.cast(dy, dtype)
            d_beta = tf.reduce_sum(dy, axes)
            d_gamma = tf.reduce_sum(dy * normal, axes)
            sums = _replicas.total(tf.concat([d_beta, d_gamma], 0)) / count
            by_mean, by_variance = tf.split(sums, 2)
            dx = dy - along(by_mean) - normal * along(by_variance)
            dx *= along(gamma * inverse * real)
            return tf.cast(dx, x.dtype), d_gamma, d_beta

        return (y, mean, variance), gradient

    return run(x, gamma, beta)
