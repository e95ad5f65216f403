"""Where a model trains: strategies of TensorFlow, chosen by name."""

import collections
import functools
import json
import os

import tensorflow as tf

from zoo._checks import known

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker")


def strategy(name: str = "auto") -> tf.distribute.Strategy:
    """A `tf.distribute` strategy; build and compile the model in its `scope()`."""
    known("strategy", name, STRATEGIES)
    workers = _workers() if name in ("auto", "multi_worker") else []
    if name == "multi_worker" or len(workers) > 1:
        return _multi_worker()
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return _mirrored(*(gpus or cpus))
    return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])


@functools.cache
def _mirrored(*devices):
    return tf.distribute.MirroredStrategy(devices)


@functools.cache
def _multi_worker():
    return _MultiWorkerMirroredStrategy()


def _workers():
    return (
        json.loads(os.environ.get("TF_CONFIG", "{}"))
        .get("cluster", {})
        .get("worker", [])
    )


class _MultiWorkerMirroredStrategy(tf.distribute.MultiWorkerMirroredStrategy):
    def reduce(self, reduce_op, value, axis=None):
        return tf.nest.map_structure(
            lambda v: self._reduce_one(reduce_op, v, axis), value
        )

    def _reduce_one(self, reduce_op, value, axis):
        local = self.experimental_local_results(value)[0]
        if tf.TensorShape(getattr(local, "shape", ())).rank == 0:
            axis = None
        mean = reduce_op in ("MEAN", tf.distribute.ReduceOp.MEAN)
        dtype = tf.as_dtype(local.dtype)
        if mean and not dtype.is_floating:
            value = self.run(_as_float64, args=(value,))
            return tf.cast(super().reduce(reduce_op, value, axis), dtype)
        return super().reduce(reduce_op, value, axis)

_as_float64 = tf.function(lambda v: tf.cast(v, "float64"))
