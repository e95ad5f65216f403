"""Students of recipes: hints, then distillation, each stage stopped and taken up."""

import csv
import dataclasses
import json

import keras
import numpy as np
import pytest

import zoo
from recipes import teaching, train
from recipes.configs import Config
from zoo.training import Resume

NET = {
    "input_shape": (8, 8, 1),
    "rescale": 1 / 16,
    "head": "gap_dense",
    "head_units": 8,
}
TEACHER = Config(
    builder="plain_cnn",
    model={**NET, "stages": [(8, 1), (12, 1)], "dropout": 0.0},
    dataset="digits",
    epochs=2,
    batch_size=128,
    optimizer={"name": "adam", "learning_rate": 0.01},
)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory):
    """Directory of a finished run that no test may change."""
    directory = tmp_path_factory.mktemp("teacher") / "run"
    train.Run(TEACHER, directory, "teacher").fit()
    return directory


@pytest.fixture(scope="module")
def student(teacher):
    """A thinner net with dropout, whitening and a mean image."""
    model = {**NET, "stages": [(4, 2), (6, 1)], "dropout": 0.2, "mean_image": True}
    return dataclasses.replace(
        TEACHER,
        model=model,
        teacher=str(teacher),
        hint={"epochs": 2, "hint_layer": "pool_1", "guided_layer": "pool_1"},
        distill={"temperature": 3.0, "weight": 4.0, "final_weight": 1.0},
    )


def metrics(directory):
    return json.loads((directory / "metrics.json").read_text(encoding="utf-8"))


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


@pytest.fixture(scope="module")
def whole(student, tmp_path_factory):
    """Directory of a student that was trained without a stop; no test may change it."""
    directory = tmp_path_factory.mktemp("student") / "run"
    train.Run(student, directory, "student").fit()
    return directory


def test_run_of_a_student(whole, student):
    assert {file.name for file in whole.iterdir()} == {
        "config.json",
        "hints.csv",
        "hints.png",
        "history.csv",
        "curves.png",
        "metrics.json",
        "saved_model",
    }
    before, *epochs = rows(whole / "hints.csv")
    assert (before["epoch"], before["loss"]) == ("0", "")
    assert [row["epoch"] for row in epochs] == ["1", "2"]
    found = metrics(whole)
    assert found["hints"] == {
        "epochs": 2,
        "error_before": float(before["val_loss"]),
        "error_after": float(epochs[-1]["val_loss"]),
    }
    assert found["hints"]["error_after"] < 0.8 * found["hints"]["error_before"]
    seconds = [float(r["seconds"]) for r in epochs + rows(whole / "history.csv")]
    assert abs(found["seconds"] - sum(seconds)) < 0.01
    card = zoo.load_served(whole).card
    assert card["built_by"]["arguments"]["stages"] == [[4, 2], [6, 1]]
    assert card["recipe"]["teacher"] == student.teacher
    assert (whole / "hints.png").read_bytes().startswith(b"\x89PNG")


def test_error_before_is_that_of_the_first_weights(whole, student, teacher, tmp_path):
    run = train.Run(student, tmp_path / "fresh", "student")
    images, _ = zoo.datasets.arrays("digits", "validation")
    trained = zoo.load(teacher)
    hint = keras.Model(trained.input, trained.get_layer("pool_1").output)(images)
    found = run.hints.trainer(images)
    error = np.square(np.array(hint) - found).sum((1, 2, 3)).mean() / 2
    assert abs(metrics(whole)["hints"]["error_before"] - error) < 1e-4 * error


