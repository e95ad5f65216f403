"""Peers are the same nets; the benchmark times them and writes its table."""

import csv
import importlib
import json
from pathlib import Path

import keras
import pytest

from recipes import benchmark
from recipes.peers import zoo_keras

NETS = {
    "mlp": {"kind": "mlp", "depth": 12, "batch": 16},
    "resnet": {"kind": "resnet", "depth": 14, "batch": 4},
}


PAIRS = [
    (name, kind)
    for name, (_, _, _, kinds, _) in benchmark.PEERS.items()
    for kind in kinds or NETS  # "zoo, remat" is asked for by name alone
    if "compiled" not in name  # a minute of compilation
]


@pytest.mark.parametrize(("name", "kind"), PAIRS)
def test_a_peer_has_the_zoo_s_losses(name, kind):
    module, options, package, _, _ = benchmark.PEERS[name]
    pytest.importorskip(package)
    peer = importlib.import_module(f"recipes.peers.{module}")
    net = NETS[kind]
    batch = benchmark.make_batch(net)
    # A draw where no ReLU comes within rounding of 0, which would move later losses.
    keras.utils.set_random_seed(2)
    arrays = zoo_keras.arrays_of(zoo_keras.build(net))
    keras.utils.set_random_seed(1)  # weights come from the arrays alone
    ours = zoo_keras.start(net, arrays, batch)
    theirs = peer.start(net, arrays, batch, **options)
    for _ in range(3):  # first loss, and losses after training steps
        assert abs(ours(1) - theirs(1)) < 1e-5 * net["depth"]


def test_depth_writes_table_and_plot(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(benchmark, "OUT", tmp_path)
    arguments = "depth --nets mlp_10 --turns 1 --seconds 0.1 --peers"
    assert benchmark.main([*arguments.split(), "Keras unrolled"]) == 0
    assert "zoo step ratio" in capsys.readouterr().out
    with open(tmp_path / "depth" / "table.csv", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["peer"] for row in rows] == ["zoo", "Keras unrolled"]
    assert all(float(row["step_ms"]) > 0 for row in rows)
    assert float(rows[0]["zoo_step_ratio"]) == 1
    assert json.loads((tmp_path / "depth" / "table.json").read_text())["cores"] > 0
    assert (tmp_path / "depth" / "plot.png").read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["dept"], "`benchmark` must be one of depth"),
        (["depth", "--nets", "mlp_9"], "`--nets` must be one of mlp_900"),
        (["depth", "--turns", "0"], "`--turns` must be an integer of at least 1"),
    ],
)
def test_wrong_input(arguments, message, capsys):
    assert benchmark.main(arguments) == 2
    assert message in capsys.readouterr().err


class FakeWorkers:
    """Leaves the history of a run: an epoch takes one worker alone 4 s, one of two
    apart, which has half of the images, 2.5 s, and two together 3.2 s."""

    started = []

    def __init__(self, command, count, logs, cores, first, quiet):
        assert cores == 1 and quiet
        self.command, self.count, self.logs = command, count, [logs]
        words = dict(w.split("=") for w in command if "=" in w)
        self.images = int(words["train_images"])
        self.started.append((command[2], int(words["batch_size"]), count, first))

    def __enter__(self):
        directory = Path(self.command[self.command.index("--run-dir") + 1])
        directory.mkdir()
        whole = 1280 if self.command[2] == "highway_mlp_digits_50" else 2560
        alone = 2.5 if self.images < whole else 4.0
        seconds = 3.2 if self.count == 2 else alone
        rows = ["epoch,seconds,loss", "1,100,1", f"2,{seconds},1", f"3,{seconds},1"]
        (directory / "history.csv").write_text("\n".join(rows) + "\n")
        return self

    def __exit__(self, *exception):
        pass

    def wait(self):
        return 0


def test_workers(tmp_path, monkeypatch):
    monkeypatch.setattr(benchmark, "OUT", tmp_path)
    monkeypatch.setattr("recipes.launch.Workers", FakeWorkers)
    assert benchmark.main(["workers", "--turns", "2"]) == 0
    rows = json.loads((tmp_path / "workers" / "table.json").read_text())["rows"]
    assert [row["workers"] for row in rows] == ["1 alone", "2 apart", "2 together"] * 3
    assert [row["batch"] for row in rows[::3]] == [64, 128, 256]
    assert FakeWorkers.started[4:8] == [
        ("preact_resnet_cifar10_20", 128, 1, 0),
        ("preact_resnet_cifar10_20", 64, 1, 0),
        ("preact_resnet_cifar10_20", 64, 1, 1),
        ("preact_resnet_cifar10_20", 128, 2, 0),
    ]
    assert [row["efficiency"] for row in rows] == [1, 0.8, 0.625] * 3
    assert [row["images_per_s"] for row in rows[:3]] == [320, 512, 400]
