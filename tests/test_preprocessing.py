"""Augmentation against every crop that it may give."""

import itertools

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from zoo.layers import PadCropFlip


def all_crops(image, padding, flip=True):
    """{(row, column, mirrored): image}: what can become of one image."""
    rows, columns = image.shape[:2]
    padded = np.pad(image, [(padding, padding), (padding, padding), (0, 0)])
    crops = {}
    for i, j in itertools.product(range(2 * padding + 1), repeat=2):
        crop = padded[i : i + rows, j : j + columns]
        crops[i, j, False] = crop
        if flip:
            crops[i, j, True] = crop[:, ::-1]
    return crops


def draws(images, augmented, padding, flip=True):
    """Which crop each image of a batch has become; fails if it is none."""
    found = []
    for image, given in zip(images, np.array(augmented), strict=True):
        crops = all_crops(image, padding, flip)
        matches = [draw for draw, crop in crops.items() if np.array_equal(crop, given)]
        assert len(matches) == 1
        found += matches
    return np.array(found)


def images(count=8, size=(5, 6), channels=2, dtype="float32"):
    """No two pixels of an image are equal, none is 0."""
    return np.random.default_rng(1).normal(1, 1, (count, *size, channels)).astype(dtype)


@pytest.mark.parametrize("flip", [True, False])
@pytest.mark.parametrize("padding", [0, 1, 2, 4])
def test_gives_one_of_the_possible_crops(padding, flip):
    x = images()
    y = PadCropFlip(padding, flip)(x, training=True)
    assert y.shape == x.shape
    draws(x, y, padding, flip)


def test_draws_of_a_batch_are_independent_and_even():
    x = np.tile(images(1), (1800, 1, 1, 1))
    y = np.array(PadCropFlip(1)(x, training=True))
    crops = all_crops(x[0], 1)
    counts = {
        draw: int((y == crop).all((1, 2, 3)).sum()) for draw, crop in crops.items()
    }
    assert len(counts) == 18 and sum(counts.values()) == 1800
    # Expected 100 ± 9.7 of each of 3 · 3 · 2: were rows, columns and flips not
    # independent, some would be rare.
    assert 60 < min(counts.values()) <= max(counts.values()) < 140


def test_every_step_draws_anew():
    layer, x = PadCropFlip(4), images()
    first, second = (np.array(layer(x, training=True)) for _ in range(2))
    assert not np.array_equal(first, second)


@pytest.mark.parametrize("dtype", ["float32", "float64", "mixed_float16"])
def test_is_the_identity_outside_of_training(dtype):
    layer = PadCropFlip(4, dtype=dtype)
    x = ops.cast(images(), layer.compute_dtype)
    for y in (layer(x), layer(x, training=False)):
        assert np.array_equal(y, x) and y.dtype == x.dtype


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16", "float64"])
def test_keeps_the_dtype(policy, name):
    policy(name)
    layer = PadCropFlip(1)
    x = ops.cast(images(), layer.compute_dtype)
    y = layer(x, training=True)
    assert y.dtype == x.dtype
    draws(np.array(ops.cast(x, "float64")), ops.cast(y, "float64"), 1)
    assert layer(keras.Input((5, 6, 2))).dtype == layer.compute_dtype


def test_a_seed_repeats_the_draws():
    x = images()
    runs = []
    for seed in (3, 3, 4):
        layer = PadCropFlip(4, seed=seed)
        runs.append([np.array(layer(x, training=True)) for _ in range(3)])
    assert np.array_equal(runs[0], runs[1])
    assert not np.array_equal(runs[0], runs[2])
    for _ in range(2):  # None: of Keras' global seed
        keras.utils.set_random_seed(5)
        runs.append(np.array(PadCropFlip(4)(x, training=True)))
    assert np.array_equal(runs[3], runs[4])


def test_config_round_trip(tmp_path):
    layer = PadCropFlip(3, flip=False, seed=7, name="augment")
    again = PadCropFlip.from_config(layer.get_config())
    assert again.get_config() == layer.get_config()
    assert (again.padding, again.flip, again.seed) == (3, False, 7)
    x = images()
    assert np.array_equal(layer(x, training=True), again(x, training=True))
    model = keras.Sequential([keras.Input((5, 6, 2)), layer])
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras").layers[0]
    assert loaded.get_config() == layer.get_config()
    # Keras' files hold no state of draws: a loaded layer begins with its seed.
    fresh = PadCropFlip(3, flip=False, seed=7)
    assert np.array_equal(fresh(x, training=True), loaded(x, training=True))


def test_no_weights_and_the_shape_of_the_input():
    layer = PadCropFlip()
    assert layer.weights == []
    assert len(layer.variables) == 1  # the state of the draws, which `Resume` keeps
    assert layer.compute_output_shape((None, 5, None, 3)) == (None, 5, None, 3)
    assert layer(keras.Input((None, None, 3))).shape == (None, None, None, 3)


def test_unknown_sizes_in_a_graph():
    tf = pytest.importorskip("tensorflow")
    layer = PadCropFlip(2)
    spec = tf.TensorSpec((None, None, None, 2))
    step = tf.function(lambda x: layer(x, training=True), input_signature=[spec])
    for count, size in ((3, (5, 6)), (7, (4, 9)), (1, (1, 1))):
        x = images(count, size)
        y = step(x)
        assert y.shape == x.shape
        if size != (1, 1):  # where most crops are alike: all zeros
            draws(x, y, 2)


def test_fit_augments_and_evaluate_does_not():
    """In the graph of `fit`, each step on its own draws."""

    tf = pytest.importorskip("tensorflow")

    class Look(keras.layers.Layer):
        seen = []

        def call(self, x):
            tf.py_function(lambda x: self.seen.append(x.numpy()), [x], [])
            return x

    x = images(4)
    model = keras.Sequential(
        [keras.Input((5, 6, 2)), PadCropFlip(2), Look(), keras.layers.Flatten()]
    )
    model.add(keras.layers.Dense(1))
    model.compile("sgd", "mse")
    Look.seen.clear()
    model.fit(x, np.ones((4, 1)), epochs=5, shuffle=False, verbose=0)
    trained = [draws(x, seen, 2).tolist() for seen in Look.seen]
    assert len(trained) == 5 and len(set(map(str, trained))) == 5
    Look.seen.clear()
    model.evaluate(x, np.ones((4, 1)), verbose=0)
    assert np.array_equal(Look.seen[0], x)


def test_a_net_pads_with_the_mean_pixel():
    """Zeros come in after the normalisation, not as black pixels before it."""
    model = zoo.preact_resnet(8, input_shape=(6, 5, 3), augment=True)
    names = [layer.name for layer in model.layers]
    assert names[:4] == ["image", "normalise", "augment", "stem"]
    layer = model.get_layer("augment")
    assert (layer.padding, layer.flip) == (4, True)
    augmented = keras.Model(model.input, layer.output)
    x = np.random.default_rng(1).uniform(0, 255, (4, 6, 5, 3)).astype("float32")
    normalised = np.array(model.get_layer("normalise")(x))
    y = np.array(augmented(x, training=True))
    for image, given in zip(normalised, y, strict=True):
        crops = all_crops(image, 4).values()
        assert any(np.array_equal(crop, given) for crop in crops)
    assert (y == 0).any()  # padding
    assert np.array_equal(augmented(x), normalised)


@pytest.mark.parametrize("padding", [-1, 1.5, None, True, "4"])
def test_wrong_arguments(padding):
    with pytest.raises(ValueError, match="`padding` must be an integer of at least 0"):
        PadCropFlip(padding)
