import gc
import json
import shutil

import keras
import numpy as np
import pytest
from helpers import hostile

import zoo
from zoo import pretrained
from zoo.export import export_saved_model, seal, weights_by_path

IMAGES = np.random.default_rng(0).integers(0, 17, (4, 8, 8, 1)).astype("float32")


def net(**arguments):
    arguments = {"depth": 4, "units": 8, "rescale": 1 / 16, **arguments}
    return zoo.highway_mlp((8, 8, 1), **arguments)


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """A model and where it was exported to, for all tests: none may change it."""
    model = net(name="highway_mlp_digits_50")
    return model, export_saved_model(model, tmp_path_factory.mktemp("nets") / "net")


@pytest.fixture
def model(exported):
    return exported[0]


@pytest.fixture
def folder(exported, tmp_path):
    return shutil.copytree(exported[1], tmp_path / "net")


@pytest.fixture
def places(exported, tmp_path, monkeypatch):
    """Three nets under $ZOO_SAVED_MODELS, and none elsewhere."""
    place = tmp_path / "place"
    for name in ("highway_mlp_digits_5", "highway_mlp_digits_50", "preact_cifar10_20"):
        shutil.copytree(exported[1], place / name)
    monkeypatch.setattr(pretrained, "PLACES", (tmp_path / "nowhere",))
    monkeypatch.setenv("ZOO_SAVED_MODELS", str(place))
    return place


def same(loaded, model):
    return all(map(np.array_equal, loaded.get_weights(), model.get_weights()))


def test_load_by_path(model, folder):
    assert same(zoo.load(folder), model)
    assert same(zoo.load(str(folder)), model)


def test_load_by_run_directory(model, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "run" / "saved_model")
    assert same(zoo.load(tmp_path / "run"), model)
    assert zoo.load_served(tmp_path / "run").serve(IMAGES)["logits"].shape == (4, 10)


def test_load_by_name(model, places):
    assert zoo.list_pretrained() == [
        "highway_mlp_digits_5",
        "highway_mlp_digits_50",
        "preact_cifar10_20",
    ]
    loaded = zoo.load("highway_mlp_digits_50")
    assert loaded.name == "highway_mlp_digits_50"
    assert same(loaded, model)


def test_own_nets_come_before_released_ones(model, places, tmp_path, monkeypatch):
    released = tmp_path / "released"
    other = net()
    export_saved_model(other, released / "highway_mlp_digits_5")
    monkeypatch.setattr(pretrained, "PLACES", (released,))
    assert same(zoo.load("highway_mlp_digits_5"), model)
    monkeypatch.delenv("ZOO_SAVED_MODELS")
    assert zoo.list_pretrained() == ["highway_mlp_digits_5"]
    assert same(zoo.load("highway_mlp_digits_5"), other)


@pytest.mark.parametrize("function", [zoo.load, zoo.load_served])
def test_unknown_name_lists_the_nearest_first(places, function):
    names = "highway_mlp_digits_50, highway_mlp_digits_5, preact_cifar10_20"
    with pytest.raises(
        ValueError, match=f"{names}. Received: name='highway_digits_50'"
    ):
        function("highway_digits_50")


def test_nothing_installed(tmp_path, monkeypatch):
    monkeypatch.setattr(pretrained, "PLACES", ())
    monkeypatch.delenv("ZOO_SAVED_MODELS", raising=False)
    assert zoo.list_pretrained() == []
    with pytest.raises(
        ValueError, match="folder of an exported model or a finished run.*'mine'"
    ):
        zoo.load("mine")


FILES = (
    "saved_model.pb",
    "fingerprint.pb",
    "variables/variables.index",
    "variables/variables.data-00000-of-00001",
)


def truncate(file):
    file.write_bytes(file.read_bytes()[:-1])


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def remove(file):
    file.unlink()


@pytest.mark.parametrize("damage", [truncate, flip, remove])
@pytest.mark.parametrize("name", FILES)
def test_damaged_file(folder, name, damage):
    damage(folder / name)
    for function in (zoo.load, zoo.load_served):
        with pytest.raises(ValueError, match=f"{name} is not the file on its card"):
            function(folder)


def test_all_files_are_tried(folder):
    files = {str(f.relative_to(folder)) for f in folder.rglob("*") if f.is_file()}
    assert files == {*FILES, "card.json"}


def test_file_too_many(folder):
    (folder / "assets").mkdir(exist_ok=True)
    (folder / "assets" / "notes.txt").write_text("mine")
    with pytest.raises(ValueError, match="assets/notes.txt is not the file on its"):
        zoo.load(folder)


@pytest.mark.parametrize(
    "text", ["{", "", "[]", "5", "{}", '{"format": 1, "sha256": 5}', "\0"]
)
def test_card_that_is_none(folder, text):
    (folder / "card.json").write_text(text)
    for function in (zoo.load, zoo.load_served):
        with pytest.raises(ValueError, match="card.json cannot be read as a card"):
            function(folder)


def test_folder_without_card(folder):
    (folder / "card.json").unlink()
    with pytest.raises(ValueError, match="card.json"):
        zoo.load(folder)


def change(folder, **changes):
    path = folder / "card.json"
    card = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps(seal({**card, **changes})), encoding="utf-8")


@pytest.mark.parametrize("place", [0.3, 0.5, 0.9])
def test_card_with_another_byte(folder, place):
    path = folder / "card.json"
    content = bytearray(path.read_bytes())
    at = next(
        i
        for i in range(int(place * len(content)), len(content))
        if chr(content[i]).isdigit()
    )
    content[at] = ord("7") if content[at] != ord("7") else ord("8")
    path.write_bytes(content)
    with pytest.raises(ValueError, match="card.json is not as it was written. SHA-256"):
        zoo.load(folder)


