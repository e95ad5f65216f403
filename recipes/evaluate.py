"""Evaluates a trained net on the whole test set again and compares with its card.

    python recipes/evaluate.py highway_mlp_mnist_50
    python recipes/evaluate.py --all
    python recipes/evaluate.py runs/highway_mlp_digits_50

Prints accuracy, loss and the classes that are most often taken for each other, and
writes runs/evaluate/NAME.json with the confusion matrix. Exit code 1: not the accuracy
on the card; 2: wrong input, with one sentence.
"""

import argparse
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

import zoo  # noqa: E402
from recipes import train  # noqa: E402
from zoo import datasets, pretrained  # noqa: E402

OUT = pathlib.Path("runs/evaluate")


def confusion(model, dataset: str) -> np.ndarray:
    """Numbers of test images, `(classes, classes)`, by class and by guess."""
    info = datasets.info(dataset)
    counts = np.zeros((info.num_classes, info.num_classes), int)
    for images, labels in datasets.load(dataset, "test", 256):
        guesses = tf.argmax(model(images, training=False), -1)
        np.add.at(counts, (labels.numpy(), guesses.numpy()), 1)
    return counts


def evaluate(name: str, out: pathlib.Path) -> bool:
    """Prints and writes what is found; whether the card is right."""
    found = zoo.verify(name)
    _, card = pretrained.open_card(name)
    names = datasets.info(card["dataset"]).class_names
    counts = confusion(zoo.load(name), card["dataset"])
    mistaken = counts - np.diag(np.diag(counts))
    pairs = np.dstack(np.unravel_index(np.argsort(-mistaken, axis=None), counts.shape))
    record = {"name": card["name"], **found, "confusion": counts.tolist()}
    out.mkdir(parents=True, exist_ok=True)
    train.write(out / f"{card['name']}.json", json.dumps(record) + "\n")
    same = "as on its card" if found["equal"] else "NOT as on its card"
    print(
        f"{card['name']}: accuracy {found['accuracy']:.4f} on {found['n']:,} test "
        f"images of {card['dataset']}, {same} ({found['recorded']:.4f}); loss "
        f"{found['loss']:.4f}"
    )
    for actual, guess in pairs[0][:3]:
        if mistaken[actual, guess]:
            print(
                f"  {mistaken[actual, guess]} × {names[actual]} taken for "
                f"{names[guess]}"
            )
    return found["equal"]


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "names", nargs="*", help="pretrained names, runs or SavedModels"
    )
    parser.add_argument("--all", action="store_true", help="every pretrained net")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help=f"default: {OUT}")
    args = parser.parse_args(argv)
    names = zoo.list_pretrained() if args.all else args.names
    if not names:
        print("error: give the name of a net, or --all", file=sys.stderr)
        return 2
    try:
        for name in names:
            pretrained.open_card(name)  # all, before any long work
        right = [evaluate(name, args.out) for name in names]
    except (ValueError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
