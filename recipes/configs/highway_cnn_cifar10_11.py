"""Highway A on CIFAR-10: eleven layers, 236,328 parameters.

    python recipes/train.py highway_cnn_cifar10_11

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.3 and Table 1:
.8918. The widths were never published; these are a reconstruction that hits the
count. Per-image contrast normalisation, pad 8, crop, mirror, mean image; the authors'
solver as in `highway_cnn_cifar10_19`.

Departures: 95 epochs along two half cosines, in place of 400 in steps: after a warm-up
of one epoch from .1 down to 0 at the 40th, then from .025. In so few the paper's
settings underfit (at epoch 27 of 45 an accuracy of .75 on 5,000 training images, not
augmented; 1 seed), hence these rates in place of .025, no dropout and λ 1e-4 in place
of .001. Convolutions are trained in bfloat16, as in `preact_resnet_cifar10_20`.

Result: .8578 on the test set (1 seed), 159 minutes on one CPU core of two, beside other
work, in two parts; the second went on after epoch 40, where the rate is 0, with a
momentum of 0. There it was .8310. With batches of 50 at a rate of .1 the training
accuracy falls after epoch 4, from .54 to .43 in two epochs, at .05 after epoch 13, from
.68 to .62 in eight.
"""

import dataclasses

from recipes.configs import highway_cnn_cifar10_19
from zoo.models import HIGHWAY_VARIANTS

CONFIG = dataclasses.replace(
    highway_cnn_cifar10_19.CONFIG,
    model={**HIGHWAY_VARIANTS["cifar_11"], "num_classes": 10, "dropout": 0.0},
    epochs=95,
    optimizer={**highway_cnn_cifar10_19.CONFIG.optimizer, "learning_rate": 0.1},
    schedule={"name": "cosine", "warmup_epochs": 1, "restarts": [40], "factor": 0.25},
    decay=1e-4,
    dtype_policy="mixed_bfloat16",
)
