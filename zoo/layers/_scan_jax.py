"""The loop of ScanLayers in JAX."""

import jax


def scan(step, x, xs, length, dtypes, *, compiled=False, remat=False, unrolled=False):
    """x, ys = scan: `step(x, slices) -> (x, outputs)` over the first axis of `xs`.

    `jax.lax.scan`, recomputing each step in the backward pass under `remat`; JAX
    compiles the whole step in any case.
    """
    body = jax.checkpoint(step) if remat else step
    return jax.lax.scan(lambda x, slices: body(x, slices), x, xs, length)


def prefers_compiled(kernels):
    return False
