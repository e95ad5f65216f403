import keras
import numpy as np
import pytest
from helpers import sigmoid

import zoo
from zoo import analysis, datasets


def digits(count=60):
    images, labels = datasets.arrays("digits", "test")
    return images[:count], labels[:count]


both_forms = pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])


def dense_net(scan=False, depth=5, carry="coupled"):
    return zoo.highway_mlp(
        (8, 8, 1),
        depth=depth,
        units=8,
        gate_bias=0.0,
        carry=carry,
        rescale=1 / 16,
        scan=scan,
    )


def without(model, layers, **arguments):
    """`dense_net` with some highway layers left out, rebuilt on the same weights."""
    shallow = dense_net(depth=5 - len(layers), **arguments)
    weights = zoo.convert(model, scan=False).weights
    kept = [w for w in weights if w.path.split("/")[0] not in layers]
    shallow.set_weights([w.numpy() for w in kept])
    return shallow


def measured(model, images, labels):
    """Loss, accuracy and predictions, from the logits."""
    return scores(np.float64(model.predict(images, verbose=0)), labels)


def scores(logits, labels):
    odds = np.exp(logits - logits.max(1, keepdims=True))
    right = odds[np.arange(len(labels)), labels] / odds.sum(1)
    predicted = logits.argmax(1)
    return -np.log(right).mean(), np.mean(predicted == labels), predicted


@both_forms
def test_closing_a_layer_is_leaving_it_out(scan):
    model, (images, labels) = dense_net(scan), digits()
    lesions = analysis.lesions(model, images, labels)
    loss, accuracy, intact = measured(model, images, labels)
    # On some CPUs the logits are the same bits, on others they differ in the last one.
    assert abs(lesions.intact_loss - loss) < 1e-7
    assert lesions.intact_accuracy == accuracy
    assert lesions.names == [f"highway_0{i}" for i in (1, 2, 3, 4)]
    for i, name in enumerate(lesions.names):
        shallow = without(model, [name])
        loss, accuracy, predicted = measured(shallow, images, labels)
        assert abs(lesions.loss[i] - loss) < 1e-7
        assert lesions.accuracy[i] == accuracy
        assert lesions.changed[i] == np.mean(predicted != intact)
    assert lesions.changed.any()


@both_forms
def test_closing_all_layers_leaves_stem_and_logits(scan):
    model, (images, labels) = dense_net(scan), digits()
    lesions = analysis.lesions(model, images, labels)
    loss, accuracy, _ = measured(without(model, lesions.names), images, labels)
    assert abs(lesions.closed_loss - loss) < 1e-7
    assert lesions.closed_accuracy == accuracy


def test_agrees_with_keras():
    model, (images, labels) = dense_net(), digits()
    lesions = analysis.lesions(model, images, labels)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(loss=loss, metrics=["accuracy"])
    values = model.evaluate(images, labels, verbose=0)
    assert np.allclose(values, (lesions.intact_loss, lesions.intact_accuracy), 1e-6)


@both_forms
def test_separate_carry_leaves_its_own_gate_times_the_input(scan):
    model, (images, labels) = dense_net(depth=2, carry="separate"), digits()
    model.get_layer("highway_01").carry_gate.bias.assign(np.linspace(-2, 2, 8))
    w = {v.path: np.float64(v) for v in model.weights}
    lesions = analysis.lesions(zoo.convert(model, scan), images, labels)
    x = np.maximum(images.reshape(-1, 64) / 16 @ w["stem/kernel"], 0)
    x *= sigmoid(x @ w["highway_01/carry/kernel"] + w["highway_01/carry/bias"])
    loss, accuracy, _ = scores(x @ w["logits/kernel"], labels)
    assert np.isclose(lesions.loss, [loss], rtol=1e-6)  # float32 against float64
    assert lesions.accuracy == [accuracy]
    assert lesions.closed_loss == lesions.loss[0]


