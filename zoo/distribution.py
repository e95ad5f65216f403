"""Where a model trains: strategies of TensorFlow, chosen by name."""

import functools

import tensorflow as tf

from zoo._checks import known

STRATEGIES = ("auto", "one_device", "mirrored")


def strategy(name: str = "auto") -> tf.distribute.Strategy:
    """A `tf.distribute` strategy; build and compile the model in its `scope()`.

    Args:
        name: "one_device": the first GPU, else the CPU. "mirrored": a replica on each
            GPU (or on each logical CPU where there is no GPU), batches split among
            them. "auto" (the default): mirrored for two or more GPUs, else one
            device.

    Returns:
        The strategy.

    Raises:
        ValueError: an unknown name, with the known ones.

    Example:
        >>> import zoo
        >>> zoo.distribution.strategy("one_device").num_replicas_in_sync
        1
    """
    known("strategy", name, STRATEGIES)
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return _mirrored(*(gpus or cpus))
    return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])


@functools.cache
def _mirrored(*devices):
    """One strategy a process: TensorFlow numbers the collective operations of each
    anew, and the second one's would be taken for the first one's."""
    return tf.distribute.MirroredStrategy(devices)
