import csv
import json
import sys
from types import SimpleNamespace

import pytest

from recipes import configs, tune_gate_bias
from recipes.tables import very_deep
from zoo import tuning
from zoo.analysis import plots

TINY = ["--set", "model.depth=2", "--set", "model.units=4", "--folds", "2"]


@pytest.fixture
def trained(monkeypatch):
    """Trains nothing: nets fail above −1 and score best at −4. What was asked for."""
    asked, tested = [], []

    def train(self, hp, fold, repetition):
        settings = self.hypermodel.settings(hp)
        asked.append((settings, fold, repetition))
        fails = settings["gate_bias"] > -1
        score = 0.1 if fails else 0.9 - 0.01 * (settings["gate_bias"] + 4) ** 2
        score -= 0.001 * settings.get("depth", 0)
        return {
            "settings": settings,
            "epochs": self._epochs(hp),
            "fold": fold,
            "accuracy": score + 0.01 * fold,
            "loss": 1 - score,
            "state": "at chance" if fails else "trains",
            "steps": 10 if fails else 30,
            "planned_steps": 30,
            "step_seconds": 2.0,
            "processor_seconds": 1.5,
        }

    def test(config, directory):
        tested.append((config, directory))
        return {"test": {"accuracy": 0.875, "loss": 0.5}}

    monkeypatch.setattr(tuning.CrossValidation, "_train", train)
    monkeypatch.setattr(tune_gate_bias, "train_once", test)
    return SimpleNamespace(asked=asked, tested=tested)


def run(directory, *arguments, name="highway_mlp_digits_5"):
    return tune_gate_bias.main([name, *TINY, "--run-dir", str(directory), *arguments])


def test_grid(trained, tmp_path, capsys):
    assert run(tmp_path / "a") == 0
    out, err = capsys.readouterr()
    assert len(trained.asked) == 22
    record = json.loads((tmp_path / "a" / "table.json").read_text(encoding="utf-8"))
    rows = record["rows"]
    assert [row["gate_bias"] for row in rows[:3]] == [-4, -3, -5]
    assert rows[-1] == {
        "trial": 1,
        "gate_bias": 0.0,
        "epochs": 30,
        "accuracy": pytest.approx(0.105),
        "std": pytest.approx(0.01 / 2**0.5),
        "loss": pytest.approx(0.9),
        "trains": 0,
        "nets": 2,
    }
    with open(tmp_path / "a" / "table.csv", newline="", encoding="utf-8") as file:
        texts = [{k: str(v) for k, v in row.items()} for row in rows]
        assert list(csv.DictReader(file)) == texts
    assert record["best"] == {"gate_bias": -4.0}
    assert record["test"]["accuracy"] == 0.875
    assert record["ended_early"] == {"nets": 2, "steps": 2 / 33, "seconds": 80.0}
    ((config, directory),) = trained.tested
    assert config.model["gate_bias"] == -4 and config.model["units"] == 4
    assert config.train_split == "train+validation"
    assert directory.parent == tmp_path / "a" and directory.name.startswith("best_")
    assert (tmp_path / "a" / "plot.png").read_bytes().startswith(b"\x89PNG")
    assert not (tmp_path / "a" / "parallel.png").exists()
    assert "2 that did not train ended early: 6 % of all steps, about 80 s" in out
    assert "Best: gate_bias -4: 0.9050 on the held-out folds." in out
    assert "test accuracy 0.8750" in out
    assert "trial 6 of 11: gate_bias -5: 0.8950 ± 0.0071, 2 of 2 nets train" in err
    assert "best so far 0.9050 at gate_bias -4" in err

    assert run(tmp_path / "a") == 0  # all there
    assert len(trained.asked) == 22
    assert json.loads((tmp_path / "a" / "table.json").read_text()) == record


