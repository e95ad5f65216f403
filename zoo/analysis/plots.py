"""Figures of the papers, drawn from the arrays of `zoo.analysis`.

Every function returns a `matplotlib.figure.Figure`; `save(figure, path)` writes it.
Colour maps keep their order in greyscale and for the colour-blind; no global state of
matplotlib is touched.
"""

import os
import pathlib
from collections.abc import Mapping, Sequence

import matplotlib
import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from zoo.analysis.gradients import carry_products

_COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # Okabe and Ito


def gate_figure(
    biases, mean_gates, sample_gates, sample_outputs, *, title: str = ""
) -> Figure:
    """Four columns as in Fig. 2: biases, mean T, T for one sample, block outputs.

    Each panel has a row for each layer and a column for each unit; convolutions
    show the mean over pixels. Where the widths differ, narrow layers end early.

    Args:
        biases: `(layers, units)`, from `gate_biases`.
        mean_gates: `(layers, units)`, from `mean_gates`.
        sample_gates: `(layers, …, units)`, T for one image.
        sample_outputs: `(layers, …, units)`, output of each layer for that image.
        title: of the figure.

    Returns:
        The figure.

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", Fig. 2.
    """
    panels = (
        ("Transform gate biases", _matrix(biases), "viridis", None),
        ("Mean transform gate", _matrix(mean_gates), "viridis", (0, 1)),
        ("Transform gate, one sample", _matrix(sample_gates), "viridis", (0, 1)),
        ("Block output, one sample", _matrix(sample_outputs), "cividis", None),
    )
    layers = len(panels[0][1])
    figure = Figure(figsize=(13, _height(layers)), layout="constrained")
    axes = figure.subplots(1, 4, sharey=True)
    for axis, (name, values, colours, limits) in zip(axes, panels, strict=True):
        low, high = limits or (np.nanmin(values), np.nanmax(values))
        image = _heat_map(axis, values, colours, (low, high))
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("unit")
        figure.colorbar(image, ax=axis, location="bottom", shrink=0.9, aspect=30)
    axes[0].set_ylabel("layer (depth)")
    if title:
        figure.suptitle(title)
    return figure


def accuracy_figure(
    groups: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    xlabel: str,
    reference: Mapping[str, Sequence[float]] | None = None,
    chance: float | None = None,
    title: str = "",
) -> Figure:
    """Test accuracy against a setting: each run a dot, the mean a line.

    Args:
        groups: {series: {setting: accuracies of its runs}}.
        xlabel: name of the setting.
        reference: {series: printed accuracy for each setting}, drawn as crosses.
        chance: accuracy of guessing, a dashed line.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = figure.subplots()
    settings = list(dict.fromkeys(s for series in groups.values() for s in series))
    for i, (name, series) in enumerate(groups.items()):
        colour, marker = _COLOURS[i % 4], "osD^"[i % 4]
        offset = 0.06 * (i - (len(groups) - 1) / 2)
        places = [settings.index(s) + offset for s in series]
        for place, values in zip(places, series.values(), strict=True):
            axis.plot([place] * len(values), values, marker, color=colour, alpha=0.35)
        means = [np.mean(values) for values in series.values()]
        axis.plot(places, means, "-", marker=marker, color=colour, label=name)
        if reference and name in reference:
            axis.plot(places, reference[name], "x", color=colour, ms=9, mew=2)
    if reference:
        axis.plot([], [], "x", color="0.3", ms=9, mew=2, label="printed (one seed)")
    if chance is not None:
        axis.axhline(chance, ls="--", color="0.5", label="chance")
    axis.set_xticks(range(len(settings)), settings)
    axis.set_xlabel(xlabel)
    axis.set_ylabel("test accuracy")
    axis.set_ylim(0, 1.02)
    axis.legend(fontsize=8)
    if title:
        axis.set_title(title, fontsize=10)
    return figure


def gradient_figure(norms: Mapping[str, np.ndarray], *, title: str = "") -> Figure:
    """Gradient norm of each layer on a log axis, from the input to the output.

    Args:
        norms: {net: norms of its layers}, from `gradient_norms`.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = figure.subplots()
    styles = ("-", "--", "-.", ":")
    for i, (name, values) in enumerate(norms.items()):
        place = np.arange(1, len(values) + 1)
        axis.plot(place, values, styles[i % 4], color=_COLOURS[i % 4], label=name)
    axis.set_yscale("log")
    axis.set_xlabel("layer (depth)")
    axis.set_ylabel("norm of the transform kernel's gradient")
    axis.legend(fontsize=8)
    if title:
        axis.set_title(title, fontsize=10)
    return figure


