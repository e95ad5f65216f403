"""Tables of a public NumPy tutorial on scikit-learn's digits, and of 900 layers."""

import numpy as np

from recipes import configs
from recipes.tables.runs import Runs, Table, accuracies, row_of
from zoo import analysis, datasets, models
from zoo.analysis import plots

# The two initial draws compared on digits: the tutorial's, and the layers' defaults.
UNIFORM = "U(±1/√n)"
HE = "He"
DRAWS = {
    UNIFORM: {},
    HE: {
        "kernel_initializer": "he_normal",
        "gate_kernel_initializer": "glorot_uniform",
        "bias_initializer": "zeros",
    },
}


def digits_depth(seeds, budget):
    """Depth 5, 20, 50 with and without gates on digits; gate bias −2."""
    printed = {
        ("plain", 5): 0.9481,
        ("highway", 5): 0.9630,
        ("plain", 20): 0.3593,
        ("highway", 20): 0.9500,
        ("plain", 50): 0.1019,
        ("highway", 50): 0.9426,
    }
    runs = Runs(seeds)
    for draw in DRAWS:
        for kind, depth in printed:
            runs.add((draw, kind, depth), *_digits(kind, depth, draw, -2.0))
        one, slug = _digits("highway", 0, draw, -2.0)
        runs.add((draw, "no highway layer", 0), one, slug)
    results = runs.results()
    rows = [
        row_of(
            {"initial draw": draw, "net": kind, "layers": depth},
            metrics,
            printed.get((kind, depth)) if draw == UNIFORM else None,
        )
        for (draw, kind, depth), metrics in results.items()
    ]
    score = _logistic_regression()
    row = {"initial draw": "–", "net": "logistic regression", "layers": 0}
    rows.append({**row, "accuracy": score, "std": 0.0, "n": 1})
    series = {}
    for (draw, kind, depth), metrics in results.items():
        if depth:
            series.setdefault(f"{kind}, {draw}", {})[depth] = accuracies(metrics)
    figure = plots.accuracy_figure(
        series,
        xlabel="layers between stem and logits",
        reference={
            f"{kind}, {UNIFORM}": [printed[kind, d] for d in (5, 20, 50)]
            for kind in ("plain", "highway")
        },
        chance=0.1,
        title=f"Digits, {seeds} seeds",
    )
    return rows, figure


def digits_gate_bias(seeds, budget):
    """Initial gate bias 0, −2, −5 of 50 highway layers on digits."""
    printed = {0.0: 0.1000, -2.0: 0.9426, -5.0: 0.9611}
    runs = Runs(seeds)
    for draw in DRAWS:
        for bias in printed:
            runs.add((draw, bias), *_digits("highway", 50, draw, bias))
    results = runs.results()
    rows = [
        row_of(
            {"initial draw": draw, "gate bias": bias},
            metrics,
            printed[bias] if draw == UNIFORM else None,
        )
        for (draw, bias), metrics in results.items()
    ]
    series = {}
    for (draw, bias), metrics in results.items():
        series.setdefault(draw, {})[f"{bias:g}"] = accuracies(metrics)
    figure = plots.accuracy_figure(
        series,
        xlabel="initial gate bias",
        reference={UNIFORM: list(printed.values())},
        chance=0.1,
        title=f"Digits, 50 highway layers, {seeds} seeds",
    )
    return rows, figure


def digits_gradients(seeds, budget):
    """Gradient norm of the first layer ÷ the last at initialisation."""
    printed = {
        ("plain", 10): 1.43e-3,
        ("highway", 10): 0.784,
        ("plain", 50): 4.76e-19,
        ("highway", 50): 3.31e-2,
    }
    rows, curves = [], {}
    for kind, depth in printed:
        model, images, labels = tutorial_net(kind, depth)
        norms = analysis.gradient_norms(model, images, labels)
        curves[f"{kind}, {depth} layers"] = norms
        row = {"net": kind, "layers": depth, "printed": printed[kind, depth]}
        row["the tutorial's draw"] = float(norms[0] / norms[-1])
        for draw in DRAWS:
            ratios = [
                _ratio(_digits(kind, depth, draw, -2.0)[0], seed, images, labels)
                for seed in range(seeds)
            ]
            row[f"{draw}, geometric mean"] = float(np.exp(np.mean(np.log(ratios))))
            row[f"{draw}, factor of spread"] = float(np.exp(np.std(np.log(ratios))))
        rows.append({**row, "n": seeds})
    figure = plots.gradient_figure(curves, title="At initialisation, U(±1/√64)")
    return rows, figure


