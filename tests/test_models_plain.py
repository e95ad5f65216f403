import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close, distinct_draws

import zoo
from zoo.models import HIGHWAY_VARIANTS, PLAIN_VARIANTS

# The number of parameters of each variant: the highway net's less 9w² + w a gate. The
# CIFAR nets have 3,072 more, the mean image.
COUNTS = {
    "mnist_10": 77_706,
    "mnist_10_w16": 20_426,
    "cifar_19": 1_193_526 + 3_072,
    "cifar_19_fc": 1_249_126 + 3_072,
    "cifar_11": 139_336 + 3_072,
    "cifar_32": 674_998 + 3_072,
}


def small_cnn(**arguments):
    stages = [(8, 1), (12, 2)]
    return zoo.plain_cnn(input_shape=(8, 8, 3), stages=stages, **arguments)


def test_every_variant_has_a_count():
    assert COUNTS.keys() == PLAIN_VARIANTS.keys() == HIGHWAY_VARIANTS.keys()


@pytest.mark.parametrize("variant", COUNTS)
def test_parameters_of_variants(variant):
    assert zoo.plain_cnn(variant).count_params() == COUNTS[variant]


@pytest.mark.parametrize(
    "depth, count", [(10, 102_463), (20, 153_583), (50, 306_943), (100, 562_543)]
)
def test_parameters_of_plain_mlp(depth, count):
    assert zoo.plain_mlp(depth=depth).count_params() == count


@pytest.mark.parametrize("variant", COUNTS)
def test_is_the_highway_net_without_gates(variant):
    plain = zoo.plain_cnn(variant, scan=False)
    highway = zoo.highway_cnn(variant, scan=False)
    names = [layer.name.replace("plain", "highway") for layer in plain.layers]
    assert names == [layer.name for layer in highway.layers]
    for mine, its in zip(plain.layers, highway.layers, strict=True):
        assert mine.output.shape == its.output.shape
    convolution = plain.get_layer("plain_01")
    assert convolution.activation is keras.activations.relu
    assert convolution.use_bias


def test_open_gates_make_the_plain_net():
    highway = zoo.highway_mlp(8, depth=4, units=8, gate_bias=100, scan=False)
    plain = zoo.plain_mlp(8, depth=4, units=8, scan=False)
    values = {w.path.replace("transform/", ""): w for w in highway.weights}
    for weight in plain.weights:
        weight.assign(values[weight.path.replace("plain", "highway")])
    x = np.random.default_rng(1).normal(size=(5, 8))
    assert np.abs(plain(x) - highway(x)).max() < 1e-6


def test_names_sort_by_depth():
    model = zoo.plain_mlp(4, depth=121, units=2, scan=False)
    names = [la.name for la in model.layers if la.name.startswith("plain_")]
    assert names[0] == "plain_001"
    assert names[-1] == "plain_120"
    assert names == sorted(names)


def test_inputs():
    assert zoo.plain_mlp(depth=2).input.name == "features"
    assert zoo.plain_mlp((8, 8, 1), depth=2).input.name == "image"
    assert small_cnn().input.name == "image"


def test_logits_are_float32_under_mixed_precision(policy):
    policy("mixed_float16")
    for model in (zoo.plain_mlp(8), small_cnn()):
        assert model.outputs[0].dtype == "float32"
        assert model(np.ones((1, *model.input_shape[1:]))).dtype == "float32"


def test_deep_plain_net_starts_dead():
    """50 layers with the draw U(±1/√n): the first layer's gradient is nothing, but
    not zero; its norm must be summed in float64."""
    draw = keras.initializers.VarianceScaling(1 / 3, "fan_in", "uniform")
    arguments = {"kernel_initializer": draw, "bias_initializer": draw}
    model = zoo.plain_mlp(64, depth=51, units=64, scan=False, **arguments)
    assert 0.12 < np.abs(model.get_layer("plain_25").kernel).max() <= 1 / 8
    rng = np.random.default_rng(1)
    x, labels = rng.normal(size=(256, 64)), rng.integers(0, 10, 256)
    ends = [model.get_layer(name).kernel.value for name in ("plain_01", "plain_50")]
    with tf.GradientTape() as tape:
        loss = keras.losses.sparse_categorical_crossentropy(
            labels, model(x), from_logits=True
        )
        loss = tf.reduce_mean(loss)
    first, last = (np.array(g, "float64") for g in tape.gradient(loss, ends))
    assert 0 < np.linalg.norm(first) / np.linalg.norm(last) < 1e-15


@pytest.mark.parametrize("seed", [None, 3])
@pytest.mark.parametrize("build", [zoo.plain_mlp, small_cnn], ids=["mlp", "cnn"])
def test_all_kernels_draw_apart(build, seed):
    shared = keras.initializers.HeNormal(seed=seed)
    for arguments in ({}, {"kernel_initializer": shared}):
        model = build(**arguments, scan=False)
        kernels = [w.numpy() for w in model.weights if w.path.endswith("kernel")]
        assert distinct_draws(kernels)


@pytest.mark.parametrize("build", [zoo.plain_mlp, small_cnn], ids=["mlp", "cnn"])
def test_one_draw_and_one_function_in_every_form(build):
    nets = []
    for scan in ("auto", True, False):
        keras.utils.set_random_seed(5)
        nets.append(build(scan=scan))
    draws = [zoo.convert(net, scan=False).get_weights() for net in nets]
    assert all(map(np.array_equal, draws[0], draws[1]))
    assert all(map(np.array_equal, draws[0], draws[2]))
    x = np.random.default_rng(1).uniform(0, 1, (2, *nets[0].input_shape[1:]))
    assert close(nets[0](x), nets[2](x), 1e-5)
    assert close(nets[1](x), nets[2](x), 1e-5)


def test_spec_rebuilds_the_net():
    for model in (zoo.plain_mlp((4, 4, 1), depth=3), small_cnn(dropout=0.1)):
        spec = json.loads(model.zoo_spec)
        copy = getattr(zoo, spec["builder"])(**spec["arguments"])
        copy.set_weights(model.get_weights())
        x = np.random.default_rng(1).uniform(0, 9, (2, *model.input_shape[1:]))
        assert np.array_equal(copy(x), model(x))


def test_wrong_arguments():
    with pytest.raises(ValueError, match="`depth` must be an integer.*depth=0"):
        zoo.plain_mlp(depth=0)
    with pytest.raises(ValueError, match="one of mnist_10, .*'mnist'"):
        zoo.plain_cnn("mnist")
    with pytest.raises(TypeError, match="gate_bias"):
        zoo.plain_cnn("mnist_10", gate_bias=-2)
