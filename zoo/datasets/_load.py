import difflib
import os
from numbers import Integral
from typing import NamedTuple

import numpy as np
import tensorflow as tf

from zoo.datasets import digits, imagenet, images, text
from zoo.datasets._info import DatasetInfo
from zoo.datasets._splits import base_order, held_out
from zoo.datasets._stream import steps_per_epoch, stream

# Sets that are held in memory. ImageNet is too large for that.
_IN_MEMORY = {"digits": digits.DIGITS, **images.IMAGES}
_SPLITS = ("train", "validation", "train+validation", "test")


class _Part(NamedTuple):
    """The training or the test set, in base order, its validation part at the end."""

    images: tf.Tensor
    labels: tf.Tensor
    num_train: int

    def bounds(self, split: str) -> tuple[int, int]:
        """The first example of a split, and the one after its last."""
        first = self.num_train if split == "validation" else 0
        return first, self.num_train if split == "train" else len(self.labels)

    def pipeline(self, first: int, end: int, *, seed: int, shuffle: bool):
        """How `stream` is to read the examples `first` … `end − 1`."""

        def order(number):
            indices = tf.range(first, end, dtype=tf.int64)
            if shuffle:
                key = tf.stack([tf.constant(seed, tf.int64), number])
                indices = tf.random.experimental.stateless_shuffle(indices, key)
            return tf.data.Dataset.from_tensor_slices(indices)

        def examples(indices):
            return tf.gather(self.images, indices), tf.gather(self.labels, indices)

        return order, examples


_parts: dict[tuple, _Part] = {}  # What this process has read.


def names() -> list[str]:
    """Names of the data sets.

    Returns:
        A list of names for `load`, `arrays` and `info`.

    Example:
        >>> import zoo
        >>> zoo.datasets.names()
        ['digits', 'mnist', 'fashion_mnist', 'cifar10', 'cifar100', 'imagenet2012',
         'docstrings', 'python_docs', 'ag_news_subset', 'lm1b']
    """
    return [*_IN_MEMORY, imagenet.NAME, *text.NAMES]


def info(name: str) -> DatasetInfo:
    """Describes a data set, without reading it unless it is text.

    Args:
        name: One of `names()`.

    Returns:
        A `DatasetInfo`: shape of an image, classes, range of a pixel, sizes.

    Raises:
        ValueError: If there is no such data set.

    Example:
        >>> import zoo
        >>> zoo.datasets.info("cifar10").image_shape
        (32, 32, 3)
    """
    _check_known("name", name, names())
    if name in text.NAMES:
        return text.describe(name, _directory(None), download=True)
    return imagenet.describe() if name == imagenet.NAME else _IN_MEMORY[name]


def arrays(
    name: str,
    split: str,
    *,
    data_dir: str | os.PathLike | None = None,
    download: bool = True,
) -> tuple[np.ndarray, np.ndarray]:
    """Gives a split as NumPy arrays, in its base order.

    A data set is read once a process; the arrays share its memory, and cannot be
    written to.

    Args:
        name: As in `load`, but not "imagenet2012".
        split: As in `load`.
        data_dir: As in `load`.
        download: As in `load`.

    Returns:
        images: `(examples, height, width, channels)`, uint8; of text `(examples,)`,
            bytes.
        labels: `(examples,)`, int64; of a language model `(examples, words)`.

    Raises:
        ValueError: If there is no such data set or split, or if it is too large.
        FileNotFoundError: If the data is not there and cannot be downloaded.

    Example:
        >>> import zoo
        >>> images, labels = zoo.datasets.arrays("digits", "test")
        >>> images.shape
        (540, 8, 8, 1)
    """
    _check_known("name", name, names())
    _check_known("split", split, _SPLITS)
    if name == imagenet.NAME:
        raise ValueError(
            f"`name` must be a data set that fits into memory; stream this one with "
            f"`zoo.datasets.load`. Received: name={name!r}"
        )
    part = _part(name, split, _directory(data_dir), download)
    first, end = part.bounds(split)
    return _view(part.images)[first:end], _view(part.labels)[first:end]


