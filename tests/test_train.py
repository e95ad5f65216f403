import csv
import json
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time

import keras
import numpy as np
import pytest

import zoo
from recipes import configs, train
from zoo import datasets, distribution, models, training

SMALL = "highway_mlp_digits_5"


def run(directory, *arguments, name=SMALL):
    return train.main([name, "--run-dir", str(directory), *arguments])


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Directory of a run that no test may change."""
    directory = tmp_path_factory.mktemp("runs") / "finished"
    assert run(directory, "--epochs", "2") == 0
    return directory


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files}


def history(directory):
    with open(directory / "history.csv", newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(directory):
    return zoo.load(directory).get_weights()


def test_run_directory(finished):
    assert {file.name for file in finished.iterdir()} == {
        "config.json",
        "history.csv",
        "metrics.json",
        "curves.png",
        "gates.png",
        "saved_model",
    }
    for figure in ("curves.png", "gates.png"):
        assert (finished / figure).read_bytes().startswith(b"\x89PNG")
    config = json.loads((finished / "config.json").read_text(encoding="utf-8"))
    assert config["epochs"] == 2
    assert config["model.depth"] == 6
    rows = history(finished)
    assert [row["epoch"] for row in rows] == ["1", "2"]
    assert list(rows[0]) == ["epoch", "seconds", "accuracy", "loss"]


def test_metrics(finished):
    metrics = json.loads((finished / "metrics.json").read_text(encoding="utf-8"))
    assert sorted(metrics) == sorted(
        ["name", "test", "validation", "parameters", "epochs", "seconds", "seed"]
        + ["versions"]
    )
    assert metrics["name"] == SMALL
    assert sorted(metrics["test"]) == ["accuracy", "loss"]
    assert metrics["validation"] is None  # trained on train+validation
    assert metrics["parameters"] == 46_410
    assert (metrics["epochs"], metrics["seed"]) == (2, 0)
    assert metrics["seconds"] > 0


def test_saved_model_is_the_net_that_was_measured(finished):
    model = zoo.load(finished)
    metrics = json.loads((finished / "metrics.json").read_text(encoding="utf-8"))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    images, labels = datasets.arrays("digits", "test")
    found = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert np.isclose(found["loss"], metrics["test"]["loss"], rtol=1e-5)
    assert found["accuracy"] == metrics["test"]["accuracy"]


def test_card(finished):
    card = zoo.load_served(finished).card
    assert card["name"] == SMALL
    assert card["dataset"] == "digits"
    assert card["classes"] == list("0123456789")
    assert card["recipe"]["train_split"] == "train+validation"
    metrics = json.loads((finished / "metrics.json").read_text(encoding="utf-8"))
    assert card["metrics"] == metrics


def test_commit(finished, tmp_path):
    assert train.commit(tmp_path) is None
    assert zoo.load_served(finished).card["commit"] == train.commit()
    who = ["-c", "user.name=a", "-c", "user.email=a@b.c"]
    file = tmp_path / "file"
    file.write_text("one")
    for arguments in (["init", "-q"], ["add", "file"], [*who, "commit", "-qm", "one"]):
        subprocess.run(["git", "-C", str(tmp_path), *arguments], check=True)
    assert re.fullmatch("[0-9a-f]{40}", train.commit(tmp_path))
    file.write_text("two")
    assert re.fullmatch("[0-9a-f]{40}[+]", train.commit(tmp_path))


def test_same_seed_gives_the_same_bits(finished, tmp_path):
    assert run(tmp_path / "again", "--epochs", "2") == 0
    assert all(map(np.array_equal, weights(tmp_path / "again"), weights(finished)))
    assert run(tmp_path / "other", "--epochs", "2", "--seed", "1") == 0
    assert not any(map(np.array_equal, weights(tmp_path / "other"), weights(finished)))


@pytest.mark.parametrize("name", [n for n in configs.names() if n != SMALL])
def test_every_config_trains(name, made_up_data, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    shorter = []
    if "fitnet" in name:  # the whitening of such images takes half a minute
        shorter = ["--set", "model.whiten=false", "--set", "train_images=16"]
    if name.startswith("fitnet_cifar10"):
        shorter += ["--set", "hint.epochs=1"]
        teacher = models.fitnet_teacher(0.05)
        place = tmp_path / "runs" / "fitnet_teacher_cifar10_5" / "saved_model"
        zoo.export.export_saved_model(teacher, place)
    assert train.main([name, "--epochs", "1", *shorter]) == 0
    files = {file.name for file in (tmp_path / "runs" / name).iterdir()}
    assert {"metrics.json", "saved_model"} <= files
    assert ("gates.png" in files) == ("highway" in name or "char" in name)
    metrics = json.loads((tmp_path / "runs" / name / "metrics.json").read_text())
    assert ("perplexity" in metrics["test"]) == ("lstm" in name)
    assert ("data_sha256" in metrics) == name.startswith("char_")


def test_validation_split_and_decay(tmp_path):
    changes = ("train_split=train", "decay=1", "model.units=8", "batch_size=512")
    arguments = [part for change in changes for part in ("--set", change)]
    assert run(tmp_path / "run", "--epochs", "1", *arguments) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert sorted(metrics["validation"]) == ["accuracy", "loss"]
    (row,) = history(tmp_path / "run")
    assert metrics["test"]["loss"] < float(row["loss"]) - 0.1  # without the decay


def test_strategy(tmp_path):
    assert run(tmp_path / "run", "--epochs", "1", "--strategy", "mirrored") == 0
    config = json.loads((tmp_path / "run" / "config.json").read_text())
    assert config["strategy"] == "mirrored"


def test_list(capsys):
    assert train.main(["--list"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in configs.names())


def end_after_an_epoch(command, directory, number):
    """What a process printed that got a signal once one more epoch was done."""
    # Where this process ignores Ctrl-C, as a shell's background jobs do, so would that.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    signal.signal(signal.SIGINT, before)
    path, epochs = directory / "history.csv", 0
    before = len(history(directory)) if path.exists() else 0
    with process:
        while epochs <= before:
            assert process.poll() is None, process.stderr.read()
            time.sleep(0.05)
            epochs = len(history(directory)) if path.exists() else 0
        process.send_signal(number)
        out, err = process.communicate(timeout=120)
    assert process.returncode == 128 + number
    assert "Traceback" not in err
    return out


def test_interrupted_run_goes_on(tmp_path, pytestconfig):
    script = str(pytestconfig.rootpath / "recipes" / "train.py")
    slow = ["--epochs", "3", "--set", "batch_size=3"]
    command = [sys.executable, script, SMALL, "--run-dir", str(tmp_path / "run"), *slow]
    for number in (signal.SIGINT, signal.SIGTERM):
        out = end_after_an_epoch(command, tmp_path / "run", number)
        done, step = re.search(
            r"Stopped after epoch ([12]) of 3(?: and step ([\d,]+) of 419)?", out
        ).groups()
        done = int(done)
        place = f"{done} of 3" + (f" and step {step}" if step else "")
        printed = shlex.split(out.strip().splitlines()[-1])
        assert printed == command
    assert not (tmp_path / "run" / "metrics.json").exists()
    first = history(tmp_path / "run")
    assert len(first) == done

    out = subprocess.run(printed, check=True, capture_output=True, text=True).stdout
    assert f"going on after epoch {place}" in out
    assert [row["epoch"] for row in history(tmp_path / "run")] == ["1", "2", "3"]
    assert history(tmp_path / "run")[:done] == first
    assert run(tmp_path / "undisturbed", *slow) == 0
    ours, theirs = weights(tmp_path / "run"), weights(tmp_path / "undisturbed")
    assert all(map(np.array_equal, ours, theirs))
    left = {file.name for file in (tmp_path / "run").iterdir()}
    assert left == {file.name for file in (tmp_path / "undisturbed").iterdir()}


def test_stopped_after_the_last_epoch(tmp_path, monkeypatch, finished):
    """All epochs are done, nothing is measured or written yet."""

    def stop(*args, **kwargs):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(train.Run, "_metrics", stop)
        assert run(tmp_path / "run", "--epochs", "2") == 130
    (tmp_path / "run" / "history.csv").unlink(missing_ok=True)
    assert run(tmp_path / "run", "--epochs", "2") == 0
    assert len(history(tmp_path / "run")) == 2
    assert all(map(np.array_equal, weights(tmp_path / "run"), weights(finished)))


def refused(capsys, arguments, *parts):
    """Checks that a command ends with one sentence that has these parts, in order."""
    assert train.main([str(argument) for argument in arguments]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("error: ")
    assert err.count("\n") == 1
    for part in parts:
        assert part in err
        err = err.split(part, 1)[1]


@pytest.mark.parametrize(
    "arguments, parts",
    [
        (["highway_mlp_digit_5"], ["`name` must be one of highway_mlp_digits_5, "]),
        ([], ["give the name of a config", "--list"]),
        ([SMALL, "--epochs", "0"], ["`epochs`", "at least 1", "epochs=0"]),
        ([SMALL, "--epochs", "-3"], ["`epochs`", "at least 1", "epochs=-3"]),
        ([SMALL, "--seed", "-1"], ["`seed`", "at least 0", "seed=-1"]),
        ([SMALL, "--strategy", "miror"], ["`strategy`", "one of mirrored", "'miror'"]),
        ([SMALL, "--set", "batch_size=0"], ["`batch_size`", "at least 1"]),
        ([SMALL, "--set", "model.depth=0"], ["`depth`", "at least 1", "depth=0"]),
        ([SMALL, "--set", "model.units=0"], ["`units`", "at least 1", "units=0"]),
        ([SMALL, "--set", "model.carry=none"], ["`model.carry`", "carry=none"]),
        ([SMALL, "--set", "model.carry=low"], ["`carry`", "'coupled'", "'low'"]),
        ([SMALL, "--set", "model.activation=rel"], ["activation", "rel"]),
        ([SMALL, "--set", "optimizer.name=adan"], ["optimizer", "adan"]),
        ([SMALL, "--set", "dataset=digit"], ["`dataset` must be one of digits, "]),
        ([SMALL, "--set", "train_split=test"], ["`train_split`", "train+validation"]),
        ([SMALL, "--set", "builder=mlp"], ["`builder`", "highway_mlp", "'mlp'"]),
        ([SMALL, "--set", "decay=-1"], ["`decay`", "0 or more", "-1"]),
        ([SMALL, "--set", "gate_bias=-3"], ["model.gate_bias", "'gate_bias'"]),
        ([SMALL, "--set", "epochs=many"], ["`epochs`", "type int", "epochs=many"]),
        ([SMALL, "--set", "epochs"], ["key=value", "'epochs'"]),
        (
            [SMALL, "--set", "dataset=mnist"],
            ["`model.input_shape`", "(8, 8, 1)", "mnist has (28, 28, 1)"],
        ),
        (
            [SMALL, "--set", "model.num_classes=7"],
            ["`model.num_classes`", "num_classes=7", "digits has 10"],
        ),
    ],
)
def test_wrong_input(arguments, parts, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    refused(capsys, arguments, *parts)
    assert not list(tmp_path.iterdir())


def test_data_that_cannot_be_read(tmp_path, monkeypatch, capsys):
    def load(*args, **kwargs):
        raise FileNotFoundError("Data set 'digits' is not prepared")

    monkeypatch.setattr(datasets, "load", load)
    refused(capsys, [SMALL, "--run-dir", tmp_path / "run"], "'digits' is not prepared")
    assert not list(tmp_path.iterdir())


def test_run_directory_that_cannot_be_made(tmp_path, capsys):
    file = tmp_path / "file"
    file.write_text("mine")
    for directory in (file, file / "below", file / "far" / "below"):
        refused(capsys, [SMALL, "--run-dir", directory], "`--run-dir`", str(directory))
    assert contents(tmp_path) == {file: b"mine"}


def test_run_directory_with_other_files(tmp_path, capsys):
    (tmp_path / "notes.txt").write_text("mine")
    refused(capsys, [SMALL, "--run-dir", tmp_path], str(tmp_path), "other files")
    assert contents(tmp_path) == {tmp_path / "notes.txt": b"mine"}


def test_run_directory_of_another_config(finished, capsys):
    before = contents(finished)
    there = ["--run-dir", finished]
    command = [SMALL, "--epochs", "2", "--seed", "7", *there]
    refused(capsys, command, str(finished), "seed is 0 there and 7 here")
    refused(
        capsys, ["highway_mlp_digits_20", "--epochs", 2, *there], "model.depth is 6"
    )
    assert contents(finished) == before


def test_run_directory_of_a_finished_run(finished, capsys):
    before = contents(finished)
    command = [SMALL, "--epochs", "2", "--run-dir", finished]
    refused(capsys, command, str(finished), "finished", "--run-dir")
    assert contents(finished) == before


@pytest.mark.parametrize("text", ["", "5", '{"seed"'])
def test_run_directory_with_a_damaged_config(text, tmp_path, capsys):
    (tmp_path / "config.json").write_text(text)
    refused(capsys, [SMALL, "--run-dir", tmp_path], "config.json", "read", "--run-dir")
    assert contents(tmp_path) == {tmp_path / "config.json": text.encode()}


def test_full_disk(finished, tmp_path, monkeypatch, capsys):
    """It ends with one sentence; once there is room, the same command goes on."""

    def fail(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("os.fsync", fail)
        assert run(tmp_path / "run", "--epochs", "2") == 1
    err = capsys.readouterr().err
    assert err.startswith("error: [Errno 28] No space left on device. ")
    assert "once it can be written to, the same command goes on:" in err
    assert run(tmp_path / "run", "--epochs", "2") == 0
    assert all(map(np.array_equal, weights(tmp_path / "run"), weights(finished)))


def cut(content):
    return content[: len(content) // 2]


def zero(content):
    return bytes(len(content))


def flip(content):
    middle = len(content) // 2
    return content[:middle] + bytes([content[middle] ^ 0xFF]) + content[middle + 1 :]


def stop(config, directory):
    """Trains up to the sixth step of the second epoch."""
    steps = iter(range(26))
    count = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: next(steps) == 25 and run.stop()
    )
    run = train.Run(config, directory, SMALL, every=2)
    run._watch_gates = lambda: [count]
    with pytest.raises(KeyboardInterrupt):
        run.fit()
    assert run.begun == "epoch 1 of 2 and step 6 of 20"


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was stopped within its second epoch."""
    directory = tmp_path_factory.mktemp("stopped") / "run"
    stop(configs.load(SMALL).replace(epochs=2), directory)
    return directory


