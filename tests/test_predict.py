import json
import re

import numpy as np
import pytest
import tensorflow as tf

import zoo
from recipes import evaluate, predict
from zoo import datasets


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An untrained net for digits, with its true accuracy on the card."""
    model = zoo.highway_mlp((8, 8, 1), depth=4, units=8, rescale=1 / 16)
    images, labels = datasets.arrays("digits", "test")
    guesses = model.predict(images, verbose=0).argmax(1)
    accuracy = float(np.mean(guesses == labels))
    card = {"dataset": "digits", "metrics": {"test": {"accuracy": accuracy}}}
    place = tmp_path_factory.mktemp("nets") / "net"
    return zoo.export.export_saved_model(model, place, card=card)


def picture(path, array, encode=tf.io.encode_png):
    tf.io.write_file(str(path), encode(tf.constant(array, "uint8")))
    return path


@pytest.mark.parametrize("channels", [1, 3])
def test_image_of_the_data_set_is_read_as_it_is(channels, tmp_path):
    image = datasets.arrays("digits", "test")[0][0]
    pixels = np.round(np.float32(image) * 255 / 16).astype("uint8")
    path = picture(tmp_path / "a.png", np.repeat(pixels, channels, axis=-1))
    found, steps = predict.read(path, datasets.info("digits"), None)
    assert np.array_equal(found, image)
    assert steps == "made grey"


def test_black_on_white_is_inverted(tmp_path):
    info = datasets.info("mnist")
    dark = np.zeros((56, 28, 3))
    dark[20:30, 10:20] = 255
    for name, encode in (("a.png", tf.io.encode_png), ("a.jpg", tf.io.encode_jpeg)):
        black, steps = predict.read(picture(tmp_path / name, dark, encode), info, None)
        assert steps == "made grey, 28×56 → 28×28"
        white, steps = predict.read(
            picture(tmp_path / name, 255 - dark, encode), info, None
        )
        assert steps == "made grey, 28×56 → 28×28, inverted"
        assert np.abs(black - white).max() < 5
        assert white.max() > 200 and white[0].max() < 10
        kept, _ = predict.read(tmp_path / name, info, False)
        assert kept[0].min() > 245
        turned, _ = predict.read(picture(tmp_path / name, dark, encode), info, True)
        assert turned[0].min() > 245


def test_colours_stay(tmp_path):
    red = np.full((40, 40, 3), 250)
    red[:, :, 1:] = 0
    image, steps = predict.read(
        picture(tmp_path / "red.png", red), datasets.info("cifar10"), None
    )
    assert image.shape == (32, 32, 3)
    assert image.mean((0, 1)).tolist() == [250, 0, 0]
    assert steps == "as RGB, 40×40 → 32×32"


def test_predict(folder, tmp_path, capsys):
    images, _ = datasets.arrays("digits", "test")
    paths = []
    for i in range(3):
        pixels = np.round(np.float32(images[i]) * 255 / 16)
        paths.append(str(picture(tmp_path / f"{i}.png", pixels)))
    assert predict.main([str(folder), *paths, "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    (written,) = tmp_path.glob("*.json")
    rows = json.loads(written.read_text())
    chances = zoo.load_served(folder).serve_uint8(images[:3])["probabilities"].numpy()
    for path, row, chance in zip(paths, rows, chances, strict=True):
        assert row["file"] == path
        assert row["class"] == str(chance.argmax())
        assert row["class"] in shown
        assert np.isclose(row["probability"], chance.max(), atol=1e-6)
        assert len(row["next"]) == 2
    model = zoo.load(folder)
    trace = zoo.analysis.trace(model, np.float32(images[:3]))
    for i, row in enumerate(rows):
        opened = [gates[i].max() > 0.5 for gates in trace.gates]
        assert len(row["active_layers"]) == sum(opened)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("text.png", b"no image", "Images must be PNG, JPEG, BMP or GIF.*text.png"),
        ("empty.jpg", b"", "Images must be PNG"),
        ("missing.png", None, "missing.png"),
    ],
)
def test_what_is_no_image(name, content, message, folder, tmp_path, capsys):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    assert predict.main([str(folder), str(tmp_path / name)]) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: ") and err.count("\n") == 1
    assert re.search(message, err)


def test_evaluate(folder, tmp_path, capsys):
    assert evaluate.main([str(folder), "--out", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "540 test images of digits, as on its card" in said
    (written,) = tmp_path.glob("*.json")
    record = json.loads(written.read_text())
    counts = np.array(record["confusion"])
    assert counts.sum() == 540
    assert np.isclose(np.trace(counts) / 540, record["accuracy"])
    _, labels = datasets.arrays("digits", "test")
    assert counts.sum(1).tolist() == np.bincount(labels).tolist()


def test_evaluate_finds_another_accuracy(folder, tmp_path, capsys):
    card = {"dataset": "digits", "metrics": {"test": {"accuracy": 0.99}}}
    wrong = zoo.export.export_saved_model(zoo.load(folder), tmp_path / "n", card=card)
    assert evaluate.main([str(wrong), "--out", str(tmp_path)]) == 1
    assert "NOT as on its card (0.9900)" in capsys.readouterr().out


@pytest.mark.parametrize("arguments", [[], ["no_such_net"]])
def test_evaluate_wrong_input(arguments, capsys):
    assert evaluate.main(arguments) == 2
    assert capsys.readouterr().err.startswith("error: ")
