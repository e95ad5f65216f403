"""Highway A on CIFAR-10: eleven layers, 236,328 parameters.

    python recipes/train.py highway_cnn_cifar10_11

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.3 and Table 1:
.8918. The widths were never published; these are a reconstruction that hits the
count. Per-image contrast normalisation, pad 8, crop, mirror, mean image; the authors'
solver as in `highway_cnn_cifar10_19`.

Departures: 45 epochs of the rate .025 after a warm-up of one, along half a cosine, in
place of 400 in steps.
"""

import dataclasses

from recipes.configs import highway_cnn_cifar10_19
from zoo.models import HIGHWAY_VARIANTS

CONFIG = dataclasses.replace(
    highway_cnn_cifar10_19.CONFIG,
    model={**HIGHWAY_VARIANTS["cifar_11"], "num_classes": 10},
    epochs=45,
    schedule={"name": "cosine", "warmup_epochs": 1},
)
