import json
import os
import pathlib
import socket
import subprocess
import sys
import time

import keras
import numpy as np
import pytest
import tensorflow as tf

import zoo
from recipes import launch
from zoo import distribution
from zoo.layers.batch_norm import BatchNorm
from zoo.models._builder import Net


def test_names():
    names = ("auto", "one_device", "mirrored", "multi_worker")
    assert distribution.STRATEGIES == names
    kinds = {
        "auto": tf.distribute.OneDeviceStrategy,
        "one_device": tf.distribute.OneDeviceStrategy,
        "mirrored": tf.distribute.MirroredStrategy,
    }
    if tf.config.list_physical_devices("GPU"):
        del kinds["auto"]
    for name, kind in kinds.items():
        assert isinstance(distribution.strategy(name), kind)


def test_unknown_name_lists_the_nearest_first():
    with pytest.raises(ValueError, match="must be one of mirrored, .*'miror'"):
        distribution.strategy("miror")


# Two logical CPUs, which must be set up before TensorFlow starts.
TWO_CPUS = """
import json, pathlib, sys
import keras, numpy as np, tensorflow as tf
cpu = tf.config.list_physical_devices("CPU")[0]
two = [tf.config.LogicalDeviceConfiguration()] * 2
tf.config.set_logical_device_configuration(cpu, two)
import zoo
from recipes import train
from zoo import analysis, datasets, distribution
from zoo.models._builder import Net

folder = pathlib.Path(sys.argv[1])
facts = {}
facts["auto"] = distribution.strategy().num_replicas_in_sync

def trained(name, build):
    keras.utils.set_random_seed(0)
    strategy = distribution.strategy(name)
    with strategy.scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1, 0.9), loss)
    facts[name] = strategy.num_replicas_in_sync
    data = datasets.load("digits", "train", 64, epochs=None)
    model.fit(data, steps_per_epoch=20, epochs=1, shuffle=False, verbose=0)
    return model

def mlp():
    return zoo.highway_mlp((8, 8, 1), depth=4, units=8, rescale=1 / 16)

def loop():
    return zoo.highway_mlp((8, 8, 1), depth=20, units=8, rescale=1 / 16)

def resnet():
    return zoo.preact_resnet(20, input_shape=(8, 8, 1), scan=True)

for name, build in (("loop", loop), ("mlp", mlp)):
    one, two = trained("one_device", build), trained("mirrored", build)
    np.savez(folder / f"{name}-one.npz", *one.get_weights())
    np.savez(folder / f"{name}-two.npz", *two.get_weights())
    facts[name] = [type(layer).__name__ for layer in two.layers]

images, labels = datasets.arrays("digits", "test")
facts["gates"] = analysis.mean_gates(two, images).shape
facts["lesions"] = analysis.lesions(two, images, labels).loss.shape
mirrored = trained("mirrored", resnet)
facts["resnet"] = [type(layer).__name__ for layer in mirrored.layers]
for replica in (0, 1):
    values = [w.value.values[replica].numpy() for w in mirrored.weights]
    np.savez(folder / f"replica-{replica}.npz", *values)
for name, model in (("mlp", two), ("resnet", mirrored)):
    live = model.predict(images[:8], batch_size=8, verbose=0)
    path = zoo.export.export_saved_model(model, folder / name)
    loaded = zoo.load(path).predict(images[:8], verbose=0)
    served = zoo.load_served(path).serve_uint8(images[:8])["logits"].numpy()
    np.savez(folder / f"{name}.npz", live=live, loaded=loaded, served=served)

def drawn(build, images):
    # whether both replicas draw the same; whether replica 0 does so twice
    keras.utils.set_random_seed(0)
    strategy = distribution.strategy("mirrored")
    with strategy.scope():
        layer = build()
        layer.build(images.shape)
        found = tf.function(lambda: strategy.run(lambda: layer(images, training=True)))
        first, second = (found().values for _ in range(2))
    return [np.array_equal(*first), np.array_equal(first[0], second[0])]

Dropout, ScanLayers = zoo.layers.Dropout, zoo.layers.ScanLayers
ones, ramp = tf.ones((4, 64)), tf.reshape(tf.range(4 * 64.0), (4, 8, 8, 1))
facts["draws"] = {
    "keras": drawn(lambda: keras.layers.Dropout(0.5), ones),
    "dropout": drawn(lambda: Dropout(0.5), ones),
    "loop": drawn(lambda: ScanLayers(Dropout(0.1), 3), ones),
    "compiled loop": drawn(lambda: ScanLayers(Dropout(0.1), 3, jit=True), ones),
    "augmentation": drawn(lambda: zoo.layers.PadCropFlip(), ramp),
}

x, y = datasets.arrays("digits", "train")
x, y = x[:33], y[:33]  # four batches of 8 and one of 1
for name in ("one_device", "mirrored"):
    keras.utils.set_random_seed(0)
    strategy = distribution.strategy(name)
    with strategy.scope():
        # without ReLUs, which round to either side of 0
        inputs = keras.Input((8, 8, 1), name="image")
        norm = zoo.layers.batch_norm.BatchNorm()
        z = norm(keras.layers.Conv2D(6, 3, data_format="channels_last")(inputs))
        z = keras.layers.Flatten()(keras.ops.tanh(z))
        model = Net(inputs, keras.layers.Dense(10)(z))
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.01), loss, metrics=["accuracy"])
    data = tf.data.Dataset.from_tensor_slices((x, y)).batch(8)
    history = model.fit(data, epochs=1, shuffle=False, verbose=0).history
    score = model.evaluate(data, verbose=0)
    whole = model.evaluate(x, y, batch_size=33, verbose=0)  # 17 and 16 images
    rows = len(model.predict(data, verbose=0))
    facts[f"remainder {name}"] = [history["loss"][0], *score, *whole, rows]

rng = np.random.default_rng(0)
images, factors = rng.normal(3, 2, (2, 9, 4, 4, 5)).astype("float32")
for name in ("one_device", "mirrored"):
    keras.utils.set_random_seed(0)
    strategy = distribution.strategy(name)
    with strategy.scope():
        norm = zoo.layers.batch_norm.BatchNorm(gamma_initializer="random_normal")
        norm.build(images.shape)
    parts = [slice(0, 6), slice(6, 9)] if name == "mirrored" else [slice(None)]

    def part(context):
        own = parts[context.replica_id_in_sync_group]
        return tf.constant(images[own]), tf.constant(factors[own])

    def gradients(part):
        x, factor = part
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = norm(x, training=True)
            loss = tf.reduce_sum(y * factor + y**3)
        sources = [x, norm.gamma.value, norm.beta.value]
        return [y, *tape.gradient(loss, sources)]

    data = strategy.experimental_distribute_values_from_function(part)
    found = tf.function(lambda: strategy.run(gradients, (data,)))()
    found = [np.array(strategy.experimental_local_results(f)) for f in found[2:]] + [
        np.concatenate(strategy.experimental_local_results(f)) for f in found[:2]
    ]
    found = [f.sum(0) for f in found[:2]] + found[2:]
    found += [norm.moving_mean.numpy(), norm.moving_variance.numpy()]
    np.savez(folder / f"norm-{name}.npz", *found)

command = ["highway_mlp_digits_5", "--epochs", "1", "--strategy", "mirrored"]
facts["code"] = train.main([*command, "--run-dir", str(folder / "run")])
(folder / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def two_cpus(tmp_path_factory, pytestconfig):
    """Folder in which `TWO_CPUS` left its results."""
    folder = tmp_path_factory.mktemp("two_cpus")
    command = [sys.executable, "-c", TWO_CPUS, str(folder)]
    subprocess.run(command, check=True, cwd=pytestconfig.rootpath, timeout=400)
    return folder


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_two_replicas_are_used(two_cpus):
    facts = json.loads((two_cpus / "facts.json").read_text())
    assert facts["one_device"] == 1
    assert facts["mirrored"] == 2
    assert facts["auto"] == 1  # "auto" counts GPUs only


@pytest.mark.parametrize("name", ["mlp", "loop"])
def test_two_replicas_train_like_one(two_cpus, name):
    one, two = (arrays(two_cpus / f"{name}-{n}.npz") for n in ("one", "two"))
    for weight in one:
        assert np.allclose(one[weight], two[weight], atol=1e-6)


def test_replicas_of_loops_stay_equal(two_cpus):
    """BN's statistics too: loops assign them once, outside."""
    facts = json.loads((two_cpus / "facts.json").read_text())
    loops = {name: facts[name].count("ScanLayers") for name in ("loop", "resnet")}
    assert loops == {"loop": 1, "resnet": 3}
    zero, one = (arrays(two_cpus / f"replica-{n}.npz") for n in (0, 1))
    assert zero.keys() == one.keys() and len(zero) > 60
    assert all(np.array_equal(zero[name], one[name]) for name in zero)


