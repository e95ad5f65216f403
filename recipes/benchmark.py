"""Depth, speed and memory, side by side with the peers that are installed.

    python recipes/benchmark.py depth               # build, first step, step by depth
    python recipes/benchmark.py depth --nets mlp_900 resnet_110_b32
    python recipes/benchmark.py memory              # ResNet-1001 with and without remat
    python recipes/benchmark.py layer               # one highway layer, width 50 … 1024
    python recipes/benchmark.py input               # data sets against a training step
    python recipes/benchmark.py workers             # one and two, a core each

Every peer runs in a process of its own, from the same weights, on the same batch; its
first loss must equal the zoo's to 1e-5 (ResNet-1001: .02). After a warm-up the peers
take turns, one at a time, and a figure is the median over the turns. Absolute times are
this machine's; compare the ratios. Writes table.csv, table.json and a log-log plot
under runs/benchmark/NAME/. Peers come with `pip install -e '.[bench]'`. Use a quiet
machine.
"""

import argparse
import contextlib
import csv
import importlib.util
import io
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np  # noqa: E402

OUT = pathlib.Path("runs/benchmark")

# Peer: (module of recipes.peers, its options, package it needs, kinds of net, depths
# that it can be asked for in reasonable time).
PEERS = {
    "zoo": ("zoo_keras", {}, "tensorflow", ("mlp", "resnet"), 10**6),
    "zoo, remat": ("zoo_keras", {"remat": True}, "tensorflow", (), 10**6),
    "Keras unrolled": (
        "zoo_keras",
        {"scan": False},
        "tensorflow",
        ("mlp", "resnet"),
        110,
    ),
    "PyTorch": ("torch_eager", {}, "torch", ("mlp", "resnet"), 10**6),
    "PyTorch, channels last": (
        "torch_eager",
        {"channels_last": True},
        "torch",
        ("resnet",),
        10**6,
    ),
    "PyTorch, compiled": ("torch_eager", {"compiled": True}, "torch", ("mlp",), 50),
    "JAX lax.scan": ("jax_scan", {}, "jax", ("mlp",), 10**6),
    "Flax nn.scan": ("flax_scan", {}, "flax", ("mlp",), 10**6),
}

NETS = {
    **{
        f"mlp_{depth}": {"kind": "mlp", "depth": depth, "batch": 128}
        for depth in (10, 50, 100, 900)
    },
    **{
        f"resnet_{depth}_b{batch}": {"kind": "resnet", "depth": depth, "batch": batch}
        for depth, batch in ((20, 128), (110, 32), (110, 128), (1001, 32))
    },
}
# Rounding: float32 puts the first loss .008 off that of float64, here as in PyTorch.
NETS["resnet_1001_b32"]["tolerance"] = 0.02


class Worker:
    """A peer in a process of its own; it works only when told to."""

    def __init__(self, peer, net, folder):
        self.peer = peer
        job = {"peer": peer, "net": net, "folder": str(folder)}
        self.log = open(folder / "log.txt", "a", encoding="utf-8")
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--worker", json.dumps(job)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.log,
            text=True,
        )
        self.started = self._answer()  # {"build", "first", "loss"}

    def run(self, steps):
        """Seconds a step over `steps` steps."""
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self._answer()["seconds"] / steps

    def close(self):
        """Ends the process; its peak memory in bytes, imports included."""
        self.process.stdin.close()
        peak = self._answer()["peak"]
        self.process.wait()
        self.process.stdout.close()
        self.log.close()
        return peak

    def _answer(self):
        for line in self.process.stdout:
            if line.startswith("@"):
                return json.loads(line[1:])
        log = pathlib.Path(self.log.name).read_text(encoding="utf-8")
        raise RuntimeError(f"{self.peer} ended early: {log.strip().splitlines()[-1:]}")


def worker(job):
    """The other end of `Worker`."""
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print goes to the log

    def answer(**values):
        answers.write("@" + json.dumps(values) + "\n")
        answers.flush()

    import importlib

    module, options, *_ = PEERS[job["peer"]]
    peer = importlib.import_module(f"recipes.peers.{module}")
    folder, net = pathlib.Path(job["folder"]), job["net"]
    with np.load(folder / "weights.npz") as file:
        arrays = dict(file)
    batch = make_batch(net)
    began = time.perf_counter()
    run = peer.start(net, arrays, batch, **options)
    built = time.perf_counter()
    loss = run(1)
    first = time.perf_counter()
    answer(build=built - began, first=first - built, loss=loss)
    for line in sys.stdin:
        began = time.perf_counter()
        run(int(line))
        answer(seconds=time.perf_counter() - began)
    answer(peak=peak_memory())