def error_figure(
    errors: Mapping[str, Sequence[float]],
    printed: Mapping[str, float | None],
    *,
    title: str = "",
) -> Figure:
    """Test errors in %, a row a net: each run a dot, the mean a bar.

    Args:
        errors: {net: errors of its runs}.
        printed: {net: published error}, a cross; None is a net that failed to train,
            and gets the word. Nets that are only here have no dots.
        title: of the figure.

    Returns:
        The figure.
    """
    names = list(printed)
    figure = Figure(figsize=(7.5, 0.36 * len(names) + 1.3), layout="constrained")
    axis = figure.subplots()
    for place, name in enumerate(names):
        mine = errors.get(name, ())
        if len(mine):
            axis.barh(place, np.mean(mine), height=0.5, color="#56B4E9", alpha=0.5)
            axis.plot(mine, [place] * len(mine), "o", color="#0072B2", ms=5)
        if printed[name] is None:
            axis.text(1, place, "printed: fail", va="center", fontsize=7)
        else:
            axis.plot(printed[name], place, "x", color="#D55E00", ms=8, mew=2)
    axis.plot([], [], "o", color="#0072B2", label="ours, a run")
    axis.plot([], [], "x", color="#D55E00", ms=8, mew=2, label="printed, its budget")
    axis.set_yticks(range(len(names)), names, fontsize=8)
    axis.invert_yaxis()
    axis.set_xlim(0)
    axis.set_xlabel("test error (%)")
    axis.grid(axis="x", alpha=0.3)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    if title:
        axis.set_title(title, fontsize=10)
    return figure


def curves_figure(
    histories: Mapping[str, Sequence[Mapping[str, Sequence[float]]]], *, title=""
) -> Figure:
    """Training loss and validation error by epoch, a line a run.

    Args:
        histories: {net: {"loss": …, "val_accuracy": …} of each run}.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(10, 4.2), layout="constrained")
    left, right = figure.subplots(1, 2)
    styles = ("-", "--", "-.", ":")
    for i, (name, runs) in enumerate(histories.items()):
        for n, run in enumerate(runs):
            epochs = np.arange(1, len(run["loss"]) + 1)
            line = {"color": _COLOURS[i % 4], "ls": styles[i % 4]}
            line["label"] = name if n == 0 else None
            left.plot(epochs, run["loss"], **line)
            right.plot(epochs, 100 * (1 - np.array(run["val_accuracy"])), **line)
    left.set_yscale("log")
    for axis, label in ((left, "training loss"), (right, "validation error (%)")):
        axis.set_xlabel("epoch")
        axis.set_ylabel(label)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    left.legend(fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def history_figure(
    history: Mapping[str, Sequence[float]],
    *,
    first_epoch: int = 1,
    test_accuracy: float | None = None,
    title: str = "",
) -> Figure:
    """Loss and accuracy of one run by epoch.

    Args:
        history: {"loss": …, "accuracy": …}, and "val_loss", "val_accuracy" if there
            was a validation; a value an epoch. Without accuracy only the loss.
        first_epoch: number of the first value.
        test_accuracy: at the end, a dashed line.
        title: of the figure.

    Returns:
        The figure.
    """
    keys = [key for key in ("loss", "accuracy") if key in history]
    figure = Figure(figsize=(5 * len(keys), 3.8), layout="constrained")
    axes = figure.subplots(1, len(keys), squeeze=False)[0]
    for axis, key in zip(axes, keys, strict=True):
        for column, name, style in (
            (key, "training", {"color": "#0072B2"}),
            (f"val_{key}", "validation", {"color": "#D55E00", "ls": "--"}),
        ):
            values = history.get(column, ())
            if len(values):
                epochs = first_epoch + np.arange(len(values))
                axis.plot(epochs, values, label=name, **style)
        axis.set_xlabel("epoch")
        axis.set_ylabel(key)
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
    figure.axes[0].set_yscale("log")
    if test_accuracy is not None:
        label = f"test, at the end: {test_accuracy:.4f}"
        axes[-1].axhline(test_accuracy, color="0.4", ls=":", label=label)
    axes[-1].legend(fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def loss_figure(
    losses: Mapping[str, Sequence[Sequence[float]]], *, title: str = ""
) -> Figure:
    """Training loss by epoch on a log axis, a panel for plain and one for highway nets.

    Args:
        losses: {"plain, depth 10": losses of each run by epoch, …}; what stands
            before the comma names the panel.
        title: of the figure.

    Returns:
        The figure.

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", Fig. 1.
    """
    panels = {}
    for name, runs in losses.items():
        panel, _, line = name.partition(", ")
        panels.setdefault(panel, {})[line] = runs
    figure = Figure(figsize=(5 * len(panels), 4.2), layout="constrained")
    axes = figure.subplots(1, len(panels), sharey=True, squeeze=False)[0]
    colours = ("#56B4E9", "#0072B2", "#E69F00", "#D55E00")
    styles = (":", "-.", "--", "-")
    for axis, (panel, lines) in zip(axes, panels.items(), strict=True):
        for i, (name, runs) in enumerate(lines.items()):
            for n, run in enumerate(runs):
                axis.plot(
                    np.arange(1, len(run) + 1),
                    run,
                    styles[i % 4],
                    color=colours[i % 4],
                    label=name if n == 0 else None,
                )
        axis.set_yscale("log")
        axis.set_title(panel, fontsize=10)
        axis.set_xlabel("epoch")
        axis.xaxis.set_major_locator(MaxNLocator(integer=True))
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    axes[0].set_ylabel("training loss")
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def share_figure(shares: Mapping[str, Sequence[float]], *, title: str = "") -> Figure:
    """Share of values that the ReLU after an addition cuts, by unit.

    Args:
        shares: {net: share of each unit}; a net's units are spread over the whole
            axis, from the first to the last.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(7.5, 4.2), layout="constrained")
    axis = figure.subplots()
    colours = ("#0072B2", "#0072B2", "#D55E00", "#D55E00", "#009E73", "#009E73")
    for i, (name, values) in enumerate(shares.items()):
        style = {"color": colours[i % 6], "ls": ("-", "--")[i % 2], "lw": 1.2}
        axis.plot(np.linspace(0, 1, len(values)), values, **style, label=name)
    axis.set_xlabel("place of the unit, from the first to the last")
    axis.set_ylabel("share of values cut")
    axis.set_ylim(0)
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    if title:
        axis.set_title(title, fontsize=10)
    return figure


