"""Word vectors from characters: convolutions of several widths, max over time."""

import keras
from keras import ops

from zoo._checks import check_int
from zoo.layers.initializers import fork


@keras.saving.register_keras_serializable("zoo")
class CharacterConv(keras.layers.Layer):
    """Ids of characters → a vector for each word.

    Feature j of width w of a word of l characters with embeddings e_1 … e_l is

    y = f(max_i (⟨E_i, K_j⟩ + b_j)), E_i = (e_i, …, e_(i+w−1)), i = 1 … l − w + 1.

    Only places inside the word count, so that y does not depend on how far words are
    padded; a word shorter than w has one place, its end filled with zeros. (f behind
    the maximum is the same as before it where f rises, and computed once.) Id 0 is
    padding; a word of padding alone gives zeros and is masked for what follows.

    Args:
        vocabulary_size: int, number of ids: they are 0 … `vocabulary_size` − 1.
        widths: kernel widths w in characters; 1 … 6 by default, the paper's small net.
        filters: number of features of each width; None (the default) is 25·w.
        embedding_dim: int, width of an embedding; 15 by default, the paper's.
        activation: f, one that rises; "tanh" by default.
        kernel_initializer: of embeddings and kernels; None is U(±.05), the paper's.

    Call arguments:
        ids: integer tensor. Ids outside the vocabulary are an error on a CPU and
            undefined on a GPU.

    Input shape:
        `(batch, …, characters)`, the number of characters known.

    Output shape:
        `(batch, …, features)`, features the sum of `filters`.

    Raises:
        ValueError: an empty or different number of widths and filters, or a size out
            of its range.

    Example:
        >>> import keras, zoo
        >>> layer = zoo.layers.CharacterConv(99)
        >>> layer(keras.ops.ones((2, 35, 20), "int32")).shape
        TensorShape([2, 35, 525])

    Reference:
        Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models",
        §2.2 and Table 2.
    """

    def __init__(
        self,
        vocabulary_size,
        widths=(1, 2, 3, 4, 5, 6),
        filters=None,
        embedding_dim=15,
        activation="tanh",
        kernel_initializer=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        widths = tuple(widths)
        filters = tuple(25 * w for w in widths) if filters is None else tuple(filters)
        if not widths or len(widths) != len(filters):
            raise ValueError(
                "`widths` and `filters` must have the same length, 1 or more. "
                f"Received: widths={widths}, filters={filters}"
            )
        for width, count in zip(widths, filters, strict=True):
            check_int("widths", width)
            check_int("filters", count)
        check_int("vocabulary_size", vocabulary_size, 2)
        check_int("embedding_dim", embedding_dim)
        self.vocabulary_size, self.embedding_dim = vocabulary_size, embedding_dim
        self.widths, self.filters = widths, filters
        self.activation = keras.activations.get(activation)
        self.kernel_initializer = keras.initializers.get(
            kernel_initializer or keras.initializers.RandomUniform(-0.05, 0.05)
        )

    def build(self, input_shape):
        draw = self.kernel_initializer
        self.embedding = keras.layers.Embedding(
            self.vocabulary_size,
            self.embedding_dim,
            embeddings_initializer=fork(draw, "embedding"),
            dtype=self.dtype_policy,
            name="embedding",
        )
        self.embedding.build()
        self.convolutions = []
        for width, filters in zip(self.widths, self.filters, strict=True):
            name = f"width_{width}"
            layer = keras.layers.Conv1D(
                filters,
                width,
                data_format="channels_last",
                kernel_initializer=fork(draw, name),
                dtype=self.dtype_policy,
                name=name,
            )
            layer.build((None, None, self.embedding_dim))
            self.convolutions.append(layer)

    def call(self, ids):
        before, characters = ops.shape(ids)[:-1], ids.shape[-1]
        ids = ops.reshape(ids, (-1, characters))  # (words, characters)
        length = ops.sum(ops.cast(ids != 0, "int32"), -1)[:, None, None]
        x = self.embedding(ids) * ops.cast(ids != 0, self.compute_dtype)[:, :, None]
        start = ops.arange(characters)[None, :, None]
        found = []
        for width, convolution in zip(self.widths, self.convolutions, strict=True):
            padded = ops.pad(x, ((0, 0), (0, width - 1), (0, 0)))
            inside = start <= ops.maximum(length - width, 0)
            lowest = ops.cast(-3e4, self.compute_dtype)  # float16 has 65,504
            y = ops.where(inside, convolution(padded), lowest)
            found.append(ops.max(y, axis=1))
        y = self.activation(ops.concatenate(found, -1))
        y = ops.where(length[:, 0] > 0, y, ops.zeros_like(y))
        return ops.reshape(y, (*before, sum(self.filters)))

    def compute_mask(self, ids, previous_mask=None):
        return ops.any(ops.not_equal(ids, 0), -1)

    def compute_output_shape(self, input_shape):
        return (*input_shape[:-1], sum(self.filters))

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary_size": self.vocabulary_size,
            "widths": self.widths,
            "filters": self.filters,
            "embedding_dim": self.embedding_dim,
            "activation": keras.activations.serialize(self.activation),
            "kernel_initializer": keras.initializers.serialize(self.kernel_initializer),
        }
