"""Fifty-layer highway net on MNIST, whose gates the papers look into: tanh, b −2.

    python recipes/train.py highway_mlp_mnist_50

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §4 and Fig. 2: a
plain layer and 49 highway layers of 50 units. 289,660 parameters. The paper prints no
solver for it; ours is momentum .9 at a rate of .02 that falls by a tenth an epoch.
"""

from recipes.configs import Config

CONFIG = Config(
    builder="highway_mlp",
    model={
        "input_shape": (28, 28, 1),
        "num_classes": 10,
        "depth": 50,
        "units": 50,
        "activation": "tanh",
        "gate_bias": -2.0,
    },
    dataset="mnist",
    epochs=30,
    batch_size=100,
    optimizer={"name": "sgd", "learning_rate": 0.02, "momentum": 0.9},
    schedule={"name": "exponential", "decay_rate": 0.9},
)
