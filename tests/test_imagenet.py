"""ImageNet, on made-up archives that TensorFlow Datasets prepares as the real ones."""

import io
import tarfile

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from zoo import datasets
from zoo.datasets import imagenet

WNIDS = ("n01440764", "n01443537", "n01484850", "n01491361")  # labels 0 … 3
TRAIN, TEST = 48, 8
GREY, PNG, CMYK = 7, 8, 9  # training images that are not like the others
SIZES = {"train": 43, "validation": 5, "train+validation": TRAIN, "test": TEST}


def size_of(number):
    """(width, height) of a training image."""
    return 150 + 13 * (number % 7), 130 + 11 * (number % 5)


def picture(number, width, height):
    """Red grows from 0 to 255 from left to right, green from top to bottom; blue is
    five times the number of the image."""
    pixels = np.zeros((height, width, 3), np.uint8)
    pixels[..., 0] = np.linspace(0, 255, width).round()
    pixels[..., 1] = np.linspace(0, 255, height).round()[:, None]
    pixels[..., 2] = 5 * number
    return pixels


def encoded(pixels, mode="RGB", format="JPEG"):
    file, options = io.BytesIO(), {}
    if format == "JPEG":
        options = {"quality": 95, "subsampling": 0}
    Image.fromarray(pixels).convert(mode).save(file, format, **options)
    return file.getvalue()


def write_tar(path, files):
    with tarfile.open(path, "w") as archive:
        for name, content in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(content)
            archive.addfile(member, io.BytesIO(content))


TEST_SIZES = [(300, 256), (600, 512), (384, 512), (400, 320)] + [(260, 280)] * 4


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    """Two small archives like those of ImageNet, prepared in five shards each."""
    tfds = pytest.importorskip("tensorflow_datasets")
    path = tmp_path_factory.mktemp("imagenet")
    manual = path / "downloads" / "manual"
    manual.mkdir(parents=True)
    kinds = {GREY: ("L",), PNG: ("RGB", "PNG"), CMYK: ("CMYK",)}
    classes = {wnid: {} for wnid in WNIDS}
    for i in range(TRAIN):
        content = encoded(picture(i, *size_of(i)), *kinds.get(i, ()))
        classes[WNIDS[i % 4]][f"{WNIDS[i % 4]}_{i}.JPEG"] = content
    for wnid, files in classes.items():
        write_tar(path / wnid, files)
    tars = {f"{wnid}.tar": (path / wnid).read_bytes() for wnid in WNIDS}
    write_tar(manual / "ILSVRC2012_img_train.tar", tars)
    files = {
        f"ILSVRC2012_val_{i + 1:08}.JPEG": encoded(picture(i, *size), format="PNG")
        for i, size in enumerate(TEST_SIZES)
    }
    write_tar(manual / "ILSVRC2012_img_val.tar", files)
    builder = tfds.builder("imagenet2012", data_dir=path)
    builder.download_and_prepare(
        download_config=tfds.download.DownloadConfig(num_shards=5)
    )
    assert len(builder.info.splits["train"].filenames) == 5
    return path


@pytest.fixture
def load(data_dir, monkeypatch):
    """`load` of small crops, with blocks and cycles smaller than the made-up data."""
    monkeypatch.setattr(imagenet, "BLOCK", 16)
    monkeypatch.setattr(imagenet, "CYCLE", 3)

    def load(split, batch_size=None, **arguments):
        arguments = {"image_size": 32, "data_dir": data_dir, **arguments}
        return datasets.load("imagenet2012", split, batch_size, **arguments)

    return load


def in_file_order(data_dir, part):
    """(number of the image, label) of each record, as TensorFlow Datasets reads it."""
    tfds = pytest.importorskip("tensorflow_datasets")
    decoders = {"image": tfds.decode.SkipDecoding()}
    records = tfds.load(
        "imagenet2012", split=part, data_dir=data_dir, decoders=decoders
    )
    pairs = []
    for record in records:
        name = record["file_name"].numpy().decode().removesuffix(".JPEG")
        number = int(name.rpartition("_")[2]) - (part == "validation")
        pairs.append((number, int(record["label"])))
    return pairs


