"""A net as a chain of blocks, run with some of them closed.

All lesions of a net share what comes before the first closed layer: the chain goes
through the net once and, at each layer, sends off a group of lesions that begin there.
"""

import keras
import numpy as np
from keras import ops

from zoo.analysis import _blocks
from zoo.analysis._graph import compiled
from zoo.analysis._inputs import check_model
from zoo.layers import ScanLayers

ROWS = 4096  # images × lesions computed at a time, if the states are small,
VALUES = 2**24  # and of a state's values at a time (64 MB in float32) if they are not


class Chain:
    """A model cut into its blocks and what stands before, between and after them.

    Args:
        model: functional or Sequential; every path from the input to the logits leads
            through all of its blocks.
        without: closed blocks are taken out, see `left_of`.

    Attributes:
        names: of the layers, the copies of loops one by one.
    """

    def __init__(self, model, without=False):
        layers = _blocks.blocks(check_model(model))
        self.names = _blocks.layer_names(model)
        masks = {id(mask): mask for mask in map(_blocks.mask_of, layers)}
        if len(masks) > 1:
            raise ValueError(
                "`model` must hand one mask on through all of its highway layers or "
                f"residual units. Received: {model.name!r} with {len(masks)}"
            )
        masks = [mask for mask in masks.values() if mask is not None]
        begins = [model.inputs[0], *(layer.output for layer in layers)]
        ends = [*map(_blocks.input_of, layers), model.outputs[0]]
        self._masks = [_connection(model, begins[0], mask) for mask in masks]
        self._between = [
            None if begin is end else _connection(model, begin, end, before)
            for begin, end, before in zip(
                begins, ends, [[], *(masks for _ in layers)], strict=True
            )
        ]
        self._blocks = [_block(layer, without) for layer in layers]
        self._counts = [len(_blocks.names_of(layer)) for layer in layers]
        # Loops of which nothing but x is left need not compute what is closed.
        self._spare = [
            isinstance(layer, ScanLayers)
            and (without or not _blocks.has_carry_gate(layer))
            for layer in layers
        ]

    def rows_for(self, image):
        """How many images, or lesions of one, to compute at a time."""
        state = self._pass(0, np.asarray(image)[None], [])
        return int(np.clip(VALUES // max(1, np.prod(state.shape)), 1, ROWS))

    def logits(self, images, closed, rows, base=None):
        """Yields (i, logits) with the layers of `closed[i]` closed, for all i in some
        order, then (None, logits) with those of `base` closed; `(images, classes)` in
        float64.

        Args:
            images: checked array.
            closed: bool, `(…, layers)`; each row closes the layers where it is True.
            rows: images × lesions computed at a time, at the least one lesion.
            base: bool, `(layers,)`, what is closed in most rows; None is nothing. The
                rows share what comes before the first layer in which they differ
                from it.
        """
        base = np.zeros(len(self.names), bool) if base is None else base
        together = max(1, rows // len(images))
        first = [int((row != base).argmax()) for row in closed]
        alike = [(row == base).all() for row in closed]
        masks = [mask(images) for mask in self._masks]
        x, offset = self._pass(0, images, []), 0
        for place, count in enumerate(self._counts):
            here = [i for i, f in enumerate(first) if offset <= f < offset + count]
            here = sorted((i for i in here if not alike[i]), key=first.__getitem__)
            reached = 0
            for start in range(0, len(here), together):
                group = here[start : start + together]
                begin = first[group[0]] - offset
                x = self._block(place, x, masks, base[None], reached, begin)
                reached = begin
                y = ops.concatenate([x] * len(group))
                y = self._finish(place, y, masks, closed[group], begin)
                yield from zip(group, np.split(y, len(group)), strict=True)
            x = self._block(place, x, masks, base[None], reached, count)
            x = self._pass(place + 1, x, masks)
            offset += count
        x = np.float64(ops.convert_to_numpy(x))
        yield from ((i, x) for i, same in enumerate(alike) if same)
        yield None, x

    def _pass(self, place, x, masks):
        function = self._between[place]
        if function is None:
            return ops.convert_to_tensor(x)
        return function(x, *_tiled(masks, x))

    def _block(self, place, x, masks, closed, begin, end):
        """The copies from `begin` to `end` of a block, closed as the rows say."""
        if begin == end:
            return x
        offset, count = sum(self._counts[:place]), self._counts[place]
        is_open = ~closed[:, offset : offset + count].T  # (copies, rows)
        place_of = np.arange(count)
        active = (place_of >= begin) & (place_of < end)
        if self._spare[place]:
            active &= is_open.any(1)
        is_open = np.repeat(is_open, x.shape[0] // len(closed), axis=1)
        return self._blocks[place](x, is_open, active, *_tiled(masks, x))

    def _finish(self, place, x, masks, closed, begin):
        """float64 logits, from copy `begin` of a block on."""
        for here in range(place, len(self._counts)):
            x = self._block(here, x, masks, closed, begin, self._counts[here])
            x = self._pass(here + 1, x, masks)
            begin = 0
        return np.float64(ops.convert_to_numpy(x))


def _tiled(masks, x):
    """The masks of images, for `x`, the states of the images once or more."""
    return [ops.concatenate([mask] * (len(x) // len(mask))) for mask in masks]


def _connection(model, begin, end, masks=()):
    """Function of the tensor `begin` and the masks that gives the tensor `end`."""
    try:
        function = keras.Function([begin, *masks], end)
    except ValueError:
        raise ValueError(
            "`model` must lead every path from its input to its logits through all of "
            "its highway layers or residual units, one after the other. "
            f"Received: {model.name!r}, in which paths run side by side"
        ) from None
    return compiled(lambda *tensors: function([*tensors]), *map(_spec, (begin, *masks)))


def _spec(tensor):
    return tensor.dtype, (None, *tensor.shape[1:])


def _block(layer, without):
    """Function (x, open, active) of a block or loop, and its mask if it has one.

    `open`, `(copies, batch)`: where it is False, the copy is closed for that image;
    `active`, `(copies,)`: copies where it is False are passed over.
    """

    def mix(block, x, mask, is_open):
        y = _blocks.output_of(block, x, mask)

        def choose():
            left = ops.cast(_blocks.left_of(block, x, without, mask), y.dtype)
            mine = ops.reshape(is_open, (-1, *(1 for _ in y.shape[1:])))
            return ops.where(mine, y, left)

        return ops.cond(ops.all(is_open), lambda: y, choose)

    def loop(x, is_open, active, mask=None):
        def copy(block, x, slices):
            is_open, active = slices

            def run():
                return ops.cast(mix(block, x, mask, is_open), x.dtype)

            return ops.cond(active, run, lambda: x), ()

        return layer.map_copies(copy, x, (is_open, active))[0]

    def single(x, is_open, active, mask=None):
        return mix(layer, x, mask, is_open[0])

    copies, mask = len(_blocks.names_of(layer)), _blocks.mask_of(layer)
    return compiled(
        loop if isinstance(layer, ScanLayers) else single,
        (layer.output.dtype, (None, *_blocks.input_of(layer).shape[1:])),
        ("bool", (copies, None)),
        ("bool", (copies,)),
        *(() if mask is None else (_spec(mask),)),
    )
