"""Initial draws: no two layers, halves or copies may share one."""

import zlib

import keras


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
