"""Tunes the gate bias of a recipe by cross-validation on its training set.

    python recipes/tune_gate_bias.py highway_mlp_digits_50
    python recipes/tune_gate_bias.py highway_mlp_digits_50 --search bayesian --trials 20
    python recipes/tune_gate_bias.py highway_mlp_digits_50 --run-dir runs/tune/depth \\
        --space gate_bias depth
    python recipes/tune_gate_bias.py highway_mlp_mnist_50 --search random --budget small

Searches: grid, 0 to −10 in steps of 1 (He et al. 2016); random, bayesian and hyperband
over rate, momentum, decay of the rate, activation and gate bias, 100 trials
(Srivastava et al. 2015). Where the momentum is searched for, the solver is theirs: SGD,
and a rate that falls exponentially.

The test set is used once, by the best setting, trained on the whole training set. The
directory holds table.csv, table.json, plot.png, with more than one parameter
parallel.png, TensorBoard's HParams in tensorboard/, and every net's result. Stop with
Ctrl-C: the same command goes on, in the middle of a trial too. Wrong input ends with
one sentence and exit code 2, before any training.

Several machines: the same command with `--run-dir` on a disk that all share, and
KERASTUNER_TUNER_ID=chief (elsewhere any other name, each its own),
KERASTUNER_ORACLE_IP and KERASTUNER_ORACLE_PORT in the environment. Dead workers:
see `zoo.tuning.CrossValidation`. `--workers 2` does all that on one machine.
"""

import argparse
import ast
import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import os
import pathlib
import socket
import subprocess
import sys
import time
import warnings

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from rich.console import Console  # noqa: E402
from rich.progress import Progress  # noqa: E402

from recipes import reproduce, train  # noqa: E402
from recipes.tables import very_deep  # noqa: E402
from recipes.tables.runs import train_once  # noqa: E402
from zoo import datasets, distribution, models, training, tuning  # noqa: E402
from zoo._checks import check_int, known  # noqa: E402
from zoo.analysis import plots  # noqa: E402

SPLIT = "train+validation"  # the training set; folds take the place of validation
#: By budget: what the config's epochs are divided by, and the trials.
BUDGETS = {"full": (1, 100), "small": (10, 30)}
SOLVER = {
    "learning_rate": tuning.LogRange(*very_deep.RATES),
    "momentum": very_deep.MOMENTA,
    "decay_rate": very_deep.DECAY_RATES,
}
PAPER = {
    **SOLVER,
    "activation": very_deep.ACTIVATIONS,
    "gate_bias": very_deep.GATE_BIASES,
}
#: Values of a parameter that is named without any.
DEFAULTS = {**PAPER, "depth": very_deep.DEPTHS}


def with_settings(config, settings):
    """The config with a trial's settings: the net's, then the solver's."""
    solver = {key: value for key, value in settings.items() if key in SOLVER}
    net = {
        key: value
        for key, value in settings.items()
        if key not in SOLVER and not key.startswith("gate_bias_")
    }
    config = config.replace(model={**net, **tuning.stage_biases(settings)})
    optimizer = dict(config.optimizer)
    if "momentum" in solver and optimizer["name"] != "sgd":
        optimizer = {"name": "sgd"}
    for key in ("learning_rate", "momentum"):
        if key in solver:
            optimizer[key] = solver[key]
    schedule = config.schedule
    if "decay_rate" in solver:
        schedule = {"name": "exponential", "decay_rate": solver["decay_rate"]}
    return dataclasses.replace(config, optimizer=optimizer, schedule=schedule)


def parse_space(texts, search, allow_positive, config):
    """{parameter: values} of the command line; ValueError where it makes no sense."""
    if texts is None:
        parameters = PAPER if search != "grid" else {"gate_bias": tuning.GATE_BIASES}
    else:
        parameters = {}
        for text in texts:
            name, equals, values = text.partition("=")
            parameters[name] = (
                _values(name, values) if equals else _default(name, search)
            )
    takes = {key.removeprefix("model.") for key in config.defaults()}
    for name in parameters:
        stage = name.startswith("gate_bias_") and name[10:].isdecimal()
        known("--space", "gate_bias" if stage else name, {*takes, *SOLVER})
    if "momentum" in parameters and config.optimizer["name"] != "sgd":
        if "learning_rate" not in parameters:
            raise ValueError(
                "`--space` with momentum needs learning_rate too, because the config's "
                f"rate is for {config.optimizer['name']}. Received: "
                f"--space {' '.join(parameters)}"
            )
    positive = [
        value
        for name, values in parameters.items()
        if name.startswith("gate_bias")
        for value in values
        if isinstance(value, (int, float)) and value > 0
    ]
    if positive and not allow_positive:
        raise ValueError(
            "`--space` takes gate biases up to 0, which carry; --allow-positive takes "
            f"others. Received: {', '.join(map(str, positive))}"
        )
    return parameters


