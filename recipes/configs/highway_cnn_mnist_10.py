"""Ten-layer convolutional highway net on MNIST, 32 filters: 151,690 parameters.

    python recipes/train.py highway_cnn_mnist_10

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.2, and the
authors' Caffe files: Nesterov's momentum .9, batch 100, λ .001 on kernels, ten times
that on the logits' kernel, twice the rate for biases. The paper's accuracy is .9954 ±
.0002 (5 runs).

Departures: 30 epochs in place of 300, and a rate of .1 along half a cosine after an
epoch of warm-up in place of .01 ÷10 at a third and two thirds; convolutions train in
bfloat16. The rate was chosen with `highway_cnn_mnist_10_w16`, 8 epochs of 12,000
images, by the accuracy on the validation split (1 seed each): .01 in steps .8672, .01,
.03 and .1 along the cosine .9217, .9625 and .9718; λ of 1e-4 at .03 .9583.

Result: test accuracy .9951 (seed 0), 55 minutes on one CPU core.
"""

from recipes.configs import Config
from zoo.models import HIGHWAY_VARIANTS

CONFIG = Config(
    builder="highway_cnn",
    model={**HIGHWAY_VARIANTS["mnist_10"], "num_classes": 10},
    dataset="mnist",
    epochs=30,
    batch_size=100,
    optimizer={
        "name": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
        "bias_rate": 2.0,
    },
    schedule={"name": "cosine", "warmup_epochs": 1},
    decay=1e-3,
    decay_head_factor=10.0,
    dtype_policy="mixed_bfloat16",
)
