"""The ten-layer net of `highway_cnn_mnist_10` without gates: 77,706 parameters.

    python recipes/train.py plain_cnn_mnist_10

As `highway_cnn_mnist_10`, for comparison.
"""

import dataclasses

from recipes.configs import highway_cnn_mnist_10
from zoo.models import PLAIN_VARIANTS

CONFIG = dataclasses.replace(
    highway_cnn_mnist_10.CONFIG,
    builder="plain_cnn",
    model={**PLAIN_VARIANTS["mnist_10"], "num_classes": 10},
)