STOPPED = [
    "config.json",
    "history.csv",
    "resume-00001-0000004.npz",
    "resume-00001-0000006.npz",
]


def test_stopped_run(stopped):
    assert sorted(file.name for file in stopped.iterdir()) == STOPPED


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        *[("config.json", damage) for damage in (cut, zero, flip)],
        ("history.csv", cut),
        ("resume-00001-0000004.npz", flip),
        *[("resume-00001-0000006.npz", damage) for damage in (cut, zero, flip)],
    ],
)
def test_damaged_file_of_a_stopped_run(
    name, damage, stopped, finished, tmp_path, capsys
):
    """One sentence, or the weights of an undisturbed run."""
    shutil.copytree(stopped, tmp_path / "run")
    file = tmp_path / "run" / name
    file.write_bytes(damage(file.read_bytes()))
    if name == "config.json":
        assert run(tmp_path / "run", "--epochs", "2") == 2
        err = capsys.readouterr().err
        assert err.startswith("error: ") and err.count("\n") == 1
        return
    config = configs.load(SMALL).replace(epochs=2)
    again = train.Run(config, tmp_path / "run", SMALL)
    again.fit(artefacts=False)
    assert all(map(np.array_equal, again.model.get_weights(), weights(finished)))


@pytest.mark.parametrize("damage", [cut, zero, flip])
def test_damaged_results(damage, finished, tmp_path):
    for name, read in (
        ("metrics.json", train.read_metrics),
        ("history.csv", train.read_history),
    ):
        path = tmp_path / name
        path.write_bytes(damage((finished / name).read_bytes()))
        with pytest.raises(ValueError, match=f"{name} cannot be read"):
            read(tmp_path)


