"""Trains a recipe: data → strategy → fit → evaluate → figures → SavedModel.

    python recipes/train.py highway_mlp_digits_50
    python recipes/train.py --list
    python recipes/train.py highway_mlp_digits_50 --seed 1 --run-dir runs/seed_1

A run directory holds config.json, history.csv, metrics.json, curves.png, gates.png and
the trained net as a SavedModel; with hints of a teacher hints.csv and hints.png too.
Every 250 steps the gates go into history.csv and tensorboard/. Stop it with Ctrl-C or
SIGTERM, or kill it: the same command goes on, and ends with the same weights. Wrong
input ends with one sentence and exit code 2, before any training.

With KERAS_BACKEND=jax it trains on JAX, on all local devices, and writes no SavedModel.
With TF_CONFIG it is one worker of several, of which the chief writes the results;
`recipes/launch.py` starts several on one machine.
"""

import argparse
import contextlib
import csv
import dataclasses
import io
import json
import math
import os
import pathlib
import shlex
import signal
import subprocess
import sys
import threading

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import keras  # noqa: E402

from recipes import configs, teaching  # noqa: E402
from recipes.configs import Config  # noqa: E402
from zoo import analysis, datasets, distribution, export, models, training  # noqa: E402
from zoo._checks import check_int, known  # noqa: E402
from zoo.layers import MeanImage, ZCAWhitening  # noqa: E402

CONFIG = "config.json"
HINTS = "hints.csv"
HISTORY = "history.csv"
METRICS = "metrics.json"  # written last: its presence says that a run is finished
POLICIES = ("float32", "mixed_bfloat16", "mixed_float16")
KEYS = {  # what these fields of a config take
    "hint": ("epochs", "hint_layer", "guided_layer"),
    "distill": ("temperature", "weight", "final_weight"),
}


