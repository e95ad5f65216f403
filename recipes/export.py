"""Releases a run: its SavedModel with log, curves and card, into saved_models/NAME.

    python recipes/export.py runs/preact_resnet_cifar10_20
    python recipes/export.py runs/seed_0 --name highway_mlp_digits_50

The run must be finished. The folder is written beside its place and renamed into it; an
older release of that name is replaced only with `--overwrite`. The report of
`recipes/analyze.py runs/NAME` goes along if it is there.
"""

import argparse
import json
import os
import pathlib
import shutil
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from recipes import train  # noqa: E402
from zoo import export, pretrained  # noqa: E402

# what goes along, if it is there
BESIDE = (
    "history.csv",
    "curves.png",
    "gates.png",
    "hints.csv",
    "hints.png",
    "analysis/report.html",
)


def release(run: pathlib.Path, place: pathlib.Path, overwrite: bool = False):
    """Copies the SavedModel of a finished run to `place`, with its log and figures.

    Raises:
        ValueError: the run is not finished, its SavedModel is damaged, or `place`
            exists already.
    """
    if not (run / train.METRICS).is_file():
        raise ValueError(
            f"`run` must be the directory of a finished run, with {train.METRICS}. "
            f"Received: {run}"
        )
    if place.exists() and not (overwrite and (place / export.CARD).is_file()):
        raise ValueError(f"{place} exists already; --overwrite replaces a release.")
    folder, card = pretrained.open_card(run)
    place.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        dir=place.parent, prefix=f".{place.name}-"
    ) as work:
        copy = pathlib.Path(work) / place.name
        shutil.copytree(folder, copy)
        for name in BESIDE:
            if (run / name).is_file():
                shutil.copy2(run / name, copy / pathlib.Path(name).name)
        export.write_card(copy, {**card, "name": place.name})
        if place.exists():
            place.rename(pathlib.Path(work) / "replaced")
        copy.rename(place)


def write_index(folder: pathlib.Path):
    """README.md of the releases: a table made from their cards."""
    lines = [
        "# Trained nets",
        "",
        "Each folder is a TensorFlow SavedModel with its card, training log, curves",
        "and figures; `zoo.load(NAME)` gives the live model, `zoo.load_served(NAME)`",
        "the endpoints. Accuracy is of the first seed, the one here, on the whole test",
        "set. This table is written by `python recipes/export.py`.",
        "",
        "| net | data set | parameters | test accuracy | trained on |",
        "|---|---|---|---|---|",
    ]
    for path in sorted(folder.glob(f"*/{export.CARD}")):
        card = json.loads(path.read_text(encoding="utf-8"))
        lines.append(
            f"| {card['name']} | {card['dataset']} | {card['parameters']:,} | "
            f"{card['metrics']['test']['accuracy']:.4f} | "
            f"{card['recipe']['train_split']} |"
        )
    train.write(folder / "README.md", "\n".join(lines) + "\n")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=pathlib.Path, help="directory of a finished run")
    parser.add_argument("--name", help="of the release; default: the directory's")
    parser.add_argument("--overwrite", action="store_true", help="replace a release")
    args = parser.parse_args(argv)
    place = ROOT / "saved_models" / (args.name or args.run.resolve().name)
    try:
        release(args.run, place, args.overwrite)
        write_index(place.parent)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(f"In {place}: {', '.join(sorted(p.name for p in place.iterdir()))}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