@pytest.mark.parametrize(
    "stage, epoch, message",
    [
        ("hints", 1, "epoch 1 of 2 of the hints"),
        ("hints", 2, "epoch 2 of 2 of the hints"),
        ("resume", 1, "epoch 1 of 2"),
    ],
)
def test_goes_on_where_it_was_stopped(
    stage, epoch, message, whole, student, tmp_path, monkeypatch
):
    def stop(self, done, logs=None):
        on_epoch_end(self, done, logs)
        if (self.name, self.epoch) == (stage, epoch):
            raise KeyboardInterrupt

    on_epoch_end = Resume.on_epoch_end
    with monkeypatch.context() as patch:
        patch.setattr(Resume, "on_epoch_end", stop)
        with pytest.raises(KeyboardInterrupt):
            train.Run(student, tmp_path / "run", "student").fit()
    run = train.Run(student, tmp_path / "run", "student")
    assert run.begun == message
    run.fit(artefacts=False)
    weights = run.model.get_weights()
    assert all(map(np.array_equal, weights, zoo.load(whole).get_weights()))
    for name in ("hints.csv", "history.csv"):
        mine, theirs = (
            [{k: v for k, v in row.items() if k != "seconds"} for row in rows(d / name)]
            for d in (tmp_path / "run", whole)
        )
        assert mine == theirs
    assert metrics(tmp_path / "run")["hints"] == metrics(whole)["hints"]
    left = {file.name for file in (tmp_path / "run").iterdir()}
    assert left == {"config.json", "hints.csv", "history.csv", "metrics.json"}


def test_each_stage_alone(student, whole, tmp_path):
    runs = {}
    for name, changes in {
        "distilled": {"hint": {}},
        "hinted": {"distill": {}, "decay": 10.0},
        "alone": {"teacher": None},
    }.items():
        config = dataclasses.replace(student, epochs=1, **changes)
        run = train.Run(config, tmp_path / name, "student")
        runs[name] = run.fit(artefacts=False), run
    assert [("hints" in found) for found, _ in runs.values()] == [False, True, False]
    # the decay is no part of the hints
    assert runs["hinted"][0]["hints"] == metrics(whole)["hints"]
    loss = {n: float(rows(tmp_path / n / "history.csv")[0]["loss"]) for n in runs}
    # λ·H(q, p_τ) is at least λ·H(q), with λ from 4 to 1
    assert loss["distilled"] > 2 * loss["alone"]
    # what is measured at the end is the cross-entropy alone
    images, labels = zoo.datasets.arrays("digits", "test")
    for found, run in runs.values():
        z = run.model.predict(images, verbose=0)
        loss = keras.losses.sparse_categorical_crossentropy(labels, z, from_logits=True)
        assert abs(found["test"]["loss"] - np.mean(loss)) < 1e-4


def test_whitening_is_fitted_once(student, tmp_path):
    model = {"number": 1, "input_shape": (8, 8, 1), "whiten": True}
    config = dataclasses.replace(student, builder="fitnet", model=model, hint={})
    config = dataclasses.replace(config, train_images=200)
    run = train.Run(config, tmp_path / "run", "student")
    whiten = run.model.get_layer("whiten")
    images, _ = zoo.datasets.arrays("digits", "train+validation")
    normalised = run.model.get_layer("contrast")(images[:200].astype("float32"))
    alone = zoo.layers.ZCAWhitening()
    alone.adapt(np.array(normalised))
    assert np.allclose(whiten.matrix, alone.matrix, atol=1e-5)


# Wrong input


def refused(config, directory, *parts):
    """One sentence, before any training."""
    with pytest.raises(ValueError) as error:
        train.Run(config, directory, "student")
    text = str(error.value)
    assert "\n" not in text
    for part in parts:
        assert part in text
        text = text.split(part, 1)[1]
    assert not directory.exists()


