import keras
import numpy as np
import pytest
import tensorflow as tf

import zoo
from zoo import analysis, datasets

KEPT = ["highway_02", "highway_05"]


def digits(count=200):
    images, labels = datasets.arrays("digits", "test")
    return images[:count], labels[:count]


def net(scan=False):
    """Six highway layers, of which all but two carry."""
    model = zoo.highway_mlp(
        (8, 8, 1), depth=7, units=16, rescale=1 / 16, gate_bias=0.0, scan=False
    )
    for layer in model.layers:
        if layer.name.startswith("highway") and layer.name not in KEPT:
            layer.gate.kernel.assign(np.zeros((16, 16)))
            layer.gate.bias.assign(np.full(16, -200.0))
    return zoo.convert(model, scan)


def own_labels(model, images):
    """Labels that the model gets right."""
    return model.predict(images, verbose=0).argmax(1)


@pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])
def test_layers_that_carry_go_and_the_others_stay(scan, tmp_path):
    model, (images, _) = net(scan), digits()
    labels = own_labels(model, images)
    weights = model.get_weights()
    shallow, report = analysis.prune(model, images, labels, max_accuracy_loss=0.0)
    assert report.kept == KEPT
    assert sorted(report.removed) == [
        "highway_01",
        *(f"highway_0{i}" for i in (3, 4, 6)),
    ]
    assert np.array_equal(
        shallow.predict(images, verbose=0), model.predict(images, verbose=0)
    )
    assert shallow.name == "highway_mlp_7_pruned"
    assert report.accuracy_before == report.accuracy_after == 1.0
    assert report.parameters_before - report.parameters_after == 4 * 2 * (256 + 16)
    assert report.flops_before - report.flops_after == 4 * 2 * 2 * 256
    assert report.milliseconds_before > 0 < report.milliseconds_after
    assert report.accuracy_before_tuning is None
    assert all(map(np.array_equal, model.get_weights(), weights))
    assert "2 of 6 layers are kept" in str(report)

    y = shallow.predict(images, verbose=0)
    shallow.save(tmp_path / "net.keras")
    path = zoo.export.export_saved_model(shallow, tmp_path / "net")
    others = [
        keras.models.load_model(tmp_path / "net.keras"),
        zoo.load(path),
        zoo.convert(shallow, True),
        zoo.convert(shallow, False),
    ]
    for other in others:
        assert np.array_equal(other.predict(images, verbose=0), y)
    assert analysis.trace(others[1], images[:2]).names == KEPT
    assert list(zoo.load_served(path).card["gates"].values()) == [KEPT]


def test_all_layers_may_go():
    model, (images, _) = net(), digits(40)
    shallow, report = analysis.prune(
        model, images, own_labels(model, images), max_accuracy_loss=1.0
    )
    assert report.kept == [] and len(report.removed) == 6
    assert [layer.name for layer in shallow.layers][-2:] == ["stem", "logits"]


def test_no_layer_can_go():
    model, (images, _) = net(), digits(60)
    model = zoo.models.without_layers(model, [f"highway_0{i}" for i in (1, 3, 4, 6)])
    for name in KEPT:  # wide open
        model.get_layer(name).gate.bias.assign(np.full(16, 5.0))
    labels = own_labels(model, images)
    shallow, report = analysis.prune(model, images, labels, max_accuracy_loss=0.0)
    assert report.kept == KEPT and report.removed == [] and report.rounds == 1
    assert shallow.count_params() == model.count_params()