def test_stopped(trained, tmp_path, monkeypatch, capsys):
    train = tuning.CrossValidation._train

    def stop(self, *which):
        if len(trained.asked) == 5:
            raise KeyboardInterrupt
        return train(self, *which)

    with monkeypatch.context() as patch:
        patch.setattr(tuning.CrossValidation, "_train", stop)
        assert run(tmp_path / "a") == 130
    assert "Stopped; the same command goes on." in capsys.readouterr().out
    assert not (tmp_path / "a" / "table.json").exists()
    assert run(tmp_path / "a") == 0
    assert len(trained.asked) == 22


def test_random_search_of_the_paper(trained, tmp_path, capsys):
    name = "highway_mlp_digits_50"
    assert run(tmp_path, "--search", "random", "--budget", "small", name=name) == 0
    record = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    rows = record["rows"]
    assert len(rows) == 30 and {row["epochs"] for row in rows} == {3}
    low, high = very_deep.RATES
    for row in rows:
        assert low <= row["learning_rate"] <= high
        assert row["momentum"] in very_deep.MOMENTA
        assert row["decay_rate"] in very_deep.DECAY_RATES
        assert row["activation"] in very_deep.ACTIVATIONS
        assert row["gate_bias"] in range(-10, 0)
    ((config, _),) = trained.tested
    best = record["best"]
    assert config.optimizer == {
        "name": "sgd",
        "learning_rate": best["learning_rate"],
        "momentum": best["momentum"],
    }
    assert config.schedule == {"name": "exponential", "decay_rate": best["decay_rate"]}
    assert config.model["activation"] == best["activation"]
    assert (tmp_path / "parallel.png").read_bytes().startswith(b"\x89PNG")
    assert sum(record["importance"].values()) == pytest.approx(1)
    assert "gate_bias" in list(record["importance"])[0]
    assert "What the accuracy hangs on, by a random forest: gate_bias" in (
        capsys.readouterr().out
    )


def test_depths(trained, tmp_path, monkeypatch):
    figures = []
    draw = plots.tuning_figure

    def look(*args, **kwargs):
        figures.append(draw(*args, **kwargs))
        return figures[-1]

    monkeypatch.setattr(plots, "tuning_figure", look)
    assert run(tmp_path, "--space", "gate_bias=0,-3,-4", "depth=2,3") == 0
    left, right = figures[0].axes
    labels = [text.get_text() for text in left.get_legend().get_texts()]
    assert set(labels) >= {"depth 2", "depth 3", "fails to train", "all fail to train"}
    assert right.get_ylabel() == "best initial gate bias"
    best = [line.get_xydata() for line in right.lines if line.get_marker() == "o"]
    assert [point.tolist() for point in best[:2]] == [[[2, -4]], [[3, -4]]]


def test_a_search_without_success(trained, tmp_path, monkeypatch, capsys):
    def fail(self, *which):
        raise ValueError("no")

    monkeypatch.setattr(tuning.CrossValidation, "_train", fail)
    assert run(tmp_path / "a") == 1
    err = capsys.readouterr().err
    assert "error: no trial was completed. The first one: ValueError: no" in err
    assert not trained.tested


def test_really(tmp_path, capsys):
    """Two biases, two folds, one seed, and the best trained and tested."""
    space = ["--space", "gate_bias=-1,-2", "--epochs", "2", "--set", "batch_size=256"]
    assert run(tmp_path, *space) == 0
    record = json.loads((tmp_path / "table.json").read_text(encoding="utf-8"))
    assert all(0 < row["accuracy"] < 1 for row in record["rows"])
    assert record["processor_seconds"] > 0
    (best,) = tmp_path.glob("best_*")
    metrics = json.loads((best / "metrics.json").read_text())
    assert metrics["test"] == record["test"]
    written = json.loads((best / "config.json").read_text())
    assert written["model.gate_bias"] == record["best"]["gate_bias"]
    before = (best / "metrics.json").stat().st_mtime_ns
    assert run(tmp_path, *space) == 0  # tested once
    assert (best / "metrics.json").stat().st_mtime_ns == before


