import json
import shutil

import numpy as np
import pytest

import zoo
from recipes import export, train


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    directory = tmp_path_factory.mktemp("runs") / "net"
    changes = ("--set", "model.depth=3", "--set", "model.units=4", "--epochs", "1")
    assert (
        train.main(["highway_mlp_digits_5", *changes, "--run-dir", str(directory)]) == 0
    )
    return directory


@pytest.fixture(autouse=True)
def root(tmp_path, monkeypatch):
    monkeypatch.setattr(export, "ROOT", tmp_path)
    return tmp_path / "saved_models"


def test_release_loads_by_name_with_its_log(run, root, monkeypatch, capsys):
    (run / "analysis").mkdir()
    (run / "analysis" / "report.html").write_text("<html></html>")
    assert export.main([str(run), "--name", "released"]) == 0
    assert "card.json, curves.png" in capsys.readouterr().out
    assert sorted(p.name for p in root.iterdir()) == ["README.md", "released"]
    metrics = json.loads((run / "metrics.json").read_text())
    accuracy = metrics["test"]["accuracy"]
    row = f"| released | digits | {metrics['parameters']:,} | {accuracy:.4f} |  |"
    assert row in (root / "README.md").read_text()
    monkeypatch.setenv("ZOO_SAVED_MODELS", str(root))
    assert "released" in zoo.list_pretrained()
    model = zoo.load("released")
    assert model.name == "released"
    images = np.ones((2, 8, 8, 1))
    assert np.array_equal(model(images), zoo.load(run)(images))
    card = json.loads((root / "released" / "card.json").read_text(encoding="utf-8"))
    assert {"history.csv", "curves.png", "gates.png", "report.html"} <= card[
        "sha256"
    ].keys()
    test = card["metrics"]["test"]
    confusion = np.array(test["confusion"])
    assert confusion.shape == (10, 10) and confusion.sum() == test["n"]
    assert np.trace(confusion) / test["n"] == pytest.approx(accuracy)
    labels = np.concatenate([y for _, y in zoo.datasets.load("digits", "test", 64)])
    assert np.array_equal(confusion.sum(1), np.bincount(labels))
    (root / "released" / "history.csv").write_text("changed")
    with pytest.raises(ValueError, match="history.csv is not the file on its card"):
        zoo.load("released")


def test_refusals(run, root, tmp_path, capsys):
    assert export.main([str(tmp_path)]) == 2
    assert "must be the directory of a finished run" in capsys.readouterr().err
    assert export.main([str(run)]) == 0
    assert export.main([str(run)]) == 2
    assert "exists already; --overwrite replaces" in capsys.readouterr().err
    assert export.main([str(run), "--overwrite"]) == 0
    assert sorted(p.name for p in root.iterdir()) == ["README.md", "net"]


def test_spread_over_seeds(run, root, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    arguments = [str(run), "--seeds", str(other)]
    assert export.main(arguments) == 2
    assert "`--seeds` must have other seeds" in capsys.readouterr().err
    config = json.loads((run / "config.json").read_text())
    (other / "config.json").write_text(json.dumps({**config, "seed": 1, "decay": 0.5}))
    assert export.main(arguments) == 2
    assert "which differs in decay" in capsys.readouterr().err
    (other / "config.json").write_text(json.dumps({**config, "seed": 1}))
    metrics = json.loads((run / "metrics.json").read_text())
    first = metrics["test"]["accuracy"]
    metrics["test"]["accuracy"] = first + 0.02
    (other / "metrics.json").write_text(json.dumps(metrics))
    assert not root.exists()
    assert export.main(arguments) == 0
    card = json.loads((root / "net" / "card.json").read_text(encoding="utf-8"))
    seeds = card["metrics"]["seeds"]
    assert seeds["seeds"] == [0, 1] and seeds["mean"] == pytest.approx(first + 0.01)
    assert seeds["std"] == pytest.approx(0.02 / 2**0.5)
    row = f"| {first:.4f} | {first + 0.01:.3f} ± 0.014 (2) |"
    assert row in (root / "README.md").read_text()


def test_another_accuracy_than_the_run_is_refused(run, root, tmp_path, capsys):
    other = tmp_path / "other"
    shutil.copytree(run, other)
    folder = other / "saved_model"
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    card["metrics"]["test"]["accuracy"] += 0.01
    zoo.export.write_card(folder, card)
    assert export.main([str(other)]) == 2
    assert "test examples right, and its card says" in capsys.readouterr().err
    assert not root.exists()
