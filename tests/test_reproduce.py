import csv
import dataclasses
import json

import pytest

from recipes import reproduce, train
from recipes.tables import digits, runs


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """Runs of 2 epochs and at most 2 layers of 8 units, under `tmp_path`."""
    whole = digits._digits

    def tiny(kind, layers, draw, gate_bias):
        config, slug = whole(kind, layers, draw, gate_bias)
        shape = {"depth": 1 + min(layers, 2), "units": 8}
        return config.replace(epochs=2, batch_size=512, model=shape), slug

    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(digits, "_digits", tiny)


@pytest.fixture
def one_draw(monkeypatch):
    monkeypatch.setattr(digits, "DRAWS", {digits.UNIFORM: {}})


def table(folder):
    """Rows of table.json, once the other files are found to agree with it."""
    record = json.loads((folder / "table.json").read_text(encoding="utf-8"))
    assert record["table"] == folder.name
    with open(folder / "table.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == len(record["rows"])
    for row, other in zip(rows, record["rows"], strict=True):
        for key, text in row.items():
            assert text == str("" if other.get(key) is None else other[key])
    assert (folder / "plot.png").read_bytes().startswith(b"\x89PNG")
    return record["rows"]


def times(root):
    return {file: file.stat().st_mtime_ns for file in root.glob("runs/*/metrics.json")}


def test_gate_bias_and_reuse(tmp_path, capsys):
    assert reproduce.main(["digits_gate_bias", "--seeds", "1"]) == 0
    rows = table(tmp_path / "digits_gate_bias")
    assert [row["gate bias"] for row in rows] == [0.0, -2.0, -5.0] * 2
    assert [row["printed"] for row in rows] == [0.1, 0.9426, 0.9611, *[None] * 3]
    assert all(row["n"] == 1 and 0 <= row["accuracy"] <= 1 for row in rows)
    assert all(0 <= row["all gates closed"] <= 1 for row in rows)
    assert all(0 <= row["layers that matter"] <= 2 for row in rows)
    out = capsys.readouterr().out
    assert "0.9426" in out
    assert f"In {tmp_path / 'digits_gate_bias'}: plot.png, table.csv" in out

    before = times(tmp_path)
    assert len(before) == 6
    assert reproduce.main(["digits_gate_bias", "--seeds", "1"]) == 0
    assert times(tmp_path) == before
    assert table(tmp_path / "digits_gate_bias") == rows


def test_interrupted_table_goes_on(one_draw, tmp_path, monkeypatch, capsys):
    whole = train.training.Resume.on_epoch_end

    def stop(self, epoch, logs=None):
        whole(self, epoch, logs)
        if self.directory.name.endswith("bias-2_seed0"):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train.training.Resume, "on_epoch_end", stop)
        assert reproduce.main(["digits_gate_bias", "--seeds", "1"]) == 130
    assert "the same command goes on" in capsys.readouterr().out
    assert not (tmp_path / "digits_gate_bias").exists()
    done = times(tmp_path)
    (stopped,) = (d for d in tmp_path.glob("runs/*") if list(d.glob("resume-*")))
    assert not (stopped / "metrics.json").exists()
    assert [file.name for file in stopped.glob("resume-*")] == ["resume-00001.npz"]

    resumed = []

    def restore(self, model):
        epoch = whole_restore(self, model)
        resumed.append((self.directory.name, epoch))
        return epoch

    whole_restore = train.training.Resume.restore
    monkeypatch.setattr(train.training.Resume, "restore", restore)
    assert reproduce.main(["digits_gate_bias", "--seeds", "1"]) == 0
    assert {file: times(tmp_path)[file] for file in done} == done
    assert resumed[0] == (stopped.name, 1)
    assert [epoch for _, epoch in resumed[1:]] == [0] * (len(resumed) - 1)
    assert len(table(tmp_path / "digits_gate_bias")) == 3