def test_identity_carry_leaves_the_input():
    model, (images, labels) = dense_net(carry="identity"), digits()
    lesions = analysis.lesions(model, images, labels)
    shallow = without(model, ["highway_02"], carry="identity")
    loss, _, _ = measured(shallow, images, labels)
    assert abs(lesions.loss[1] - loss) < 1e-7


@both_forms
def test_convolutional_net_with_dropout(scan):
    def make(layers):
        return zoo.highway_cnn(
            input_shape=(8, 8, 1),
            stages=((4, layers), (6, 1)),
            dropout=0.5,
            gate_bias=0.0,
            rescale=1 / 16,
            scan=False,
        )

    model, (images, labels) = make(2), digits(20)
    lesions = analysis.lesions(zoo.convert(model, scan), images, labels)
    kept = [w.numpy() for w in model.weights if not w.path.startswith("highway_02")]
    shallow = make(1)
    shallow.set_weights(kept)
    loss, accuracy, _ = measured(shallow, images, labels)
    assert np.isclose(lesions.loss[1], loss, rtol=1e-6)
    assert lesions.accuracy[1] == accuracy


@both_forms
def test_batch_size_does_not_matter(scan):
    model, (images, labels) = dense_net(scan), digits(40)
    data = datasets.load("digits", "test", 16)
    results = [analysis.lesions(model, images, labels, n) for n in (None, 128, 7)]
    results.append(analysis.lesions(model, data.take(2)))
    first_32 = analysis.lesions(model, images[:32], labels[:32])
    for one, other in zip([results[0], results[0], first_32], results[1:], strict=True):
        assert np.allclose(one.loss, other.loss, rtol=1e-6)
        assert np.array_equal(one.accuracy, other.accuracy)


def unit_net(scan, **arguments):
    keras.utils.set_random_seed(3)
    net = zoo.resnet(20, input_shape=(8, 8, 1), scan=False, **arguments)
    rng = np.random.default_rng(0)
    for weight in net.weights:  # statistics of BN that differ from the batch's
        if weight.path.endswith(("moving_mean", "moving_variance")):
            weight.assign(rng.uniform(0.5, 1.5, weight.shape))
    return zoo.convert(net, scan)


@pytest.mark.parametrize(
    "arguments, scan",
    [
        ({"order": "full_preactivation"}, True),
        ({"order": "bn_after_addition"}, False),
        ({"shortcut": "shortcut_only_gating", "gate_bias": 0.0}, True),
    ],
    ids=["preactivation", "bn_after", "shortcut_only"],
)
def test_residual_unit_is_skipped(arguments, scan):
    model, (images, labels) = unit_net(scan, **arguments), digits(12)
    lesions = analysis.lesions(model, images, labels)
    assert lesions.names == [f"unit_0{i}" for i in range(1, 10)]
    assert np.isclose(lesions.intact_loss, measured(model, images, labels)[0], 1e-6)
    for i, name in ((0, "unit_01"), (2, "unit_03"), (8, "unit_09")):
        shallow = zoo.models.without_layers(model, [name])
        loss, accuracy, _ = measured(shallow, images, labels)
        assert np.isclose(lesions.loss[i], loss, rtol=1e-6)
        assert lesions.accuracy[i] == accuracy


@pytest.mark.parametrize("order", ["full_preactivation", "bn_after_addition"])
def test_unit_that_changes_the_shape_leaves_its_shortcut(order):
    model, (images, labels) = unit_net(False, order=order), digits(12)
    lesions = analysis.lesions(model, images, labels)
    unit = model.get_layer("unit_04")
    unit.convs[-1].kernel.assign(np.zeros(unit.convs[-1].kernel.shape))  # F = 0
    loss, _, _ = measured(model, images, labels)
    assert np.isclose(lesions.loss[3], loss, rtol=1e-6)


