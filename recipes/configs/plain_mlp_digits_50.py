"""50 plain layers on scikit-learn's digits: stays at chance.

    python recipes/train.py plain_mlp_digits_50

As `highway_mlp_digits_50` without gates: the same width of 64, initial draw and
optimizer.

Result: test accuracy .1015 ± .0008 (5 seeds), about 4 s of training on 2 CPU cores. No gradient reaches the first layers.
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
