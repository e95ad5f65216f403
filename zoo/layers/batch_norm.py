"""Batch normalisation of the residual nets."""

import keras
from keras import ops

from zoo import _replicas


@keras.saving.register_keras_serializable("zoo")
class BatchNorm(keras.layers.BatchNormalization):
    """Keras' BatchNormalization with the paper's constants and a fused training step.

    y = γ·(x − mean)/√(variance + ε) + β. Momentum .9 and epsilon 1e-5 by default
    (Keras: .99 and 1e-3). In training on TensorFlow, inputs `(batch, height, width,
    channels)` go through its fused kernel, which takes a quarter off the step of a
    ResNet-20 on a CPU; everything else is Keras' own. Results are the same to
    rounding: the moving variance is that of the batch, not Bessel's.

    On several replicas of a strategy, mean and variance in training are those of the
    whole batch, as on one device (Keras: with `synchronized=True`, which fails in
    loops; `ScanLayers` runs unrolled there).

    Args:
        momentum, epsilon, …: as in `keras.layers.BatchNormalization`.

    Input shape:
        `(batch, …, channels)`.

    Output shape:
        The input's.

    Example:
        >>> import keras, zoo
        >>> from zoo.layers.batch_norm import BatchNorm
        >>> BatchNorm()(keras.ops.ones((2, 8, 8, 16)), training=True).shape
        TensorShape([2, 8, 8, 16])

    Reference:
        Ioffe, Szegedy 2015, "Batch Normalization".
    """

    def __init__(self, axis=-1, momentum=0.9, epsilon=1e-5, **kwargs):
        super().__init__(axis=axis, momentum=momentum, epsilon=epsilon, **kwargs)

    def call(self, inputs, training=None, mask=None):
        together = _replicas.several()
        if not (training and self.trainable and mask is None and self._fits(inputs)):
            before, self.synchronized = self.synchronized, self.synchronized or together
            try:
                return super().call(inputs, training=training, mask=mask)
            finally:
                self.synchronized = before
        from zoo.layers import _batch_norm_tensorflow as fused

        arguments = inputs, self.gamma, self.beta, self.epsilon
        if together:
            found = fused.normalise_together(*arguments, near=self.moving_mean)
        else:
            found = fused.normalise(*arguments)
        outputs, mean, variance = found
        for moving, batch in (
            (self.moving_mean, mean),
            (self.moving_variance, variance),
        ):
            batch = ops.cast(batch, moving.dtype)
            moving.assign(moving * self.momentum + batch * (1 - self.momentum))
        return outputs

    def _fits(self, inputs):
        rank = len(inputs.shape)
        return (
            keras.backend.backend() == "tensorflow"
            and rank == 4
            and self.axis in (-1, 3)
            and self.scale
            and self.center
            and not self.synchronized
            and self.compute_dtype != "float64"
        )
