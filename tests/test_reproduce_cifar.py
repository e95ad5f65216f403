"""The tables of highway nets and FitNets on CIFAR, on made-up images and tiny nets."""

import json

import pytest
from test_reproduce import table

import zoo
from recipes import reproduce, train
from recipes.tables import cifar, runs
from zoo import models

SMALL = ["--budget", "small", "--seeds", "1"]


@pytest.fixture(autouse=True)
def root(made_up_data, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "ROOT", tmp_path)


def tiny(make):
    """The same runs on fewer images, with nets of as many kinds of layers."""

    def made(*arguments):
        config, slug = make(*arguments)
        changes = {"epochs": 1, "train_images": 64}
        model = {"stages": [(4, 1), (6, 1)], "head_units": 4}
        if config.builder == "fitnet_teacher":
            model = {"width": 0.05}
        elif config.builder == "fitnet":
            model = {"kernel_initializer": "lecun_normal"}
        if config.hint:
            changes["hint"] = {"epochs": 1}
        return config.replace(**changes, model=model), slug

    return made


@pytest.fixture
def untrained(monkeypatch):
    """Runs that are planned and not trained, by directory name."""
    planned = {}

    def metrics(self, config, directory):
        planned[directory.name] = config
        found = {"test": {"accuracy": 0.5}, "parameters": 1}
        if config.hint:
            found["hints"] = {"error_before": 8.0, "error_after": 2.0}
        return found

    monkeypatch.setattr(runs.Runs, "_metrics", metrics)
    return planned


def test_fitnets_and_highways(tmp_path, monkeypatch, capsys):
    for name in ("highway", "fitnet"):
        monkeypatch.setattr(cifar, name, tiny(getattr(cifar, name)))
    assert reproduce.main(["cifar_fitnets", *SMALL]) == 0
    rows = {row["net"]: row for row in table(tmp_path / "cifar_fitnets_small")}
    assert list(rows) == [
        "Highway A",
        "plain twin of A",
        "FitNet 1",
        "FitNet 1, without hints",
        "FitNet 1, alone",
        "FitNet teacher",
    ]
    assert rows["FitNet 1"]["budget"] == "1 + 1 epochs of 64 images"
    assert rows["FitNet 1, alone"]["budget"] == "1 epochs of 64 images"
    for when in ("before", "after"):
        errors = {net: row[f"guided error {when}"] for net, row in rows.items()}
        assert len(errors.pop("FitNet 1")) == 1
        assert set(errors.values()) == {None}
    out = capsys.readouterr().out
    assert "Hints lowered the guided layer's error in " in out
    folders = {
        json.loads(path.read_text())["teacher"]: path.parent.name
        for path in tmp_path.glob("runs/fitnet_cifar10*/config.json")
    }
    teacher = str(tmp_path / "runs" / "fitnet_teacher_cifar10_5_small_seed0")
    assert folders.keys() == {teacher, None}
    assert zoo.load(teacher).get_layer("conv_01").filters == 5


def test_small_budget(untrained, tmp_path):
    assert reproduce.main(["cifar_fitnets", "--budget", "small"]) == 0
    rows = table(tmp_path / "cifar_fitnets_small")
    assert [row["n"] for row in rows] == [2, 2, 2, 2, 2, 1]
    assert [row["layers"] for row in rows] == [11, 11, 11, 11, 11, 5]
    assert [row["printed"] for row in rows] == [
        *(0.8918, None, 0.8901, None, None, 0.9018)
    ]
    # plain twin: 448 + 3·4,640 + 3·18,496 + 2·36,928 + 16,250 + 2,510
    assert [row["parameters"] for row in rows] == [
        *(236_328, 139_336, 348_694, 348_694, 348_694, 2_153_296)
    ]
    assert rows[2]["printed parameters"] == "~250K"
    assert rows[2]["guided error before"] == [8.0, 8.0]
    assert {c.epochs for c in untrained.values()} == {10}
    assert {c.train_images for c in untrained.values()} == {10_000}
    students = {
        name: (bool(c.teacher), bool(c.hint), bool(c.distill))
        for name, c in untrained.items()
        if name.startswith("fitnet_cifar10") and name.endswith("seed1")
    }
    assert students == {
        "fitnet_cifar10_11_1_small_seed1": (True, True, True),
        "fitnet_cifar10_11_1_small_distilled_seed1": (True, False, True),
        "fitnet_cifar10_11_1_small_alone_seed1": (False, False, False),
    }
    teacher = untrained["fitnet_teacher_cifar10_5_small_seed0"]
    assert (teacher.model["width"], teacher.model["dropout"]) == (0.5, False)


