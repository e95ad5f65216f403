"""Tuning the gate bias: KerasTuner's searches, scored by cross-validation.

He et al. 2016 searched the bias from 0 to −10 in steps of 1 by cross-validation on the
training set; Srivastava et al. 2015 drew 100 settings of rate, momentum, decay,
activation and bias. KerasTuner plans and counts the trials here; what a trial is worth,
and what is kept of it, is this module's.

**Going on.** Every trained net is a file in the search's directory, named by a hash of
its setting, fold and seed. A search starts its plan anew each time, and a net that is
there already is read instead of trained. All plans are functions of the seed and of the
scores, so the same call goes on where it stopped, in the middle of a trial too;
KerasTuner's own state, which a grid search cannot resume from and which a search of
another space takes over in silence, is never read.
"""

import contextlib
import hashlib
import inspect
import json
import math
import os
import pathlib
import sys
import threading
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import keras
import keras_tuner
import numpy as np
import tensorflow as tf

from zoo import datasets, training
from zoo._checks import check_int, known

#: 0, −1, … −10: the values of He et al. 2016.
GATE_BIASES = tuple(float(-b) for b in range(11))

SEARCHES = ("grid", "random", "bayesian", "hyperband")
_HYPERBAND_FACTOR = 3
_SEARCH = "search.json"
_OWN = "keras_tuner"  # where KerasTuner writes
_ENDED = ("COMPLETED", "FAILED")

# A training gets at least so many steps to leave chance.
_FEWEST_STEPS = 100

# How often a trial is given to another worker before it counts as failed: it may be
# the trial that ends its workers.
_RETRIES = 3


class LogRange(NamedTuple):
    """Numbers from `low` to `high`, evenly spread in their logarithm."""

    low: float
    high: float


def search_space(
    parameters: Mapping[str, Sequence | LogRange],
) -> keras_tuner.HyperParameters:
    """A search space for `GateBiasModel`.

    Args:
        parameters: {name: values to choose from, or a `LogRange`}. Needs `gate_bias`,
            or `gate_bias_1`, `gate_bias_2`, … for one in each stage.

    Returns:
        KerasTuner's own search space.

    Raises:
        ValueError: no gate bias; a parameter without values, or with one twice.

    Example:
        >>> import zoo
        >>> space = zoo.tuning.search_space(
        ...     {"gate_bias": zoo.tuning.GATE_BIASES, "depth": [10, 20]})
        >>> [parameter.name for parameter in space.space]
        ['gate_bias', 'depth']
    """
    if not any(_is_bias(name) for name in parameters):
        raise ValueError(
            "`parameters` must hold gate_bias, or gate_bias_1, gate_bias_2, … for the "
            f"stages. Received: {', '.join(parameters) or 'none'}"
        )
    space = keras_tuner.HyperParameters()
    for name, values in parameters.items():
        if isinstance(values, LogRange):
            if not 0 < values.low < values.high:
                raise ValueError(
                    f"`{name}` must range from a positive number to a larger one. "
                    f"Received: {name}={values}"
                )
            space.Float(name, values.low, values.high, sampling="log")
            continue
        if len(values) == 0 or len(set(values)) < len(values):
            raise ValueError(
                f"`{name}` must have at least one value, and each once. "
                f"Received: {name}={list(values)}"
            )
        if any(isinstance(value, float) for value in values):
            values = [float(value) for value in values]
        space.Choice(name, list(values))
    return space


