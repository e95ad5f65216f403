import json
import os
import socket
import threading
import time
from collections import Counter
from types import SimpleNamespace

import keras
import keras_tuner
import numpy as np
import pytest

import zoo
from zoo import analysis, datasets, distribution, training, tuning

SPACE = {"gate_bias": tuning.GATE_BIASES}
SOLVER = {
    "learning_rate": tuning.LogRange(1e-3, 1e-1),
    "momentum": [0.8, 0.9],
    "gate_bias": [-1.0, -2.0, -3.0],
}


@pytest.fixture
def trained(monkeypatch):
    """Trains nothing: nets score best at gate bias −4. What was asked for, in order."""
    asked = []

    def train(self, hp, fold, repetition):
        settings = self.hypermodel.settings(hp)
        asked.append((tuple(settings.items()), self._epochs(hp), fold, repetition))
        score = 0.9 - 0.01 * (settings["gate_bias"] + 4) ** 2 + 0.001 * fold
        return {
            "settings": settings,
            "epochs": self._epochs(hp),
            "fold": fold,
            "accuracy": score,
            "loss": 1 - score,
            "state": "trains" if settings["gate_bias"] < -0.5 else "at chance",
            "steps": 10,
            "planned_steps": 10,
        }

    monkeypatch.setattr(tuning.CrossValidation, "_train", train)
    return asked


def make_tuner(directory, search="grid", space=SPACE, trials=None, **arguments):
    arguments = {"epochs": 1, "batch_size": 64, "folds": 2, **arguments}
    seed = arguments.get("seed", 0)
    oracle = tuning.make_oracle(
        search,
        tuning.search_space(space),
        trials=trials,
        epochs=arguments["epochs"],
        seed=seed,
    )
    shape = {"input_shape": (8, 8, 1), "depth": 2, "units": 4}
    images, labels = datasets.arrays("digits", "train")
    return tuning.CrossValidation(
        oracle,
        tuning.GateBiasModel(zoo.highway_mlp, shape),
        images[:200],
        labels[:200],
        directory=directory,
        **arguments,
    )


def plan(tuner, space=SPACE):
    return [tuple(row[name] for name in space) for row in by_number(tuner)]


def by_number(tuner):
    return sorted(tuner.rows(), key=lambda row: row["trial"])


def test_folds():
    labels = np.repeat([0, 1, 2], [10, 7, 5])[np.random.default_rng(0).permutation(22)]
    folds = tuning.stratified_folds(labels, 3)
    assert sorted(np.concatenate(folds)) == list(range(22))
    for name in range(3):
        sizes = [np.sum(labels[fold] == name) for fold in folds]
        assert max(sizes) - min(sizes) <= 1
    again = tuning.stratified_folds(labels, 3)
    assert all(np.array_equal(a, b) for a, b in zip(folds, again, strict=True))
    for count, message in (
        (1, "`folds` must be an integer of at least 2. Received: folds=1"),
        (6, "smallest class, class 2 with 5. Received: folds=6"),
    ):
        with pytest.raises(ValueError, match=message):
            tuning.stratified_folds(labels, count)


@pytest.mark.parametrize(
    "parameters, message",
    [
        ({"depth": [1]}, "`parameters` must hold gate_bias, or .* Received: depth"),
        ({"gate_bias": []}, "`gate_bias` must have at least one value, and each once"),
        ({"gate_bias": [-1, -1]}, "each once. Received: gate_bias=\\[-1, -1\\]"),
        (
            {"gate_bias": [0], "learning_rate": tuning.LogRange(0, 1)},
            "`learning_rate` must range from a positive number to a larger one",
        ),
    ],
)
def test_wrong_space(parameters, message):
    with pytest.raises(ValueError, match=message):
        tuning.search_space(parameters)


@pytest.mark.parametrize(
    "search, trials, message",
    [
        ("grit", None, "`search` must be one of grid, "),
        ("random", None, "`trials` must be given for a random search"),
        ("random", 0, "`trials` must be an integer of at least 1"),
        ("hyperband", 3, "`trials` is not for a hyperband search"),
    ],
)
def test_wrong_oracle(search, trials, message):
    with pytest.raises(ValueError, match=message):
        tuning.make_oracle(search, tuning.search_space(SPACE), trials=trials)


