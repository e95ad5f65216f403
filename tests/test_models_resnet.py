import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import close, distinct_draws

import zoo
from recipes import configs
from zoo.layers import Residual, ScanLayers
from zoo.models import RESNET_VARIANTS
from zoo.models.resnet import TABLE_1, TABLE_2
from zoo.training import set_decay


def trainable(model):
    return sum(int(np.prod(w.shape)) for w in model.trainable_weights)


def units(model):
    return [layer for layer in model.layers if isinstance(layer, Residual)]


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


# ImageNet nets, 1,000 classes; those of the original unit are torchvision's.
IMAGENET_COUNTS = {
    ("preact_resnet", 18): 11_687_720,
    ("preact_resnet", 34): 21_795_880,
    ("preact_resnet", 50): 25_549_352,
    ("preact_resnet", 101): 44_541_480,
    ("preact_resnet", 152): 60_185_128,
    ("preact_resnet", 200): 64_666_152,
    ("resnet", 18): 11_689_512,
    ("resnet", 34): 21_797_672,
    ("resnet", 50): 25_557_032,
    ("resnet", 101): 44_549_160,
    ("resnet", 152): 60_192_808,
}


@pytest.fixture
def no_draws(monkeypatch):
    """All kernels 0: large nets build fast."""

    def zeros(self, shape, dtype=None):
        return keras.ops.zeros(shape, dtype)

    monkeypatch.setattr(keras.initializers.VarianceScaling, "__call__", zeros)


def imagenet(builder=zoo.preact_resnet, depth=18, **arguments):
    arguments = {"input_shape": (224, 224, 3), "num_classes": 1000, **arguments}
    return builder(depth, stem="imagenet", **arguments)


@pytest.mark.parametrize("net", IMAGENET_COUNTS, ids=str)
def test_parameters_of_imagenet_nets(net, no_draws):
    name, depth = net
    model = imagenet(getattr(zoo, name), depth)
    assert trainable(model) == IMAGENET_COUNTS[net]
    assert model.output_shape == (None, 1000)


# ResNet-110 of the original unit: stem 432 + 32; 18 units of 16, 2·(9·16² + 32) =
# 4,672 each; first of 32, 9·16·32 + 9·32² + 128 = 13,952 and a projection with its BN,
# 512 + 64; 17 of 2·(9·32² + 64) = 18,560; first of 64, 55,552 and 2,048 + 128; 17 of
# 73,984; logits 650.
ORIGINAL = 464 + 84_096 + 14_528 + 17 * 18_560 + 57_728 + 17 * 73_984 + 650
# A gate is a 1×1 convolution with bias: 18 of 16² + 16, 16·32 + 32, 17 of 32² + 32,
# 32·64 + 64, 17 of 64² + 64.
GATES = 18 * 272 + 544 + 17 * 1_056 + 2_112 + 17 * 4_160
# A convolution with BN where the shape stays: 16² + 32, 32² + 64, 64² + 128.
SHORTCUTS = 18 * 288 + 17 * 1_088 + 17 * 4_224
PROJECTION_NORMS = 64 + 128

TABLE_COUNTS = {
    "original": ORIGINAL,
    "constant scaling 0, 1": ORIGINAL,
    "constant scaling .5, 1": ORIGINAL,
    "constant scaling .5, .5": ORIGINAL,
    "exclusive gating, b 0": ORIGINAL + GATES,
    "exclusive gating, b -5": ORIGINAL + GATES,
    "exclusive gating, b -6": ORIGINAL + GATES,
    "exclusive gating, b -7": ORIGINAL + GATES,
    "shortcut-only gating, b 0": ORIGINAL + GATES,
    "shortcut-only gating, b -6": ORIGINAL + GATES,
    "1x1 conv shortcut": ORIGINAL + SHORTCUTS,
    "dropout shortcut .5": ORIGINAL,
    # no BN after the last convolution, so none after projections
    "BN after addition": ORIGINAL - PROJECTION_NORMS,
    "ReLU before addition": ORIGINAL,
    "ReLU-only pre-activation": ORIGINAL,
    # nor here; the BN of each sum stands in the next unit, or after the last one
    "full pre-activation": ORIGINAL - PROJECTION_NORMS,
}


