"""Image data sets through TensorFlow Datasets."""

import numpy as np

from zoo.datasets._info import DatasetInfo

# fmt: off
FASHION_CLASSES = (
    "T-shirt/top", "Trouser", "Pullover", "Dress", "Coat",
    "Sandal", "Shirt", "Sneaker", "Bag", "Ankle boot",
)
CIFAR10_CLASSES = (
    "airplane", "automobile", "bird", "cat", "deer",
    "dog", "frog", "horse", "ship", "truck",
)
CIFAR100_CLASSES = (
    "apple", "aquarium_fish", "baby", "bear", "beaver", "bed", "bee", "beetle",
    "bicycle", "bottle", "bowl", "boy", "bridge", "bus", "butterfly", "camel", "can",
    "castle", "caterpillar", "cattle", "chair", "chimpanzee", "clock", "cloud",
    "cockroach", "couch", "crab", "crocodile", "cup", "dinosaur", "dolphin",
    "elephant", "flatfish", "forest", "fox", "girl", "hamster", "house", "kangaroo",
    "keyboard", "lamp", "lawn_mower", "leopard", "lion", "lizard", "lobster", "man",
    "maple_tree", "motorcycle", "mountain", "mouse", "mushroom", "oak_tree", "orange",
    "orchid", "otter", "palm_tree", "pear", "pickup_truck", "pine_tree", "plain",
    "plate", "poppy", "porcupine", "possum", "rabbit", "raccoon", "ray", "road",
    "rocket", "rose", "sea", "seal", "shark", "shrew", "skunk", "skyscraper", "snail",
    "snake", "spider", "squirrel", "streetcar", "sunflower", "sweet_pepper", "table",
    "tank", "telephone", "television", "tiger", "tractor", "train", "trout", "tulip",
    "turtle", "wardrobe", "whale", "willow_tree", "wolf", "woman", "worm",
)
# fmt: on

# name, shape, classes, pixels, train, validation, test
IMAGES = {
    row.name: row
    for row in (
        DatasetInfo(
            "mnist", (28, 28, 1), tuple("0123456789"), (0, 255), 54000, 6000, 10000
        ),
        DatasetInfo(
            "fashion_mnist", (28, 28, 1), FASHION_CLASSES, (0, 255), 54000, 6000, 10000
        ),
        DatasetInfo(
            "cifar10", (32, 32, 3), CIFAR10_CLASSES, (0, 255), 45000, 5000, 10000
        ),
        DatasetInfo(
            "cifar100", (32, 32, 3), CIFAR100_CLASSES, (0, 255), 45000, 5000, 10000
        ),
    )
}


def read(
    name: str, part: str, data_dir: str, download: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Reads one part of a data set, in the order of its files.

    Args:
        name: A key of `IMAGES`.
        part: "train" or "test".
        data_dir: Where TensorFlow Datasets keeps prepared data.
        download: Whether to download and prepare what is not there.

    Returns:
        images: `(examples, height, width, channels)`, uint8.
        labels: `(examples,)`, int64. For CIFAR-100 these are the 100 fine classes.

    Raises:
        FileNotFoundError: If the data is not there and cannot be downloaded.

    Reference:
        - Y. LeCun, C. Cortes, C. Burges, *The MNIST database of handwritten digits*.
        - H. Xiao, K. Rasul, R. Vollgraf, *Fashion-MNIST: a Novel Image Dataset for
          Benchmarking Machine Learning Algorithms*, 2017, arXiv:1708.07747.
        - A. Krizhevsky, *Learning Multiple Layers of Features from Tiny Images*,
          2009 (CIFAR-10 and CIFAR-100).
        - TensorFlow Datasets, https://www.tensorflow.org/datasets.
    """
    found = columns(name, part, data_dir, download)
    return found["image"], found["label"]


def columns(name, part, data_dir, download, split=None) -> dict[str, np.ndarray]:
    """All columns of one part of a data set, or of `split`, a piece of it."""
    import tensorflow_datasets as tfds

    builder = tfds.builder(name, data_dir=data_dir)
    if not builder.is_prepared():
        where = f"Data set {name!r} is not prepared in {data_dir}"
        remedy = (
            "give a directory that has it as `data_dir`, or run "
            f"`tfds.load({name!r})` where there is internet and copy what it prepares"
        )
        if not download:
            raise FileNotFoundError(f"{where}: give download=True, or {remedy}.")
        try:
            _ask_host(builder)
            builder.download_and_prepare()
        except Exception as error:
            raise FileNotFoundError(
                f"{where} and could not be downloaded ({type(error).__name__}): "
                f"{remedy}."
            ) from error
    found = builder.as_dataset(split=split or part, batch_size=-1)
    return {key: column.numpy() for key, column in found.items()}


def _ask_host(builder) -> None:
    """Fails at once if the host of a data set cannot be reached.

    TensorFlow Datasets by itself tries again for more than three minutes.
    """
    import requests

    for url in list(builder.url_infos)[:1]:
        try:
            requests.head(url, timeout=10)
        except requests.ReadTimeout:
            pass  # It is there, but slow: downloading has more patience.
