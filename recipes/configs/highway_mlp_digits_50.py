"""50 highway layers on scikit-learn's digits: trains where a plain net stays at chance.

    python recipes/train.py highway_mlp_digits_50

Source: a public tutorial that writes the highway layer in NumPy; its "50 layers" are 50
highway layers behind a plain one, in the papers' count depth 51: 420,810 parameters.

Result: test accuracy .9596 ± .0040 (5 seeds; seed 0: .9648), under 10 s of training
on 2 CPU cores. With gate bias −2 .9289 ± .0151, with 0 .1015 ± .0008, chance.

Departures: the gates start at −5, the tutorial's best value, not at its default −2.
"""

import math

from recipes.configs import Config

# U(±1/√n) for every kernel and bias but the gate biases; all layers have n = 64.
LIMIT = 1 / math.sqrt(64)
UNIFORM = {
    "class_name": "RandomUniform",
    "config": {"minval": -LIMIT, "maxval": LIMIT},
}

CONFIG = Config(
    builder="highway_mlp",
    model={
        "input_shape": (8, 8, 1),
        "num_classes": 10,
        "depth": 1 + 50,
        "units": 64,
        "gate_bias": -5.0,
        "rescale": 1 / 16,  # pixels are 0 … 16
        "kernel_initializer": UNIFORM,
        "gate_kernel_initializer": UNIFORM,
        "bias_initializer": UNIFORM,
    },
    dataset="digits",
    epochs=30,
    batch_size=64,
    optimizer={"name": "adam", "learning_rate": 1e-3},
)