def test_every_row_of_the_tables_has_a_count():
    assert TABLE_COUNTS.keys() == TABLE_1.keys() | TABLE_2.keys()
    assert TABLE_1["original"] == TABLE_2["original"] and len(TABLE_1) == 12
    assert TABLE_2["original"] == {"order": "original"} and len(TABLE_2) == 5
    assert ORIGINAL == 1_730_714


@pytest.mark.parametrize("row", TABLE_COUNTS)
def test_rows_of_the_tables(row):
    for table in (TABLE_1, TABLE_2):
        if row not in table:
            continue
        model = zoo.resnet(**table[row])
        assert model.name == "resnet_110"
        assert trainable(model) == TABLE_COUNTS[row]
        loops = [la for la in model.layers if isinstance(la, ScanLayers)]
        assert sum(loop.length for loop in loops) >= 51
        for template in (loop.template for loop in loops):
            for name, value in table[row].items():
                given = getattr(template, name)
                assert (tuple(given) if name == "scales" else given) == value


def test_parameters_of_other_resnets():
    assert trainable(zoo.resnet(20, shortcut="A")) == 269_722
    # + 512 and 2,048 for the projections, 64 and 128 for their BNs
    assert trainable(zoo.resnet(20)) == 269_722 + 2_752
    # Where the shape stays, units of one layer have what units of two have.
    assert trainable(zoo.resnet(110, skip=1)) == ORIGINAL
    assert trainable(zoo.preact_resnet(110, skip=1)) == COUNTS[110, 10, "B"]
    # Bottlenecks too differ from pre-activation by the BNs of the projections only.
    more = 2 * (64 + 128 + 256)
    assert trainable(zoo.resnet(164)) == COUNTS[164, 10, "B"] + more
    assert trainable(zoo.resnet(1001)) == COUNTS[1001, 10, "B"] + more


# The number of parameters of each variant, gates included.
VARIANTS = {"highway_110": 2_649_918}


def test_every_variant_has_a_count():
    assert VARIANTS.keys() == RESNET_VARIANTS.keys()


@pytest.mark.parametrize("variant", VARIANTS)
def test_parameters_of_variants(variant):
    assert trainable(zoo.resnet(variant)) == VARIANTS[variant]


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


def test_every_relu_follows_a_convolution():
    """BN-ReLU-BN-ReLU without a convolution between must be nowhere."""
    model = unrolled(29, bottleneck=True)
    spec = tf.TensorSpec((1, 32, 32, 3))
    graph = tf.function(model).get_concrete_function(spec).graph
    kinds = [op.type for op in graph.get_operations()]
    assert kinds.count("Relu") == 3 * 9 + 1  # one for each convolution of F, the last
    assert kinds.count("Conv2D") == 1 + 3 * 9 + 3  # stem, F, projections

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
        ({"shortcut": "D"}, "`shortcut` must be one of .*A.*'D'"),
        ({"strides_on": "2x2"}, "`strides_on` must be one of 3x3, 1x1.*'2x2'"),
        ({"pooling": "avg"}, "`pooling` is for include_top=False.*'avg'"),
        ({"pooling": "sum", "include_top": False}, "None, 'avg' or 'max'.*'sum'"),
        ({"mean": (1, 2, 3)}, "`mean` and `std` go together"),
        ({"mean": (1, 2), "std": (1, 2)}, "one value for each of the 3 channels"),
        ({"mean": (1, 2, 3), "std": (1, 0, 1)}, "std above 0"),
        ({"stem": "cifar10"}, "`stem` must be one of cifar, imagenet.*'cifar10'"),
        (
            {"depth": 20, "stem": "imagenet"},
            "one of 18, 34, 50, 101, 152, 200 for stem='imagenet'.*depth=20",
        ),
        ({"depth": "50", "stem": "imagenet"}, "`depth` must be one of.*depth='50'"),
        (
            {"depth": 18, "stem": "imagenet", "bottleneck": True},
            "`bottleneck` must be False or None for depth=18.*bottleneck=True",
        ),
        (
            {"depth": 50, "stem": "imagenet", "bottleneck": False},
            "`bottleneck` must be True or None for depth=50.*bottleneck=False",
        ),
        ({"depth": [18], "stem": "imagenet"}, r"`depth` must be one of.*\[18\]"),
        ({"bottleneck": "no"}, "`bottleneck` must be True, False or None.*'no'"),
        ({"skip": 3}, "`skip` must be 2, or 1 without bottlenecks.*skip=3"),
        ({"skip": 1, "depth": 29}, "`skip` must be 2, or 1.*bottleneck=True"),
        ({"stage_outputs": True}, "`stage_outputs` is for include_top=False"),
        (
            {"stage_outputs": True, "include_top": False, "pooling": "avg"},
            "`stage_outputs` is for include_top=False and pooling=None.*'avg'",
        ),
        ({"scan": "yes"}, "`scan` must be 'auto', True or False"),
    ],
)
def test_wrong_arguments(arguments, message):
    for builder in (zoo.preact_resnet, zoo.resnet):
        if arguments.get("shortcut") == "D" and builder is zoo.resnet:
            continue  # more of them there
        with pytest.raises(ValueError, match=message):
            builder(**{"depth": 20, **arguments})


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"order": "pre"}, "`order` must be one of .*order='pre'"),
        ({"shortcut": "D"}, "`shortcut` must be one of .*shortcut='D'"),
        ({"gate": "3x3"}, "`gate` must be one of 1x1, twin.*gate='3x3'"),
        ({"scales": (1, 2, 3)}, "`scales` must be two numbers.*1, 2, 3"),
        ({"rate": 1}, r"`rate` must be a number in \[0, 1\).*rate=1"),
        ({"gate_bias": None}, "`gate_bias` must be a number"),
        ({"filters": (16, 32)}, r"`filters` must be 3 widths.*\(16, 32\)"),
        ({"filters": 16}, "`filters` must be 3 widths, one a stage.*filters=16"),
        ({"filters": (16, 32, 0)}, "`filters` must be an integer.*filters=0"),
        (
            {"filters": (16, 32, 64), "stem": "imagenet", "depth": 18},
            "`filters` must be 4 widths",
        ),
    ],
)
def test_wrong_arguments_of_resnet(arguments, message):
    with pytest.raises(ValueError, match=message):
        zoo.resnet(**{"depth": 20, **arguments})


