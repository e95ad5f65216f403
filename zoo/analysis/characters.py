"""Which characters open the gates of a net that reads words as characters."""

from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.analysis._graph import predictor
from zoo.analysis._inputs import batches, check_model
from zoo.analysis.gates import live
from zoo.layers import CharacterTokenizer
from zoo.layers.character_tokenizer import FIRST


class CharacterGates(NamedTuple):
    """Gates by character.

    Attributes:
        gates: `(characters, layers)`, the mean of T over units and over the words
            that contain the character; NaN where no word does.
        words: `(characters,)`, how many do.
        names: the characters, in the order of the model's vocabulary.
    """

    gates: np.ndarray
    words: np.ndarray
    names: list[str]


def gates_by_character(
    model: keras.Model, texts, batch_size: int = 128
) -> CharacterGates:
    """Mean of T over the words that contain a character, for each character.

    A word that occurs twice counts twice; give each word once, as a text of its own,
    to count them alike.

    Args:
        model: live model with highway layers on the vectors of words, such as
            `char_cnn` and `char_lstm` make, that takes raw texts.
        texts: strings, or a data set of batches.
        batch_size: texts computed at a time; the result does not depend on it.

    Returns:
        `CharacterGates(gates, words, names)`.

    Raises:
        ValueError: a model without gates or without a `CharacterTokenizer`; input
            that is no text.

    Example:
        >>> import zoo
        >>> model = zoo.char_cnn("abc", characters=8, num_classes=2)
        >>> found = zoo.analysis.gates_by_character(model, ["a cab", "a"])
        >>> found.names, found.words.tolist(), found.gates.shape
        (['a', 'b', 'c'], [3, 1, 1], (3, 1))
    """
    tokenizers = [
        layer
        for layer in check_model(model).layers
        if isinstance(layer, CharacterTokenizer)
    ]
    if len(tokenizers) != 1:
        raise ValueError(
            "`model` must take raw texts, with one CharacterTokenizer. "
            f"Received: {model.name!r} with {len(tokenizers)}"
        )
    (tokenizer,) = tokenizers
    parts = batches(model, texts, batch_size=batch_size)
    gates_of = live(model, lambda block, gate, mask: ops.mean(gate, -1))
    ids_of = predictor(model, [tokenizer.output])
    sums, words = 0.0, 0
    for texts_here, _ in parts:
        (ids,) = ids_of(texts_here)  # (batch, words, characters)
        ids = ids.reshape(-1, ids.shape[-1])
        holds = np.zeros((len(ids), tokenizer.vocabulary_size), bool)
        np.put_along_axis(holds, ids, True, axis=1)
        holds = holds[:, FIRST:].T.astype(np.float64)  # (characters, words)
        gates = np.stack([gate.ravel() for gate in gates_of(texts_here)], -1)
        sums, words = sums + holds @ gates, words + holds.sum(1).astype(int)
    with np.errstate(invalid="ignore"):
        means = np.where(words[:, None] > 0, sums, np.nan) / words[:, None]
    return CharacterGates(means, words, list(tokenizer.vocabulary))