def test_mixed_float16_compiled_on_several_replicas(tmp_path, monkeypatch, capsys):
    class Two:
        num_replicas_in_sync = 2

    monkeypatch.setattr(distribution, "strategy", lambda *_: Two())
    changes = ["--set", "dtype_policy=mixed_float16", "--set", "jit_compile=true"]
    command = [SMALL, "--run-dir", tmp_path / "run", *changes]
    refused(capsys, command, "`jit_compile` must be False for mixed_float16", "2 repl")
    assert not (tmp_path / "run").exists()


def test_mixed_precision_ends_in_float32(tmp_path):
    """Trained in half precision, tested and exported in full; it goes on exactly."""
    policy = "mixed_float16"
    config = configs.load(SMALL).replace(epochs=2, dtype_policy=policy)
    whole = train.Run(config, tmp_path / "whole", SMALL)
    assert whole.model.dtype_policy.name == policy
    metrics = whole.fit()
    model = zoo.load(tmp_path / "whole")
    assert {layer.dtype_policy.name for layer in model.layers} == {"float32"}
    assert keras.config.dtype_policy().name == "float32"
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    found = model.evaluate(*datasets.arrays("digits", "test"), verbose=0)
    assert np.allclose(found, [metrics["test"][k] for k in ("loss", "accuracy")])

    stop(config, tmp_path / "parts")
    parts = train.Run(config, tmp_path / "parts", SMALL)
    parts.fit(artefacts=False)
    ours, theirs = parts.model.get_weights(), weights(tmp_path / "whole")
    assert all(map(np.array_equal, ours, theirs))


