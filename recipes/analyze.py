"""Looks into a trained net: gates, routing, lesions, gradients; figures and a report.

    python recipes/analyze.py runs/highway_mlp_digits_50
    python recipes/analyze.py highway_mlp_mnist_50 --prune 0.001
    python recipes/analyze.py net.keras --dataset digits --out digits_analysis

Takes the name of a pretrained net, the directory of a run, an exported SavedModel or a
.keras file, and writes into a directory: report.html (one page, opens from disk), each
figure, each array as CSV and JSON, and the findings. `--served` looks at a SavedModel
through its endpoint `gates` alone. Wrong input ends with one sentence and exit code 2.
"""

import argparse
import base64
import html
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402

from recipes import findings, train  # noqa: E402
from zoo import analysis, datasets, export, pretrained  # noqa: E402
from zoo._checks import check_int, known  # noqa: E402
from zoo.analysis import plots  # noqa: E402

GRADIENT_IMAGES = 256  # in the batch of the gradient's and the Jacobians' norms
TRACE_IMAGES = 32  # whose block outputs are compared from layer to layer
WORDS = 10  # with a character, at the least, where gates by character are shown


class Analysis:
    """Everything that can be measured on one net. Making it checks the input.

    Args:
        name: of a pretrained net, or a path.
        dataset: name; None for the one on the card.
        split: of the data set.
        images: how many of it, the first ones; None for all.
        image: number of the one whose gates are shown.
        served: looks at the endpoint alone.

    Raises:
        ValueError, OSError: wrong input.
    """

    def __init__(self, name, dataset, split, images, image, served):
        self.card, self.run = {}, None
        if images is not None:
            check_int("--images", images)
        check_int("--image", image, 0)
        if str(name).endswith(".keras"):
            if served:
                raise ValueError(
                    f"`--served` is for SavedModels. Received: {name}, a .keras file"
                )
            if not pathlib.Path(name).is_file():
                raise ValueError(f"`name` must be a file that exists. Received: {name}")
            self.model = keras.models.load_model(name)
        else:
            _, self.card = pretrained.open_card(name)
            self.model = (pretrained.load_served if served else pretrained.load)(name)
            self.run = pathlib.Path(name)
        self.name = self.card.get("name") or self.model.name
        self.dataset = dataset or self.card.get("dataset")
        if self.dataset is None:
            raise ValueError(
                "`--dataset` must be given: the net has no card that names its data "
                f"set. Received: name={name}; data sets: {', '.join(datasets.names())}"
            )
        known("--dataset", self.dataset, datasets.names())
        known("--split", split, ("train", "validation", "test"))
        info = datasets.info(self.dataset)
        self.text = info.image_shape is None
        self.classes = info.class_names
        self.split = split
        x, y = datasets.arrays(self.dataset, split)
        self.images, self.labels = x[:images], y[:images]
        self.kind = "texts" if self.text else "images"
        self.classifies = self.labels.ndim == 1  # a language model has a word a word
        if image >= len(self.images):
            raise ValueError(
                f"`--image` must be below the number of {self.kind}, "
                f"{len(self.images)}. "
                f"Received: --image={image}"
            )
        self.image = image
        self.served = served
        self.gated = served or any(map(analysis.is_gated, self.model.layers))
        if not self.classifies and not self.gated:
            raise ValueError(
                "`name` must be a net with gates, if it is a language model. "
                f"Received: {name}"
            )
        # The first call refuses images and labels that do not fit.
        if not self.classifies:
            analysis.mean_gates(self.model, self.images[:1])
        elif served:
            analysis.gates_by_class(self.model, self.images[:1], self.labels[:1])
        else:
            analysis.gradient_norms(self.model, self.images[:1], self.labels[:1])
        self.results, self.figures, self.findings, self.notes = {}, {}, [], []

    def measure(self):
        """Fills results, figures and findings."""
        if self.gated:
            self._gates()
        if not self.served and self.classifies:
            self._depth()
        if self.run is not None:
            self._curves()

    def _gates(self):
        model, images, labels = self.model, self.images, self.labels
        results = self.results
        some = slice(self.image, self.image + 1)
        pixels = "mean" if self.text else "map"
        one = analysis.trace(model, images[some], pixels=pixels)
        results["mean_gates"] = analysis.mean_gates(model, images)
        results["gate_sparsity"] = analysis.gate_sparsity(model, images)
        self.names = self.gate_names = one.names
        if not self.served:
            results["gate_biases"] = analysis.gate_biases(model)
            results["initial_biases"] = analysis.gate_biases(model, initial=True)
            self.figures["gates"] = plots.gate_figure(
                results["gate_biases"],
                results["mean_gates"],
                [gate[0] for gate in one.gates],
                [output[0] for output in one.outputs[1:]],
                title=self.name,
            )
        if not self.served and not self.text:
            self.figures["strip"] = plots.strip_figure(
                images[self.image], one, title=f"{self.name}, image {self.image}"
            )
        if self.classifies:
            by_class = analysis.gates_by_class(model, images, labels)
            results["gates_by_class"] = by_class
            self.figures["routing"] = plots.class_figure(
                by_class, classes=self.classes, title=self.name
            )
        self.figures["carry"] = plots.carry_figure(
            results["mean_gates"], title=self.name
        )
        self.notes.append(findings.carried(results["mean_gates"]))
        if self.text:
            self._characters()
            return  # the papers' findings are about images
        seen = dict(results)
        if not self.served:
            seen["trace"] = analysis.trace(model, images[:TRACE_IMAGES], pixels="mean")
        self.findings += findings.of_gates(self.dataset, seen)

    def _characters(self):
        sparsity = self.results["gate_sparsity"]
        self.notes.append(
            f"For one text {sparsity.open.mean():.1%} of the gates are open (T > "
            f"{sparsity.threshold:g}), and {sparsity.ever_open.mean():.1%} of the "
            "units open for some text."
        )
        if self.served:
            return
        found = analysis.gates_by_character(self.model, self.images)
        self.results["gates_by_character"] = found
        means = {
            character: float(gates.mean())
            for gates, count, character in zip(*found, strict=True)
            if count >= WORDS
        }
        if not means:
            return
        self.figures["characters"] = plots.character_figure(means, title=self.name)
        order = sorted(means, key=means.get)
        self.notes.append(
            f"Of the characters in {WORDS} words or more, gates are widest for words "
            f"with {' '.join(order[:-6:-1])} and narrowest with {' '.join(order[:5])}."
        )

    def _depth(self):
        model, images, labels = self.model, self.images, self.labels
        results, some = self.results, slice(0, GRADIENT_IMAGES)
        self.names = analysis.layer_names(model)
        norms = analysis.gradient_norms(model, images[some], labels[some])
        results["gradient_norms"] = norms
        self.figures["gradients"] = plots.gradient_figure(
            {self.name: norms}, title=f"{self.split} images, after training"
        )
        self.notes.append(
            "The gradient's norm of the first layer is "
            f"{norms[0] / norms[-1]:.3g} of the last's."
        )
        if not any(map(analysis.is_block, model.layers)):
            self.notes.append(
                "The net has neither highway layers nor residual units: gates, lesions "
                "and pruning need them."
            )
            return
        results["jacobian_norms"] = analysis.jacobian_norms(model, images[some])
        results["output_change"] = analysis.output_change(model, images)
        found = [findings.of_change(self.dataset, results["output_change"])]
        self.figures["change"] = plots.change_figure(
            results["output_change"], title=self.name
        )
        lesions = results["lesions"] = analysis.lesions(model, images, labels)
        self.figures["lesions"] = plots.lesion_figure(
            lesions, title=f"{self.name}, {len(images)} {self.split} images"
        )
        tails = None
        if self.gated:
            sets = findings.tails_of(lesions.names)
            tails = results["tail_lesions"] = analysis.lesions(
                model, images, labels, sets=sets
            )
        found += findings.of_lesions(self.dataset, lesions, tails)
        if self.gated and not self.text:
            self.findings += found
        else:  # the papers' findings are about highways
            self.notes += [finding.sentence for finding in found]

    def _curves(self):
        if not (self.run / train.HISTORY).is_file():
            return
        columns = train.read_history(self.run)
        test = self.card.get("metrics", {}).get("test", {}).get("accuracy")
        self.figures["curves"] = plots.history_figure(
            columns, test_accuracy=test, title=self.name
        )

    def place(self):
        """Where it is written if nothing is said: with the run, if it is one."""
        if self.run is not None and (self.run / train.CONFIG).is_file():
            return self.run / "analysis"
        return pathlib.Path("runs/analysis") / self.name

    def prune(self, limit, epochs, out):
        """Prunes, writes the smaller net into `out`.

        It chooses by the validation images if the net was not trained on them, and
        reports on this split; else it does both on halves of this split.
        """
        chosen_by, report_data = (self.images, self.labels), None
        left_out = self.card.get("recipe", {}).get("train_split") == "train"
        if left_out and self.split == "test":
            report_data = chosen_by
            chosen_by = datasets.arrays(self.dataset, "validation")
        shallow, report = analysis.prune(
            self.model,
            *chosen_by,
            report_data=report_data,
            max_accuracy_loss=limit,
            fine_tune=self._tuner(epochs) if epochs else None,
        )
        self.results["prune"] = report
        self.notes.append(
            f"Pruning for at most {limit:.2%} of accuracy keeps {len(report.kept)} of "
            f"{len(report.kept) + len(report.removed)} layers: accuracy "
            f"{report.accuracy_before:.4f} → {report.accuracy_after:.4f} on "
            f"{report.images} images that were not used to choose, "
            f"{report.parameters_before:,} → {report.parameters_after:,} parameters, "
            f"{report.milliseconds_before:.1f} → {report.milliseconds_after:.1f} ms "
            f"for {report.latency_batch} images."
        )
        card = {"dataset": self.dataset, "pruned_from": self.name}
        export.export_saved_model(shallow, out / "pruned", card=card, overwrite=True)

    def _tuner(self, epochs):
        def tune(model):
            x, y = datasets.arrays(self.dataset, "train")
            model.compile(
                keras.optimizers.Adam(1e-4),
                keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            )
            data = datasets.load(self.dataset, "train", 100, epochs=None)
            steps = -(-len(x) // 100)
            model.fit(
                data, epochs=epochs, steps_per_epoch=steps, shuffle=False, verbose=0
            )

        return tune

    def write(self, out):
        """Writes everything into the directory `out`."""
        out.mkdir(parents=True, exist_ok=True)
        for name, figure in self.figures.items():
            plots.save(figure, out / f"{name}.png")
        for name, result in self.results.items():
            analysis.to_json(result, out / f"{name}.json")
            if name == "prune":
                continue
            names = self.gate_names if "gate" in name else self.names
            axis = 1 if name == "gates_by_class" else 0
            row = "character" if name == "gates_by_character" else "layer"
            path = out / f"{name}.csv"
            analysis.to_csv(result, path, names=names, axis=axis, row=row)
        rows = [finding._asdict() for finding in self.findings]
        analysis.to_json({"findings": rows, "notes": self.notes}, out / "findings.json")
        train.write(out / "report.html", self._html(out))

    def _html(self, out):
        lines = [f"<li>{html.escape(note)}</li>" for note in self.notes]
        for sentence, mark in self.findings:
            css = "seen" if mark == findings.SEEN else "not"
            lines.append(
                f'<li>{html.escape(sentence)} <b class="{css}">{html.escape(mark)}</b>'
                "</li>"
            )
        figures = []
        for name in [n for n in CAPTIONS if n in self.figures]:
            data = base64.b64encode((out / f"{name}.png").read_bytes()).decode()
            caption = html.escape(CAPTIONS[name])
            figures.append(
                f'<figure><img alt="{caption}" src="data:image/png;base64,{data}">'
                f"<figcaption>{caption}</figcaption></figure>"
            )
        head = (
            f"{self.dataset}, {len(self.images):,} {self.kind} of the split "
            f"{self.split}; "
            f"{self._size()}"
        )
        return PAGE.format(
            title=html.escape(self.name),
            head=html.escape(head),
            findings="\n".join(lines),
            figures="\n".join(figures),
        )

    def _size(self):
        parameters = self.card.get("parameters")
        if not self.served:
            parameters = self.model.count_params()
        return f"{len(self.names)} layers, {parameters:,} parameters"


CAPTIONS = {
    "gates": "Biases of the transform gates, their mean, and gates and block outputs "
    "for one image; a row is a layer (Fig. 2 of Training Very Deep Networks).",
    "strip": "One image: what each layer passed on and what it transformed.",
    "characters": "Mean transform gate of the words that contain a character.",
    "routing": "How the mean transform gate of each class differs from the mean over "
    "classes (Fig. 3).",
    "lesions": "Loss and accuracy with the gates of one layer closed; dashed: the "
    "intact net (Fig. 4).",
    "change": "How far each layer moves the block output.",
    "carry": "Carry product: what the layers leave of their first input.",
    "gradients": "Norm of the loss gradient with respect to each layer's kernel.",
    "curves": "Training (Fig. 1).",
}

PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem;
  color: #222; background: #fff; }}
img {{ max-width: 100%; height: auto; }}
figure {{ margin: 2rem 0; }}
figcaption {{ color: #555; }}
b {{ font-weight: 600; white-space: nowrap; }}
.seen {{ color: #00573f; }}
.not {{ color: #8a3a00; }}
</style>
</head>
<body>
<h1>{title}</h1>
<p>{head}</p>
<ul>
{findings}
</ul>
{figures}
</body>
</html>
"""


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", help="pretrained name, run, SavedModel or .keras file")
    parser.add_argument("--dataset", help="default: the one on the net's card")
    parser.add_argument("--split", default="test", help="train, validation or test")
    parser.add_argument("--images", type=int, help="the first so many; default: all")
    parser.add_argument("--image", type=int, default=0, help="the one shown; default 0")
    parser.add_argument(
        "--out",
        type=pathlib.Path,
        help="default: analysis/ of the run, else runs/analysis/NAME",
    )
    parser.add_argument(
        "--served", action="store_true", help="through the endpoint `gates` alone"
    )
    parser.add_argument(
        "--prune",
        type=float,
        nargs="?",
        const=0.001,
        metavar="LOSS",
        help="prune, for at most so much accuracy (0.001)",
    )
    parser.add_argument(
        "--fine-tune",
        type=int,
        default=0,
        metavar="EPOCHS",
        help="of the pruned net, in turn with more pruning",
    )
    return parser.parse_args(argv)


def main(argv=None) -> int:
    args = parse(argv)
    try:
        if args.prune is not None and not 0 <= args.prune <= 1:
            raise ValueError(
                f"`--prune` must be a share in 0 … 1. Received: --prune={args.prune}"
            )
        if args.served and args.prune is not None:
            raise ValueError(
                "`--prune` needs the live net. Received: --prune and --served"
            )
        check_int("--fine-tune", args.fine_tune, 0)
        work = Analysis(
            args.name, args.dataset, args.split, args.images, args.image, args.served
        )
        out = args.out or work.place()
        if out.exists() and not out.is_dir():
            raise ValueError(f"`--out` must be a directory. Received: {out}, a file")
        if args.prune is not None and not work.classifies:
            raise ValueError(
                f"`--prune` needs a classifier. Received: {args.name}, a language model"
            )
        work.measure()
        if args.prune is not None:
            work.prune(args.prune, args.fine_tune, out)
        work.write(out)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(
        f"{work.name}: {len(work.images)} {work.kind} of {work.dataset}, {work.split}"
    )
    for note in work.notes:
        print(f"- {note}")
    for finding in work.findings:
        print(f"- {finding.sentence} [{finding.mark}]")
    print(f"In {out}: {', '.join(sorted(p.name for p in out.iterdir()))}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
