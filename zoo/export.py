"""SavedModels with named endpoints and a card; LiteRT and ONNX files."""

import hashlib
import importlib.metadata
import importlib.util
import inspect
import json
import os
import pathlib
import platform
import re
import tempfile

import keras
import numpy as np
import tensorflow as tf
from keras import ops

from zoo._checks import known
from zoo.analysis import _blocks, gates
from zoo.layers import ScanLayers
from zoo.models.convert import convert

CARD = "card.json"
SEAL = "card_sha256"
_NUMBERS = re.compile(r"\[[\d\s.,-]*\]")  # lists of numbers stand in one line


def export_saved_model(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    card: dict | None = None,
    train: bool = False,
    overwrite: bool = False,
) -> pathlib.Path:
    """Writes a model as a TensorFlow SavedModel with a card.

    The SavedModel runs without this package. Its endpoints, which are signatures and
    attributes of the loaded object alike, take raw inputs by name:

    - `serve(image)`, float32 → {"logits", "probabilities"}; also the default;
    - `serve_uint8(image)`, the same for uint8 pixels, where the input is an image;
    - `gates(image)`, float32 → {"stage_1", …}: T of the highway layers or gated
      residual units of a stage, `(layers, batch, …)`, where the model has some. A
      stage is a run of layers of one shape; their names stand on the card. Where
      words are masked there is a "stage_1_mask" too, `(batch, words)`, True at words
      that are there;
    - `features(image)`, float32 → {"features"}, what the layer `logits` gets, where
      there is one of this name;
    - `train(image)`, float32 → {"logits"} in training mode, on request: dropout is
      on and batch normalisation moves, so that `keras.layers.TFSMLayer(path,
      call_endpoint="serve", call_training_endpoint="train")` can be tuned further.

    `card.json` holds what `zoo.load` needs to rebuild the live model, and the SHA-256
    of every file, its own content included. The folder is written beside `path` and
    renamed into place.

    Args:
        model: functional or Sequential model with one input, giving logits.
        path: folder to make.
        card: what else is known of the net: data set, recipe, accuracy, …
        train: whether it gets the endpoint of this name. False by default: it takes
            the graph of a training step more.
        overwrite: replaces a folder that holds an exported model. False by default.

    Returns:
        `path`.

    Raises:
        ValueError: `path` exists and may not be replaced; the model has several
            inputs or outputs, or weights that share a path; `card` has a key that
            is written anyway.

    Example:
        >>> import tempfile, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=3, units=8)
        >>> path = zoo.export.export_saved_model(model, tempfile.mkdtemp() + "/net")
        >>> zoo.load_served(path).serve(image=[[[[3.0]] * 8] * 8])["logits"].shape
        TensorShape([1, 10])
    """
    path = pathlib.Path(path)
    if len(model.inputs) != 1 or len(model.outputs) != 1:
        raise ValueError(
            "`model` must have one input and one output. Received: "
            f"{len(model.inputs)} inputs, {len(model.outputs)} outputs"
        )
    if path.exists() and not (overwrite and (path / CARD).is_file()):
        raise ValueError(
            f"`path` must not exist, or be an exported model together with "
            f"overwrite=True. Received: path={str(path)!r}"
        )
    model = undistributed(model)
    endpoints = _endpoints(model, train)
    facts = _facts(model, endpoints)
    taken = sorted({*facts, "sha256", SEAL} & {*(card or {})})
    if taken:
        raise ValueError(
            "`card` must leave the keys that export writes by itself. "
            f"Received: {', '.join(taken)}"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as work:
        written = pathlib.Path(work) / path.name
        _write(model, endpoints, written)
        write_card(written, {**facts, **(card or {})})
        if path.exists():
            path.rename(pathlib.Path(work) / "replaced")
        written.rename(path)
    return path


def write_card(folder: pathlib.Path, card: dict):
    """Writes card.json, with the SHA-256 of every file of the folder and its own."""
    card = seal({**card, "sha256": hashes(folder)})
    text = json.dumps(card, indent=2, ensure_ascii=False)
    text = _NUMBERS.sub(lambda rows: " ".join(rows[0].split()), text)
    (folder / CARD).write_text(text + "\n", encoding="utf-8")


def seal(card: dict) -> dict:
    """The card with the SHA-256 of its content."""
    content = {key: value for key, value in card.items() if key != SEAL}
    text = json.dumps(content, sort_keys=True, ensure_ascii=False)
    return {**content, SEAL: hashlib.sha256(text.encode()).hexdigest()}


def hashes(folder: pathlib.Path) -> dict[str, str]:
    """SHA-256 of every file of a SavedModel but its card, by relative name."""
    files = sorted(p for p in folder.rglob("*") if p.is_file())
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in files
        if p.name != CARD
    }


