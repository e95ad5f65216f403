"""Nets that read words as characters, with highway layers (Kim et al. 2016)."""

import keras

from zoo._checks import check_int, known
from zoo.layers import (
    CharacterConv,
    CharacterTokenizer,
    Dropout,
    HighwayDense,
    MeanOfWords,
)
from zoo.layers.character_tokenizer import PRINTABLE
from zoo.layers.initializers import fork
from zoo.models._builder import Net, builder, layer_names, logits_layer

#: Variant → sizes, Table 2 of the paper.
CHAR_VARIANTS = {
    "small": {
        "widths": (1, 2, 3, 4, 5, 6),
        "filters": (25, 50, 75, 100, 125, 150),
        "highway_layers": 1,
        "lstm_units": 300,
    },
    "large": {
        "widths": (1, 2, 3, 4, 5, 6, 7),
        "filters": (50, 100, 150, 200, 200, 200, 200),
        "highway_layers": 2,
        "lstm_units": 650,
    },
}


@builder
def char_cnn(
    vocabulary: str | int = PRINTABLE,
    words: int | None = None,
    characters: int = 32,
    num_classes: int | None = None,
    *,
    variant: str = "small",
    highway_layers: int | None = None,
    dense_layers: int = 0,
    gate_bias: float = -2.0,
    lowercase: bool = False,
    dropout: float = 0.0,
    kernel_initializer=None,
    name: str | None = None,
) -> keras.Model:
    """Character CNN with highway layers: a vector for each word, or a text classifier.

    Ids of characters → embeddings of 15 → convolutions of several widths, tanh, each
    with its maximum over the word → highway layers (ReLU), so far one vector a word.
    With `num_classes` → mean over the words → dropout → logits.

    | variant | widths | filters | features | highway layers |
    |---|---|---|---|---|
    | small | 1 … 6 | 25·w | 525 | 1 |
    | large | 1 … 7 | min(200, 50·w) | 1,100 | 2 |

    As an encoder in a model of your own it is used like a layer:
    `char_cnn(99)(keras.Input((None, 32), dtype="int32"))`. It gives its mask on, so
    that recurrent layers skip words that are padding.

    Args:
        vocabulary: string of the characters known: the model takes raw text, one
            string an example, and begins with a `CharacterTokenizer` (needs the
            TensorFlow backend). Or int, the number of ids: the model takes ids made
            elsewhere, 0 being padding. By default the printable ones of ASCII.
        words: words of a text; None by default: as many as there are.
        characters: ids of a word, marks of start and end included; 32 by default.
        num_classes: classes; None by default: no classifier, the word vectors.
        variant: "small" (default) or "large".
        highway_layers: None is the variant's; 0, 1, 2, …
        dense_layers: ReLU layers behind the highway layers, 0 by default. Two have
            the parameters of one highway layer: what to compare it with.
        gate_bias: initial bias of the gates, −2 by default, the paper's.
        lowercase: whether text is made lower case first; False by default.
        dropout: on the mean before the logits; 0 by default.
        kernel_initializer: of embeddings and kernels; None is U(±.05), the paper's.
        name: of the model.

    Returns:
        An uncompiled `keras.Model` of input `text`, `(batch,)` strings, or `tokens`,
        `(batch, words, characters)`, that gives word vectors `(batch, words,
        features)` or logits `(batch, num_classes)`, float32.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.char_cnn(99).count_params()
        588435

    Reference:
        Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models".
    """
    if num_classes is not None:
        check_int("num_classes", num_classes)
    kernels = _kernels(kernel_initializer)
    inputs, x = _word_vectors(
        vocabulary,
        words,
        characters,
        variant,
        highway_layers,
        dense_layers,
        gate_bias,
        lowercase,
        kernels,
    )
    if num_classes is not None:
        x = MeanOfWords(name="mean")(x)
        if dropout:
            x = Dropout(dropout, name="dropout")(x)
        x = logits_layer(num_classes, kernels)(x)
    return Net(inputs, x, name=name or f"char_cnn_{variant}")


