"""Looped and unrolled forms of one net, and what a loop hides."""

import collections
import json
from typing import NamedTuple

import keras
import numpy as np
from keras import ops

from zoo.layers import ScanLayers
from zoo.layers.highway import BaseHighway, call_with_mask
from zoo.models._builder import Net

# `scan="auto"`: shorter runs stay unrolled. On 2 CPU cores the step of a compiled loop
# costs about 1 ms more than that of as many dense layers, 40 % at 9 layers and 17 % at
# 99, while an unrolled layer adds .13 s to the first step. Convolutions run as fast in
# a loop as without.
MIN_LOOP = {"dense": 16, "convolution": 3}


def scans(scan, length: int, kind: str = "convolution") -> bool:
    """Whether a run of `length` equal layers becomes a loop.

    "auto" loops runs of 16 and more dense layers and of 3 and more layers with
    convolution kernels: a pure function of the builder's arguments.
    """
    if scan not in ("auto", True, False):
        raise ValueError(f"`scan` must be 'auto', True or False. Received: {scan!r}")
    return scan is True or (scan == "auto" and length >= MIN_LOOP[kind])


def kind_of(layer) -> str:
    """ "dense" or "convolution", by the rank of the kernels of a layer or loop."""
    stacked = isinstance(layer, ScanLayers)
    ranks = [len(w.shape) - stacked for w in layer.weights]
    return "dense" if max(ranks, default=0) <= 2 else "convolution"


def repeat(template, names, x):
    """`len(names)` copies of a layer as one loop over `x`; `x` itself for none."""
    if not names:
        return x
    last = names[-1].rsplit("_", 1)[-1]
    name = f"{names[0]}_to_{last}"
    return ScanLayers(template, len(names), copy_names=names, name=name)(x)


def apply_scan(model, scan):
    """The builder's model, all of whose runs are loops, in the form of `scan`."""
    loops = [layer for layer in model.layers if isinstance(layer, ScanLayers)]
    if all(scans(scan, loop.length, kind_of(loop)) for loop in loops):
        return model
    return convert(model, scan)


def convert(model: keras.Model, scan="auto") -> keras.Model:
    """The same net with its runs of equal layers looped or unrolled.

    The new model has weights of its own, equal to the given ones, and computes the
    same function. It is not compiled.

    Args:
        model: functional model.
        scan: True makes loops of all runs of equal layers, False unrolls every
            `ScanLayers`, "auto" (the default) does what builders do with "auto".

    Returns:
        A new model. A loop is named after its first and last copy; unrolled layers
        have the names of the copies.

    Raises:
        ValueError: another value of `scan`; a model that is not functional.

    Example:
        >>> import zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=51, units=16)
        >>> len(zoo.convert(model, scan=False).layers) - len(model.layers)
        49
    """
    scans(scan, 1)

    def loops(piece, copies):
        return scans(scan, len(copies), kind_of(piece[0]))

    new = _rebuild(model, loops)
    new.name = model.name
    spec = getattr(model, "zoo_spec", None)
    if spec:
        spec = json.loads(spec)
        spec["arguments"]["scan"] = scan
        new.zoo_spec = json.dumps(spec)
    return new


def without_layers(model: keras.Model, names, name: str | None = None) -> keras.Model:
    """The net without some of its layers: what feeds one feeds what follows it.

    The new model has weights of its own, equal to the given ones; nothing is left
    where a layer is gone. Loops stay loops, over fewer copies, and the layers that
    stay keep their names. It is not compiled, and no builder makes it, so that it has
    no `zoo_spec`: saving and export keep its config.

    Args:
        model: functional or Sequential model.
        names: of layers, or copies inside loops, that keep the shape of their input.
        name: of the new model; the old one's by default.

    Raises:
        ValueError: a name that is none of such a layer; a model that is not functional.

    Example:
        >>> import zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=51, units=16)
        >>> shallow = zoo.models.without_layers(model, ["highway_03", "highway_50"])
        >>> model.count_params() - shallow.count_params() == 2 * 544
        True
    """
    names = set(names)
    new = _rebuild(model, lambda piece, _: isinstance(piece[0], ScanLayers), names)
    new.name = name or model.name
    return new