def test_unknown_variant():
    with pytest.raises(ValueError, match="`variant` must be .*highway_110.*'highway'"):
        zoo.resnet("highway")
    with pytest.raises(TypeError, match="preact_resnet: got an unexpected.*It takes"):
        zoo.preact_resnet(20, order="original")


def test_map_before_pooling_is_8_by_8():
    for builder in (zoo.preact_resnet, zoo.resnet):
        model = builder(20)
        assert model.get_layer("gap").input.shape == (None, 8, 8, 64)


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
    logits = []
    for shape in ((*size, 3), (None, None, 3)):
        model = zoo.preact_resnet(8, 7, shape)
        model.set_weights(logits[0][0] if logits else model.get_weights())
        logits.append((model.get_weights(), np.array(model(x))))
        assert model.output_shape == (None, 7)
        assert logits[-1][1].shape == (2, 7)
    assert close(logits[0][1], logits[1][1], 1e-5)


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


# -- stems and stages ----------------------------------------------------------------


@pytest.mark.parametrize(
    "builder, depth, last", [("preact_resnet", 18, 512), ("resnet", 50, 2048)]
)
def test_imagenet_maps(builder, depth, last, no_draws):
    model = imagenet(getattr(zoo, builder), depth)
    assert model.get_layer("gap").input.shape == (None, 7, 7, last)
    shapes = [model.get_layer(name).output.shape[1:] for name in ("stem", "stem_pool")]
    assert shapes == [(112, 112, 64), (56, 56, 64)]
    model = imagenet(
        getattr(zoo, builder), depth, include_top=False, stage_outputs=True
    )
    sizes = [model.output[f"stage_{i}"].shape[1] for i in range(1, 5)]
    assert sizes == [56, 28, 14, 7]


def test_stem_is_as_asked_whatever_the_images(no_draws):
    large = zoo.preact_resnet(8, input_shape=(224, 224, 3))
    assert large.get_layer("stem").output.shape == (None, 224, 224, 16)
    assert large.get_layer("gap").input.shape == (None, 56, 56, 64)
    tiny = imagenet(input_shape=(32, 32, 3))
    assert tiny.get_layer("gap").input.shape == (None, 1, 1, 512)