@pytest.mark.parametrize("name", ["mlp", "resnet"])
def test_mirrored_net_is_exported_as_it_is(two_cpus, name):
    found = arrays(two_cpus / f"{name}.npz")
    scale = np.abs(found["live"]).max()
    assert np.abs(found["loaded"] - found["live"]).max() < 1e-6 * scale
    assert np.abs(found["served"] - found["live"]).max() < 1e-6 * scale


def test_mirrored_net_is_analysed(two_cpus):
    facts = json.loads((two_cpus / "facts.json").read_text())
    assert facts["gates"] == [3, 8]
    assert facts["lesions"] == [3]


def test_replicas_draw_masks_of_their_own(two_cpus):
    """Keras' own are the same on all replicas."""
    draws = json.loads((two_cpus / "facts.json").read_text())["draws"]
    assert draws.pop("keras") == [True, False]
    assert len(draws) == 4
    for name, (same, again) in draws.items():
        assert not same and not again, name


def test_batch_norm_over_replicas(two_cpus):
    """Outputs, gradients of input, γ and β, and moving statistics, for replicas with
    6 and 3 images."""
    one, two = (arrays(two_cpus / f"norm-{n}.npz") for n in ("one_device", "mirrored"))
    assert len(one) == 6
    for key, value in one.items():
        scale = np.abs(value).max()
        assert np.allclose(two[key], value, rtol=0, atol=1e-5 * scale), key