def test_one_error_from_the_shell(tmp_path, pytestconfig):
    script = pytestconfig.rootpath / "recipes" / "train.py"
    command = [sys.executable, str(script), SMALL, "--epochs", "-1"]
    process = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
    assert process.returncode == 2
    assert process.stdout == ""
    assert process.stderr.splitlines()[-1].startswith("error: `epochs`")
    assert "Traceback" not in process.stderr
    assert not list(pathlib.Path(tmp_path).iterdir())


@pytest.mark.parametrize(
    "name, steps",
    [
        ("highway_mlp_digits_5", 100),
        ("highway_mlp_digits_20", 150),  # at the tutorial's gate bias of −2
        ("highway_mlp_digits_50", 100),
    ],
)
def test_defaults_overfit_32_images(name, steps):
    """Wrong defaults of initial draw, rate, scaling or BN show here first."""
    config = configs.load(name)
    model = getattr(models, config.builder)(**config.model)
    training.set_decay(model, config.decay)
    assert config.optimizer == {"name": "adam", "learning_rate": 1e-3}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-3), loss, metrics=["accuracy"])
    images, labels = (part[:32] for part in datasets.arrays("digits", "train"))
    many = np.tile(images, (steps - 1, 1, 1, 1)), np.tile(labels, steps - 1)
    model.fit(*many, batch_size=32, epochs=1, shuffle=False, verbose=0)
    model.reset_metrics()
    _, accuracy = model.train_on_batch(images, labels)
    assert accuracy >= 0.9
    assert model.evaluate(images, labels, verbose=0)[1] >= accuracy - 0.1


