"""Nineteen-layer convolutional highway net on CIFAR-10: 2,256,838 parameters.

    python recipes/train.py highway_cnn_cifar10_19

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.3, and the
authors' Caffe files: .9231 ± .0012 (5 runs). Per-image contrast normalisation, pad 8
with zeros, random crop, mirror, mean image of the training set subtracted; Nesterov's
momentum .9, rate .025 ÷10 at 100,000, 150,000 and 175,000 of 200,000 steps, batch 100,
λ .001 on kernels, ten times that on the logits' kernel, twice the rate for biases. The
first convolution starts as N(0, .05), as meant; the published file ran N(0, 1).

Result: not trained to its end. After 5 of the 400 epochs (`--epochs 5 --set
dtype_policy=mixed_bfloat16`, 54 minutes, the first 1,454 of 2,500 steps on one thread
beside other work, the rest on two) .5618 on the test set (1 seed), training accuracy
.208, .324, .413, .473, .505 by epoch.
"""

from recipes.configs import Config
from zoo.models import HIGHWAY_VARIANTS

CONFIG = Config(
    builder="highway_cnn",
    model={**HIGHWAY_VARIANTS["cifar_19"], "num_classes": 10},
    dataset="cifar10",
    epochs=400,
    batch_size=100,
    optimizer={
        "name": "sgd",
        "learning_rate": 0.025,
        "momentum": 0.9,
        "nesterov": True,
        "bias_rate": 2.0,
    },
    schedule={"name": "step", "boundaries": [100_000, 150_000, 175_000]},
    decay=1e-3,
    decay_head_factor=10.0,
)