def peak_memory():
    """This process's peak in bytes. Linux' `ru_maxrss` would include the parent's."""
    status = pathlib.Path("/proc/self/status")
    if status.exists():
        line = next(x for x in status.read_text().splitlines() if "VmHWM" in x)
        return 1024 * int(line.split()[1])
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def make_batch(net):
    """(images, labels), made up, the same in every process."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 10, net["batch"]).astype("int32")
    if net["kind"] == "mlp":
        return rng.random((net["batch"], 784), "float32"), labels
    images = rng.integers(0, 256, (net["batch"], 32, 32, 3))
    return images.astype("float32"), labels


def write_weights(net, folder):
    """The zoo's initial weights, for all peers; in a process of its own."""
    code = (
        "import sys, json, keras, numpy as np; sys.path.insert(0, sys.argv[1]); "
        "from recipes.peers import zoo_keras as peer; keras.utils.set_random_seed(0); "
        "model = peer.build(json.loads(sys.argv[2])); "
        "np.savez(sys.argv[3], **peer.arrays_of(model))"
    )
    subprocess.run(
        [
            sys.executable,
            "-c",
            code,
            str(ROOT),
            json.dumps(net),
            folder / "weights.npz",
        ],
        check=True,
        stderr=subprocess.DEVNULL,
    )


def compare(net, peers, turns, seconds):
    """One row a peer: build, first step, step, peak memory, first loss."""
    with tempfile.TemporaryDirectory() as folder, contextlib.ExitStack() as stack:
        folder = pathlib.Path(folder)
        write_weights(net, folder)
        workers, rows = [], []
        for peer in peers:
            print(f"  {peer} …", file=sys.stderr, flush=True)
            one = Worker(peer, net, folder)
            stack.callback(one.process.kill)
            estimate = min(one.run(1) for _ in range(2))  # warm-up
            steps = max(1, round(seconds / estimate))
            workers.append((one, steps, []))
        for _ in range(turns):
            for one, steps, times in workers:
                time.sleep(0.5)  # the last one's idle threads spin for a while
                one.run(1)
                times.append(one.run(steps))
        for one, steps, times in workers:
            rows.append(
                {
                    "peer": one.peer,
                    "depth": net["depth"],
                    "batch": net["batch"],
                    "build_s": one.started["build"],
                    "first_step_s": one.started["first"],
                    "step_ms": 1e3 * statistics.median(times),
                    "step_ms_min": 1e3 * min(times),
                    "step_ms_max": 1e3 * max(times),
                    "turns": turns,
                    "steps_a_turn": steps,
                    "first_loss": one.started["loss"],
                    "peak_mb": one.close() / 2**20,
                }
            )
    ours = rows[0]
    for row in rows:
        if abs(row["first_loss"] - ours["first_loss"]) > net.get("tolerance", 1e-5):
            raise RuntimeError(
                f"{row['peer']} is not the same net: its first loss is "
                f"{row['first_loss']}, the zoo's {ours['first_loss']}."
            )
        start = ours["build_s"] + ours["first_step_s"]
        row["zoo_start_ratio"] = start / (row["build_s"] + row["first_step_s"])
        row["zoo_step_ratio"] = ours["step_ms"] / row["step_ms"]
        row["zoo_memory_ratio"] = ours["peak_mb"] / row["peak_mb"]
    return rows


def installed(peer):
    return importlib.util.find_spec(PEERS[peer][2]) is not None


def depth(args):
    """Build, first step, step and memory by depth; ratios are the zoo ÷ the peer."""
    rows = []
    for name in args.nets or NETS:
        net = NETS[name]
        peers = [
            peer
            for peer, (_, _, _, kinds, deepest) in PEERS.items()
            if net["kind"] in kinds and net["depth"] <= deepest and installed(peer)
        ]
        if args.peers:
            peers = ["zoo", *(p for p in peers if p in args.peers and p != "zoo")]
        print(f"{name}:", file=sys.stderr)
        for row in compare(net, peers, args.turns, args.seconds):
            rows.append({"net": name, **row})
    return rows


def memory(args):
    """ResNet-1001, batch 32: rematerialised against kept inner values."""
    rows = []
    for name in args.nets or ["resnet_1001_b32"]:
        rows += [
            {"net": name, **row}
            for row in compare(
                NETS[name], ["zoo", "zoo, remat"], args.turns, args.seconds
            )
        ]
    return rows


