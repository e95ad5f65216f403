import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close, distinct_draws

import zoo
from zoo.layers import PreActResidual


def trainable(model):
    return sum(int(np.prod(w.shape)) for w in model.trainable_weights)


def units(model):
    return [layer for layer in model.layers if isinstance(layer, PreActResidual)]


def small(**arguments):
    return zoo.preact_resnet(8, input_shape=(8, 8, 3), **arguments)


def unrolled(*args, **arguments):
    return zoo.preact_resnet(*args, **arguments, scan=False)


# depth, classes, shortcut → trainable parameters: those of the paper's nets, equal to
# those of a public zoo.
COUNTS = {
    (20, 10, "A"): 269_722,
    (20, 10, "B"): 272_282,
    (20, 100, "A"): 275_572,
    (20, 100, "B"): 278_132,
    (110, 10, "A"): 1_727_962,
    (110, 10, "B"): 1_730_522,
    (110, 100, "A"): 1_733_812,
    (110, 100, "B"): 1_736_372,
    (164, 10, "B"): 1_703_258,
    (164, 100, "B"): 1_726_388,
    (1001, 10, "B"): 10_327_706,
    (1001, 100, "B"): 10_350_836,
    (1202, 10, "A"): 19_421_274,
    (1202, 10, "B"): 19_423_834,
}


@pytest.mark.parametrize("net", COUNTS, ids=str)
def test_parameters(net):
    depth, classes, shortcut = net
    model = zoo.preact_resnet(depth, classes, shortcut=shortcut)
    assert trainable(model) == COUNTS[net]
    assert model.output_shape == (None, classes)


def test_parameters_of_unrolled_nets():
    for depth in (20, 29):
        assert trainable(unrolled(depth)) == trainable(zoo.preact_resnet(depth))


@pytest.mark.slow
@pytest.mark.parametrize("depth", [1001, 1202])
def test_parameters_of_deep_unrolled_nets(depth):
    assert trainable(unrolled(depth)) == COUNTS[depth, 10, "B"]


def test_strides_do_not_change_the_count():
    first, middle = (unrolled(29, strides_on=where) for where in ("1x1", "3x3"))
    assert trainable(first) == trainable(middle)
    assert units(first)[3].convs[0].strides == (2, 2)
    assert units(middle)[3].convs[1].strides == (2, 2)


def test_every_relu_follows_a_convolution():
    """BN-ReLU-BN-ReLU without a convolution between must be nowhere."""
    model = unrolled(29, bottleneck=True)
    spec = tf.TensorSpec((1, 32, 32, 3))
    graph = tf.function(model).get_concrete_function(spec).graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("Relu") == 3 * 9 + 1  # one for each convolution of F, the last
    assert kinds.count("Conv2D") == 1 + 3 * 9 + 3  # stem, F, projections

    def sources(op):
        """The next convolutions and ReLUs upstream."""
        found, seen, queue = set(), set(), list(op.inputs)
        while queue:
            upstream = queue.pop().op
            if upstream.type in ("Conv2D", "Relu"):
                found.add(upstream.type)
            elif upstream not in seen:
                seen.add(upstream)
                queue += upstream.inputs
        return found

    for op in graph.get_operations():
        if op.type == "Relu":
            assert sources(op) == {"Conv2D"}
    first, *_ = (op for op in graph.get_operations() if op.type == "Conv2D")
    assert sources(first) == set()
    *_, pooling = (op for op in graph.get_operations() if op.type == "Mean")
    assert sources(pooling) == {"Relu"}