def test_batch_that_is_smaller_than_the_number_of_replicas(two_cpus):
    """Every example counts once, in training, evaluation and prediction, also where
    BN meets a replica without any."""
    facts = json.loads((two_cpus / "facts.json").read_text())
    one, two = facts["remainder one_device"], facts["remainder mirrored"]
    assert one[-1] == two[-1] == 33
    assert np.allclose(one, two, rtol=1e-5)


def test_mirrored_recipe(two_cpus):
    assert json.loads((two_cpus / "facts.json").read_text())["code"] == 0
    files = {file.name for file in (two_cpus / "run").iterdir()}
    assert {"metrics.json", "gates.png", "saved_model"} <= files


# TF_CONFIG

TWO = {"worker": ["a:2222", "b:2222"]}
FIRST = {"type": "worker", "index": 0}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ("", "must be set, as in .* no TF_CONFIG in the environment"),
        ("{'cluster'", "must be JSON, as in .*Received: .*{'cluster'.*column 2"),
        ([], r"must name a cluster with a list of workers, .*'\[\]'"),
        ({"task": FIRST}, "must name a cluster with a list of workers"),
        ({"cluster": {}, "task": FIRST}, "must name a cluster"),
        ({"cluster": {"ps": ["a:1"]}, "task": FIRST}, "must name a cluster"),
        ({"cluster": {"worker": []}, "task": FIRST}, "at least one worker"),
        ({"cluster": {**TWO, "ps": ["c:1"]}, "task": FIRST}, "no other jobs.*with ps"),
        ({"cluster": {"worker": "a:1"}, "task": FIRST}, "list of host:port.*='a:1'"),
        ({"cluster": {"worker": ["a"]}, "task": FIRST}, r"host:port.*worker=\['a'\]"),
        ({"cluster": {"worker": [":1"]}, "task": FIRST}, "list of host:port"),
        ({"cluster": {"worker": ["a:0"]}, "task": FIRST}, "list of host:port"),
        ({"cluster": {"worker": ["a:65536"]}, "task": FIRST}, "list of host:port"),
        ({"cluster": {"worker": [1]}, "task": FIRST}, "list of host:port"),
        ({"cluster": {"worker": {"0": "a:1"}}, "task": FIRST}, "list of host:port"),
        ({"cluster": {"chief": ["a:1", "b:1"]}, "task": FIRST}, "one chief at most"),
        (
            {"cluster": {"worker": ["a:1", "b:1", "a:1"]}, "task": FIRST},
            "an address of its own, .*Received: a:1 more than once",
        ),
        (
            {"cluster": {"chief": ["a:1"], "worker": ["a:1"]}, "task": FIRST},
            "an address of its own",
        ),
        ({"cluster": TWO}, "must name the task .*Received: task=None"),
        ({"cluster": TWO, "task": {"index": 0}}, "a `type` that is in the cluster"),
        ({"cluster": TWO, "task": {"type": "chief", "index": 0}}, "a `type` that is"),
        ({"cluster": TWO, "task": {"type": ["worker"]}}, "a `type` that is"),
        ({"cluster": TWO, "task": {"type": "worker"}}, "`index` of 0 … 1, .*'worker'}"),
        ({"cluster": TWO, "task": {**FIRST, "index": 2}}, "`index` of 0 … 1"),
        ({"cluster": TWO, "task": {**FIRST, "index": -1}}, "`index` of 0 … 1"),
        ({"cluster": TWO, "task": {**FIRST, "index": 0.5}}, "`index` of 0 … 1"),
        ({"cluster": TWO, "task": {**FIRST, "index": True}}, "`index` of 0 … 1"),
    ],
)
def test_wrong_tf_config(config, message, monkeypatch):
    text = config if isinstance(config, str) else json.dumps(config)
    monkeypatch.setenv("TF_CONFIG", text)
    for name in ("multi_worker", "auto") if text else ("multi_worker",):
        with pytest.raises(ValueError, match=f"^`TF_CONFIG` .*{message}") as error:
            distribution.strategy(name)
        assert "\n" not in str(error.value)