def layer(args):
    """A training step of 10 highway layers by width, looped against unrolled."""
    rows = []
    import keras
    import tensorflow as tf

    from zoo.layers import HighwayDense, ScanLayers

    for width in (50, 128, 256, 512, 1024):
        steps = {}
        for form in ("looped", "unrolled"):
            x = inputs = keras.Input((width,))
            if form == "looped":
                x = ScanLayers(HighwayDense(), 10)(x)
            else:
                for _ in range(10):
                    x = HighwayDense()(x)
            model = keras.Model(inputs, keras.layers.Dense(10)(x))
            model.compile("sgd", "mse")
            batch = np.ones((128, width), "float32"), np.ones((128, 10), "float32")
            data = tf.data.Dataset.from_tensors(batch).repeat()

            def run(steps, model=model, data=data):
                began = time.perf_counter()
                model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False)
                return (time.perf_counter() - began) / steps

            run(3)
            steps[form] = (run, max(1, round(args.seconds / run(5))), [])
        for _ in range(args.turns):
            for run, count, times in steps.values():
                times.append(run(count))
        looped, unrolled = (
            1e3 * statistics.median(steps[form][2]) for form in ("looped", "unrolled")
        )
        rows.append(
            {
                "width": width,
                "looped_ms": looped,
                "unrolled_ms": unrolled,
                "looped_to_unrolled": looped / unrolled,
            }
        )
    return rows


def feed(args):
    """Reading a batch of a data set against a training step that eats it."""
    import tensorflow_datasets  # noqa: F401  its import is no part of the reading

    from zoo import datasets, highway_cnn, highway_mlp, preact_resnet

    eaters = {
        "digits": (64, lambda: highway_mlp((8, 8, 1), depth=51, units=64)),
        "mnist": (100, lambda: highway_cnn("mnist_10")),
        "cifar10": (128, lambda: preact_resnet(20)),
    }
    rows = []
    for name, (size, build) in eaters.items():
        try:
            data = datasets.load(name, "train", size, epochs=None, download=False)
        except (OSError, RuntimeError):
            print(f"{name} is not prepared here; left out", file=sys.stderr)
            continue
        batches = iter(data)
        for _ in range(50):
            next(batches)
        count = 500
        began = time.perf_counter()
        for _ in range(count):
            next(batches)
        read = 1e3 * (time.perf_counter() - began) / count
        model = build()
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(data, steps_per_epoch=3, verbose=0, shuffle=False)
        began = time.perf_counter()
        steps = max(3, int(args.seconds * 10))
        model.fit(data, steps_per_epoch=steps, verbose=0, shuffle=False)
        step = 1e3 * (time.perf_counter() - began) / steps
        rows.append(
            {
                "data set": name,
                "batch": size,
                "read_ms": read,
                "step_ms": step,
                "read_to_step": read / step,
            }
        )
    return rows


def workers(args):
    """Images a second of one worker, of two apart and of two together, a core each.

    Two apart train a net each, on half of the batch: what the machine can give at most.
    """
    rows = []
    for name, sizes, images in (
        ("highway_mlp_digits_50", (64,), 1280),
        ("preact_resnet_cifar10_20", (128, 256), 2560),
    ):
        for size in sizes:
            setting = name, 1 + args.turns
            rates = {
                "alone": _images_a_second(*setting, [(0, 1)], size, images),
                "apart": _images_a_second(
                    *setting, [(0, 1), (1, 1)], size // 2, images // 2
                ),
                "together": _images_a_second(*setting, [(0, 2)], size, images),
            }
            for kind, rate in rates.items():
                count = 1 if kind == "alone" else 2
                rows.append(
                    {
                        "net": name,
                        "batch": size,
                        "workers": f"{count} {kind}",
                        "images_per_s": rate,
                        "efficiency": rate / rates["alone"] / count,
                    }
                )
    return rows


def _images_a_second(name, epochs, teams, size, images):
    """Sum over the teams, each (first core, workers), that train at the same time."""
    from recipes import launch, train

    command = [sys.executable, str(ROOT / "recipes" / "train.py"), name]
    command += ["--epochs", str(epochs)]
    command += ["--set", f"train_images={images}", "--set", f"batch_size={size}"]
    with contextlib.ExitStack() as stack:
        places, running = [], []
        for first, count in teams:
            place = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            team = launch.Workers(
                [*command, "--run-dir", str(place / "run")],
                count,
                place,
                cores=1,
                first=first,
                quiet=True,
            )
            places.append(place)
            running.append(stack.enter_context(team))
        for team in running:
            if team.wait():
                raise RuntimeError(pathlib.Path(team.logs[0]).read_text())
        seconds = [train.read_history(place / "run")["seconds"] for place in places]
    return sum(images / statistics.median(times[1:]) for times in seconds)


