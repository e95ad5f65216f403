import dataclasses
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from zoo import datasets
from zoo.datasets import images as images_module
from zoo.datasets._splits import base_order, held_out

TFDS_NAMES = ("mnist", "fashion_mnist", "cifar10", "cifar100")
SPLITS = ("train", "validation", "train+validation", "test")


def made_up(count, seed=0, classes=10, shape=(28, 28, 1)):
    rng = np.random.default_rng(seed)
    labels = rng.permutation(np.arange(count) % classes)
    return rng.integers(0, 256, (count, *shape), np.uint8), labels


def write_mnist(path, parts):
    """Prepares `parts`, {"train" or "test": (images, labels)}, as "mnist"."""
    tfds = pytest.importorskip("tensorflow_datasets")
    features = tfds.features.FeaturesDict(
        {
            "image": tfds.features.Image(shape=(28, 28, 1), dtype=np.uint8),
            "label": tfds.features.ClassLabel(num_classes=10),
        }
    )
    tfds.dataset_builders.store_as_tfds_dataset(
        name="mnist",
        version="3.0.1",
        features=features,
        split_datasets={
            part: [
                (i, {"image": x, "label": int(y)})
                for i, (x, y) in enumerate(zip(*columns, strict=True))
            ]
            for part, columns in parts.items()
        },
        data_dir=path,
        disable_shuffling=True,
    )


@pytest.fixture(scope="module")
def mnist_dir(tmp_path_factory):
    path = tmp_path_factory.mktemp("prepared")
    write_mnist(path, {"train": made_up(100), "test": made_up(30, seed=1)})
    return path


@pytest.fixture
def fresh(monkeypatch):
    """Forgets what was read before, and what is read in this test."""
    monkeypatch.setattr("zoo.datasets._load._parts", {})


def rows(images):
    return [image.tobytes() for image in images]


def batches(dataset):
    """Every batch of one pass, as (pixels as bytes, labels)."""
    return [(x.numpy().tobytes(), y.numpy().tolist()) for x, y in dataset]


# Splits.


@pytest.mark.parametrize(
    "split, size",
    [("train", 1130), ("validation", 127), ("train+validation", 1257), ("test", 540)],
)
def test_digits_have_the_sizes_shapes_and_types_they_promise(split, size):
    images, labels = datasets.arrays("digits", split)
    assert images.shape == (size, 8, 8, 1) and images.dtype == np.uint8
    assert labels.shape == (size,) and labels.dtype == np.int64
    assert images.min() == 0 and images.max() == 16
    assert set(labels) == set(range(10))


def test_digits_split_off_the_same_test_set_as_the_tutorial():
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    x, y = load_digits(return_X_y=True)
    split = train_test_split(x, y, test_size=0.3, random_state=0, stratify=y)
    images, labels = datasets.arrays("digits", "test")
    ours = {(x.tobytes(), int(y)) for x, y in zip(images, labels, strict=True)}
    theirs = {
        (x.astype(np.uint8).tobytes(), int(y))
        for x, y in zip(split[1], split[3], strict=True)
    }
    assert ours == theirs


def test_validation_is_a_tenth_of_each_class():
    counts = {s: np.bincount(datasets.arrays("digits", s)[1]) for s in SPLITS}
    whole = counts["train+validation"]
    assert (counts["validation"] == np.floor(whole / 10 + 0.5)).all()
    assert (counts["train"] + counts["validation"] == whole).all()


def test_train_and_validation_are_apart_and_together_the_union():
    train, validation, both, test = (datasets.arrays("digits", s) for s in SPLITS)
    assert not set(rows(train[0])) & set(rows(validation[0]))
    assert not set(rows(both[0])) & set(rows(test[0]))
    assert np.array_equal(both[0], np.concatenate([train[0], validation[0]]))
    assert np.array_equal(both[1], np.concatenate([train[1], validation[1]]))


def test_hand_worked_split():
    """Ten images of one class: the one with the smallest SHA-256 is held out."""
    import hashlib

    images = np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1)
    labels = np.zeros(10, np.int64)
    by_hash = sorted(range(10), key=lambda i: hashlib.sha256(bytes([i])).hexdigest())
    order = base_order(images, labels)
    assert order.tolist() == by_hash
    assert held_out(images[order], labels[order]).tolist() == [True] + [False] * 9