def from_arrays(
    images: np.ndarray,
    labels: np.ndarray,
    batch_size: int,
    *,
    seed: int = 0,
    shuffle: bool = True,
    epochs: int | None = 1,
    drop_remainder: bool = False,
) -> tf.data.Dataset:
    """Streams arrays as `load` streams a split: for folds, or data of one's own.

    Args:
        images: `(examples, height, width, channels)`.
        labels: `(examples,)`, integers.
        batch_size, seed, epochs, drop_remainder: As in `load`.
        shuffle: Whether each epoch gets an order of its own. Defaults to True.

    Returns:
        A `tf.data.Dataset` of batches, as from `load`.

    Raises:
        ValueError: If there are no examples for a batch, or not as many images as
            labels.

    Example:
        >>> import zoo
        >>> images, labels = zoo.datasets.arrays("digits", "train")
        >>> len(zoo.datasets.from_arrays(images[:100], labels[:100], 64))
        2
    """
    batch_size = _integer("batch_size", batch_size, 1)
    count = len(labels)
    steps = steps_per_epoch(count, batch_size, drop_remainder)
    if len(images) != count or steps == 0:
        raise ValueError(
            "`images` and `labels` must be as many, and enough for a batch. Received: "
            f"{len(images)} images, {count} labels, batch_size={batch_size}"
        )
    with tf.device("CPU:0"):
        part = _Part(tf.constant(images), tf.constant(labels), count)
    order, examples = part.pipeline(0, count, seed=seed, shuffle=shuffle)
    return stream(
        order,
        examples,
        count=count,
        batch_size=batch_size,
        epoch=0,
        step=0,
        epochs=epochs,
        drop_remainder=drop_remainder,
    )