def test_multi_worker_needs_a_tf_config(monkeypatch):
    monkeypatch.delenv("TF_CONFIG", raising=False)
    with pytest.raises(ValueError, match="`TF_CONFIG` must be set"):
        distribution.strategy("multi_worker")


@pytest.mark.parametrize(
    ("name", "config"),
    [
        ("auto", {"cluster": {"worker": ["a:2222"]}, "task": FIRST}),
        ("one_device", {"cluster": TWO, "task": FIRST}),
        ("one_device", {"cluster": "wrong"}),
    ],
)
def test_tf_config_that_does_not_matter(name, config, monkeypatch):
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    assert distribution.strategy(name).num_replicas_in_sync == 1


@pytest.mark.parametrize("name", ["auto", "multi_worker"])
def test_multi_worker_after_tensorflow_has_started(name, monkeypatch):
    tf.zeros(1)
    config = {"cluster": TWO, "task": {"type": "worker", "index": "1"}}
    monkeypatch.setenv("TF_CONFIG", json.dumps(config))
    with pytest.raises(RuntimeError, match="must come before the first tensor"):
        distribution.strategy(name)


def multi_worker(addresses, index, timeout=1.0):
    """What a process prints that asks for the strategy."""
    task = {"type": "worker", "index": index}
    config = {"cluster": {"worker": addresses}, "task": task}
    program = f"""
import zoo
try:
    zoo.distribution.strategy("multi_worker", timeout={timeout})
except OSError as error:
    print(type(error).__name__, error)
"""
    return subprocess.run(
        [sys.executable, "-c", program],
        env={**os.environ, "TF_CONFIG": json.dumps(config)},
        capture_output=True,
        text=True,
        timeout=120,
    ).stdout


def test_workers_that_do_not_answer():
    """Within the timeout, with the address and the reason of each."""
    own, other = launch.free_addresses(2)
    said = multi_worker([own, other, "no.such.host.invalid:1"], 0)
    assert said.startswith("TimeoutError `TF_CONFIG` names workers that did not answer")
    assert "within 1 s" in said
    assert f"{other} (Connection refused)" in said
    assert "no.such.host.invalid:1 (" in said
    assert own not in said


def test_port_that_is_taken():
    with socket.create_server(("", 0)) as taken:
        own = f"127.0.0.1:{taken.getsockname()[1]}"
        said = multi_worker([own, "127.0.0.1:1"], 0, timeout=60)
    assert said.startswith("OSError `TF_CONFIG` must give this worker a free port.")
    assert f"worker 0 at {own} (Address already in use)" in said


