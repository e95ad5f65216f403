"""Srivastava et al. 2015, "Training Very Deep Networks": Tables 1 and 2, on CIFAR.

The full budget: highway nets and their plain twins with the authors' solver, 400
epochs; FitNets and their teacher as in their configs. The small one takes an hour and a
half of one CPU core for `cifar_fitnets`: 10 epochs on 10,000 training images in batches
of 64 along half a cosine, a teacher of half width without dropout, no whitening, 2
seeds, the whole test set. One teacher serves all students, as in the paper.

Departures: the widths of Highway A and C were never published, these hit the printed
counts. The paper gives no figures for plain twins, nor for a FitNet that is trained
otherwise than by hints and distillation.
"""

import dataclasses
import math

from recipes import configs
from recipes.tables.runs import Runs, Table, accuracies, row_of
from zoo import models
from zoo.analysis import plots

SMALL = {"epochs": 10, "batch_size": 64, "train_images": 10_000}
SMALL_HINT = {"epochs": 5}
SEEDS = {"full": 5, "small": 2}

HIGHWAYS = {  # variant, layers; printed: best accuracy, mean of 5 runs, parameters
    "A": ("cifar_11", 11, 0.8918, None, "~236K"),
    "B": ("cifar_19_fc", 19, 0.9246, "0.9228 ± 0.0016", "~2.3M"),
    "C": ("cifar_32", 32, 0.9120, None, "~1.25M"),
}
TEACHER = "FitNet teacher"
FITNETS = {  # config, layers; printed likewise
    TEACHER: ("fitnet_teacher_cifar10_5", 5, 0.9018, None, "~9M"),
    "FitNet 1": ("fitnet_cifar10_11_1", 11, 0.8901, None, "~250K"),
    "FitNet 2": ("fitnet_cifar10_11_2", 11, 0.9106, None, "~862K"),
    "FitNet 3": ("fitnet_cifar10_13_3", 13, 0.9110, None, "~1.6M"),
    "FitNet 4": ("fitnet_cifar10_19_4", 19, 0.9161, None, "~2.5M"),
}
LESS = {  # FitNet 1 with less teaching; and a word for the directory
    "FitNet 1, without hints": ({"hint": {}}, "distilled"),
    "FitNet 1, alone": ({"teacher": None, "hint": {}, "distill": {}}, "alone"),
}
CLAIMS = (  # the first is the better one, though the papers print no figure for both
    *((f"Highway {net}", f"plain twin of {net}") for net in HIGHWAYS),
    ("FitNet 1", "FitNet 1, without hints"),
    ("FitNet 1, without hints", "FitNet 1, alone"),
)
PRINTED_2 = {  # CIFAR-10, CIFAR-100
    "Maxout": (0.9062, 0.6142),
    "dasNet": (0.9078, 0.6622),
    "NIN": (0.9119, 0.6432),
    "DSN": (0.9203, 0.6543),
    "All-CNN": (0.9275, 0.6629),
    "Highway": (0.9240, 0.6776),
}
MEANS_2 = {"cifar10": "0.9231 ± 0.0012", "cifar100": "0.6761 ± 0.0015"}


def highway(kind, variant, dataset, budget):
    """(config, directory name) of a highway net or its plain twin."""
    classes = 100 if dataset == "cifar100" else 10
    model = {**models.HIGHWAY_VARIANTS[variant], "num_classes": classes}
    if kind == "plain":
        model = {**models.PLAIN_VARIANTS[variant], "num_classes": classes}
    if classes == 100:
        model["head_initializer"] = None  # N(0, √(2/fan_in)): the authors' file
    config = dataclasses.replace(
        configs.load("highway_cnn_cifar10_19"),
        builder=f"{kind}_cnn",
        model=model,
        dataset=dataset,
    )
    if budget == "small":
        config = dataclasses.replace(
            config,
            **SMALL,
            rate_batch_size=100,
            schedule={"name": "cosine", "warmup_epochs": 1},
        )
    return config, f"{dataset}_{kind}_{variant.removeprefix('cifar_')}_{budget}"


def fitnet(name, budget):
    """(config, directory name) of a FitNet or of the teacher."""
    config_name = FITNETS[name][0]
    config = configs.load(config_name)
    if budget == "small":
        config = config.replace(**SMALL, model={"whiten": False})
        if name == TEACHER:
            config = config.replace(model={"width": 0.5, "dropout": False})
        else:
            config = config.replace(hint=SMALL_HINT)
    return config, f"{config_name}_{budget}"


def cifar_fitnets(seeds, budget):
    """Table 1: highway nets, their plain twins, FitNets and their teacher; CIFAR-10."""
    teachers = Runs(1, context=None, artefacts=True)
    teachers.add(TEACHER, *fitnet(TEACHER, budget))
    results = teachers.results()
    ((teacher, directory),) = teachers.planned[TEACHER]
    runs, nets = Runs(seeds, context=None), {}

    def add(name, config, slug, *columns):
        nets[name] = config, *columns
        runs.add(name, config, slug)

    for net, (variant, layers, *printed) in HIGHWAYS.items():
        if budget == "full" or net == "A":
            run = highway("highway", variant, "cifar10", budget)
            add(f"Highway {net}", *run, layers, *printed)
            run = highway("plain", variant, "cifar10", budget)
            add(f"plain twin of {net}", *run, layers)
    for name, (_, layers, *printed) in FITNETS.items():
        if name == "FitNet 1" or (budget == "full" and name != TEACHER):
            config, slug = fitnet(name, budget)
            config = config.replace(teacher=str(directory))
            add(name, config, slug, layers, *printed)
        if name == "FitNet 1":
            for other, (less, word) in LESS.items():
                changed = dataclasses.replace(config, **less)
                add(other, changed, f"{slug}_{word}", layers)
    nets[TEACHER] = teacher, *FITNETS[TEACHER][1:]
    results.update(runs.results())
    rows = [_row(name, results[name], *columns) for name, columns in nets.items()]
    return rows, _figure(rows, results, budget)


