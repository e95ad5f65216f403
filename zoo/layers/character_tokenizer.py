"""Text to words to character ids."""

import string

import keras
import numpy as np

from zoo._checks import check_int

#: The 95 printable characters of ASCII: letters, digits, marks and the space.
PRINTABLE = string.ascii_letters + string.digits + string.punctuation + " "

PADDING, UNKNOWN, START, END, FIRST = range(5)


@keras.saving.register_keras_serializable("zoo")
class CharacterTokenizer(keras.layers.Layer):
    """Text → words → ids of characters, inside the model.

    A word is what stands between white space; with `punctuation` each mark is a word
    of its own. Its ids are 2, those of its characters, 3, then 0 to the width:

    | id | stands for |
    |---|---|
    | 0 | padding, behind a word and in place of a word |
    | 1 | a character that the vocabulary does not have: another script, an emoji |
    | 2, 3 | start and end of a word |
    | 4 + i | `vocabulary[i]` |

    A character is a code point. A word longer than `characters` − 2 keeps its first
    ones, and its end; a text longer than `words` keeps its first words. An empty text
    is one empty word, 2, 3. Bytes that are not UTF-8 are unknown characters.

    Args:
        vocabulary: string of the characters that get an id; the 95 printable ones of
            ASCII by default.
        words: int, words of a text; None (the default) takes those of the longest
            text of the batch.
        characters: int, ids of a word, its two marks included; 32 by default.
        punctuation: whether a mark is a word of its own, True by default.
        lowercase: whether letters are made small first, False by default.

    Call arguments:
        text: string tensor, UTF-8.

    Input shape:
        `(batch,)`.

    Output shape:
        `(batch, words, characters)`, int32.

    Raises:
        ValueError: a character twice in the vocabulary, an empty vocabulary, a size
            out of its range; a backend other than TensorFlow, which alone knows
            strings.

    Example:
        >>> import zoo
        >>> zoo.layers.CharacterTokenizer("abc", characters=6)(["a cab!"])[0].numpy()
        array([[2, 4, 3, 0, 0, 0],
               [2, 6, 4, 5, 3, 0],
               [2, 1, 3, 0, 0, 0]], dtype=int32)

    Reference:
        Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models",
        §2.2 and footnote 2, for the marks of start and end.
    """

    def __init__(
        self,
        vocabulary=PRINTABLE,
        words=None,
        characters=32,
        punctuation=True,
        lowercase=False,
        **kwargs,
    ):
        if keras.backend.backend() != "tensorflow":
            raise ValueError(
                "CharacterTokenizer needs the TensorFlow backend; give the model ids "
                f"instead. Received: KERAS_BACKEND={keras.backend.backend()}"
            )
        super().__init__(**kwargs)
        if not isinstance(vocabulary, str) or not vocabulary:
            raise ValueError(
                "`vocabulary` must be a string of at least one character. Received: "
                f"vocabulary={vocabulary!r}"
            )
        twice = sorted({c for c in vocabulary if vocabulary.count(c) > 1})
        if twice:
            raise ValueError(
                "`vocabulary` must have each character once. Received: "
                f"{', '.join(map(repr, twice))} more than once"
            )
        if words is not None:
            check_int("words", words)
        check_int("characters", characters, 3)
        self.vocabulary, self.words, self.characters = vocabulary, words, characters
        self.punctuation, self.lowercase = punctuation, lowercase
        self.supports_jit = False
        self._convert_input_args = False  # strings, as in Keras' TextVectorization
        self._allow_non_tensor_positional_args = True
        points = np.array([ord(c) for c in vocabulary], "int32")
        order = np.argsort(points)
        self._points, self._ids = points[order], (order + FIRST).astype("int32")

    @property
    def vocabulary_size(self):
        """Number of ids, those of padding, unknown, start and end included."""
        return len(self.vocabulary) + FIRST

    def build(self, input_shape):
        pass

    def call(self, text):
        import tensorflow as tf

        text = tf.strings.unicode_transcode(
            tf.convert_to_tensor(text, tf.string), "UTF-8", "UTF-8"
        )
        if self.lowercase:
            text = tf.strings.lower(text, encoding="utf-8")
        if self.punctuation:
            text = tf.strings.regex_replace(text, r"([^\pL\pM\pN\pZ\s_])", r" \1 ")
        text = tf.strings.regex_replace(text, r"[\pZ\s]+", " ")
        words = tf.strings.split(text)  # (batch, words), ragged
        empty = tf.cast(tf.equal(words.row_lengths(), 0), tf.int64)
        no_word = tf.RaggedTensor.from_row_lengths(
            tf.fill([tf.reduce_sum(empty)], ""), empty
        )
        words = tf.concat([words, no_word], 1)[:, : self.words]
        points = tf.strings.unicode_decode(words, "UTF-8")
        points = points[:, :, : self.characters - 2]
        ids = tf.ragged.map_flat_values(self._lookup, points).to_tensor()
        short = self.characters - 1 - tf.shape(ids)[2]
        marks = START * tf.one_hot(0, self.characters, dtype=tf.int32)
        marks += END * tf.one_hot(
            points.row_lengths(2).to_tensor() + 1, self.characters, dtype=tf.int32
        )
        ids = tf.pad(ids, [[0, 0], [0, 0], [1, short]]) + marks
        present = tf.ones_like(words, tf.int32).to_tensor()
        ids *= present[:, :, None]
        if self.words is not None:
            ids = tf.pad(ids, [[0, 0], [0, self.words - tf.shape(ids)[1]], [0, 0]])
        ids.set_shape((text.shape[0], self.words, self.characters))
        return ids

    def _lookup(self, points):
        """Ids of code points."""
        import tensorflow as tf

        place = tf.searchsorted(self._points, points)
        place = tf.minimum(place, len(self._points) - 1)
        known = tf.equal(tf.gather(self._points, place), points)
        return tf.where(known, tf.gather(self._ids, place), UNKNOWN)

    def compute_output_shape(self, input_shape):
        return (input_shape[0], self.words, self.characters)

    def compute_output_spec(self, text):
        return keras.KerasTensor(self.compute_output_shape(text.shape), "int32")

    def get_config(self):
        return {
            **super().get_config(),
            "vocabulary": self.vocabulary,
            "words": self.words,
            "characters": self.characters,
            "punctuation": self.punctuation,
            "lowercase": self.lowercase,
        }
