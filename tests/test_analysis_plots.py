import pathlib
import sys

import matplotlib
import numpy as np
import pytest
from matplotlib.figure import Figure

from zoo.analysis import Lesions, OutputChange, Trace, plots

RNG = np.random.default_rng(0)


def gate_figure(widths=(4, 4, 4), pixels=(), **arguments):
    rows = [[RNG.random((*shape, n)) for n in widths] for shape in ((), (), pixels)]
    return plots.gate_figure(*rows, rows[2], **arguments), rows


def accuracy_figure():
    return plots.accuracy_figure(
        {"highway": {5: [0.9, 1.0], 50: [0.8]}, "plain": {5: [0.7], 50: [0.1]}},
        xlabel="layers",
        reference={"plain": [0.6, 0.2]},
        chance=0.1,
        title="Digits",
    )


def gradient_figure():
    norms = {"plain": np.geomspace(1e-20, 1e-3, 50), "highway": np.ones(10)}
    return plots.gradient_figure(norms, title="At initialisation")


def test_gate_figure():
    figure, (biases, *_) = gate_figure(title="highway_mlp after training")
    panels = figure.axes[:4]
    assert isinstance(figure, Figure)
    assert [axis.get_title() for axis in panels] == [
        "Transform gate biases",
        "Mean transform gate",
        "Transform gate, one sample",
        "Block output, one sample",
    ]
    assert {axis.get_xlabel() for axis in panels} == {"unit"}
    assert panels[0].get_ylabel() == "layer (depth)"
    assert figure.get_suptitle() == "highway_mlp after training"
    assert np.array_equal(panels[0].images[0].get_array(), biases)


@pytest.mark.parametrize("layers", [1, 2, 3])
def test_few_layers_are_counted_in_whole_numbers(layers):
    gates = np.full((layers, 5), 0.5)
    axis = plots.gate_figure(-gates, gates, gates, gates).axes[0]
    shown = [t for t in axis.get_yticks() if 0.5 <= t <= layers + 0.5]
    assert shown == list(range(1, layers + 1))


def test_gates_share_the_scale_from_0_to_1():
    figure, _ = gate_figure()
    assert [axis.images[0].get_clim() for axis in figure.axes[1:3]] == [(0, 1)] * 2


def test_the_first_layer_is_on_top():
    figure, _ = gate_figure()
    bottom, top = figure.axes[0].get_ylim()
    assert bottom > top


def test_narrow_layers_end_early():
    figure, (biases, *_) = gate_figure(widths=(2, 4))
    values = np.ma.filled(figure.axes[0].images[0].get_array(), np.nan)
    assert np.array_equal(np.isnan(values), [[0, 0, 1, 1], [0, 0, 0, 0]])
    assert np.array_equal(values[0, :2], biases[0])


def test_convolutions_show_the_mean_over_pixels():
    figure, (_, _, gates) = gate_figure(pixels=(5, 6))
    values = figure.axes[2].images[0].get_array()
    assert np.allclose(values, [gate.mean((0, 1)) for gate in gates], atol=1e-15)


def test_accuracy_figure():
    (axis,) = accuracy_figure().axes
    assert axis.get_xlabel() == "layers"
    assert axis.get_ylabel() == "test accuracy"
    assert axis.get_title() == "Digits"
    assert [tick.get_text() for tick in axis.get_xticklabels()] == ["5", "50"]
    labels = [text.get_text() for text in axis.get_legend().get_texts()]
    assert labels == ["highway", "plain", "printed (one seed)", "chance"]
    lines = [list(line.get_ydata()) for line in axis.lines]
    assert [0.9, 1.0] in lines  # a dot for each run
    assert [0.95, 0.8] in lines  # the means
    assert [0.6, 0.2] in lines  # the paper's
    assert axis.get_ylim()[0] == 0


def test_gradient_figure():
    (axis,) = gradient_figure().axes
    assert axis.get_yscale() == "log"
    assert axis.get_xlabel() == "layer (depth)"
    assert "gradient" in axis.get_ylabel()
    assert [len(line.get_xdata()) for line in axis.lines] == [50, 10]
    assert axis.lines[0].get_xdata()[0] == 1
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["plain", "highway"]


def test_history_figure():
    loss, accuracy = plots.history_figure(
        {"loss": [3.0, 2.0], "accuracy": [0.1, 0.4]}, test_accuracy=0.3
    ).axes
    assert list(loss.lines[0].get_xdata()) == [1, 2]
    texts = [text.get_text() for text in accuracy.get_legend().get_texts()]
    assert texts == ["training", "test, at the end: 0.3000"]
    history = {"loss": [np.nan, 2.0, 1.0], "val_loss": [3.0, 2.5, 2.0]}
    (axis,) = plots.history_figure(history, first_epoch=0).axes
    assert [list(line.get_xdata()) for line in axis.lines] == [[0, 1, 2]] * 2
    texts = [text.get_text() for text in axis.get_legend().get_texts()]
    assert texts == ["training", "validation"]