def make_oracle(
    search: str,
    space: keras_tuner.HyperParameters,
    *,
    trials: int | None = None,
    epochs: int = 1,
    seed: int = 0,
) -> keras_tuner.Oracle:
    """KerasTuner's plan of a search.

    Args:
        search: "grid": every combination, ten values of a range; "random";
            "bayesian": Gaussian processes; "hyperband": many settings for few epochs,
            the best of them anew for more.
        space: from `search_space`.
        trials: of "random" and "bayesian", and the most of "grid".
        epochs: of a training, the longest of "hyperband".
        seed: of the draws; 0 is a seed like any other.

    Returns:
        The oracle for `CrossValidation`.

    Raises:
        ValueError: an unknown search; a number of trials that is missing or not one.
    """
    known("search", search, SEARCHES)
    check_int("seed", seed, 0)
    if trials is not None:
        check_int("trials", trials)
    arguments = {
        "objective": keras_tuner.Objective("accuracy", "max"),
        "hyperparameters": space,
        "allow_new_entries": False,
        "tune_new_entries": False,
        "seed": seed + 1,  # KerasTuner takes 0 for none
        "max_retries_per_trial": _RETRIES,
        "max_consecutive_failed_trials": 10**9,  # the search goes on
    }
    if search == "hyperband":
        if trials is not None:
            raise ValueError(
                "`trials` is not for a hyperband search, whose number of trials "
                f"follows from the epochs. Received: trials={trials}"
            )
        return keras_tuner.oracles.HyperbandOracle(
            max_epochs=epochs, factor=_HYPERBAND_FACTOR, **arguments
        )
    if search == "grid":
        return keras_tuner.oracles.GridSearchOracle(max_trials=trials, **arguments)
    if trials is None:
        raise ValueError(f"`trials` must be given for a {search} search.")
    if search == "random":
        return keras_tuner.oracles.RandomSearchOracle(max_trials=trials, **arguments)
    return keras_tuner.oracles.BayesianOptimizationOracle(
        max_trials=trials, **arguments
    )


def planned_epochs(
    search: str,
    space: keras_tuner.HyperParameters,
    *,
    trials: int | None = None,
    epochs: int = 1,
) -> list[int]:
    """Epochs of each trial of a search, one by one; at most so many are run."""
    if search == "hyperband":
        rounds, top = [], math.floor(math.log(epochs, _HYPERBAND_FACTOR) + 1e-9)
        last = math.ceil(1 + math.log(epochs, _HYPERBAND_FACTOR))
        for bracket in range(top, -1, -1):
            for number in range(bracket + 1):
                share = _HYPERBAND_FACTOR ** (bracket - number)
                size = math.ceil(last / (bracket + 1) * share)
                rounds += [math.ceil(epochs / share)] * size
        return rounds
    size = math.prod(len({p.default, *p.values}) for p in space.space)
    drawn = any(not hasattr(p, "ordered") for p in space.space)  # a range has no end
    if search == "bayesian" or (search == "random" and drawn):
        size = trials
    return [epochs] * min(size, trials or size)


def stratified_folds(labels: np.ndarray, folds: int) -> list[np.ndarray]:
    """Indices of the examples that each fold validates on.

    Of every class each fold has as many, to one, as any other. The first examples go to
    the first fold, and so on: with the data sets here, whose base order is that of a
    hash, that is a fixed random choice.

    Args:
        labels: `(examples,)`, integers.
        folds: how many, at least 2.

    Returns:
        Arrays of indices, which together are all examples.

    Raises:
        ValueError: fewer than 2 folds, or more than a class has examples.

    Example:
        >>> import numpy as np, zoo
        >>> zoo.tuning.stratified_folds(np.array([0, 0, 1, 1, 0, 1]), 3)[0].tolist()
        [0, 2]
    """
    from sklearn.model_selection import StratifiedKFold

    check_int("folds", folds, 2)
    classes, counts = np.unique(labels, return_counts=True)
    if counts.min() < folds:
        raise ValueError(
            "`folds` must be at most the number of examples of the smallest class, "
            f"class {classes[counts.argmin()]} with {counts.min()}. "
            f"Received: folds={folds}"
        )
    split = StratifiedKFold(folds).split(np.zeros(len(labels)), labels)
    return [held_out for _, held_out in split]