def test_depth(tmp_path, monkeypatch):
    def metrics(self, config, directory):
        return {"test": {"accuracy": 0.9 + 0.02 * config.seed}}

    monkeypatch.setattr(runs.Runs, "_metrics", metrics)  # nothing is trained
    assert reproduce.main(["digits_depth", "--seeds", "2"]) == 0
    *rows, regression = table(tmp_path / "digits_depth")
    assert all(row["accuracy"] == pytest.approx(0.91) for row in rows)
    assert all(row["std"] == pytest.approx(0.02 / 2**0.5) for row in rows)
    assert [(row["net"], row["layers"]) for row in rows] == [
        *[(net, n) for n in (5, 20, 50) for net in ("plain", "highway")],
        ("no highway layer", 0),
    ] * 2
    printed = [row["printed"] for row in rows]
    assert printed[:6] == [0.9481, 0.9630, 0.3593, 0.9500, 0.1019, 0.9426]
    assert printed[6:] == [None] * 8
    assert regression["net"] == "logistic regression"
    assert regression["accuracy"] == pytest.approx(0.970, abs=5e-4)


def test_gradients(tmp_path, monkeypatch):
    monkeypatch.undo()  # they need no training, so the real depths are fast
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    assert reproduce.main(["digits_gradients", "--seeds", "1"]) == 0
    rows = table(tmp_path / "digits_gradients")
    assert [(row["net"], row["layers"]) for row in rows] == [
        ("plain", 10),
        ("highway", 10),
        ("plain", 50),
        ("highway", 50),
    ]
    ratios = [row["the tutorial's draw"] for row in rows]
    assert [float(f"{ratio:.2e}") for ratio in ratios] == [r["printed"] for r in rows]


def test_several_seeds_of_a_net_without_gates(tmp_path):
    planned = runs.Runs(seeds=2)
    planned.add("key", *digits._digits("highway", 0, digits.UNIFORM, -2.0))
    (found,) = planned.results().values()
    assert [metrics["seed"] for metrics in found] == [0, 1]
    row = runs.row_of({"net": "none"}, found, 0.95)
    accuracies = [metrics["test"]["accuracy"] for metrics in found]
    assert row["accuracy"] == sum(accuracies) / 2
    assert row["std"] == pytest.approx(abs(accuracies[0] - accuracies[1]) / 2**0.5)
    assert (row["n"], row["printed"]) == (2, 0.95)
    assert "all gates closed" not in row


def test_a_diverged_run_counts_as_chance(tmp_path):
    planned = runs.Runs(seeds=1)
    config, slug = digits._digits("highway", 50, digits.UNIFORM, -2.0)
    sgd = {"name": "sgd", "learning_rate": 1e30}
    planned.add("key", dataclasses.replace(config, optimizer=sgd), slug)
    for _ in range(2):  # trained, then read
        ((metrics,),) = planned.results().values()
        assert metrics["test"]["accuracy"] == 0.1
        assert "diverged" in metrics["diverged"]


def test_differences():
    inside = {"net": "plain", "accuracy": 0.9, "std": 0.01, "n": 5, "printed": 0.915}
    outside = {**inside, "net": "highway", "printed": 0.95}
    lucky = {**outside, "std": 0.0, "n": 1, "printed": 0.9018}  # one image of 540
    rows = [inside, outside, lucky, {**inside, "printed": None}, {"printed": 1e-3}]
    assert digits.differences(rows) == [
        "Differs: net highway: ours 0.9000 ± 0.0100 (n = 5), printed 0.9500 (n = 1)."
    ]


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["digit_depth"], "`table` must be one of digits_depth, "),
        ([], "`table` must be one of "),
        (
            ["digits_depth", "--seeds", "0"],
            "`--seeds` must be an integer of at least 1",
        ),
        (["digits_depth", "--seeds", "-1"], "`--seeds` must be an integer of at least"),
    ],
)
def test_wrong_input(arguments, message, tmp_path, capsys):
    assert reproduce.main(arguments) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not list(tmp_path.iterdir())


def test_run_of_another_config(tmp_path, capsys):
    config, slug = digits._digits("highway", 50, digits.UNIFORM, 0.0)
    directory = tmp_path / "runs" / f"{slug}_seed0"
    train.Run(config.replace(seed=3), directory, slug)
    assert reproduce.main(["digits_gate_bias", "--seeds", "1"]) == 2
    err = capsys.readouterr().err
    assert f"error: {directory} holds a run of another config" in err
    assert "Traceback" not in err