def tuning_figure(
    trials: Sequence[Mapping],
    *,
    parameter: str = "gate_bias",
    depths: bool = False,
    chance: float | None = None,
    title: str = "",
) -> Figure:
    """Validation accuracy against the gate bias, and where nets fail to train.

    Each trial is its mean with a bar of one standard deviation on either side; one
    whose nets all stay at chance is a cross. Where every trial of a bias does, the
    ground is shaded.

    Args:
        trials: dicts with `parameter`, `accuracy` (None: failed, not drawn), `std`,
            `trains`, how many of its nets left chance, and `depth` for `depths`.
        parameter: the horizontal axis.
        depths: whether to draw a line for each depth, and, in a second panel, the best
            bias against depth with those within a standard error of the best.
        chance: accuracy of guessing, a dashed line.
        title: of the figure.

    Returns:
        The figure.
    """
    trials = [trial for trial in trials if trial["accuracy"] is not None]
    figure = Figure(figsize=(11 if depths else 6.5, 4.2), layout="constrained")
    axis, *others = figure.subplots(1, 2 if depths else 1, squeeze=False)[0]
    series = {}
    for trial in sorted(trials, key=lambda t: t[parameter]):
        series.setdefault(trial["depth"] if depths else None, []).append(trial)
    for i, depth in enumerate(sorted(series)):
        mine = series[depth]
        x, y, std = (
            np.array([t[k] for t in mine]) for k in (parameter, "accuracy", "std")
        )
        fails = np.array([t["trains"] == 0 for t in mine])
        style = {"color": _COLOURS[i % 4], "capsize": 3, "zorder": 2}
        if len(set(x)) == len(x):
            axis.plot(x, y, color=_COLOURS[i % 4], alpha=0.6)
        label = "mean ± standard deviation" if depth is None else f"depth {depth}"
        trained = x[~fails], y[~fails], std[~fails]
        axis.errorbar(*trained, fmt="osD^"[i % 4], ms=5, label=label, **style)
        axis.errorbar(x[fails], y[fails], std[fails], fmt="x", ms=7, **style)
    shaded, values = False, sorted({trial[parameter] for trial in trials})
    for place, value in enumerate(values):
        here = [trial for trial in trials if trial[parameter] == value]
        if all(trial["trains"] == 0 for trial in here):
            before, after = values[max(place - 1, 0)], values[place + 1 : place + 2]
            edges = (before + value) / 2, (value + (after or [value])[0]) / 2
            margin = 0.5 if len(values) == 1 else 0
            axis.axvspan(
                edges[0] - margin, edges[1] + margin, color="0.88", lw=0, zorder=0
            )
            shaded = True
    if any(trial["trains"] == 0 for trial in trials):
        axis.plot([], [], "x", color="0.3", ms=7, label="fails to train")
    if shaded:
        axis.fill_between([], [], color="0.88", label="all fail to train")
    if chance is not None:
        axis.axhline(chance, ls="--", color="0.5", label="chance")
    axis.set_xlabel(f"initial {parameter.replace('_', ' ')}")
    axis.set_ylabel("accuracy on the held-out folds")
    axis.set_ylim(0, 1.02)
    axis.legend(fontsize=8)
    for panel in others:
        _best_by_depth(panel, series, parameter)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _best_by_depth(axis, series, parameter):
    """The best bias of each depth, and the range of those as good."""
    for depth, trials in sorted(series.items()):
        best = max(trials, key=lambda trial: trial["accuracy"])
        if best["trains"] == 0:
            continue
        error = best["std"] / max(best["nets"], 1) ** 0.5
        good = [
            trial[parameter]
            for trial in trials
            if trial["accuracy"] >= best["accuracy"] - error
        ]
        axis.plot([depth] * 2, [min(good), max(good)], color="#0072B2", lw=6, alpha=0.3)
        axis.plot(depth, best[parameter], "o", color="#0072B2")
    axis.plot([], [], "o", color="#0072B2", label="best")
    label = "within a standard error of it"
    axis.plot([], [], color="#0072B2", lw=6, alpha=0.3, label=label)
    biases = [trial[parameter] for trials in series.values() for trial in trials]
    axis.set_ylim(min(biases) - 0.5, max(biases) + 0.5)
    axis.set_xscale("log")
    axis.set_xticks(sorted(series), sorted(series))
    axis.minorticks_off()
    axis.set_xlabel("depth")
    axis.set_ylabel(f"best initial {parameter.replace('_', ' ')}")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)


