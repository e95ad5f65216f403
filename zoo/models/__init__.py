"""Model builders: plain functions that return an uncompiled Keras model."""

from zoo.models.char_cnn import CHAR_VARIANTS, char_cnn, char_lstm
from zoo.models.convert import convert, describe, without_layers
from zoo.models.fitnet import fitnet, fitnet_teacher
from zoo.models.highway import HIGHWAY_VARIANTS, highway_cnn, highway_mlp
from zoo.models.plain import PLAIN_VARIANTS, plain_cnn, plain_mlp
from zoo.models.resnet import RESNET_VARIANTS, preact_resnet, resnet

BUILDERS = (
    "char_cnn",
    "char_lstm",
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
    "CHAR_VARIANTS",
    "HIGHWAY_VARIANTS",
    "PLAIN_VARIANTS",
    "RESNET_VARIANTS",
    "char_cnn",
    "char_lstm",
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
    "without_layers",
]