def cifar_sota(seeds, budget):
    """Table 2: published nets of the time on CIFAR-10 and -100; ours is the highway."""
    runs, configs_of = Runs(seeds, context=None), {}
    for dataset in MEANS_2:
        name = f"Highway, {dataset}"
        configs_of[name], slug = highway("highway", "cifar_19", dataset, budget)
        runs.add(name, configs_of[name], slug)
    results, rows = runs.results(), []
    for place, (dataset, mean) in enumerate(MEANS_2.items()):
        for net, printed in PRINTED_2.items():
            name, best = f"{net}, {dataset}", printed[place]
            if name in configs_of:
                config = configs_of[name]
                rows.append(_row(name, results[name], config, 19, best, mean))
            else:
                rows.append({"net": name, "printed": best})
    return rows, _figure(rows, results, budget)


def _row(name, metrics, config, layers, best=None, mean=None, parameters=None):
    """What came out of a config's runs, beside what is printed."""
    row = row_of({"net": name, "layers": layers}, metrics, best)
    hints = [m["hints"] for m in metrics if "hints" in m]
    errors = {  # of each run, before and after the first stage
        when: [float(f"{hint[f'error_{when}']:.4g}") for hint in hints] or None
        for when in ("before", "after")
    }
    return {
        **row,
        "printed mean (5 runs)": mean,
        "parameters": _parameters(config),
        "printed parameters": parameters,
        "guided error before": errors["before"],
        "guided error after": errors["after"],
        "budget": _words(config),
    }


def _parameters(config):
    """Trainable ones: the papers count no mean image and no whitening."""
    model = getattr(models, config.builder)(**config.model)
    return sum(math.prod(w.shape) for w in model.trainable_weights)


def _words(config):
    """What was trained: of every row, since budgets differ."""
    text = f"{config.epochs} epochs"
    if config.teacher and config.hint:
        text = f"{config.hint['epochs']} + {text}"
    if config.train_images:
        text += f" of {config.train_images:,} images"
    if "width" in config.model:
        text += f", width × {config.model['width']:g}"
    return text


def _figure(rows, results, budget):
    return plots.error_figure(
        {
            name: [100 * (1 - a) for a in accuracies(metrics)]
            for name, metrics in results.items()
        },
        {row["net"]: 100 * (1 - (row["printed"] or math.nan)) for row in rows},
        title=f"CIFAR, budget {budget!r}",
    )


def orders(rows) -> list[str]:
    """Which net came out above which, against what is printed or claimed."""
    mine = {row["net"]: row for row in rows if "accuracy" in row}
    printed = [row for row in mine.values() if row["printed"] is not None]
    printed.sort(key=lambda row: -row["printed"])
    names = [row["net"] for row in printed]
    sides = {
        "As in the papers": [],
        "Within the spread of the seeds": [],
        "Reversed": [],
    }
    for pair in (*zip(names, names[1:], strict=False), *CLAIMS):
        if all(name in mine for name in pair):
            better, worse = (mine[name] for name in pair)
            difference = better["accuracy"] - worse["accuracy"]
            if abs(difference) <= math.hypot(better["std"], worse["std"]):
                side = "Within the spread of the seeds"
            else:
                side = "As in the papers" if difference > 0 else "Reversed"
            sides[side].append(" over ".join(pair))
    return [f"{side}: {'; '.join(pairs)}." for side, pairs in sides.items() if pairs]


def hints_lower_the_error(rows) -> list[str]:
    """In how many runs the first stage brought the guided layer nearer to its hint."""
    before, after = (
        [x for row in rows for x in row[f"guided error {when}"] or ()]
        for when in ("before", "after")
    )
    left = [b / a for a, b in zip(before, after, strict=True)]
    return [
        f"Hints lowered the guided layer's error in {sum(x < 1 for x in left)} of "
        f"{len(left)} runs; {min(left):.0%} to {max(left):.0%} of it was left."
    ]


def ranks(rows) -> list[str]:
    """Where our highway net would stand in the published table."""
    sentences = []
    for dataset in MEANS_2:
        table = [row for row in rows if row["net"].endswith(dataset)]
        (own,) = (row for row in table if "accuracy" in row)
        others = [row["printed"] for row in table if row is not own]
        place, printed = (
            1 + sum(x > accuracy for x in others)
            for accuracy in (own["accuracy"], own["printed"])
        )
        sentences.append(
            f"{own['net']}: {own['accuracy']:.4f} would be number {place} of "
            f"{len(table)}; printed is {own['printed']:.4f}, number {printed}."
        )
    return sentences


TABLES = {
    "cifar_fitnets": Table(
        cifar_fitnets, SEEDS, lambda rows: orders(rows) + hints_lower_the_error(rows)
    ),
    "cifar_sota": Table(cifar_sota, {"full": 5, "small": 1}, ranks),
}