def compile_sgd(model: keras.Model, settings: Mapping[str, Any], steps: int):
    """Compiles with SGD: rate .01 and momentum .9 where the settings have none, and a
    rate that falls by the factor `decay_rate` an epoch where they have one."""
    rate = settings.get("learning_rate", 0.01)
    if "decay_rate" in settings:
        rate = keras.optimizers.schedules.ExponentialDecay(
            rate, steps, settings["decay_rate"]
        )
    model.compile(
        keras.optimizers.SGD(rate, settings.get("momentum", 0.9)),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )


class GateBiasModel(keras_tuner.HyperModel):
    """The nets that a builder makes, for KerasTuner.

    A parameter of the search space goes to the builder if that takes it (`gate_bias`,
    `depth`, `units`, `activation`, …), else to `compile` (`learning_rate`, `momentum`,
    `decay_rate`, …). `gate_bias_1`, `gate_bias_2`, … become a list, one bias a stage.

    Args:
        builder: function that returns an uncompiled model of logits, such as
            `zoo.highway_mlp`.
        arguments: its other arguments.
        compile: function of (model, settings, steps an epoch) that compiles, with
            "accuracy" among its metrics.
        strategy: a `tf.distribute` strategy of one machine to build in, as from
            `zoo.distribution.strategy`.

    Attributes:
        steps: of an epoch; `CrossValidation` sets it.

    Example:
        >>> import zoo
        >>> nets = zoo.tuning.GateBiasModel(zoo.highway_mlp, {"input_shape": (8, 8, 1)})
        >>> space = zoo.tuning.search_space({"gate_bias": [-1, -2], "depth": [3, 5]})
        >>> nets.settings(space)
        {'gate_bias': -1, 'depth': 3}
        >>> nets.build(space).count_params()
        13960
    """

    def __init__(
        self,
        builder: Callable[..., keras.Model],
        arguments: Mapping[str, Any] | None = None,
        *,
        compile: Callable = compile_sgd,
        strategy: tf.distribute.Strategy | None = None,
    ):
        super().__init__()
        self.builder, self.arguments = builder, dict(arguments or {})
        self.compile, self.strategy = compile, strategy
        self.steps = 1

    @staticmethod
    def settings(hp: keras_tuner.HyperParameters) -> dict[str, Any]:
        """The parameters' values, without those of KerasTuner's own."""
        return {k: v for k, v in hp.values.items() if not k.startswith("tuner/")}

    def build(self, hp):
        settings = self.settings(hp)
        taken = inspect.signature(self.builder).parameters
        arguments = {**self.arguments}
        arguments.update({k: v for k, v in settings.items() if k in taken})
        arguments.update(stage_biases(settings))
        scope = self.strategy.scope() if self.strategy else contextlib.nullcontext()
        with scope:
            model = self.builder(**arguments)
            self.compile(model, settings, self.steps)
        return model


def stage_biases(settings: Mapping[str, Any]) -> dict[str, list[float]]:
    """{"gate_bias": one a stage} from gate_bias_1, gate_bias_2, …; {} without."""
    count = sum(_is_bias(name) for name in settings if name != "gate_bias")
    if not count:
        return {}
    try:
        return {"gate_bias": [settings[f"gate_bias_{i + 1}"] for i in range(count)]}
    except KeyError as missing:
        raise ValueError(
            "The gate biases of stages must be gate_bias_1, gate_bias_2, … without a "
            f"gap. Received: no {missing.args[0]}"
        ) from None