# Two workers on this machine. This file, run as a script, is what each of them does;
# without TF_CONFIG it does the same on one device.


def loop():
    return zoo.highway_mlp((8, 8, 1), depth=20, units=16, rescale=1 / 16)


def loop_with_batch_norm():
    return zoo.preact_resnet(20, input_shape=(8, 8, 3), scan=True)


def smooth():
    """Batch normalisation without ReLUs, which round to either side of 0."""
    x = inputs = keras.Input((8, 8, 3), name="image")
    x = keras.layers.Rescaling(1 / 32)(x)
    for filters in (6, 8):
        x = keras.layers.Conv2D(filters, 3, data_format="channels_last")(x)
        x = BatchNorm()(x)
        x = keras.layers.Activation("tanh")(x)
    x = keras.layers.GlobalAveragePooling2D("channels_last")(x)
    return Net(inputs, keras.layers.Dense(10)(x))


def made_up(model, count, seed):
    """Raw pixels and labels, with something to learn."""
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 10, count, dtype="int32")
    noise = rng.integers(0, 17, (count, *model.inputs[0].shape[1:]), dtype="uint8")
    return np.uint8(noise + 3 * labels[:, None, None, None]), labels


def train(strategy, build):
    """The model after two epochs of three batches of 8 and of one of 1, which leaves
    nothing to the second worker; its history."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = build()
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, 0.9), loss, metrics=["accuracy"])
    history = model.fit(
        tf.data.Dataset.from_tensor_slices(made_up(model, 25, seed=1)).batch(8),
        validation_data=made_up(model, 14, seed=2),  # 4 + 4, 3 + 2, 1 + 0
        validation_batch_size=8,
        epochs=2,
        shuffle=False,
        verbose=0,
    )
    return model, history.history


def reductions(strategy, index):
    """What `reduce` makes of this worker's values, which depend on its index."""
    values = {
        "uint8": tf.constant([[index, 10]] * (2 + index), "uint8"),  # 2 and 3 rows
        "int64": tf.constant([2**40 + 2 * index]),
        "nested": (tf.constant([index / 2]), {"scalar": tf.constant(3 * index)}),
    }
    means = strategy.reduce("mean", values, axis=None)
    means["scalar"] = strategy.reduce("MEAN", tf.constant(1.0 * index), axis=0)
    sums = strategy.reduce("SUM", {"int": tf.constant([1, 2])}, axis=0)
    return tf.nest.map_structure(lambda v: v.numpy().tolist(), (means, sums))


def work(folder):
    strategy = distribution.strategy()
    facts = {"replicas": strategy.num_replicas_in_sync}
    if "TF_CONFIG" in os.environ:
        assert isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy)
        assert distribution.strategy("multi_worker") is strategy  # one a process
        index = json.loads(os.environ["TF_CONFIG"])["task"]["index"]
        facts["reductions"] = reductions(strategy, index)
    for build in (loop, loop_with_batch_norm, smooth):
        model, facts[build.__name__] = train(strategy, build)
        images, _ = made_up(model, 9, seed=3)
        weights = {w.path: w.numpy() for w in model.weights}
        np.savez(folder / f"{build.__name__}.npz", **weights)
        logits = model.predict(images, batch_size=4, verbose=0)  # …, 1 + 0
        live = keras.ops.convert_to_numpy(model(images))
        np.savez(folder / f"{build.__name__}-logits.npz", predicted=logits, live=live)
    (folder / "facts.json").write_text(json.dumps(facts))


