"""What layers and models ask of the strategy of TensorFlow that they run under."""

import contextlib
import threading

import keras

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