class CrossValidation(keras_tuner.Tuner):
    """A tuner whose trials train one net a fold and seed, on the rest of the folds.

    The score of a trial is the mean accuracy on the examples that were held out. It
    takes any of KerasTuner's oracles. Hyperband's later rounds train from the start
    again, for more epochs.

    **Several machines.** KerasTuner's chief and workers: the same call in each process,
    `directory` on a disk that all share, and these environment variables:

        KERASTUNER_TUNER_ID     chief on one; any other name, one each, on the workers
        KERASTUNER_ORACLE_IP    address of the chief
        KERASTUNER_ORACLE_PORT  a free port there

    The chief trains nothing. Each process gives a sign of life in the directory; a
    worker that gives none for `silence` seconds counts as dead, and its trial goes to
    another. A chief that has no worker for `patience` seconds ends with an error; a
    worker whose chief is silent ends too. The same call then goes on. Chief and workers
    talk without encryption: use a network that you trust.

    Args:
        oracle: from `make_oracle`, or any with an objective named "accuracy".
        hypermodel: a `GateBiasModel`.
        images, labels: the training set; see `zoo.datasets.arrays`.
        directory: where everything is kept. One that holds the same search goes on;
            the number of trials may differ.
        folds, seeds: nets of a trial: `seeds` for each of `folds` parts.
        epochs, batch_size, drop_remainder: of a training.
        seed: of weights, dropout and data order of the first seed of each trial.
        at_chance: share of the planned steps (100 steps at least) after which a
            training ends that shows no sign of leaving chance, see
            `zoo.training.StopAtChance`; None lets all go on.
        description: whatever else the results depend on, such as what `compile` does:
            JSON. A directory with another one is refused.
        report: function that is called with each result of a net and whether it was
            trained now, then with each trial's row and None.
        silence, patience: in seconds, see above.

    Attributes:
        look: function without arguments that a chief calls while it waits.

    Raises:
        ValueError: wrong arguments; a directory that holds another search.

    Example:
        >>> import tempfile, zoo
        >>> from zoo import tuning
        >>> space = tuning.search_space({"gate_bias": [-1, -3]})
        >>> tuner = tuning.CrossValidation(
        ...     tuning.make_oracle("grid", space),
        ...     tuning.GateBiasModel(
        ...         zoo.highway_mlp, {"input_shape": (8, 8, 1), "depth": 3}),
        ...     *zoo.datasets.arrays("digits", "train"),
        ...     directory=tempfile.mkdtemp(), folds=2, epochs=1, batch_size=256)
        >>> tuner.search()
        >>> sorted(row["gate_bias"] for row in tuner.rows())
        [-3, -1]

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks", §3.1.
    """

    def __init__(
        self,
        oracle: keras_tuner.Oracle,
        hypermodel: GateBiasModel,
        images: np.ndarray,
        labels: np.ndarray,
        *,
        directory: str | os.PathLike,
        epochs: int,
        batch_size: int,
        folds: int = 3,
        seeds: int = 1,
        seed: int = 0,
        drop_remainder: bool = False,
        at_chance: float | None = 1 / 3,
        description: Any = None,
        report: Callable[[dict, bool | None], None] = lambda result, new: None,
        silence: float = 120,
        patience: float = 600,
    ):
        check_int("epochs", epochs)
        check_int("batch_size", batch_size)
        check_int("seeds", seeds)
        check_int("seed", seed, 0)
        if at_chance is not None and not 0 < at_chance <= 1:
            raise ValueError(
                "`at_chance` must be a share of the steps, above 0 and up to 1, or "
                f"None. Received: at_chance={at_chance}"
            )
        self.images, self.labels = images, labels
        self.folds = stratified_folds(labels, folds)
        smallest = len(labels) - max(map(len, self.folds))
        if drop_remainder and smallest >= batch_size:
            hypermodel.steps = smallest // batch_size
        else:
            drop_remainder = False
            hypermodel.steps = -(-smallest // batch_size)
        self.epochs, self.batch_size, self.seeds = epochs, batch_size, seeds
        self.seed, self.drop_remainder = seed, drop_remainder
        self.at_chance, self.report = at_chance, report
        self.silence, self.patience = silence, patience
        self.root = pathlib.Path(directory)
        self.failures, self.released = {}, set()
        self.look = lambda: None
        description = _plain(
            {
                "search": type(oracle).__name__.removesuffix("Oracle"),
                "space": [[p.name, p.get_config()] for p in oracle.get_space().space],
                "builder": getattr(hypermodel.builder, "__name__", "?"),
                "arguments": hypermodel.arguments,
                "folds": folds,
                "seeds": seeds,
                "epochs": epochs,
                "batch_size": batch_size,
                "drop_remainder": drop_remainder,
                "seed": seed,
                "at_chance": at_chance,
                "data": hashlib.sha256(
                    images.tobytes() + np.asarray(labels, "int64").tobytes()
                ).hexdigest(),
                "description": description,
            }
        )
        self._check_directory(description)
        name = os.environ.get("KERASTUNER_TUNER_ID", "tuner")
        super().__init__(
            oracle,
            hypermodel,
            directory=str(self.root / _OWN),
            project_name=name,
            overwrite=True,  # never read, see the top of this file
        )
        _write(self.root / _SEARCH, description)  # last: all is checked

    def search(self):
        """Runs the search to its end; a chief waits for its workers.

        Raises:
            RuntimeError: no trial was completed; a chief without workers.
        """
        if self.role is None:
            super().search(verbose=0)
        else:
            threading.Thread(target=self._live, daemon=True).start()
            if self.role == "worker":
                return super().search()
            self._serve()
        if all(row["accuracy"] is None for row in self.rows()):
            failures = [row["message"] for row in self.rows()]
            raise RuntimeError(
                "no trial was completed. "
                + (f"The first one: {failures[0]}" if failures else "None was begun.")
            )

    def run_trial(self, trial, **kwargs):
        """Trains the trial's nets; called by KerasTuner."""
        try:
            results = [
                self._result(trial.hyperparameters, fold, repetition)
                for repetition in range(self.seeds)
                for fold in range(len(self.folds))
            ]
        except Exception as error:  # the search goes on, see on_trial_end
            text = str(error).strip() or "no message"
            self.failures[trial.trial_id] = (
                f"{type(error).__name__}: {text.splitlines()[0]}"
            )
            path = self.root / "failures" / f"{trial.trial_id}.txt"
            path.parent.mkdir(exist_ok=True)
            path.write_text(traceback.format_exc(), encoding="utf-8")
            return {"accuracy": 0.0}
        scores = [result["accuracy"] for result in results]
        return {"accuracy": float(np.mean(scores)), "std": _std(scores)}

    def on_trial_end(self, trial):
        """Marks what failed, writes TensorBoard's HParams; called by KerasTuner."""
        message = self.failures.pop(trial.trial_id, None)
        if message:
            trial.status, trial.message = "FAILED", message
        super().on_trial_end(trial)
        row = self._row(trial)
        if not message:
            self._write_hparams(trial, row)
        self.report(row, None)

    def pre_create_trial(self):
        """Called by KerasTuner."""
        if self.role == "worker":
            time.sleep(0.1)  # one that waits for the others asks again at once

    def rows(self) -> list[dict[str, Any]]:
        """The trials that have ended, best first, those that failed last.

        Each has its number, its settings, `epochs`, mean `accuracy` and `std` over
        folds and seeds, mean `loss` of those that are finite, `trains`: how many of
        its `nets` left chance, and for a failed one its `message`.
        """
        trials = list(self.oracle.trials.values())
        rows = [self._row(t) for t in trials if t.status in _ENDED]
        return sorted(rows, key=_rank)

    def results(self) -> list[dict[str, Any]]:
        """What was kept of each net of the trials that were completed, once each."""
        found = {}
        for trial in self.oracle.trials.values():
            if trial.status == "COMPLETED":
                for path in self._paths(trial.hyperparameters):
                    found[path] = _read(path)
        return list(found.values())

    @property
    def role(self) -> str | None:
        """What this process is: chief, worker, or None, alone."""
        if "KERASTUNER_ORACLE_IP" not in os.environ:
            return None
        return "chief" if "chief" in self.tuner_id else "worker"

    def _check_directory(self, mine):
        """Raises if the directory is another's."""
        path = self.root / _SEARCH
        if not path.exists():
            names = {p.name for p in self.root.iterdir()} if self.root.exists() else ()
            if set(names) - {_OWN}:
                raise ValueError(
                    f"{self.root} holds other files and no {_SEARCH}; choose another "
                    "directory."
                )
            return
        held = _read(path) or {}
        for key in mine:
            if held.get(key) != mine[key]:
                was, now = _difference(held.get(key), mine[key])
                raise ValueError(
                    f"{self.root} holds another search: {key} is {was} there and "
                    f"{now} here; choose another directory, or delete it."
                )

    def _epochs(self, hp):
        return hp.values.get("tuner/epochs", self.epochs)

    def _path(self, hp, fold, repetition):
        settings = self.hypermodel.settings(hp)
        key = [sorted(settings.items()), self._epochs(hp), fold, repetition]
        name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]
        return self.root / "nets" / f"{name}.json"

    def _paths(self, hp):
        return [
            self._path(hp, fold, repetition)
            for repetition in range(self.seeds)
            for fold in range(len(self.folds))
        ]

    def _result(self, hp, fold, repetition):
        """The result of one net, read if it was trained before."""
        path = self._path(hp, fold, repetition)
        result = _read(path)
        if new := result is None:
            result = self._train(hp, fold, repetition)
            path.parent.mkdir(exist_ok=True)
            _write(path, result)
        self.report(result, new)
        return result

    def _train(self, hp, fold, repetition):
        began, processor = time.perf_counter(), time.process_time()
        seed = (self.seed + repetition) * len(self.folds) + fold  # no two nets alike
        keras.utils.clear_session()
        keras.utils.set_random_seed(seed)
        held_out = self.folds[fold]
        rest = np.setdiff1d(np.arange(len(self.labels)), held_out)
        images, labels = self.images[rest], self.labels[rest]
        model = self.hypermodel.build(hp)
        training.adapt(model, images)
        data = datasets.from_arrays(
            images,
            labels,
            self.batch_size,
            seed=seed,
            epochs=None,
            drop_remainder=self.drop_remainder,
        )
        epochs, steps = self._epochs(hp), self.hypermodel.steps
        planned = epochs * steps
        limit = None
        if self.at_chance is not None:
            limit = max(math.ceil(self.at_chance * planned), _FEWEST_STEPS)
        watch = training.StopAtChance(images, labels, limit)
        ticks = []
        clock = keras.callbacks.LambdaCallback(
            on_epoch_end=lambda epoch, logs: ticks.append(time.perf_counter())
        )
        history = model.fit(
            data,
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=[watch, clock],
            shuffle=False,  # the stream is shuffled already
            verbose=0,
        )
        later = (len(ticks) - 1) * steps  # without the first epoch, which is traced
        validation = datasets.from_arrays(
            self.images[held_out],
            self.labels[held_out],
            self.batch_size,
            shuffle=False,
        )
        training.set_decay(model, 0.0, "everything")  # the loss is the cross-entropy
        held = model.evaluate(validation, verbose=0, return_dict=True)
        if watch.state == "diverged":  # a result too: it counts as chance
            held = {"accuracy": 1 / len(np.unique(self.labels)), "loss": None}
        return {
            "settings": self.hypermodel.settings(hp),
            "epochs": epochs,
            "fold": fold,
            "seed": seed,
            "accuracy": held["accuracy"],
            "loss": held["loss"],
            "state": watch.state,
            "training_loss": [_finite(loss) for loss in history.history["loss"]],
            "steps": watch.done,
            "planned_steps": planned,
            "step_seconds": (ticks[-1] - ticks[0]) / later if later else None,
            "seconds": time.perf_counter() - began,
            "processor_seconds": time.process_time() - processor,
        }

    def _row(self, trial):
        hp = trial.hyperparameters
        row = {"trial": int(trial.trial_id) + 1, **self.hypermodel.settings(hp)}
        row["epochs"] = self._epochs(hp)
        if trial.status == "FAILED":
            message = trial.message or "its workers died"
            return {**row, "accuracy": None, "message": message}
        results = [_read(path) for path in self._paths(hp)]
        scores = [result["accuracy"] for result in results]
        losses = [r["loss"] for r in results if r["loss"] is not None]
        return {
            **row,
            "accuracy": float(np.mean(scores)),
            "std": _std(scores),
            "loss": float(np.mean(losses)) if losses else None,
            "trains": sum(result["state"] == "trains" for result in results),
            "nets": len(results),
        }

    def _write_hparams(self, trial, row):
        """The trial's parameters and scores for TensorBoard's HParams, once."""
        from tensorboard.plugins.hparams import api

        directory = self.root / "tensorboard" / trial.trial_id
        if directory.exists():
            return
        writer = tf.summary.create_file_writer(str(directory))
        with writer.as_default():
            settings = self.hypermodel.settings(trial.hyperparameters)
            api.hparams(settings, trial_id=trial.trial_id)
            for name in ("accuracy", "std", "loss"):
                if row[name] is not None:
                    tf.summary.scalar(name, row[name], step=0)
        writer.close()

    # Chief and workers.

    def _live(self):
        """Gives signs of life; ends a worker whose chief gives none."""
        path = self._sign(self.tuner_id)
        path.parent.mkdir(exist_ok=True)
        chief = _Silence()
        while True:
            path.write_text(str(time.time()))
            silent = chief.of(self._sign("chief")) > self.silence
            if self.role == "worker" and silent:
                print(
                    f"{self.tuner_id}: no sign of the chief for {self.silence:.0f} s; "
                    "what was trained is kept.",
                    file=sys.stderr,
                )
                os._exit(3)  # the main thread may wait for an hour
            time.sleep(min(self.silence / 10, 2))

    def _sign(self, tuner_id):
        return self.root / "alive" / tuner_id

    def _serve(self):
        """Plans for the workers until all trials have ended."""
        server = threading.Thread(
            target=super().search, kwargs={"verbose": 0}, daemon=True
        )
        server.start()
        oracle, joined = self.oracle, set()
        silences, last = {}, time.monotonic()
        ended = set()
        while True:
            here = set(oracle.tuner_ids)
            self.released -= here
            for tuner_id in here:
                silence = silences.setdefault(tuner_id, _Silence())
                if silence.of(self._sign(tuner_id)) > self.silence:
                    self.release(tuner_id)
                    here.discard(tuner_id)
                    break
            joined |= here
            if here:
                last = time.monotonic()
            trials = dict(oracle.trials)
            for key, trial in trials.items():
                if key not in ended and trial.status in _ENDED:
                    ended.add(key)
                    self.report(self._row(trial), None)
            dismissed = joined - here - self.released
            if dismissed and not here and len(ended) == len(trials):
                return
            self.look()
            if time.monotonic() - last > self.patience or not server.is_alive():
                raise RuntimeError(
                    f"no worker for {self.patience:.0f} s"
                    if server.is_alive()
                    else "the chief could not go on at "
                    f"{os.environ['KERASTUNER_ORACLE_IP']}:"
                    f"{os.environ['KERASTUNER_ORACLE_PORT']}"
                )
            time.sleep(0.2)

    def release(self, tuner_id: str):
        """Takes a dead worker's trial back, for the next that asks; for a chief."""
        self.released.add(tuner_id)
        self.oracle.tuner_ids.discard(tuner_id)
        trial = self.oracle.ongoing_trials.get(tuner_id)
        if trial is not None:
            trial.status, trial.message = "INVALID", "its worker died"
            self.oracle.end_trial(trial)