def test_layers_from_input_to_logits():
    model = unrolled(20)
    numbers = [f"unit_{i:02d}" for i in range(1, 10)]
    assert [layer.name for layer in model.layers] == [
        "image", "normalise", "stem", *numbers, "post_norm", "post_relu", "gap",
        "logits",
    ]  # fmt: skip
    assert [unit.filters for unit in units(model)] == [16] * 3 + [32] * 3 + [64] * 3
    assert [unit.strides for unit in units(model)] == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    assert [unit.first for unit in units(model)] == [True] + [False] * 8
    projected = [unit.projection is not None for unit in units(model)]
    assert projected == [False] * 3 + [True, False, False] * 2
    assert model.name == "preact_resnet_20"
    # Stem, 3 × 3 units of 2 convolutions and 2 BN, 2 projections, the last BN.
    layers = list(model._flatten_layers(include_self=False))
    assert sum(isinstance(la, keras.layers.Conv2D) for la in layers) == 1 + 18 + 2
    norms = [la for la in layers if isinstance(la, keras.layers.BatchNormalization)]
    assert len(norms) == 18 + 1
    assert {(norm.momentum, norm.epsilon) for norm in norms} == {(0.9, 1e-5)}


def test_names_sort_by_depth():
    names = [unit.name for unit in units(unrolled(110))]
    assert len(names) == 54
    assert names == sorted(names)


@pytest.mark.parametrize(
    "depth, bottleneck",
    [(20, False), (38, False), (56, False), (29, True), (164, True)],
)
def test_default_unit(depth, bottleneck):
    model = unrolled(depth, input_shape=(8, 8, 3))
    assert {unit.bottleneck for unit in units(model)} == {bottleneck}


