"""What the papers found in trained highways, looked for in analysis arrays."""

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from zoo import analysis

SEEN, NOT_SEEN = "as in the paper", "not seen"
FREE = 0.001  # accuracy that may go before a layer counts as needed


class Expected(NamedTuple):
    """Layers that Srivastava, Greff, Schmidhuber 2015, §4, name for one of their nets:
    by which most change has happened, up to which gates route by class, and up to which
    layers are needed."""

    change: int
    routing: int
    needed: int


PAPER = {"mnist": Expected(10, 15, 15), "cifar100": Expected(30, 49, 40)}
PAPER_LAYERS = 49


class Finding(NamedTuple):
    """A sentence with numbers, and whether the paper saw it too."""

    sentence: str
    mark: str


def expected(dataset: str | None, layers: int) -> Expected:
    """What the paper names for this data set; for others and other depths, the place
    in the depth of its MNIST net."""
    paper = PAPER.get(dataset, PAPER["mnist"])
    if layers == PAPER_LAYERS:
        return paper
    return Expected(*(max(1, round(n * layers / PAPER_LAYERS)) for n in paper))


def of_gates(dataset: str | None, results: Mapping) -> list[Finding]:
    """Findings from `mean_gates`, `gate_sparsity`, `gates_by_class` and, if they are
    there, `gate_biases`, `initial_biases` and `trace`."""
    found = []
    if "gate_biases" in results:
        found += _biases(results["gate_biases"], results["initial_biases"])
    means = np.array([np.mean(gate) for gate in results["mean_gates"]])
    trend = _trend(means)
    third = max(1, len(means) // 3)
    found.append(
        _finding(
            f"The mean transform gate is {means[:third].mean():.3f} in the first "
            f"{third} layers and {means[-third:].mean():.3f} in the last {third} (rank "
            f"correlation with depth {trend:+.2f}); the papers' CIFAR-100 net has it "
            "highest in the early layers.",
            trend < -0.3 and means[:third].mean() > means[-third:].mean(),
        )
    )
    sparsity = results["gate_sparsity"]
    one, ever = sparsity.open.mean(), sparsity.ever_open.mean()
    found.append(
        _finding(
            f"For one image {one:.1%} of the gates are open (T > "
            f"{sparsity.threshold:g}), while {ever:.1%} of the units open for some "
            "image (papers: a negative bias makes gates selective, it does not shut "
            "them).",
            one < 0.2 and ever > max(2 * one, 0.05),
        )
    )
    if "trace" in results:
        found.append(_stripes(results["trace"]))
    if "gates_by_class" in results:
        found.append(_routing(dataset, results["gates_by_class"]))
    return found


def _biases(biases, initial):
    now, start = np.concatenate(biases), np.concatenate(initial)
    trend = _trend([np.mean(bias) for bias in biases])
    return [
        _finding(
            f"{np.mean(now < start):.0%} of the {now.size:,} transform gate biases "
            f"fell below their start of {start.mean():g}; their mean is "
            f"{now.mean():.2f} (from {now.min():.2f} to {now.max():.2f}).",
            np.mean(now < start) > 0.5,
        ),
        _finding(
            f"The biases of the first layer have a mean of {np.mean(biases[0]):.2f}, "
            f"of the last {np.mean(biases[-1]):.2f} (rank correlation with depth "
            f"{trend:+.2f}); in the papers' CIFAR-100 net they rise with depth.",
            trend > 0.3,
        ),
    ]


def _stripes(trace):
    pairs = zip(trace.outputs[:-1], trace.outputs[1:], strict=True)
    steps = [(x, y) for x, y in pairs if x.shape == y.shape]
    largest = max(np.abs(y).max() for _, y in steps)
    still = np.mean([np.mean(np.abs(y - x) < 0.02 * largest) for x, y in steps])
    return _finding(
        f"From one layer to the next {still:.0%} of the block outputs stay within 2 % "
        "of the largest output: stripes over many layers.",
        still > 0.5,
    )


def _routing(dataset, by_class):
    if isinstance(by_class, np.ndarray):
        by_class = by_class.swapaxes(0, 1)
    away = [np.nanmean(np.abs(one - np.nanmean(one, axis=0))) for one in by_class]
    until = expected(dataset, len(away)).routing
    if until >= len(away):
        share = np.mean(np.array(away) > 0.25 * np.max(away))
        return _finding(
            f"The mean gate of a class differs from the mean over classes by "
            f"{np.mean(away):.4f}; in {share:.0%} of the layers by more than a quarter "
            "of the largest difference (papers' CIFAR-100 net: in all).",
            share > 0.9,
        )
    early, late = np.mean(away[:until]), np.mean(away[until:])
    return _finding(
        f"The mean gate of a class differs from the mean over classes by {early:.4f} "
        f"in the first {until} layers and by {late:.4f} after them (papers' MNIST net: "
        "in the early layers).",
        early > 1.5 * late,
    )


def of_change(dataset: str | None, change) -> Finding:
    """From `output_change`."""
    layers = len(change.change)
    way = np.cumsum(change.change) / (change.change.sum() or 1.0)
    until = expected(dataset, layers).change
    half = int(np.argmax(way >= 0.5)) + 1
    return _finding(
        f"The first {until} of {layers} layers make {way[until - 1]:.0%} of all change "
        f"of the block outputs; half of it is reached at layer {half}.",
        way[until - 1] > 0.5,
    )


def of_lesions(dataset: str | None, lesions, tails=None) -> list[Finding]:
    """From `lesions`, and from those in which all layers from one on are closed."""
    layers = len(lesions.accuracy)
    cost = lesions.intact_accuracy - lesions.accuracy
    until = min(expected(dataset, layers).needed, layers - 1)
    needed = cost > FREE
    early, late = cost[:until].mean(), cost[until:].mean()
    found = [
        _finding(
            f"Closing one of the first {until} of {layers} layers costs "
            f"{100 * early:.2f} points of accuracy on average, one of the rest "
            f"{100 * late:.2f}; more than {100 * FREE:g} points for {needed.sum()} "
            f"layers, {needed[:until].mean():.0%} of the first {until}; at most "
            f"{100 * cost.max():.2f} points (layer {cost.argmax() + 1}).",
            needed[:until].mean() > 0.5 if until > layers / 2 else late < early / 10,
        )
    ]
    if tails is None:
        return found
    costs = tails.intact_accuracy - tails.accuracy  # of closing layers k … the last
    free = costs <= FREE
    first = layers if not free[-1] else layers - int(np.argmin(free[::-1]))
    first = 0 if free.all() else first
    paper = (
        f"layers {until + 1}–{layers} can be removed together at a cost of "
        f"{100 * costs[until]:.2f} points of accuracy"
    )
    if first < layers:
        mine = (
            f"layers {first + 1}–{layers} at a cost of {100 * costs[first]:.2f} points "
            f"({tails.intact_accuracy:.4f} → {tails.accuracy[first]:.4f})"
        )
    else:
        mine = f"no layers at the end go for {FREE:.1%} or less"
    found.append(_finding(f"L{paper[1:]}, {mine}.", costs[until] <= FREE))
    return found


def tails_of(names) -> list[list[str]]:
    """The sets of `lesions` that close all layers from one on."""
    return [list(names[i:]) for i in range(len(names))]


def _trend(values):
    """Rank correlation with depth; 0 where all are equal."""
    ranks = np.unique(np.asarray(values), return_inverse=True)[1]
    if len(values) < 2 or ranks.std() == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(values)), ranks)[0, 1])


def _finding(sentence, seen):
    return Finding(sentence, SEEN if seen else NOT_SEEN)


def carried(gates) -> str:
    """A sentence on the carry product, which the papers do not print."""
    products = analysis.carry_products(gates)
    return (
        f"The carry product ∏ (1 − mean T) over all {len(products)} layers is "
        f"{products[-1]:.2g}."
    )