def _default(name, search):
    if name.startswith("gate_bias"):
        return tuning.GATE_BIASES if search == "grid" else very_deep.GATE_BIASES
    if name not in DEFAULTS:
        raise ValueError(
            f"`--space` needs values for {name}, as in {name}=1,2; only "
            f"{', '.join(DEFAULTS)} have their own. Received: --space {name}"
        )
    return DEFAULTS[name]


def _values(name, text):
    """`1,2,3` or `0.001..0.1`, which is even in the logarithm."""
    low, dots, high = text.partition("..")
    try:
        if dots:
            return tuning.LogRange(float(low), float(high))
    except ValueError:
        raise ValueError(
            f"`--space` takes a range as two numbers, {name}=0.001..0.1. "
            f"Received: --space {name}={text}"
        ) from None
    values = []
    for part in text.split(",") if text else []:
        try:
            values.append(ast.literal_eval(part))
        except (ValueError, SyntaxError):
            values.append(part)
    if name.startswith("gate_bias"):
        wrong = [v for v in values if type(v) not in (int, float)]
        if wrong:
            raise ValueError(
                f"`--space` takes numbers for {name}. Received: --space {name}={text}"
            )
        values = [float(value) for value in values]
    return values


class Report:
    """What a search shows: a line a trial, the best so far, the time left."""

    def __init__(self, planned, nets, names, progress):
        self.planned, self.nets, self.names = planned, nets, names
        self.progress = progress
        self.task = progress.add_task("", total=sum(planned) * nets)
        self.began, self.ended, self.within, self.new = time.perf_counter(), 0, 0, 0
        self.trials, self.best = 0, None
        self.describe()

    def __call__(self, result, new):
        if new is not None:  # a net
            epochs = result["epochs"]
            self.within += epochs
            self.new += epochs * new
        else:  # a trial
            epochs = result["epochs"] * self.nets
            self.new += 0 if self.within else epochs  # trained by a worker
            self.ended, self.within = self.ended + epochs, 0
            self.trials += 1
            score = result["accuracy"]
            if score is not None and (
                self.best is None or score > self.best["accuracy"]
            ):
                self.best = result
            line = self.line(result)
            self.progress.console.print(line, highlight=False, soft_wrap=True)
        self.describe()

    def line(self, row):
        text = f"trial {self.trials} of {len(self.planned)}: {self.setting(row)}: "
        if row["accuracy"] is None:
            return text + f"failed, {row['message']}"
        return (
            f"{text}{row['accuracy']:.4f} ± {row['std']:.4f}, {row['trains']} of "
            f"{row['nets']} nets train; best so far {self.best['accuracy']:.4f} at "
            f"{self.setting(self.best)}; {self.left()} left"
        )

    def setting(self, row):
        return ", ".join(f"{name} {_show(row[name])}" for name in self.names)

    def left(self):
        if not self.new:
            return "?"
        rate = (time.perf_counter() - self.began) / self.new
        left = sum(self.planned) * self.nets - self.ended - self.within
        return duration(rate * max(left, 0))

    def describe(self):
        best = f", best {self.best['accuracy']:.4f}" if self.best else ""
        number = min(self.trials + 1, len(self.planned))
        self.progress.update(
            self.task,
            completed=self.ended + self.within,
            description=f"trial {number} of {len(self.planned)}{best}, "
            f"{self.left()} left",
            refresh=True,
        )


class Workers:
    """Local worker processes; one that dies is started again, each once at most."""

    def __init__(self, count, argv, directory):
        self.command = [sys.executable, os.path.abspath(__file__), *argv]
        self.directory, self.processes = directory / "workers", {}
        self.restarts = {f"worker_{i + 1}": 1 for i in range(count)}
        self.lost = []
        self.directory.mkdir(parents=True, exist_ok=True)
        for name in self.restarts:
            self.start(name)

    def start(self, name):
        with open(self.directory / f"{name}.log", "a", encoding="utf-8") as log:
            self.processes[name] = subprocess.Popen(
                self.command,
                env={**os.environ, "KERASTUNER_TUNER_ID": name},
                stdout=log,
                stderr=subprocess.STDOUT,
            )

    def look(self, tuner):
        """Takes the trials of those that died back, and starts them again."""
        for name, process in list(self.processes.items()):
            if process.poll() in (None, 0):
                continue
            tuner.release(name)
            del self.processes[name]
            if self.restarts[name]:
                self.restarts[name] -= 1
                self.start(name)
            else:
                self.lost.append(name)
        if self.lost and all(p.poll() == 0 for p in self.processes.values()):
            raise RuntimeError(
                f"{', '.join(self.lost)} died twice; {self.directory} says why"
            )

    def stop(self):
        for process in self.processes.values():
            if process.poll() is None:
                process.terminate()
        for process in self.processes.values():
            process.wait()