def load(
    name: str,
    split: str,
    batch_size: int | None = None,
    *,
    seed: int = 0,
    shuffle: bool | None = None,
    epoch: int = 0,
    step: int = 0,
    epochs: int | None = 1,
    drop_remainder: bool = False,
    limit: int | None = None,
    image_size: int | None = None,
    data_dir: str | os.PathLike | None = None,
    download: bool = True,
) -> tf.data.Dataset:
    """Streams a split of a data set.

    The order of an epoch is a pure function of `seed` and of the number of the
    epoch, so a stream can be taken up at any epoch and step, and then gives what it
    would have given there. Batches never mix two epochs.

    **ImageNet** is read from its files as it is needed. Its training splits come as
    random crops, a pure function of `seed`, the epoch and the place in it: 8 … 100 %
    of the area of the image, of an aspect of 3/4 … 4/3, stretched to `image_size`²
    and mirrored half of the time. The others, and all with `shuffle=False`, come as
    the central crop of the image, whose shorter side is scaled to 256 for an
    `image_size` of 224 and to `image_size` for any other. A start at `step` reads
    the records before it, without decoding them: at the end of an epoch all 140 GB.

    **Passes.** Each pass over a finite data set goes on where the pass before it
    ended. So `model.fit(load("digits", "train", 64), shuffle=False, epochs=30)`
    sees 30 different orders, those of the epochs 0 … 29. Whoever reads a single
    batch has begun a pass: `fit` does so before training if there is a
    `tf.distribute` strategy, and then trains on the epochs 1 … 30. An endless
    stream (`epochs=None`) has no passes: it starts at `epoch` and `step` whenever it
    is iterated over. With `steps_per_epoch` it is the one for training that is the
    same under every strategy and can be resumed exactly.

    **Splits.** "train" and "validation" are nine tenths and one tenth of the
    training set. The validation part of a class of n examples is the n / 10
    (rounded, halves up) with the smallest SHA-256 of their pixels; equal images stay
    in one split. Within a split, the base order is that of the hash; in
    "train+validation", "train" comes first. Neither depends on the order of a file.
    ImageNet goes by position instead, as hashing would take reading and decoding all
    of it first: "train" is `train[:90%]` and "validation" `train[90%:]` of what
    TensorFlow Datasets prepares, "test" its "validation", and the base order is that
    of the files. As it sorts by a hash of the file names, these too are samples of
    all classes and the same everywhere, but not exactly balanced.

    **Text** comes as UTF-8 strings. "docstrings" are those of NumPy, scikit-learn,
    Keras and TensorFlow, whose label is the package, 3,000 of each at most;
    "python_docs" is a language model of Python's `pydoc_data.topics` and NumPy's
    docstrings: 35 words of lower case, whose labels are the words that follow, 6,000
    classes of which 0 are all other words. Both are read from the installed packages,
    parsed, not imported, and differ between their versions: `info(name).sha256` tells.
    A tenth of the modules and topics is "validation", a tenth is "test". Of
    "ag_news_subset" (label: kind of news) and "lm1b" (language model of 10,000 classes,
    200,000 of its sentences) a tenth of the training set is "validation".

    Args:
        name: "digits" (8×8, in scikit-learn: no download), "mnist",
            "fashion_mnist", "cifar10", "cifar100" or "imagenet2012" (through
            TensorFlow Datasets); "docstrings", "python_docs" (no download),
            "ag_news_subset" or "lm1b" (through TensorFlow Datasets).
        split: "train", "validation", "train+validation" or "test".
        batch_size: Examples in a batch. Defaults to None: single examples.
        seed: Seed of the order and of random crops, 0 … 2⁶³ − 1. Defaults to 0:
            repeatable unless asked otherwise.
        shuffle: Whether each epoch gets an order of its own. Defaults to None: yes
            for "train" and "train+validation", no for the others, where order
            changes nothing. Without it every epoch is in base order.
        epoch: Number of the epoch to start with. Defaults to 0.
        step: Number of the batch (or the single example) in that epoch to start
            with. Defaults to 0. A finite data set is then `step` batches shorter,
            in each pass: its length does not change.
        epochs: Number of epochs in a pass, counting the first, or None for an
            endless stream. Defaults to 1, what `fit` calls an epoch.
        drop_remainder: Whether to leave out the last batch of an epoch if it is not
            full. Defaults to False: every example counts.
        limit: Take only the first so many examples of the split in its base order: a
            sample that is the same everywhere. Defaults to None: all.
        image_size: Height and width of the images of ImageNet. Defaults to None: 224.
            The other sets have one size.
        data_dir: Where TensorFlow Datasets keeps prepared data. Defaults to None:
            `$TFDS_DATA_DIR`, else `~/tensorflow_datasets`. Not used for digits.
        download: Whether to download what is not there. Defaults to True. ImageNet
            can only be downloaded by hand.

    Returns:
        A `tf.data.Dataset` of `(image, label)` of known or infinite cardinality:

        - image: `(height, width, channels)`, uint8, the pixels as the data set has
          them (of ImageNet: crops), with `batch_size`
          `(batch, height, width, channels)`;
        - label: `()`, int64, with `batch_size` `(batch,)`; text as above.

    Raises:
        ValueError: If an argument is not one of those above.
        FileNotFoundError: If the data is not there and cannot be downloaded.

    Example:
        >>> import zoo
        >>> dataset = zoo.datasets.load("digits", "train", 64)
        >>> images, labels = next(iter(dataset))
        >>> len(dataset), images.shape
        (18, TensorShape([64, 8, 8, 1]))

    Reference:
        - digits: scikit-learn's `load_digits`; "test" is the part that
          `train_test_split(test_size=0.3, random_state=0, stratify=labels)` gives.
        - The others: TensorFlow Datasets, whose "test" is that of the publication.
    """
    _check_known("name", name, names())
    _check_known("split", split, _SPLITS)
    if batch_size is not None:
        batch_size = _integer("batch_size", batch_size, 1)
    seed = _integer("seed", seed, 0, 2**63 - 1)
    epoch = _integer("epoch", epoch, 0)
    step = _integer("step", step, 0)
    if epochs is not None:
        epochs = _integer("epochs", epochs, 1)
    if shuffle is not None and not isinstance(shuffle, bool):
        raise ValueError(
            "`shuffle` must be True, False or None (the default of the split). "
            f"Received: shuffle={shuffle!r}"
        )
    if limit is not None:
        limit = _integer("limit", limit, 1)
    image_size = _image_size(name, image_size)
    data_dir = _directory(data_dir)
    if name == imagenet.NAME:
        part = imagenet.open_shards(split, image_size, data_dir)
        first, end = part.bounds()
    else:
        part = _part(name, split, data_dir, download)
        first, end = part.bounds(split)
    if limit is not None:
        end = min(end, first + limit)
    if shuffle is None:
        shuffle = split.startswith("train")
    steps = steps_per_epoch(end - first, batch_size, drop_remainder)
    if steps == 0:
        raise ValueError(
            f"`split` must have examples for a batch, {name!r} has {end - first}. "
            f"Received: split={split!r}, batch_size={batch_size}, "
            f"drop_remainder={drop_remainder}"
        )
    if step >= steps:
        raise ValueError(
            f"`step` must be less than the {steps} steps of an epoch; the next epoch "
            f"is epoch={epoch + 1}, step=0. Received: step={step}"
        )
    order, examples = part.pipeline(first, end, seed=seed, shuffle=shuffle)
    return stream(
        order,
        examples,
        count=end - first,
        batch_size=batch_size,
        epoch=epoch,
        step=step,
        epochs=epochs,
        drop_remainder=drop_remainder,
    )


