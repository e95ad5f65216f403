import tensorflow as tf


def steps_per_epoch(count: int, batch_size: int | None, drop_remainder: bool) -> int:
    """Batches in an epoch of `count` examples; examples, if they are not batched."""
    if batch_size is None:
        return count
    return count // batch_size if drop_remainder else -(-count // batch_size)


def stream(
    order,
    examples,
    *,
    count: int,
    batch_size: int | None,
    epoch: int,
    step: int,
    epochs: int | None,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Streams the epochs of a split of `count` examples.

    The steps of all epochs stand in one endless row, and each pass over the result
    is a part of it: pass n starts at `step + n · length` steps after the beginning
    of `epoch`, so that it goes on where the pass before it ended. Only the number
    of the pass is kept, in a counter that the first step of a pass moves on.
    (An iterator of which nothing is read starts no pass: Keras makes one too many
    an epoch.) An endless stream has one pass and starts again with each iterator.

    Args:
        order: Function of the number of an epoch, int64, that returns a data set
            of what stands for its `count` examples, such as their indices. It must
            be a pure function, and cheap: what a start at `step` skips, it skips
            here.
        examples: Function of an element of `order`, single or in a batch, that
            returns images and labels.

    The other arguments are those of `zoo.datasets.load`, checked.

    Returns:
        A data set of (image, label) with a known or infinite cardinality.
    """
    steps = steps_per_epoch(count, batch_size, drop_remainder)
    length = tf.data.INFINITE_CARDINALITY if epochs is None else epochs * steps - step

    def one_epoch(number):
        elements = order(number)
        if batch_size is None:
            return elements
        return elements.batch(batch_size, drop_remainder=drop_remainder)

    def one_pass(number):
        start = step if epochs is None else step + number * length
        numbers = tf.data.Dataset.range(epoch + start // steps, tf.int64.max)
        return numbers.flat_map(one_epoch).skip(start % steps).take(length)

    passes = tf.data.Dataset.range(1)
    if epochs is not None:
        begun = _counter()
        passes = passes.map(lambda _: begun())

    # The workers of a strategy share out the examples. By default they would share
    # out the files, if there are any, and each then see a stream of its own.
    options = tf.data.Options()
    options.experimental_distribute.auto_shard_policy = (
        tf.data.experimental.AutoShardPolicy.DATA
    )
    # The tuner has nothing to tune here, and can hold back the end of `fit` until it
    # wakes: after 10, 20, 40, … ms, in the end every minute.
    options.autotune.enabled = False
    return (
        passes.flat_map(one_pass)
        .map(examples, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
        .apply(tf.data.experimental.assert_cardinality(length))
        .with_options(options)
    )


def _counter():
    """Returns a function for use in `tf.data` that gives 0, 1, 2, …

    A table, not a `tf.Variable`: within the scope of a strategy that would be
    mirrored onto the GPUs, where `tf.data` cannot reach it.
    """
    with tf.device("CPU:0"):
        table = tf.lookup.experimental.MutableHashTable(
            tf.int64, tf.int64, default_value=0, experimental_is_anonymous=True
        )
        key = tf.constant(0, tf.int64)

    def count():
        number = table.lookup(key)
        table.insert(key, number + 1)
        return number

    return count