@builder
def char_lstm(
    num_classes: int,
    vocabulary: str | int = PRINTABLE,
    words: int | None = None,
    characters: int = 32,
    *,
    variant: str = "small",
    highway_layers: int | None = None,
    dense_layers: int = 0,
    gate_bias: float = -2.0,
    lstm_units: int | None = None,
    lowercase: bool = False,
    dropout: float = 0.5,
    kernel_initializer=None,
    name: str | None = None,
) -> keras.Model:
    """Language model over words that it reads as characters: `char_cnn` → two LSTMs.

    The word vectors of `char_cnn` → LSTM → dropout → LSTM → dropout → logits over the
    words that may come next, at each word. Each LSTM has 300 units in the small net
    and 650 in the large one. The states start at zero in each text.

    Args:
        num_classes: number of words that can be predicted.
        vocabulary, words, characters, variant, highway_layers, dense_layers,
            gate_bias, lowercase, kernel_initializer, name: as in `char_cnn`; the
            initializer is the LSTMs' too, U(±.05).
        lstm_units: None is the variant's.
        dropout: behind each LSTM, .5 by default, the paper's.

    Returns:
        An uncompiled `keras.Model` of input `text` or `tokens`, as in `char_cnn`, that
        gives logits `(batch, words, num_classes)`, float32.

    Raises:
        ValueError: an argument out of its range, with the rule.

    Example:
        >>> import zoo
        >>> zoo.char_lstm(10_000, words=35).output_shape
        (None, 35, 10000)

    Reference:
        Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models",
        §3.2 and Table 2.
    """
    check_int("num_classes", num_classes)
    kernels = _kernels(kernel_initializer)
    inputs, x = _word_vectors(
        vocabulary,
        words,
        characters,
        variant,
        highway_layers,
        dense_layers,
        gate_bias,
        lowercase,
        kernels,
    )
    units = CHAR_VARIANTS[variant]["lstm_units"] if lstm_units is None else lstm_units
    check_int("lstm_units", units)
    for lstm in layer_names("lstm", 2):
        x = keras.layers.LSTM(
            units,
            return_sequences=True,
            kernel_initializer=fork(kernels, lstm),
            recurrent_initializer=fork(kernels, f"{lstm}_recurrent"),
            name=lstm,
        )(x)
        x = Dropout(dropout, name=f"dropout_{lstm[-2:]}")(x)
    x = logits_layer(num_classes, kernels)(x)
    return Net(inputs, x, name=name or f"char_lstm_{variant}")


def _word_vectors(
    vocabulary,
    words,
    characters,
    variant,
    highway_layers,
    dense_layers,
    gate_bias,
    lowercase,
    kernels,
):
    """(input, word vectors) of a net whose arguments are checked."""
    sizes = CHAR_VARIANTS[known("variant", variant, CHAR_VARIANTS)]
    highways = sizes["highway_layers"] if highway_layers is None else highway_layers
    check_int("highway_layers", highways, 0)
    check_int("dense_layers", dense_layers, 0)
    if isinstance(vocabulary, str):
        inputs = keras.Input((), dtype="string", name="text")
        tokenizer = CharacterTokenizer(
            vocabulary, words, characters, lowercase=lowercase, name="tokens"
        )
        x, ids = tokenizer(inputs), tokenizer.vocabulary_size
    else:
        if words is not None:
            check_int("words", words)
        check_int("characters", characters, 3)
        x = inputs = keras.Input((words, characters), dtype="int32", name="tokens")
        ids = vocabulary
        check_int("vocabulary", ids, 2)
    x = CharacterConv(
        ids,
        sizes["widths"],
        sizes["filters"],
        kernel_initializer=kernels,
        name="characters",
    )(x)  # (batch, words, features)
    for name in layer_names("highway", highways):
        x = HighwayDense(
            gate_bias=gate_bias,
            kernel_initializer=fork(kernels, name),
            gate_kernel_initializer=fork(kernels, f"{name}_gate"),
            name=name,
        )(x)
    for name in layer_names("dense", dense_layers):
        x = keras.layers.Dense(
            x.shape[-1], "relu", kernel_initializer=fork(kernels, name), name=name
        )(x)
    return inputs, x


def _kernels(initializer):
    return keras.initializers.get(
        initializer or keras.initializers.RandomUniform(-0.05, 0.05)
    )