class _Silence:
    """For how long a file has not changed, on the clock of this process."""

    def __init__(self):
        self.seen, self.since = None, time.monotonic()

    def of(self, path):
        try:
            now = path.stat().st_mtime_ns
        except OSError:
            now = None
        if now != self.seen:
            self.seen, self.since = now, time.monotonic()
        return time.monotonic() - self.since


def importance(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str]
) -> dict[str, float]:
    """How much of the accuracy hangs on each parameter, in shares of 1.

    A random forest learns the accuracy of the trials from their settings; a parameter
    weighs as much as the forest loses when its values are permuted among the trials.
    Differences between parameters are to be trusted from a few dozen trials on.

    Args:
        rows: from `CrossValidation.rows`.
        names: of the parameters.

    Returns:
        {name: share}, largest first; {} for fewer than two trials or names, or where
        nothing can be learnt.

    Reference:
        L. Breiman 2001, "Random Forests"; scikit-learn's `permutation_importance`.
    """
    from sklearn.ensemble import RandomForestRegressor
    from sklearn.inspection import permutation_importance

    rows = [row for row in rows if row["accuracy"] is not None]
    if len(rows) < 2 or len(names) < 2:
        return {}
    columns = [_numbers([row[name] for row in rows]) for name in names]
    x, y = np.stack(columns, axis=1), np.array([row["accuracy"] for row in rows])
    forest = RandomForestRegressor(300, random_state=0).fit(x, y)
    found = permutation_importance(forest, x, y, n_repeats=20, random_state=0)
    weights = np.maximum(found.importances_mean, 0)
    if not weights.sum():
        return {}
    shares = dict(zip(names, map(float, weights / weights.sum()), strict=True))
    return dict(sorted(shares.items(), key=lambda item: -item[1]))


