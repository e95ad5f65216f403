"""50 plain layers on scikit-learn's digits: at chance with U(±1/√n).

    python recipes/train.py plain_mlp_digits_50

As `highway_mlp_digits_50` without gates: the same width of 64, initial draw and
optimizer. No gradient reaches the first layers.

Result: test accuracy .1015 ± .0008 (5 seeds), chance; seconds of training
on 2 CPU cores.
"""

import dataclasses

from recipes.configs import highway_mlp_digits_50

_HIGHWAY = highway_mlp_digits_50.CONFIG

CONFIG = dataclasses.replace(
    _HIGHWAY,
    builder="plain_mlp",
    model={
        key: value
        for key, value in _HIGHWAY.model.items()
        if key not in ("gate_bias", "gate_kernel_initializer")
    },
)
