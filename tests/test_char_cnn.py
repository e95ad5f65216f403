import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import sigmoid

import zoo
from zoo.layers import CharacterConv, CharacterTokenizer, MeanOfWords
from zoo.models import CHAR_VARIANTS


def encoder(model, ids):
    """Word vectors of one word, by hand: windows inside the word, highway layers."""
    weights = {w.path: w.numpy().astype("float64") for w in model.weights}
    letters = [i for i in ids if i]
    found = []
    for width in model.get_layer("characters").widths:
        kernel = weights[f"characters/width_{width}/kernel"]
        bias = weights[f"characters/width_{width}/bias"]
        word = weights["characters/embedding/embeddings"][letters]
        word = np.pad(word, ((0, max(width - len(word), 0)), (0, 0)))
        windows = [
            np.einsum("wc,wcf->f", word[i : i + width], kernel) + bias
            for i in range(len(word) - width + 1)
        ]
        found.append(np.tanh(windows).max(0))
    y = np.concatenate(found) * bool(letters)
    for layer in model.layers:
        if layer.name.startswith("highway"):
            h, t = (
                y @ weights[f"{layer.name}/{half}/kernel"]
                + weights[f"{layer.name}/{half}/bias"]
                for half in ("transform", "gate")
            )
            y = y + sigmoid(t) * (np.maximum(h, 0) - y)
    return y


def drawn(model):
    rng = np.random.default_rng(3)
    for w in model.trainable_weights:
        w.assign(rng.normal(0, 0.3, w.shape))
    return model


@pytest.mark.parametrize("highways", [0, 1, 2])
def test_encoder_against_numpy(highways):
    model = drawn(zoo.char_cnn(9, characters=8, highway_layers=highways))
    ids = np.zeros((2, 3, 8), "int32")
    ids[0, 0, :3] = 2, 5, 3
    ids[0, 1] = 2, 8, 7, 6, 5, 4, 4, 3
    ids[1, 0, :7] = 2, 4, 5, 1, 7, 8, 3
    expected = [[encoder(model, word) for word in text] for text in ids]
    np.testing.assert_allclose(model(ids), expected, rtol=1e-5, atol=1e-5)


def test_vectors_do_not_depend_on_the_padding():
    short, long = zoo.char_cnn(9, characters=6), zoo.char_cnn(9, characters=20)
    long.set_weights(drawn(short).get_weights())
    ids = np.array([[[2, 4, 5, 6, 3, 0], [2, 3, 0, 0, 0, 0]]])
    wide = np.pad(ids, ((0, 0), (0, 2), (0, 14)))
    np.testing.assert_allclose(long(wide)[:, :2], short(ids), 1e-5, 1e-5)


def test_parameters():
    # 99 embeddings of 15; width w has 25·w filters of w·15 values and a bias; a
    # highway layer of 525 has two kernels of 525² and two biases.
    convolutions = 99 * 15 + sum((15 * w + 1) * 25 * w for w in range(1, 7))
    highway = 2 * (525**2 + 525)
    assert zoo.char_cnn(99).count_params() == convolutions + highway == 588_435
    assert zoo.char_cnn(99, highway_layers=0).count_params() == convolutions
    instead = zoo.char_cnn(99, highway_layers=0, dense_layers=2)
    assert instead.count_params() == convolutions + highway
    # Large: widths 1 … 7 with 50, 100, 150 and four times 200 filters, 1,100 in all.
    filters = (50, 100, 150, 200, 200, 200, 200)
    large = 99 * 15 + sum((15 * w + 1) * f for w, f in enumerate(filters, 1))
    large += 2 * 2 * (1100**2 + 1100)
    assert zoo.char_cnn(99, variant="large").count_params() == large == 4_923_485
    # Each LSTM: four kernels of (inputs + units)·units and as many biases.
    lstms = 4 * 300 * (525 + 300 + 1) + 4 * 300 * (300 + 300 + 1)
    logits = 300 * 1000 + 1000
    model = zoo.char_lstm(1000, 99)
    assert model.count_params() == 588_435 + lstms + logits == 2_601_835


def test_variants_are_the_papers():
    small, large = CHAR_VARIANTS["small"], CHAR_VARIANTS["large"]
    assert small["filters"] == tuple(25 * w for w in small["widths"])
    assert large["filters"] == tuple(min(200, 50 * w) for w in large["widths"])


def test_closed_gates_make_the_highway_layers_vanish():
    with_two = zoo.char_cnn(9, highway_layers=2, gate_bias=-100.0)
    without = zoo.char_cnn(9, highway_layers=0)
    without.set_weights(with_two.get_weights()[: len(without.weights)])
    ids = np.random.default_rng(0).integers(0, 9, (2, 3, 32))
    np.testing.assert_array_equal(with_two(ids), without(ids))


def test_tokens():
    tokenizer = CharacterTokenizer("abc", characters=6)
    ids = tokenizer(tf.constant(["a cab!", "", "abcabcabc", "né 日本 😀"]))
    assert ids.shape == (4, 3, 6)
    expected = [
        [[2, 4, 3, 0, 0, 0], [2, 6, 4, 5, 3, 0], [2, 1, 3, 0, 0, 0]],
        [[2, 3, 0, 0, 0, 0], [0] * 6, [0] * 6],  # one empty word
        [[2, 4, 5, 6, 4, 3], [0] * 6, [0] * 6],  # cut, its end kept
        [[2, 1, 1, 3, 0, 0], [2, 1, 1, 3, 0, 0], [2, 1, 3, 0, 0, 0]],
    ]
    np.testing.assert_array_equal(ids, expected)