@pytest.mark.parametrize("size", [(33, 35), (30, 50), (65, 64), (1, 1)])
def test_imagenet_nets_on_odd_and_unknown_sizes(size):
    narrow = {"filters": (4, 5, 6, 7), "num_classes": 3}
    fixed = imagenet(zoo.resnet, input_shape=(*size, 3), **narrow)
    open_size = imagenet(zoo.resnet, input_shape=(None, None, 3), **narrow)
    open_size.set_weights(fixed.get_weights())
    x = np.random.default_rng(1).uniform(0, 255, (2, *size, 3)).astype("float32")
    expected = tuple(-(-n // 32) for n in size)
    assert fixed.get_layer("gap").input.shape[1:3] == expected
    assert fixed(x).shape == (2, 3)
    assert close(open_size(x), fixed(x), 1e-5)


def test_imagenet_stem_is_centred():
    """As Torch pads: the first windows centre on pixel 0."""
    model = imagenet(zoo.resnet, input_shape=(11, 13, 3), filters=(4, 4, 4, 4))
    stem = model.get_layer("stem")
    kernel = np.zeros(stem.kernel.shape, "float32")
    kernel[3, 3, 0] = 1  # the centre, first channel
    stem.kernel.assign(kernel)
    x = np.random.default_rng(1).uniform(0, 255, (2, 11, 13, 3)).astype("float32")
    first = np.array(model.get_layer("normalise")(x))[..., :1]
    assert close(
        keras.Model(model.input, stem.output)(x),
        np.repeat(first[:, ::2, ::2], 64, -1),
        1e-6,
    )
    relu = np.array(keras.Model(model.input, model.get_layer("stem_relu").output)(x))
    pooled = keras.Model(model.input, model.get_layer("stem_pool").output)(x)
    edges = [(0, 0), (1, 1), (1, 1), (0, 0)]
    around = np.pad(relu, edges, constant_values=-np.inf)
    windows = [
        around[:, i : i + 6 : 2, j : j + 7 : 2] for i in range(3) for j in range(3)
    ]
    assert np.array_equal(pooled, np.max(windows, 0))


@pytest.mark.parametrize("depth", [18, 50])
def test_imagenet_nets_activate_once_before_the_first_split(depth):
    """The first unit takes the stem's BN and ReLU: no second one before F."""
    model = imagenet(depth=depth, input_shape=(32, 32, 3), scan=False)
    first, second, *_ = units(model)
    count = {18: 2, 50: 3}[depth]
    assert first.activated and not first.first
    assert len(first.norms) == count - 1 and len(second.norms) == count
    assert [unit.activated for unit in units(model)[1:]] == [False] * (
        {18: 8, 50: 16}[depth] - 1
    )
    assert (first.projection is None) == (depth == 18)
    x = np.random.default_rng(1).normal(size=(1, 8, 8, 64)).astype("float32")
    last = first.convs[-1].kernel
    last.assign(np.zeros(last.shape))
    expected = x if depth == 18 else first.projection(x)
    assert np.array_equal(first(x), expected)


def test_no_two_activations_in_a_row_in_imagenet_nets():
    model = imagenet(depth=50, input_shape=(32, 32, 3), scan=False)
    spec = tf.TensorSpec((1, 32, 32, 3))
    operations = tf.function(model).get_concrete_function(spec).graph.get_operations()
    kinds = [op.type for op in operations]
    assert kinds.count("Relu") == 1 + 16 * 3  # stem, before each but one, the last
    assert kinds.count("Conv2D") == 1 + 16 * 3 + 4
    for op in operations:
        if op.type == "Relu":
            assert sources(op) == {"Conv2D"}


def test_layers_of_the_original_net():
    model = zoo.resnet(20, scan=False)
    numbers = [f"unit_{i:02d}" for i in range(1, 10)]
    assert [layer.name for layer in model.layers] == [
        "image", "normalise", "stem", "stem_norm", "stem_relu", *numbers, "gap",
        "logits",
    ]  # fmt: skip
    assert {unit.order for unit in units(model)} == {"original"}
    assert not any(unit.first or unit.activated for unit in units(model))
    assert [unit.strides for unit in units(model)] == [1, 1, 1, 2, 1, 1, 2, 1, 1]
    assert model.name == "resnet_20"


def test_layers_of_the_relu_only_net():
    """A BN follows every convolution: the stem's too, and none the last sum."""
    model = zoo.resnet(20, order="relu_only_preactivation", scan=False)
    names = [layer.name for layer in model.layers if "unit" not in layer.name]
    assert names == [
        "image", "normalise", "stem", "stem_norm", "post_relu", "gap", "logits"
    ]  # fmt: skip
    assert [unit.first for unit in units(model)] == [True] + [False] * 8


def test_full_preactivation_of_resnet_is_preact_resnet():
    model = zoo.resnet(20, order="full_preactivation", input_shape=(8, 8, 3))
    other = zoo.preact_resnet(20, input_shape=(8, 8, 3))
    other.set_weights(model.get_weights())
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    assert np.array_equal(model(x), other(x))


def test_one_layer_skips():
    for builder in (zoo.resnet, zoo.preact_resnet):
        model = builder(20, skip=1, scan=False)
        assert len(units(model)) == 18
        assert {len(unit.convs) for unit in units(model)} == {1}
        assert [unit.strides for unit in units(model)][::6] == [1, 2, 2]
    model = zoo.resnet(110, skip=1)
    loops = [la.length for la in model.layers if isinstance(la, ScanLayers)]
    assert loops == [36, 35, 35]


def plain_net(model, x, original):
    """ResNet-8 in plain operations: the reference of all that is around the units."""
    values = {w.path: w.numpy() for w in model.weights}

    def conv(x, name, strides=1):
        kernel = values[f"{name}/kernel"]
        edge = len(kernel) // 2
        x = tf.pad(x, [(0, 0), (edge, edge), (edge, edge), (0, 0)])
        return tf.nn.conv2d(x, kernel, strides, "VALID")

    def norm(x, name):
        parts = ("moving_mean", "moving_variance", "beta", "gamma")
        parts = [values[f"{name}/{part}"] for part in parts]
        return tf.nn.batch_normalization(x, *parts, 1e-5)

    def act(x, name):
        return tf.nn.relu(norm(x, name))

    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    x = conv(tf.cast((x / 255 - mean) / std, "float32"), "stem")
    if original:
        x = act(x, "stem_norm")
        for unit, strides in (("unit_01", 1), ("unit_02", 2), ("unit_03", 2)):
            y = act(conv(x, f"{unit}/conv_1", strides), f"{unit}/norm_1")
            y = norm(conv(y, f"{unit}/conv_2"), f"{unit}/norm_2")
            if strides == 2:
                x = conv(x, f"{unit}/projection", 2)
                x = norm(x, f"{unit}/projection_norm")
            x = tf.nn.relu(x + y)
    else:
        for unit, strides in (("unit_01", 1), ("unit_02", 2), ("unit_03", 2)):
            a = act(x, f"{unit}/norm_1")
            y = act(conv(a, f"{unit}/conv_1", strides), f"{unit}/norm_2")
            s = a if strides == 1 else conv(a, f"{unit}/projection", 2)
            x = s + conv(y, f"{unit}/conv_2")
        x = act(x, "post_norm")
    x = tf.reduce_mean(x, (1, 2))
    return x @ values["logits/kernel"] + values["logits/bias"]


@pytest.mark.parametrize("original", [True, False])
def test_equals_plain_operations(original):
    builder = zoo.resnet if original else zoo.preact_resnet
    model = builder(8, input_shape=(9, 10, 3), scan=False)
    rng = np.random.default_rng(1)
    for weight in model.weights:
        if weight.name.endswith(("gamma", "variance")):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
        elif weight.name != "kernel":
            weight.assign(rng.normal(0, 0.5, weight.shape))
    x = rng.uniform(0, 255, (3, 9, 10, 3))
    assert close(model(x), plain_net(model, x, original), 1e-5)


@pytest.mark.parametrize(
    "builder, arguments",
    [
        ("preact_resnet", {}),
        ("resnet", {}),
        ("resnet", {"order": "relu_only_preactivation", "filters": (8, 12, 20)}),
    ],
)
def test_stage_outputs(builder, arguments):
    """Each stage's map; the last one after the last BN and ReLU."""
    build = getattr(zoo, builder)
    size = {"input_shape": (8, 12, 3), "include_top": False}
    model = build(20, **size, stage_outputs=True, **arguments)
    whole = build(20, **size, **arguments)
    whole.set_weights(model.get_weights())
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 12, 3))
    maps = model(x)
    assert list(maps) == ["stage_1", "stage_2", "stage_3"]
    widths = arguments.get("filters", (16, 32, 64))
    assert [m.shape for m in maps.values()] == [
        (2, 8, 12, widths[0]), (2, 4, 6, widths[1]), (2, 2, 3, widths[2])
    ]  # fmt: skip
    assert np.array_equal(maps["stage_3"], whole(x))
    unrolled = zoo.convert(whole, scan=False)
    for stage, last in (("stage_1", "unit_03"), ("stage_2", "unit_06")):
        upto = keras.Model(unrolled.input, unrolled.get_layer(last).output)
        assert close(maps[stage], upto(x), 1e-6)


