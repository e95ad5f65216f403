"""Mean over the words of a text that are there."""

import keras
from keras import ops


@keras.saving.register_keras_serializable("zoo")
class MeanOfWords(keras.layers.Layer):
    """y = Σ_i m_i·x_i ÷ max(Σ_i m_i, 1), m the mask of words that are there.

    A text without words gives zeros, where an ordinary mean divides by zero.

    Call arguments:
        x: float tensor.
        mask: bool tensor `(batch, words)`; without one all words count.

    Input shape:
        `(batch, words, features)`.

    Output shape:
        `(batch, features)`.

    Example:
        >>> import keras, zoo
        >>> zoo.layers.MeanOfWords()(keras.ops.ones((2, 5, 3))).shape
        TensorShape([2, 3])
    """

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.supports_masking = True

    def build(self, input_shape):
        pass

    def call(self, x, mask=None):
        if mask is None:
            return ops.mean(x, axis=1)
        mask = ops.cast(mask, x.dtype)[:, :, None]
        return ops.sum(x * mask, axis=1) / ops.maximum(ops.sum(mask, axis=1), 1)

    def compute_mask(self, x, mask=None):
        return None

    def compute_output_shape(self, input_shape):
        return (input_shape[0], *input_shape[2:])
