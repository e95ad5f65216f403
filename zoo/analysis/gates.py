"""Which gates open, for which layer, unit, image and class."""

import itertools
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo._checks import known
from zoo.analysis import _blocks
from zoo.analysis._blocks import gated_layers, names_of
from zoo.analysis._graph import predictor
from zoo.analysis._inputs import batches, check_images, is_served, num_classes
from zoo.layers import Residual, ScanLayers


class Trace(NamedTuple):
    """Gates and states of one batch; lists of arrays where shapes differ by layer.

    Attributes:
        gates: `(layers, batch, …)`, T of each layer.
        outputs: `(layers + 1, batch, …)`, the input of the first layer and the
            output of each; None for a SavedModel.
        names: the layers' names.
        carry_gates: as `gates`, C of each layer, where C is a gate of its own in
            every layer; else None.
    """

    gates: np.ndarray | list[np.ndarray]
    outputs: np.ndarray | list[np.ndarray] | None
    names: list[str]
    carry_gates: np.ndarray | list[np.ndarray] | None = None


class GateSparsity(NamedTuple):
    """How selective the gates are, arrays `(layers,)`.

    Attributes:
        open: share of gates with T above the threshold, over images and units (and
            pixels): how many open for one image.
        ever_open: share of units that open for at least one image (and pixel).
        threshold: the limit.
        names: the layers' names.
    """

    open: np.ndarray
    ever_open: np.ndarray
    threshold: float
    names: list[str]


def stages(model: keras.Model) -> list[list[keras.layers.Layer]]:
    """The gated layers in runs of equal shape."""
    runs = []
    for layer in gated_layers(model):
        if runs and runs[-1][-1].output.shape == layer.output.shape:
            runs[-1].append(layer)
        else:
            runs.append([layer])
    return runs


class Probe(keras.layers.Layer):
    """Inner values of a block or loop of another model, batch first.

    `measure(block, x, mask)` returns (output, values), the values `(batch, …)`, and
    `dtypes` are theirs; by default the values are T and the output.
    """

    def __init__(self, layer, measure=None, dtypes=("float32", "state")):
        super().__init__(name=f"{layer.name}_probe", autocast=False)
        self.inner, self.measure, self.dtypes = layer, measure or _look, dtypes
        self.supports_masking = True

    def compute_mask(self, x, mask=None):
        return None

    def call(self, x, mask=None):
        def copy(block, x, _):
            return self.measure(block, x, mask)

        _, values = _blocks.over_copies(self.inner, copy, x, dtypes=self.dtypes)
        return tuple(ops.moveaxis(value, 0, 1) for value in values)


def _look(block, x, mask):
    gate, carry, y = _blocks.gates_and_output(block, x, mask)
    return y, ((gate, y) if carry is None else (gate, y, carry))


def trace(
    model: keras.Model, images, batch_size: int = 128, *, pixels: str = "map"
) -> Trace:
    """Gates and block outputs of each gated layer for a batch of images.

    Args:
        model: functional or Sequential model with highway layers or gated residual
            units, in inference mode; or what `zoo.load_served` gives, if it has the
            endpoint `gates`: then there are gates alone.
        images: raw images, as the model takes them. All values of all images come
            back, so give few.
        batch_size: images computed at a time; the result does not depend on it.
        pixels: "map" (the default) for the maps of convolutions as they are, "mean"
            for their mean over the pixels, `(…, units)`.

    Returns:
        `Trace(gates, outputs, names, carry_gates)`.

    Raises:
        ValueError: no gated layer; images that do not fit the model.

    Example:
        >>> import numpy as np, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16)
        >>> zoo.analysis.trace(model, np.zeros((3, 8, 8, 1))).gates.shape
        (5, 3, 16)
    """
    known("pixels", pixels, ("map", "mean"))

    def finish(block, array, mask):
        return _blocks.pixel_mean(block, array, mask) if pixels == "mean" else array

    if is_served(model):
        parts = [g for _, g in _gate_batches(model, finish, images, batch_size)]
        gates = [np.concatenate(column) for column in zip(*parts, strict=True)]
        return Trace(_stack(gates), None, gate_names(model))

    def measure(block, x, mask):
        y, values = _look(block, x, mask)
        return y, tuple(finish(block, value, mask) for value in values)

    images = check_images(model, images)
    layers = gated_layers(model)
    separate = all(_blocks.has_carry_gate(layer) for layer in layers)
    first = layers[0]
    x, mask = _blocks.input_of(first), _blocks.mask_of(first)
    outputs = [finish(_blocks.one_of(first), x, mask)]
    for layer in layers:
        extra = ("float32",) * _blocks.has_carry_gate(layer)
        probe = Probe(layer, measure, ("float32", "state", *extra))
        outputs.append(probe(_blocks.input_of(layer), mask=_blocks.mask_of(layer)))
    first, *rest = predictor(model, outputs)(images, batch_size)
    rest = iter([array.swapaxes(0, 1) for array in rest])
    columns = [], [], []
    for layer in layers:
        for column in columns[: 2 + _blocks.has_carry_gate(layer)]:
            column.extend(next(rest))
    names = [name for layer in layers for name in names_of(layer)]
    gates, states, carries = columns
    carries = _stack(carries) if separate else None
    return Trace(_stack(gates), _stack([first, *states]), names, carries)


