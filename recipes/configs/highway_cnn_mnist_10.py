"""Ten-layer convolutional highway net on MNIST, 32 filters: 151,690 parameters.

    python recipes/train.py highway_cnn_mnist_10

Srivastava, Greff, Schmidhuber 2015, "Training Very Deep Networks", §3.2, and the
authors' Caffe files: Nesterov's momentum .9, rate .01 ÷10 at a third and two thirds of
the steps, batch 100, λ .001 on kernels, ten times that on the logits' kernel, twice the
rate for biases. The paper's accuracy is .9954 ± .0002 (5 runs).

Departures: 30 epochs in place of 300.
"""

from recipes.configs import Config
from zoo.models import HIGHWAY_VARIANTS

EPOCHS = 30
STEPS = 600 * EPOCHS

CONFIG = Config(
    builder="highway_cnn",
    model={**HIGHWAY_VARIANTS["mnist_10"], "num_classes": 10},
    dataset="mnist",
    epochs=EPOCHS,
    batch_size=100,
    optimizer={
        "name": "sgd",
        "learning_rate": 0.01,
        "momentum": 0.9,
        "nesterov": True,
        "bias_rate": 2.0,
    },
    schedule={"name": "step", "boundaries": [STEPS // 3, 2 * STEPS // 3]},
    decay=1e-3,
    decay_head_factor=10.0,
)
