"""Looped and unrolled nets: one draw, one function, one analysis."""

import subprocess
import sys

import keras
import numpy as np
import pytest
from helpers import close

import zoo
from zoo import analysis
from zoo.layers import ScanLayers

NETS = {
    "highway_mlp": lambda scan: zoo.highway_mlp(
        (8, 8, 1), depth=12, units=16, scan=scan
    ),
    "plain_mlp": lambda scan: zoo.plain_mlp((8, 8, 1), depth=12, units=16, scan=scan),
    "highway_cnn": lambda scan: zoo.highway_cnn(
        input_shape=(12, 12, 1), stages=((4, 3), (8, 2)), scan=scan
    ),
    "preact_resnet": lambda scan: zoo.preact_resnet(20, scan=scan),
}


def loops(model):
    return [layer for layer in model.layers if isinstance(layer, ScanLayers)]


def images(model, count=6):
    rng = np.random.default_rng(0)
    return rng.integers(0, 17, (count, *model.input_shape[1:])).astype("uint8")


@pytest.mark.parametrize("name", NETS)
def test_both_forms_start_from_the_same_draw(name):
    nets = {}
    for scan in (True, False):
        keras.utils.set_random_seed(5)
        nets[scan] = NETS[name](scan)
    assert loops(nets[True]) and not loops(nets[False])
    assert nets[True].count_params() == nets[False].count_params()
    x = images(nets[True])
    assert np.array_equal(nets[True](x), nets[False](x))
    keras.utils.set_random_seed(6)
    assert not np.array_equal(nets[True](x), NETS[name](True)(x))


@pytest.mark.parametrize("name", NETS)
def test_conversion_keeps_the_function_and_copies_the_weights(name):
    model = NETS[name](True)
    x = images(model)
    want = np.array(model(x))
    unrolled = zoo.convert(model, scan=False)
    back = zoo.convert(unrolled, scan=True)
    assert np.array_equal(unrolled(x), want) and np.array_equal(back(x), want)
    assert [layer.name for layer in back.layers] == [la.name for la in model.layers]
    assert [w.path for w in back.weights] == [w.path for w in model.weights]
    unrolled.set_weights([0 * w for w in unrolled.get_weights()])
    assert np.array_equal(model(x), want)


def test_unrolled_layers_have_the_names_of_the_copies():
    model = NETS["highway_mlp"](False)
    names = [la.name for la in model.layers if la.name.startswith("highway")]
    assert names == [f"highway_{i:02d}" for i in range(1, 12)]
    assert names == sorted(names)


def test_auto_is_a_pure_function_of_the_arguments():
    for depth, looped in ((2, 0), (16, 0), (17, 1), (51, 1)):
        model = zoo.highway_mlp((8, 8, 1), depth=depth, units=8)
        assert len(loops(model)) == looped
    assert [loop.length for loop in loops(zoo.preact_resnet(20))] == []
    assert [loop.length for loop in loops(zoo.preact_resnet(26))] == [3, 3, 3]
    with pytest.raises(ValueError, match="`scan` must be 'auto', True or False"):
        zoo.highway_mlp(scan="yes")
    with pytest.raises(ValueError, match="`scan` must be"):
        zoo.convert(NETS["highway_mlp"](True), scan=None)


def test_layers_that_differ_make_no_loop():
    x = inputs = keras.Input((8,))
    for bias in (-1.0, -1.0, -2.0, -2.0, -2.0):
        x = zoo.layers.HighwayDense(gate_bias=bias)(x)
    model = keras.Model(inputs, x)
    looped = zoo.convert(model, scan=True)
    assert [loop.length for loop in loops(looped)] == [2, 3]
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    assert close(looped(x), model(x), 1e-6)


def test_a_layer_with_two_readers_ends_the_run():
    inputs = keras.Input((8,))
    a = zoo.layers.HighwayDense()(inputs)
    b = zoo.layers.HighwayDense()(a)
    c = zoo.layers.HighwayDense()(b)
    model = keras.Model(inputs, [c, a])
    looped = zoo.convert(model, scan=True)
    x = np.random.default_rng(0).normal(size=(4, 8)).astype("float32")
    for got, want in zip(looped(x), model(x), strict=True):
        assert close(got, want, 1e-6)


@pytest.mark.parametrize("name", ["highway_mlp", "highway_cnn"])
def test_analysis_gives_the_same_arrays(name):
    model = NETS[name](True)
    other = zoo.convert(model, scan=False)
    x = images(model)
    y = np.arange(len(x)) % 10

    def same(function, *args):
        for a, b in zip(function(model, *args), function(other, *args), strict=True):
            assert close(a, b, 1e-6)

    same(analysis.gate_biases)
    same(analysis.mean_gates, x)
    same(analysis.gradient_norms, x, y)
    ours, theirs = analysis.trace(model, x), analysis.trace(other, x)
    assert ours.names == theirs.names
    for a, b in zip(
        [*ours.gates, *ours.outputs], [*theirs.gates, *theirs.outputs], strict=True
    ):
        assert close(a, b, 1e-6)
    ours, theirs = analysis.lesions(model, x, y), analysis.lesions(other, x, y)
    assert close(ours.loss, theirs.loss, 1e-6) and ours.names == theirs.names


def test_describe_shows_every_copy():
    model = zoo.highway_mlp((8, 8, 1), depth=900, units=8, gate_bias=-4.0)
    rows = zoo.describe(model)
    assert sum(row.parameters for row in rows) == model.count_params()
    assert [r.name for r in rows[4:6]] == ["highway_001", "highway_002"]
    assert rows[4].gate_bias == -4.0 and rows[-1].gate_bias is None
    assert f"{model.count_params():,} parameters" in str(rows)
    assert [r[:2] for r in rows] == [
        r[:2] for r in zoo.describe(zoo.highway_mlp((8, 8, 1), depth=900, units=8))
    ]


@pytest.mark.parametrize("where", ["nested", "thread"])
def test_very_deep_nets_at_the_default_recursion_limit(tmp_path, where):
    """Case 12: build, save, load and export from 100 nested frames, and a thread."""
    code = f"""
import sys, threading
import numpy as np, keras, zoo

def work():
    for model in (zoo.highway_mlp((8, 8, 1), depth=900, units=4),
                  zoo.preact_resnet(1001)):
        for weight in model.weights:  # untrained, 333 units would overflow
            if "gamma" in weight.path:
                weight.assign(0.1 * weight)
        path = {str(tmp_path)!r} + "/" + model.name
        model.save(path + ".keras")
        loaded = keras.models.load_model(path + ".keras")
        zoo.export.export_saved_model(model, path)
        x = np.ones((1, *model.input_shape[1:]), "float32")
        assert np.isfinite(model(x)).all()
        assert np.allclose(loaded(x), model(x), atol=1e-5)
        assert np.allclose(zoo.load(path)(x), model(x), atol=1e-5)
        done.append(model.name)

def nested(n):
    return work() if n == 0 else nested(n - 1)

done = []
assert sys.getrecursionlimit() == 1000
if {where!r} == "nested":
    nested(100)
else:
    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
assert done == ["highway_mlp_900", "preact_resnet_1001"], done
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_strided_units_stay_where_sizes_are_open():
    model = zoo.resnet(8, filters=(16, 16, 16), input_shape=(None, None, 3), scan=False)
    looped = zoo.convert(model, True)
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    assert np.allclose(looped(x), model(x), atol=1e-5)