def gate_biases(
    model: keras.Model, *, initial: bool = False
) -> np.ndarray | list[np.ndarray]:
    """Biases of the transform gates, `(layers, units)`.

    Args:
        model: with gated layers. The bias of a gate that is a path of convolutions
            is the β of its last BN.
        initial: the biases that training started from, as the layers' configs have
            them, instead of those of now; NaN where they were drawn.

    Raises:
        ValueError: no gated layer, or a gate without a bias.
    """
    biases = []
    for layer in gated_layers(model):
        bias, initializer = _bias_of(_blocks.one_of(layer))
        if bias is None:
            gate = _blocks.one_of(layer).gate
            raise ValueError(
                "`model` must have gates with a bias. "
                f"Received: {layer.name!r} with gate {gate.name!r}"
            )
        copies = len(names_of(layer))
        if initial:
            kind = keras.initializers
            start = getattr(initializer, "value", np.nan)
            start = 0.0 if isinstance(initializer, kind.Zeros) else start
            biases.extend([np.full(bias.shape, start, np.float32)] * copies)
        elif isinstance(layer, ScanLayers):
            biases.extend(ops.convert_to_numpy(layer.stack_of(bias)))
        else:
            biases.append(ops.convert_to_numpy(bias))
    return _stack(biases)


def _bias_of(block):
    """(variable, initializer) of a gate's bias; (None, None) without one."""
    if isinstance(block, Residual):
        if block.gate == "1x1":
            return block.gate_conv.bias, block.gate_conv.bias_initializer
        return block.gate_norms[-1].beta, block.gate_norms[-1].beta_initializer
    gate = block.gate
    gate = gate.layers[-1] if isinstance(gate, keras.Sequential) else gate
    bias = getattr(gate, "bias", None)
    return bias, getattr(gate, "bias_initializer", None)


def mean_gates(
    model: keras.Model, images, batch_size: int = 128
) -> np.ndarray | list[np.ndarray]:
    """Mean of T over images (and pixels, or words), `(layers, units)`.

    Args:
        model, batch_size: as for `trace`.
        images: an array, or a data set of batches, such as `zoo.datasets.load`
            gives. Sums are in float64; the memory needed does not grow with the
            number of images. For texts the mean of each is over its words, without
            those that are padding.

    Raises:
        ValueError: as for `trace`; an empty or an endless data set.
    """
    total, count = itertools.repeat(0.0), 0
    for _, gates in _gate_batches(model, _blocks.pixel_mean, images, batch_size):
        sums = [gate.sum(0, np.float64) for gate in gates]
        total = [a + b for a, b in zip(total, sums, strict=False)]
        count += len(gates[0])
    return _stack([one / count for one in total])


def gates_by_class(
    model: keras.Model, images, labels=None, batch_size: int = 128
) -> np.ndarray | list[np.ndarray]:
    """Mean of T over the images of each class, `(classes, layers, units)`.

    Args:
        model, images, batch_size: as for `mean_gates`.
        labels: class of each image; None for a data set of (images, labels). The
            mean of a class without images is NaN.

    Returns:
        Array; a list over layers of `(classes, units)` where the widths differ.

    Raises:
        ValueError: as for `mean_gates`; labels that are not one class an image.
    """
    total, counts = itertools.repeat(0.0), 0
    for labels_here, gates in _gate_batches(
        model, _blocks.pixel_mean, images, batch_size, labels, labelled=True
    ):
        members = np.eye(num_classes(model))[labels_here]  # (batch, classes)
        sums = [members.T @ gate.astype(np.float64) for gate in gates]
        total = [a + b for a, b in zip(total, sums, strict=False)]
        counts = counts + members.sum(0)[:, None]
    with np.errstate(invalid="ignore"):
        means = [np.where(counts > 0, one, np.nan) / counts for one in total]
    means = _stack(means)
    return means.swapaxes(0, 1) if isinstance(means, np.ndarray) else means