def _rebuild(model, loops, dropped=frozenset()):
    """The model in another form, without some layers, on the same weights.

    `loops(piece, copies)` says whether a run of equal layers becomes a loop.
    """
    try:
        functional = Net(model.input, model.output)
    except (AttributeError, TypeError):
        raise ValueError(
            f"`model` must be a functional model. Received: {type(model).__name__}"
        ) from None
    pieces = _pieces(functional, dropped)
    unknown = dropped - {
        c.name for piece in pieces for la in piece for c in _copies(la)
    }
    if unknown:
        raise ValueError(
            "`names` must be names of layers that keep the shape of their input. "
            f"Received: {', '.join(sorted(map(str, unknown)))}"
        )
    rebuilt = {}  # id of an original layer: the layers that stand for it
    for piece in pieces:
        first, *rest = piece
        copies = [c for layer in piece for c in _copies(layer) if c.name not in dropped]
        if len(copies) > 1 and loops(piece, copies):
            template = _layer(copies[0].config, copies[0].kind, copies[0].base)
            names = [copy.name for copy in copies]
            last = names[-1].rsplit("_", 1)[-1]
            loop = ScanLayers(
                template,
                len(names),
                copy_names=names,
                name=f"{names[0]}_to_{last}",
                **_options(first),
            )
            rebuilt[id(first)] = [(loop, copies)]
            rebuilt.update({id(layer): [] for layer in rest})
        else:
            for layer in piece:
                rebuilt[id(layer)] = [
                    (_layer(copy.config, copy.kind, copy.name), [copy])
                    for copy in _copies(layer)
                    if copy.name not in dropped
                ]

    def call(layer, *args, **kwargs):
        if id(layer) not in replaced:
            return layer(*args, **kwargs)
        x = args[0]
        for new, _ in rebuilt[id(layer)]:
            x = call_with_mask(new, x, kwargs.get("mask"))
        return x

    replaced, kept = set(rebuilt), []

    def clone(layer):
        if id(layer) in replaced:
            return layer  # `call` runs what stands for it
        copy = type(layer).from_config(layer.get_config())
        if isinstance(layer, keras.Layer):  # and no operation that makes a mask
            kept.append((layer, copy))
        return copy

    new = keras.models.clone_model(functional, clone_function=clone, call_function=call)
    for stands in rebuilt.values():
        for layer, copies in stands:
            _fill(layer, copies)
    for layer, copy in kept:
        for variable, value in zip(copy.variables, _values(layer), strict=True):
            variable.assign(value)
    return new


class _Copy(NamedTuple):
    """One layer of the unrolled net, wherever its weights are."""

    name: str
    base: str  # name of the template
    kind: type
    config: dict
    source: object  # a layer, or (ScanLayers, index)


def _copies(layer):
    if not isinstance(layer, ScanLayers):
        base = layer.name.rsplit("_", 1)[0]
        return [_Copy(layer.name, base, type(layer), layer.get_config(), layer)]
    template = layer.template
    config = template.get_config()
    return [
        _Copy(name, template.name, type(template), config, (layer, i))
        for i, name in enumerate(layer.copy_names)
    ]


def _layer(config, kind, name):
    return kind.from_config({**config, "name": name})


def _options(layer):
    """remat and jit of a loop stay; a new loop has the defaults."""
    if isinstance(layer, ScanLayers):
        return {"remat": layer.remat, "jit": layer.jit}
    return {}


def _values(source):
    if isinstance(source, tuple):
        layer, index = source
        return layer.copy_weights(index)
    return [v.numpy() for v in source.variables]


def _fill(layer, copies):
    """Gives `layer` the weights of the copies that it stands for."""
    values = [_values(copy.source) for copy in copies]
    if isinstance(layer, ScanLayers):
        variables = layer.stacks
        values = [np.stack(column) for column in zip(*values, strict=True)]
    else:
        variables, (values,) = layer.variables, values
    for variable, value in zip(variables, values, strict=True):
        variable.assign(value)