def test_report_is_on_data_that_did_not_choose(monkeypatch):
    model, (images, labels) = net(), digits(199)
    seen = []
    measure = analysis.pruning.measure

    def spy(chain, model, images, *rest):
        seen.append(images)
        return measure(chain, model, images, *rest)

    monkeypatch.setattr(analysis.pruning, "measure", spy)
    reports = [analysis.prune(model, images, labels, seed=s)[1] for s in (0, 0, 1)]
    chose = {image.tobytes() for image in seen[0]}
    other = [image for image in images if image.tobytes() not in chose]
    report = reports[0]
    assert report.images + report.chosen_by_images == 199
    assert len(other) == report.images
    assert abs(report.images - report.chosen_by_images) <= 10  # one for each class
    assert not np.array_equal(seen[0], seen[-1])
    assert reports[0].accuracy_before == reports[1].accuracy_before

    own = digits(7)
    report = analysis.prune(model, images, labels, report_data=own)[1]
    assert (report.images, report.chosen_by_images) == (7, 199)
    right = np.mean(own_labels(model, own[0]) == own[1])
    assert report.accuracy_before == right


def test_units_of_a_resnet():
    keras.utils.set_random_seed(2)
    model = zoo.preact_resnet(20, input_shape=(8, 8, 1), scan=True)
    images, labels = digits(40)
    shallow, report = analysis.prune(model, images, labels, max_accuracy_loss=0.99)
    # What changes the shape cannot go.
    assert report.kept == ["unit_04", "unit_07"]
    assert [la.name for la in shallow.layers if "unit" in la.name] == report.kept
    assert report.accuracy_after == np.mean(
        own_labels(shallow, analysis.pruning._halves(images, labels, 0)[1][0])
        == analysis.pruning._halves(images, labels, 0)[1][1]
    )


def test_separate_carry_is_taken_out_not_closed():
    model = zoo.highway_mlp((4,), depth=3, units=4, carry="separate")
    images = np.random.default_rng(0).normal(size=(30, 4)).astype("float32")
    shallow, report = analysis.prune(
        model, images, own_labels(model, images), max_accuracy_loss=1.0
    )
    assert report.kept == []
    x = np.maximum(images @ np.array(model.get_layer("stem").kernel), 0)
    y = x @ np.array(model.get_layer("logits").kernel)
    assert np.allclose(shallow.predict(images, verbose=0), y, atol=1e-6)


@pytest.mark.parametrize("limit, undone", [(0.0, True), (1.0, False)])
def test_fine_tuning_that_makes_it_worse(limit, undone):
    def train(shallow):
        tuned.append(shallow)
        shallow.get_layer("logits").bias.assign(1e4 * np.eye(10)[3])

    tuned = []
    model, (images, _) = net(), digits()
    labels = own_labels(model, images)
    shallow, report = analysis.prune(
        model, images, labels, max_accuracy_loss=limit, fine_tune=train
    )
    assert tuned == [shallow]
    half = analysis.pruning._halves(images, labels, 0)[1][1]
    if undone:
        assert report.kept == KEPT
        assert report.accuracy_after == report.accuracy_before == 1.0
        assert np.array_equal(own_labels(shallow, images), labels)
    else:
        assert report.accuracy_after == np.mean(half == 3)


def test_pruning_and_tuning_in_turn():
    """As if the training taught the fifth layer to carry."""

    def train(shallow):
        tuned.append(shallow)
        if len(tuned) == 1:
            gate = shallow.get_layer("highway_05").gate
            gate.kernel.assign(np.zeros((16, 16)))
            gate.bias.assign(np.full(16, -200.0))
            labels[:] = own_labels(shallow, images)

    tuned = []
    model, (images, _) = net(), digits()
    labels = own_labels(model, images)
    shallow, report = analysis.prune(
        model,
        images,
        labels,
        max_accuracy_loss=0.0,
        report_data=(images, labels),
        fine_tune=train,
    )
    kept = [[la.name for la in one.layers if "highway" in la.name] for one in tuned]
    assert kept == [KEPT, KEPT[:1]]
    assert tuned[1] is shallow and report.kept == KEPT[:1]
    assert report.removed[-1] == "highway_05" and len(report.removed) == 5
    assert report.accuracy_after == report.chosen_by_after == 1.0


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"max_accuracy_loss": 2}, "`max_accuracy_loss` must be a share in 0 … 1"),
        (
            {"labels": np.arange(4)},
            "two images or more of some class.*4 images",
        ),
        ({"labels": None}, "`labels` must be given"),
        ({"report_data": (np.ones((1, 9, 8, 1)), [0])}, r"must have the shape \(batch"),
    ],
)
def test_input_that_does_not_fit(arguments, message):
    arguments = {
        "images": np.ones((4, 8, 8, 1)),
        "labels": np.array([0, 0, 1, 1]),
        **arguments,
    }
    with pytest.raises(ValueError, match=message):
        analysis.prune(net(), **arguments)