# -- Highway-110 ---------------------------------------------------------------------


def test_highway_110():
    model = zoo.resnet("highway_110", input_shape=(8, 8, 3), scan=False)
    names = [layer.name for layer in model.layers]
    assert names[:5] == ["image", "normalise", "stem", "stem_norm", "stem_relu"]
    # No activation after the last sum.
    assert names[-3:] == ["unit_54", "gap", "logits"]
    assert [unit.filters for unit in units(model)] == [14] * 18 + [28] * 18 + [56] * 18
    assert {unit.order for unit in units(model)} == {"relu_before_addition"}
    assert model.get_layer("stem").filters == 16
    projected = [i for i, unit in enumerate(units(model)) if unit.projection]
    assert projected == [0, 18, 36]  # 16 → 14 → 28 → 56
    for unit in units(model)[::18] + units(model)[-1:]:
        assert len(unit.gate_convs) == len(unit.gate_norms) == 2
        assert np.all(unit.gate_norms[-1].beta == -6)
        others = [w for w in unit.weights if w.name == "beta"]
        assert sum(np.any(w != 0) for w in others) == 1
        x = np.zeros((1, 4, 4, unit.convs[0].kernel.shape[2]))  # pre-gate BN gives 0
        expected = np.full(unit.gates(x).shape, 1 / (1 + np.exp(6)))
        assert close(unit.gates(x), expected, 1e-7)
    # With the gates shut, the shortcuts are all there is.
    first = units(model)[1]
    first.gate_norms[-1].beta.assign(np.full(14, -100.0))
    x = np.random.default_rng(1).normal(size=(2, 4, 4, 14)).astype("float32")
    assert np.array_equal(first(x), x)


