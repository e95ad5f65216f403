"""Model builders: plain functions that return an uncompiled Keras model."""

from zoo.models.convert import convert, describe
from zoo.models.fitnet import fitnet, fitnet_teacher
from zoo.models.highway import HIGHWAY_VARIANTS, highway_cnn, highway_mlp
from zoo.models.plain import PLAIN_VARIANTS, plain_cnn, plain_mlp
from zoo.models.resnet import RESNET_VARIANTS, preact_resnet, resnet

BUILDERS = (
    "fitnet",
    "fitnet_teacher",
    "highway_cnn",
    "highway_mlp",
    "plain_cnn",
    "plain_mlp",
    "preact_resnet",
    "resnet",
)

__all__ = [
    "BUILDERS",
    "HIGHWAY_VARIANTS",
    "PLAIN_VARIANTS",
    "RESNET_VARIANTS",
    "convert",
    "describe",
    "fitnet",
    "fitnet_teacher",
    "highway_cnn",
    "highway_mlp",
    "plain_cnn",
    "plain_mlp",
    "preact_resnet",
    "resnet",
]
