"""Srivastava et al. 2015, "Training Very Deep Networks": tables and figures on MNIST.

Budgets of `mnist_depth`: full, 100 trials of the search for each net and 400 epochs;
small, 4 trials of 2 epochs and 40 epochs, in which the rate falls by .95 an epoch
whatever was drawn, since 2 epochs do not show it. Departures from the paper: the search
picks by the loss on the validation images, the paper by the training loss; it ranges
over what `draw_settings` says, since the paper prints only the range of the gate bias.
"""

import dataclasses

import numpy as np

from recipes import configs
from recipes.configs import Config
from recipes.tables.runs import Runs, Table, accuracies, row_of
from zoo.analysis import plots

DEPTHS = (10, 20, 50, 100)
TRIALS = {"full": 100, "small": 4}
SEARCH_EPOCHS = {"full": 10, "small": 2}
EPOCHS = {"full": 400, "small": 40}
LOSSES = (1e-1, 1e-2, 1e-3, 1e-4)  # of the second table: steps to get there


# What the search ranges over. T15 §3.1 prints the range of the gate bias.
RATES = (1e-3, 1e-1)  # evenly in the logarithm
MOMENTA = (0.8, 0.9, 0.95)
DECAY_RATES = (0.8, 0.9, 0.95, 0.99)  # an epoch
ACTIVATIONS = ("relu", "tanh")
GATE_BIASES = tuple(float(-b) for b in range(1, 11))


def draw_settings(kind, depth, trial):
    """The hyper-parameters of a trial: a pure function of the net and its number."""
    rng = np.random.default_rng([ord(kind[0]), depth, trial])
    settings = {
        "learning_rate": float(10 ** rng.uniform(*np.log10(RATES))),
        "momentum": float(rng.choice(MOMENTA)),
        "decay_rate": float(rng.choice(DECAY_RATES)),
        "activation": str(rng.choice(ACTIVATIONS)),
    }
    if kind == "highway":
        settings["gate_bias"] = float(rng.choice(GATE_BIASES))
    return settings


def mnist_mlp(kind, depth, epochs, settings):
    """Config of a net of the depth study with these hyper-parameters."""
    model = {
        "input_shape": (28, 28, 1),
        "num_classes": 10,
        "depth": depth,
        "units": 50 if kind == "highway" else 71,
        "activation": settings["activation"],
    }
    if kind == "highway":
        model["gate_bias"] = settings["gate_bias"]
    return Config(
        builder=f"{kind}_mlp",
        model=model,
        dataset="mnist",
        epochs=epochs,
        batch_size=100,
        optimizer={
            "name": "sgd",
            "learning_rate": settings["learning_rate"],
            "momentum": settings["momentum"],
        },
        schedule={"name": "exponential", "decay_rate": settings["decay_rate"]},
    )


def search(budget):
    """{(kind, depth): the best trial's settings}, by loss on the validation images."""
    runs, drawn = Runs(1, context=None), {}
    for depth in DEPTHS:
        for kind in ("plain", "highway"):
            for trial in range(TRIALS[budget]):
                settings = draw_settings(kind, depth, trial)
                config = mnist_mlp(kind, depth, SEARCH_EPOCHS[budget], settings)
                key = kind, depth, trial
                drawn[key] = settings
                runs.add(
                    key,
                    config.replace(train_split="train"),
                    f"mnist_{kind}_{depth}_trial{trial:03d}_{budget}",
                )
    best = {}
    for (kind, depth, trial), (metrics,) in runs.results().items():
        loss = (metrics.get("validation") or {"loss": np.inf})["loss"]
        if loss < best.get((kind, depth), (np.inf,))[0]:
            best[kind, depth] = loss, drawn[kind, depth, trial]
    chosen = {net: settings for net, (_, settings) in best.items()}
    if budget == "small":
        chosen = {net: {**one, "decay_rate": 0.95} for net, one in chosen.items()}
    return chosen


def mnist_depth(seeds, budget):
    """Fig. 1: training loss of plain and highway nets of depth 10 to 100 on MNIST."""
    runs = Runs(seeds)
    chosen = search(budget)
    for (kind, depth), settings in chosen.items():
        config = mnist_mlp(kind, depth, EPOCHS[budget], settings)
        runs.add((kind, depth), config, f"mnist_{kind}_{depth}_{budget}")
    results, histories = runs.results(), runs.histories()
    rows, curves = [], {}
    for net, metrics in results.items():
        kind, depth = net
        losses = [history["loss"] for history in histories[net]]
        row = {
            "net": kind,
            "depth": depth,
            "final training loss": float(np.mean([loss[-1] for loss in losses])),
            **{f"steps to {level:g}": steps_to(losses, level, 600) for level in LOSSES},
        }
        rows.append({**row_of(row, metrics, None), **chosen[net]})
        curves[f"{kind}, depth {depth}"] = losses
    return rows, plots.loss_figure(curves, title=f"MNIST, budget {budget!r}")