def weights_by_path(model: keras.Model) -> dict[str, keras.Variable]:
    """The model's weights by path, without the names of Sequential models in it:
    Keras puts those into a path or not, depending on how the model was made."""

    def sequentials(layer):
        inner = {n for la in getattr(layer, "layers", ()) for n in sequentials(la)}
        return inner | ({layer.name} if isinstance(layer, keras.Sequential) else set())

    left_out = sequentials(model)
    found = {}
    for weight in model.weights:
        path = "/".join(p for p in weight.path.split("/") if p not in left_out)
        if path in found:
            raise ValueError(
                "`model` must have a path of its own for each weight; give its layers "
                f"different names. Received: two weights {path!r}"
            )
        found[path] = weight
    return found


def versions() -> dict[str, str]:
    """Versions of what a result depends on."""
    names = ("tensorflow", "keras", "numpy", "tensorflow-datasets")
    found = {name: importlib.metadata.version(name) for name in names}
    return {"python": platform.python_version(), **found}


def undistributed(model):
    """The model, or its copy where a strategy keeps its variables on replicas."""
    distributed = (tf.distribute.DistributedValues,)
    if not any(isinstance(w.value, distributed) for w in model.weights):
        return model
    copy = keras.models.clone_model(model)
    copy.set_weights(model.get_weights())
    copy.zoo_spec = getattr(model, "zoo_spec", None)
    return copy


def _endpoints(model, train=False):
    """{name: tf.function} of the model."""
    name, shape = _input_name(model), tuple(model.inputs[0].shape)
    parameter = inspect.Parameter(name, inspect.Parameter.POSITIONAL_OR_KEYWORD)

    own = model.inputs[0].dtype

    def endpoint(function, dtype=own):
        def named(x):
            return function(x)

        named.__signature__ = inspect.Signature([parameter])  # served as (image)
        signature = [tf.TensorSpec(shape, dtype, name=name)]
        return tf.function(named, input_signature=signature, autograph=False)

    def serve(x):
        logits = model(x if x.dtype == own else ops.cast(x, own), training=False)
        return {"logits": logits, "probabilities": ops.softmax(logits)}

    endpoints = {"serve": endpoint(serve)}
    if name == "image":
        endpoints["serve_uint8"] = endpoint(serve, "uint8")
    if any(layer.name == "logits" for layer in model.layers):
        inner = keras.Model(model.inputs[0], model.get_layer("logits").input)
        endpoints["features"] = endpoint(
            lambda x: {"features": inner(x, training=False)}
        )
    if train:
        endpoints["train"] = endpoint(lambda x: {"logits": model(x, training=True)})
    if _gate_names(model):
        parts = {}  # output → tensors `(batch, layers, …)`, or a mask
        for i, stage in enumerate(gates.stages(model), 1):
            masks = [_blocks.mask_of(layer) for layer in stage]
            parts[f"stage_{i}"] = [
                gates.Probe(layer)(_blocks.input_of(layer), mask=mask)[0]
                for layer, mask in zip(stage, masks, strict=True)
            ]
            if masks[0] is not None:
                parts[f"stage_{i}_mask"] = masks[0]
        probe = keras.Model(model.inputs[0], parts)

        def gates_of(x):
            return {
                name: ops.moveaxis(ops.concatenate(found, axis=1), 1, 0)
                if isinstance(found, list)
                else found
                for name, found in probe(x, training=False).items()
            }

        endpoints["gates"] = endpoint(gates_of)
    return endpoints


def _input_name(model):
    """The input's name; one that Keras counts up would vary from run to run."""
    name, rank = model.inputs[0].name, len(model.inputs[0].shape)
    if name.isidentifier() and not name.startswith(("keras_tensor", "input_layer")):
        return name
    return {2: "features", 4: "image"}.get(rank, "inputs")


def _gate_names(model):
    """{stage: names of its gated layers}; empty for a net without any."""
    if not any(_blocks.is_gated(layer) for layer in model.layers):
        return {}
    return {
        f"stage_{i}": [name for layer in stage for name in _blocks.names_of(layer)]
        for i, stage in enumerate(gates.stages(model), 1)
    }


def _write(model, endpoints, path):
    root = tf.train.Checkpoint()
    for name, function in endpoints.items():
        setattr(root, name, function)
    root.weights = {path: w.value for path, w in weights_by_path(model).items()}
    root.variables = list(root.weights.values())
    root.trainable_variables = [w.value for w in model.trainable_weights]
    root.non_trainable_variables = [w.value for w in model.non_trainable_weights]
    signatures = {**endpoints, "serving_default": endpoints["serve"]}
    tf.saved_model.save(root, str(path), signatures=signatures)


