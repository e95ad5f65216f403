"""The tables of the residual nets, on made-up CIFAR images and tiny nets."""

import numpy as np
import pytest
from test_reproduce import table

from recipes import configs, reproduce
from recipes.tables import identity_mappings, runs
from zoo import models
from zoo.models.resnet import TABLE_2


@pytest.fixture(autouse=True)
def small(made_up_data, tmp_path, monkeypatch):
    """Nets of depth 8 (11 with bottlenecks), an epoch of 64 images."""
    whole = identity_mappings.cifar

    def cifar(dataset, depth, budget, skip=2, **model):
        config, slug = whole(dataset, depth, budget, skip, **model)
        depth = 11 if config.model["bottleneck"] else 8
        changes = {"depth": depth, "filters": (2, 3, 4)}
        config = config.replace(model=changes, epochs=1, train_images=64)
        return config, slug

    monkeypatch.setattr(identity_mappings, "cifar", cifar)
    monkeypatch.setattr(runs, "ROOT", tmp_path)


def test_activations(tmp_path, capsys):
    arguments = ["table2_activations", "--budget", "small", "--seeds", "1"]
    assert reproduce.main(arguments) == 0
    rows = table(tmp_path / "table2_activations_small")
    assert [row["unit"] for row in rows] == list(TABLE_2)
    assert [row["printed"] for row in rows] == [6.61, 8.17, 7.84, 6.71, 6.37]
    assert {row["budget"] for row in rows} == {"ResNet-8, 1 epochs of 64 images"}
    assert all(row["fails"] in ("0 of 1", "1 of 1") for row in rows)
    assert "Against 'original'" in capsys.readouterr().out


def test_curves(tmp_path):
    assert reproduce.main(["fig6_curves", "--budget", "small", "--seeds", "1"]) == 0
    rows = table(tmp_path / "fig6_curves_small")
    assert [row["unit"] for row in rows] == ["original", "full pre-activation"]
    assert [row["printed"] for row in rows] == [5.93, 5.46]
    assert all(row["training loss"] > 0 for row in rows)


@pytest.mark.parametrize(
    "name, count",
    [("table1_shortcuts", 12), ("table3_depth", 12), ("table4_cifar", 24)],
)
@pytest.mark.parametrize("budget", ["small", "full"])
def test_every_net_of_a_table_builds(name, count, budget, tmp_path, monkeypatch):
    trained = []

    def metrics(self, config, directory):
        trained.append((config, directory))
        return {"test": {"accuracy": 0.5}, "parameters": 1}

    monkeypatch.setattr(runs.Runs, "_metrics", metrics)  # nothing is trained
    assert reproduce.main([name, "--budget", budget, "--seeds", "1"]) == 0
    suffix = "" if budget == "full" else "_small"
    assert len(table(tmp_path / (name + suffix))) == count
    assert len({directory for _, directory in trained}) == len(trained)
    for config, _ in trained:
        getattr(models, config.builder)(**config.model)


def test_full_budget_is_the_paper(monkeypatch):
    monkeypatch.undo()
    config, _ = identity_mappings.cifar("cifar10", 110, "full")
    assert (config.model["depth"], config.epochs, config.batch_size) == (110, 164, 128)
    assert config.schedule["boundaries"] == [32_000, 48_000]
    assert (config.schedule["warmup_steps"], config.schedule["warmup_rate"]) == (
        400,
        0.01,
    )
    assert (config.decay, config.train_images) == (1e-4, None)
    for depth in (110, 164, 1001):
        config, _ = identity_mappings.cifar("cifar10", depth, "full")
        assert config.model["depth"] == depth
        assert config.model["bottleneck"] == (depth != 110)
    config, _ = identity_mappings.cifar("cifar10", 110, "small")
    assert (config.model["depth"], config.epochs) == (20, 8)
    assert config.train_images == 10_000
    # half and three quarters of 8 · 78 steps of 128 images, and twice as many of 64
    assert config.schedule["boundaries"] == [312, 468]
    assert (config.batch_size, config.rate_batch_size) == (64, 128)


def test_share_that_the_relu_cuts():
    model = models.resnet(26, input_shape=(8, 8, 3), filters=(2, 3, 4))
    images = np.random.default_rng(0).uniform(0, 255, (4, 8, 8, 3))
    shares = identity_mappings.cut_shares(model, images)
    assert shares.shape == (12,)
    assert ((shares > 0) & (shares < 1)).all()
    by_hand = models.convert(model, scan=False)
    assert np.allclose(identity_mappings.cut_shares(by_hand, images), shares, atol=1e-6)
    free = models.preact_resnet(26, input_shape=(8, 8, 3))
    assert not identity_mappings.cut_shares(free, images)[1:].any()


def test_orderings():
    rows = [
        {"net": "a", "error": 6.0, "std": 0.1, "printed": 6.61},
        {"net": "b", "error": 9.0, "std": 0.1, "printed": "fail"},
        {"net": "c", "error": 6.1, "std": 0.1, "printed": 6.37},
        {"net": "d", "error": 7.0, "std": 0.1, "printed": 6.0},
    ]
    assert identity_mappings.orderings(rows) == [
        "Against 'a', as printed: b.",
        "Against 'a', within the spread of the seeds: c.",
        "Against 'a', reversed: d.",
    ]


def test_imagenet_config_is_the_paper():
    config = identity_mappings.imagenet(152, order="original")
    assert config.flat()["model.stem"] == "imagenet"
    assert config.schedule["boundaries"] == [150_150, 300_300]
    assert isinstance(config, configs.Config)