def parallel_figure(
    trials: Sequence[Mapping],
    names: Sequence[str],
    importance: Mapping[str, float],
    *,
    title: str = "",
) -> Figure:
    """Parallel coordinates: a line a trial through its parameters to its accuracy.

    Args:
        trials: dicts with the parameters and `accuracy` (None: failed, not drawn).
        names: of the parameters, axes from left to right.
        importance: {name: share}, written above the axes.
        title: of the figure.

    Returns:
        The figure.
    """
    trials = [trial for trial in trials if trial["accuracy"] is not None]
    trials = sorted(trials, key=lambda trial: trial["accuracy"])  # the best on top
    figure = Figure(figsize=(1.7 * len(names) + 3, 4.6), layout="constrained")
    axis = figure.subplots()
    columns = []
    for place, name in enumerate([*names, "accuracy"]):
        values = [trial[name] for trial in trials]
        heights, ticks = _heights(values)
        columns.append(heights)
        axis.plot([place] * 2, [0, 1], color="0.4", lw=1)
        for height, text in ticks:
            axis.plot([place - 0.03, place], [height] * 2, color="0.4", lw=1)
            axis.text(
                place - 0.05,
                height,
                text,
                ha="right",
                va="center",
                fontsize=7,
                bbox={"color": "white", "alpha": 0.7, "pad": 0.8},
                zorder=3,
            )
        share = f"\n{100 * importance[name]:.0f} %" if name in importance else ""
        axis.text(place, 1.04, name.replace("_", " ") + share, ha="center", fontsize=9)
    lines = np.array(columns).T
    scores = np.array([trial["accuracy"] for trial in trials])
    span = np.ptp(scores) or 1.0
    colours = matplotlib.colormaps["viridis"]
    for line, score in zip(lines, scores, strict=True):
        colour = colours((score - scores.min()) / span)
        axis.plot(range(len(line)), line, color=colour, alpha=0.75, lw=1.3)
    axis.set_xlim(-0.6, len(names) + 0.3)
    axis.set_ylim(-0.04, 1.2)
    axis.axis("off")
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _heights(values):
    """Where values stand on an axis from 0 to 1, and its ticks (height, text)."""
    if isinstance(values[0], str) or len(set(values)) <= 11:
        known = sorted(set(values))
        scale = max(len(known) - 1, 1)
        heights = [known.index(value) / scale for value in values]
        texts = [v if isinstance(v, str) else f"{v:.4g}" for v in known]
        return heights, [(i / scale, text) for i, text in enumerate(texts)]
    low, high = min(values), max(values)
    if low > 0 and high / low > 20:  # a rate
        ticks = np.geomspace(low, high, 5)
        heights = np.log(np.array(values) / low) / np.log(high / low)
    else:
        ticks = np.linspace(low, high, 5)
        heights = (np.array(values) - low) / (high - low)
    return list(heights), [(i / 4, f"{tick:.3g}") for i, tick in enumerate(ticks)]


