import csv
import json

import keras
import numpy as np
import pytest

import zoo
from recipes import formats
from zoo import datasets
from zoo.export import export_litert, export_onnx, export_saved_model

pytest.importorskip("ai_edge_litert.interpreter", reason="needs the extra `export`")
pytest.importorskip("onnxruntime", reason="needs the extra `export`")

# Keras looks for NumPy 1's `object` before it lets tf2onnx run under NumPy 2.
pytestmark = pytest.mark.filterwarnings(
    "ignore:In the future `np.object` will be defined:FutureWarning:keras"
)


@pytest.fixture(scope="module")
def model():
    """Nine looped highway layers, trained for a moment."""
    model = zoo.highway_mlp((8, 8, 1), depth=10, units=16, rescale=1 / 16, scan=True)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss)
    images, labels = datasets.arrays("digits", "train")
    model.fit(images, labels, epochs=1, verbose=0)
    return model


def test_all_forms(model, tmp_path, capsys):
    place = export_saved_model(model, tmp_path / "net", card={"dataset": "digits"})
    out = tmp_path / "out" / model.name
    assert formats.main([str(place), "--turns", "1", "--out", str(out.parent)]) == 0
    files = ["net.onnx", "net.tflite", "net_float16.tflite", "net_int8.tflite"]
    assert sorted(file.name for file in out.iterdir()) == [
        *files,
        "table.csv",
        "table.json",
    ]
    with open(out / "table.csv", newline="", encoding="utf-8") as file:
        rows = {row["form"]: row for row in csv.DictReader(file)}
    images, labels = datasets.arrays("digits", "test")
    logits = model.predict(images, verbose=0)
    accuracy = np.mean(logits.argmax(1) == labels)
    scale = max(1, np.abs(logits).max())
    limits = {"LiteRT float16": 1e-2, "LiteRT int8": 0.5}
    for form, row in rows.items():
        limit = limits.get(form, 1e-5)
        assert float(row["largest_difference"]) <= limit * scale, form
        if form not in limits:
            assert np.isclose(float(row["accuracy"]), accuracy, atol=1e-9)
        assert float(row["ms_batch_1"]) > 0 and float(row["ms_batch_128"]) > 0
    sizes = {form: int(row["bytes"] or 0) for form, row in rows.items()}
    assert sizes["LiteRT int8"] < sizes["LiteRT float16"] < sizes["LiteRT float32"]
    assert json.loads((out / "table.json").read_text())["name"] == model.name


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (export_litert, {"path": "a.onnx"}, r"`path` must end in '.tflite'.*a.onnx"),
        (export_onnx, {"path": "a.tflite"}, "`path` must end in '.onnx'"),
        (
            export_litert,
            {"path": "a.tflite", "weights": "int4"},
            "`weights` must be one of int8",
        ),
        (
            export_litert,
            {"path": "a.tflite", "weights": "int8"},
            "`samples` must be raw inputs for weights='int8'.*samples None",
        ),
        (
            export_litert,
            {"path": "a.tflite", "samples": np.ones((2, 8, 8, 1))},
            "and None otherwise. .*float32.*shape",
        ),
    ],
)
def test_wrong_input(function, arguments, message, model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError, match=message):
        function(model, **arguments)
    assert not list(tmp_path.iterdir())


def test_text_stays_in_tensorflow(tmp_path):
    net = zoo.char_cnn("abc", words=4, characters=5, num_classes=2)
    for function, suffix in ((export_litert, ".tflite"), (export_onnx, ".onnx")):
        with pytest.raises(ValueError, match="must have one numeric input"):
            function(net, tmp_path / f"net{suffix}")


def test_net_without_a_card(tmp_path, capsys):
    place = export_saved_model(zoo.highway_mlp((8, 8, 1), depth=2), tmp_path / "net")
    assert formats.main([str(place), "--out", str(tmp_path / "out")]) == 2
    assert "whose card names its data set" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_several_nets(tmp_path, monkeypatch, capsys):
    nets = {}
    for name in ("one", "two"):
        net = zoo.highway_mlp((8, 8, 1), depth=2, name=name)
        nets[name] = str(export_saved_model(net, tmp_path / name))

    def measure(name, folder, turns):
        folder.mkdir(parents=True)
        return [{"form": "ONNX", "bytes": 9, "accuracy": 0.5}]

    monkeypatch.setattr(formats, "measure", measure)
    monkeypatch.setattr(zoo, "list_pretrained", lambda: list(nets.values()))
    for arguments in (list(nets.values()), ["--all"]):
        out = tmp_path / str(len(arguments))
        assert formats.main([*arguments, "--out", str(out)]) == 0
        with open(out / "table.csv", newline="", encoding="utf-8") as file:
            found = list(csv.DictReader(file))
        assert [row["net"] for row in found] == ["one", "two"]
        assert (out / "two" / "table.json").is_file()


def test_names(tmp_path, capsys):
    net = zoo.char_cnn("abc", words=4, characters=5, num_classes=2)
    place = export_saved_model(net, tmp_path / "net")
    for arguments in ([], [str(place)]):
        assert formats.main([*arguments, "--out", str(tmp_path / "out")]) == 2
        assert "`names` must be nets that read images" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()