class Stage(training.Resume):
    """Epochs of one trainer, which go on where they were stopped.

    Args:
        trainer: compiled model.
        epochs, steps: how many, and how many steps an epoch.
        stream: function of an epoch and a step that gives the data from there on.
        history: path of a CSV file, rewritten after each epoch; None for none.
        directory, name, every: as in `Resume`.
    """

    def __init__(self, trainer, epochs, steps, stream, history, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.trainer, self.epochs, self.steps = trainer, epochs, steps
        self.stream, self.path = stream, history
        self.restore(trainer)
        stream(self.epoch, self.step)  # what cannot be read fails now

    def rows(self):
        """Of the history; of hints, the error before training is the first."""
        before = self.notes.get("before")
        first = [] if before is None else [{"epoch": 0, "seconds": 0.0, **before}]
        return [*first, *self.history]

    def write_history(self):
        if self.path is not None and self.rows():
            _write_rows(self.path, self.rows())

    def on_epoch_end(self, epoch, logs=None):
        try:
            super().on_epoch_end(epoch, logs)
        finally:
            self.write_history()

    def train(self, callbacks=(), **arguments):
        """Trains what is left."""
        check_loss = keras.callbacks.LambdaCallback(on_epoch_end=_check_loss)
        if self.epoch < self.epochs:
            self.fit(
                self.trainer,
                self.stream,
                self.epochs,
                self.steps,
                [check_loss, *callbacks],  # what they log is kept
                **arguments,
            )
        self.write_history()  # also where a stopped run had nothing left to train


class Run:
    """One training run in its directory. Making it checks everything; `fit` trains.

    Args:
        config: what to train.
        directory: where; made if missing. One that holds the same config and is not
            finished goes on.
        name: of the trained net, on its card.
        every: steps between the states that are kept of an epoch.
        patience: seconds to wait for other workers.

    Raises:
        ValueError, OSError: wrong input, before any training.
    """

    def __init__(
        self,
        config: Config,
        directory: pathlib.Path,
        name: str,
        every: int = 500,
        patience: float = 300.0,
    ):
        self.config, self.directory, self.name = config, pathlib.Path(directory), name
        self.info = check(config)
        check_int("every", every)
        self.every = every
        self.worker = 0
        if config.strategy in ("auto", "multi_worker"):
            self.worker = distribution.worker_index()
        if self.worker:  # only the chief writes results; others keep their state
            own = f"{self.directory.name}-worker-{self.worker}"
            self.directory = self.directory.with_name(own)
        _check_directory(self.directory, config)
        images = self.info.num_train
        if config.train_split == "train+validation":
            images += self.info.num_validation
        if config.train_images is not None:
            images = min(images, config.train_images)

        def stream(epoch, step):
            return datasets.load(
                config.dataset,
                config.train_split,
                config.batch_size,
                seed=config.seed,
                epoch=epoch,
                step=step,
                epochs=None,
                limit=config.train_images,
                drop_remainder=drop,
            )

        keras.utils.clear_session()
        keras.utils.set_random_seed(config.seed)
        self.strategy = distribution.strategy(config.strategy, patience)
        drop = self._drops_remainder(images)
        if drop:
            images -= images % config.batch_size
        self.steps = -(-images // config.batch_size)
        if (
            config.dtype_policy == "mixed_float16"
            and config.jit_compile
            and self.strategy.num_replicas_in_sync > 1
        ):
            raise ValueError(
                "`jit_compile` must be False for mixed_float16 on several replicas: "
                "XLA cannot compile the scaling of the loss across them. Received: "
                f"jit_compile=True, {self.strategy.num_replicas_in_sync} replicas"
            )
        with self.strategy.scope():
            self.model = self._build(config.dtype_policy)
            self.hints, self.learning = self._make_stages(stream)
        if not self.begun and any(
            isinstance(layer, (MeanImage, ZCAWhitening)) for layer in self.model.layers
        ):
            images, _ = datasets.arrays(config.dataset, config.train_split)
            training.adapt(self.model, images[: config.train_images])
        self.directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(_plain(config), indent=2) + "\n"
        write(self.directory / CONFIG, text)  # last: all is checked

    def fit(self, **arguments) -> dict:
        """Trains to the end and writes the results.

        Args:
            verbose: of `keras.Model.fit`.
            artefacts: whether to draw the figures and write the SavedModel too.
            also: function of the trained model that returns further metrics.

        Returns:
            The content of metrics.json.

        Raises:
            KeyboardInterrupt: after `stop()`, with the state saved.
            FloatingPointError: the loss is not finite.
            OSError: a file cannot be written.
            zoo.distribution.WorkerLost: another worker has ended.
        """
        with distribution.running(self.strategy):
            return self._fit(**arguments)

    def _fit(self, verbose=0, artefacts=True, also=None):
        config = self.config
        hints = self._fit_hints(verbose) if self.hints else None
        training.set_decay(
            self.model,
            config.decay,
            config.decay_on,
            head_factor=config.decay_head_factor,
        )
        self.learning.train(
            self._watch_gates() if artefacts else (),
            validation_data=self._data("validation") if config.validate else None,
            verbose=verbose,
        )
        if config.dtype_policy != "float32":
            trained = self.model.get_weights()
            with self.strategy.scope():
                self.model = self._build("float32")
            self.model.set_weights(trained)
        metrics = self._metrics(hints)
        if self.worker:
            self._leave()
            return metrics
        self.model = export.undistributed(self.model)  # what follows is the chief's
        if also is not None:
            metrics.update(also(self.model))
        if artefacts:
            self._draw(metrics, hints)
        if artefacts and keras.backend.backend() != "tensorflow":
            print("No SavedModel: only the backend TensorFlow can write one.")
        elif artefacts:
            export.export_saved_model(
                self.model,
                self.directory / "saved_model",
                card=self._card(metrics),
                overwrite=True,
            )
        write(self.directory / METRICS, json.dumps(metrics, indent=2) + "\n")
        for stage in self.stages:
            stage.discard()
        return metrics

    def _leave(self):
        """A worker that is not the chief leaves no files."""
        for stage in self.stages:
            stage.discard()
        (self.directory / CONFIG).unlink()
        with contextlib.suppress(OSError):  # somebody else's files are in it
            self.directory.rmdir()

    def stop(self) -> bool:
        """Ends training after the present step; whether it is running."""
        return any(stage.stop() for stage in self.stages)

    @property
    def stages(self):
        return [stage for stage in (self.hints, self.learning) if stage]

    @property
    def begun(self) -> str:
        """How far training has come, in words; "" at the start."""
        for stage in reversed(self.stages):
            if stage.epoch or stage.step:
                step = f" and step {stage.step:,} of {stage.steps:,}"
                of = " of the hints" if stage is self.hints else ""
                step = step if stage.step else ""
                return f"epoch {stage.epoch} of {stage.epochs}{step}{of}"
        return ""

    def _make_stages(self, stream):
        """The stage of hints, None without one, and that of learning."""
        config, learner, hints = self.config, self.model, None
        teacher = teaching.teacher(config)
        if teacher is not None and config.hint:
            layers = dict(config.hint)
            epochs = layers.pop("epochs")
            trainer = training.HintTrainer(teacher, self.model, **layers)
            trainer.compile(
                make_optimizer(config, self.steps, epochs),
                jit_compile=config.jit_compile,
            )
            hints = self._stage(trainer, epochs, stream, HINTS, "hints")
        if teacher is not None and config.distill:
            steps = self.steps * config.epochs
            learner = training.Distiller(teacher, self.model, steps, **config.distill)
            self._compile(learner)
        return hints, self._stage(learner, config.epochs, stream, HISTORY, "resume")

    def _stage(self, trainer, epochs, stream, history, name):
        path = None if self.worker else self.directory / history
        return Stage(
            trainer,
            epochs,
            self.steps,
            stream,
            path,
            self.directory,
            name,
            every=self.every,
        )

    def _build(self, dtype_policy):
        """The compiled net, to be trained or measured in that policy."""
        before = keras.config.dtype_policy()
        keras.config.set_dtype_policy(dtype_policy)
        try:
            builder = getattr(models, self.config.builder)
            model = builder(**self.config.model, name=self.name)
        finally:
            keras.config.set_dtype_policy(before)
        self._compile(model)
        return model

    @property
    def jax_devices(self):
        """How many devices of JAX share out a batch; 1 on TensorFlow."""
        on_jax = keras.backend.backend() == "jax"
        return self.strategy.num_replicas_in_sync if on_jax else 1

    def _drops_remainder(self, images):
        """Whether the last batch of an epoch is left out. JAX must, if the devices
        cannot share it out equally."""
        size, devices = self.config.batch_size, self.jax_devices
        if size % devices:
            raise ValueError(
                f"`batch_size` must be a multiple of the {devices} devices of JAX. "
                f"Received: batch_size={size}"
            )
        odd = images % size % devices > 0
        return images >= size and (self.config.drop_remainder or odd)

    def _compile(self, model):
        """For learning, or for measuring alone."""
        compile_model(model, self.config, self.steps, self.info.num_classes)

    def _fit_hints(self, verbose):
        """First stage; returns the rows of hints.csv, epoch 0 before training."""
        stage, held_out = self.hints, self._data("validation")
        if "before" not in stage.notes:
            error = stage.trainer.evaluate(held_out, verbose=0)
            stage.notes["before"] = {"val_loss": float(error)}
        stage.train(validation_data=held_out, verbose=verbose)
        return stage.rows()

    def _has_gates(self):
        return any(map(analysis.is_gated, self.model.layers))

    def _watch_gates(self):
        """Gates of a fixed sample in history.csv and TensorBoard, if there are any."""
        if not self._has_gates():
            return []
        sample = self._data("validation").unbatch().batch(128)
        images = next(iter(sample))[0].numpy()
        place = None if self.worker else self.directory / "tensorboard"
        return [training.GateMonitor(images, log_dir=place)]

    def _metrics(self, hints):
        # The loss is the cross-entropy, also where validation has traced it with decay.
        training.set_decay(self.model, 0.0, "everything")
        with self.strategy.scope():
            self._compile(self.model)

        def evaluate(split, image_size=None):
            data = self._data(split, image_size)
            found = self.model.evaluate(data, verbose=0, return_dict=True)
            if len(self.model.output_shape) == 3:  # a language model
                found["perplexity"] = math.exp(found["loss"])
            return found

        validate = self.config.train_split == "train"
        guided = {}
        if hints:
            errors = {
                "error_before": hints[0]["val_loss"],
                "error_after": hints[-1]["val_loss"],
            }
            guided = {"hints": {"epochs": self.hints.epochs, **errors}}
        return {
            "name": self.name,
            "test": evaluate("test"),
            **{
                f"test_{size}": evaluate("test", size)
                for size in self.config.test_sizes
            },
            "validation": evaluate("validation") if validate else None,
            **guided,
            "parameters": self.model.count_params(),
            "epochs": self.config.epochs,
            "seconds": round(
                sum(r["seconds"] for s in self.stages for r in s.history), 2
            ),
            "seed": self.config.seed,
            "versions": export.versions(),
            **({"data_sha256": self.info.sha256} if self.info.sha256 else {}),
        }

    def _data(self, split, image_size=None):
        """A split to evaluate on."""
        size = self.config.batch_size
        if self.jax_devices > 1:
            size += 1  # which they cannot share out: each computes it all, to the last
        return datasets.load(self.config.dataset, split, size, image_size=image_size)

    def _card(self, metrics):
        return {
            "dataset": self.config.dataset,
            "classes": list(self.info.class_names),
            "recipe": _plain(self.config),
            "metrics": metrics,
            "commit": commit(),
        }

    def _draw(self, metrics, hints):
        from zoo.analysis import plots

        if hints:
            figure = plots.history_figure(
                {
                    key: [row.get(key, math.nan) for row in hints]
                    for key in ("loss", "val_loss")
                },
                first_epoch=0,
                title=f"{self.name}: error of the guided layer",
            )
            plots.save(figure, self.directory / "hints.png")
        history = self.learning.history
        figure = plots.history_figure(
            {
                key: [row[key] for row in history]
                for key in ("loss", "accuracy", "val_loss", "val_accuracy")
                if key in history[0]
            },
            test_accuracy=metrics["test"]["accuracy"],
            title=self.name,
        )
        plots.save(figure, self.directory / "curves.png")
        if not self._has_gates():
            return
        data = self._data("test").unbatch().batch(2000).take(1)
        images = next(iter(data))[0].numpy()
        one = analysis.trace(self.model, images[:1], pixels="mean")
        figure = plots.gate_figure(
            analysis.gate_biases(self.model),
            analysis.mean_gates(self.model, images),
            [gates[0] for gates in one.gates],
            [output[0] for output in one.outputs[1:]],
            title=f"{self.name} after training",
        )
        plots.save(figure, self.directory / "gates.png")


def commit(place: pathlib.Path = pathlib.Path(__file__).parent) -> str | None:
    """Git's commit of the checkout, with a "+" where files of it were changed; None
    outside of one."""

    def git(*arguments):
        command = ["git", "-C", str(place), *arguments]
        run = subprocess.run(command, capture_output=True, text=True, check=True)
        return run.stdout.strip()

    try:
        head = git("rev-parse", "HEAD")
        return head + ("+" if git("status", "--porcelain", "-uno") else "")
    except (OSError, subprocess.CalledProcessError):
        return None


def compile_model(model: keras.Model, config: Config, steps: int, num_classes: int):
    """Compiles with the config's optimizer and schedule, `steps` an epoch."""
    model.compile(
        make_optimizer(config, steps, config.epochs),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=accuracies(num_classes),
        jit_compile=config.jit_compile,
    )


def accuracies(num_classes):
    """Accuracy, and that of the best five guesses where the papers print it."""
    if num_classes < 1000:
        return ["accuracy"]
    top_5 = keras.metrics.SparseTopKCategoricalAccuracy(5, name="top_5_accuracy")
    return ["accuracy", top_5]


def make_optimizer(
    config: Config, steps: int, epochs: int
) -> keras.optimizers.Optimizer:
    """The config's optimizer, its schedule over `epochs` of `steps` each."""
    arguments = dict(config.optimizer)
    name = arguments.pop("name")
    scale = config.batch_size / (config.rate_batch_size or config.batch_size)
    if "learning_rate" in arguments:
        rate = arguments["learning_rate"] * scale
        rate = _schedule(config.schedule, rate, scale, steps * epochs, steps)
        if not isinstance(rate, float):
            rate = keras.saving.serialize_keras_object(rate)
        arguments["learning_rate"] = rate
    name = "zoo>SGD" if name == "sgd" else name
    optimizer = keras.optimizers.get({"class_name": name, "config": arguments})
    if optimizer.weight_decay:  # else it would pull gate biases towards 0, open gates
        optimizer.exclude_from_weight_decay(var_names=["bias", "gamma", "beta"])
    return optimizer


def _schedule(schedule, rate, scale, total, steps):
    """The learning rate over `total` steps, `steps` an epoch."""
    arguments = dict(schedule)
    if not arguments:
        return rate
    names = ("step", "cosine", "exponential")
    name = known("schedule.name", arguments.pop("name", None), names)
    try:
        if name == "step":
            for key in ("boundaries", "warmup_steps"):
                if key in arguments:
                    arguments[key] = _fewer(arguments[key], scale)
            return training.StepSchedule(rate, **arguments)
        if name == "exponential":
            return keras.optimizers.schedules.ExponentialDecay(rate, steps, **arguments)
        warmup = round(steps * arguments.pop("warmup_epochs", 0))
        if warmup < 0:
            raise ValueError(
                f"`schedule.warmup_epochs` must be 0 or more. Received: {schedule}"
            )
        warmup = min(warmup, total // 2)  # of a run that is cut short to try it
        if "restarts" in arguments:
            restarts = [round(steps * epoch) for epoch in arguments.pop("restarts")]
            restarts = [step for step in restarts if step < total]  # likewise
            return training.CosineRestarts(
                rate, total, restarts, warmup_steps=warmup, **arguments
            )
        return keras.optimizers.schedules.CosineDecay(
            0.0 if warmup else rate,
            total - warmup,
            warmup_target=rate if warmup else None,
            warmup_steps=warmup,
            **arguments,
        )
    except TypeError as error:
        raise ValueError(f"`schedule` has a wrong argument: {error}") from None


def _fewer(steps, scale):
    """Steps at the batch size that is trained with, the same number of images."""
    if isinstance(steps, (list, tuple)):
        return [_fewer(step, scale) for step in steps]
    return round(steps / scale)


def _check_loss(epoch, logs):
    """Ends a run whose loss is not finite, before its state is saved."""
    if not math.isfinite(logs["loss"]):
        raise FloatingPointError(
            f"the loss is {logs['loss']} after epoch {epoch + 1}: the run diverged; "
            "try a lower learning rate or a more negative gate bias."
        )


def check(config):
    """The data set's facts; ValueError where the config cannot be trained."""
    known("KERAS_BACKEND", keras.backend.backend(), ("tensorflow", "jax"))
    known("builder", config.builder, models.BUILDERS)
    info = datasets.info(known("dataset", config.dataset, datasets.names()))
    known("train_split", config.train_split, ("train", "train+validation"))
    known("dtype_policy", config.dtype_policy, POLICIES)
    known("decay_on", config.decay_on, ("kernels", "everything"))
    for group, known_keys in KEYS.items():
        for key in getattr(config, group):
            known(group, key, known_keys)
    if config.hint:
        check_int("hint.epochs", config.hint.get("epochs"))
    for field in ("epochs", "batch_size"):
        check_int(field, getattr(config, field))
    if config.train_images is not None:
        check_int("train_images", config.train_images)
    if config.validate and config.train_split != "train":
        raise ValueError(
            "`validate` needs train_split='train', which leaves the validation images "
            f"out. Received: train_split={config.train_split!r}"
        )
    check_int("seed", config.seed, 0)
    if config.seed >= 2**32:
        raise ValueError(f"`seed` must be below 2**32. Received: seed={config.seed}")
    for field, least in (
        ("decay", "0 or more"),
        ("decay_head_factor", "above 0"),
        ("optimizer.learning_rate", "above 0"),
    ):
        value = config.flat().get(field, 1.0)
        number = type(value) in (int, float) and math.isfinite(value)
        if not number or value < 0 or (value == 0 and field != "decay"):
            raise ValueError(
                f"`{field}` must be a number, {least}. Received: {field}={value!r}"
            )
    shape = tuple(config.flat().get("model.input_shape", ()))
    theirs = info.image_shape or ()
    fits = [mine in (None, size) for mine, size in zip(shape, theirs, strict=False)]
    if len(shape) != len(theirs) or not all(fits):
        raise ValueError(
            "`model.input_shape` must be the data set's image shape. Received: "
            f"model.input_shape={shape or 'none: the model reads text'}, "
            f"{config.dataset} has {theirs or 'text'}"
        )
    if not theirs and not isinstance(config.flat()["model.vocabulary"], str):
        raise ValueError(
            "`model.vocabulary` must be a string of characters, since the data set is "
            f"text. Received: model.vocabulary={config.flat()['model.vocabulary']!r}"
        )
    classes = config.flat()["model.num_classes"]
    if classes != info.num_classes:
        raise ValueError(
            f"`model.num_classes` must be the data set's number of classes. Received: "
            f"model.num_classes={classes}, {config.dataset} has {info.num_classes}"
        )
    return info


def _check_directory(directory, config):
    """Raises unless the run can begin or go on there."""
    nearest = next(p for p in (directory, *directory.parents) if p.exists())
    if not nearest.is_dir():
        raise ValueError(
            f"`--run-dir` must be a directory. Received: {directory}, but {nearest} is "
            "a file"
        )
    held, mine = read_config(directory), _plain(config)
    if held is None:
        if directory.exists() and any(directory.iterdir()):
            raise ValueError(
                f"{directory} holds other files and no {CONFIG}; choose another "
                "--run-dir."
            )
        return
    for key in differing(held, mine):
        raise ValueError(
            f"{directory} holds another run: {key} is {held.get(key)} there and "
            f"{mine.get(key)} here; choose another --run-dir."
        )
    if (directory / METRICS).exists():  # the last file that a run writes
        raise ValueError(
            f"{directory} holds this run, finished; choose another --run-dir, or "
            "delete the directory to train anew."
        )


def holds(directory: pathlib.Path, config: Config) -> bool:
    """Whether the directory's run has this config."""
    return not differing(read_config(directory) or {}, _plain(config))


def differing(held, mine):
    """Keys of two configs that differ; one that a config lacks is None."""
    keys = sorted(mine.keys() | held.keys())
    return [key for key in keys if held.get(key) != mine.get(key)]


def read_config(directory):
    """The config of the directory's run, None without one."""
    path = directory / CONFIG
    if not path.exists():
        return None
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); choose another --run-dir, or delete the "
            "directory to train anew."
        ) from None


def _plain(config):
    """The config as JSON gives it back: lists for tuples, dotted names."""
    return json.loads(json.dumps(config.flat()))


def _write_rows(path, rows):
    """Rows of history as CSV; not all of them have all columns."""
    text = io.StringIO(newline="")
    columns = dict.fromkeys(key for row in (rows[-1], *rows) for key in row)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    write(path, text.getvalue())


def read_history(directory: pathlib.Path) -> dict[str, list[float]]:
    """{column: its values by epoch} of a run, without columns that have gaps."""
    path = directory / HISTORY
    try:
        text = path.read_text(encoding="utf-8")
        rows = list(csv.DictReader(io.StringIO(text), strict=True))
        if not text.endswith("\n") or None in [v for r in rows for v in r.values()]:
            raise ValueError("its last row ends early")
        return {
            key: [float(row[key]) for row in rows]
            for key in rows[0]
            if all(row[key] for row in rows)
        }
    except (ValueError, LookupError, TypeError, csv.Error) as error:
        raise ValueError(f"{path} cannot be read as a history: {error}") from None


def read_metrics(directory: pathlib.Path) -> dict:
    """metrics.json of a finished run."""
    path = directory / METRICS
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"{path} cannot be read ({error}); delete {directory} to train anew."
        ) from None