def test_membership_and_order_do_not_depend_on_the_order_of_the_file(
    tmp_path, mnist_dir, fresh
):
    parts = {"train": made_up(100), "test": made_up(30, seed=1)}
    for part, (x, y) in parts.items():
        other = np.random.default_rng(2).permutation(len(y))
        parts[part] = x[other], y[other]
    write_mnist(tmp_path, parts)
    for split in SPLITS:
        a = datasets.arrays("mnist", split, data_dir=mnist_dir)
        b = datasets.arrays("mnist", split, data_dir=tmp_path)
        assert np.array_equal(a[0], b[0]) and np.array_equal(a[1], b[1])
    assert len(datasets.arrays("mnist", "validation", data_dir=tmp_path)[1]) == 10


def test_equal_images_stay_in_one_split():
    """Also those with different labels, and without upsetting the balance."""
    images, labels = made_up(2000, classes=4, shape=(2, 2, 1))
    images[1000:1500] = images[:500]
    labels[1000:1250] = labels[:250]  # 250 pairs with one label, others as they come
    images[1500:1600] = images[0]  # too many to fit into a tenth
    for seed in range(3):
        shuffled = np.random.default_rng(seed).permutation(2000)
        x, y = images[shuffled], labels[shuffled]
        order = base_order(x, y)
        x, y = x[order], y[order]
        marked = held_out(x, y)
        assert not set(rows(x[marked])) & set(rows(x[~marked]))
        assert (np.bincount(y[marked]) == (np.bincount(y) + 5) // 10).all()
        if seed == 0:
            first = x, y, marked
        assert all(map(np.array_equal, first, (x, y, marked)))


def test_arrays_are_read_once_and_cannot_be_changed(fresh, monkeypatch):
    images, labels = datasets.arrays("digits", "train")
    monkeypatch.setattr("zoo.datasets.digits.read", None)
    again, _ = datasets.arrays("digits", "validation")
    assert np.shares_memory(images, datasets.arrays("digits", "train")[0])
    for array in (images, labels, again):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
        with pytest.raises(ValueError, match="WRITEABLE"):
            array.setflags(write=True)


def test_names_and_info():
    assert datasets.names() == [
        "digits",
        *TFDS_NAMES,
        "imagenet2012",
        "docstrings",
        "python_docs",
        "ag_news_subset",
        "lm1b",
    ]
    for name in datasets.names()[:-2]:  # the last two are downloaded
        info = datasets.info(name)
        assert info.name == name
        assert len(set(info.class_names)) == info.num_classes
    digits = datasets.info("digits")
    assert digits.image_shape == (8, 8, 1) and digits.pixel_range == (0, 16)
    assert datasets.info("cifar100").num_classes == 100
    with pytest.raises(dataclasses.FrozenInstanceError):
        digits.num_test = 1


@pytest.mark.parametrize(
    "name",
    [
        "mnist",
        pytest.param("fashion_mnist", marks=pytest.mark.slow),
        pytest.param("cifar10", marks=pytest.mark.slow),
        "cifar100",  # It has images that occur twice.
    ],
)
def test_real_data_agrees_with_info(name):
    tfds = pytest.importorskip("tensorflow_datasets")
    info = datasets.info(name)
    try:
        test = datasets.arrays(name, "test", download=False)
    except FileNotFoundError as error:
        pytest.skip(str(error))
    names = tfds.builder(name).info.features["label"].names
    assert tuple(names) == info.class_names
    train, validation = (
        datasets.arrays(name, s, download=False) for s in ("train", "validation")
    )
    sizes = info.num_train, info.num_validation, info.num_test
    assert tuple(len(y) for _, y in (train, validation, test)) == sizes
    for images, _ in (train, validation, test):
        assert images.shape[1:] == info.image_shape and images.dtype == np.uint8
        assert (images.min(), images.max()) == info.pixel_range
    counts, held = np.bincount(train[1]), np.bincount(validation[1])
    assert (held == (counts + held + 5) // 10).all() and len(held) == info.num_classes
    assert not set(rows(train[0])) & set(rows(validation[0]))


# Streams.


@pytest.mark.parametrize("split", SPLITS)
def test_a_pass_gives_every_example_once_and_the_last_batch_is_partial(split):
    images, labels = datasets.arrays("digits", split)
    dataset = datasets.load("digits", split, 64)
    assert dataset.element_spec == (
        tf.TensorSpec((None, 8, 8, 1), tf.uint8),
        tf.TensorSpec((None,), tf.int64),
    )
    xs, ys = zip(*dataset, strict=True)
    assert len(dataset) == len(ys) == -(-len(labels) // 64)
    assert {len(y) for y in ys[:-1]} == {64} and len(ys[-1]) == len(labels) % 64
    pairs = zip(rows(np.concatenate(xs)), np.concatenate(ys), strict=True)
    known = zip(rows(images), labels, strict=True)
    assert sorted(pairs) == sorted(known)


def test_single_examples_come_in_the_order_of_the_batches():
    single = datasets.load("digits", "train")
    assert single.element_spec == (
        tf.TensorSpec((8, 8, 1), tf.uint8),
        tf.TensorSpec((), tf.int64),
    )
    assert len(single) == 1130
    x, y = next(iter(datasets.load("digits", "train", 1130)))
    assert [int(label) for _, label in single] == y.numpy().tolist()
    late = datasets.load("digits", "train", step=1129, epochs=2).take(2)
    (last, _), (first, _) = late
    assert np.array_equal(last, x[1129])
    [(x, _)] = datasets.load("digits", "train", 1, epoch=1).take(1)
    assert np.array_equal(first, x[0])


def test_evaluation_splits_come_in_base_order():
    for split in ("validation", "test"):
        dataset = datasets.load("digits", split, 100)
        for _ in range(2):
            y = np.concatenate([y for _, y in dataset])
            assert np.array_equal(y, datasets.arrays("digits", split)[1])
    ordered = datasets.load("digits", "train", 1130, shuffle=False)
    assert np.array_equal(next(iter(ordered))[0], datasets.arrays("digits", "train")[0])
    shuffled = datasets.load("digits", "test", 540, shuffle=True)
    assert batches(shuffled) != batches(datasets.load("digits", "test", 540))


def test_order_follows_from_seed_and_epoch():
    def first(**arguments):
        return batches(datasets.load("digits", "train", 64, **arguments))

    assert first(seed=3, epoch=5) == first(seed=3, epoch=5)
    orders = {
        str(first(seed=seed, epoch=epoch)) for seed in range(3) for epoch in range(3)
    }
    assert len(orders) == 9
    assert first(seed=2**63 - 1) == first(seed=2**63 - 1) != first()
    assert first(seed=np.int64(1), epoch=np.int32(1)) == first(seed=1, epoch=1)


def test_the_order_is_this_one_on_every_machine():
    _, labels = next(iter(datasets.load("digits", "train", 12, seed=1, epoch=2)))
    assert labels.numpy().tolist() == [2, 7, 7, 2, 4, 9, 8, 4, 2, 4, 2, 8]


@pytest.mark.parametrize("batch_size", [64, 113])
def test_start_anywhere_gives_what_the_stream_gives_there(batch_size):
    """1,130 = 10 · 113: with and without a partial batch."""
    endless = datasets.load("digits", "train", batch_size, epochs=None)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    steps = len(datasets.load("digits", "train", batch_size))
    stream = batches(endless.take(3 * steps))
    for epoch, step in [(0, 0), (0, 1), (1, steps - 1), (2, 3)]:
        begin = epoch * steps + step
        start = dict(epoch=epoch, step=step)
        part = datasets.load("digits", "train", batch_size, epochs=None, **start)
        assert batches(part.take(3 * steps - begin)) == stream[begin:]
        part = datasets.load("digits", "train", batch_size, epochs=3 - epoch, **start)
        assert len(part) == 3 * steps - begin
        assert batches(part) == stream[begin:]


def test_an_endless_stream_keeps_epochs_apart():
    dataset = datasets.load("digits", "train", 500, epochs=None)
    lengths = [len(y) for _, y in dataset.take(6)]
    assert lengths == [500, 500, 130] * 2
    assert batches(dataset.take(6)) == batches(dataset.take(6))


def test_arrays_stream_as_their_split_does():
    images, labels = datasets.arrays("digits", "train")
    for arguments in ({"seed": 3, "epochs": 2}, {"shuffle": False}):
        arguments["drop_remainder"] = True
        mine = datasets.from_arrays(images, labels, 64, **arguments)
        split = datasets.load("digits", "train", 64, **arguments)
        assert batches(mine) == batches(split)
    with pytest.raises(ValueError, match="Received: 3 images, 2 labels, batch_size=1"):
        datasets.from_arrays(images[:3], labels[:2], 1)


def test_drop_remainder():
    dataset = datasets.load("digits", "train", 500, epochs=2, drop_remainder=True)
    assert dataset.element_spec[0].shape == (500, 8, 8, 1)
    assert len(dataset) == 4 and [len(y) for _, y in dataset] == [500] * 4
    late = dict(epoch=1, step=1, drop_remainder=True)
    [last] = batches(datasets.load("digits", "train", 500, **late))
    assert last == batches(datasets.load("digits", "train", 500, epoch=1))[1]


def test_each_pass_goes_on_where_the_one_before_ended():
    for arguments in ({}, {"epochs": 2}, {"epochs": 2, "step": 5, "epoch": 3}):
        a, b = (datasets.load("digits", "train", 64, **arguments) for _ in range(2))
        passes = [batches(a) for _ in range(3)]
        assert passes == [batches(b) for _ in range(3)]
        assert {len(p) for p in passes} == {len(a)}
        stream = datasets.load("digits", "train", 64, **{**arguments, "epochs": None})
        assert sum(passes, []) == batches(stream.take(3 * len(a)))


def test_an_iterator_that_is_not_read_begins_no_pass():
    dataset = datasets.load("digits", "train", 64)
    unread = [iter(dataset) for _ in range(3)]
    assert batches(dataset) == batches(datasets.load("digits", "train", 64))
    del unread


def classifier():
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Rescaling(1 / 16), keras.layers.Flatten()]
    model = keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(10)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("sgd", loss, metrics=["accuracy"])
    return model


def fitted(dataset, **arguments):
    model = classifier()
    model.fit(dataset, shuffle=False, verbose=0, **arguments)
    return model.get_weights()[0]


def test_fit_sees_a_new_order_each_epoch():
    """The weights tell the order: SGD ends elsewhere when batches differ."""
    validation = datasets.load("digits", "validation", 64)
    once = fitted(
        datasets.load("digits", "train", 64), epochs=3, validation_data=validation
    )
    stream = datasets.load("digits", "train", 64, epochs=3)
    endless = datasets.load("digits", "train", 64, epochs=None)
    one_order = datasets.load("digits", "train", 64).take(18).cache()
    other_seed = datasets.load("digits", "train", 64, seed=1)
    assert np.abs(once - fitted(stream)).max() < 1e-5
    assert np.abs(once - fitted(endless, epochs=3, steps_per_epoch=18)).max() < 1e-5
    assert np.abs(once - fitted(one_order, epochs=3)).max() > 1e-4
    assert np.abs(once - fitted(other_seed, epochs=3)).max() > 1e-4


MIRRORED = """
import warnings
import numpy as np
import tensorflow as tf
[cpu] = tf.config.list_physical_devices("CPU")
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
from test_datasets import batches, classifier, datasets, fitted

strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])

def fitted_mirrored(dataset, **arguments):
    with strategy.scope():
        model = classifier()
    model.fit(dataset, shuffle=False, verbose=0, **arguments)
    return model.get_weights()[0]

def labels(dataset):
    parts = [strategy.experimental_local_results(y) for _, y in dataset]
    return [np.concatenate(part).tolist() for part in parts]

with strategy.scope():
    inside = datasets.load("digits", "train", 64)
outside = datasets.load("digits", "train", 64)
plain = datasets.load("digits", "train", 64)
inside, outside = map(strategy.experimental_distribute_dataset, (inside, outside))
for _ in range(3):
    expected = [y for _, y in batches(plain)]
    assert labels(inside) == labels(outside) == expected

steps = dict(epochs=2, steps_per_epoch=18)
def endless():
    return datasets.load("digits", "train", 64, epochs=None)
one, two = fitted(endless(), **steps), fitted_mirrored(endless(), **steps)
assert np.abs(one - two).max() < 1e-5, "endless"

a = fitted_mirrored(datasets.load("digits", "train", 64), epochs=2)
b = fitted_mirrored(datasets.load("digits", "train", 64), epochs=2)
assert np.abs(a - b).max() < 1e-5, "repeatable"
one_order = datasets.load("digits", "train", 64).take(18).cache()
assert np.abs(a - fitted_mirrored(one_order, epochs=2)).max() > 1e-4, "new order"
"""


def test_mirrored_strategy_gives_the_same_stream():
    """In a process of its own, which has two logical CPUs."""
    run = subprocess.run(
        [sys.executable, "-c", MIRRORED],
        cwd=__file__.rpartition("test_datasets")[0],
        capture_output=True,
        text=True,
    )
    assert run.returncode == 0, run.stderr[-3000:]


def test_no_tuner_holds_back_the_end_of_fit():
    """TF's sleeps for up to a minute, and now and then `fit` waits until it wakes."""
    assert datasets.load("digits", "train", 64).options().autotune.enabled is False


def test_prepared_data_streams(mnist_dir, monkeypatch, fresh):
    monkeypatch.setenv("TFDS_DATA_DIR", str(mnist_dir))
    dataset = datasets.load("mnist", "train", 32, download=False)
    assert [len(y) for _, y in dataset] == [32, 32, 26]
    images, labels = datasets.arrays("mnist", "test", data_dir=mnist_dir)
    known = dict(zip(rows(made_up(30, seed=1)[0]), made_up(30, seed=1)[1], strict=True))
    assert [known[row] for row in rows(images)] == labels.tolist()


# Errors.


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            ("minst", "train"),
            "`name` must be one of 'mnist', .*name='minst'",
        ),
        (("cifar", "train"), "must be one of 'cifar10', 'cifar100'"),
        ((None, "train"), "Received: name=None"),
        (("digits", "tests"), "`split` must be one of 'test', .*split='tests'"),
        (("digits", "valid"), "must be one of 'validation'"),
    ],
)
def test_unknown_names_and_splits(arguments, message):
    for function in (datasets.load, datasets.arrays):
        with pytest.raises(ValueError, match=message):
            function(*arguments)


