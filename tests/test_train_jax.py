"""Recipes on JAX, over four simulated devices.

Run as a script, with KERAS_BACKEND=jax, this file trains what the tests look at.
"""

import contextlib
import importlib.util
import json
import os
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

from recipes import train
from recipes.configs import Config
from zoo import distribution

if importlib.util.find_spec("jax") is None:
    pytest.skip("jax is an extra", allow_module_level=True)

CONFIG = Config(
    builder="highway_cnn",
    model={
        "input_shape": (8, 8, 1),
        "stages": [(4, 1)],
        "dropout": 0.2,
    },
    dataset="digits",
    epochs=2,
    batch_size=32,
    optimizer={"name": "sgd", "learning_rate": 0.02, "momentum": 0.9},
    train_images=140,  # four batches, and one of 12; 143 are there for validation
    train_split="train",
    validate=True,
)


def run(folder, name, **changes):
    """A run in the folder; what was printed goes into a file."""
    with open(folder / f"{name}.txt", "w") as file, contextlib.redirect_stdout(file):
        run = train.Run(CONFIG.replace(**changes), folder / name, name, every=2)
        if name == "stopped":
            steps = iter(range(100))
            count = keras.callbacks.LambdaCallback(
                on_train_batch_end=lambda batch, logs: next(steps) == 6 and run.stop()
            )
            run._watch_gates = lambda: [count]
            with contextlib.suppress(KeyboardInterrupt):
                run.fit()
            print(run.begun)
            run = train.Run(CONFIG.replace(**changes), folder / name, name, every=2)
        run.fit(artefacts=name == "four")
    np.savez(folder / f"{name}.npz", *run.model.get_weights())
    return run


def work(folder):
    facts = {"devices": len(keras.distribution.list_devices())}
    for name, strategy in (
        ("one", "one_device"),
        ("four", "auto"),
        ("stopped", "mirrored"),
    ):
        done = run(folder, name, strategy=strategy)
        facts[name] = done.strategy.num_replicas_in_sync
    try:
        distribution.strategy("multi_worker")
    except ValueError as error:
        facts["refused"] = str(error)
    facts["odd"] = train.Run(
        CONFIG.replace(train_images=141), folder / "odd", "odd"
    ).steps
    try:
        train.Run(CONFIG.replace(batch_size=30), folder / "not", "not")
    except ValueError as error:
        facts["batch"] = str(error)
    (folder / "facts.json").write_text(json.dumps(facts))


@pytest.fixture(scope="module")
def folder(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("jax")
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        # Every device waits for the others' sums in a thread of its own. By default
        # there are no more threads than devices, and after 40 seconds XLA aborts.
        "NPROC": "16",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=4 "
        "--xla_cpu_collective_call_terminate_timeout_seconds=300",
        "PYTHONPATH": str(pytestconfig.rootpath),
    }
    command = [sys.executable, __file__, str(folder)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    return folder


def facts(folder):
    return json.loads((folder / "facts.json").read_text())


def weights(folder, name):
    with np.load(folder / f"{name}.npz") as file:
        return [file[key] for key in file.files]


def test_all_local_devices_are_used(folder):
    found = facts(folder)
    assert found["devices"] == found["four"] == found["stopped"] == 4
    assert found["one"] == 1
    assert "`strategy` must be 'auto', 'one_device' or 'mirrored'" in found["refused"]


def test_batches_that_devices_cannot_share_out(folder):
    found = facts(folder)
    assert found["odd"] == 4  # without the last 13 images
    assert found["batch"] == (
        "`batch_size` must be a multiple of the 4 devices of JAX. "
        "Received: batch_size=30"
    )
    assert not (folder / "not").exists()


def test_devices_train_like_one(folder):
    one, four = (train.read_history(folder / name) for name in ("one", "four"))
    assert list(one) == list(four)
    for key in ("loss", "val_loss"):
        assert np.allclose(one[key], four[key], rtol=1e-3), key
    assert np.isclose(one["loss"][0], four["loss"][0], rtol=1e-5)


def test_stopped_run_goes_on(folder):
    """Bit for bit, from the middle of the second epoch."""
    said = (folder / "stopped.txt").read_text()
    assert "epoch 1 of 2 and step 2 of 5" in said
    assert all(map(np.array_equal, weights(folder, "four"), weights(folder, "stopped")))


def test_results_without_a_saved_model(folder):
    files = {file.name for file in (folder / "four").iterdir()}
    written = {"config.json", "curves.png", "gates.png", "history.csv", "metrics.json"}
    assert files == written
    metrics = json.loads((folder / "four" / "metrics.json").read_text())
    assert 0 <= metrics["test"]["accuracy"] <= 1
    said = (folder / "four.txt").read_text()
    assert "No SavedModel: only the backend TensorFlow can write one." in said


if __name__ == "__main__":
    work(pathlib.Path(sys.argv[1]))