def character_figure(
    gates: Mapping[str, float],
    perplexities: Mapping[str, Sequence[float]] | None = None,
    *,
    title: str = "",
) -> Figure:
    """Which characters open the highway gates, and perplexity of language models.

    Args:
        gates: {character: mean T over the words that contain it}.
        perplexities: {net: perplexity of each seed}, a panel on the left; None (the
            default) draws the gates alone.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    if perplexities is None:
        right = figure.subplots()
    else:
        left, right = figure.subplots(1, 2, width_ratios=(1, 2))
        for place, values in enumerate(perplexities.values()):
            left.plot(values, [place] * len(values), "o", color="#0072B2", mfc="none")
            left.plot(np.mean(values), place, "|", color="#D55E00", ms=14, mew=2)
        left.set_yticks(range(len(perplexities)), list(perplexities))
        left.invert_yaxis()
        left.set_xlabel("test perplexity a word (circles: seeds, bar: mean)")
        left.grid(axis="x", alpha=0.3)
    order = sorted(gates, key=gates.get)
    right.plot(range(len(order)), [gates[c] for c in order], "o", color="#009E73")
    right.set_xticks(range(len(order)), order, fontsize=8, family="monospace")
    right.set_xlabel("character")
    right.set_ylabel("mean transform gate of the words with it")
    right.grid(axis="y", alpha=0.3)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def class_figure(
    by_class, *, classes: Sequence[str] | None = None, title: str = ""
) -> Figure:
    """Routing as in Fig. 3: how the mean T of each class differs from all classes'.

    A panel for each class, a row for each layer, a column for each unit. White is no
    difference; the darker, the larger, also in greyscale. The scale ends at what .5 %
    of the differences exceed.

    Args:
        by_class: `(classes, layers, units)`, or a list over layers of
            `(classes, units)`, from `gates_by_class`.
        classes: their names; numbers by default. Classes beyond ten are left out.
        title: of the figure.

    Returns:
        The figure.

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", Fig. 3.
    """
    if isinstance(by_class, np.ndarray):
        by_class = by_class.swapaxes(0, 1)
    rows = [np.asarray(one) - np.nanmean(one, axis=0) for one in by_class]
    count = min(10, len(rows[0]))
    away = np.abs(np.concatenate([row.ravel() for row in rows]))
    limit = np.nanpercentile(away, 99.5) or 1.0  # single gates would hide the rest
    figure = Figure(figsize=(12, _height(len(rows), 2)), layout="constrained")
    axes = figure.subplots(-(-count // 5), 5, sharex=True, sharey=True, squeeze=False)
    for label, axis in enumerate(axes.flat):
        axis.set_visible(label < count)
        if label >= count:
            continue
        values = _matrix([row[label] for row in rows])
        image = _heat_map(axis, values, "PuOr", (-limit, limit))
        name = classes[label] if classes is not None else label
        axis.set_title(f"class {name}", fontsize=9)
    for axis in axes[:, 0]:
        axis.set_ylabel("layer (depth)")
    for axis in axes[-1]:
        axis.set_xlabel("unit")
    label = "mean transform gate of the class − mean over classes"
    figure.colorbar(image, ax=axes, label=label, aspect=40, extend="both")
    if title:
        figure.suptitle(title)
    return figure


def lesion_figure(lesions, *, title: str = "") -> Figure:
    """Lesions as in Fig. 4: loss and accuracy with one layer closed, by layer.

    Args:
        lesions: from `lesions`; the dashed lines are the intact net's.
        title: of the figure.

    Returns:
        The figure.

    Reference:
        Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", Fig. 4.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    place = np.arange(1, len(lesions.loss) + 1)
    for axis, values, intact, name in zip(
        figure.subplots(1, 2),
        (lesions.loss, lesions.accuracy),
        (lesions.intact_loss, lesions.intact_accuracy),
        ("mean cross-entropy", "accuracy"),
        strict=True,
    ):
        style = {"marker": "o", "ms": 3, "color": _COLOURS[0]}
        axis.plot(place, values, label="one layer closed", **style)
        label = f"intact net: {intact:.4f}"
        axis.axhline(intact, ls="--", color=_COLOURS[1], label=label)
        _depth_axis(axis, "lesioned layer (depth)", len(place))
        axis.set_ylabel(name)
        axis.grid(alpha=0.3)
        axis.legend(fontsize=8)
    if lesions.intact_loss > 0:
        figure.axes[0].set_yscale("log")
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def carry_figure(
    gates=None, *, values: Sequence[float] = (0.02, 0.1, 0.5), title: str = ""
) -> Figure:
    """Carry product: what is left of the input after L layers, (1 − T)^L.

    Args:
        gates: mean gates of a net, `(layers, …)`, whose own product is drawn too;
            None draws 50 layers.
        values: constant T of the dashed lines.
        title: of the figure.

    Returns:
        The figure.
    """
    layers = 50 if gates is None else len(gates)
    place = np.arange(1, layers + 1)
    figure = Figure(figsize=(6.5, 4.2), layout="constrained")
    axis = figure.subplots()
    for i, value in enumerate(values):
        label = f"(1 − T)^L, T = {value:g}"
        style = {"ls": ("--", "-.", ":")[i % 3], "color": _COLOURS[1 + i % 3]}
        axis.plot(place, (1 - value) ** place, label=label, **style)
    if gates is not None:
        products = carry_products(gates)
        label = "this net: ∏ (1 − mean T)"
        axis.plot(place, products, color=_COLOURS[0], lw=2, label=label)
    axis.set_yscale("log")
    lowest = 1e-6 if gates is None else min(1e-6, 0.3 * max(products[-1], 1e-30))
    axis.set_ylim(lowest, 1.5)
    _depth_axis(axis, "layers passed, L", layers)
    axis.set_ylabel("carry product")
    axis.grid(alpha=0.3)
    axis.legend(fontsize=8)
    if title:
        axis.set_title(title, fontsize=10)
    return figure