def test_settings_reach_net_and_solver():
    nets = tuning.GateBiasModel(zoo.highway_mlp, {"input_shape": (4,), "depth": 9})
    nets.steps = 7
    space = {"gate_bias": [-3.5], "depth": [4], "units": [6], "activation": ["tanh"]}
    space |= {"learning_rate": [0.25], "momentum": [0.5], "decay_rate": [0.75]}
    model = nets.build(tuning.search_space(space))
    assert np.all(analysis.gate_biases(model) == -3.5)
    assert analysis.gate_biases(model).shape == (3, 6)
    assert model.get_layer("highway_01").activation is keras.activations.tanh
    assert model.optimizer.momentum == 0.5
    rate = model.optimizer._learning_rate
    assert [float(rate(step)) for step in (0, 7)] == [0.25, 0.1875]


def test_a_gate_bias_for_each_stage():
    stages = {"stages": [(2, 3), (3, 1)], "input_shape": (8, 8, 1)}
    nets = tuning.GateBiasModel(zoo.highway_cnn, stages)
    model = nets.build(
        tuning.search_space({"gate_bias_1": [-1.0], "gate_bias_2": [-4.0]})
    )
    biases = [set(np.ravel(row)) for row in analysis.gate_biases(model)]
    assert biases == [{-1.0}] * 3 + [{-4.0}]
    with pytest.raises(ValueError, match="`gate_bias` must be a number, or one for e"):
        nets.build(tuning.search_space({"gate_bias_1": [-1.0]}))
    with pytest.raises(ValueError, match="without a gap. Received: no gate_bias_2"):
        nets.build(tuning.search_space({"gate_bias_1": [-1.0], "gate_bias_3": [-1.0]}))


@pytest.mark.parametrize("search", tuning.SEARCHES)
def test_searches(search, trained, tmp_path):
    trials = None if search in ("grid", "hyperband") else 6
    space = SPACE if search == "grid" else SOLVER
    arguments = {"search": search, "space": space, "trials": trials, "epochs": 4}
    tuner = make_tuner(tmp_path / "a", **arguments)
    tuner.search()
    rows = tuner.rows()
    expected = tuning.planned_epochs(
        search, tuning.search_space(space), trials=trials, epochs=4
    )
    assert [row["epochs"] for row in by_number(tuner)] == expected
    scores = [row["accuracy"] for row in rows]
    assert scores == sorted(scores, reverse=True)
    for row in rows:
        mean = 0.9 - 0.01 * (row["gate_bias"] + 4) ** 2 + 0.0005
        assert row["accuracy"] == pytest.approx(mean)
        assert row["std"] == pytest.approx(0.001 / 2**0.5)
    if search == "grid":
        assert plan(tuner) == [(bias,) for bias in tuning.GATE_BIASES]
        assert rows[0]["gate_bias"] == -4 and rows[0]["trains"] == 2
        assert (rows[-1]["gate_bias"], rows[-1]["trains"]) == (-10, 2)
        assert tuner.get_best_hyperparameters()[0].values == {"gate_bias": -4.0}
    else:
        again = make_tuner(tmp_path / "b", **arguments)  # seed 0 is a seed
        again.search()
        assert plan(again, space) == plan(tuner, space)
        other = make_tuner(tmp_path / "c", seed=1, **arguments)
        other.search()
        assert plan(other, space) != plan(tuner, space)


@pytest.mark.parametrize("search", tuning.SEARCHES)
@pytest.mark.parametrize("nets", [4, 5])  # after trial 2 of two folds, and within 3
def test_a_stopped_search_goes_on(search, nets, trained, tmp_path, monkeypatch):
    trials = None if search in ("grid", "hyperband") else 6
    space = {"gate_bias": [0.0, -1.0, -2.0, -3.0, -4.0, -5.0]}
    space = space if search == "grid" else SOLVER
    arguments = {"search": search, "space": space, "trials": trials, "epochs": 4}
    whole = make_tuner(tmp_path / "whole", **arguments)
    whole.search()
    wanted = list(trained)

    trained.clear()
    train = tuning.CrossValidation._train

    def stop(self, *which):
        if len(trained) == nets:
            raise KeyboardInterrupt
        return train(self, *which)

    with monkeypatch.context() as patch:
        patch.setattr(tuning.CrossValidation, "_train", stop)
        with pytest.raises(KeyboardInterrupt):
            make_tuner(tmp_path / "stopped", **arguments).search()
    resumed = make_tuner(tmp_path / "stopped", **arguments)
    resumed.search()
    assert trained == wanted  # each net once
    assert resumed.rows() == whole.rows()
    more = {**arguments, "trials": 8}
    if search == "random":  # the number of trials may grow
        longer = make_tuner(tmp_path / "stopped", **more)
        longer.search()
        assert plan(longer, space)[:6] == plan(whole, space)
        assert max(Counter(trained).values()) == 1