def run_together(commands, folder, seconds):
    """Runs them at once; ends all of them as soon as one fails or time is up."""
    logs = [folder / f"log-{i}.txt" for i in range(len(commands))]
    running = []
    try:
        for (command, environment), log in zip(commands, logs, strict=True):
            with open(log, "wb") as file:
                running.append(
                    subprocess.Popen(command, env=environment, stdout=file, stderr=file)
                )
        deadline = time.monotonic() + seconds
        while any(process.poll() is None for process in running):
            failed = any(process.poll() for process in running)
            if failed or time.monotonic() > deadline:
                break
            time.sleep(0.1)
        codes = [process.poll() for process in running]
        tails = "\n".join(log.read_text(errors="replace")[-3000:] for log in logs)
        assert codes == [0] * len(commands), f"exit codes {codes}\n{tails}"
    finally:
        for process in running:
            process.kill()
            process.wait()


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory, pytestconfig):
    """Folders with the results of worker 0, worker 1 and of one device alone."""
    folder = tmp_path_factory.mktemp("two_workers")
    addresses = launch.free_addresses(2)
    environment = {k: v for k, v in os.environ.items() if k != "TF_CONFIG"}
    environment["CUDA_VISIBLE_DEVICES"] = "-1"
    environment["PYTHONPATH"] = str(pytestconfig.rootpath)
    folders, commands = [], []
    for index in (0, 1, None):
        task = {"type": "worker", "index": index}
        config = {"cluster": {"worker": addresses}, "task": task}
        more = {} if index is None else {"TF_CONFIG": json.dumps(config)}
        folders.append(folder / str(index))
        folders[-1].mkdir()
        command = [sys.executable, __file__, str(folders[-1])]
        commands.append((command, environment | more))
    run_together(commands, folder, seconds=400)
    return folders


def facts_of(folder):
    return json.loads((folder / "facts.json").read_text())


def test_auto_is_multi_worker_where_tf_config_names_two(two_workers):
    assert [facts_of(folder)["replicas"] for folder in two_workers] == [2, 2, 1]


def test_workers_reduce(two_workers):
    for folder in two_workers[:2]:
        means, sums = facts_of(folder)["reductions"]
        assert means["uint8"] == [[0, 10], [0, 10], [1, 10]]  # ½ → 0; a row of one
        assert means["int64"] == [2**40 + 1]
        assert means["nested"] == [[0.25], {"scalar": 1}]
        assert means["scalar"] == 0.5
        assert sums == {"int": 6}


@pytest.mark.parametrize("name", ["loop", "loop_with_batch_norm"])
def test_workers_end_equal(two_workers, name):
    """Bit for bit: losses, weights and, as `BatchNorm` takes them from the whole batch,
    moving statistics."""
    zero, one = (facts_of(folder)[name] for folder in two_workers[:2])
    assert zero == one
    assert sorted(zero) == ["accuracy", "loss", "val_accuracy", "val_loss"]
    assert np.isfinite(list(zero.values())).all()
    zero, one = (arrays(folder / f"{name}.npz") for folder in two_workers[:2])
    assert sum("_to_" in path for path in zero) == {"loop": 4}.get(name, 30)
    for path in zero:
        assert np.array_equal(zero[path], one[path]), path


def test_workers_train_like_one_device(two_workers):
    several, alone = facts_of(two_workers[0]), facts_of(two_workers[2])
    for key, values in alone["loop"].items():
        assert np.allclose(several["loop"][key], values, rtol=0, atol=1e-5), key
    several, alone = (arrays(two_workers[i] / "loop.npz") for i in (0, 2))
    for path in alone:
        assert np.allclose(several[path], alone[path], rtol=0, atol=1e-6), path


def test_workers_normalise_like_one_device(two_workers):
    """BN takes the statistics of the whole batch."""
    several, alone = (facts_of(two_workers[i])["smooth"] for i in (0, 2))
    for key, values in alone.items():
        assert np.allclose(several[key], values, rtol=0, atol=1e-5), key
    several, alone = (arrays(two_workers[i] / "smooth.npz") for i in (0, 2))
    for path in alone:
        assert np.allclose(several[path], alone[path], rtol=0, atol=1e-5), path


@pytest.mark.parametrize("name", ["loop", "loop_with_batch_norm"])
def test_workers_predict(two_workers, name):
    """All examples in order, on every worker."""
    zero, one = (arrays(folder / f"{name}-logits.npz") for folder in two_workers[:2])
    assert np.array_equal(zero["predicted"], one["predicted"])
    for found in (zero, one):
        scale = np.abs(found["live"]).max()
        assert np.abs(found["predicted"] - found["live"]).max() < 1e-5 * scale


if __name__ == "__main__":
    work(pathlib.Path(sys.argv[1]))
