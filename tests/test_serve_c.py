"""A trained net in a C program: TensorFlow's C interface, without Python."""

import pathlib
import shutil
import subprocess

import numpy as np
import pytest
import tensorflow as tf
from tensorflow.core.protobuf import saved_model_pb2

import zoo

SOURCE = pathlib.Path(__file__).resolve().parents[1] / "recipes" / "serve.c"
pytestmark = pytest.mark.skipif(not shutil.which("cc"), reason="no C compiler")


@pytest.fixture(scope="module")
def serve(tmp_path_factory):
    program = tmp_path_factory.mktemp("c") / "serve"
    place = tf.sysconfig.get_lib()
    libraries = [
        f"-l:{path.name}"
        for name in ("libtensorflow_cc", "libtensorflow_framework")
        for path in pathlib.Path(place).glob(f"{name}.so.?")
    ]
    where = [f"-I{tf.sysconfig.get_include()}", f"-L{place}", f"-Wl,-rpath,{place}"]
    command = ["cc", "-Wall", "-Wextra", "-o", program, SOURCE, *where, *libraries]
    built = subprocess.run(command, capture_output=True, text=True)
    assert built.returncode == 0 and not built.stderr, built.stderr

    def run(*arguments, images=b""):
        command = [program, *map(str, arguments)]
        return subprocess.run(command, input=images, capture_output=True)

    return run


def test_same_answers_as_the_live_net(serve, pytestconfig):
    folder = pytestconfig.rootpath / "saved_models" / "highway_mlp_digits_20"
    stored = saved_model_pb2.SavedModel()
    stored.ParseFromString((folder / "saved_model.pb").read_bytes())
    signature = stored.meta_graphs[0].signature_def["serving_default"]
    names = signature.inputs["image"].name, signature.outputs["logits"].name
    images, _ = zoo.datasets.arrays("digits", "test")
    images = images[:256].astype("float32")
    run = serve(folder, *names, 8, 8, 1, images=images.tobytes())
    assert run.returncode == 0, run.stderr
    found = np.array([line.split() for line in run.stdout.splitlines()], "float32")
    live = np.asarray(zoo.load(folder)(images))
    assert np.abs(found - live).max() <= 1e-5 * max(1, np.abs(live).max())


@pytest.mark.parametrize(
    ("name", "size", "images", "message"),
    [
        ("missing:0", 8, b"", b"the net has no tensor of that name"),
        ("serving_default_image", 8, b"", b"have the form operation:number"),
        ("serving_default_image:0", 0, b"", b"sizes must be above 0"),
        ("serving_default_image:0", 8, b"1234", b"not a whole number of images"),
    ],
)
def test_wrong_input(serve, pytestconfig, name, size, images, message):
    folder = pytestconfig.rootpath / "saved_models" / "highway_mlp_digits_20"
    run = serve(folder, name, name, size, 8, 1, images=images)
    assert run.returncode == 1 and message in run.stderr


def test_no_folder(serve, tmp_path):
    run = serve(tmp_path, "serve_image:0", "serve_image:0", 8, 8, 1)
    assert run.returncode == 1 and b"Could not find SavedModel" in run.stderr
    assert serve().returncode == 2
