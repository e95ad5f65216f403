"""Data sets as `tf.data` streams, with fixed splits and a repeatable order."""

from zoo.datasets._info import DatasetInfo
from zoo.datasets._load import arrays, from_arrays, info, load, names

__all__ = ["DatasetInfo", "arrays", "from_arrays", "info", "load", "names"]
