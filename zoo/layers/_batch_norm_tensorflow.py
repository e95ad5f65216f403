"""Batch normalisation by TensorFlow's fused kernels."""

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
    return y, mean, _biased(variance, _pixels(x))


def normalise_together(x, gamma, beta, epsilon, near):
    """The same for a batch that is spread over the replicas of a strategy.

    One exchange of sums gives the statistics of the whole batch, another one in the
    backward pass the gradient through them. `near` is a guess of the mean, such as
    the moving mean, from which the replicas' means are taken, so that little cancels.
    """
    near = tf.cast(near, "float32")
    real = tf.cast(_replicas.real(), "float32")

    def apply(x, scale, offset, mean, variance):
        return tf.raw_ops.FusedBatchNormV3(
            x=x,
            scale=scale,
            offset=offset,
            mean=mean,
            variance=variance,
            epsilon=epsilon,
            is_training=False,
        )[0]

    @tf.custom_gradient
    def run(x, gamma, beta):
        _, own_mean, own_variance = normalise(x, gamma, beta, epsilon)
        off = own_mean - near
        sums = tf.concat([[1.0], off, own_variance + tf.square(off)], 0)
        sums = _replicas.total(sums * _pixels(x) * real)
        count = sums[0]
        off, squares = tf.split(sums[1:] / count, 2)
        mean = near + off
        variance = tf.maximum(squares - tf.square(off), 0.0)  # not below by rounding

        def gradient(dy, *_):  # the statistics themselves get none
            inverse = tf.math.rsqrt(variance + epsilon)
            dx, d_gamma, d_beta, *_ = tf.raw_ops.FusedBatchNormGradV3(
                y_backprop=dy,
                x=x,
                scale=gamma,
                reserve_space_1=mean,
                reserve_space_2=variance,
                reserve_space_3=tf.zeros([0]),
                epsilon=epsilon,
                is_training=False,
            )
            sums = _replicas.total(tf.concat([d_beta, d_gamma], 0)) / count
            by_mean, by_variance = tf.split(sums * real, 2)
            steep = gamma * inverse
            dx -= apply(x, steep * by_variance, steep * by_mean, mean, variance)
            return dx, d_gamma, d_beta

        return (apply(x, gamma, beta, mean, variance), mean, variance), gradient

    return run(x, tf.cast(gamma, "float32"), tf.cast(beta, "float32"))


def _pixels(x):
    """How many values of each channel there are."""
    shape = tf.cast(tf.shape(x), "float32")
    return shape[0] * shape[1] * shape[2]


def _biased(variance, count):
    return variance * (count - 1) / count
