"""Custom layers: highway layers, residual units, loops, characters, augmentation."""

from zoo.layers.character_conv import CharacterConv
from zoo.layers.character_tokenizer import CharacterTokenizer
from zoo.layers.dropout import Dropout
from zoo.layers.highway import Highway
from zoo.layers.highway_conv import HighwayConv
from zoo.layers.highway_dense import HighwayDense
from zoo.layers.maxout import MaxoutConv, MaxoutDense
from zoo.layers.mean_of_words import MeanOfWords
from zoo.layers.preact_residual import PreActResidual
from zoo.layers.preprocessing import ContrastNormalization, MeanImage, PadCropFlip
from zoo.layers.residual import Residual
from zoo.layers.scan_layers import ScanLayers
from zoo.layers.whitening import ZCAWhitening

__all__ = [
    "CharacterConv",
    "CharacterTokenizer",
    "ContrastNormalization",
    "Dropout",
    "Highway",
    "HighwayConv",
    "HighwayDense",
    "MeanImage",
    "MeanOfWords",
    "MaxoutConv",
    "MaxoutDense",
    "PadCropFlip",
    "PreActResidual",
    "Residual",
    "ScanLayers",
    "ZCAWhitening",
]