def saved(results: Sequence[Mapping[str, Any]]) -> tuple[int, float, float]:
    """What ending early saved: nets ended, share of all steps, seconds of training."""
    ended = [r for r in results if r["steps"] < r["planned_steps"]]
    left = [r["planned_steps"] - r["steps"] for r in ended]
    total = sum(r["planned_steps"] for r in results)
    seconds = sum(
        n * (r["step_seconds"] or 0) for n, r in zip(left, ended, strict=True)
    )
    return len(ended), sum(left) / total if total else 0.0, seconds


def _is_bias(name):
    stem, _, number = name.rpartition("_")
    return name == "gate_bias" or (stem == "gate_bias" and number.isdecimal())


def _rank(row):
    if row["accuracy"] is None:
        return (1, 0, 0, row["trial"])
    loss = math.inf if row["loss"] is None else row["loss"]
    return (0, -row["accuracy"], loss, row["trial"])


def _std(values):
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def _finite(value):
    return value if math.isfinite(value) else None


def _numbers(values):
    """A parameter's values as numbers; words by their place in the alphabet."""
    if isinstance(values[0], str):
        words = sorted(set(values))
        return np.array([words.index(value) for value in values], float)
    return np.array(values, float)


def _difference(held, mine):
    """The two values, or the first parts of them that differ, for a sentence."""
    while type(held) is type(mine) and isinstance(mine, (dict, list)):
        keys = mine if isinstance(mine, dict) else range(len(mine))
        if len(held) != len(mine):
            break
        key = next((k for k in keys if _get(held, k) != mine[k]), None)
        if key is None:
            break
        held, mine = _get(held, key), mine[key]
    return held, mine


def _get(container, key):
    return container.get(key) if isinstance(container, dict) else container[key]


def _plain(content):
    """The content as JSON gives it back."""
    return json.loads(json.dumps(content, default=str))


def _read(path):
    """A JSON file's content; None if it is not there or damaged."""
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None


def _write(path, content):
    """Writes JSON beside, under a name of this process, and renames it into place."""
    temporary = path.with_suffix(f".{os.getpid()}.tmp")
    temporary.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    temporary.replace(path)
