import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

import zoo
from recipes import launch

ROOT = pathlib.Path(__file__).resolve().parents[1]
TRAIN = str(ROOT / "recipes" / "train.py")
SMALL = ["highway_mlp_digits_5", "--set", "model.units=8", "--set", "batch_size=32"]
SMALL += ["--set", "train_images=256", "--epochs", "3", "--every", "3"]


def test_addresses_differ():
    found = launch.free_addresses(4)
    assert len({*found}) == 4
    assert all(address.startswith("127.0.0.1:") for address in found)


def test_cores_are_shared_out():
    cores = os.sched_getaffinity(0)
    assert launch.cores_of(0, 1) == cores
    parts = [launch.cores_of(i, 2) for i in range(2)]
    if len(cores) > 1:
        assert not parts[0] & parts[1]
        assert len(launch.cores_of(1, 2, each=1)) == 1
    assert launch.cores_of(3, 10 * len(cores)) == cores  # not enough for all


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["0", "--", "train.py"], "N must be at least 1. Received: N=0"),
        (["2", "--", "trian.py", "x"], "must begin with a recipe.*trian.py x"),
    ],
)
def test_wrong_input(arguments, message, capsys):
    assert launch.main(arguments) == 2
    assert re.search(message, capsys.readouterr().err)


SCRIPT = """
import json, os, sys, time
index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
print("worker", index, flush=True)
if index == 1:
    log = os.path.join(os.path.dirname(__file__), "logs", "worker-0.log")
    while not (os.path.exists(log) and os.path.getsize(log)):
        time.sleep(0.01)
    sys.exit(3)
time.sleep(600)
"""


def test_one_that_fails_ends_all(tmp_path, capsys):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    began = time.monotonic()
    with launch.Workers([sys.executable, str(script)], 2, tmp_path / "logs") as team:
        assert team.wait() == 3
    assert time.monotonic() - began < 30
    assert all(process.poll() is not None for process in team.processes)
    out, err = capsys.readouterr()
    assert out == "worker 0\n"  # the chief's
    assert "Worker 1 ended with exit code 3" in err
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "worker 1\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signals_reach_all(number, tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("index == 1", "index == 2"))
    command = [sys.executable, str(ROOT / "recipes" / "launch.py"), "2"]
    command += ["--logs", str(tmp_path / "logs"), "--", str(script)]
    # where this process ignores Ctrl-C, as a shell's background jobs do, so would that
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    signal.signal(signal.SIGINT, before)
    with process:
        assert process.stdout.readline() == "worker 0\n"
        process.send_signal(number)
    assert process.returncode == {signal.SIGTERM: 143, signal.SIGINT: 130}[number]


def test_signal_while_workers_start(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("index == 1", "index == 2"))
    team = launch.Workers([sys.executable, str(script)], 2, tmp_path / "logs")
    cores_of = launch.cores_of

    def cores(index, *rest):
        if index == 0:
            team.send(signal.SIGTERM)
        return cores_of(index, *rest)

    monkeypatch.setattr(launch, "cores_of", cores)
    with team:
        assert team.wait() == 143
    assert len(team.processes) == 2


def test_worker_that_cannot_start(tmp_path, monkeypatch):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.replace("index == 1", "index == 2"))
    team = launch.Workers([sys.executable, str(script)], 2, tmp_path / "logs")
    monkeypatch.setattr(launch, "cores_of", lambda index, *_: {10**6} if index else {0})
    with pytest.raises(OSError), team:
        pass
    assert [process.poll() is None for process in team.processes] == [False, False]


def team(directory, logs):
    """Runs two workers to their end; the exit code."""
    command = [sys.executable, TRAIN, *SMALL, "--run-dir", str(directory)]
    with launch.Workers(command, 2, logs, quiet=True) as workers:
        return workers.wait()


def test_killed_worker(tmp_path):
    """The other ends in bounded time and says why; the same command goes on, and ends
    with the weights of an undisturbed run. Only the chief leaves files."""
    directory, workers = tmp_path / "run", []
    addresses = launch.free_addresses(2)
    for index in range(2):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": addresses}, "task": task}
        workers.append(
            subprocess.Popen(
                [sys.executable, TRAIN, *SMALL, "--run-dir", str(directory)],
                env={**os.environ, "TF_CONFIG": json.dumps(config)},
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
        )
        os.sched_setaffinity(workers[-1].pid, launch.cores_of(index, 2))
    while not list(directory.glob("resume-00001*")):
        assert [w.poll() for w in workers] == [None, None]
        time.sleep(0.02)
    workers[1].kill()
    workers[1].communicate()
    said = workers[0].communicate(timeout=180)[0].splitlines()[-2]
    assert workers[0].returncode == 1
    assert said.startswith("error: Another worker does not answer any more (")
    assert f"{directory} keeps what was reached; the same command on all" in said
    assert not (directory / "metrics.json").exists()

    assert team(directory, tmp_path / "logs") == 0
    log = (tmp_path / "logs" / "worker-1.log").read_text()
    assert "going on after epoch" in log
    assert log.endswith("Worker 1 is done; the chief has the results.\n")
    assert team(tmp_path / "whole", tmp_path / "logs") == 0
    ours, theirs = zoo.load(directory), zoo.load(tmp_path / "whole")
    assert all(map(np.array_equal, ours.get_weights(), theirs.get_weights()))
    files = {file.name for file in directory.iterdir()}
    assert files == {file.name for file in (tmp_path / "whole").iterdir()}
    assert not any(name.startswith("resume") for name in files)
    assert not (tmp_path / "run-worker-1").exists()
