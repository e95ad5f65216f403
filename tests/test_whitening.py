"""ZCA whitening against the pipeline in NumPy that it stands for."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import again, close, config

from zoo.layers import ContrastNormalization, ZCAWhitening

SHAPE = (4, 3, 2)  # 24 values


def images(count=500, seed=1):
    """Images whose values hang together, on a mean image that is not 0."""
    rng = np.random.default_rng(seed)
    mixing = np.random.default_rng(0).normal(size=(24, 24))
    rows = rng.normal(size=(count, 24)) @ mixing + np.arange(24)
    return rows.reshape(count, *SHAPE).astype("float32")


def whitened(x, fitted, epsilon):
    """The same by a singular value decomposition, in float64."""
    rows = fitted.reshape(len(fitted), -1).astype("float64")
    mean = rows.mean(0)
    _, s, vectors = np.linalg.svd(rows - mean, full_matrices=False)
    matrix = vectors.T @ np.diag((s**2 / len(rows) + epsilon) ** -0.5) @ vectors
    return ((x.reshape(len(x), -1) - mean) @ matrix).reshape(x.shape)


def fitted(epsilon=0.1, data=None, **kwargs):
    layer = ZCAWhitening(epsilon, **kwargs)
    layer.adapt(images() if data is None else data)
    return layer


@pytest.mark.parametrize("epsilon", [1e-6, 0.1, 10.0])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-9), ("float32", 2e-4)])
def test_equals_numpy(epsilon, dtype, tolerance):
    x = images(7, seed=2).astype(dtype)
    layer = fitted(epsilon, dtype=dtype)
    y = np.array(layer(x))
    assert y.dtype == dtype
    assert close(y, whitened(x, images(), epsilon), tolerance)


def test_covariance_becomes_one():
    x = images()
    y = np.array(fitted(1e-12, dtype="float64")(x)).reshape(len(x), -1)
    assert close(y.mean(0), np.zeros(24), 1e-9)
    assert close(np.cov(y.T, bias=True), np.eye(24), 1e-6)
    # With epsilon each variance v becomes v/(v + ε), the correlations stay away.
    y = np.array(fitted(5.0, dtype="float64")(x)).reshape(len(x), -1)
    before = np.linalg.eigvalsh(np.cov(x.reshape(len(x), -1).T, bias=True))
    after = np.linalg.eigvalsh(np.cov(y.T, bias=True))
    assert close(after, before / (before + 5.0), 1e-4)


def test_matrix_is_symmetric_and_weights_are_not_trained():
    layer = fitted(name="whiten")
    assert [w.path for w in layer.weights] == ["whiten/mean", "whiten/matrix"]
    assert layer.trainable_weights == []
    assert close(layer.matrix, np.transpose(layer.matrix), 1e-6)
    assert layer.matrix.shape == (24, 24)
    assert close(layer.mean, images().reshape(500, 24).mean(0), 1e-6)


def test_is_the_identity_before_adapt():
    x = images(5)
    layer = ZCAWhitening()
    assert np.array_equal(layer(x), x)
    layer.adapt(images())
    assert not close(layer(x), x, 0.1)


def test_every_kind_of_data_gives_the_same(monkeypatch):
    x, labels = images(), np.zeros(500)
    expected = fitted(dtype="float64").get_weights()
    pairs = tf.data.Dataset.from_tensor_slices((x, labels)).batch(64)
    batches = [x[:100], x[100:350], x[350:]]
    kinds = [tf.constant(x), pairs, pairs.map(lambda x, y: x), batches, iter(batches)]
    monkeypatch.setattr("zoo.layers.whitening._CHUNK", 77)
    for data in [x, *kinds]:
        given = fitted(data=data, dtype="float64").get_weights()
        for a, b in zip(given, expected, strict=True):
            assert close(a, b, 1e-9)


def test_adapt_begins_anew():
    layer = fitted(data=images(300, seed=5) ** 2)
    layer.adapt(images())
    for a, b in zip(layer.get_weights(), fitted().get_weights(), strict=True):
        assert np.array_equal(a, b)


def test_contrast_normalised_images_have_a_direction_without_variance():
    """Their mean is 0: without epsilon that direction would be divided by 0."""
    x = ContrastNormalization()(images())
    y = fitted(data=x)(x)
    assert np.isfinite(y).all()
    assert close(y, whitened(np.array(x), np.array(x), 0.1), 1e-4)


@pytest.mark.parametrize("policy_name", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision_computes_in_float32(policy_name):
    x = images(5)
    layer = fitted(dtype=policy_name)
    y = layer(x)
    assert y.dtype == layer.compute_dtype
    assert np.array_equal(y, tf.cast(fitted()(x), y.dtype))


def test_round_trips(tmp_path):
    layer = fitted(0.3, name="whiten")
    assert config(again(layer)) == config(layer)
    assert again(layer).epsilon == 0.3
    model = keras.Sequential([keras.Input(SHAPE), layer])
    x = images(5)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert np.array_equal(loaded(x), layer(x))
    assert keras.saving.get_registered_name(ZCAWhitening) == "zoo>ZCAWhitening"


def test_adapt_reaches_a_model_that_has_predicted():
    layer = ZCAWhitening()
    model = keras.Sequential([keras.Input(SHAPE), layer])
    x = images(5)
    assert np.array_equal(model.predict(x, verbose=0), x)
    layer.adapt(images())
    assert close(model.predict(x, verbose=0), layer(x), 1e-6)


def test_shapes():
    assert ZCAWhitening()(keras.Input(SHAPE)).shape == (None, *SHAPE)
    assert ZCAWhitening().compute_output_shape((None, *SHAPE)) == (None, *SHAPE)


@pytest.mark.parametrize("epsilon", [0, -1.0, float("nan")])
def test_wrong_epsilon(epsilon):
    with pytest.raises(ValueError, match=f"`epsilon` must be above 0.*={epsilon}"):
        ZCAWhitening(epsilon)


@pytest.mark.parametrize("shape", [(None, None, 4, 3), (None, 4, 3)])
def test_unknown_size(shape):
    with pytest.raises(ValueError, match="of known size.*None"):
        ZCAWhitening()(keras.Input(shape[1:]))


def test_wrong_data():
    layer = fitted()
    with pytest.raises(ValueError, match=r"of size \(4, 3, 2\).*\(9, 4, 3, 1\)"):
        layer.adapt(np.ones((9, 4, 3, 1)))
    with pytest.raises(ValueError, match="`data` must hold images. Received: none"):
        layer.adapt([])