def change_figure(change, *, title: str = "") -> Figure:
    """How far each layer moves the state, and the share of the way up to it.

    Args:
        change: from `output_change`.
        title: of the figure.

    Returns:
        The figure.
    """
    figure = Figure(figsize=(10, 3.8), layout="constrained")
    left, right = figure.subplots(1, 2)
    place = np.arange(1, len(change.change) + 1)
    total = change.change.sum() or 1.0
    style = {"marker": "o", "ms": 3, "color": _COLOURS[0]}
    left.plot(place, change.change, **style)
    left.set_ylabel("mean ‖y − x‖ of the layer")
    right.plot(place, np.cumsum(change.change) / total, **style)
    right.set_ylabel("share of the whole way")
    right.set_ylim(0, 1.02)
    for axis in (left, right):
        _depth_axis(axis, "layer (depth)", len(place))
        axis.grid(alpha=0.3)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def strip_figure(image, trace, *, index: int = 0, title: str = "") -> Figure:
    """For one image, what each layer passed on and what it transformed.

    Passed is C·x, transformed is y − C·x = T·H(x), on one scale. Dense nets have a row
    for each layer and a column for each unit; convolutions a picture for each layer
    (twelve at most, evenly over the depth), the mean of absolute values over channels;
    the first layer of a later stage, whose input is not in the trace, stays empty.

    Args:
        image: `(height, width, channels)` or `(features,)`, raw.
        trace: from `trace`, with outputs.
        index: of the image in the trace.
        title: of the figure.

    Returns:
        The figure.
    """
    passed, transformed = [], []
    carries = trace.carry_gates
    for i, gate in enumerate(trace.gates):
        x, y = (np.float64(trace.outputs[i + n][index]) for n in (0, 1))
        carry = 1 - np.float64(gate[index]) if carries is None else carries[i][index]
        passed.append(carry * x if x.shape == y.shape else np.full(y.shape, np.nan))
        transformed.append(y - passed[-1])
    parts = {"passed, C·x": passed, "transformed, T·H(x)": transformed}
    if passed[0].ndim == 3:
        return _strip_of_maps(image, parts, title)
    figure = Figure(figsize=(11, _height(len(passed))), layout="constrained")
    axes = figure.subplots(1, 3, width_ratios=(0.5, 1, 1))
    _show_image(axes[0], image)
    limit = max(np.nanmax(np.abs(_matrix(rows))) for rows in parts.values()) or 1.0
    for axis, (name, rows) in zip(axes[1:], parts.items(), strict=True):
        heat_map = _heat_map(axis, _matrix(rows), "PuOr", (-limit, limit))
        axis.set_title(name, fontsize=10)
        axis.set_xlabel("unit")
    axes[1].set_ylabel("layer (depth)")
    figure.colorbar(heat_map, ax=axes[1:], aspect=40)
    if title:
        figure.suptitle(title)
    return figure