def write(path: pathlib.Path, text: str):
    """Writes a text file beside and renames it into place."""
    temporary = path.with_suffix(".tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)


class Signals:
    """Within its context SIGINT and SIGTERM let a run save its state before it ends;
    a second one ends it at once."""

    def __init__(self, run):
        self.run, self.received, self.before = run, None, {}

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self.handle)
        return self

    def __exit__(self, *exception):
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def handle(self, number, frame):
        again, self.received = self.received, number
        if again or not self.run.stop():
            raise KeyboardInterrupt


def parse(argv):
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?", help="a config; --list shows all")
    parser.add_argument("--list", action="store_true", help="list the configs")
    parser.add_argument("--epochs", type=int, help="epochs to train")
    parser.add_argument("--seed", type=int, help="of weights, dropout and data order")
    parser.add_argument(
        "--strategy", help=f"one of {', '.join(distribution.STRATEGIES)}"
    )
    parser.add_argument(
        "--every", type=int, default=500, help="steps between saved states of an epoch"
    )
    parser.add_argument(
        "--patience", type=float, default=300, help="seconds to wait for other workers"
    )
    parser.add_argument("--run-dir", type=pathlib.Path, help="default: runs/NAME")
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        help="any field of the config, such as model.gate_bias=-3",
    )
    return parser.parse_args(argv)


