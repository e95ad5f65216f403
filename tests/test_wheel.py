"""The built wheel, by itself."""

import json
import os
import pathlib
import subprocess
import sys
import zipfile

import pytest

import zoo

# every trained net: list, load, predict, fit, gates, lesions
PROGRAM = """
import json, pathlib, sys
import keras, numpy as np
import zoo
from zoo import analysis
assert pathlib.Path(zoo.__file__).is_relative_to(sys.argv[1]), zoo.__file__
places = {}
for name in zoo.list_pretrained():
    model, served = zoo.load(name), zoo.load_served(name)
    shape = (4, *served.card["input"]["shape"][1:])
    images = np.random.default_rng(0).integers(0, 16, shape).astype("float32")
    labels = np.arange(4)
    logits = model.predict(images, verbose=0)
    difference = np.abs(served.serve(images)["logits"] - logits).max()
    assert difference <= 1e-5 * max(1, np.abs(logits).max()), name
    if served.card["gates"]:
        layers = sum(map(len, served.card["gates"].values()))
        assert len(analysis.trace(model, images).gates) == layers
        gates = served.gates(images)
        assert sum(stage.shape[0] for stage in gates.values()) == layers
        assert len(analysis.lesions(model, images, labels).loss) == layers
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(1e-3), loss)
    model.fit(images, labels, epochs=1, verbose=0)
    places[name] = str(pathlib.Path(zoo.pretrained.open_card(name)[0]))
print(json.dumps(places))
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory, pytestconfig):
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"  # the build writes beside its source
    source.mkdir()
    for name in ("zoo", "saved_models", "pyproject.toml", "README.md", "LICENSE"):
        os.symlink(pytestconfig.rootpath / name, source / name)
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps"]
    command += ["--no-build-isolation", "--wheel-dir", str(folder), str(source)]
    subprocess.run(command, check=True)
    (file,) = folder.glob("*.whl")
    return file


def test_everything_is_in_the_wheel(wheel, pytestconfig):
    root = pytestconfig.rootpath
    modules = {str(p.relative_to(root)) for p in (root / "zoo").rglob("*.py")}
    nets = {
        f"zoo/{p.relative_to(root)}"
        for p in (root / "saved_models").rglob("*")
        if p.is_file()
    }
    with zipfile.ZipFile(wheel) as file:
        names = {n for n in file.namelist() if "__pycache__" not in n}
    assert {*modules, *nets, "zoo/py.typed"} <= names
    others = names - modules - nets - {"zoo/py.typed"}
    assert all(".dist-info/" in name for name in others)


def test_trained_nets_of_the_wheel(wheel, tmp_path):
    """In a process that knows nothing of the checkout."""
    target = tmp_path / "site"
    command = [sys.executable, "-m", "pip", "install", "-q", "--no-deps"]
    subprocess.run([*command, "--target", str(target), str(wheel)], check=True)
    environment = {**os.environ, "PYTHONPATH": str(target)}
    environment.pop("ZOO_SAVED_MODELS", None)
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(target)],
        env=environment,
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    places = json.loads(done.stdout.splitlines()[-1])
    assert list(places) == zoo.list_pretrained()
    inside = target / "zoo" / "saved_models"
    assert all(pathlib.Path(place).is_relative_to(inside) for place in places.values())
