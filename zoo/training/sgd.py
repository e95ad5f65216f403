"""Stochastic gradient descent with a learning rate of its own for biases."""

import math

import keras


@keras.saving.register_keras_serializable("zoo")
class SGD(keras.optimizers.SGD):
    """Keras' SGD, with `bias_rate` times the learning rate for biases.

    v ← m·v − r·η·g, then w ← w + v, or w ← w + m·v − r·η·g with Nesterov's momentum;
    r is `bias_rate` for variables called "bias", 1 for all others. It is `lr_mult`
    of the authors' Caffe files, which is 2 for the biases of all layers, the gates'
    included.

    Args:
        bias_rate: above 0; 1 by default, plain SGD.
        learning_rate, momentum, nesterov, …: as in `keras.optimizers.SGD`.

    Raises:
        ValueError: `bias_rate` is not a positive number.

    Example:
        >>> import zoo
        >>> optimizer = zoo.training.SGD(0.01, momentum=0.9, nesterov=True, bias_rate=2)
        >>> optimizer.bias_rate
        2

    Reference:
        The solver files of Srivastava, Greff, Schmidhuber 2015, "Training Very Deep
        Networks", §3.2–3.3.
    """

    def __init__(self, learning_rate=0.01, *args, bias_rate=1.0, **kwargs):
        super().__init__(learning_rate, *args, **kwargs)
        if not (math.isfinite(bias_rate) and bias_rate > 0):
            raise ValueError(
                f"`bias_rate` must be above 0. Received: bias_rate={bias_rate}"
            )
        self.bias_rate = bias_rate

    def build(self, variables):
        super().build(variables)
        self._are_biases = _are_biases(variables)

    def apply(self, grads, trainable_variables=None):
        if self.bias_rate != 1:  # the update is linear in the gradient
            if trainable_variables is None:
                are_biases = self._are_biases
            else:
                trainable_variables = list(trainable_variables)
                are_biases = _are_biases(trainable_variables)
            grads = [
                g * self.bias_rate if is_bias and g is not None else g
                for g, is_bias in zip(grads, are_biases, strict=True)
            ]
        super().apply(grads, trainable_variables)

    def get_config(self):
        return {**super().get_config(), "bias_rate": self.bias_rate}


def _are_biases(variables):
    return [v.path.rsplit("/", 1)[-1] == "bias" for v in variables]
