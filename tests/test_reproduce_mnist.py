"""The tables on MNIST, on made-up images and tiny nets."""

import pytest
from test_reproduce import table

from recipes import reproduce
from recipes.tables import runs, very_deep


@pytest.fixture(autouse=True)
def small(made_up_data, tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "ROOT", tmp_path)


def test_depth(tmp_path, monkeypatch, capsys):
    whole = very_deep.mnist_mlp

    def tiny(kind, depth, epochs, settings):
        config = whole(kind, depth, epochs, settings)
        return config.replace(model={"depth": 1 + depth // 10, "units": 3})

    monkeypatch.setattr(very_deep, "mnist_mlp", tiny)
    monkeypatch.setattr(very_deep, "DEPTHS", (10, 100))
    monkeypatch.setattr(very_deep, "TRIALS", {"small": 2})
    monkeypatch.setattr(very_deep, "SEARCH_EPOCHS", {"small": 1})
    monkeypatch.setattr(very_deep, "EPOCHS", {"small": 2})
    assert reproduce.main(["mnist_depth", "--budget", "small"]) == 0
    rows = table(tmp_path / "mnist_depth_small")
    assert [(row["net"], row["depth"]) for row in rows] == [
        ("plain", 10),
        ("highway", 10),
        ("plain", 100),
        ("highway", 100),
    ]
    assert all(row["final training loss"] > 0 for row in rows)
    assert all(-10 <= row["gate_bias"] <= -1 for row in rows if row["net"] == "highway")
    assert "highway 100 ÷ highway 10: " in capsys.readouterr().out
    assert len(list(tmp_path.glob("runs/*_trial*"))) == 8


def test_settings_are_the_papers_range_and_repeat():
    drawn = [very_deep.draw_settings("highway", 50, n) for n in range(200)]
    assert drawn == [very_deep.draw_settings("highway", 50, n) for n in range(200)]
    assert {s["gate_bias"] for s in drawn} == {float(-b) for b in range(1, 11)}
    assert {s["activation"] for s in drawn} == {"relu", "tanh"}
    rates = [s["learning_rate"] for s in drawn]
    assert 1e-3 <= min(rates) < 2e-3 and 5e-2 < max(rates) <= 1e-1
    assert "gate_bias" not in very_deep.draw_settings("plain", 50, 0)


def test_depth_study_has_the_papers_nets():
    from zoo import models

    counts = {
        "highway": (85_660, 136_660, 289_660, 544_660),
        "plain": (102_463, 153_583, 306_943, 562_543),
    }
    for kind, expected in counts.items():
        settings = very_deep.draw_settings(kind, 10, 0)
        nets = [very_deep.mnist_mlp(kind, d, 1, settings) for d in very_deep.DEPTHS]
        found = [getattr(models, c.builder)(**c.model).count_params() for c in nets]
        assert tuple(found) == expected


def test_steps_to_a_loss():
    assert very_deep.steps_to([[0.5, 0.05, 0.01], [0.09, 0.1, 0.1]], 0.1, 600) == 900
    assert very_deep.steps_to([[0.5, 0.05], [0.5, 0.2]], 0.1, 600) is None


def test_conv_and_init_build_their_runs(tmp_path, monkeypatch):
    trained = []

    def metrics(self, config, directory):
        trained.append(config)
        return {"test": {"accuracy": 0.5}, "parameters": 1}

    monkeypatch.setattr(runs.Runs, "_metrics", metrics)  # nothing is trained
    for budget in ("small", "full"):
        assert reproduce.main(["mnist_conv", "--budget", budget, "--seeds", "1"]) == 0
    assert [config.epochs for config in trained] == [30, 30, 300, 300]
    authors = trained[-1]
    assert authors.schedule == {"name": "step", "boundaries": [60_000, 120_000]}
    assert authors.optimizer["learning_rate"] == 0.01
    assert authors.dtype_policy == "float32"
    del trained[:]
    assert reproduce.main(["init_activation", "--seeds", "1"]) == 0
    assert len(trained) == 2 * 2 * 2 * 4
    rows = table(tmp_path / "init_activation")
    assert len({tuple(row.values()) for row in rows}) == 32