def _show(value):
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def duration(seconds):
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def parse(argv):
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0],
        epilog=__doc__.partition("\n\n")[2],
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("name", nargs="?", help="a config of recipes/configs")
    parser.add_argument("--search", default="grid", help=", ".join(tuning.SEARCHES))
    parser.add_argument(
        "--space",
        nargs="*",
        metavar="NAME[=VALUES]",
        help="what is searched over: gate_bias=0,-2 learning_rate=0.001..0.1 depth; "
        "gate_bias_1, gate_bias_2, … for one in each stage of highway_cnn",
    )
    parser.add_argument("--allow-positive", action="store_true")
    parser.add_argument("--folds", type=int, default=3)
    parser.add_argument("--seeds", type=int, default=1, help="nets for each fold (1)")
    parser.add_argument("--trials", type=int, help="100; 30 for --budget small")
    parser.add_argument(
        "--budget",
        default="full",
        help="full: the config's epochs; small: a tenth of them, and 30 trials",
    )
    parser.add_argument("--workers", type=int, default=0, help="local processes (none)")
    parser.add_argument("--run-dir", type=pathlib.Path, help="default: runs/tune/…")
    parser.add_argument("--epochs", type=int, help="epochs to train")
    parser.add_argument("--seed", type=int, help="of plan, weights and data order")
    parser.add_argument("--strategy", help="as in recipes/train.py, of one machine")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="as in train.py"
    )
    return parser.parse_args(argv)


def prepare(args):
    """(config, parameters, directory), checked."""
    config = train.configure(args)
    train.check(config)
    known("--search", args.search, tuning.SEARCHES)
    known("--budget", args.budget, BUDGETS)
    check_int("--workers", args.workers, 0)
    share, trials = BUDGETS[args.budget]
    if args.epochs is None:
        config = config.replace(epochs=max(1, round(config.epochs / share)))
    if args.trials is None and args.search in ("random", "bayesian"):
        args.trials = trials
    if config.strategy == "multi_worker":
        raise ValueError(
            "`--strategy` must be one of a single machine; several machines share out "
            "the trials. Received: --strategy multi_worker"
        )
    if config.teacher is not None:
        raise ValueError(
            "The gate bias is tuned without a teacher; --set teacher=none leaves it "
            f"out. Received: teacher={config.teacher!r}"
        )
    parameters = parse_space(args.space, args.search, args.allow_positive, config)
    config = config.replace(train_split=SPLIT, validate=False)
    suffix = "" if args.budget == "full" else f"_{args.budget}"
    default = pathlib.Path("runs/tune") / f"{args.name}_{args.search}{suffix}"
    return config, parameters, args.run_dir or default


def make_tuner(args, config, parameters, directory):
    space = tuning.search_space(parameters)
    plan = {"trials": args.trials, "epochs": config.epochs}
    oracle = tuning.make_oracle(args.search, space, seed=config.seed, **plan)
    images, labels = datasets.arrays(config.dataset, SPLIT)
    classes = datasets.info(config.dataset).num_classes

    def compile(model, settings, steps):
        train.compile_model(model, with_settings(config, settings), steps, classes)
        factor = config.decay_head_factor
        training.set_decay(model, config.decay, config.decay_on, head_factor=factor)

    tuner = tuning.CrossValidation(
        oracle,
        tuning.GateBiasModel(
            getattr(models, config.builder),
            config.model,
            compile=compile,
            strategy=distribution.strategy(config.strategy),
        ),
        images[: config.train_images],
        labels[: config.train_images],
        directory=directory,
        epochs=config.epochs,
        batch_size=config.batch_size,
        folds=args.folds,
        seeds=args.seeds,
        seed=config.seed,
        drop_remainder=config.drop_remainder,
        description=config.flat(),
    )
    return tuner, tuning.planned_epochs(args.search, space, **plan)


