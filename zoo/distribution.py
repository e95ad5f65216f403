"""Where a model trains: strategies of TensorFlow and of JAX, chosen by name."""

import contextlib
import functools
import json
import os
import socket
import time

import keras
import tensorflow as tf

from zoo._checks import known

STRATEGIES = ("auto", "one_device", "mirrored", "multi_worker")

TF_CONFIG = (
    '{"cluster": {"worker": ["host1:2222", "host2:2222"]}, '
    '"task": {"type": "worker", "index": 0}}'
)


class WorkerLost(RuntimeError):
    """A worker of a multi-worker strategy has ended or cannot be reached any more."""


def strategy(name: str = "auto", timeout: float = 300.0):
    """A `tf.distribute` strategy; build and compile the model in its `scope()`.

    **Several machines.** "multi_worker" reads the environment variable `TF_CONFIG`,
    which names the address of every worker and which of them this process is:

        {"cluster": {"worker": ["host1:2222", "host2:2222"]},
         "task": {"type": "worker", "index": 0}}

    Start the same program on every worker, each with its own `index`. It goes on once
    all have started. Give `fit`, `evaluate` and
    `predict` the same data everywhere: each worker computes its part of every batch,
    and all return the same. Weights and moving statistics stay the same on all
    workers, bit for bit.

    **Several replicas.** A batch size is that of all replicas together, and the nets
    of this package train as on one device: batch normalisation takes the statistics
    of the whole batch, every example weighs the same also where replicas have parts
    of different sizes or none, and replicas draw dropout and augmentation of their
    own. Sums come in another order, so that results differ by rounding.

    Every worker must make the same calls, since reading a metric or saving a model
    may wait for the others, and must write to a folder of its own. If a worker dies,
    the others get an error within two minutes, in the context of `running` a
    `WorkerLost`.

    **JAX.** With the backend jax it is a `keras.distribution.DataParallel` over the
    local devices, and `fit` must be in the context of `running`. Give it batches that
    are all multiples of the number of devices: Keras shares out an iterator as it does
    its first batch, and one that cannot be shared out is computed on every device.

    Args:
        name: "one_device": the first GPU, else the CPU. "mirrored": a replica on each
            GPU (or on each logical CPU where there is no GPU), batches split among
            them. "multi_worker": the same over the GPUs (or the CPU) of several
            machines. "auto" (the default): multi-worker where `TF_CONFIG` names two
            or more workers, mirrored for two or more GPUs, else one device; on JAX
            all local devices.
        timeout: seconds to wait for other workers, 300 by default.

    Returns:
        The strategy. A process has one mirrored (for the same devices) and one
        multi-worker strategy: the same object comes back.

    Raises:
        ValueError: an unknown name, with the known ones; for "auto" and
            "multi_worker" a `TF_CONFIG` that is not JSON, has no or repeated or
            malformed addresses, or whose task is not among them; for "multi_worker"
            no `TF_CONFIG`, or the backend JAX.
        RuntimeError: "multi_worker" after TensorFlow's first operation.
        OSError: the port of this worker is taken; TimeoutError: others do not answer.

    Example:
        >>> import zoo
        >>> zoo.distribution.strategy("one_device").num_replicas_in_sync
        1
    """
    known("strategy", name, STRATEGIES)
    if keras.backend.backend() == "jax":
        return _data_parallel(name)
    # Before anything that starts TensorFlow: it connects to workers only then.
    if name == "multi_worker" or (name == "auto" and os.environ.get("TF_CONFIG")):
        workers, index = _workers(os.environ.get("TF_CONFIG", ""))
        if name == "multi_worker" or len(workers) > 1:
            if not _multi_worker.cache_info().currsize:
                _check_not_started()
                _meet(workers, index, timeout)
            return _multi_worker()
    gpus = [device.name for device in tf.config.list_logical_devices("GPU")]
    cpus = [device.name for device in tf.config.list_logical_devices("CPU")]
    if name == "mirrored" or (name == "auto" and len(gpus) > 1):
        return _mirrored(*(gpus or cpus))
    return tf.distribute.OneDeviceStrategy((gpus or cpus)[0])


@functools.cache
def _mirrored(*devices):
    """One strategy a process: TensorFlow numbers the collective operations of each
    anew, and the second one's would be taken for the first one's."""
    return _Mirrored(devices)


@functools.cache
def _multi_worker():
    """One strategy a process, for the same reason."""
    return _MultiWorkerMirrored()