def test_card_with_a_path_outside(folder):
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    change(folder, sha256={**card["sha256"], "../../etc/passwd": "0" * 64})
    with pytest.raises(ValueError, match="passwd is not the file on its card"):
        zoo.load(folder)


def test_card_with_code(folder, tmp_path):
    trace = tmp_path / "was here"
    config = json.loads(hostile(trace).to_json())
    change(folder, built_by=None, config=config)
    with pytest.raises(ValueError, match="unsafe"):
        zoo.load(folder)
    assert not trace.exists()


def test_new_head(model, folder):
    loaded = zoo.load(folder, num_classes=3)
    assert loaded.output_shape == (None, 3)
    ours, theirs = (weights_by_path(m) for m in (loaded, model))
    assert ours.keys() == theirs.keys()
    for path, weight in ours.items():
        if not path.startswith("logits/"):
            assert np.array_equal(weight, theirs[path]), path
    loaded.compile("sgd", "mse")
    loaded.fit(IMAGES, np.ones((4, 3)), epochs=1, verbose=0)


def test_new_head_of_a_net_without_builder(tmp_path):
    own = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2, name="logits")])
    path = export_saved_model(own, tmp_path / "own")
    with pytest.raises(ValueError, match="`num_classes` is for nets that a builder"):
        zoo.load(path, num_classes=3)


@pytest.mark.parametrize("scan", [True, False])
def test_loops_as_wanted(model, folder, scan):
    loaded = zoo.load(folder, scan=scan)
    kinds = {type(layer).__name__ for layer in loaded.layers}
    assert ("ScanLayers" in kinds) == scan
    assert np.allclose(loaded.predict(IMAGES, verbose=0), model(IMAGES), atol=1e-6)


def test_details(places):
    card = {"dataset": "digits", "metrics": {"test": {"accuracy": 0.5}}}
    export_saved_model(net(), places / "other", card=card)
    first, *_, last = zoo.list_pretrained(details=True)
    assert first["name"] == "highway_mlp_digits_5"
    assert first["dataset"] is first["accuracy"] is first["trained_on"] is None
    assert last["name"] == "preact_cifar10_20"
    known = {d["name"]: d for d in zoo.list_pretrained(details=True)}
    assert known["other"]["accuracy"] == 0.5
    assert known["other"]["parameters"] == net().count_params()


def test_verify(tmp_path):
    own = net()
    own.compile(metrics=["accuracy"])
    images, labels = zoo.datasets.arrays("digits", "test")
    accuracy = float(np.mean(own.predict(images, verbose=0).argmax(1) == labels))
    card = {"dataset": "digits", "metrics": {"test": {"accuracy": accuracy}}}
    found = zoo.verify(export_saved_model(own, tmp_path / "net", card=card))
    assert found["equal"] and found["n"] == len(labels)
    assert found["recorded"] == accuracy
    card["metrics"]["test"]["accuracy"] += 1 / len(labels)
    path = export_saved_model(own, tmp_path / "net", card=card, overwrite=True)
    assert not zoo.verify(path)["equal"]
    with pytest.raises(ValueError, match="whose card has data set.*without 'dataset'"):
        zoo.verify(export_saved_model(own, tmp_path / "bare"))


def test_card_of_a_newer_format(folder):
    change(folder, format=2)
    with pytest.raises(ValueError, match="card.json has a format of a newer zoo.*2"):
        zoo.load(folder)


@pytest.mark.parametrize("other", [{"depth": 5}, {"units": 9}, {"carry": "separate"}])
def test_card_of_another_net(folder, tmp_path, other):
    export_saved_model(net(**other), tmp_path / "other")
    card = json.loads((tmp_path / "other" / "card.json").read_text(encoding="utf-8"))
    change(folder, **{key: card[key] for key in ("built_by", "config", "weights")})
    with pytest.raises(ValueError, match="not those of the net on its card"):
        zoo.load(folder)


@pytest.mark.parametrize(
    "name", ["os.system", "layers", "convert", "HIGHWAY_VARIANTS", "__import__"]
)
def test_builder_that_is_none(folder, name):
    change(folder, built_by={"builder": name, "arguments": {"command": "true"}})
    with pytest.raises(ValueError, match=f"`builder` must be one of .*'{name}'"):
        zoo.load(folder)


def test_served_in_one_expression(model, folder):
    logits = model.predict(IMAGES, verbose=0)
    answer = zoo.load_served(folder).serve(IMAGES)
    assert np.allclose(answer["logits"], logits, atol=1e-6)
    serve = zoo.load_served(folder).serve
    gc.collect()
    assert np.allclose(serve(image=IMAGES)["logits"], logits, atol=1e-6)
    raw = zoo.load_served(folder).serve_uint8(IMAGES.astype("uint8"))
    assert np.allclose(raw["logits"], logits, atol=1e-6)


def test_served_has_the_card(folder):
    assert zoo.load_served(folder).card["endpoints"] == [
        "features",
        "gates",
        "serve",
        "serve_uint8",
    ]


def test_unknown_endpoint(folder):
    served = zoo.load_served(folder)
    with pytest.raises(AttributeError, match="'logits'.*features, gates, serve, "):
        served.logits  # noqa: B018
    assert not hasattr(served, "__len__")


def test_live_model_trains_on(folder):
    loaded = zoo.load(folder)
    before = loaded.get_weights()
    loaded.compile("sgd", "mse")
    loaded.fit(IMAGES, np.ones((4, 10)), epochs=1, verbose=0)
    assert not any(map(np.array_equal, loaded.get_weights(), before))
    assert all(map(np.array_equal, zoo.load(folder).get_weights(), before))