def search(args, argv, config, parameters, directory):
    """Runs the search; the tuner with all trials, None in a worker of another chief."""
    silent = "KERASTUNER_ORACLE_IP" in os.environ
    with contextlib.ExitStack() as stack:
        if args.workers and not silent:
            stack.enter_context(_chief())
        warnings.filterwarnings("ignore", module="sklearn")  # of Gaussian processes
        tuner, planned = make_tuner(args, config, parameters, directory)
        if tuner.role == "worker":
            tuner.search()
            return None
        # no thread of its own, as in recipes/tables/runs.py
        bar = Progress(console=Console(stderr=True), auto_refresh=False)
        progress = stack.enter_context(bar)
        nets = args.folds * args.seeds
        tuner.report = Report(planned, nets, list(parameters), progress)
        if args.workers and not silent:
            workers = Workers(args.workers, argv, directory)
            stack.callback(workers.stop)
            tuner.look = lambda: workers.look(tuner)
        tuner.search()
    return tuner


@contextlib.contextmanager
def _chief():
    """This process is the chief of local workers."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    names = {"TUNER_ID": "chief", "ORACLE_IP": "127.0.0.1", "ORACLE_PORT": str(port)}
    names = {f"KERASTUNER_{key}": value for key, value in names.items()}
    os.environ.update(names)
    try:
        yield
    finally:
        for name in names:
            del os.environ[name]


def finish(args, tuner, config, parameters, directory, seconds):
    """Retrains and tests the best, writes the files and prints the table."""
    names = list(parameters)
    rows, results = tuner.rows(), tuner.results()
    shares = tuning.importance(rows, names)
    ended, part, spared = tuning.saved(results)
    processor = sum(result["processor_seconds"] for result in results)
    best = {name: rows[0][name] for name in names}
    # by its setting: more trials may find a better one
    key = hashlib.sha256(json.dumps(best).encode()).hexdigest()[:8]
    metrics = train_once(with_settings(config, best), directory / f"best_{key}")
    _write_csv(directory / "table.csv", rows)
    record = {
        "name": args.name,
        "search": args.search,
        "folds": args.folds,
        "seeds": args.seeds,
        "rows": rows,
        "best": best,
        "test": metrics["test"],
        "importance": shares,
        "ended_early": {"nets": ended, "steps": part, "seconds": spared},
        "nets": len(results),
        "processor_seconds": processor,
    }
    train.write(directory / "table.json", json.dumps(record, indent=2) + "\n")
    title = f"{args.name}, {args.folds} folds"
    classes = datasets.info(config.dataset).num_classes
    axis = next(name for name in names if name.startswith("gate_bias"))
    figure = plots.tuning_figure(
        rows, parameter=axis, depths="depth" in names, chance=1 / classes, title=title
    )
    plots.save(figure, directory / "plot.png")
    if len(names) > 1:
        figure = plots.parallel_figure(rows, names, shares, title=title)
        plots.save(figure, directory / "parallel.png")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    if len({row["epochs"] for row in rows}) == 1:
        columns.remove("epochs")
    reproduce.show(columns, rows, f"{title}: accuracy on the held-out folds")
    if shares:
        text = ", ".join(
            f"{name} {100 * share:.0f} %" for name, share in shares.items()
        )
        print(f"What the accuracy hangs on, by a random forest: {text}.")
    print(
        f"{len(results)} nets in {duration(seconds)} here, {duration(processor)} of "
        "processor time in all."
    )
    if ended:
        print(
            f"{ended} that did not train ended early: {100 * part:.0f} % of all steps, "
            f"about {duration(spared)}, were saved."
        )
    failed = sum(row["accuracy"] is None for row in rows)
    if failed:
        print(f"{failed} trials failed; {directory / 'failures'} says why.")
    setting = ", ".join(f"{name} {_show(value)}" for name, value in best.items())
    print(
        f"Best: {setting}: {rows[0]['accuracy']:.4f} on the held-out folds. Trained on "
        f"the whole training set: test accuracy {metrics['test']['accuracy']:.4f}."
    )
    print(f"In {directory}: {', '.join(sorted(p.name for p in directory.iterdir()))}")


def _write_csv(path, rows):
    text = io.StringIO(newline="")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    train.write(path, text.getvalue())


def main(argv=None) -> int:
    argv = sys.argv[1:] if argv is None else argv
    args = parse(argv)
    began = time.perf_counter()
    try:
        config, parameters, directory = prepare(args)
        tuner = search(args, argv, config, parameters, directory)
        if tuner is not None:
            seconds = time.perf_counter() - began
            finish(args, tuner, config, parameters, directory, seconds)
    except (ValueError, TypeError, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except RuntimeError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on.")
        return 130
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped; the same command goes on.")
