"""The loop of ScanLayers in TensorFlow."""

import tensorflow as tf


def prefers_compiled(ranks):
    """Whether XLA makes a loop over kernels of these ranks faster.

    On a CPU it runs dense layers about 1.5 times as fast and convolutions three
    times as slowly.
    """
    return bool(tf.config.list_physical_devices("GPU")) or max(ranks, default=0) <= 2


def scan(step, x, xs, length, dtypes, *, compiled=False, remat=False, unrolled=False):
    """x, ys = scan: `step(x, slices) -> (x, outputs)` over the first axis of `xs`.

    Args:
        step: function of the state and the slices of one copy.
        x: state; `step` keeps its shape and dtype.
        xs: list of tensors `(length, …)`.
        length: int.
        dtypes: of the outputs of `step`.
        compiled: compiles forward and backward loop with XLA. Tensor lists may not
            cross the border of a compiled function, so the loops hand each other
            plain stacks: the input of each copy, from which the backward loop
            computes the copy again. Only the state and float outputs without
            successors get gradients.
        remat: the same two loops without XLA: memory for one copy's inner values.
        unrolled: one copy after the other instead, for steps that wait for other
            replicas, as no loop of TensorFlow can.

    Returns:
        (state, list of stacked outputs).
    """
    if unrolled:
        results = []
        for slices in zip(*map(tf.unstack, xs), strict=True):
            x, outputs = step(x, list(slices))
            results.append(outputs)
        return x, [tf.stack(outputs) for outputs in zip(*results, strict=True)]
    if not (compiled or remat):
        x, ys, _ = _forward(step, x, xs, length, dtypes, keep=False)
        return x, ys

    def forward(x, *xs):
        return _forward(step, x, xs, length, dtypes, keep=True)

    def backward(inputs, xs, dx, dys):
        return _backward(step, inputs, xs, dx, dys, length)

    if compiled:
        forward = tf.function(forward, jit_compile=True, autograph=False)
        backward = tf.function(backward, jit_compile=True, autograph=False)

    @tf.custom_gradient
    def run(x, *xs):
        y, ys, inputs = forward(x, *xs)

        def gradient(dy, *dys):
            return backward(inputs, xs, dy, dys)

        return (y, *ys), gradient

    y, *ys = run(x, *xs)
    return y, ys


def _forward(step, x, xs, length, dtypes, keep):
    """The loop; with `keep` the inputs of all copies come back as a stack."""
    slices = [_unstack(stack, length) for stack in xs]
    outputs = [tf.TensorArray(dtype, length) for dtype in dtypes]
    inputs = tf.TensorArray(x.dtype, length) if keep else None

    def body(i, x, outputs, inputs):
        y, results = step(x, [array.read(i) for array in slices])
        y.set_shape(x.shape)
        outputs = [
            array.write(i, result)
            for array, result in zip(outputs, results, strict=True)
        ]
        return i + 1, y, outputs, inputs.write(i, x) if keep else inputs

    if keep:
        _, y, outputs, inputs = tf.while_loop(
            lambda i, *_: i < length,
            body,
            (0, x, outputs, inputs),
            maximum_iterations=length,
        )
        inputs = inputs.stack()
    else:
        _, y, outputs = tf.while_loop(
            lambda i, *_: i < length,
            lambda i, x, outputs: body(i, x, outputs, None)[:3],
            (0, x, outputs),
            maximum_iterations=length,
        )
    return y, [array.stack() for array in outputs], inputs


def _backward(step, inputs, xs, dx, dys, length):
    """Walks the copies in reverse and computes each again under a tape."""
    floats = [stack.dtype.is_floating for stack in xs]
    inputs = _unstack(inputs, length)
    slices = [_unstack(stack, length) for stack in xs]
    dys = [_unstack(dy, length) if dy.dtype.is_floating else None for dy in dys]
    gradients = [
        tf.TensorArray(stack.dtype, length)
        for stack, is_float in zip(xs, floats, strict=True)
        if is_float
    ]

    def body(i, dx, gradients):
        x, copy = inputs.read(i), [array.read(i) for array in slices]
        sources = [
            x,
            *(s for s, is_float in zip(copy, floats, strict=True) if is_float),
        ]
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(sources)
            y, results = step(x, copy)
        targets, seeds = [y], [dx]
        for result, dy in zip(results, dys, strict=True):
            if dy is not None:
                targets.append(result)
                seeds.append(dy.read(i))
        dx_before, *found = tape.gradient(
            targets, sources, seeds, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )
        dx_before.set_shape(dx.shape)
        gradients = [
            array.write(i, gradient)
            for array, gradient in zip(gradients, found, strict=True)
        ]
        return i - 1, dx_before, gradients

    _, dx, gradients = tf.while_loop(
        lambda i, *_: i >= 0,
        body,
        (length - 1, dx, gradients),
        maximum_iterations=length,
    )
    stacked = iter([array.stack() for array in gradients])
    return dx, *(next(stacked) if is_float else None for is_float in floats)


def _unstack(stack, length):
    array = tf.TensorArray(stack.dtype, length, element_shape=stack.shape[1:])
    return array.unstack(stack)
