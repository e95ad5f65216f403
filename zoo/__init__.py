"""Very deep networks in Keras 3: highway networks and pre-activation ResNets."""

import importlib

from zoo import layers, models
from zoo.models import (
    char_cnn,
    char_lstm,
    convert,
    describe,
    fitnet,
    fitnet_teacher,
    highway_cnn,
    highway_mlp,
    plain_cnn,
    plain_mlp,
    preact_resnet,
    resnet,
)

__version__ = "0.1.0"

# Imported at first use: they need TensorFlow, or take long to import.
_LAZY_MODULES = ("analysis", "datasets", "distribution", "export", "training", "tuning")
_LAZY_NAMES = {
    "list_pretrained": "zoo.pretrained",
    "load": "zoo.pretrained",
    "load_served": "zoo.pretrained",
    "verify": "zoo.pretrained",
}

__all__ = [
    "char_cnn",
    "char_lstm",
    "convert",
    "describe",
    "fitnet",
    "fitnet_teacher",
    "highway_cnn",
    "highway_mlp",
    "layers",
    "models",
    "plain_cnn",
    "plain_mlp",
    "preact_resnet",
    "resnet",
    *_LAZY_MODULES,
    *_LAZY_NAMES,
]


def __getattr__(name):
    if name in _LAZY_MODULES:
        return importlib.import_module(f"zoo.{name}")
    if name in _LAZY_NAMES:
        return getattr(importlib.import_module(_LAZY_NAMES[name]), name)
    raise AttributeError(f"module 'zoo' has no attribute {name!r}")


def __dir__():
    return sorted(__all__)
