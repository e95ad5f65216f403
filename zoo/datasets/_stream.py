import tensorflow as tf


def steps_per_epoch(count: int, batch_size: int | None, drop_remainder: bool) -> int:
    """Batches in an epoch of `count` examples; examples, if they are not batched."""
    if batch_size is None:
        return count
    return count // batch_size if drop_remainder else -(-count // batch_size)


def stream(
    images: tf.Tensor,
    labels: tf.Tensor,
    *,
    first: int,
    count: int,
    batch_size: int | None,
    seed: int,
    shuffle: bool,
    epoch: int,
    step: int,
    epochs: int | None,
    drop_remainder: bool,
) -> tf.data.Dataset:
    """Streams the examples `first` … `first + count − 1`.

    The steps of all epochs stand in one endless row, and each pass over the result
    is a part of it: pass n starts at `step + n · length` steps after the beginning
    of `epoch`, so that it goes on where the pass before it ended. Only the number
    of the pass is kept, in a counter that the first step of a pass moves on.
    (An iterator of which nothing is read starts no pass: Keras makes one too many
    an epoch.) An endless stream has one pass and starts again with each iterator.

    Args:
        images: `(examples, height, width, channels)`, uint8, on the CPU.
        labels: `(examples,)`, int64, on the CPU.

    The other arguments are those of `zoo.datasets.load`, checked.

    Returns:
        A data set of (image, label) with a known or infinite cardinality.
    """
    steps = steps_per_epoch(count, batch_size, drop_remainder)
    length = tf.data.INFINITE_CARDINALITY if epochs is None else epochs * steps - step

    def one_epoch(number):
        """Indices of an epoch, a batch a step: a pure function of seed and number."""
        order = tf.range(first, first + count, dtype=tf.int64)
        if shuffle:
            key = tf.stack([tf.constant(seed, tf.int64), number])
            order = tf.random.experimental.stateless_shuffle(order, key)
        indices = tf.data.Dataset.from_tensor_slices(order)
        if batch_size is None:
            return indices
        return indices.batch(batch_size, drop_remainder=drop_remainder)

    def one_pass(number):
        start = step if epochs is None else step + number * length
        numbers = tf.data.Dataset.range(epoch + start // steps, tf.int64.max)
        return numbers.flat_map(one_epoch).skip(start % steps).take(length)

    passes = tf.data.Dataset.range(1)
    if epochs is not None:
        begun = _counter()
        passes = passes.map(lambda _: begun())

    def examples(indices):
        return tf.gather(images, indices), tf.gather(labels, indices)

    return (
        passes.flat_map(one_pass)
        .map(examples, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
        .prefetch(tf.data.AUTOTUNE)
        .apply(tf.data.experimental.assert_cardinality(length))
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