def test_failures(trained, tmp_path, monkeypatch):
    train = tuning.CrossValidation._train

    def fail(self, hp, fold, repetition):
        if hp.values["gate_bias"] in failing:
            raise MemoryError("no room\nat all")
        return train(self, hp, fold, repetition)

    monkeypatch.setattr(tuning.CrossValidation, "_train", fail)
    failing = (-1.0, -2.0, -3.0, -4.0)
    tuner = make_tuner(tmp_path / "some")
    tuner.search()
    rows = tuner.rows()
    assert [row["gate_bias"] for row in rows[7:]] == list(failing)
    assert {row["message"] for row in rows[7:]} == {"MemoryError: no room"}
    assert all(row["accuracy"] is None for row in rows[7:])
    assert rows[0]["gate_bias"] == -5
    assert "no room" in (tmp_path / "some" / "failures" / "0001.txt").read_text()
    failing = tuning.GATE_BIASES
    with pytest.raises(RuntimeError, match="no trial was completed. .* MemoryError: n"):
        make_tuner(tmp_path / "all").search()


def test_directory_of_another_search(trained, tmp_path):
    make_tuner(tmp_path / "a").search()
    fields = [
        ({"space": {"gate_bias": [0.0, -1.0]}}, "space is .* there and .* here"),
        ({"epochs": 2}, "epochs is 1 there and 2 here"),
        ({"folds": 3}, "folds is 2 there and 3 here"),
        ({"description": {"x": 1}}, "description is None there and {'x': 1} here"),
    ]
    before = sorted(tmp_path.rglob("*"))
    for changes, message in fields:
        with pytest.raises(ValueError, match=f"holds another search: {message}"):
            make_tuner(tmp_path / "a", **changes)
    assert sorted(tmp_path.rglob("*")) == before
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "letter.txt").touch()
    with pytest.raises(ValueError, match="holds other files and no search.json"):
        make_tuner(tmp_path / "b")


