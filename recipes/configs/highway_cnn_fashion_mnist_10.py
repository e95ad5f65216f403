"""The ten-layer convolutional highway net of MNIST on Fashion-MNIST.

    python recipes/train.py highway_cnn_fashion_mnist_10

As `highway_cnn_mnist_10`; the paper has no figure for this data set.
"""

from recipes.configs import highway_cnn_mnist_10

CONFIG = highway_cnn_mnist_10.CONFIG.replace(dataset="fashion_mnist")
