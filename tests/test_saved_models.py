"""What holds for every trained net that is shipped."""

import json
import pathlib
import subprocess
import sys

import keras
import numpy as np
import pytest

import zoo
from zoo.export import weights_by_path

ROOT = pathlib.Path(__file__).resolve().parents[1]
FOLDERS = sorted(p.parent for p in (ROOT / "saved_models").glob("*/card.json"))

# three ways to run a net without this package, in a process that does not have it
STRANGER = """
import json, pathlib, sys
import keras, numpy as np, tensorflow as tf
from tensorflow.python.tools import saved_model_cli as cli
images, out = sys.argv[1:3]
x = np.load(images, allow_pickle=False)
for folder in sys.argv[3:]:
    shape = json.loads(pathlib.Path(folder, "card.json").read_text())["input"]["shape"]
    given = np.resize(x, (4, *shape[1:]))
    np.save(images, given)
    layer = keras.layers.TFSMLayer(folder, call_endpoint="serve")(given)
    signature = tf.saved_model.load(folder).signatures["serving_default"]
    served = signature(image=tf.constant(given))
    arguments = f"run --dir {folder} --tag_set serve --signature_def serving_default"
    arguments += f" --inputs image={images} --outdir {out} --overwrite"
    cli.flags.FLAGS(["saved_model_cli", *arguments.split()])
    cli.run()
    for key in ("logits", "probabilities"):
        by_cli = np.load(f"{out}/{key}.npy")
        assert np.array_equal(by_cli, layer[key]), (folder, key)
        assert np.array_equal(by_cli, served[key]), (folder, key)
    np.save(f"{out}/{pathlib.Path(folder).name}.npy", layer["logits"])
assert "zoo" not in sys.modules
"""


def some(shape):
    images = np.random.default_rng(0).integers(0, 17, (4, 32, 32, 3))
    return np.resize(images.astype("float32"), (4, *shape))


def test_some_are_shipped():
    assert len(FOLDERS) >= 6
    assert [p.name for p in FOLDERS] == zoo.list_pretrained()


def test_by_strangers(tmp_path):
    np.save(tmp_path / "images.npy", some((32, 32, 3)))
    command = [sys.executable, "-c", STRANGER, "images.npy", str(tmp_path)]
    done = subprocess.run(
        [*command, *map(str, FOLDERS)], cwd=tmp_path, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    for folder in FOLDERS:
        model = zoo.load(folder)
        live = np.asarray(model(some(model.input_shape[1:])))
        found = np.load(tmp_path / f"{folder.name}.npy")
        assert np.abs(found - live).max() <= 1e-5 * max(1, np.abs(live).max())


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_travels(folder, tmp_path):
    """Through its config, through a `.keras` file, and to another head."""
    model = zoo.load(folder)
    images = some(model.input_shape[1:])
    logits = np.asarray(model(images))
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert len(weights_by_path(model)) == len(card["weights"])
    model.save(tmp_path / "net.keras")
    saved = keras.models.load_model(tmp_path / "net.keras")
    assert np.array_equal(saved(images), logits)
    fresh = type(model).from_config(model.get_config())
    if card["gates"]:
        bias = card["built_by"]["arguments"]["gate_bias"]
        gates = [
            w for p, w in weights_by_path(fresh).items() if p.endswith("gate/bias")
        ]
        assert gates and all(np.all(np.asarray(w) == bias) for w in gates)
    fresh.set_weights(model.get_weights())
    assert np.array_equal(fresh(images), logits)
    other = zoo.load(folder, num_classes=7)
    old, new = weights_by_path(model), weights_by_path(other)
    assert old.keys() == new.keys()
    head = {path for path in old if old[path].shape != new[path].shape}
    assert 1 <= len(head) <= 2 and all("logits" in path for path in head)
    assert all(np.array_equal(old[path], new[path]) for path in old.keys() - head)