def test_depth_that_fits_both_rules():
    assert len(units(unrolled(20, bottleneck=True))) == 6
    assert len(units(unrolled(20, bottleneck=False))) == 9


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"depth": 100}, r"6n \+ 2.*9n \+ 2.*98 basic, 101 bottleneck.*depth=100"),
        ({"depth": 21}, "nearest: 20 basic, 20 bottleneck.*depth=21"),
        ({"depth": 0}, "nearest: 8 basic, 11 bottleneck.*depth=0"),
        ({"depth": "50"}, r"`depth` must be 6n \+ 2 .*n ≥ 1. Received: depth='50'"),
        ({"depth": 20.0}, "depth=20.0"),
        ({"depth": 29, "bottleneck": False}, r"6n \+ 2 \(basic units\), n ≥ 1.*=29"),
        ({"depth": 32, "bottleneck": True}, "nearest: 29 bottleneck.*depth=32"),
        ({"num_classes": 0}, "`num_classes` must be an integer of at least 1.*=0"),
        ({"input_shape": (32, 32)}, r"`input_shape` must be .*\(32, 32\)"),
        ({"input_shape": (0, 32, 3)}, r"`input_shape` must be .*\(0, 32, 3\)"),
        ({"input_shape": (32, 32, None)}, "`input_shape` must be .*None"),
        ({"shortcut": "D"}, "`shortcut` must be 'A' or 'B'.*'D'"),
        ({"strides_on": "2x2"}, "`strides_on` must be '3x3' or '1x1'.*'2x2'"),
        ({"pooling": "avg"}, "`pooling` is for include_top=False.*'avg'"),
        ({"pooling": "sum", "include_top": False}, "None, 'avg' or 'max'.*'sum'"),
        ({"mean": (1, 2, 3)}, "`mean` and `std` go together"),
        ({"mean": (1, 2), "std": (1, 2)}, "one value for each of the 3 channels"),
        ({"mean": (1, 2, 3), "std": (1, 0, 1)}, "std above 0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.preact_resnet(**{"depth": 20, **arguments})


def test_map_before_pooling_is_8_by_8():
    model = zoo.preact_resnet(20)
    assert model.get_layer("post_relu").output.shape == (None, 8, 8, 64)


def test_without_top():
    model = small(include_top=False, num_classes=7)
    assert model.output_shape == (None, 2, 2, 64)
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    features = np.array(model(x))
    for pooling, reduce in (("avg", np.mean), ("max", np.max)):
        pooled = small(include_top=False, pooling=pooling, num_classes=7)
        pooled.set_weights(model.get_weights())
        assert pooled.output_shape == (None, 64)
        assert close(pooled(x), reduce(features, (1, 2)), 1e-6)


@pytest.mark.parametrize("size, last", [((33, 35), (9, 9)), ((30, 50), (8, 13))])
def test_odd_sizes(size, last):
    fixed = zoo.preact_resnet(8, input_shape=(*size, 3), include_top=False)
    assert fixed.output_shape == (None, *last, 64)
    open_size = zoo.preact_resnet(8, input_shape=(None, None, 3), include_top=False)
    assert open_size.output_shape == (None, None, None, 64)
    open_size.set_weights(fixed.get_weights())
    x = np.random.default_rng(1).uniform(0, 255, (2, *size, 3))
    y = fixed(x)
    assert y.shape == (2, *last, 64)
    assert close(open_size(x), y, 1e-5)


@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("depth", [8, 11])
def test_small_images(depth, size):
    for strides_on in ("3x3", "1x1"):
        model = zoo.preact_resnet(
            depth, input_shape=(size, size, 3), strides_on=strides_on
        )
        assert np.isfinite(model(np.ones((2, size, size, 3)))).all()


def test_normalises_raw_pixels():
    def normalised(x, **arguments):
        model = zoo.preact_resnet(8, input_shape=(1, 1, x.shape[-1]), **arguments)
        return model.get_layer("normalise")(x)

    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    x = (255 * (mean + std))[None, None, None]
    assert close(normalised(x), np.ones((1, 1, 1, 3)), 1e-5)
    assert close(normalised(np.full((1, 1, 1, 1), 255.0)), [[[[2.0]]]], 1e-6)
    x = np.full((1, 1, 1, 1), 10.0)
    assert close(normalised(x, mean=(4,), std=(3,)), [[[[2.0]]]], 1e-6)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_logits_are_float32_under_mixed_precision(policy, name):
    policy(name)
    model = small()
    logits = model(np.full((2, 8, 8, 3), 255.0))
    assert model.outputs[0].dtype == logits.dtype == "float32"
    assert np.isfinite(logits).all()


def test_all_kernels_draw_apart():
    model = unrolled(29)
    kernels = [w.numpy() for w in model.weights if w.path.endswith("kernel")]
    assert len(kernels) == 1 + 27 + 3 + 1
    assert distinct_draws(kernels)


def test_seed_repeats_the_weights():
    nets = []
    for scan in ("auto", True, False):
        keras.utils.set_random_seed(5)
        nets.append(zoo.preact_resnet(26, input_shape=(8, 8, 3), scan=scan))
    draws = [zoo.convert(net, scan=False).get_weights() for net in nets]
    assert all(map(np.array_equal, draws[0], draws[1]))
    assert all(map(np.array_equal, draws[0], draws[2]))


def test_loops_compute_the_unrolled_net():
    x = np.random.default_rng(1).uniform(0, 255, (3, 8, 8, 3))
    looped = zoo.preact_resnet(26, input_shape=(8, 8, 3), scan=True)
    by_hand = zoo.convert(looped, scan=False)
    assert len(by_hand.layers) > len(looped.layers)
    for training in (False, True):
        y = by_hand(x, training=training)
        assert close(looped(x, training=training), y, 1e-5)
    assert close(looped(x), by_hand(x), 1e-5)  # with the statistics of that step


def test_spec_rebuilds_the_net():
    model = small(
        num_classes=7,
        include_top=False,
        pooling="max",
        shortcut="A",
        mean=(1, 2, 3),
        std=(4, 5, 6),
    )
    spec = json.loads(model.zoo_spec)
    copy = getattr(zoo, spec["builder"])(**spec["arguments"])
    copy.set_weights(model.get_weights())
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    assert np.array_equal(copy(x), model(x))
    assert copy.zoo_spec == model.zoo_spec


def test_saves_and_loads(tmp_path):
    model = small()
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    assert np.array_equal(copy(x), model(x))


def test_learns_32_images():
    rng = np.random.default_rng(1)
    labels = np.arange(32) % 4
    images = rng.uniform(0, 255, (4, 8, 8, 3))[labels] + rng.normal(0, 20, (8, 8, 3))
    images = images + rng.normal(0, 40, images.shape)
    model = small(num_classes=4)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    optimizer = keras.optimizers.SGD(0.1, momentum=0.9)
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=16, epochs=50, verbose=0)
    trained = history.history["accuracy"][-1]
    assert trained >= 0.9
    evaluated = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert evaluated["accuracy"] >= trained - 0.1
