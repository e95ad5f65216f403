import hashlib
import json
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close

import zoo
from zoo import analysis
from zoo.export import export_saved_model


def mlp(**arguments):
    return zoo.highway_mlp((8, 8, 1), depth=4, units=8, rescale=1 / 16, **arguments)


def cnn():
    return zoo.highway_cnn(
        input_shape=(8, 8, 1), stages=((4, 2), (6, 1)), rescale=1 / 16
    )


def resnet():
    """With statistics of BN that are not the initial ones."""
    model = zoo.preact_resnet(8, input_shape=(8, 8, 3))
    rng = np.random.default_rng(1)
    model.set_weights([rng.uniform(0.1, 0.5, w.shape) for w in model.weights])
    return model


def vectors():
    return zoo.highway_mlp((5,), num_classes=3, depth=3, units=8)


MODELS = {"mlp": mlp, "cnn": cnn, "resnet": resnet, "vectors": vectors}


def pixels(model, count):
    shape = (count, *model.inputs[0].shape[1:])
    return np.random.default_rng(1).integers(0, 17, shape, dtype="uint8")


# Runs where this package cannot be imported.
FRESH = """
import sys
sys.modules["zoo"] = None
import keras, numpy as np, tensorflow as tf
for folder in sys.argv[1:]:
    endpoints = tf.saved_model.load(folder).signatures
    layer = keras.layers.TFSMLayer(folder, call_endpoint="serve")
    found = {}
    for count, images in np.load(folder + "-given.npz").items():
        answers = {"layer": layer(tf.constant(images, "float32"))}
        for name, endpoint in endpoints.items():
            (given,) = endpoint.structured_input_signature[1].values()
            x = tf.constant(images, given.dtype)
            answers[name] = endpoint(**{given.name: x})
        for name, answer in answers.items():
            for key, value in answer.items():
                found[f"{count}/{name}/{key}"] = value.numpy()
    np.savez(folder + "-found.npz", **found)
"""


def test_served_in_a_process_without_this_package(tmp_path):
    models = {name: make() for name, make in MODELS.items()}
    for name, model in models.items():
        export_saved_model(model, tmp_path / name)
        batches = {str(count): pixels(model, count) for count in (1, 7)}
        np.savez(tmp_path / f"{name}-given.npz", **batches)
    folders = [str(tmp_path / name) for name in models]
    subprocess.run([sys.executable, "-c", FRESH, *folders], check=True, cwd=tmp_path)
    for name, model in models.items():
        with np.load(tmp_path / f"{name}-found.npz") as file:
            found = dict(file)
        for count in (1, 7):
            images = pixels(model, count)
            logits = model.predict(images, verbose=0)
            for endpoint in ("serve", "serving_default", "layer"):
                answer = found[f"{count}/{endpoint}/logits"]
                assert relative(answer, logits) < 1e-6
                probabilities = found[f"{count}/{endpoint}/probabilities"]
                assert close(probabilities, softmax(logits), 1e-6)
                if name != "vectors":
                    raw = found[f"{count}/serve_uint8/logits"]
                    assert np.array_equal(raw, found[f"{count}/serve/logits"])
            if name != "resnet":
                gates = list(analysis.trace(model, images).gates)
                stages = [gates] if name != "cnn" else [gates[:2], gates[2:]]
                for i, stage in enumerate(stages, 1):
                    assert close(found[f"{count}/gates/stage_{i}"], stage, 1e-6)
        endpoints = {key.split("/")[1] for key in found}
        assert ("gates" in endpoints) == (name != "resnet")
        assert ("serve_uint8" in endpoints) == (name != "vectors")


def relative(a, b):
    """Largest difference in units of the largest of b."""
    return np.abs(a - b).max() / np.abs(b).max()


def softmax(logits):
    odds = np.exp(np.float64(logits) - logits.max(1, keepdims=True))
    return odds / odds.sum(1, keepdims=True)


def signature(folder):
    """{endpoint: (inputs, outputs)} by name, shape and type."""
    functions = tf.saved_model.load(str(folder)).signatures
    return {
        name: (function.structured_input_signature[1], function.structured_outputs)
        for name, function in functions.items()
    }


def test_signatures(tmp_path):
    found = signature(export_saved_model(cnn(), tmp_path / "net"))
    assert sorted(found) == [
        "features",
        "gates",
        "serve",
        "serve_uint8",
        "serving_default",
    ]
    for name, (inputs, outputs) in found.items():
        (image,) = inputs.values()
        assert list(inputs) == ["image"]
        assert image.shape.as_list() == [None, 8, 8, 1]
        assert image.dtype == (tf.uint8 if name == "serve_uint8" else tf.float32)
        if name == "gates":
            assert outputs["stage_1"].shape.as_list() == [2, None, 8, 8, 4]
            assert outputs["stage_2"].shape.as_list() == [1, None, 4, 4, 6]
        elif name == "features":
            assert {k: v.shape.rank for k, v in outputs.items()} == {"features": 2}
        else:
            assert sorted(outputs) == ["logits", "probabilities"]


