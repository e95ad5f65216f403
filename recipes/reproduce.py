"""Reproduces a table of a paper: its set of runs, printed beside the paper's column.

    python recipes/reproduce.py digits_depth
    python recipes/reproduce.py digits_gate_bias --seeds 3
    python recipes/reproduce.py digits_gradients

Writes table.csv, table.json and a plot under runs/reproduce/TABLE/. Runs that are done
are kept and used again: stop with Ctrl-C, and the same command goes on.
"""

import argparse
import csv
import io
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402
from rich.table import Table  # noqa: E402

from recipes import configs, train  # noqa: E402
from zoo import analysis, datasets, models  # noqa: E402
from zoo._checks import check_int, known  # noqa: E402
from zoo.analysis import plots  # noqa: E402

ROOT = pathlib.Path("runs/reproduce")

# The two initial draws compared on digits: the tutorial's, and the layers' defaults.
UNIFORM = "U(±1/√n)"
HE = "He"
DRAWS = {
    UNIFORM: {},
    HE: {
        "kernel_initializer": "he_normal",
        "gate_kernel_initializer": "glorot_uniform",
        "bias_initializer": "zeros",
    },
}


class Refused(ValueError):
    """What stands on the disk forbids a run."""


class Runs:
    """Trains the runs of a table, each in a directory of its own, once."""

    def __init__(self, root, seeds):
        self.root, self.seeds, self.planned = root / "runs", seeds, {}

    def add(self, key, config, slug):
        """Plans a config for all seeds; its metrics are at `results()[key]`."""
        self.planned[key] = [
            (config.replace(seed=seed), self.root / f"{slug}_seed{seed}")
            for seed in range(self.seeds)
        ]

    def results(self):
        """{key: metrics of each seed}."""
        found = {key: [] for key in self.planned}
        total = sum(len(runs) for runs in self.planned.values())
        with Progress(console=Console(stderr=True)) as progress:
            task = progress.add_task("runs", total=total)
            for key, runs in self.planned.items():
                for config, directory in runs:
                    progress.update(task, description=directory.name)
                    found[key].append(self._metrics(config, directory))
                    progress.advance(task)
        return found

    def _metrics(self, config, directory):
        if (directory / train.CONFIG).exists() and not train.holds(directory, config):
            raise Refused(
                f"{directory} holds a run of another config; delete it to train anew."
            )
        path = directory / train.METRICS
        if path.exists():
            return json.loads(path.read_text(encoding="utf-8"))
        run = train.Run(config, directory, directory.name)
        return run.fit(artefacts=False, also=lambda model: context(config, model))


def context(config, model):
    """What is left without gates, and how many layers change a prediction."""
    if not any(analysis.is_gated(layer) for layer in model.layers):
        return {}
    lesions = analysis.lesions(model, *datasets.arrays(config.dataset, "test"))
    return {
        "closed_accuracy": lesions.closed_accuracy,
        "layers_that_matter": int(np.sum(lesions.changed > 0)),
        "layers": len(lesions.changed),
    }


def digits_depth(seeds):
    """Depth 5, 20, 50 with and without gates on digits; gate bias −2."""
    printed = {
        ("plain", 5): 0.9481,
        ("highway", 5): 0.9630,
        ("plain", 20): 0.3593,
        ("highway", 20): 0.9500,
        ("plain", 50): 0.1019,
        ("highway", 50): 0.9426,
    }
    runs = Runs(ROOT, seeds)
    for draw in DRAWS:
        for kind, depth in printed:
            runs.add((draw, kind, depth), *_digits(kind, depth, draw, -2.0))
        one, slug = _digits("highway", 0, draw, -2.0)
        runs.add((draw, "no highway layer", 0), one, slug)
    results = runs.results()
    rows = [
        _row(
            {"initial draw": draw, "net": kind, "layers": depth},
            metrics,
            printed.get((kind, depth)) if draw == UNIFORM else None,
        )
        for (draw, kind, depth), metrics in results.items()
    ]
    score = _logistic_regression()
    row = {"initial draw": "–", "net": "logistic regression", "layers": 0}
    rows.append({**row, "accuracy": score, "std": 0.0, "n": 1})
    series = {}
    for (draw, kind, depth), metrics in results.items():
        if depth:
            series.setdefault(f"{kind}, {draw}", {})[depth] = _accuracies(metrics)
    figure = plots.accuracy_figure(
        series,
        xlabel="layers between stem and logits",
        reference={
            f"{kind}, {UNIFORM}": [printed[kind, d] for d in (5, 20, 50)]
            for kind in ("plain", "highway")
        },
        chance=0.1,
        title=f"Digits, {seeds} seeds",
    )
    return rows, figure


