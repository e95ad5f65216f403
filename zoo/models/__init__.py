"""Model builders: plain functions that return an uncompiled Keras model."""

from zoo.models.highway import HIGHWAY_VARIANTS, highway_cnn, highway_mlp
from zoo.models.plain import PLAIN_VARIANTS, plain_cnn, plain_mlp
from zoo.models.resnet import preact_resnet

__all__ = [
    "HIGHWAY_VARIANTS",
    "PLAIN_VARIANTS",
    "highway_cnn",
    "highway_mlp",
    "plain_cnn",
    "plain_mlp",
    "preact_resnet",
]