def test_full_budget(untrained, tmp_path, monkeypatch):
    monkeypatch.setattr(cifar, "_parameters", lambda config: None)
    assert reproduce.main(["cifar_fitnets", "--seeds", "1"]) == 0
    rows = {row["net"]: row for row in table(tmp_path / "cifar_fitnets")}
    assert [rows[f"Highway {net}"]["layers"] for net in "ABC"] == [11, 19, 32]
    printed = [rows[f"FitNet {n}"]["printed parameters"] for n in (1, 2, 3, 4)]
    assert printed == ["~250K", "~862K", "~1.6M", "~2.5M"]
    assert len(rows) == 3 * 2 + 4 + 2 + 1
    for name, config in untrained.items():
        assert config.train_images is None
        if "fitnet" in name:
            assert config.model["whiten"] and config.batch_size == 128
        else:  # the authors' solver
            assert (config.epochs, config.batch_size) == (400, 100)
            assert config.schedule["boundaries"] == [100_000, 150_000, 175_000]
            getattr(models, config.builder)(**config.model)
    assert {c.builder for c in untrained.values()} == {
        *("highway_cnn", "plain_cnn", "fitnet", "fitnet_teacher")
    }


def test_published_table(untrained, tmp_path, capsys):
    assert reproduce.main(["cifar_sota", *SMALL]) == 0
    rows = table(tmp_path / "cifar_sota_small")
    assert len(rows) == 12
    own = {row["net"]: row for row in rows if "accuracy" in row}
    assert list(own) == ["Highway, cifar10", "Highway, cifar100"]
    found = [(row["printed"], row["parameters"]) for row in own.values()]
    assert found == [(0.9240, 2_256_838), (0.6776, 2_265_928)]
    config = untrained["cifar100_highway_19_small_seed0"]
    assert config.model["head_initializer"] is None
    out = capsys.readouterr().out
    assert "0.5000 would be number 6 of 6; printed is 0.9240, number 2." in out
    assert "0.5000 would be number 6 of 6; printed is 0.6776, number 1." in out


def test_orders():
    def row(net, accuracy, std, printed=None):
        return {"net": net, "accuracy": accuracy, "std": std, "printed": printed}

    rows = [
        row("Highway A", 0.6, 0.01, 0.8918),
        row("plain twin of A", 0.5, 0.01),
        row("FitNet 1", 0.65, 0.01, 0.8901),
        row("FitNet 1, without hints", 0.64, 0.01),
        row("FitNet teacher", 0.7, 0.0, 0.9018),
        {"net": "another", "printed": 0.9},
    ]
    assert cifar.orders(rows) == [
        "As in the papers: FitNet teacher over Highway A; Highway A over plain twin "
        "of A.",
        "Within the spread of the seeds: FitNet 1 over FitNet 1, without hints.",
        "Reversed: Highway A over FitNet 1.",
    ]


def test_hints_that_lower_the_error():
    rows = [
        {"guided error before": [8.0, 4.0], "guided error after": [2.0, 3.0]},
        {"guided error before": None, "guided error after": None},
        {"guided error before": [5.0], "guided error after": [6.0]},
    ]
    assert cifar.hints_lower_the_error(rows) == [
        "Hints lowered the guided layer's error in 2 of 3 runs; 25% to 120% of it was "
        "left."
    ]


def test_trained_as_by_train(untrained):
    """The table's runs are those of the configs but for their budget."""
    config, _ = cifar.fitnet("FitNet 4", "full")
    assert config == train.configs.load("fitnet_cifar10_19_4")
