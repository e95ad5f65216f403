"""A run that is killed at any moment, again and again, ends as if undisturbed.

    PYTHONPATH=. python tests/test_kill.py 20

kills 20 runs at random moments; the test does it twice.
"""

import json
import multiprocessing
import pathlib
import random
import shutil
import sys
import tempfile
import time

import numpy as np

import zoo
from recipes import train
from recipes.configs import Config

# dropout, augmentation, a schedule, momentum, validation, and a state after each step
CONFIG = Config(
    builder="highway_cnn",
    model={
        "input_shape": (8, 8, 1),
        "stages": [(4, 2)],
        "dropout": 0.2,
        "augment": True,
    },
    dataset="digits",
    epochs=3,
    batch_size=32,
    optimizer={"name": "sgd", "learning_rate": 0.1, "momentum": 0.9},
    schedule={"name": "cosine", "warmup_epochs": 1},
    decay=1e-3,
    train_split="train",
    train_images=320,
    validate=True,
)


def run(directory):
    train.Run(CONFIG, directory, "net", every=1).fit()


def process(directory):
    """Starts it in a process that has imported everything already."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__, "zoo.analysis", "zoo.analysis.plots"])
    child = context.Process(target=run, args=(directory,))
    child.start()
    return child


def result(directory):
    """Weights, and what the files say apart from times."""
    metrics = json.loads((directory / "metrics.json").read_text())
    history = train.read_history(directory)
    del metrics["seconds"], history["seconds"]
    return zoo.load(directory).get_weights(), metrics, history


def equal(one, two):
    return all(map(np.array_equal, one[0], two[0])) and one[1:] == two[1:]


def trials(count, folder, seed=0):
    """Whether each of `count` killed runs ended as the undisturbed one, the number of
    kills, and in how many of them a state was half written."""
    began = time.monotonic()
    whole = process(folder / "whole")
    whole.join()
    assert whole.exitcode == 0
    seconds = time.monotonic() - began
    right, draws = result(folder / "whole"), random.Random(seed)
    same, kills, torn = [], 0, 0
    while len(same) < count:
        directory = folder / f"trial_{len(same)}"
        kills_before = kills
        while True:
            child = process(directory)
            child.join(draws.uniform(0, 0.8 * seconds))  # what is left gets shorter
            if child.exitcode == 0:
                break
            if child.exitcode is None:
                kills += 1
                child.kill()
                child.join()
            else:  # it was finished, and killed before it could say so
                assert (directory / "metrics.json").exists()
                break
            torn += any(directory.glob("*.tmp"))
        if kills == kills_before:  # too fast for the draw: not a trial
            shutil.rmtree(directory)
            seconds /= 2
        else:
            same.append(equal(result(directory), right))
    return same, kills, torn


def test_killed_runs_end_like_an_undisturbed_one(tmp_path):
    same, kills, _ = trials(2, tmp_path)
    assert same == [True] * 2
    assert kills >= 2


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        same, kills, torn = trials(int(sys.argv[1]), pathlib.Path(place))
    print(f"{sum(same)} of {len(same)} equal; {kills} kills, {torn} within a write")