def _check_not_started():
    threads = tf.config.threading.get_inter_op_parallelism_threads()
    try:  # this setting is refused from then on
        tf.config.threading.set_inter_op_parallelism_threads(threads + 1)
    except RuntimeError:
        raise RuntimeError(
            "strategy('multi_worker') must come before the first tensor or model, "
            "because TensorFlow connects to other workers only when it starts. "
            "Received: a TensorFlow that has started; make the strategy right after "
            "the imports"
        ) from None
    tf.config.threading.set_inter_op_parallelism_threads(threads)


def _workers(text):
    """Addresses of the workers that `TF_CONFIG` names, the chief's first, and the
    place of this one among them.

    TensorFlow itself waits for ever, or fails late, with most wrong ones.
    """

    def check(fits, rule, received):
        if not fits:
            raise ValueError(
                f"`TF_CONFIG` must {rule}, as in {TF_CONFIG}. Received: {received}"
            )

    check(text.strip(), "be set", "no TF_CONFIG in the environment")
    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        check(False, "be JSON", f"TF_CONFIG={text!r} ({error})")
    cluster = config.get("cluster") if isinstance(config, dict) else None
    check(
        isinstance(cluster, dict) and (cluster.keys() & {"chief", "worker"}),
        "name a cluster with a list of workers",
        f"TF_CONFIG={text!r}",
    )
    others = sorted(cluster.keys() - {"chief", "worker"})
    check(
        not others,
        "name no other jobs than `chief` and `worker`",
        f"cluster with {', '.join(others)}",
    )
    jobs = {job: cluster.get(job, []) for job in ("chief", "worker")}
    for job, tasks in jobs.items():
        check(
            isinstance(tasks, list) and all(map(_is_address, tasks)),
            f"give the addresses of `{job}` as a list of host:port",
            f"{job}={tasks!r}",
        )
    check(len(jobs["chief"]) <= 1, "name one chief at most", f"chief={jobs['chief']}")
    addresses = jobs["chief"] + jobs["worker"]
    check(addresses, "name at least one worker", f"cluster={cluster}")
    repeated = sorted({a for a in addresses if addresses.count(a) > 1})
    check(
        not repeated,
        "give every worker an address of its own",
        f"{', '.join(repeated)} more than once",
    )
    task = config.get("task")
    check(
        isinstance(task, dict) and any(jobs[j] and j == task.get("type") for j in jobs),
        "name the task of this process by a `type` that is in the cluster",
        f"task={task!r}",
    )
    index, count = task.get("index"), len(jobs[task["type"]])
    check(
        str(index).isdecimal() and int(index) < count,
        f"give the task an `index` of 0 … {count - 1}, its place in the list",
        f"task={task!r}",
    )
    chiefs = len(jobs["chief"]) if task["type"] == "worker" else 0
    return addresses, chiefs + int(index)


def _meet(addresses, index, timeout):
    """Waits until every worker can be reached. TensorFlow itself waits for ever.

    Meanwhile each listens where TensorFlow will. Who has met all goes on, and
    TensorFlow answers those that are still looking.
    """
    host, _, port = addresses[index].rpartition(":")
    try:
        listener = socket.create_server(("", int(port)), backlog=len(addresses))
    except OSError as error:
        raise OSError(
            f"`TF_CONFIG` must give this worker a free port. Received: worker {index} "
            f"at {addresses[index]} ({os.strerror(error.errno)})"
        ) from None
    missing = {a: None for a in addresses if a != addresses[index]}
    end = time.monotonic() + timeout
    with listener:
        while missing:
            for address in [*missing]:
                host, _, port = address.rpartition(":")
                left = end - time.monotonic()
                if left <= 0:
                    raise TimeoutError(
                        f"`TF_CONFIG` names workers that did not answer within "
                        f"{timeout:g} s; start them, or mend their addresses. "
                        "Received: "
                        + ", ".join(f"{a} ({why})" for a, why in missing.items())
                    )
                try:
                    with socket.create_connection(
                        (host.strip("[]"), int(port)), min(left, 2.0)
                    ):
                        del missing[address]
                except OSError as error:
                    missing[address] = error.strerror or error
            if missing:
                time.sleep(min(0.2, timeout))


def worker_index() -> int:
    """This process' place among the workers that `TF_CONFIG` names; the chief is 0,
    and so is who works alone.

    Raises:
        ValueError: a wrong `TF_CONFIG`, as in `strategy`.
    """
    text = os.environ.get("TF_CONFIG")
    return _workers(text)[1] if text else 0


