"""Analysis of nets that read text: words that are padding are left out."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import zoo
from zoo import analysis

TEXTS = np.array(["a cab", "b", "cab abba bcc a b c"], object)
LABELS = np.array([0, 1, 2])


@pytest.fixture(scope="module")
def model():
    return zoo.char_cnn(
        "abc",
        characters=8,
        num_classes=3,
        highway_layers=3,
        gate_bias=-1.0,
        kernel_initializer="glorot_uniform",
    )


def words(model, texts):
    """Vectors of the words that are there, `(words, features)`, by text."""
    encoder = keras.Model(model.inputs, model.get_layer("characters").output)
    return [np.array(encoder(tf.constant([text])))[0] for text in texts]


def test_means_are_over_words_that_are_there(model):
    first = model.get_layer("highway_01")
    gates = [np.array(first.parts(x)[1]) for x in words(model, TEXTS)]
    expected = np.mean([gate.mean(0) for gate in gates], axis=0)
    for size in (1, 2, 128):
        means = analysis.mean_gates(model, TEXTS, size)
        np.testing.assert_allclose(means[0], expected, atol=1e-6)
    one = analysis.trace(model, TEXTS, pixels="mean")
    np.testing.assert_allclose(one.gates[0][2], gates[2].mean(0), atol=1e-6)
    by_class = analysis.gates_by_class(model, TEXTS, LABELS)
    np.testing.assert_allclose(by_class[1][0], gates[1].mean(0), atol=1e-6)
    limit = float(np.median(expected))
    shares = [(gate > limit).mean() for gate in gates]
    found = analysis.gate_sparsity(model, TEXTS, limit)
    np.testing.assert_allclose(found.open[0], np.mean(shares), atol=1e-6)
    ever = np.mean([(gate > limit).any(0) for gate in gates], axis=0) > 0
    assert found.ever_open[0] == ever.mean()


def test_change_and_jacobians_without_padding(model):
    change = analysis.output_change(model, TEXTS)
    alone = [analysis.output_change(model, [text]).change for text in TEXTS]
    np.testing.assert_allclose(change.change, np.mean(alone, axis=0), rtol=1e-5)
    x = words(model, TEXTS)[0]
    y = np.array(model.get_layer("highway_01")(x))
    assert np.isclose(alone[0][0], np.linalg.norm(y - x), rtol=1e-5)
    closed = zoo.char_cnn("abc", characters=8, num_classes=3, gate_bias=-100.0)
    assert analysis.jacobian_norms(closed, TEXTS) == [1.0]


def test_lesions(model):
    found = analysis.lesions(model, TEXTS, LABELS)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    for name, lost in zip(found.names, found.loss, strict=True):
        shallow = zoo.models.without_layers(model, [name])
        expected = float(loss(LABELS, shallow(tf.constant(list(TEXTS)))))
        assert np.isclose(lost, expected, rtol=1e-5)
    loop = analysis.lesions(zoo.convert(model, scan=True), TEXTS, LABELS)
    np.testing.assert_allclose(loop.loss, found.loss, atol=1e-6)
    np.testing.assert_allclose(loop.closed_loss, found.closed_loss, atol=1e-6)


def test_loops_and_pruning(model):
    texts = tf.constant(list(TEXTS))
    loop = zoo.convert(model, scan=True)
    assert "highway_01_to_03" in [layer.name for layer in loop.layers]
    for net in (loop, zoo.convert(loop, scan=False)):
        np.testing.assert_allclose(net(texts), model(texts), atol=1e-6)
    np.testing.assert_allclose(
        analysis.mean_gates(loop, TEXTS), analysis.mean_gates(model, TEXTS), atol=1e-6
    )
    shallow, report = analysis.prune(
        model, TEXTS, LABELS, max_accuracy_loss=1.0, report_data=(TEXTS, LABELS)
    )
    assert len(report.removed) == 3
    assert shallow(texts).shape == (3, 3)


def test_served_gates_come_with_their_mask(model, tmp_path):
    path = zoo.export.export_saved_model(model, tmp_path / "net")
    served = zoo.load_served(path)
    stages = served.gates(text=TEXTS)
    assert stages["stage_1_mask"].numpy().sum(1).tolist() == [2, 1, 6]
    assert stages["stage_1"].shape == (3, 3, 6, 525)
    for size in (1, 128):
        np.testing.assert_allclose(
            analysis.mean_gates(served, TEXTS, size),
            analysis.mean_gates(model, TEXTS),
            atol=1e-6,
        )


def test_gates_by_character(model):
    texts = np.array(["ab b", "ccc", "b"], object)
    found = analysis.gates_by_character(model, texts, 2)
    assert found.names == ["a", "b", "c"] and found.words.tolist() == [1, 3, 1]
    one, other, third = (
        analysis.mean_gates(model, [word]).mean(1) for word in ("ab", "b", "ccc")
    )
    np.testing.assert_allclose(found.gates[0], one, atol=1e-6)
    np.testing.assert_allclose(found.gates[1], (one + 2 * other) / 3, atol=1e-6)
    np.testing.assert_allclose(found.gates[2], third, atol=1e-6)
    none = analysis.gates_by_character(model, ["b"])
    assert np.isnan(none.gates[0]).all() and none.words.tolist() == [0, 1, 0]


def test_nets_without_characters(model):
    dense = zoo.highway_mlp((8, 8, 1), depth=3, units=4)
    with pytest.raises(ValueError, match="one CharacterTokenizer. Received: .* with 0"):
        analysis.gates_by_character(dense, np.zeros((1, 8, 8, 1)))
    with pytest.raises(ValueError, match="`images` must be strings"):
        analysis.gates_by_character(model, [1, 2])


def test_two_masks():
    x = keras.Input((5,), dtype="int32")
    y = keras.layers.Embedding(9, 4, mask_zero=True)(x)
    y = zoo.layers.HighwayDense()(y)
    y = keras.layers.Masking()(y)
    y = zoo.layers.HighwayDense()(y)
    net = keras.Model(x, keras.layers.GlobalAveragePooling1D()(y))
    with pytest.raises(ValueError, match="one mask on .* Received: .* with 2"):
        analysis.lesions(net, np.ones((2, 5)), [0, 1])