@both_forms
def test_sets_of_layers(scan):
    model, (images, labels) = dense_net(scan), digits()
    names = [f"highway_0{i}" for i in (1, 2, 3, 4)]
    sets = [names[2:], [names[1], names[3]], [], names]
    lesions = analysis.lesions(model, images, labels, sets=sets)
    assert lesions.names == [
        "highway_03 … highway_04",
        "highway_02 … highway_04",
        "",
        "highway_01 … highway_04",
    ]
    for i, some in enumerate(sets):
        loss, accuracy, _ = measured(without(model, some), images, labels)
        assert abs(lesions.loss[i] - loss) < 1e-7
        assert lesions.accuracy[i] == accuracy
    assert lesions.loss[2] == lesions.intact_loss
    assert lesions.loss[3] == lesions.closed_loss
    with pytest.raises(ValueError, match="highway_01 … highway_04. Received: high_05"):
        analysis.lesions(model, images, labels, sets=[["high_05"]])


def test_paths_side_by_side():
    x = keras.Input((4,))
    sides = [zoo.layers.HighwayDense(name=f"side_{i}")(x) for i in (1, 2)]
    model = keras.Model(x, keras.layers.Dense(3)(keras.layers.Add()(sides)))
    with pytest.raises(ValueError, match="one after the other.*paths run side by side"):
        analysis.lesions(model, np.ones((2, 4)), [0, 1])


def test_masks():
    model = keras.Sequential(
        [
            keras.Input((3, 4)),
            keras.layers.Masking(),
            zoo.layers.HighwayDense(),
            keras.layers.GlobalAveragePooling1D(),
        ]
    )
    x = np.random.default_rng(0).normal(size=(2, 3, 4)).astype("float32")
    x[0, 1:] = 0  # masked
    means = np.stack([x[0, 0], x[1].mean(0)])
    found = analysis.lesions(model, x, [0, 1])
    assert np.isclose(found.loss[0], scores(means, [0, 1])[0], rtol=1e-6)
    intact = scores(np.array(model(x)), [0, 1])[0]
    assert np.isclose(found.intact_loss, intact, rtol=1e-6) and intact != found.loss[0]


@both_forms
def test_model_is_left_alone(scan):
    model, (images, labels) = dense_net(scan), digits()
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
    weights, logits = model.get_weights(), model.predict(images, verbose=0)
    config, layers = model.to_json(), list(model.layers)
    first = analysis.lesions(model, images, labels)
    assert model.to_json() == config
    assert model.layers == layers
    assert all(map(np.array_equal, model.get_weights(), weights))
    assert np.array_equal(model.predict(images, verbose=0), logits)
    again = analysis.lesions(model, images, labels)
    assert all(map(np.array_equal, first, again))
    model.train_on_batch(images, labels)
    assert not np.array_equal(model.get_weights()[0], weights[0])


IMAGES = np.ones((2, 8, 8, 1))


def test_net_without_highway_layers():
    model = zoo.plain_mlp((8, 8, 1), depth=3)
    with pytest.raises(
        ValueError, match="highway layers or residual units.*'plain_mlp_3'"
    ):
        analysis.lesions(model, IMAGES, [0, 1])


@pytest.mark.parametrize(
    "images, labels, message",
    [
        (np.ones((2, 9, 8, 1)), [0, 1], r"`images` must have the shape \(batch, 8, 8"),
        (np.ones((0, 8, 8, 1)), [], "with at least one image"),
        (IMAGES, [0, 10], "`labels` must lie in 0 … 9"),
        (IMAGES, [0, 1, 2], "`labels` must be 2 integers"),
        (IMAGES, [0.0, 1.0], "`labels` must be 2 integers"),
        (IMAGES, None, "`labels` must be given, one class for each image"),
    ],
)
def test_input_that_does_not_fit(images, labels, message):
    with pytest.raises(ValueError, match=message):
        analysis.lesions(dense_net(), images, labels)