def test_real_nets(tmp_path):
    """Two folds, trained: held-out examples, repeatable scores, HParams, a strategy."""
    space = {"gate_bias": [-1.0]}
    seen = []
    fit = keras.Model.fit

    def look(self, data, **kwargs):
        batches = data.take(kwargs["steps_per_epoch"])
        seen.append({image.tobytes() for x, _ in batches for image in x.numpy()})
        return fit(self, data, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(keras.Model, "fit", look)
        tuner = make_tuner(tmp_path / "a", space=space, epochs=2, at_chance=None)
        tuner.search()
    for fold, images in enumerate(seen):
        held_out = {tuner.images[i].tobytes() for i in tuner.folds[fold]}
        assert images and not images & held_out
    assert all(0 <= r["accuracy"] <= 1 for r in tuner.results())
    assert all(len(r["training_loss"]) == 2 for r in tuner.results())
    again = make_tuner(tmp_path / "b", space=space, epochs=2, at_chance=None)
    again.hypermodel.strategy = distribution.strategy("mirrored")
    again.search()
    for mine, other in zip(tuner.results(), again.results(), strict=True):
        assert other["training_loss"] == pytest.approx(mine["training_loss"], rel=1e-5)
        assert other["accuracy"] == pytest.approx(mine["accuracy"])
    (events,) = (tmp_path / "a" / "tensorboard" / "0000").iterdir()
    assert b"_hparams_/session_start_info" in events.read_bytes()


class Net:
    """Logits of one class after the other, of a given spread over images."""

    stop_training = False
    losses = [0.25]  # of weight decay

    def __init__(self, spreads):
        self.spreads = iter(spreads)

    def __call__(self, images, training):
        return next(self.spreads) * np.arange(len(images))[:, None] * np.ones((1, 2))


@pytest.mark.parametrize(
    "losses, spreads, state, epochs",
    [
        ([0.70, 0.69, 0.69, 0.69], [1, 2], "at chance", 2),
        ([0.70, 0.69, 0.69, 0.69], [1, 9, 3], "at chance", 3),
        ([0.70, 0.69, 0.69, 0.50], [1, 9, 9], "trains", 4),
        ([0.60, 0.69, 0.69, 0.69], [1], "trains", 4),
        ([0.70, np.nan], [1], "diverged", 2),
    ],
)
def test_stop_at_chance(losses, spreads, state, epochs):
    watch = training.StopAtChance(np.zeros((4, 1)), [0, 1, 0, 1], steps=20)
    assert watch.chance == pytest.approx(np.log(2))
    watch.set_model(Net(spreads))
    watch.set_params({"steps": 10})
    watch.on_train_begin()
    for epoch, loss in enumerate(losses):
        watch.on_epoch_end(epoch, {"loss": loss + 0.25})
        if watch.model.stop_training:
            break
    assert (watch.state, watch.done) == (state, 10 * epochs)


def test_saved():
    ended = {"steps": 10, "planned_steps": 30, "step_seconds": 0.5}
    whole = {"steps": 30, "planned_steps": 30, "step_seconds": 0.5}
    assert tuning.saved([ended, whole]) == (1, 20 / 60, 10.0)


def test_importance():
    rng = np.random.default_rng(0)
    rows = [
        {"a": float(a), "b": float(b), "word": str(w), "accuracy": a + 0.1 * b}
        for a, b, w in zip(
            *rng.random((2, 60)), rng.choice(["x", "y"], 60), strict=True
        )
    ]
    rows.append({"a": 0.0, "b": 0.0, "word": "x", "accuracy": None})
    shares = tuning.importance(rows, ["word", "b", "a"])
    assert list(shares)[0] == "a" and shares["a"] > 0.9
    assert sum(shares.values()) == pytest.approx(1)
    assert shares == tuning.importance(rows, ["word", "b", "a"])
    assert tuning.importance(rows, ["a"]) == {}


@pytest.fixture
def cluster(monkeypatch):
    """Sets the environment of chief and workers, all in this process."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("KERASTUNER_ORACLE_IP", "127.0.0.1")
    monkeypatch.setenv("KERASTUNER_ORACLE_PORT", str(port))
    return lambda name: monkeypatch.setenv("KERASTUNER_TUNER_ID", name)


def test_chief_and_workers(trained, tmp_path, cluster):
    """A worker that takes a trial and dies; the other one does all of them."""
    alone = tmp_path / "alone"
    names = [n for n in os.environ if n.startswith("KERASTUNER")]
    kept = {name: os.environ.pop(name) for name in names}
    single = make_tuner(alone)
    single.search()
    os.environ.update(kept)
    trained.clear()

    cluster("chief")
    chief = make_tuner(tmp_path / "all", silence=5, patience=60)
    errors = []

    def serve():
        try:
            chief.search()
        except Exception as error:
            errors.append(error)

    server = threading.Thread(target=serve)
    server.start()
    time.sleep(0.5)  # it has read its role
    cluster("worker_1")
    dead = make_tuner(tmp_path / "all", silence=60)
    taken = dead.oracle.create_trial("worker_1")
    assert taken.hyperparameters.values == {"gate_bias": 0.0}
    cluster("worker_2")
    make_tuner(tmp_path / "all", silence=60).search()
    server.join(30)
    assert not server.is_alive() and not errors
    assert {(r["gate_bias"], r["accuracy"]) for r in chief.rows()} == {
        (r["gate_bias"], r["accuracy"]) for r in single.rows()
    }
    assert max(Counter(trained).values()) == 1


def test_a_chief_without_workers(tmp_path, cluster):
    cluster("chief")
    tuner = make_tuner(tmp_path, patience=0.5)
    with pytest.raises(RuntimeError, match="no worker for 0 s|no worker for 1 s"):
        tuner.search()


def test_a_worker_whose_chief_is_silent(tmp_path, monkeypatch, capsys):
    def leave(code):
        raise SystemExit(code)

    monkeypatch.setattr(tuning.os, "_exit", leave)
    worker = SimpleNamespace(
        tuner_id="worker_1",
        role="worker",
        silence=0.3,
        _sign=lambda name: tmp_path / "alive" / name,
    )
    with pytest.raises(SystemExit, match="3"):
        tuning.CrossValidation._live(worker)
    assert "worker_1: no sign of the chief for 0 s" in capsys.readouterr().err


def test_a_damaged_result_is_trained_again(trained, tmp_path):
    make_tuner(tmp_path).search()
    count = len(trained)
    path = min((tmp_path / "nets").iterdir())
    path.write_text(path.read_text()[:20])
    make_tuner(tmp_path).search()
    assert len(trained) == count + 1
    assert json.loads(path.read_text())["planned_steps"] == 10


def test_oracles_of_keras_tuner_are_taken_as_they_are(trained, tmp_path):
    space = tuning.search_space({"gate_bias": [-1.0, -2.0]})
    objective = keras_tuner.Objective("accuracy", "max")
    oracle = keras_tuner.oracles.RandomSearchOracle(
        objective, max_trials=2, hyperparameters=space, seed=3
    )
    images, labels = datasets.arrays("digits", "train")
    tuner = tuning.CrossValidation(
        oracle,
        tuning.GateBiasModel(zoo.highway_mlp, {"input_shape": (8, 8, 1), "depth": 2}),
        images,
        labels,
        directory=tmp_path,
        epochs=1,
        batch_size=64,
    )
    tuner.search()
    assert sorted(plan(tuner)) == [(-2.0,), (-1.0,)]