def _facts(model, endpoints):
    """What the card says of any model."""
    spec = getattr(model, "zoo_spec", None)
    return {
        "format": 1,
        "name": model.name,
        "built_by": json.loads(spec) if spec else None,
        "config": json.loads(model.to_json()),
        "input": {"name": _input_name(model), "shape": list(model.inputs[0].shape)},
        "endpoints": sorted(endpoints),
        "parameters": model.count_params(),
        "trainable_parameters": sum(int(ops.size(w)) for w in model.trainable_weights),
        "gates": _gate_names(model),
        "weights": {p: list(w.shape) for p, w in weights_by_path(model).items()},
        "versions": versions(),
    }


LITERT_WEIGHTS = ("float32", "float16", "int8")


def export_litert(
    model: keras.Model,
    path: str | os.PathLike,
    *,
    weights: str = "float32",
    samples=None,
) -> pathlib.Path:
    """Writes a model as a LiteRT (TensorFlow Lite) file of built-in operations alone.

    Input and output stay float32, `image` in, logits out, for batches of any size.

    Args:
        model: functional or Sequential model with one numeric input, giving logits.
        path: file to write, ending in ".tflite"; one that exists is replaced.
        weights: "float32" (the default); "float16", half the size; "int8", a quarter,
            with inner values in int8 where LiteRT can, in ranges measured on
            `samples`; loops over convolutions are unrolled, which LiteRT needs.
        samples: for "int8": raw inputs `(count, …)`, 100 or more of the training set.

    Returns:
        `path`.

    Raises:
        ValueError: another ending or `weights`; "int8" without samples; text.

    Example:
        >>> import tempfile, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=3, units=8)
        >>> zoo.export.export_litert(model, tempfile.mkdtemp() + "/net.tflite").suffix
        '.tflite'
    """
    known("weights", weights, LITERT_WEIGHTS)
    path = _check_file(model, path, ".tflite")
    if (weights == "int8") != (samples is not None):
        raise ValueError(
            "`samples` must be raw inputs for weights='int8', and None otherwise. "
            f"Received: weights={weights!r}, samples "
            f"{'None' if samples is None else 'of shape ' + str(np.shape(samples))}"
        )
    spec, options = {"supported_ops": [tf.lite.OpsSet.TFLITE_BUILTINS]}, {}
    if weights != "float32":
        options["optimizations"] = [tf.lite.Optimize.DEFAULT]
    if weights == "float16":
        spec["supported_types"] = [tf.float16]
    if weights == "int8":
        spec["supported_ops"].insert(0, tf.lite.OpsSet.TFLITE_BUILTINS_INT8)
        samples = np.asarray(samples, "float32")
        options["representative_dataset"] = lambda: ([s[None]] for s in samples)
    model = undistributed(model)
    if weights == "int8" and any(map(_loops_over_convolutions, model.layers)):
        model = convert(model, scan=False)  # LiteRT cannot run them in int8
    return _write_file(model, path, format="litert", target_spec=spec, **options)


def _loops_over_convolutions(layer):
    return isinstance(layer, ScanLayers) and any(len(s.shape) > 3 for s in layer.stacks)


def export_onnx(model: keras.Model, path: str | os.PathLike) -> pathlib.Path:
    """Writes a model as an ONNX file, opset 17; needs the extra `export`.

    Args:
        model: functional or Sequential model with one numeric input, giving logits.
        path: file to write, ending in ".onnx"; one that exists is replaced.

    Returns:
        `path`. Input and output are float32, the batch may have any size.

    Raises:
        ValueError: another ending; text.
        ModuleNotFoundError: the extra is missing.
    """
    path = _check_file(model, path, ".onnx")
    for package in ("onnx", "tf2onnx"):
        if importlib.util.find_spec(package) is None:
            raise ModuleNotFoundError(
                f"export_onnx needs {package}: pip install 'highway-zoo[export]'"
            )
    model = undistributed(model)
    model(tf.zeros([1, *(n or 32 for n in model.inputs[0].shape[1:])]))  # Keras asks it
    return _write_file(model, path, format="onnx", opset_version=17)


def _check_file(model, path, suffix):
    path = pathlib.Path(path)
    if path.suffix != suffix:
        raise ValueError(f"`path` must end in {suffix!r}. Received: path={str(path)!r}")
    if len(model.inputs) != 1 or not model.inputs[0].dtype.startswith("float"):
        raise ValueError(
            "`model` must have one numeric input; the rest of a net that reads text "
            f"cannot leave TensorFlow. Received: inputs {model.inputs}"
        )
    return path


def _write_file(model, path, **options):
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as work:
        written = pathlib.Path(work) / path.name
        model.export(str(written), verbose=False, **options)
        written.replace(path)
    return path
