"""LiteRT and ONNX files of looped nets, run by the runtimes that people deploy."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close

import zoo
from zoo.layers import ScanLayers

# Keras looks for NumPy 1's `object` before it lets tf2onnx run under NumPy 2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:In the future `np.object` will be defined:FutureWarning:keras"
)


def mlp():
    return zoo.highway_mlp((8, 8, 1), depth=20, units=16)


def cnn():
    stages = ((4, 4), (6, 3))
    return zoo.highway_cnn(input_shape=(8, 8, 1), stages=stages, scan=True)


def resnet():
    return zoo.preact_resnet(20, input_shape=(16, 16, 3), scan=True)


def unrolled():
    return zoo.highway_mlp((8, 8, 1), depth=6, units=16, scan=False)


LOOPS = {mlp: 1, cnn: 2, resnet: 3, unrolled: 0}  # one a stage
nets = pytest.mark.parametrize("make", LOOPS, ids=lambda make: make.__name__)


def varied(model):
    """Moves every bias, γ, β and moving statistic away from its initial value, each
    copy's and each unit's by another amount."""
    rng = np.random.default_rng(1)
    draws = {
        "bias": lambda w: w.numpy() + rng.normal(0, 0.5, w.shape),
        "beta": lambda w: rng.normal(0, 0.3, w.shape),
        "gamma": lambda w: rng.uniform(0.5, 1.5, w.shape),
        "moving_mean": lambda w: rng.normal(0, 0.3, w.shape),
        "moving_variance": lambda w: rng.uniform(0.5, 2.0, w.shape),
    }
    for weight in model.weights:
        if weight.name in draws:
            weight.assign(draws[weight.name](weight))
    return model


def pixels(model, count):
    shape = (count, *model.inputs[0].shape[1:])
    pixels = np.random.default_rng(count).integers(0, 256, shape)
    return np.float32(pixels)


def agrees(model, run):
    """Whether `run(images)` gives the live logits, to 1e-5 of the largest; batches
    of 5, 1 and 5 again pass through one interpreter."""
    for count in (5, 1, 5):
        images = pixels(model, count)
        if not close(run(images), model(images, training=False), 1e-5):
            return False
    return True


@nets
def test_litert(make, tmp_path):
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="needs the extra `export`"
    )
    model, path = varied(make()), str(tmp_path / "net.tflite")
    builtins = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}
    model.export(path, format="litert", verbose=False, target_spec=builtins)
    interpreter = litert.Interpreter(path, num_threads=1)
    (given,), (found,) = (
        interpreter.get_input_details(),
        interpreter.get_output_details(),
    )
    assert given["shape_signature"].tolist() == [-1, *model.inputs[0].shape[1:]]

    def run(images):
        interpreter.resize_tensor_input(given["index"], images.shape, strict=True)
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], images)
        interpreter.invoke()
        return interpreter.get_tensor(found["index"])

    assert agrees(model, run)


def test_int8_convolutions(tmp_path):
    litert = pytest.importorskip(
        "ai_edge_litert.interpreter", reason="needs the extra `export`"
    )
    model = cnn()
    samples = pixels(model, 100)
    path = tmp_path / "net.tflite"
    zoo.export.export_litert(model, path, weights="int8", samples=samples)
    interpreter = litert.Interpreter(str(path), num_threads=1)
    interpreter.allocate_tensors()
    interpreter.set_tensor(interpreter.get_input_details()[0]["index"], samples[:1])
    interpreter.invoke()
    found = interpreter.get_tensor(interpreter.get_output_details()[0]["index"])
    logits = keras.ops.convert_to_numpy(model(samples[:1]))
    assert close(found, logits, 0.1) and not np.array_equal(found, logits)


@nets
def test_onnx(make, tmp_path):
    onnx, runtime = (
        pytest.importorskip(name, reason="needs the extra `export`")
        for name in ("onnx", "onnxruntime")
    )
    pytest.importorskip("tf2onnx", reason="needs the extra `export`")
    model, path = varied(make()), str(tmp_path / "net.onnx")
    model(pixels(model, 1))  # Keras exports only a model that has been called
    model.export(path, format="onnx", verbose=False, opset_version=17)
    file = onnx.load(path)
    assert {o.domain: o.version for o in file.opset_import}[""] == 17
    loops = [node for node in file.graph.node if node.op_type == "Loop"]
    assert len(loops) == LOOPS[make]
    options = runtime.SessionOptions()
    options.intra_op_num_threads = 1
    session = runtime.InferenceSession(path, options, ["CPUExecutionProvider"])
    (given,) = session.get_inputs()
    assert given.name == "image"
    assert given.shape[1:] == list(model.inputs[0].shape[1:])
    assert agrees(model, lambda images: session.run(None, {"image": images})[0])


@nets
def test_nets_are_looped_and_every_weight_matters(make):
    """That the comparisons above could fail."""
    model = varied(make())
    assert sum(isinstance(la, ScanLayers) for la in model.layers) == LOOPS[make]
    images = pixels(model, 5)
    logits = keras.ops.convert_to_numpy(model(images))
    for weight in model.weights:
        before = weight.numpy()
        looped = "_to_" in weight.path  # highway_01_to_19/gate/bias: 19 copies
        for index in range(len(before)) if looped else [...]:
            changed = before.copy()
            changed[index] = changed[index] * 1.2 + 0.1
            weight.assign(changed)
            found = keras.ops.convert_to_numpy(model(images))
            assert not close(found, logits, 1e-5), f"{weight.path}, copy {index}"
        weight.assign(before)
