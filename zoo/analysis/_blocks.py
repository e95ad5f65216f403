"""What analysis looks at: highway layers and residual units, single or in a loop."""

import keras
from keras import ops

from zoo.layers import Residual, ScanLayers
from zoo.layers.highway import BaseHighway


def blocks(model) -> list[keras.layers.Layer]:
    """The model's highway layers, residual units and loops of such, by depth.

    Raises:
        ValueError: the model has none.
    """
    found = [layer for layer in model.layers if is_block(layer)]
    if not found:
        raise ValueError(
            "`model` must have highway layers or residual units; gradient_norms works "
            f"on any net. Received: {model.name!r} without one"
        )
    return found


def gated_layers(model: keras.Model) -> list[keras.layers.Layer]:
    """The model's layers with gates, and its loops over such, in order of depth.

    Raises:
        ValueError: the model has none.
    """
    layers = [layer for layer in model.layers if is_gated(layer)]
    if not layers:
        others = "gradient_norms"
        if any(is_block(layer) for layer in model.layers):
            others = "gradient_norms, jacobian_norms, lesions, output_change and prune"
        raise ValueError(
            "`model` must have highway layers or gated residual units, whose gates "
            f"can be looked at; without gates there are {others}. "
            f"Received: {model.name!r} without one"
        )
    return layers


def is_block(layer) -> bool:
    """Whether it is a highway layer or residual unit, or a loop of such."""
    return isinstance(one_of(layer), (BaseHighway, Residual))


def is_gated(layer) -> bool:
    """Whether it is a highway layer or a gated residual unit, or a loop of such."""
    one = one_of(layer)
    return isinstance(one, BaseHighway) or (isinstance(one, Residual) and one.is_gated)


def one_of(layer):
    """A loop's template, whose weights are placeholders; any other layer itself."""
    return layer.template if isinstance(layer, ScanLayers) else layer


def names_of(layer) -> list[str]:
    """Names of the layers that a layer stands for: one, or a loop's copies."""
    return layer.copy_names if isinstance(layer, ScanLayers) else [layer.name]


def layer_names(model) -> list[str]:
    """Names of the layers over which the arrays of analysis run, by depth: highway
    layers and residual units."""
    return [name for layer in blocks(model) for name in names_of(layer)]


def input_of(layer):
    """The symbolic input of a layer, without the mask that comes with it."""
    return keras.tree.flatten(layer.input)[0]


def mask_of(layer):
    """The symbolic mask that comes with a layer's input, or None."""
    return next(iter(keras.tree.flatten(layer.input)[1:]), None)


def has_carry_gate(layer) -> bool:
    """Whether C is a gate of its own."""
    return getattr(one_of(layer), "carry_gate", None) is not None


def over_copies(layer, function, x, extras=(), dtypes=()):
    """Runs a block, or the copies of a loop, in inference mode.

    `function(block, x, slices)` returns (output, values), with the weights of one
    copy in place and the slices of `extras`, `(copies, …)`, that belong to it.
    Returns (output, list of values stacked to `(copies, …)`). `dtypes` are the
    values'; "state" is the dtype of the output.
    """
    if isinstance(layer, ScanLayers):
        dtypes = [layer.state_dtype if d == "state" else d for d in dtypes]
        return layer.map_copies(function, x, extras, dtypes)
    y, values = function(layer, x, [extra[0] for extra in extras])
    return y, [value[None] for value in values]


def gates_and_output(block, x, mask=None):
    """(T, C, y) of one block on `x`: gates in float32, None for what it has not."""
    if isinstance(block, BaseHighway):
        x = ops.cast(x, block.variable_dtype)
        transformed, gate, carry = block.parts(x, mask)
        y = block.mix(x, transformed, gate, carry)
    else:
        x = ops.cast(x, block.compute_dtype)
        gate, carry = (block.gates(x) if block.is_gated else None), None
        y = block(x, training=False)
    gate, carry = (g if g is None else ops.cast(g, "float32") for g in (gate, carry))
    return gate, carry, y


def output_of(block, x, mask=None):
    """y of one block on `x`."""
    if isinstance(block, BaseHighway):
        return block(x, mask=mask)
    return block(x, training=False)


def left_of(block, x, without=False, mask=None):
    """What a lesion leaves of a block.

    A highway layer with T = 0 leaves x, or C·x where C is a gate of its own; with
    `without`, which takes the layer out, always x. A residual unit leaves what
    `Residual.skipped` says.
    """
    if not isinstance(block, BaseHighway):
        return block.skipped(ops.cast(x, block.compute_dtype))
    x = ops.cast(x, block.variable_dtype)
    if block.carry_gate is None or without:
        return x
    return block.parts(x, mask)[2] * x


def call_copy(layer, index, mask, x):
    """Output of one copy of a loop, or of a layer, in inference mode."""
    if not isinstance(layer, ScanLayers):
        return output_of(layer, x, mask)
    stacks = zip(layer.template.variables, layer.stacks, strict=True)
    with keras.StatelessScope([(own, stack[index]) for own, stack in stacks]):
        return output_of(layer.template, x, mask)


def pixel_axes(block, rank):
    """Axes of `(batch, …)` that are neither batch nor units."""
    if getattr(block, "data_format", None) == "channels_first":
        return tuple(range(2, rank))
    return tuple(range(1, rank - 1))


def pixel_mean(block, array, mask=None):
    """(batch, units): the mean over pixels, or over the time steps of the mask."""
    axes = pixel_axes(block, len(array.shape))
    if mask is None:
        return ops.mean(array, axis=axes) if axes else array
    there = masked(ops.ones_like(array[..., :1]), mask)
    return ops.sum(masked(array, mask), axes) / ops.maximum(ops.sum(there, axes), 1)


def masked(array, mask):
    """The array, zero where the mask of its first axes is False."""
    if mask is None:
        return array
    for _ in range(len(array.shape) - len(mask.shape)):
        mask = ops.expand_dims(mask, -1)
    return ops.where(mask, array, ops.zeros_like(array))
