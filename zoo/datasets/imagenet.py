"""ImageNet (ILSVRC 2012) through TensorFlow Datasets, streamed from its shards."""

from functools import cache
from typing import NamedTuple

import tensorflow as tf

from zoo.datasets._info import DatasetInfo

NAME = "imagenet2012"
IMAGE_SIZE = 224
CYCLE = 32  # Shards that are read side by side.
BLOCK = 4096  # Records that are shuffled together: 0.45 GB, at 110 kB each.


@cache
def describe() -> DatasetInfo:
    """Describes ImageNet. Its class names are the 1,000 wnids ("n01440764", …).

    They stand in TensorFlow Datasets, which is imported here and not before.

    Returns:
        A `DatasetInfo` with the official numbers of examples.
    """
    import tensorflow_datasets as tfds

    return DatasetInfo(
        name=NAME,
        image_shape=(IMAGE_SIZE, IMAGE_SIZE, 3),
        class_names=tuple(tfds.builder(NAME).info.features["label"].names),
        pixel_range=(0, 255),
        num_train=1153050,  # train[:90%] of 1,281,167
        num_validation=128117,
        num_test=50000,
    )


class Shards(NamedTuple):
    """A split as TensorFlow Datasets has prepared it: encoded images in files.

    Of training images "train" are the first nine tenths, `train[:90%]`, "validation"
    is the last, `train[90%:]`, both by position in the files and not by a hash of the
    pixels: that would take reading and decoding 140 GB before the first step.
    Positions do as well. TensorFlow Datasets sorts what it prepares by a hash of the
    file names, so that either part is a sample of all classes, and the same one on
    every machine. It is not exactly balanced, and images that occur twice are not
    kept together. "test" is the official validation set, as in the papers: the
    labels of the official test set were never published.

    Args:
        builder: The `tfds.core.DatasetBuilder` of the prepared data.
        split: "train", "validation", "train+validation" or "test".
        image_size: Height and width of the images to give.
    """

    builder: object
    split: str
    image_size: int

    @property
    def part(self) -> str:
        """The split of TensorFlow Datasets that this one belongs to."""
        return "validation" if self.split == "test" else "train"

    def bounds(self) -> tuple[int, int]:
        """The first record of the split in its part, and the one after its last."""
        splits = self.builder.info.splits
        end = splits[self.part].num_examples
        if self.split in ("test", "train+validation"):
            return 0, end
        num_train = splits["train[:90%]"].num_examples
        return (0, num_train) if self.split == "train" else (num_train, end)

    def pipeline(self, first: int, end: int, *, seed: int, shuffle: bool):
        """How `stream` is to read the records `first` … `end − 1`.

        Shuffled, an epoch takes the shards in an order of its own, reads `CYCLE` of
        them side by side, a record from each in turn, and shuffles `BLOCK` after
        `BLOCK` of these records. Nothing but the seed, the number of the epoch and
        the place in it enters, not even TensorFlow's global seed, which
        `tf.data.Dataset.shuffle` would add to its own.

        Args:
            first: First record.
            end: The record after the last.
            seed: Seed of order and augmentation.
            shuffle: Whether an epoch has an order of its own. If so, and if the split
                is one for training, images are augmented.

        Returns:
            order: Function of the number of an epoch that returns a `tf.data.Dataset`
                of (record, key), where the key is all that its augmentation draws on.
            examples: Function of these, single or in a batch, that returns images and
                labels.
        """
        files = self.builder.info.splits[f"{self.part}[{first}:{end}]"]
        files = files.file_instructions  # Only the first and last are read in part.
        decode = _decode_central
        if shuffle and self.split.startswith("train"):
            decode = _decode_augmented

        def read(index):
            path = tf.gather([file.filename for file in files], index)
            skip = tf.gather(tf.constant([f.skip for f in files], tf.int64), index)
            take = tf.gather(tf.constant([f.take for f in files], tf.int64), index)
            return tf.data.TFRecordDataset(path).skip(skip).take(take)

        def order(number):
            keys = tf.stack([tf.constant(seed, tf.int64), number])
            of_shards, of_blocks, of_images = tf.unstack(tf.random.split(keys, 3))
            shards = tf.range(len(files), dtype=tf.int64)
            if not shuffle:
                records = tf.data.Dataset.from_tensor_slices(shards).flat_map(read)
                return records.map(lambda record: (record, of_images))
            shards = tf.random.experimental.stateless_shuffle(shards, of_shards)

            def mixed(number, block):
                key = tf.random.fold_in(of_blocks, number)
                places = tf.range(tf.size(block))
                places = tf.random.experimental.stateless_shuffle(places, key)
                return tf.gather(block, places)

            def with_key(place, record):
                return record, tf.random.fold_in(of_images, place)

            return (
                tf.data.Dataset.from_tensor_slices(shards)
                .interleave(
                    read,
                    cycle_length=CYCLE,
                    num_parallel_calls=tf.data.AUTOTUNE,
                    deterministic=True,
                )
                .batch(BLOCK)
                .enumerate()
                .map(mixed)
                .prefetch(1)  # The next block is read while this one is used.
                .unbatch()
                .enumerate()
                .map(with_key)
            )

        def example(record, key):
            features = {
                "image": tf.io.FixedLenFeature((), tf.string),
                "label": tf.io.FixedLenFeature((), tf.int64),
            }
            columns = tf.io.parse_single_example(record, features)
            size = self.image_size
            image = decode(columns["image"], size, key)
            return tf.ensure_shape(image, (size, size, 3)), columns["label"]

        def examples(records, keys):
            if records.shape.rank == 0:
                return example(records, keys)
            return tf.map_fn(
                lambda pair: example(*pair),
                (records, keys),
                fn_output_signature=(tf.uint8, tf.int64),
            )

        return order, examples