BENCHMARKS = {
    "depth": depth,
    "layer": layer,
    "input": feed,
    "memory": memory,
    "workers": workers,
}


def plot(rows, path):
    """Seconds to the first step, and a step, by depth on log axes."""
    from matplotlib.figure import Figure

    from zoo.analysis import plots

    colours = ("#0072B2", "#E69F00", "#D55E00", "#CC79A7", "#009E73", "#56B4E9")
    kinds = [k for k in ("mlp", "resnet") if any(k in row["net"] for row in rows)]
    figure = Figure(figsize=(10, 3.9 * len(kinds)), layout="constrained")
    grid = figure.subplots(len(kinds), 2, squeeze=False)
    titles = {"mlp": "Highway MLP, width 50, batch 128", "resnet": "ResNet, batch 32"}
    for axes, kind in zip(grid, kinds, strict=True):
        of_kind = [
            row
            for row in rows
            if kind in row["net"] and (kind == "mlp" or row["batch"] == 32)
        ] or [row for row in rows if kind in row["net"]]
        for i, peer in enumerate(dict.fromkeys(row["peer"] for row in of_kind)):
            mine = [row for row in of_kind if row["peer"] == peer]
            depths = [row["depth"] for row in mine]
            start = [row["build_s"] + row["first_step_s"] for row in mine]
            step = [row["step_ms"] for row in mine]
            for axis, values in zip(axes, (start, step), strict=True):
                axis.loglog(
                    depths,
                    values,
                    "osD^v*"[i % 6] + "-",
                    color=colours[i % 6],
                    label=peer,
                )
        for axis, label in zip(
            axes, ("s to the end of the first step", "ms a training step"), strict=True
        ):
            axis.set_xlabel("depth")
            axis.set_ylabel(label)
            axis.set_title(titles[kind], fontsize=10)
            axis.grid(alpha=0.3)
        axes[0].legend(fontsize=7)
    plots.save(figure, path)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("benchmark", nargs="?", help=", ".join(BENCHMARKS))
    parser.add_argument("--nets", nargs="+", help=", ".join(NETS))
    parser.add_argument("--peers", nargs="+", help=", ".join(PEERS))
    parser.add_argument("--turns", type=int, default=5, help="repeats a figure (5)")
    parser.add_argument("--seconds", type=float, default=2.0, help="of a turn (2)")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.worker:
        worker(json.loads(args.worker))
        return 0
    from recipes import train
    from zoo._checks import check_int, known

    try:
        known("benchmark", args.benchmark, BENCHMARKS)
        for name in args.nets or ():
            known("--nets", name, NETS)
        for name in args.peers or ():
            known("--peers", name, PEERS)
        check_int("--turns", args.turns)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    rows = BENCHMARKS[args.benchmark](args)
    folder = OUT / args.benchmark
    folder.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    train.write(folder / "table.csv", text.getvalue())
    record = {"benchmark": args.benchmark, "cores": os.cpu_count(), "rows": rows}
    train.write(folder / "table.json", json.dumps(record, indent=2) + "\n")
    if args.benchmark == "depth":
        plot(rows, folder / "plot.png")
    show(rows, BENCHMARKS[args.benchmark].__doc__)
    print(f"In {folder}: {', '.join(sorted(p.name for p in folder.iterdir()))}")
    return 0


def show(rows, title):
    """The table on the screen, ratios first."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    hidden = ("depth", "first_loss", "turns", "steps_a_turn", "step_ms_min")
    columns = [c for c in rows[0] if c not in (*hidden, "step_ms_max")]
    columns.sort(key=lambda c: (not isinstance(rows[0][c], str), "ratio" not in c))
    table = Table(box=box.SIMPLE, title=title)
    for column in columns:
        table.add_column(column.replace("_", " "), overflow="fold")
    for row in rows:
        table.add_row(
            *(f"{v:.3g}" if isinstance(v := row[c], float) else str(v) for c in columns)
        )
    console = Console()
    (console if console.is_terminal else Console(width=150)).print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
