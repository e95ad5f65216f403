"""What layers and models ask of the strategy of TensorFlow that they run under."""

import contextlib
import threading

import keras
import numpy as np

_running = threading.local()  # TensorFlow traces every replica in a thread of its own


def _context():
    """TensorFlow's context of the present replica, None where there is but one."""
    if keras.backend.backend() != "tensorflow":
        return None
    import tensorflow as tf

    context = tf.distribute.get_replica_context()
    alone = context is None or context.num_replicas_in_sync == 1
    return None if alone else context


def several() -> bool:
    """Whether this is computed on a replica of several."""
    return _context() is not None


def total(value):
    """Sum of a tensor over the replicas, with its gradient."""
    return _context().all_reduce("SUM", value)


@contextlib.contextmanager
def at_least_one(inputs):
    """Gives the inputs of a replica, or one of zeros where a small batch left it none.

    TensorFlow's kernels fail on empty batches. Inside, `real` knows of it.

    Args:
        inputs: tensors `(batch, …)`, nested as may be.
    """
    import tensorflow as tf

    def fill(x):
        zeros = tf.zeros(tf.concat([[missing], tf.shape(x)[1:]], 0), x.dtype)
        filled = tf.concat([x, zeros], 0)
        filled.set_shape(x.shape)
        return filled

    count = tf.shape(keras.tree.flatten(inputs)[0])[0]
    missing = tf.cast(tf.equal(count, 0), count.dtype)
    before = getattr(_running, "missing", None)
    _running.missing = missing
    try:
        yield keras.tree.map_structure(fill, inputs)
    finally:
        _running.missing = before


def real():
    """1.0 where the present examples are real, 0.0 where they only fill in."""
    missing = getattr(_running, "missing", None)
    return 1.0 if missing is None else 1.0 - keras.ops.cast(missing, "float32")


def weigh(loss, count):
    """The mean loss of a replica's `count` examples, with the gradient that makes
    the mean over replicas that over all examples, also where counts differ."""
    if not several():
        return loss
    import tensorflow as tf

    count = tf.cast(count, loss.dtype)
    share = count * _context().num_replicas_in_sync / total(count)
    loss = tf.where(count > 0, loss, tf.zeros_like(loss))  # of nothing: not a number
    return share * loss + tf.stop_gradient((1 - share) * loss)


def part(loss, count):
    """What a replica adds to the loss of a strategy's batch: as `weigh`, and divided by
    the number of replicas, as Keras does with the losses that it computes."""
    if not several():
        return loss
    return weigh(loss, count) / _context().num_replicas_in_sync


class OwnDraws(keras.random.SeedGenerator):
    """A generator's draws, different on every replica of a strategy.

    Its state is the same on all of them: with Keras' own draws, the images of a batch
    would share masks. On one device the draws are the generator's.
    """

    def __init__(self, generator):
        self.generator = generator  # which has the state

    def next(self, ordered=True):
        seed = self.generator.next(ordered)
        context = _context()
        if context is None:
            return seed
        import tensorflow as tf

        return tf.random.experimental.stateless_fold_in(
            seed, context.replica_id_in_sync_group
        )


def values(model, variable):
    """NumPy values of a Keras variable, one a replica of this process."""
    return [keras.ops.convert_to_numpy(local) for local in _locals(model, variable)]


def assign(model, variable, arrays):
    """Sets the values that `values` gave. With another number of replicas each gets
    the first, or a part of what was counted."""
    own = _locals(model, variable)
    if len(own) != len(arrays):
        counted = getattr(variable, "aggregation", None) == "sum"
        rest = np.zeros_like(arrays[0]) if counted else arrays[0]
        arrays = [sum(arrays) if counted else arrays[0], *(len(own) - 1) * [rest]]
    for local, array in zip(own, arrays, strict=True):
        local.assign(array)


def _locals(model, variable):
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None or strategy.num_replicas_in_sync == 1:
        return [variable]
    return strategy.experimental_local_results(variable.value)


def newest_common(model, places):
    """The newest of the `places` (pairs of numbers, two at most) that all workers of
    the model's strategy have; None for none.

    Raises:
        ValueError: workers have some, and none in common.
    """
    strategy = getattr(model, "distribute_strategy", None)
    if strategy is None:
        return max(places, default=None)
    import tensorflow as tf

    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        return max(places, default=None)
    places = [(-1, -1), (-1, -1), *places][-2:]
    own = tf.constant(places, tf.int64)

    def gather():
        return strategy.gather(strategy.run(lambda: own), axis=0)

    rows = tf.function(gather, autograph=False)().numpy().tolist()
    found = {tuple(row) for row in rows} - {(-1, -1)}
    common = [p for p in found if rows.count([*p]) == strategy.num_replicas_in_sync]
    if found and not common:
        raise ValueError(
            "The workers have no saved state in common: of (epoch, step) some have "
            f"{sorted(found)}. Delete the states of all to train anew."
        )
    return max(common, default=None)