def _directory(data_dir: str | os.PathLike | None) -> str:
    data_dir = data_dir or os.environ.get("TFDS_DATA_DIR") or "~/tensorflow_datasets"
    return os.path.expanduser(data_dir)


def _image_size(name: str, image_size: int | None) -> int:
    if name == imagenet.NAME:
        own = imagenet.IMAGE_SIZE
        return own if image_size is None else _integer("image_size", image_size, 1)
    own = None if name in text.NAMES else _IN_MEMORY[name].image_shape[0]
    if image_size is not None and image_size != own:
        raise ValueError(
            f"`image_size` must be None{f' or {own}' if own else ''} for {name!r}. "
            f"Received: image_size={image_size!r}"
        )
    return own


def _part(name: str, split: str, data_dir: str, download: bool) -> _Part:
    """The part of a data set that a split belongs to, read at the first call."""
    part = "test" if split == "test" else "train"
    key = name, part, data_dir
    if key not in _parts:
        marked = None
        if name == "digits":
            x, y = digits.read(part)
        elif name in text.NAMES:
            x, y, marked = text.read(name, part, data_dir, download)
        else:
            x, y = images.read(name, part, data_dir, download)
        order = base_order(x, y)
        x, y = x[order], y[order]
        num_train = len(y)
        if part == "train":
            marked = held_out(x, y) if marked is None else marked[order]
            num_train -= marked.sum()
            order = np.argsort(marked, kind="stable")
            x, y = x[order], y[order]
        with tf.device("CPU:0"):  # tf.data gathers there, also beside a GPU.
            x = tf.constant(list(x) if x.dtype == object else x)
            _parts[key] = _Part(x, tf.constant(y), int(num_train))
    return _parts[key]


def _view(tensor: tf.Tensor) -> np.ndarray:
    """A tensor's memory as an array that cannot be written to."""
    array = np.asarray(tensor)
    array.setflags(write=False)
    return array


def _check_known(argument: str, value: str, known) -> None:
    if value not in known:
        nearest = difflib.get_close_matches(str(value), known, len(known), cutoff=0)
        raise ValueError(
            f"`{argument}` must be one of {', '.join(map(repr, nearest))}. "
            f"Received: {argument}={value!r}"
        )


def _integer(argument: str, value: int, least: int, most=2**31 - 1) -> int:
    is_integer = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_integer or not least <= value <= most:
        raise ValueError(
            f"`{argument}` must be an integer from {least} to {most}. "
            f"Received: {argument}={value!r}"
        )
    return int(value)
