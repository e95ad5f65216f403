import json
import subprocess
import sys

import numpy as np
import pytest
import tensorflow as tf

from zoo import distribution


def test_names():
    assert distribution.STRATEGIES == ("auto", "one_device", "mirrored")
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
    model.fit(data, steps_per_epoch=5, epochs=1, shuffle=False, verbose=0)
    return model

def mlp():
    return zoo.highway_mlp((8, 8, 1), depth=4, units=8, rescale=1 / 16)

def resnet():
    return zoo.preact_resnet(8, input_shape=(8, 8, 1))

one, two = trained("one_device", mlp), trained("mirrored", mlp)
np.savez(folder / "one.npz", *one.get_weights())
np.savez(folder / "two.npz", *two.get_weights())

images, labels = datasets.arrays("digits", "test")
facts["gates"] = analysis.mean_gates(two, images).shape
facts["lesions"] = analysis.lesions(two, images, labels).loss.shape
for name, model in (("mlp", two), ("resnet", trained("mirrored", resnet))):
    live = model.predict(images[:8], batch_size=8, verbose=0)
    path = zoo.export.export_saved_model(model, folder / name)
    loaded = zoo.load(path).predict(images[:8], verbose=0)
    served = zoo.load_served(path).serve_uint8(images[:8])["logits"].numpy()
    np.savez(folder / f"{name}.npz", live=live, loaded=loaded, served=served)

command = ["highway_mlp_digits_5", "--epochs", "1", "--strategy", "mirrored"]
facts["code"] = train.main([*command, "--run-dir", str(folder / "run")])
(folder / "facts.json").write_text(json.dumps(facts))
"""


@pytest.fixture(scope="module")
def two_cpus(tmp_path_factory, pytestconfig):
    """Folder in which `TWO_CPUS` left its results."""
    folder = tmp_path_factory.mktemp("two_cpus")
    command = [sys.executable, "-c", TWO_CPUS, str(folder)]
    subprocess.run(command, check=True, cwd=pytestconfig.rootpath)
    return folder


def arrays(path):
    with np.load(path) as file:
        return dict(file)


def test_two_replicas_are_used(two_cpus):
    facts = json.loads((two_cpus / "facts.json").read_text())
    assert facts["one_device"] == 1
    assert facts["mirrored"] == 2
    assert facts["auto"] == 1  # "auto" counts GPUs only


def test_two_replicas_train_like_one(two_cpus):
    one, two = arrays(two_cpus / "one.npz"), arrays(two_cpus / "two.npz")
    for name in one:
        assert np.allclose(one[name], two[name], atol=1e-6)


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


def test_mirrored_recipe(two_cpus):
    assert json.loads((two_cpus / "facts.json").read_text())["code"] == 0
    files = {file.name for file in (two_cpus / "run").iterdir()}
    assert {"metrics.json", "gates.png", "saved_model"} <= files
