"""Fifty-layer highway net on CIFAR-100, whose gates the papers look into.

    python recipes/train.py highway_mlp_cifar100_50

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §4 and Fig. 2: a
plain layer and 49 highway layers of 50 units, tanh, gates at −4; per-image contrast
normalisation. The paper prints no solver; ours is that of `highway_mlp_mnist_50`.
408,650 parameters. Trained without the validation split.

Result: test accuracy .1955 ± .0014 (3 seeds; seed 0: .1966), 7 minutes on one CPU core.
"""

from recipes.configs import highway_mlp_mnist_50

CONFIG = highway_mlp_mnist_50.CONFIG.replace(
    model={
        "input_shape": (32, 32, 3),
        "num_classes": 100,
        "gate_bias": -4.0,
        "contrast": True,
    },
    dataset="cifar100",
)
