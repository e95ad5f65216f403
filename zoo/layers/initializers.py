"""Initial draws: no two layers, halves or copies may share one."""

import zlib

import keras
from keras import ops


def fork(initializer, salt):
    """A copy of `initializer` that draws other values; the same ones for a `salt`.

    Keras repeats an initializer's draw each time the same object is called, seeded
    or not: two layers that share one would start equal, H as T. A seed given as an
    integer gives a new one derived from it and `salt`; without a seed the copy is
    seeded afresh (repeatable after `keras.utils.set_random_seed`).

    Args:
        initializer: Keras initializer or any function of (shape, dtype).
        salt: string, says who asks: "gate", "highway_01", …

    Returns:
        A new initializer; `initializer` itself where it has no seed to share
        (constants, plain functions, a `SeedGenerator`, which moves on by itself).
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    config = initializer.get_config()
    seed = config.get("seed", initializer)
    if isinstance(seed, int):
        config["seed"] = zlib.crc32(f"{seed}/{salt}".encode())
    elif seed is not None:
        return initializer
    return type(initializer).from_config(config)


def share_a_draw(one, other):
    """Whether two initializers would draw alike: one object, or one seed."""
    return one is not None and (
        one is other or _seed(one) is not None and _seed(one) == _seed(other)
    )


def _seed(initializer):
    if isinstance(initializer, keras.initializers.Initializer):
        return initializer.get_config().get("seed")
    return None


def draw_stack(initializer, length, shape, dtype):
    """`length` independent initial values in one draw, `(length, *shape)`.

    The variance is that of a single `shape`: fans are counted without the first
    axis. Initializers that Keras does not define are called once a copy, each time
    with a seed of its own.
    """
    stacked = (length, *shape)
    if isinstance(initializer, keras.initializers.VarianceScaling):
        inputs, outputs = initializer.input_axes, initializer.output_axes
        if inputs is None or outputs is None:
            rank = len(shape)
            field = list(range(rank - 2))  # of a convolution kernel
            inputs = field + [rank - 2] if rank > 1 else list(range(rank))
            outputs = field + [rank - 1] if rank > 1 else list(range(rank))
        return keras.initializers.VarianceScaling(
            initializer.scale,
            initializer.mode,
            initializer.distribution,
            initializer.seed,
            [axis % len(shape) + 1 for axis in inputs],
            [axis % len(shape) + 1 for axis in outputs],
        )(stacked, dtype)
    if type(initializer) in _SHAPELESS:
        return initializer(stacked, dtype)
    if isinstance(initializer, keras.initializers.Constant):
        return ops.broadcast_to(initializer(shape, dtype), stacked)
    return ops.stack(
        [fork(initializer, f"copy_{i}")(shape, dtype) for i in range(length)]
    )


_SHAPELESS = (
    keras.initializers.Zeros,
    keras.initializers.Ones,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
)


def he_fan_out():
    """N(0, √(2/fan_out)), not truncated: the initial draw of He's residual nets."""
    return keras.initializers.VarianceScaling(2.0, "fan_out", "untruncated_normal")
