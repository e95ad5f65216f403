"""Says what a trained net sees in images, and which of its layers were active.

    python recipes/predict.py highway_mlp_mnist_50 seven.png photo.jpg

Takes the name of a pretrained net, a run or a SavedModel, and PNG, JPEG, BMP or GIF
files (the first frame counts). An image is made grey or coloured, resized and brought
to the pixel range as the net wants it; what was done is said. Nets that know white on
black (digits, mnist, fashion_mnist) get a picture with a bright border inverted;
`--invert` and `--keep` decide otherwise. Writes runs/predict/NAME.json too.
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
from rich import box, table  # noqa: E402
from rich.console import Console  # noqa: E402

import zoo  # noqa: E402
from recipes import train  # noqa: E402
from zoo import analysis, datasets, pretrained  # noqa: E402

OUT = pathlib.Path("runs/predict")
WHITE_ON_BLACK = ("digits", "mnist", "fashion_mnist")


def read(path, info, invert: bool | None):
    """(image as the data set has them, what was done to it).

    Args:
        path: of an image file.
        info: `DatasetInfo` of the data set.
        invert: whether light and dark change places; None finds out.

    Raises:
        ValueError, OSError: no image that can be read.
    """
    content = pathlib.Path(path).read_bytes()
    height, width, channels = info.image_shape
    try:
        image = tf.io.decode_image(content, channels, expand_animations=False)
    except tf.errors.InvalidArgumentError:
        raise ValueError(
            f"Images must be PNG, JPEG, BMP or GIF files. Received: {path}"
        ) from None
    steps = ["made grey" if channels == 1 else "as RGB"]
    image = tf.cast(image, "float32").numpy()
    if image.shape[:2] != (height, width):
        steps.append(f"{image.shape[1]}×{image.shape[0]} → {width}×{height}")
        image = tf.image.resize(image, (height, width), antialias=True).numpy()
    edge = [image[0], image[-1], image[:, 0], image[:, -1]]
    bright = np.concatenate(edge).mean() > 127.5
    if invert or (invert is None and bright and info.name in WHITE_ON_BLACK):
        image = 255 - image
        steps.append("inverted")
    low, high = info.pixel_range
    image = low + np.clip(image, 0, 255) * (high - low) / 255
    return np.round(image).astype("float32"), ", ".join(steps)


def active_layers(model, images) -> list[list[str]] | None:
    """For each image, names of the layers with an open gate: T above .5 somewhere."""
    if not any(map(analysis.is_gated, model.layers)):
        return None
    trace = analysis.trace(model, images)
    opened = [
        np.reshape(gates, (len(images), -1)).max(1) > 0.5 for gates in trace.gates
    ]
    return [
        [name for name, layer in zip(trace.names, opened, strict=True) if layer[i]]
        for i in range(len(images))
    ]


def predict(name, files, invert):
    """Rows of results, one an image."""
    _, card = pretrained.open_card(name)
    if "dataset" not in card:
        raise ValueError(
            f"`name` must be a net whose card names its data set. Received: {name}"
        )
    info = datasets.info(card["dataset"])
    if info.image_shape is None:
        raise ValueError(f"`name` must be a net for images. Received: {name}")
    given = [read(file, info, invert) for file in files]
    images = np.stack([image for image, _ in given])
    model = zoo.load(name)
    chances = tf.nn.softmax(model.predict(images, verbose=0)).numpy()
    active = active_layers(model, images) or [None] * len(files)
    return [
        {
            "file": str(file),
            "class": info.class_names[best[0]],
            "probability": float(row[best[0]]),
            "next": {info.class_names[i]: float(row[i]) for i in best[1:]},
            "image": steps,
            "active_layers": layers,
        }
        for file, (_, steps), row, best, layers in zip(
            files, given, chances, np.argsort(-chances)[:, :3], active, strict=True
        )
    ]


def show(rows, layers):
    """The table on the screen."""
    listing = table.Table(box=box.SIMPLE)
    for column in ("image", "class", "probability", "next", "active layers", "read"):
        listing.add_column(column, overflow="fold")
    for row in rows:
        following = ", ".join(f"{k} {v:.3f}" for k, v in row["next"].items())
        active = row["active_layers"]
        if active is not None:
            few = ", ".join(active[:6]) + (" …" if len(active) > 6 else "")
            active = f"{len(active)} of {layers}: {few}" if active else "none"
        listing.add_row(
            row["file"],
            row["class"],
            f"{row['probability']:.3f}",
            following,
            active or "",
            row["image"],
        )
    console = Console()
    (console if console.is_terminal else Console(width=140)).print(listing)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="a pretrained net, run or SavedModel")
    parser.add_argument("images", nargs="+", type=pathlib.Path, help="files")
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--invert", action="store_true", help="light for dark")
    choice.add_argument("--keep", action="store_true", help="never invert")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help=f"default: {OUT}")
    args = parser.parse_args(argv)
    invert = True if args.invert else False if args.keep else None
    try:
        rows = predict(args.name, args.images, invert)
    except (ValueError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    _, card = pretrained.open_card(args.name)
    show(rows, sum(map(len, card["gates"].values())))
    args.out.mkdir(parents=True, exist_ok=True)
    text = json.dumps(rows, indent=2, ensure_ascii=False) + "\n"
    train.write(args.out / f"{card['name']}.json", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