def test_arguments_override_the_variant():
    model = zoo.resnet(
        "highway_110", depth=8, num_classes=7, gate_bias=-3, input_shape=(8, 8, 3)
    )
    assert model.output_shape == (None, 7) and model.name == "resnet_8"
    assert len(units(model)) == 3
    assert all(np.all(unit.gate_norms[-1].beta == -3) for unit in units(model))
    spec = json.loads(model.zoo_spec)
    assert spec["arguments"]["gate"] == "twin" and spec["arguments"]["depth"] == 8


# -- round trips ---------------------------------------------------------------------

ROUND_TRIPS = {
    "original": {},
    "stages": {"include_top": False, "stage_outputs": True},
    "highway": {
        "order": "relu_before_addition",
        "shortcut": "exclusive_gating",
        "gate": "twin",
        "gate_bias": -3.5,
        "filters": (6, 8, 10),
    },
    "scaled": {"shortcut": "constant_scaling", "scales": (0.5, 1.0), "skip": 1},
    "dropout": {"shortcut": "dropout", "rate": 0.25, "augment": True},
    "imagenet": {"depth": 34, "stem": "imagenet", "filters": (4, 5, 6, 7)},
}


@pytest.mark.parametrize("name", ROUND_TRIPS)
def test_resnet_comes_back(name, tmp_path):
    """From its spec, from its file, and from both forms."""
    arguments = {"depth": 20, "input_shape": (8, 8, 3), **ROUND_TRIPS[name]}
    model = zoo.resnet(**arguments, scan=True)
    x = np.random.default_rng(1).uniform(0, 255, (2, 8, 8, 3))
    before = keras.tree.flatten(model(x))

    spec = json.loads(model.zoo_spec)
    assert spec["builder"] == "resnet"
    from_spec = getattr(zoo, spec["builder"])(**spec["arguments"])
    assert from_spec.zoo_spec == model.zoo_spec
    assert [w.path for w in from_spec.weights] == [w.path for w in model.weights]
    from_spec.set_weights(model.get_weights())

    model.save(tmp_path / "model.keras")
    from_file = keras.models.load_model(tmp_path / "model.keras")

    unrolled = zoo.convert(model, scan=False)
    assert not [la for la in unrolled.layers if isinstance(la, ScanLayers)]
    looped = zoo.convert(unrolled, scan=True)
    assert [la.name for la in looped.layers] == [la.name for la in model.layers]
    assert [w.path for w in looped.weights] == [w.path for w in model.weights]
    assert json.loads(unrolled.zoo_spec)["arguments"]["scan"] is False

    for copy in (from_spec, from_file, unrolled, looped):
        y = copy(x)
        assert isinstance(y, dict) == (name == "stages")
        if isinstance(y, dict):
            assert list(y) == ["stage_1", "stage_2", "stage_3"]
        for given, expected in zip(keras.tree.flatten(y), before, strict=True):
            assert close(given, expected, 1e-6)


