"""100 plain layers on CIFAR-100: as many steps as `highway_mlp_cifar100_900`.

    python recipes/train.py plain_mlp_cifar100_100

The comparison of Srivastava, Greff, Schmidhuber 2015: same width, same solver, a ninth
of the depth and no gates.

Result: training loss 4.61 = ln 100 after 1,500 steps, test accuracy .010, chance
(1 seed; 15 s on 2 CPU cores).
"""

import dataclasses

from recipes.configs import highway_mlp_cifar100_900

_HIGHWAY = highway_mlp_cifar100_900.CONFIG
_MODEL = {k: v for k, v in _HIGHWAY.model.items() if k != "gate_bias"}

CONFIG = dataclasses.replace(
    _HIGHWAY, builder="plain_mlp", model={**_MODEL, "depth": 100}
)
