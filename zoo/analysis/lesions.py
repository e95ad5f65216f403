"""Which layers a net needs: close them and measure the loss."""

from collections.abc import Sequence
from typing import NamedTuple

import keras
import numpy as np

from zoo.analysis._chain import Chain
from zoo.analysis._inputs import batches


class Lesions(NamedTuple):
    """What closing the gates of one layer at a time does, arrays `(layers,)`.

    Attributes:
        loss: mean cross-entropy with that layer's gates closed.
        accuracy: share of right predictions then.
        changed: share of predictions that differ from the intact net's.
        intact_loss, intact_accuracy: of the net as it is (Fig. 4's dashed line).
        closed_loss, closed_accuracy: with the gates of all layers closed.
        names: the layers' names.
    """

    loss: np.ndarray
    accuracy: np.ndarray
    changed: np.ndarray
    intact_loss: float
    intact_accuracy: float
    closed_loss: float
    closed_accuracy: float
    names: list[str]


def lesions(
    model: keras.Model,
    images,
    labels=None,
    batch_size: int | None = None,
    *,
    sets: Sequence[Sequence[str]] | None = None,
) -> Lesions:
    """Closes one layer, for each layer in turn, and measures what is lost.

    A highway layer is closed by T = 0, which leaves y = x (C·x where C is a gate of
    its own). A residual unit is skipped, y = x; where it changes the shape, its
    shortcut is left. The layers before a lesion are computed once for all lesions.

    Args:
        model: functional or Sequential model with highway layers or residual units on
            one path; it is not changed, and runs in inference mode.
        images: raw images, or a data set of batches (images, labels).
        labels: class of each image; None for a data set.
        batch_size: images × lesions computed at a time. None (the default) is 4096,
            less where the states are so large that 2²⁴ values of one are the limit;
            memory for about six states of that size is needed.
        sets: names of layers that are closed together, for each entry of the arrays;
            None (the default) closes each layer by itself.

    Returns:
        `Lesions`. With `sets`, `names` are those of the first and last layer of each.

    Raises:
        ValueError: no highway layer and no residual unit; images or labels that do
            not fit; a name in `sets` that is none of a layer.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16)
        >>> result = zoo.analysis.lesions(model, np.ones((3, 8, 8, 1)), [0, 1, 2])
        >>> result.accuracy.shape
        (5,)

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §4.2.
    """
    chain = Chain(model)
    names = chain.names
    if sets is None:
        closed = np.eye(len(names), dtype=bool)
    else:
        closed = closed_rows(names, sets)
        names = [" … ".join(dict.fromkeys((s[0], s[-1]))) if s else "" for s in sets]
    closed = np.concatenate([closed, np.ones((1, len(chain.names)), bool)])
    measured = measure(chain, model, images, labels, closed, batch_size)
    loss, accuracy, changed = measured[:, 1:]  # the first is the intact net
    return Lesions(
        loss[:-1],
        accuracy[:-1],
        changed[:-1],
        float(measured[0, 0]),
        float(measured[1, 0]),
        float(loss[-1]),
        float(accuracy[-1]),
        names,
    )


def closed_rows(names, sets):
    """Rows of `Chain.logits` that close the layers of each set."""
    rows = np.zeros((len(sets), len(names)), bool)
    for row, some in zip(rows, sets, strict=True):
        unknown = [name for name in some if name not in names]
        if unknown:
            raise ValueError(
                "`sets` must hold names of layers, which are "
                f"{names[0]} … {names[-1]}. Received: {', '.join(map(str, unknown))}"
            )
        row[[names.index(name) for name in some]] = True
    return rows


def measure(chain, model, images, labels, closed, batch_size=None, base=None):
    """Loss, accuracy and share of changed predictions, float64
    `(3, 1 + len(closed))`: with `base` closed, as in `Chain.logits`, then each row."""
    size = 2**30 if batch_size is None else batch_size
    parts = batches(model, images, labels, batch_size=size, labelled=True)
    sums, count = np.zeros((3, 1 + len(closed))), 0
    for images_here, labels_here in parts:
        rows = batch_size or chain.rows_for(images_here[0])
        for start in range(0, len(images_here), rows):
            part = slice(start, start + rows)
            mine = labels_here[part]
            predicted = np.zeros((1 + len(closed), len(mine)), np.int32)
            for i, logits in chain.logits(images_here[part], closed, rows, base):
                row = 0 if i is None else 1 + i
                sums[0, row] += cross_entropies(logits, mine).sum()
                predicted[row] = logits.argmax(1)
            sums[1] += (predicted == mine).sum(1)
            sums[2] += (predicted != predicted[0]).sum(1)
        count += len(images_here)
    return sums / count


def cross_entropies(logits, labels):
    """Cross-entropy of each image."""
    top = logits.max(1, keepdims=True)
    log_sum = top[:, 0] + np.log(np.exp(logits - top).sum(1))
    return log_sum - logits[np.arange(len(labels)), labels]
