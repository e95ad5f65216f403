"""Which example belongs to which split, and where it stands in it.

Both follow from the pixels alone, never from the order of a file, so that they are
the same on every machine, whatever prepared its copy of the data.
"""

import hashlib
from itertools import groupby

import numpy as np


def base_order(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """The indices that put examples in order of their hash.

    The hash is the SHA-256 of an image's bytes; images with the same pixels stand
    in order of their labels.

    Args:
        images: `(examples, height, width, channels)`, uint8; or texts, bytes.
        labels: `(examples,)` or `(examples, …)`, integers.

    Returns:
        `(examples,)`, int64.
    """
    hashes = _hashes(images)
    same = [np.ravel(label).tolist() for label in labels]
    order = sorted(range(len(labels)), key=lambda i: (hashes[i], same[i]))
    return np.array(order, np.int64)


def held_out(images: np.ndarray, labels: np.ndarray) -> np.ndarray:
    """Marks the tenth of each class that is kept for validation.

    Of a class of n examples it is the n / 10 with the smallest hash, rounded to the
    nearest integer, halves up. Images with the same pixels stay together: if they
    do not all fit in what their classes have left, the next ones take their place.

    Args:
        images: `(examples, height, width, channels)`, uint8, in base order.
        labels: `(examples,)`, integers.

    Returns:
        `(examples,)`, bool.
    """
    hashes = _hashes(images)
    marked = np.zeros(len(labels), bool)
    left = (np.bincount(labels) + 5) // 10
    for _, same in groupby(range(len(labels)), key=lambda i: hashes[i]):
        same = list(same)
        wanted = np.bincount(labels[same], minlength=len(left))
        if (wanted <= left).all():
            marked[same] = True
            left -= wanted
    return marked


def _hashes(images: np.ndarray) -> list[bytes]:
    return [
        hashlib.sha256(x if isinstance(x, bytes) else x.tobytes()).digest()
        for x in images
    ]