def test_missing_teacher(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert train.main(["fitnet_cifar10_11_1"]) == 2
    assert capsys.readouterr().err == (
        "error: `teacher` must be trained before its student, by `python "
        "recipes/train.py fitnet_teacher_cifar10_5`. Received: "
        "teacher='fitnet_teacher_cifar10_5', without a finished run in "
        "runs/fitnet_teacher_cifar10_5\n"
    )
    assert not list(tmp_path.iterdir())


def test_own_run_before_a_release(teacher, tmp_path, monkeypatch, student):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(teaching, "RUNS", teacher.parent)
    assert teaching._find("run") == teacher
    assert teaching.teacher(dataclasses.replace(student, teacher="run")) is not None
    monkeypatch.setattr(teaching, "RUNS", tmp_path)
    released = tmp_path / "released"
    monkeypatch.setenv("ZOO_SAVED_MODELS", str(released))
    zoo.export.export_saved_model(zoo.load(teacher), released / "run")
    assert teaching._find("run") == "run"
    assert teaching.teacher(dataclasses.replace(student, teacher="run")) is not None


@pytest.mark.parametrize(
    "changes, parts",
    [
        ({"teacher": "fitnet_teacher_cifar_5"}, ["fitnet_teacher_cifar10_5, ", "r_5'"]),
        ({"teacher": 5}, ["`teacher` must be", "teacher=5"]),
        ({"hint": {"layer": 1}}, ["`hint` must be one of", "hint='layer'"]),
        ({"hint": {}, "distill": {"tau": 3}}, ["`distill` must be one", "'tau'"]),
        ({"hint": {"hint_layer": 2}}, ["`hint.epochs` must be", "hint.epochs=None"]),
        ({"hint": {"epochs": 0}}, ["`hint.epochs` must be", "hint.epochs=0"]),
        (
            {"hint": {"epochs": 1, "hint_layer": 9}},
            ["`hint_layer` must be", "from 1 to ", "hint_layer=9"],
        ),
        (
            {"hint": {"epochs": 1, "hint_layer": 1, "guided_layer": "pool_1"}},
            ["`guided_layer` must have a map at least as high", "4×4"],
        ),
        ({"distill": {"temperature": 0}}, ["`temperature` must be above 0"]),
        ({"decay_on": "biases"}, ["`decay_on` must be one of", "'biases'"]),
    ],
)
def test_wrong_settings(changes, parts, student, tmp_path):
    config = dataclasses.replace(student, **changes)
    refused(config, tmp_path / "run", *parts)


def test_teacher_of_another_data_set(student, tmp_path, made_up_data):
    model = {**student.model, "input_shape": (28, 28, 1)}
    config = dataclasses.replace(student, dataset="mnist", model=model)
    parts = ["`teacher` must be trained on the data set", "digits", "dataset='mnist'"]
    refused(config, tmp_path / "run", *parts)


def test_teacher_of_other_classes(student, tmp_path):
    net = zoo.plain_cnn(**{**TEACHER.model, "num_classes": 7})
    zoo.export.export_saved_model(net, tmp_path / "net")
    config = dataclasses.replace(student, teacher=str(tmp_path / "net"), hint={})
    parts = ["must give logits", "same classes", "(None, 7) and (None, 10)"]
    refused(config, tmp_path / "run", *parts)


def test_settings_of_the_shell(student):
    assert student.set("hint.epochs=7").hint["epochs"] == 7
    assert student.set("hint.hint_layer=2").hint["hint_layer"] == 2
    assert student.set("distill.temperature=2").distill["temperature"] == 2
    assert student.set("hint=none").hint == {}
    assert student.set("distill=None").distill == {}
    assert student.set("teacher=none").teacher is None
    assert student.set("teacher=runs/mine").teacher == "runs/mine"


def test_a_run_from_before_there_were_teachers_is_known_again(student, tmp_path):
    alone = dataclasses.replace(student, teacher=None, hint={}, distill={})
    held = {
        key: value for key, value in train._plain(alone).items() if key != "teacher"
    }
    (tmp_path / train.CONFIG).write_text(json.dumps(held))
    assert train.holds(tmp_path, alone)
    assert not train.holds(tmp_path, student)
    assert not train.holds(tmp_path, dataclasses.replace(alone, seed=1))