@pytest.mark.parametrize(
    ("arguments", "text", "words"),
    [
        ({}, "a\u00a0b\u3000c\td", 4),  # all kinds of white space
        ({}, "don't", 3),
        ({"punctuation": False}, "don't a_b", 2),
        ({}, "a_b1", 1),
        ({}, b"\xff\xfe a", 3),  # two bytes that are no UTF-8, each a mark
        ({"words": 2}, "a b c d", 2),
        ({"words": 5}, "a", 5),
        ({}, "e\u0301a", 1),  # a combining accent stays with its letter
        ({}, " \n ", 1),
    ],
)
def test_words(arguments, text, words):
    ids = CharacterTokenizer(**arguments)(tf.constant([text]))
    assert ids.shape == (1, words, 32)


def test_lower_case_and_long_texts():
    tokenizer = CharacterTokenizer("aÄä", lowercase=True)
    np.testing.assert_array_equal(
        tokenizer(tf.constant(["AÄ"]))[0, 0, :4], [2, 4, 6, 3]
    )
    ids = CharacterTokenizer(words=3)(tf.constant(["a " * 1000, "b"]))
    assert ids.shape == (2, 3, 32)


def test_tokenizer_keeps_its_arguments():
    tokenizer = CharacterTokenizer("ab", 3, 5, punctuation=False, lowercase=True)
    again = CharacterTokenizer.from_config(tokenizer.get_config())
    assert again.get_config() == tokenizer.get_config()
    assert again.vocabulary_size == 6


def test_character_conv_contract():
    layer = CharacterConv(9, (1, 3), (4, 5), embedding_dim=2)
    ids = np.random.default_rng(0).integers(0, 9, (2, 3, 7))
    assert layer(ids).shape == layer.compute_output_shape((2, 3, 7)) == (2, 3, 9)
    again = CharacterConv.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    half = CharacterConv(9, dtype="mixed_float16")(ids)
    assert half.dtype == tf.float16 and np.isfinite(half).all()
    flat = CharacterConv(9, (1, 3), (4, 5), embedding_dim=2)
    flat.build((2, 7))
    flat.set_weights(layer.get_weights())
    np.testing.assert_allclose(flat(ids[:, 0]), layer(ids)[:, 0], atol=1e-6)


def test_mean_of_words():
    x = np.arange(12.0, dtype="float32").reshape(2, 3, 2)
    mask = np.array([[True, True, False], [False, False, False]])
    np.testing.assert_array_equal(MeanOfWords()(x, mask=mask), [[1, 2], [0, 0]])
    np.testing.assert_array_equal(MeanOfWords()(x), x.mean(1))


def test_padding_changes_nothing_behind_it():
    model = drawn(zoo.char_cnn(num_classes=3))
    alone = model(tf.constant(["three small words"]))
    beside = model(tf.constant(["three small words", "x " * 9]))[:1]
    np.testing.assert_allclose(alone, beside, atol=1e-5)
    assert np.isfinite(model(tf.constant(["", "\u200b"]))).all()


def test_language_model_trains_and_is_served(tmp_path):
    model = zoo.char_lstm(
        5, "ab", lstm_units=8, dropout=0.0, kernel_initializer="glorot_uniform"
    )
    model.compile(
        keras.optimizers.Adam(2e-3, clipnorm=1.0),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    texts = tf.constant(["a b a b a b", "b a b a b a"])
    following = np.array([[2, 1, 2, 1, 2, 1], [1, 2, 1, 2, 1, 2]])
    history = model.fit(texts, following, epochs=150, verbose=0).history["loss"]
    assert history[-1] < 0.2 < 1.5 < history[0]
    path = zoo.export.export_saved_model(model, tmp_path / "net")
    served = zoo.load_served(path)
    live = model(texts)
    np.testing.assert_allclose(served.serve(text=texts)["logits"], live, atol=1e-5)
    assert served.gates(text=texts)["stage_1"].shape == (1, 2, 6, 525)
    card = json.loads((path / "card.json").read_text())
    assert card["input"]["name"] == "text"
    np.testing.assert_allclose(zoo.load(path)(texts), live, atol=1e-6)


def test_encoder_inside_a_model():
    ids = keras.Input((None, 8), dtype="int32")
    x = zoo.char_cnn(9, characters=8)(ids)
    model = keras.Model(ids, keras.layers.LSTM(4)(x))
    tokens = np.zeros((1, 4, 8), "int32")
    tokens[0, :2, :3] = 2, 5, 3
    np.testing.assert_allclose(model(tokens[:, :2]), model(tokens), atol=1e-6)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: zoo.char_cnn("aa"), "each character once. Received: 'a'"),
        (lambda: zoo.char_cnn(""), "at least one character"),
        (lambda: zoo.char_cnn(1), "`vocabulary` must be an integer of at least 2"),
        (lambda: zoo.char_cnn(9, characters=2), "`characters` must be an integer"),
        (lambda: zoo.char_cnn("ab", characters=2), "`characters` must be an integer"),
        (lambda: zoo.char_cnn(9, words=0), "`words` must be an integer"),
        (lambda: zoo.char_cnn(9, variant="tiny"), "`variant` must be one of small"),
        (lambda: zoo.char_cnn(9, highway_layers=-1), "`highway_layers` must be"),
        (lambda: zoo.char_cnn(9, num_classes=0), "`num_classes` must be"),
        (lambda: zoo.char_lstm(5, lstm_units=0), "`lstm_units` must be"),
        (lambda: CharacterConv(9, (1, 2), (3,)), "same length"),
        (lambda: CharacterConv(9, ()), "same length, 1 or more"),
    ],
)
def test_wrong_input(make, sentence):
    with pytest.raises(ValueError, match=sentence):
        make()