@pytest.mark.parametrize("name", ["mixed_float16", "mixed_bfloat16"])
def test_highway_resnet_under_mixed_precision(policy, name):
    policy(name)
    model = zoo.resnet("highway_110", depth=8, input_shape=(4, 4, 3))
    x = np.random.default_rng(1).uniform(0, 255, (4, 4, 4, 3))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.01), loss)
    losses = [float(model.train_on_batch(x, np.arange(4))) for _ in range(2)]
    assert np.isfinite(losses).all()
    assert model(x).dtype == "float32"


# -- cases 15 and 16 -----------------------------------------------------------------


def recipe():
    """The defaults of the recipe: optimizer, decay, augmentation."""
    config = configs.load("preact_resnet_cifar10_20")
    arguments = {key: v for key, v in config.optimizer.items() if key != "name"}
    assert config.optimizer["name"] == "sgd" and config.model["augment"]
    return config, keras.optimizers.SGD(**arguments)


def test_learns_32_images():
    """Case 15: the classes are colours, which the augmentation keeps."""
    config, optimizer = recipe()
    rng = np.random.default_rng(1)
    labels = np.arange(32) % 4
    images = rng.uniform(0, 255, (4, 1, 1, 3))[labels] + rng.normal(0, 30, (8, 8, 3))
    images = images + rng.normal(0, 30, (32, 8, 8, 3))
    model = small(num_classes=4, augment=True)
    set_decay(model, config.decay, config.decay_on)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer, loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=16, epochs=50, verbose=0)
    trained = history.history["accuracy"][-1]
    assert trained >= 0.9
    evaluated = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert evaluated["accuracy"] >= trained - 0.1


def test_gated_units_learn_too():
    rng = np.random.default_rng(1)
    labels = np.arange(32) % 4
    images = rng.uniform(0, 255, (4, 8, 8, 3))[labels]
    images = images + rng.normal(0, 30, (32, 8, 8, 3))
    gated = {"shortcut": "exclusive_gating", "gate_bias": -1}
    model = zoo.resnet(8, 4, (8, 8, 3), **gated)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
    history = model.fit(images, labels, batch_size=16, epochs=40, verbose=0)
    trained = history.history["accuracy"][-1]
    assert trained >= 0.9
    evaluated = model.evaluate(images, labels, verbose=0, return_dict=True)
    assert evaluated["accuracy"] >= trained - 0.1


@pytest.mark.parametrize("on", ["kernels", "everything"])
def test_decay_of_the_recipe(on):
    """Case 16: 5 steps of a loss that is 0, at the recipe's rates. Momentum sums the
    steps, so that the factor is that of the recursion below."""
    config, _ = recipe()
    rate, decay, momentum = config.optimizer["learning_rate"], config.decay, 0.9
    model = small()
    for weight in model.trainable_weights:
        if weight.name in ("beta", "bias"):
            weight.assign(np.full(weight.shape, 0.5))
    set_decay(model, decay, on)
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(
        keras.optimizers.SGD(rate, momentum=momentum),
        lambda y, logits: keras.ops.sum(0 * logits, axis=-1),
    )
    x = np.random.default_rng(1).uniform(0, 255, (4, 8, 8, 3))
    factor, velocity = 1.0, 0.0
    for _ in range(5):
        model.train_on_batch(x, np.zeros(4))
        velocity = momentum * velocity - rate * decay * factor
        factor += velocity
    assert factor < 1 - 5 * rate * decay
    for weight, old in zip(model.trainable_weights, before, strict=True):
        if on == "everything" or weight.path.endswith("kernel"):
            assert np.allclose(weight, old * factor, rtol=2e-6), weight.path
            assert np.abs(weight).sum() < np.abs(old).sum()
        else:
            assert np.array_equal(weight, old), weight.path