def _strip_of_maps(image, parts, title):
    layers = len(next(iter(parts.values())))
    shown = np.unique(np.linspace(0, layers - 1, min(12, layers)).round().astype(int))
    figure = Figure(figsize=(1.1 * (len(shown) + 2), 3.2), layout="constrained")
    axes = figure.subplots(2, len(shown) + 1, squeeze=False)
    _show_image(axes[0, 0], image)
    axes[1, 0].set_visible(False)
    maps = {name: [np.abs(m).mean(-1) for m in rows] for name, rows in parts.items()}
    for column, place in enumerate(shown, 1):
        # One scale for both pictures of a layer: layers differ by their widths.
        top = max(np.nanmax(rows[place], initial=0) for rows in maps.values()) or 1.0
        for axis, (name, rows) in zip(axes[:, column], maps.items(), strict=True):
            axis.imshow(rows[place], cmap="viridis", vmin=0, vmax=top)
            axis.set_xticks([])
            axis.set_yticks([])
            if np.isnan(rows[place]).all():  # what it got is not in the trace
                where = {"ha": "center", "va": "center", "fontsize": 8}
                axis.text(0.5, 0.5, "new stage", transform=axis.transAxes, **where)
            if column == 1:
                axis.set_ylabel(name, fontsize=8)
        axes[0, column].set_title(f"layer {place + 1}", fontsize=8)
    if title:
        figure.suptitle(title, fontsize=10)
    return figure


def _show_image(axis, image):
    image = np.asarray(image, np.float64)
    image = image[:, None] if image.ndim == 1 else image
    image = image[..., 0] if image.shape[-1] == 1 and image.ndim == 3 else image
    low, high = image.min(), image.max()
    image = (image - low) / ((high - low) or 1.0)
    axis.imshow(image, cmap="gray", vmin=0, vmax=1)
    axis.set_title("image", fontsize=10)
    axis.axis("off")


def _depth_axis(axis, label, layers):
    axis.set_xlabel(label)
    axis.set_xlim(0.5, layers + 0.5)
    axis.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))


def _height(layers, panels=1):
    """Of a figure whose rows are layers."""
    return float(np.clip(panels * (0.11 * layers + 0.7) + 0.7, 3.2, 9))


def _heat_map(axis, values, colours, limits):
    """Layers from the top down, units from left to right, both counted from 1."""
    image = axis.imshow(
        values,
        cmap=colours,
        vmin=limits[0],
        vmax=limits[1],
        aspect="auto",
        interpolation="nearest",
        extent=(0.5, values.shape[1] + 0.5, len(values) + 0.5, 0.5),
    )
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
    return image


def save(figure: Figure, path: str | os.PathLike) -> pathlib.Path:
    """Writes the figure as PNG, PDF or SVG by the suffix, renamed into place."""
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.tmp{path.suffix}")
    try:
        figure.savefig(temporary, dpi=130)
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    return path


def _matrix(arrays):
    """(layers, units): means over the axes between; NaN past a narrow layer's end."""
    rows = [np.asarray(a, np.float64) for a in arrays]
    rows = [row.mean(axis=tuple(range(row.ndim - 1))) for row in rows]
    width = max(len(row) for row in rows)
    return np.stack(
        [np.pad(row, (0, width - len(row)), constant_values=np.nan) for row in rows]
    )
