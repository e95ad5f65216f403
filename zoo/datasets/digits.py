"""Optical digits from the scikit-learn wheel: nothing to download."""

import numpy as np

from zoo.datasets._info import DatasetInfo

DIGITS = DatasetInfo(
    name="digits",
    image_shape=(8, 8, 1),
    class_names=tuple("0123456789"),
    pixel_range=(0, 16),
    num_train=1130,
    num_validation=127,
    num_test=540,
)


def read(part: str) -> tuple[np.ndarray, np.ndarray]:
    """Reads one part of the digits, in no particular order.

    Args:
        part: "train" (1,257 examples) or "test" (540): seven and three tenths, drawn
            within each class with the seed 0.

    Returns:
        images: `(examples, 8, 8, 1)`, uint8, 0 … 16.
        labels: `(examples,)`, int64.

    Reference:
        E. Alpaydin, C. Kaynak, *Optical Recognition of Handwritten Digits*, UCI
        Machine Learning Repository, 1998; `sklearn.datasets.load_digits` has its
        test set of 1,797 images.
    """
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    images, labels = load_digits().images[..., None], load_digits().target
    train_images, test_images, train_labels, test_labels = train_test_split(
        images, labels, test_size=0.3, random_state=0, stratify=labels
    )
    parts = {"train": (train_images, train_labels), "test": (test_images, test_labels)}
    images, labels = parts[part]
    return images.astype(np.uint8), labels.astype(np.int64)
