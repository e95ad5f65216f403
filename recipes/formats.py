"""Writes trained nets as LiteRT and ONNX, and measures every form of them.

    python recipes/formats.py highway_mlp_mnist_50
    python recipes/formats.py --all

Into runs/formats/NAME/ go net.tflite, net_float16.tflite, net_int8.tflite (calibrated
on 200 training images), net.onnx, and table.csv and table.json: size, accuracy on the
whole test set, largest difference of a logit from the live model's, and milliseconds
for a batch of 1 and of 128, the median of --turns turns in which all forms follow each
other. Of several nets runs/formats/table.csv and table.json hold all rows. Needs the
extra `export`; use a quiet machine.
"""

import argparse
import csv
import io
import json
import os
import pathlib
import statistics
import sys
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402
from rich import box, table  # noqa: E402
from rich.console import Console  # noqa: E402

import zoo  # noqa: E402
from recipes import train  # noqa: E402
from zoo import datasets, export, pretrained  # noqa: E402
from zoo._checks import check_int  # noqa: E402

OUT = pathlib.Path("runs/formats")
CALIBRATION = 200  # training images


def litert(path):
    """Function of images that runs a LiteRT file."""
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    (given,), (found,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    shape = None

    def run(images):
        nonlocal shape
        if images.shape != shape:
            shape = images.shape
            interpreter.resize_tensor_input(given["index"], shape, strict=True)
            interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(found["index"])

    return run


def onnx(path):
    """Function of images that runs an ONNX file."""
    import onnxruntime

    session = onnxruntime.InferenceSession(
        str(path), providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def forms(name, model, dataset, folder):
    """{form: (its size in bytes or None, function of images)}; writes the files."""
    samples, _ = datasets.arrays(dataset, "train")
    served = pretrained.load_served(name)
    place, card = pretrained.open_card(name)
    size = sum(f.stat().st_size for f in place.rglob("*") if f.is_file())
    key = card["input"]["name"]
    found = {
        "live, model(x)": (None, lambda x: model(x, training=False).numpy()),
        "live, predict": (None, lambda x: model.predict(x, verbose=0)),
        "SavedModel": (size, lambda x: served.serve(**{key: x})["logits"].numpy()),
    }
    for weights in export.LITERT_WEIGHTS:
        suffix = "" if weights == "float32" else f"_{weights}"
        path = folder / f"net{suffix}.tflite"
        few = samples[:CALIBRATION] if weights == "int8" else None
        export.export_litert(model, path, weights=weights, samples=few)
        found[f"LiteRT {weights}"] = path.stat().st_size, litert(path)
    path = export.export_onnx(model, folder / "net.onnx")
    found["ONNX"] = path.stat().st_size, onnx(path)
    return found


def logits(run, images, batch=128):
    """Of all images, the last batch filled up: files are compiled for a size."""
    missing = -len(images) % batch
    filled = np.concatenate([images, images[:1].repeat(missing, 0)])
    parts = [run(filled[i : i + batch]) for i in range(0, len(filled), batch)]
    return np.concatenate(parts)[: len(images)]


def measure(name, folder, turns):
    """Rows of the table."""
    _, card = pretrained.open_card(name)
    dataset = card.get("dataset")
    if dataset is None:
        raise ValueError(
            f"`name` must be a net whose card names its data set. Received: {name}"
        )
    model = zoo.load(name)
    images, labels = datasets.arrays(dataset, "test")
    images = np.float32(images)
    found = forms(name, model, dataset, folder)
    live = logits(found["live, predict"][1], images)
    rows = []
    for form, (size, run) in found.items():
        answer = logits(run, images)
        rows.append(
            {
                "form": form,
                "bytes": size,
                "accuracy": float(np.mean(answer.argmax(-1) == labels)),
                "largest_difference": float(np.abs(answer - live).max()),
            }
        )
    for size in (1, 128):
        times = {form: [] for form in found}
        batch = images[:size]
        for _, run in found.values():
            run(batch)
        for _ in range(turns):
            for form, (_, run) in found.items():
                began = time.perf_counter()
                for _ in range(10):
                    run(batch)
                times[form].append((time.perf_counter() - began) * 100)
        for row in rows:
            row[f"ms_batch_{size}"] = statistics.median(times[row["form"]])
    return rows


def write(folder, rows, **facts):
    """Writes table.csv and table.json."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    train.write(folder / "table.csv", text.getvalue())
    record = {**facts, "tensorflow": tf.__version__, "rows": rows}
    train.write(folder / "table.json", json.dumps(record, indent=2) + "\n")


def show(title, rows):
    listing = table.Table(*rows[0], box=box.SIMPLE, title=title)
    for row in rows:
        listing.add_row(
            *(
                f"{v:.4g}" if isinstance(v, float) else f"{v or ''}"
                for v in row.values()
            )
        )
    console = Console()
    (console if console.is_terminal else Console(width=120)).print(listing)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", help="pretrained nets, runs or SavedModels")
    parser.add_argument(
        "--all", action="store_true", help="every pretrained net that reads images"
    )
    parser.add_argument("--turns", type=int, default=7, help="of timing (7)")
    parser.add_argument("--out", type=pathlib.Path, default=OUT, help=f"({OUT})")
    args = parser.parse_args(argv)
    try:
        check_int("--turns", args.turns)
        names = zoo.list_pretrained() if args.all else args.names
        cards = [pretrained.open_card(name)[1] for name in names]  # before long work
        reads_text = [card["input"]["name"] == "text" for card in cards]
        if args.all:
            names = [n for n, text in zip(names, reads_text, strict=True) if not text]
        elif not names or any(reads_text):
            raise ValueError(
                "`names` must be nets that read images, one or more, or --all. "
                f"Received: {' '.join(names) or 'none'}"
            )
        every = []
        for name in names:
            title = pretrained.open_card(name)[1]["name"]
            folder = args.out / title
            rows = measure(name, folder, args.turns)
            write(folder, rows, name=title)
            show(title, rows)
            print(f"In {folder}: {', '.join(sorted(p.name for p in folder.iterdir()))}")
            every += [{"net": title, **row} for row in rows]
    except (ValueError, OSError, ImportError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    if len(names) > 1:
        write(args.out, every)
        print(f"In {args.out}: table.csv, table.json")
    return 0


if __name__ == "__main__":
    sys.exit(main())
