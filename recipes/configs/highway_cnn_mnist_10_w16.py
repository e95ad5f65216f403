"""Ten-layer convolutional highway net on MNIST, 16 filters: 38,986 parameters.

    python recipes/train.py highway_cnn_mnist_10_w16

As `highway_cnn_mnist_10`. The paper's accuracy is .994 ± .0003 (5 runs).

Result: test accuracy .9936 (seed 0), 59 minutes on a shared CPU core (a step
takes 74 ms of it, which is 22 minutes).
"""

from recipes.configs import highway_cnn_mnist_10
from zoo.models import HIGHWAY_VARIANTS

CONFIG = highway_cnn_mnist_10.CONFIG.replace(model=HIGHWAY_VARIANTS["mnist_10_w16"])
