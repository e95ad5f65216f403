"""Releases a run: its SavedModel with log, curves and card, into saved_models/NAME.

    python recipes/export.py runs/preact_resnet_cifar10_20
    python recipes/export.py runs/seed_0 --name highway_mlp_digits_50 \\
        --seeds runs/seed_1 runs/seed_2

The run must be finished. Its net is tested once more as released, which gives the
confusion matrix on the card (of up to 100 classes); a release whose accuracy is not
that of the run is refused. `--seeds` names runs of the same config with other seeds,
for the spread of the accuracy. The folder is written beside its place and renamed into
it; an older release of that name is replaced only with `--overwrite`. The report of
`recipes/analyze.py runs/NAME` goes along if it is there.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile
from collections.abc import Sequence

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402

from recipes import evaluate, train  # noqa: E402
from zoo import datasets, export, pretrained  # noqa: E402

# what goes along, if it is there
BESIDE = (
    "history.csv",
    "curves.png",
    "gates.png",
    "hints.csv",
    "hints.png",
    "analysis/report.html",
)


def release(
    run: pathlib.Path,
    place: pathlib.Path,
    overwrite: bool = False,
    seeds: Sequence[pathlib.Path] = (),
):
    """Copies the SavedModel of a finished run to `place`, with its log and figures.

    Raises:
        ValueError: the run is not finished, its SavedModel is damaged or has another
            accuracy than the run, `place` exists already, or a run of `seeds` is not
            finished or differs in more than its seed.
    """
    for directory in (run, *seeds):
        if not all((directory / n).is_file() for n in (train.CONFIG, train.METRICS)):
            raise ValueError(
                f"`run` must be the directory of a finished run, with {train.CONFIG} "
                f"and {train.METRICS}. Received: {directory}"
            )
    if place.exists() and not (overwrite and (place / export.CARD).is_file()):
        raise ValueError(f"{place} exists already; --overwrite replaces a release.")
    spread = {"seeds": accuracies((run, *seeds))} if seeds else {}
    folder, card = pretrained.open_card(run)
    metrics = {**card["metrics"], "test": tested(folder, card), **spread}
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=place.parent, prefix=f".{place.name}-"
    ) as work:
        copy = pathlib.Path(work) / place.name
        shutil.copytree(folder, copy)
        for name in BESIDE:
            if (run / name).is_file():
                shutil.copy2(run / name, copy / pathlib.Path(name).name)
        export.write_card(copy, {**card, "name": place.name, "metrics": metrics})
        if place.exists():
            place.rename(pathlib.Path(work) / "replaced")
        copy.rename(place)


def tested(folder: pathlib.Path, card: dict) -> dict:
    """The card's results on the test set, with the confusion matrix found now."""
    recorded = card["metrics"]["test"]
    if datasets.info(card["dataset"]).num_classes > 100:  # ImageNet, words of a text
        return recorded
    counts = evaluate.confusion(pretrained.load(folder), card["dataset"])
    right, n = int(np.trace(counts)), int(counts.sum())
    if abs(right / n - recorded["accuracy"]) > 0.5 / n:
        raise ValueError(
            f"The net in {folder} has {right} of {n} test examples right, and its card "
            f"says {recorded['accuracy']:.6f}."
        )
    return {**recorded, "n": n, "confusion": counts.tolist()}


def accuracies(runs: Sequence[pathlib.Path]) -> dict:
    """Test accuracy of runs that differ in their seed alone."""
    recipes = [train.read_config(run) for run in runs]
    used = [recipe.pop("seed") for recipe in recipes]
    for run, recipe in zip(runs, recipes, strict=True):
        other = train.differing(recipe, recipes[0])
        if other:
            raise ValueError(
                "`--seeds` must name runs of the same config with other seeds. "
                f"Received: {run}, which differs in {', '.join(other)}"
            )
    if len(set(used)) < len(used):
        raise ValueError(f"`--seeds` must have other seeds. Received: seeds {used}")
    found = [train.read_metrics(run)["test"]["accuracy"] for run in runs]
    mean, std = float(np.mean(found)), float(np.std(found, ddof=1))
    return {"seeds": used, "accuracy": found, "mean": mean, "std": std}


def write_index(folder: pathlib.Path):
    """README.md of the releases: a table made from their cards."""
    lines = [
        "# Trained nets",
        "",
        "Each folder is a TensorFlow SavedModel with its card, training log, curves",
        "and figures; `zoo.load(NAME)` gives the live model, `zoo.load_served(NAME)`",
        "the endpoints. Accuracy is that of the first seed, the one here, on the whole",
        "test set, and the mean ± standard deviation of all that were trained. The",
        "confusion matrix is on the card. This table is written by",
        "`python recipes/export.py`.",
        "",
        "| net | data set | parameters | test accuracy | of all seeds | trained on |",
        "|---|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob(f"*/{export.CARD}")):
        card = json.loads(path.read_text(encoding="utf-8"))
        seeds, of_all = card["metrics"].get("seeds"), ""
        if seeds:
            digits = 4 if seeds["std"] < 0.005 else 3
            mean, std = (f"{seeds[key]:.{digits}f}" for key in ("mean", "std"))
            of_all = f"{mean} ± {std} ({len(seeds['seeds'])})"
        lines.append(
            f"| {card['name']} | {card['dataset']} | {card['parameters']:,} | "
            f"{card['metrics']['test']['accuracy']:.4f} | {of_all} | "
            f"{card['recipe']['train_split']} |"
        )
    train.write(folder / "README.md", "\n".join(lines) + "\n")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path, help="directory of a finished run")
    parser.add_argument("--name", help="of the release; default: the directory's")
    parser.add_argument("--overwrite", action="store_true", help="replace a release")
    parser.add_argument(
        "--seeds",
        type=pathlib.Path,
        nargs="+",
        default=(),
        metavar="RUN",
        help="runs with other seeds",
    )
    args = parser.parse_args(argv)
    place = ROOT / "saved_models" / (args.name or args.run.resolve().name)
    try:
        release(args.run, place, args.overwrite, args.seeds)
        write_index(place.parent)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"In {place}: {', '.join(sorted(p.name for p in place.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