def configure(args) -> Config:
    """The named config with the command line's changes."""
    config = configs.load(args.name)
    for assignment in args.set:
        config = config.set(assignment)
    given = {
        key: value
        for key in ("epochs", "seed", "strategy")
        if (value := getattr(args, key)) is not None
    }
    return dataclasses.replace(config, **given)


def print_list():
    from rich import box, table
    from rich.console import Console

    listing = table.Table("config", "what it shows", box=box.SIMPLE)
    for name in configs.names():
        listing.add_row(name, configs.claim(name))
    Console().print(listing)


def main(argv=None) -> int:
    args = parse(argv)
    if args.list:
        print_list()
        return 0
    if args.name is None:
        print("error: give the name of a config; --list shows all", file=sys.stderr)
        return 2
    try:
        config = configure(args)
        directory = args.run_dir or pathlib.Path("runs") / args.name
        run = Run(config, directory, args.name, args.every, args.patience)
    except (ValueError, TypeError, OSError, RuntimeError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    done = f", going on after {run.begun}" if run.begun else ""
    print(f"{args.name}: {run.model.count_params():,} parameters{done}")
    command = shlex.join([sys.executable, *sys.argv])
    signals = Signals(run)
    try:
        with signals:
            metrics = run.fit(verbose=1 if sys.stdout.isatty() else 2)
    except KeyboardInterrupt:
        print(
            f"\nStopped after {run.begun or 'less than an epoch'}; {run.directory} "
            f"keeps what was reached. The same command goes on:\n  {command}"
        )
        return 128 + (signals.received or signal.SIGINT)
    except FloatingPointError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        print(
            f"error: {error}. {run.directory} keeps what was reached; once it can be "
            f"written to, the same command goes on:\n  {command}",
            file=sys.stderr,
        )
        return 1
    except distribution.WorkerLost as error:
        print(
            f"error: {error} {run.directory} keeps what was reached; the same command "
            f"on all workers goes on:\n  {command}",
            file=sys.stderr,
        )
        return 1
    if run.worker:
        print(f"Worker {run.worker} is done; the chief has the results.")
        return 0
    test = metrics["test"]
    also = f", perplexity {test['perplexity']:.1f}" if "perplexity" in test else ""
    print(
        f"Test accuracy {test['accuracy']:.4f}, loss {test['loss']:.4f}{also}, after "
        f"{metrics['seconds']:.0f} s of training.\nIn {directory}: "
        f"{', '.join(sorted(p.name for p in directory.iterdir()))}"
    )
    return 0


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
    if code == 1 and os.environ.get("TF_CONFIG"):
        sys.stdout.flush()
        os._exit(code)  # TensorFlow's own clean-up fails once a worker is lost
    sys.exit(code)