def digits_gate_bias(seeds):
    """Initial gate bias 0, −2, −5 of 50 highway layers on digits."""
    printed = {0.0: 0.1000, -2.0: 0.9426, -5.0: 0.9611}
    runs = Runs(ROOT, seeds)
    for draw in DRAWS:
        for bias in printed:
            runs.add((draw, bias), *_digits("highway", 50, draw, bias))
    results = runs.results()
    rows = [
        _row(
            {"initial draw": draw, "gate bias": bias},
            metrics,
            printed[bias] if draw == UNIFORM else None,
        )
        for (draw, bias), metrics in results.items()
    ]
    series = {}
    for (draw, bias), metrics in results.items():
        series.setdefault(draw, {})[f"{bias:g}"] = _accuracies(metrics)
    figure = plots.accuracy_figure(
        series,
        xlabel="initial gate bias",
        reference={UNIFORM: list(printed.values())},
        chance=0.1,
        title=f"Digits, 50 highway layers, {seeds} seeds",
    )
    return rows, figure


def digits_gradients(seeds):
    """Gradient norm of the first layer ÷ the last at initialisation."""
    printed = {
        ("plain", 10): 1.43e-3,
        ("highway", 10): 0.784,
        ("plain", 50): 4.76e-19,
        ("highway", 50): 3.31e-2,
    }
    rows, curves = [], {}
    for kind, depth in printed:
        model, images, labels = tutorial_net(kind, depth)
        norms = analysis.gradient_norms(model, images, labels)
        curves[f"{kind}, {depth} layers"] = norms
        row = {"net": kind, "layers": depth, "printed": printed[kind, depth]}
        row["the tutorial's draw"] = float(norms[0] / norms[-1])
        for draw in DRAWS:
            ratios = [
                _ratio(_digits(kind, depth, draw, -2.0)[0], seed, images, labels)
                for seed in range(seeds)
            ]
            row[f"{draw}, geometric mean"] = float(np.exp(np.mean(np.log(ratios))))
            row[f"{draw}, factor of spread"] = float(np.exp(np.std(np.log(ratios))))
        rows.append({**row, "n": seeds})
    figure = plots.gradient_figure(curves, title="At initialisation, U(±1/√64)")
    return rows, figure


def digits_900(seeds):
    """900 weight layers on digits, and what is left when gates close."""
    runs = Runs(ROOT, seeds)
    runs.add("900", configs.load("highway_mlp_digits_900"), "digits_highway_900")
    metrics = runs.results()["900"]
    rows = [_row({"net": "highway", "layers": 899}, metrics, None)]
    figure = plots.accuracy_figure(
        {"highway": {"900": _accuracies(metrics)}},
        xlabel="depth",
        chance=0.1,
        title=f"Digits, {seeds} seeds",
    )
    return rows, figure


def tutorial_net(kind: str, layers: int):
    """The tutorial's net with its own random draw, and its inputs and labels.

    `default_rng(0)` gives, in this order, kernel and bias of the stem, of the logits,
    then of each layer, for highways followed by the gate's kernel and a bias that is
    thrown away for −2; then 256 inputs from N(0, 1) and labels.
    """
    rng = np.random.default_rng(0)

    def linear(outputs):
        limit = 1 / np.sqrt(64)
        return [rng.uniform(-limit, limit, s) for s in ((64, outputs), (outputs,))]

    builder = getattr(models, f"{kind}_mlp")
    model = builder((64,), depth=1 + layers, units=64, scan=False)
    stem, logits = linear(64), linear(10)
    weights = stem
    for _ in range(layers):
        weights += linear(64)
        if kind == "highway":
            weights += [linear(64)[0], np.full(64, -2.0)]
    model.set_weights(weights + logits)
    return model, rng.normal(size=(256, 64)), rng.integers(0, 10, 256)