def open_shards(split: str, image_size: int, data_dir: str) -> Shards:
    """Finds the prepared shards of a split.

    Args:
        split: As in `zoo.datasets.load`.
        image_size: Height and width of the images to give.
        data_dir: Where TensorFlow Datasets keeps prepared data.

    Raises:
        FileNotFoundError: If the split is not prepared there. Nobody can download
            ImageNet without an account, so nothing is tried.

    Reference:
        O. Russakovsky et al., *ImageNet Large Scale Visual Recognition Challenge*,
        IJCV 115, 2015, arXiv:1409.0575.
    """
    import tensorflow_datasets as tfds

    # Any version 5 that is on the disk: they differ in the official test set only.
    shards = Shards(tfds.builder(f"{NAME}:5.*.*", data_dir=data_dir), split, image_size)
    prepared = shards.builder.is_prepared()
    if not prepared or shards.part not in shards.builder.info.splits:
        raise FileNotFoundError(
            f"The split {split!r} of {NAME!r} is not prepared in {data_dir}: give a "
            "directory that has it as `data_dir`, or download ILSVRC2012_img_train.tar "
            "and ILSVRC2012_img_val.tar by hand from "
            f"https://image-net.org/download-images into {data_dir}/downloads/manual "
            f"and prepare them with `tfds.load({NAME!r}, data_dir={data_dir!r})`."
        )
    return shards


def _decode_augmented(encoded, size: int, key):
    """Decodes a crop of 8 … 100 % of the image, stretched to size², maybe mirrored."""
    box_key, mirror_key = tf.unstack(tf.random.split(key, 2))
    is_jpeg = tf.io.is_jpeg(encoded)  # One file of ImageNet was a PNG.

    def whole():
        return tf.io.decode_jpeg(encoded, channels=3)  # Also decodes a PNG.

    shape = tf.cond(
        is_jpeg,
        lambda: tf.io.extract_jpeg_shape(encoded),
        lambda: tf.shape(whole()),
    )
    # Szegedy et al. 2015, as in the papers: area 8 … 100 %, aspect 3/4 … 4/3.
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        shape,
        tf.constant([[[0.0, 0.0, 1.0, 1.0]]]),
        seed=box_key,
        min_object_covered=0.0,
        aspect_ratio_range=(3 / 4, 4 / 3),
        area_range=(0.08, 1.0),
    )
    image = tf.cond(
        is_jpeg,
        lambda: tf.io.decode_and_crop_jpeg(
            encoded, tf.concat([begin[:2], extent[:2]], 0), channels=3
        ),
        lambda: tf.slice(whole(), begin, extent),
    )
    image = tf.image.stateless_random_flip_left_right(image, mirror_key)
    return _resized(image, (size, size))


def _decode_central(encoded, size: int, key):
    """Decodes the central size² of the image with its shorter side scaled."""
    del key
    # 256 for crops of 224, else the size of the crop: He et al. 2016 test crops of
    # 320 of images whose shorter side is 320.
    shorter = 256 if size == 224 else size
    image = tf.io.decode_jpeg(encoded, channels=3)
    shape = tf.shape(image)[:2]
    shape = shape * shorter // tf.reduce_min(shape)
    image = _resized(image, shape)
    top, left = tf.unstack((shape - size) // 2)
    return image[top : top + size, left : left + size]


def _resized(image, shape):
    image = tf.image.resize(image, shape, antialias=True)
    return tf.saturate_cast(tf.round(image), tf.uint8)