def _pieces(model, singles=()):
    """Runs of equal layers, each feeding only the next; a loop is a run by itself, and
    so is a layer whose name is in `singles`."""
    readers = collections.Counter(id(tensor) for tensor in model.outputs)
    for layer in model.layers:
        readers.update(id(tensor) for tensor in keras.tree.flatten(_input(layer)))
    pieces = []
    for layer in model.layers:
        x, mask = _reads(layer)
        if not layer.weights or x is None:
            continue
        previous = pieces[-1][-1] if pieces else None
        if (
            previous is not None
            and previous.output is x
            and readers[id(x)] == 1
            and _likeness(previous) == _likeness(layer)
            and _reads(previous)[0].shape == x.shape
            and _reads(previous)[1] is mask
            and _keeps_shape(layer)
        ):
            pieces[-1].append(layer)
        elif _keeps_shape(layer):
            pieces.append([layer])
    return [
        piece
        for piece in pieces
        if len(piece) > 1
        or isinstance(piece[0], ScanLayers)
        or piece[0].name in singles
    ]


def _keeps_shape(layer):
    """Whether output and input have one shape, whatever the sizes that are open."""
    shape = _reads(layer)[0].shape
    if shape != layer.output.shape or isinstance(layer, ScanLayers):
        return shape == layer.output.shape
    known_shape = tuple(n or 9 for n in shape)
    return tuple(layer.compute_output_shape(known_shape)) == known_shape


def _input(layer):
    try:
        return layer.input
    except (AttributeError, ValueError):  # an input layer, or a layer called twice
        return []


def _reads(layer):
    """(tensor, its mask or None) that a layer is called with; (None, None) where it is
    none or several tensors."""
    match keras.tree.flatten(_input(layer)):
        case [x]:
            return x, None
        case [x, mask] if mask.dtype == "bool":
            return x, mask
    return None, None


def _likeness(layer):
    """What equal layers have in common: class and config without name and draw."""
    if isinstance(layer, ScanLayers):
        return _likeness(layer.template)

    def strip(value):
        if isinstance(value, dict):
            return {
                k: strip(v)
                for k, v in value.items()
                if k not in ("name", "seed") and not k.endswith("_initializer")
            }
        if isinstance(value, (list, tuple)):
            return [strip(v) for v in value]
        return value

    return type(layer), json.dumps(strip(layer.get_config()), default=str)


class Layer(NamedTuple):
    """One row of `describe`."""

    name: str
    kind: str
    output_shape: tuple
    parameters: int
    gate_bias: float | None


class Description(list):
    """Rows of `describe`; prints as a table."""

    def __str__(self):
        head = ("layer", "type", "output shape", "parameters", "gate bias")
        rows = [
            (
                row.name,
                row.kind,
                str(row.output_shape),
                f"{row.parameters:,}",
                "" if row.gate_bias is None else f"{row.gate_bias:.3f}",
            )
            for row in self
        ]
        widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
        lines = [
            "  ".join(text.ljust(w) for text, w in zip(row, widths, strict=True))
            for row in (head, *rows)
        ]
        total = sum(row.parameters for row in self)
        return "\n".join(line.rstrip() for line in [*lines, f"{total:,} parameters"])


def describe(model: keras.Model) -> Description:
    """Every layer of a net, the copies inside its loops included.

    Args:
        model: functional or Sequential model.

    Returns:
        A list of rows (name, kind, output_shape, parameters, gate_bias) that prints
        as a table; `gate_bias` is the mean over a highway layer's units, now.

    Example:
        >>> import zoo
        >>> rows = zoo.describe(zoo.highway_mlp((8, 8, 1), depth=51, units=16))
        >>> rows[4].name, rows[4].parameters, rows[4].gate_bias
        ('highway_01', 544, -2.0)
    """
    rows = Description()
    for layer in model.layers:
        shape = getattr(layer.output, "shape", None)
        if not isinstance(layer, ScanLayers):
            bias = None
            if isinstance(layer, BaseHighway):
                bias = _mean(getattr(layer.gate, "bias", None))
            rows.append(
                Layer(
                    layer.name, type(layer).__name__, shape, layer.count_params(), bias
                )
            )
            continue
        template = layer.template
        each = layer.count_params() // layer.length
        for i, name in enumerate(layer.copy_names):
            bias = None
            if isinstance(template, BaseHighway):
                stack = layer.stack_of(getattr(template.gate, "bias", None))
                bias = None if stack is None else _mean(stack[i])
            rows.append(Layer(name, type(template).__name__, shape, each, bias))
    return rows


def _mean(bias):
    if bias is None:
        return None
    return float(np.mean(ops.convert_to_numpy(ops.convert_to_tensor(bias))))
