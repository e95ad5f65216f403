"""Fifty-layer highway net on MNIST, whose gates the papers look into: tanh, b −2.

    python recipes/train.py highway_mlp_mnist_50

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §4 and Fig. 2: a
plain layer and 49 highway layers of 50 units. 289,660 parameters. Trained without the
validation split, which is for choosing what to prune.

The paper prints no solver for it. Ours is AdamW at 2e-3 along half a cosine, decay of
.3 on kernels, chosen by the accuracy of 12 epochs on the validation split: SGD with
momentum .9 at .05 and .1, falling by a tenth an epoch, .9612 and .9693; Adam at 1e-3
.9712; AdamW with a decay of .1 and .3 .9745 and .9743, of loss .102 and .090 (1 seed
each).

Result: test accuracy .9790 ± .0007 (3 seeds; seed 0: .9792), 6 minutes on one CPU core.
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
    optimizer={"name": "adamw", "learning_rate": 2e-3, "weight_decay": 0.3},
    schedule={"name": "cosine"},
    train_split="train",
)
