"""What all tables share: their training runs, and a row of results."""

import functools
import json
import pathlib
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.progress import Progress

from recipes import train
from zoo import analysis, datasets

ROOT = pathlib.Path("runs/reproduce")


class Table(NamedTuple):
    """A table: `make(seeds, budget)` gives its rows and its figure."""

    make: Callable
    seeds: dict  # by budget: how many unless `--seeds` says it
    findings: Callable = lambda rows: []  # sentences on the rows


class Refused(ValueError):
    """What stands on the disk forbids a run."""


class Runs:
    """Trains the runs of a table, each in a directory of its own, once.

    Args:
        seeds: how many runs of each config.
        context: function of config and trained model that gives further metrics. By
            default the layers of highway nets are closed one by one, to see which
            matter; None is nothing.
        artefacts: whether the runs keep figures and SavedModel, as a teacher must.
    """

    def __init__(self, seeds, context=..., artefacts=False):
        self.root, self.seeds = ROOT / "runs", seeds
        self.context = context if context is not ... else lesions_of
        self.artefacts = artefacts
        self.planned = {}

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
        # no thread of its own: imports of TensorFlow Datasets break those of others
        bar = Progress(console=Console(stderr=True), auto_refresh=False)
        with bar as progress:
            task = progress.add_task("runs", total=total)
            for key, runs in self.planned.items():
                for config, directory in runs:
                    progress.update(task, description=directory.name, refresh=True)
                    found[key].append(self._metrics(config, directory))
                    progress.update(task, advance=1, refresh=True)
        return found

    def histories(self):
        """{key: {column: its values by epoch} of each seed}, once they are trained."""
        return {
            key: [train.read_history(directory) for _, directory in runs]
            for key, runs in self.planned.items()
        }

    def _metrics(self, config, directory):
        also = self.context and functools.partial(self.context, config)
        return train_once(config, directory, also, artefacts=self.artefacts)


def train_once(config, directory, also=None, artefacts=False):
    """Metrics of the run in the directory, which is trained if it is not finished."""
    if (directory / train.CONFIG).exists() and not train.holds(directory, config):
        raise Refused(
            f"{directory} holds a run of another config; delete it to train anew."
        )
    path = directory / train.METRICS
    if path.exists():
        return train.read_metrics(directory)
    run = train.Run(config, directory, directory.name)
    try:
        return run.fit(artefacts=artefacts, also=also)
    except FloatingPointError as error:  # a result too: it counts as chance
        metrics = {
            "test": {"accuracy": 1 / run.info.num_classes},
            "parameters": run.model.count_params(),
            "seed": config.seed,
            "diverged": str(error),
        }
        train.write(path, json.dumps(metrics, indent=2) + "\n")
        return metrics


def lesions_of(config, model):
    """What is left without gates, and how many layers change a prediction."""
    gated = any(map(analysis.is_gated, model.layers))
    if not (gated and config.builder.startswith("highway")):
        return {}
    lesions = analysis.lesions(model, *datasets.arrays(config.dataset, "test"))
    return {
        "closed_accuracy": lesions.closed_accuracy,
        "layers_that_matter": int(np.sum(lesions.changed > 0)),
        "layers": len(lesions.changed),
    }


def accuracies(metrics):
    return [m["test"]["accuracy"] for m in metrics]


def row_of(setting, metrics, printed):
    """A table's row: ours as mean and deviation, then the printed value."""
    scores = accuracies(metrics)
    row = {
        **setting,
        "accuracy": float(np.mean(scores)),
        "std": float(np.std(scores, ddof=1)) if len(scores) > 1 else 0.0,
        "n": len(scores),
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
