"""Depth that a trained net does not need, taken out."""

from collections.abc import Callable
from typing import NamedTuple

import keras
import numpy as np

from zoo.analysis import _blocks
from zoo.analysis._chain import Chain
from zoo.analysis._graph import predictor
from zoo.analysis._inputs import check_images, check_labels
from zoo.analysis.cost import flops, latency
from zoo.analysis.lesions import cross_entropies, measure
from zoo.models import without_layers


class PruneReport(NamedTuple):
    """What `prune` did; accuracies are on data that it did not choose by.

    Attributes:
        kept, removed: names of layers; the removed ones in the order in which they
            went, those of one round by their cost.
        accuracy_before, accuracy_after, loss_before, loss_after: on the report data.
        accuracy_before_tuning: of the smaller net before the last `fine_tune`; None
            without.
        chosen_by_before, chosen_by_after: accuracy on the data that chose.
        images, chosen_by_images: size of report data and of the data that chose.
        parameters_before, parameters_after: counts.
        flops_before, flops_after: of one image; None where an input is open or a
            layer is not counted.
        milliseconds_before, milliseconds_after: measured, for a batch of
            `latency_batch` images.
        rounds: how often the costs were measured.
    """

    kept: list[str]
    removed: list[str]
    accuracy_before: float
    accuracy_after: float
    accuracy_before_tuning: float | None
    loss_before: float
    loss_after: float
    chosen_by_before: float
    chosen_by_after: float
    images: int
    chosen_by_images: int
    parameters_before: int
    parameters_after: int
    flops_before: int | None
    flops_after: int | None
    milliseconds_before: float
    milliseconds_after: float
    latency_batch: int
    rounds: int

    def __str__(self):
        lines = [
            f"{len(self.kept)} of {len(self.kept) + len(self.removed)} layers are kept",
            f"accuracy {self.accuracy_before:.4f} before, {self.accuracy_after:.4f} "
            f"after, on {self.images} images that were not used to choose",
            f"parameters {self.parameters_before:,} → {self.parameters_after:,}",
            f"milliseconds for {self.latency_batch} images "
            f"{self.milliseconds_before:.1f} → {self.milliseconds_after:.1f}",
        ]
        if self.flops_before is not None:
            lines.append(f"operations {self.flops_before:,} → {self.flops_after:,}")
        return "\n".join(lines)


def prune(
    model: keras.Model,
    images,
    labels,
    *,
    max_accuracy_loss: float = 0.001,
    report_data: tuple | None = None,
    fine_tune: Callable[[keras.Model], None] | None = None,
    seed: int = 0,
    batch_size: int | None = None,
    max_rounds: int = 50,
) -> tuple[keras.Model, PruneReport]:
    """Takes out the layers that a net needs least, the cheapest first.

    Each round measures the loss without each layer that is left, finds how many of the
    cheapest the accuracy lets go together, and takes out half of those; the costs
    change with what is gone. The rounds end when not even one can go. With `fine_tune`
    the smaller net is then trained, and what its accuracy lets go after that taken out,
    in turn, until nothing more can go. A training that leaves less than the accuracy
    asked for is undone and ends it.

    Args:
        model: functional or Sequential model with highway layers or residual units; it
            is not changed.
        images, labels: data to choose by.
        max_accuracy_loss: how far the accuracy on that data may fall, 0.001 by
            default.
        report_data: (images, labels) for the report. None (the default) takes half of
            each class away from `images`, so that the report never shows data that
            chose.
        fine_tune: function that compiles and trains the smaller model in place; None
            (the default) prunes once, without training.
        seed: of the halves.
        batch_size: as for `lesions`.
        max_rounds: a limit on the time, which grows with the rounds.

    Returns:
        (a new uncompiled model, `PruneReport`). The model is named NAME_pruned and can
        be saved, exported and converted like any other; its layers keep their names.
        It is a copy of the whole net where no layer can go.

    Raises:
        ValueError: as for `lesions`; a limit outside [0, 1]; data to be halved with no
            two images of a class.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16, gate_bias=-30.0)
        >>> images, labels = np.ones((4, 8, 8, 1)), np.array([0, 0, 1, 1])
        >>> shallow, report = zoo.analysis.prune(model, images, labels)
        >>> report.kept, shallow.count_params()
        ([], 1210)
    """
    images = check_images(model, images)
    labels = check_labels(model, images, labels)
    if not 0 <= max_accuracy_loss <= 1:
        raise ValueError(
            "`max_accuracy_loss` must be a share in 0 … 1. "
            f"Received: max_accuracy_loss={max_accuracy_loss!r}"
        )
    Chain(model, without=True)  # refuses nets that are no chain
    if report_data is None:
        (images, labels), report_data = _halves(images, labels, seed)
    report_images, report_labels = report_data
    report_images = check_images(model, report_images)
    report_data = report_images, check_labels(model, report_images, report_labels)

    names, name = _blocks.layer_names(model), f"{model.name}_pruned"
    before = after = _evaluate(model, *report_data)
    shallow, removed, rounds, untuned, lowest = model, [], 0, None, None
    while len(removed) < len(names):
        chain = Chain(shallow, without=True)

        def measured(closed, base, chain=chain, net=shallow):
            return measure(chain, net, images, labels, closed, batch_size, base)[:2]

        taken, more, accuracies = _choose(
            measured,
            chain.names,
            _removable(shallow),
            max_accuracy_loss,
            lowest,
            max_rounds - rounds,
        )
        rounds += more
        if lowest is None:
            first, lowest = accuracies[0], accuracies[0] - max_accuracy_loss
        if not taken:
            break
        removed += taken
        shallow = without_layers(shallow, taken, name)
        after = _evaluate(shallow, *report_data)
        if fine_tune is None:
            break
        untuned, weights = after, shallow.get_weights()
        fine_tune(shallow)
        if _evaluate(shallow, images, labels)[1] < lowest - 1e-9:
            shallow.set_weights(weights)  # the training made it worse
            break
        after = _evaluate(shallow, *report_data)
    if shallow is model:
        shallow = without_layers(model, (), name)
    chosen_by = first, _evaluate(shallow, images, labels)[1]
    latency_batch = min(128, len(report_images))
    times = latency((model, shallow), report_images[:latency_batch])
    report = PruneReport(
        [name for name in names if name not in removed],
        removed,
        before[1],
        after[1],
        untuned[1] if untuned else None,
        before[0],
        after[0],
        *chosen_by,
        len(report_images),
        len(images),
        model.count_params(),
        shallow.count_params(),
        *(_flops(m) for m in (model, shallow)),
        *times,
        latency_batch,
        rounds,
    )
    return shallow, report