def test_net_with_nothing_to_prune():
    model = zoo.plain_mlp((8, 8, 1), depth=3)
    with pytest.raises(ValueError, match="highway layers or residual units.*'plain_m"):
        analysis.prune(model, np.ones((4, 8, 8, 1)), np.array([0, 0, 1, 1]))


def profiled(model):
    """Operations that TensorFlow's own profiler counts in the unrolled net."""
    model = zoo.convert(model, False)
    spec = tf.TensorSpec((1, *model.input.shape[1:]))
    graph = tf.function(lambda x: model(x, training=False)).get_concrete_function(spec)
    totals = 0
    for node in graph.graph.get_operations():
        if node.type in ("MatMul", "Conv2D"):
            kernel = [int(n) for n in node.inputs[1].shape]
            places = [int(n) for n in node.outputs[0].shape][:-1]
            totals += 2 * int(np.prod(kernel)) * int(np.prod(places))
    return totals


@pytest.mark.parametrize(
    "make",
    [
        lambda: zoo.highway_mlp((8, 8, 1), depth=5, units=7, scan=True),
        lambda: zoo.highway_cnn(input_shape=(8, 8, 1), stages=((4, 3), (6, 1))),
        lambda: zoo.preact_resnet(29, input_shape=(9, 8, 1), bottleneck=True),
        lambda: zoo.resnet("highway_110", depth=14, input_shape=(8, 8, 1)),
        lambda: zoo.resnet(14, shortcut="exclusive_gating", input_shape=(8, 8, 1)),
    ],
    ids=["mlp", "cnn", "bottleneck", "twin", "gated"],
)
def test_flops_are_those_of_the_graph(make):
    model = make()
    assert analysis.flops(model) == profiled(model)


def test_flops_of_a_net_that_cannot_be_counted():
    with pytest.raises(ValueError, match="`model` must have a known input shape"):
        analysis.flops(zoo.preact_resnet(14, input_shape=(None, None, 3)))


def test_layers_that_cannot_be_left_out():
    message = "`names` must be names of layers that keep the shape.*: stem$"
    with pytest.raises(ValueError, match=message):
        zoo.models.without_layers(net(), ["highway_01", "stem"])


@pytest.mark.parametrize("scan", [False, True], ids=["layers", "loop"])
def test_costs_after_some_layers_are_gone(scan):
    keras.utils.set_random_seed(1)
    model = zoo.highway_mlp(
        (8, 8, 1), depth=7, units=16, rescale=1 / 16, gate_bias=0.0, scan=scan
    )
    images, labels = digits(50)
    chain = analysis.pruning.Chain(model, without=True)
    gone = np.isin(chain.names, ["highway_02", "highway_05"])
    left = [name for name in chain.names if name not in ("highway_02", "highway_05")]
    rows = np.stack([gone | (np.array(chain.names) == name) for name in left])
    found = analysis.pruning.measure(chain, model, images, labels, rows, 120, gone)
    shallow = zoo.models.without_layers(model, ["highway_02", "highway_05"])
    lesions = analysis.lesions(shallow, images, labels)
    expected = [lesions.intact_loss, *lesions.loss]
    assert np.allclose(found[0], expected, rtol=1e-12)
    assert np.array_equal(found[1], [lesions.intact_accuracy, *lesions.accuracy])