TABLES = {
    "digits_depth": digits_depth,
    "digits_gate_bias": digits_gate_bias,
    "digits_gradients": digits_gradients,
    "digits_900": digits_900,
}


def _digits(kind, layers, draw, gate_bias):
    """(config, directory name) of a digits net of this many layers."""
    config = configs.load(f"{kind}_mlp_digits_50")
    changes = {"depth": 1 + layers, **DRAWS[draw]}
    slug = f"digits_{kind}_{layers}_{'uniform' if draw == UNIFORM else 'he'}"
    if kind == "highway":
        changes["gate_bias"] = gate_bias
        slug += f"_bias{gate_bias:g}"
    else:
        changes.pop("gate_kernel_initializer", None)
    return config.replace(model=changes), slug


def _ratio(config, seed, images, labels):
    """Gradient norm of the first layer ÷ the last, on 64 features instead of images."""
    import keras

    keras.utils.set_random_seed(seed)
    arguments = {**config.model, "input_shape": (64,), "rescale": 1.0}
    model = getattr(models, config.builder)(**arguments)
    norms = analysis.gradient_norms(model, images, labels)
    return norms[0] / norms[-1]


def _logistic_regression():
    """Test accuracy of scikit-learn's logistic regression on the same split."""
    from sklearn.linear_model import LogisticRegression

    images, labels = datasets.arrays("digits", "train+validation")
    tests, test_labels = datasets.arrays("digits", "test")
    classifier = LogisticRegression(max_iter=5000)
    classifier.fit(images.reshape(len(images), -1) / 16, labels)
    return float(classifier.score(tests.reshape(len(tests), -1) / 16, test_labels))


def _accuracies(metrics):
    return [m["test"]["accuracy"] for m in metrics]


def _row(setting, metrics, printed):
    """A table's row: ours as mean and deviation, then the printed value."""
    accuracies = _accuracies(metrics)
    row = {
        **setting,
        "accuracy": float(np.mean(accuracies)),
        "std": float(np.std(accuracies, ddof=1)) if len(accuracies) > 1 else 0.0,
        "n": len(accuracies),
        "printed": printed,
    }
    if metrics[0].get("layers"):
        row["all gates closed"] = float(
            np.mean([m["closed_accuracy"] for m in metrics])
        )
        row["layers that matter"] = float(
            np.mean([m["layers_that_matter"] for m in metrics])
        )
    return row


def differences(rows) -> list[str]:
    """Sentences on the rows whose printed value lies outside ours ± 2 deviations."""
    sentences = []
    for row in rows:
        if row.get("printed") is None or "accuracy" not in row:
            continue
        margin = 2 * row["std"] + 0.0019  # one of 540 test images
        if abs(row["accuracy"] - row["printed"]) > margin:
            setting = ", ".join(f"{k} {v}" for k, v in list(row.items())[:3])
            setting = setting.split(", accuracy")[0]
            sentences.append(
                f"Differs: {setting}: ours {row['accuracy']:.4f} ± {row['std']:.4f} "
                f"(n = {row['n']}), printed {row['printed']:.4f} (n = 1)."
            )
    return sentences


def _show(value):
    if value is None:
        return ""
    if isinstance(value, float):
        small = value != 0 and abs(value) < 1e-2
        return f"{value:.2e}" if small else f"{value:.4g}"
    return str(value)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", help=", ".join(TABLES))
    parser.add_argument("--seeds", type=int, default=5, help="seeds a row (5)")
    args = parser.parse_args(argv)
    try:
        known("table", args.table, TABLES)
        check_int("--seeds", args.seeds)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        rows, figure = TABLES[args.table](args.seeds)
    except Refused as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on with the runs that are missing.")
        return 130
    folder = ROOT / args.table
    folder.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    train.write(folder / "table.csv", text.getvalue())
    sentences = differences(rows)
    record = {"table": args.table, "rows": rows, "differences": sentences}
    train.write(folder / "table.json", json.dumps(record, indent=2) + "\n")
    plots.save(figure, folder / "plot.png")
    table = Table(box=box.SIMPLE, title=TABLES[args.table].__doc__)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_show(row.get(column)) for column in columns))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has room
        console = Console(width=150)
    console.print(table)
    for sentence in sentences:
        print(sentence)
    print(f"In {folder}: plot.png, table.csv, table.json")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