def test_signatures_of_vectors(tmp_path):
    found = signature(export_saved_model(vectors(), tmp_path / "net"))
    assert sorted(found) == ["features", "gates", "serve", "serving_default"]
    assert {name for inputs, _ in found.values() for name in inputs} == {"features"}


@pytest.mark.parametrize("kind", ["builder", "functional", "sequential"])
def test_signatures_do_not_depend_on_what_was_built_before(kind, tmp_path):
    make = {"builder": mlp, "functional": functional, "sequential": sequential}[kind]
    keras.utils.clear_session()
    first = signature(export_saved_model(make(), tmp_path / "first"))
    for _ in range(3):
        make()
    assert signature(export_saved_model(make(), tmp_path / "later")) == first


def test_open_image_size(tmp_path):
    model = zoo.highway_cnn(
        input_shape=(None, None, 1), stages=((4, 1), (6, 1)), rescale=1 / 16
    )
    served = zoo.load_served(export_saved_model(model, tmp_path / "net"))
    for size in (8, 12):
        images = np.ones((2, size, size, 1), "float32")
        logits = model.predict(images, verbose=0)
        assert relative(served.serve(image=images)["logits"], logits) < 1e-6


def test_variables_are_stored_once(tmp_path):
    model = zoo.highway_mlp((8, 8, 1), depth=6, units=64)
    path = export_saved_model(model, tmp_path / "net")
    sizes = [file.stat().st_size for file in (path / "variables").glob("*.data*")]
    assert 4 * model.count_params() <= sum(sizes) < 4 * model.count_params() + 8000


def test_card(tmp_path):
    model = resnet()
    path = export_saved_model(model, tmp_path / "net", card={"dataset": "made up"})
    card = json.loads((path / "card.json").read_text(encoding="utf-8"))
    assert card["name"] == model.name
    assert card["dataset"] == "made up"
    assert card["built_by"]["builder"] == "preact_resnet"
    assert card["built_by"]["arguments"]["depth"] == 8
    assert card["input"] == {"name": "image", "shape": [None, 8, 8, 3]}
    assert card["endpoints"] == ["features", "serve", "serve_uint8"]
    assert card["parameters"] == model.count_params()
    assert card["trainable_parameters"] == sum(
        w.numpy().size for w in model.trainable_weights
    )
    assert card["weights"] == {w.path: list(w.shape) for w in model.weights}
    assert card["gates"] == {}
    assert card["versions"]["tensorflow"] == tf.__version__
    assert card["versions"]["keras"] == keras.__version__
    files = [file for file in path.rglob("*") if file.is_file()]
    assert card["sha256"] == {
        file.relative_to(path).as_posix(): hashlib.sha256(file.read_bytes()).hexdigest()
        for file in files
        if file.name != "card.json"
    }
    assert len(card["sha256"]) == 4  # the graph, its fingerprint, weights, their index


def test_card_names_the_layers_of_each_stage(tmp_path):
    path = export_saved_model(cnn(), tmp_path / "net")
    card = json.loads((path / "card.json").read_text(encoding="utf-8"))
    assert card["gates"] == {
        "stage_1": ["highway_01", "highway_02"],
        "stage_2": ["highway_03"],
    }


def test_card_cannot_overwrite_what_load_needs(tmp_path):
    with pytest.raises(ValueError, match="`card`.*config, weights"):
        export_saved_model(mlp(), tmp_path / "net", card={"weights": 1, "config": {}})
    assert not list(tmp_path.iterdir())


def functional():
    inputs = keras.Input((4,), name="features")
    x = keras.layers.Dense(6, "relu")(inputs)
    x = zoo.layers.HighwayDense(gate_bias=-3.5)(x)
    return keras.Model(inputs, keras.layers.Dense(3)(x))


def sequential():
    return keras.Sequential(
        [
            keras.Input((8, 8, 2)),
            zoo.layers.HighwayConv(gate_bias=-3.5),
            keras.layers.GlobalAveragePooling2D(),
            zoo.layers.Highway(keras.layers.Dense(2, "relu"), gate_bias=-3.5),
            keras.layers.Dense(3),
        ]
    )


@pytest.mark.parametrize("make", [*MODELS.values(), functional, sequential])
def test_loads_as_a_live_model(make, tmp_path):
    model = make()
    loaded = zoo.load(export_saved_model(model, tmp_path / "net"))
    assert loaded.name == model.name
    assert loaded.to_json() == model.to_json()
    assert all(map(np.array_equal, loaded.get_weights(), model.get_weights()))
    images = pixels(model, 7)
    logits = model.predict(images, verbose=0)
    assert relative(loaded.predict(images, verbose=0), logits) < 1e-6
    again = zoo.load(export_saved_model(loaded, tmp_path / "again"))
    assert all(map(np.array_equal, again.get_weights(), model.get_weights()))