def _choose(measured, names, removable, limit, lowest, max_rounds):
    """(names to take out, rounds, (accuracy before, after) on the data that chose).

    The accuracy may fall to `lowest`; by `limit` where that is None.
    """
    place = {name: i for i, name in enumerate(names)}
    gone = np.zeros(len(names), bool)
    removed, rounds = [], 0

    def rows(sets):
        closed = np.stack([gone] * len(sets))
        for row, some in zip(closed, sets, strict=True):
            row[[place[name] for name in some]] = True
        return closed

    def accuracy(some):
        return measured(rows([some]), gone)[1, 1]

    before = accuracy([])
    floor = (before - limit if lowest is None else lowest) - 1e-9  # for rounding
    while rounds < max_rounds:
        left = [name for name in removable if name not in removed]
        if not left:
            break
        rounds += 1
        losses, accuracies = measured(rows([[name] for name in left]), gone)[:, 1:]
        order = [left[i] for i in np.argsort(losses, kind="stable")]
        low, high = 0, len(order)
        while low < high:
            middle = (low + high + 1) // 2
            if accuracy(order[:middle]) >= floor:
                low = middle
            else:
                high = middle - 1
        if not low and accuracies.max() < floor:
            break
        if low:  # half of them: the costs change with what is gone
            now = order if low == len(order) else order[: (low + 1) // 2]
        else:
            now = [left[int(accuracies.argmax())]]
        removed += now
        gone[[place[name] for name in now]] = True
    return removed, rounds, (float(before), float(accuracy([])))


def _removable(model):
    """Names of the layers that keep the shape of their input."""
    return [
        name
        for layer in _blocks.blocks(model)
        if not getattr(_blocks.one_of(layer), "resamples", False)
        for name in _blocks.names_of(layer)
    ]


def _halves(images, labels, seed):
    """Two halves of each class."""
    rng, parts = np.random.default_rng(seed), ([], [])
    for label in np.unique(labels):
        members = rng.permutation(np.flatnonzero(labels == label))
        parts[0].extend(members[::2])
        parts[1].extend(members[1::2])
    if not parts[1]:
        raise ValueError(
            "`images` must have two images or more of some class, or `report_data` be "
            f"given. Received: {len(images)} images of {len(parts[0])} classes"
        )
    return [(images[sorted(p)], labels[sorted(p)]) for p in parts]


def _evaluate(model, images, labels):
    """(loss, accuracy)."""
    (logits,) = predictor(model)(images, 256)
    losses = cross_entropies(logits.astype(np.float64), labels)
    return float(losses.mean()), float(np.mean(logits.argmax(1) == labels))


def _flops(model):
    try:
        return flops(model)
    except ValueError:  # an open size, or a layer that is not counted
        return None