def test_info_of_an_unknown_name():
    with pytest.raises(ValueError, match="`name` must be one of 'digits'"):
        datasets.info("digit")


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"batch_size": 0}, "`batch_size` must be an integer from 1 to"),
        ({"batch_size": 6.4}, "Received: batch_size=6.4"),
        ({"batch_size": True}, "Received: batch_size=True"),
        ({"epoch": -1}, "`epoch` must be an integer from 0 .*Received: epoch=-1"),
        ({"step": -1}, "`step` must be an integer from 0 .*Received: step=-1"),
        ({"step": 1.0}, "Received: step=1.0"),
        ({"epochs": 0}, "`epochs` must be an integer from 1 .*Received: epochs=0"),
        ({"epochs": -1}, "Received: epochs=-1"),
        ({"seed": "1"}, "`seed` must be an integer from 0 .*Received: seed='1'"),
        ({"seed": None}, "Received: seed=None"),
        ({"seed": -1}, "Received: seed=-1"),
        ({"seed": 2**63}, "Received: seed=9223372036854775808"),
        ({"shuffle": 1000}, "`shuffle` must be True, False or None"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_read(
    arguments, message, fresh, monkeypatch
):
    monkeypatch.setattr("zoo.datasets.digits.read", None)
    with pytest.raises(ValueError, match=message):
        datasets.load("digits", "train", **{"batch_size": 64, **arguments})


def test_step_beyond_the_epoch():
    message = "`step` must be less than the 18 steps .*epoch=3, step=0. Received: step="
    for step in (18, 100):
        with pytest.raises(ValueError, match=message):
            datasets.load("digits", "train", 64, epoch=2, step=step)
    with pytest.raises(ValueError, match="less than the 17 steps"):
        datasets.load("digits", "train", 64, step=17, drop_remainder=True)
    assert len(datasets.load("digits", "train", 64, step=17)) == 1


def test_too_few_examples_for_a_batch():
    with pytest.raises(ValueError, match="'digits' has 127. .*batch_size=128"):
        datasets.load("digits", "validation", 128, drop_remainder=True, epochs=None)


def test_data_that_is_not_prepared(tmp_path, fresh):
    pytest.importorskip("tensorflow_datasets")
    message = f"'cifar10' is not prepared in {tmp_path}: give download=True, or "
    with pytest.raises(FileNotFoundError, match=message):
        datasets.load("cifar10", "train", 128, data_dir=tmp_path, download=False)


@pytest.mark.parametrize("name", TFDS_NAMES)
def test_without_network_one_attempt_is_enough(name, tmp_path, fresh, monkeypatch):
    requests = pytest.importorskip("requests")
    pytest.importorskip("tensorflow_datasets")
    asked = []

    def refuse(url, **arguments):
        asked.append(url)
        raise requests.ConnectionError("no route")

    monkeypatch.setattr("requests.head", refuse)
    message = rf"{name!r} is not prepared in .*could not be .*tfds.load\({name!r}\)"
    with pytest.raises(FileNotFoundError, match=message) as caught:
        datasets.arrays(name, "test", data_dir=tmp_path)
    assert isinstance(caught.value.__cause__, requests.ConnectionError)
    assert len(asked) == 1 and asked[0].startswith("http")


def test_a_slow_host_is_left_to_the_download(monkeypatch):
    requests = pytest.importorskip("requests")

    def wait(url, **arguments):
        raise requests.ReadTimeout

    class Builder:
        url_infos = {"https://example.org/data.gz": None}

    monkeypatch.setattr("requests.head", wait)
    images_module._ask_host(Builder())


def test_importing_does_not_import_what_only_reading_needs():
    """Keras imports scikit-learn itself, but not its data sets."""
    code = (
        "import sys, zoo; zoo.datasets.names(); zoo.datasets.info('cifar10'); "
        "assert not {'tensorflow_datasets', 'sklearn.datasets'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