def test_a_run_that_diverges_ends_with_an_error(tmp_path, capsys):
    arguments = ["highway_mlp_digits_5", "--epochs", "3", "--run-dir"]
    rate = ["--set", "optimizer.learning_rate=1e30"]
    assert train.main([*arguments, str(tmp_path / "run"), *rate]) == 1
    assert "error: the loss is nan after epoch" in capsys.readouterr().err
    assert not (tmp_path / "run" / train.METRICS).exists()


@pytest.mark.parametrize("field", ["optimizer.learning_rate=0", "decay=-1"])
def test_rates_out_of_range(tmp_path, capsys, field):
    run = str(tmp_path / "run")
    arguments = ["highway_mlp_digits_5", "--run-dir", run, "--set", field]
    assert train.main(arguments) == 2
    name = field.partition("=")[0]
    assert f"error: `{name}` must be a number" in capsys.readouterr().err


def test_gates_are_watched(tmp_path):
    """Every 250 steps: at the end of the 13th epoch of 20 steps."""
    assert run(tmp_path / "run", "--epochs", "14") == 0
    rows = history(tmp_path / "run")
    looked = [row["epoch"] for row in rows if row["gate_mean"]]
    assert looked == ["13"]
    assert -2.5 < float(rows[12]["gate_bias"]) < -1.5
    assert "gate_mean" not in train.read_history(tmp_path / "run")
    assert list((tmp_path / "run" / "tensorboard").iterdir())


def test_decoupled_decay_leaves_biases_alone():
    config = configs.load(SMALL).replace(
        optimizer={"name": "adamw", "learning_rate": 0.1, "weight_decay": 0.5}
    )
    model = models.highway_mlp((8, 8, 1), depth=3, units=4, gate_bias=-3.0)
    before = {w.path: w.numpy() for w in model.trainable_weights}
    optimizer = train.make_optimizer(config, 10, 1)
    optimizer.apply(
        [keras.ops.zeros_like(w) for w in model.trainable_weights],
        model.trainable_weights,
    )
    for w in model.trainable_weights:
        factor = 1.0 if w.path.endswith("bias") else 1 - 0.1 * 0.5
        np.testing.assert_allclose(w.numpy(), factor * before[w.path], rtol=1e-6)


@pytest.mark.parametrize(
    ("epochs", "rates"),
    [
        (95, {0: 0, 250: 0.05, 500: 0.1, 20_000: 0.025, 33_750: 0.0125, 47_500: 0}),
        (5, {0: 0, 250: 0.05, 500: 0.1, 1500: 0.05, 2500: 0}),  # cut before the restart
    ],
)
def test_restarts_count_in_epochs(epochs, rates):
    config = configs.load("highway_cnn_cifar10_11")
    rate = train.make_optimizer(config, 500, epochs)._learning_rate
    found = [float(rate(step)) for step in rates]
    np.testing.assert_allclose(found, list(rates.values()), atol=1e-7)