def digits_900(seeds, budget):
    """900 weight layers on digits, and what is left when gates close."""
    runs = Runs(seeds)
    runs.add("900", configs.load("highway_mlp_digits_900"), "digits_highway_900")
    metrics = runs.results()["900"]
    rows = [row_of({"net": "highway", "layers": 899}, metrics, None)]
    figure = plots.accuracy_figure(
        {"highway": {"900": accuracies(metrics)}},
        xlabel="depth",
        chance=0.1,
        title=f"Digits, {seeds} seeds",
    )
    return rows, figure


def tutorial_net(kind: str, layers: int):
    """The tutorial's net with its own random draw, and its inputs and labels.

    `default_rng(0)` gives, in this order, kernel and bias of the stem, of the logits,
    then of each layer, for highways followed by the gate's kernel and a bias that is
    thrown away for −2; then 256 inputs from N(0, 1) and labels.
    """
    rng = np.random.default_rng(0)

    def linear(outputs):
        limit = 1 / np.sqrt(64)
        return [rng.uniform(-limit, limit, s) for s in ((64, outputs), (outputs,))]

    builder = getattr(models, f"{kind}_mlp")
    model = builder((64,), depth=1 + layers, units=64, scan=False)
    stem, logits = linear(64), linear(10)
    weights = stem
    for _ in range(layers):
        weights += linear(64)
        if kind == "highway":
            weights += [linear(64)[0], np.full(64, -2.0)]
    model.set_weights(weights + logits)
    return model, rng.normal(size=(256, 64)), rng.integers(0, 10, 256)


def differences(rows) -> list[str]:
    """Sentences on the rows whose printed value lies outside ours ± 2 deviations."""
    sentences = []
    for row in rows:
        if row.get("printed") is None or "accuracy" not in row:
            continue
        margin = 2 * row["std"] + 0.0019  # one of 540 test images
        if abs(row["accuracy"] - row["printed"]) > margin:
            setting = ", ".join(f"{k} {v}" for k, v in list(row.items())[:3])
            setting = setting.split(", accuracy")[0]
            sentences.append(
                f"Differs: {setting}: ours {row['accuracy']:.4f} ± {row['std']:.4f} "
                f"(n = {row['n']}), printed {row['printed']:.4f} (n = 1)."
            )
    return sentences


SEEDS = {"full": 5}
TABLES = {
    "digits_depth": Table(digits_depth, SEEDS, differences),
    "digits_gate_bias": Table(digits_gate_bias, SEEDS, differences),
    "digits_gradients": Table(digits_gradients, SEEDS),
    "digits_900": Table(digits_900, SEEDS),
}


def _digits(kind, layers, draw, gate_bias):
    """(config, directory name) of a digits net of this many layers."""
    config = configs.load(f"{kind}_mlp_digits_50")
    changes = {"depth": 1 + layers, **DRAWS[draw]}
    slug = f"digits_{kind}_{layers}_{'uniform' if draw == UNIFORM else 'he'}"
    if kind == "highway":
        changes["gate_bias"] = gate_bias
        slug += f"_bias{gate_bias:g}"
    else:
        changes.pop("gate_kernel_initializer", None)
    return config.replace(model=changes), slug


def _ratio(config, seed, images, labels):
    """Gradient norm of the first layer ÷ the last, on 64 features instead of images."""
    import keras

    keras.utils.set_random_seed(seed)
    arguments = {**config.model, "input_shape": (64,), "rescale": 1.0}
    model = getattr(models, config.builder)(**arguments)
    norms = analysis.gradient_norms(model, images, labels)
    return norms[0] / norms[-1]


def _logistic_regression():
    """Test accuracy of scikit-learn's logistic regression on the same split."""
    from sklearn.linear_model import LogisticRegression

    images, labels = datasets.arrays("digits", "train+validation")
    tests, test_labels = datasets.arrays("digits", "test")
    classifier = LogisticRegression(max_iter=5000)
    classifier.fit(images.reshape(len(images), -1) / 16, labels)
    return float(classifier.score(tests.reshape(len(tests), -1) / 16, test_labels))