WRONG = [
    (["--space", "gate_bias="], "`gate_bias` must have at least one value"),
    (["--space"], "`parameters` must hold gate_bias"),
    (["--space", "depth=2,3"], "`parameters` must hold gate_bias"),
    (["--space", "gate_bias=0,2"], "`--space` takes gate biases up to 0, which carry"),
    (["--space", "gate_bias=a"], "`--space` takes numbers for gate_bias"),
    (["--space", "gate_bias", "learning_rate=a..b"], "`--space` takes a range as two"),
    (["--space", "gate_bias", "widht=2"], "`--space` must be one of "),
    (["--space", "gate_bias", "units"], "`--space` needs values for units"),
    (["--space", "gate_bias", "momentum=0.9"], "`--space` with momentum needs lear"),
    (["--folds", "1"], "`folds` must be an integer of at least 2"),
    (["--folds", "1000"], "`folds` must be at most the number of examples of the sm"),
    (["--seeds", "0"], "`seeds` must be an integer of at least 1"),
    (["--search", "grit"], "`--search` must be one of grid"),
    (["--budget", "tiny"], "`--budget` must be one of "),
    (["--trials", "0"], "`trials` must be an integer of at least 1"),
    (["--search", "hyperband", "--trials", "3"], "`trials` is not for a hyperband"),
    (["--workers", "-1"], "`--workers` must be an integer of at least 0"),
    (["--strategy", "multi_worker"], "`--strategy` must be one of a single machine"),
]


@pytest.mark.parametrize("arguments, message", WRONG)
def test_wrong_input(arguments, message, tmp_path, capsys):
    assert run(tmp_path / "a", *arguments) == 2
    out, err = capsys.readouterr()
    assert out == "" and err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "a").exists()


def test_wrong_names(tmp_path, capsys):
    for name, message in (
        ("highway_mlp_digits_51", "`name` must be one of highway_mlp_digits_5, "),
        ("plain_mlp_digits_5", "`--space` must be one of "),
    ):
        assert run(tmp_path / "a", name=name) == 2
        assert capsys.readouterr().err.startswith(f"error: {message}")


def test_directory_of_another_search(trained, tmp_path, capsys):
    assert run(tmp_path / "a") == 0
    capsys.readouterr()
    assert run(tmp_path / "a", "--space", "gate_bias=-1") == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {tmp_path / 'a'} holds another search: space is ")
    assert err.count("\n") == 1


def test_positive_biases_when_allowed(trained, tmp_path):
    assert run(tmp_path, "--space", "gate_bias=-4,1", "--allow-positive") == 0


def test_settings_of_a_config():
    config = configs.load("highway_cnn_cifar10_19")
    new = tune_gate_bias.with_settings(
        config, {"gate_bias_1": -1.0, "gate_bias_2": -2.0, "gate_bias_3": -3.0}
    )
    assert new.model["gate_bias"] == [-1.0, -2.0, -3.0]
    assert new.optimizer == config.optimizer and new.schedule == config.schedule
    new = tune_gate_bias.with_settings(config, {"momentum": 0.5, "gate_bias": -1.0})
    assert new.optimizer == {**config.optimizer, "momentum": 0.5}


def test_local_workers(tmp_path, monkeypatch):
    """One that dies is started once more; when all have died, the search ends."""
    released = []
    tuner = SimpleNamespace(release=released.append)
    script = tmp_path / "worker.py"
    script.write_text("import sys; print('why'); sys.exit(3)", encoding="utf-8")
    workers = tune_gate_bias.Workers(1, [], tmp_path)
    workers.stop()
    workers.command = [sys.executable, str(script)]
    workers.start("worker_1")
    workers.processes["worker_1"].wait()
    workers.look(tuner)
    assert released == ["worker_1"] and len(workers.processes) == 1
    workers.processes["worker_1"].wait()
    with pytest.raises(RuntimeError, match="worker_1 died twice; .*workers says why"):
        workers.look(tuner)
    log = (tmp_path / "workers" / "worker_1.log").read_text(encoding="utf-8")
    assert log.endswith("why\nwhy\n")