@pytest.mark.parametrize(
    "suffix, start",
    [("png", b"\x89PNG\r\n\x1a\n"), ("pdf", b"%PDF"), ("svg", b"<?xml")],
)
def test_save(tmp_path, suffix, start):
    path = plots.save(accuracy_figure(), tmp_path / f"plot.{suffix}")
    assert path == tmp_path / f"plot.{suffix}"
    assert path.read_bytes().startswith(start)
    assert list(tmp_path.iterdir()) == [path]


def test_a_save_that_fails_leaves_the_old_file(tmp_path, monkeypatch):
    path = plots.save(accuracy_figure(), tmp_path / "plot.png")
    before = path.read_bytes()

    def fail(figure, file, **kwargs):
        pathlib.Path(file).write_bytes(b"half a")
        raise OSError("disk full")

    monkeypatch.setattr(Figure, "savefig", fail)
    with pytest.raises(OSError, match="disk full"):
        plots.save(gradient_figure(), path)
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_global(tmp_path, monkeypatch):
    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    settings = list(dict.items(matplotlib.rcParams))
    for figure in (gate_figure()[0], accuracy_figure(), gradient_figure()):
        plots.save(figure, tmp_path / "plot.png")
    assert "matplotlib.pyplot" not in sys.modules
    assert list(dict.items(matplotlib.rcParams)) == settings


def trace(shape=(), units=4, layers=3, carries=False):
    gates = RNG.random((layers, 2, *shape, units))
    outputs = RNG.normal(size=(layers + 1, 2, *shape, units))
    names = [f"highway_0{i}" for i in range(1, layers + 1)]
    return Trace(gates, outputs, names, gates / 2 if carries else None)


def test_class_figure():
    by_class = RNG.random((3, 5, 4))
    figure = plots.class_figure(by_class, classes=["a", "b", "c"], title="Routing")
    panels = [axis for axis in figure.axes if axis.get_title()]
    assert [axis.get_title() for axis in panels] == ["class a", "class b", "class c"]
    away = by_class - by_class.mean(0)
    for panel, expected in zip(panels, away, strict=True):
        (image,) = panel.images
        assert np.allclose(image.get_array(), expected)
        limit = np.percentile(np.abs(away), 99.5)
        assert np.allclose(image.get_clim(), (-limit, limit))
    ragged = [RNG.random((12, n)) for n in (4, 2)]
    figure = plots.class_figure(ragged)
    assert len([axis for axis in figure.axes if axis.get_title()]) == 10


def test_lesion_figure():
    one = np.array([0.5, 0.3, 0.2])
    lesions = Lesions(one, 1 - one, one, 0.19, 0.85, 2.0, 0.1, ["a", "b", "c"])
    figure = plots.lesion_figure(lesions, title="net")
    for axis, values, intact in zip(
        figure.axes, (one, 1 - one), (0.19, 0.85), strict=True
    ):
        line, dashed = axis.lines
        assert np.array_equal(line.get_xydata(), np.c_[[1, 2, 3], values])
        assert dashed.get_linestyle() == "--"
        assert set(dashed.get_ydata()) == {intact}


def test_carry_figure():
    figure = plots.carry_figure([[0.5, 0.5], [0.2, 0.2]], values=(0.1,))
    constant, own = figure.axes[0].lines
    assert np.allclose(constant.get_ydata(), [0.9, 0.81])
    assert np.allclose(own.get_ydata(), [0.5, 0.4])
    (line,) = plots.carry_figure(values=(0.1,)).axes[0].lines
    assert np.isclose(line.get_ydata()[49], 0.00515, rtol=1e-3)  # the tutorial's


def test_change_figure():
    change = OutputChange(np.array([3.0, 1.0]), np.ones(2), ["a", "b"])
    left, right = plots.change_figure(change).axes
    assert np.array_equal(left.lines[0].get_ydata(), [3, 1])
    assert np.array_equal(right.lines[0].get_ydata(), [0.75, 1])


@pytest.mark.parametrize("carries", [False, True])
def test_strip_of_a_dense_net(carries):
    found = trace(carries=carries)
    figure = plots.strip_figure(RNG.random((8, 8, 1)), found, index=1)
    carry = found.carry_gates if carries else 1 - found.gates
    passed = carry[:, 1] * found.outputs[:-1, 1]
    panels = figure.axes[1:3]
    assert [axis.get_title() for axis in panels] == [
        "passed, C·x",
        "transformed, T·H(x)",
    ]
    assert np.allclose(panels[0].images[0].get_array(), passed)
    transformed = panels[1].images[0].get_array()
    assert np.allclose(passed + transformed, found.outputs[1:, 1])


def test_strip_of_a_convolutional_net():
    found = trace((5, 6), layers=30)
    figure = plots.strip_figure(RNG.random((8, 8, 3)), found)
    titles = [axis.get_title() for axis in figure.axes if axis.get_title()]
    assert titles[:2] == ["image", "layer 1"] and titles[-1] == "layer 30"
    assert len(titles) == 13
    passed = (1 - found.gates[0, 0]) * found.outputs[0, 0]
    assert np.allclose(figure.axes[1].images[0].get_array(), np.abs(passed).mean(-1))
