"""900 weight layers on scikit-learn's digits: depth is no obstacle.

    python recipes/train.py highway_mlp_digits_900

As `highway_mlp_digits_50`, with 899 highway layers of 32 units, so that the trained
net stays small: 1,901,098 parameters.

Result: test accuracy .929 ± .022 (5 seeds), 30 s of training on 2 CPU cores. The gate
bias was chosen among −6, −7, −8, −10 by the mean accuracy of 2 seeds on the validation
split, trained on the other nine tenths: .886, .917, .894, .906.
"""

import math

from recipes.configs import highway_mlp_digits_50

# U(±1/√n), n = 32, as in the 50-layer config; the stem's n is 64.
LIMIT = 1 / math.sqrt(32)
UNIFORM = {
    "class_name": "RandomUniform",
    "config": {"minval": -LIMIT, "maxval": LIMIT},
}

CONFIG = highway_mlp_digits_50.CONFIG.replace(
    model={
        "depth": 900,
        "units": 32,
        "gate_bias": -7.0,
        "kernel_initializer": UNIFORM,
        "gate_kernel_initializer": UNIFORM,
        "bias_initializer": UNIFORM,
    },
)