def gate_sparsity(
    model: keras.Model, images, threshold: float = 0.5, batch_size: int = 128
) -> GateSparsity:
    """How many gates open for one image, and how many units ever do.

    Few of many: the gates are selective, a layer transforms a few units of an image
    and other units of another.

    Args:
        model, images, batch_size: as for `mean_gates`.
        threshold: a gate is open where T is above it; 0.5 by default.

    Returns:
        `GateSparsity(open, ever_open, threshold, names)`.

    Raises:
        ValueError: as for `mean_gates`; a threshold outside (0, 1).
    """
    if not 0 < threshold < 1:
        raise ValueError(
            f"`threshold` must lie between 0 and 1. Received: threshold={threshold!r}"
        )

    def share(block, gate, mask):
        return _blocks.pixel_mean(block, ops.cast(gate > threshold, "float32"), mask)

    sums, ever, count = 0.0, itertools.repeat(False), 0
    for _, shares in _gate_batches(model, share, images, batch_size):
        sums = sums + np.array([one.mean(1, np.float64).sum() for one in shares])
        opened = [(one > 0).any(0) for one in shares]
        ever = [a | b for a, b in zip(ever, opened, strict=False)]
        count += len(shares[0])
    ever = np.array([one.mean() for one in ever])
    return GateSparsity(sums / count, ever, threshold, gate_names(model))


def gate_names(model) -> list[str]:
    """Names of the layers over which arrays of gates run, by depth."""
    if is_served(model):
        return [name for stage in model.card["gates"].values() for name in stage]
    return [name for layer in gated_layers(model) for name in names_of(layer)]


def _gate_batches(model, reduce, images, batch_size, labels=None, labelled=False):
    """(labels, [reduce(block, T, mask) of each layer, `(batch, …)`]), batch by
    batch."""
    parts = batches(model, images, labels, batch_size=batch_size, labelled=labelled)
    gates_of = _served(model, reduce) if is_served(model) else live(model, reduce)
    for images_here, labels_here in parts:
        yield labels_here, gates_of(images_here)


def live(model, reduce):
    """Function of images: [reduce(block, T, mask) of each layer, `(batch, …)`]."""

    def measure(block, x, mask):
        gate, _, y = _blocks.gates_and_output(block, x, mask)
        return y, (reduce(block, gate, mask),)

    values = probed(model, gated_layers(model), measure, ("float32",))
    return lambda images: [one for (one,) in values(images)]


def probed(model, layers, measure, dtypes):
    """Function of images: for each layer the values of `measure`, `(batch, …)`."""
    probes = [Probe(layer, measure, dtypes) for layer in layers]
    found = [
        probe(_blocks.input_of(layer), mask=_blocks.mask_of(layer))
        for probe, layer in zip(probes, layers, strict=True)
    ]
    run = predictor(model, found)

    def function(images):
        flat = [array.swapaxes(0, 1) for array in run(images)]
        for start in range(0, len(flat), len(dtypes)):  # those of one layer
            yield from zip(*flat[start : start + len(dtypes)], strict=True)

    return function


def _served(served, reduce):
    if "gates" not in served.card["endpoints"]:
        raise ValueError(
            "`model` must be a SavedModel with the endpoint 'gates', which nets with "
            "highway layers get. Received: one with "
            f"{', '.join(served.card['endpoints'])}"
        )

    def function(images):
        text = images.dtype == object
        stages = served.gates(images if text else images.astype(np.float32))
        return [
            ops.convert_to_numpy(reduce(None, gate, stages.get(f"{name}_mask")))
            for name in served.card["gates"]
            for gate in stages[name].numpy()
        ]

    return function


def _stack(arrays):
    """One array over layers where the shapes allow it, else the list."""
    same = len({array.shape for array in arrays}) == 1
    return np.stack(arrays) if same else list(arrays)