@contextlib.contextmanager
def running(strategy):
    """What `fit`, `evaluate` and `predict` belong into.

    On JAX it is the scope of the strategy, which shares out the batches. On TensorFlow
    the errors that report a lost worker become `WorkerLost`.

    Args:
        strategy: as `strategy()` gave it.

    Raises:
        WorkerLost: another worker of several has ended.
    """
    if keras.backend.backend() == "jax":
        with strategy.scope():
            yield
        return
    try:
        yield
    except tf.errors.OpError as error:
        if not (isinstance(strategy, _MultiWorkerMirrored) and "task:" in str(error)):
            raise
        raise WorkerLost(
            f"Another worker does not answer any more ({type(error).__name__})."
        ) from error


def _data_parallel(name):
    """The strategy's counterpart in JAX."""
    if name == "multi_worker":
        raise ValueError(
            "`strategy` must be 'auto', 'one_device' or 'mirrored' on the backend JAX. "
            f"Received: strategy={name!r}, KERAS_BACKEND=jax"
        )
    devices = keras.distribution.list_devices()
    return _DataParallel(devices[:1] if name == "one_device" else devices)


class _DataParallel(keras.distribution.DataParallel):
    """Keras' own, for batches that cannot be shared out, too."""

    def __init__(self, devices):
        super().__init__(devices=devices, auto_shard_dataset=False)
        self.num_replicas_in_sync = len(devices)

    def get_data_layout(self, data_shape):
        layout = super().get_data_layout(data_shape)
        if data_shape[0] % self.num_replicas_in_sync:
            return keras.distribution.TensorLayout(
                [None] * len(data_shape), self.device_mesh
            )
        return layout


def _is_address(address):
    if not isinstance(address, str):
        return False
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdecimal() and 0 < int(port) < 65536


class _Reducing:
    """A strategy that Keras 3.15 can train with.

    Keras reduces a whole batch, to learn its shapes, and scalar logs along axis 0.
    TensorFlow takes neither where replicas have batches of different sizes, nor on
    several machines; here `reduce` takes both.
    """

    def __init__(self, *args):
        super().__init__(*args)
        self._means = {}

    def reduce(self, reduce_op, value, axis=None):
        """As TensorFlow's, and: a structure of values gives a structure of results;
        for scalars `axis` does not matter; means of integers keep their type; where
        replicas have batches of different sizes, the i-th example of the mean is that
        of the replicas that have an i-th."""
        if isinstance(reduce_op, str):
            reduce_op = tf.distribute.ReduceOp(reduce_op.upper())
        return tf.nest.map_structure(
            lambda one: self._reduce_one(reduce_op, one, axis), value
        )

    def _reduce_one(self, reduce_op, value, axis):
        part = tf.convert_to_tensor(self.experimental_local_results(value)[0])
        kind = part.dtype, part.shape.rank
        if part.shape.rank == 0:
            axis = None
        mean = axis is None and reduce_op is tf.distribute.ReduceOp.MEAN
        if not mean or part.shape.rank is None:
            return super().reduce(reduce_op, value, axis)
        if kind not in self._means:  # one graph each, for batches of any size
            self._means[kind] = tf.function(
                functools.partial(self._mean, *kind),
                autograph=False,
                reduce_retracing=True,
            )
        return self._means[kind](value)

    def _mean(self, dtype, rank, value):
        exact = "float32" if dtype.size <= 2 else "float64"  # for integers
        computed = dtype if dtype.is_floating else exact
        value = self.run(lambda v: tf.cast(v, computed), args=(value,))
        if rank == 0:
            mean = super().reduce(tf.distribute.ReduceOp.MEAN, value, axis=None)
            return tf.cast(mean, dtype)
        sizes = self.run(lambda v: tf.shape(v)[:1], args=(value,))
        sizes = self.gather(sizes, axis=0)  # (replicas,)
        size, others = tf.reduce_max(sizes), [[0, 0]] * (rank - 1)
        value = self.run(
            lambda v: tf.pad(v, [[0, size - tf.shape(v)[0]], *others]),
            args=(value,),
        )
        total = super().reduce(tf.distribute.ReduceOp.SUM, value, axis=None)
        counts = tf.reduce_sum(tf.cast(tf.sequence_mask(sizes, size), computed), 0)
        mean = total / tf.reshape(counts, [-1] + [1] * (rank - 1))
        return tf.cast(mean, dtype)


class _Mirrored(_Reducing, tf.distribute.MirroredStrategy):
    pass


class _MultiWorkerMirrored(_Reducing, tf.distribute.MultiWorkerMirroredStrategy):
    pass