@pytest.mark.parametrize("make", [lambda: mlp(gate_bias=-3.5), functional, sequential])
def test_gate_bias_survives(make, tmp_path):
    loaded = zoo.load(export_saved_model(make(), tmp_path / "net"))
    assert loaded.to_json().count('"gate_bias": -3.5') >= 1
    for weight in (w for w in loaded.weights if w.path.endswith("bias")):
        assert (weight.numpy() == (-3.5 if "gate" in weight.path else 0)).all()


def test_dropout_is_off(tmp_path):
    model = zoo.highway_cnn(
        input_shape=(8, 8, 1), stages=((4, 1),), dropout=0.9, rescale=1 / 16
    )
    served = zoo.load_served(export_saved_model(model, tmp_path / "net"))
    images = np.float32(pixels(model, 7))
    logits = model.predict(images, verbose=0)
    assert relative(served.serve(image=images)["logits"], logits) < 1e-6


def test_mixed_precision(tmp_path, policy):
    policy("mixed_float16")
    model = mlp()
    path = export_saved_model(model, tmp_path / "net")
    policy("float32")
    images = np.float32(pixels(model, 7))
    answer = zoo.load_served(path).serve(image=images)
    assert answer["logits"].dtype == answer["probabilities"].dtype == tf.float32
    logits = model.predict(images, verbose=0)
    assert relative(answer["logits"], logits) < 1e-2  # half precision
    assert zoo.load_served(path).gates(image=images)["stage_1"].dtype == tf.float32


def test_existing_path(tmp_path):
    path = tmp_path / "net"
    export_saved_model(mlp(), path)
    before = contents(path)
    with pytest.raises(ValueError, match="`path` must not exist.*overwrite=True.*net"):
        export_saved_model(mlp(), path)
    assert contents(path) == before
    model = mlp(gate_bias=-3.5)
    export_saved_model(model, path, overwrite=True)
    assert all(map(np.array_equal, zoo.load(path).get_weights(), model.get_weights()))
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_is_no_exported_model_is_never_replaced(tmp_path, overwrite):
    folder, file = tmp_path / "folder", tmp_path / "file"
    folder.mkdir()
    (folder / "thesis.txt").write_text("three years")
    file.write_text("mine")
    before = contents(tmp_path)
    for path in (folder, file):
        with pytest.raises(
            ValueError, match="`path` must not exist, or be an exported"
        ):
            export_saved_model(mlp(), path, overwrite=overwrite)
    assert contents(tmp_path) == before


def test_a_write_that_fails_leaves_nothing_behind(tmp_path, monkeypatch):
    path = export_saved_model(mlp(), tmp_path / "net")
    before = contents(tmp_path)

    def fail(root, folder, **kwargs):
        tf.io.gfile.makedirs(folder)
        tf.io.write_file(folder + "/saved_model.pb", "half a")
        raise OSError("disk full")

    monkeypatch.setattr(tf.saved_model, "save", fail)
    for target, overwrite in ((path, True), (tmp_path / "other", False)):
        with pytest.raises(OSError, match="disk full"):
            export_saved_model(mlp(), target, overwrite=overwrite)
        assert contents(tmp_path) == before


def contents(folder):
    files = (file for file in folder.rglob("*") if file.is_file())
    return {file: file.read_bytes() for file in files}


def test_two_inputs_or_outputs(tmp_path):
    inputs = [keras.Input((4,)), keras.Input((4,))]
    sums = keras.layers.Add()(inputs)
    for model in (keras.Model(inputs, sums), keras.Model(inputs[:1], inputs[:1] * 2)):
        with pytest.raises(ValueError, match="one input and one output. Received: "):
            export_saved_model(model, tmp_path / "net")


def test_features(tmp_path):
    model = cnn()
    path = export_saved_model(model, tmp_path / "net")
    images = pixels(model, 3)
    features = zoo.load_served(path).features(images)["features"]
    kernel, bias = model.get_layer("logits").get_weights()
    logits = model.predict(images, verbose=0)
    assert close(features @ kernel + bias, logits, 1e-5)


def test_fine_tuning_without_this_package(tmp_path):
    """Weights and moving statistics move through the endpoint `train`."""
    model = resnet()
    path = export_saved_model(model, tmp_path / "net", train=True)
    layer = keras.layers.TFSMLayer(
        path, call_endpoint="serve", call_training_endpoint="train"
    )
    loaded = layer._reloaded_obj
    before = {k: v.numpy() for k, v in loaded.weights.items()}
    images = pixels(model, 8)
    inputs = keras.Input(images.shape[1:])
    tuned = keras.Model(inputs, layer(inputs)["logits"])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    tuned.compile(keras.optimizers.SGD(0.1), loss)
    tuned.fit(images, np.arange(8) % 10, epochs=1, verbose=0)
    moved = {k for k, v in loaded.weights.items() if (v.numpy() != before[k]).any()}
    assert {k.split("/")[-1] for k in moved} >= {"kernel", "moving_mean", "gamma"}
    assert (
        "train"
        not in zoo.load_served(export_saved_model(model, tmp_path / "plain")).card[
            "endpoints"
        ]
    )