def numbers(dataset):
    """Which images these are. The grey one does not say so: it gives −1."""
    found = []
    for x, _ in dataset:
        x = x.numpy().astype(int)
        grey = (x[..., 0] == x[..., 1]).all()
        found.append(-1 if grey else round(x[..., 2].mean() / 5))
    return found


def batches(dataset):
    """Every batch, as (pixels as bytes, labels)."""
    return [(x.numpy().tobytes(), y.numpy().tolist()) for x, y in dataset]


# What it is.


def test_info_gives_the_official_numbers():
    info = datasets.info("imagenet2012")
    assert info.name == "imagenet2012" and info.image_shape == (224, 224, 3)
    assert info.num_classes == len(set(info.class_names)) == 1000
    assert info.class_names[:4] == WNIDS and info.class_names[-1] == "n15075141"
    assert info.pixel_range == (0, 255)
    sizes = info.num_train, info.num_validation, info.num_test
    assert sizes == (1153050, 128117, 50000) and sum(sizes[:2]) == 1281167


@pytest.mark.parametrize("split, size", SIZES.items())
def test_sizes_shapes_and_types(load, split, size):
    dataset = load(split, 9, image_size=None)
    assert dataset.element_spec == (
        tf.TensorSpec((None, 224, 224, 3), tf.uint8),
        tf.TensorSpec((None,), tf.int64),
    )
    assert len(dataset) == -(-size // 9)
    lengths = [len(y) for _, y in dataset]
    assert sum(lengths) == size and set(lengths[:-1]) <= {9}


def test_single_examples_and_full_batches(load):
    single = load("train")
    assert len(single) == 43 and single.element_spec == (
        tf.TensorSpec((32, 32, 3), tf.uint8),
        tf.TensorSpec((), tf.int64),
    )
    full = load("train", 20, drop_remainder=True)
    assert len(full) == 2 and full.element_spec[0].shape == (20, 32, 32, 3)
    x, y = (np.concatenate(column) for column in zip(*full, strict=True))
    singles = list(single.take(40))
    assert np.array_equal(x, [image for image, _ in singles])
    assert np.array_equal(y, [label for _, label in singles])


def test_splits_are_slices_in_the_order_of_the_files(load, data_dir):
    train = in_file_order(data_dir, "train")
    for split, expected in {
        "train": train[:43],
        "validation": train[43:],
        "train+validation": train,
        "test": in_file_order(data_dir, "validation"),
    }.items():
        dataset = load(split, shuffle=False)
        labels = [int(y) for _, y in dataset]
        assert labels == [label for _, label in expected]
        # The grey training image is number 7.
        found = [GREY if n == -1 else n for n in numbers(dataset)]
        assert found == [number for number, _ in expected]


def test_limit_takes_the_first_in_the_order_of_the_files(load, data_dir):
    train = [-1 if n == GREY else n for n, _ in in_file_order(data_dir, "train")]
    assert numbers(load("train", shuffle=False, limit=20)) == train[:20]
    assert numbers(load("validation", limit=3)) == train[43:46]
    assert sorted(numbers(load("train", limit=20))) == sorted(train[:20])
    assert len(load("train", limit=1000)) == 43


# Streams.


def test_an_epoch_has_every_image_once_in_an_order_of_its_own(load, data_dir):
    train = [-1 if n == GREY else n for n, _ in in_file_order(data_dir, "train")]
    orders = [numbers(load("train", epoch=epoch)) for epoch in range(3)]
    orders.append(numbers(load("train", seed=1)))
    for order in orders:
        assert sorted(order) == sorted(train[:43]) and order != train[:43]
    assert len(set(map(tuple, orders))) == 4


def test_the_stream_follows_from_the_seed(load):
    def stream(seed):
        return batches(load("train", 8, seed=seed, epochs=2))

    keras.utils.set_random_seed(1)
    first = stream(5)
    keras.utils.set_random_seed(2)
    assert first == stream(5) != stream(6)


def test_crops_differ_from_epoch_to_epoch(load):
    epochs = []
    for epoch in range(2):
        one = load("train", epoch=epoch)
        images = [x.numpy().tobytes() for x, _ in one]
        epochs.append(dict(zip(numbers(one), images, strict=True)))
    assert epochs[0].keys() == epochs[1].keys()
    assert all(epochs[0][n] != epochs[1][n] for n in epochs[0])


@pytest.mark.parametrize("batch_size", [None, 8])
def test_start_anywhere_gives_what_the_stream_gives_there(load, batch_size):
    steps = len(load("train", batch_size))
    endless = load("train", batch_size, epochs=None)
    assert endless.cardinality() == tf.data.INFINITE_CARDINALITY
    stream = batches(endless.take(3 * steps))
    assert stream == batches(endless.take(3 * steps))
    for epoch, step in [(0, steps - 1), (1, steps // 2)]:
        begin = epoch * steps + step
        start = {"epoch": epoch, "step": step}
        part = load("train", batch_size, epochs=None, **start)
        assert batches(part.take(3 * steps - begin)) == stream[begin:]
    part = load("train", batch_size, epochs=2, **start)
    assert len(part) == 3 * steps - begin and batches(part) == stream[begin:]


def test_each_pass_goes_on_where_the_one_before_ended(load):
    dataset = load("train", 8)
    passes = batches(dataset) + batches(dataset)
    assert passes == batches(load("train", 8, epochs=2))
    evaluation = load("test", 8)
    assert batches(evaluation) == batches(evaluation)


def test_workers_share_out_examples_and_not_files(load):
    policy = load("train", 8).options().experimental_distribute.auto_shard_policy
    assert policy == tf.data.experimental.AutoShardPolicy.DATA


# Pixels.


def by_number(dataset, part, data_dir):
    order = [number for number, _ in in_file_order(data_dir, part)]
    return {n: x.numpy() for n, (x, _) in zip(order, dataset, strict=True)}


def test_central_crop_worked_by_hand(load, data_dir):
    """Crops of 224: the shorter side becomes 256."""
    crops = by_number(load("test", image_size=224), "validation", data_dir)
    # 300×256 stays as it is: 38 columns and 16 rows go on each side.
    assert np.array_equal(crops[0], picture(0, 300, 256)[16:240, 38:262])
    # 600×512 is halved: a pixel is between the pixels 2i and 2i + 1 of the image.
    at = 2 * (38 + np.arange(224)) + 0.5
    assert np.abs(crops[1][..., 0] - 255 * at / 599).mean() < 0.4  # 0.85 a pixel
    at = 2 * (16 + np.arange(224)) + 0.5
    assert np.abs(crops[1][..., 1] - 255 * at[:, None] / 511).mean() < 0.4
    # 384×512, upright, becomes 256×341: (341 − 224) // 2 = 58 rows go at the top.
    at = (58 + np.arange(224) + 0.5) * 512 / 341 - 0.5
    assert np.abs(crops[2][..., 1] - 255 * at[:, None] / 511).mean() < 0.4
    assert all((crop[..., 2] == 5 * n).all() for n, crop in crops.items())


def test_central_crop_of_320(load, data_dir):
    """The shorter side becomes 320 too, whatever it was."""
    crops = by_number(load("test", image_size=320), "validation", data_dir)
    assert np.array_equal(crops[3], picture(3, 400, 320)[:, 40:360])
    # 260×280 grows to 320×344: 12 rows go at the top.
    at = (12 + np.arange(320) + 0.5) * 280 / 344 - 0.5
    assert np.abs(crops[4][..., 1] - 255 * at[:, None] / 279).mean() < 0.4
    assert crops[4].shape == (320, 320, 3) and crops[4][:, 0, 0].max() == 0


def test_grey_png_and_cmyk(load, data_dir):
    """Not scaled: the shorter side is the size of the crop."""
    for number in (GREY, PNG, CMYK):
        width, height = size_of(number)
        size = min(width, height)
        dataset = load("train+validation", shuffle=False, image_size=size)
        crop = by_number(dataset, "train", data_dir)[number].astype(int)
        left, top = (width - size) // 2, (height - size) // 2
        expected = picture(number, width, height)
        if number == GREY:
            expected = np.array(Image.fromarray(expected).convert("L").convert("RGB"))
            assert (crop == crop[..., :1]).all()
        expected = expected[top : top + size, left : left + size]
        assert np.abs(crop - expected).max() <= (0 if number == PNG else 4)


def test_random_crops_have_the_area_and_aspect_of_the_paper(load):
    """The colours tell which part of its image a crop is."""
    areas, aspects, mirrored = [], [], []
    for x, _ in load("train+validation", epochs=8, image_size=64):
        x = x.numpy().astype(float)
        number = round(x[..., 2].mean() / 5)
        if (x[..., 0] == x[..., 1]).all():
            continue  # the grey one
        red, green = x[..., 0].mean(0), x[..., 1].mean(1)
        # From the middle of the first to the middle of the last of 64 pixels.
        across = (red[-1] - red[0]) / 255 * 64 / 63
        down = (green[-1] - green[0]) / 255 * 64 / 63
        width, height = size_of(number)
        areas.append(abs(across) * down)
        aspects.append(abs(across) * width / (down * height))
        mirrored.append(across < 0)
        if number == PNG:
            assert (x[..., 2] == 5 * PNG).all()
    assert len(areas) == 8 * (TRAIN - 1)
    assert 0.07 < min(areas) < 0.1 and 0.85 < max(areas) < 1.03
    assert 0.70 < min(aspects) < 0.80 and 1.25 < max(aspects) < 1.42
    assert 0.4 < np.mean(mirrored) < 0.6  # 376 crops: 4 standard deviations
    assert len(set(mirrored[: TRAIN - 1])) == 2  # each image of an epoch draws anew


def test_validation_is_never_augmented(load):
    """Also in an order of its own."""
    shuffled = load("validation", shuffle=True, epochs=3)
    assert {pixels for pixels, _ in batches(shuffled)} == {
        pixels for pixels, _ in batches(load("validation"))
    }


# Errors.


def test_too_large_for_arrays():
    message = "`name` must be .* fits into memory.*`zoo.datasets.load`.*'imagenet2012'"
    with pytest.raises(ValueError, match=message):
        datasets.arrays("imagenet2012", "test")


@pytest.mark.parametrize("download", [True, False])
def test_data_that_is_not_prepared(tmp_path, download):
    pytest.importorskip("tensorflow_datasets")
    message = (
        f"'test' of 'imagenet2012' is not prepared in {tmp_path}: .*by hand from "
        r"https://image-net.org/.*tfds.load\('imagenet2012'"
    )
    with pytest.raises(FileNotFoundError, match=message):
        datasets.load("imagenet2012", "test", data_dir=tmp_path, download=download)


@pytest.mark.parametrize("size", [0, 224.0, True, (224, 224)])
def test_wrong_image_size(size):
    with pytest.raises(ValueError, match="`image_size` must be an integer from 1"):
        datasets.load("imagenet2012", "test", image_size=size)


def test_other_sets_have_one_size():
    message = "`image_size` must be None or 8 for 'digits'.*Received: image_size=224"
    with pytest.raises(ValueError, match=message):
        datasets.load("digits", "test", image_size=224)
    assert len(datasets.load("digits", "test", 540, image_size=8)) == 1


def test_step_beyond_the_epoch(load):
    with pytest.raises(ValueError, match="`step` must be less than the 6 steps"):
        load("train", 8, step=6)