def steps_to(losses, level, steps_an_epoch):
    """Mean number of steps to the end of the first epoch whose loss is at or below
    `level`; None where a run does not get there."""
    epochs = [
        next((i for i, x in enumerate(ls, 1) if x <= level), None) for ls in losses
    ]
    if None in epochs:
        return None
    return float(np.mean(epochs)) * steps_an_epoch


def findings(rows):
    """The two ratios by which the paper's claim can be read off."""
    final = {(r["net"], r["depth"]): r["final training loss"] for r in rows}
    try:
        return [
            f"Final training loss, highway 100 ÷ highway 10: "
            f"{final['highway', 100] / final['highway', 10]:.3g}; plain 100 ÷ "
            f"highway 100: {final['plain', 100] / final['highway', 100]:.3g}."
        ]
    except (KeyError, ZeroDivisionError):
        return []


def mnist_conv(seeds, budget):
    """§3.2: the convolutional highway nets of MNIST, test accuracy."""
    printed = {"highway_cnn_mnist_10": 0.9954, "highway_cnn_mnist_10_w16": 0.994}
    runs = Runs(seeds)
    for name in printed:
        config = configs.load(name)
        if budget == "full":  # the authors' solver file: 180,000 steps
            config = dataclasses.replace(
                config,
                epochs=300,
                optimizer={**config.optimizer, "learning_rate": 0.01},
                schedule={"name": "step", "boundaries": [60_000, 120_000]},
                dtype_policy="float32",
            )
        runs.add(name, config, f"{name}_{budget}")
    results = runs.results()
    rows = [
        row_of(
            {"net": name, "parameters": metrics[0]["parameters"]},
            metrics,
            printed[name],
        )
        for name, metrics in results.items()
    ]
    figure = plots.error_figure(
        {
            name: [100 * (1 - a) for a in accuracies(metrics)]
            for name, metrics in results.items()
        },
        {name: 100 * (1 - mean) for name, mean in printed.items()},
        title=f"MNIST, budget {budget!r}, {seeds} seeds",
    )
    return rows, figure


INITIALISERS = {
    "uniform": {
        "class_name": "RandomUniform",
        "config": {"minval": -0.05, "maxval": 0.05},
    },
    "Glorot": "glorot_uniform",
    "He": "he_normal",
    "N(0, .1)": {"class_name": "RandomNormal", "config": {"stddev": 0.1}},
}
INIT_EPOCHS = {"digits": 30, "mnist": 3}


def init_activation(seeds, budget):
    """§3.1: highways train whatever the initialisation and activation of H; depth 50.

    The gates start at −4 with Glorot kernels; SGD of .9 momentum at .01 on MNIST (3
    epochs), Adam on digits (30 epochs).
    """
    runs, settings = Runs(seeds), {}
    for dataset in ("digits", "mnist"):
        for kind in ("plain", "highway"):
            for activation in ("relu", "tanh"):
                for draw, kernels in INITIALISERS.items():
                    key = dataset, kind, activation, draw
                    settings[key] = _init_config(*key[:3], kernels)
                    word = "".join(c for c in draw if c.isalnum())
                    runs.add(
                        key,
                        settings[key],
                        f"init_{dataset}_{kind}_{activation}_{word}",
                    )
    results = runs.results()
    rows = [
        row_of(
            dict(
                zip(("data set", "net", "activation", "kernels of H"), key, strict=True)
            ),
            metrics,
            None,
        )
        for key, metrics in results.items()
    ]
    for row in rows:  # what is left without gates stands in other tables
        row.pop("printed")
    series = {}
    for (dataset, kind, activation, draw), metrics in results.items():
        setting = f"{draw}\n{activation}"
        series.setdefault(f"{kind}, {dataset}", {})[setting] = accuracies(metrics)
    figure = plots.accuracy_figure(
        series,
        xlabel="kernels and activation of H",
        chance=0.1,
        title=f"Depth 50, {seeds} seeds",
    )
    return rows, figure


def _init_config(dataset, kind, activation, kernels):
    model = {
        "input_shape": (8, 8, 1) if dataset == "digits" else (28, 28, 1),
        "num_classes": 10,
        "depth": 50,
        "units": 50 if kind == "highway" else 71,
        "activation": activation,
        "kernel_initializer": kernels,
    }
    if kind == "highway":
        model["gate_bias"] = -4.0
    if dataset == "digits":
        model["rescale"] = 1 / 16
        optimizer = {"name": "adam", "learning_rate": 1e-3}
    else:
        optimizer = {"name": "sgd", "learning_rate": 0.01, "momentum": 0.9}
    return Config(
        builder=f"{kind}_mlp",
        model=model,
        dataset=dataset,
        epochs=INIT_EPOCHS[dataset],
        batch_size=64 if dataset == "digits" else 100,
        optimizer=optimizer,
    )


TABLES = {
    "mnist_depth": Table(mnist_depth, {"full": 1, "small": 1}, findings),
    "mnist_conv": Table(mnist_conv, {"full": 5, "small": 3}),
    "init_activation": Table(init_activation, {"full": 3}),
}
