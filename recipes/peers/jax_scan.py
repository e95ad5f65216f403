"""JAX, the usual way: pure functions, stacked weights and `lax.scan`."""

import jax
import jax.numpy as jnp
import numpy as np

from recipes.peers import MOMENTUM, RATE


def stack(arrays):
    """The arrays of all highway layers as stacks, and the rest."""
    names = sorted({k.split("/")[0] for k in arrays if k.startswith("highway")})
    parts = ("transform/kernel", "transform/bias", "gate/kernel", "gate/bias")
    weights = {k: jnp.asarray(v) for k, v in arrays.items() if "highway" not in k}
    weights["layers"] = {
        part: jnp.asarray(np.stack([arrays[f"{name}/{part}"] for name in names]))
        for part in parts
    }
    return weights


def logits_of(weights, x):
    def layer(x, w):
        gate = jax.nn.sigmoid(x @ w["gate/kernel"] + w["gate/bias"])
        transformed = jax.nn.relu(x @ w["transform/kernel"] + w["transform/bias"])
        return x + gate * (transformed - x), None

    x = jax.nn.relu(x @ weights["stem/kernel"] + weights["stem/bias"])
    x, _ = jax.lax.scan(layer, x, weights["layers"])
    return x @ weights["logits/kernel"] + weights["logits/bias"]


def trainer(apply, weights, batch):
    """run(steps) for logits = apply(weights, images), SGD with momentum by hand."""
    images, labels = jnp.asarray(batch[0]), jnp.asarray(batch[1])

    def loss_of(weights):
        log_probabilities = jax.nn.log_softmax(apply(weights, images))
        return -jnp.mean(
            jnp.take_along_axis(log_probabilities, labels[:, None], axis=1)
        )

    @jax.jit
    def step(weights, momenta):
        loss, gradients = jax.value_and_grad(loss_of)(weights)
        momenta = jax.tree.map(lambda m, g: MOMENTUM * m - RATE * g, momenta, gradients)
        return jax.tree.map(jnp.add, weights, momenta), momenta, loss

    momenta = jax.tree.map(jnp.zeros_like, weights)

    def run(steps):
        nonlocal weights, momenta
        first = None
        for _ in range(steps):
            weights, momenta, loss = step(weights, momenta)
            first = loss if first is None else first
        jax.block_until_ready(weights)
        return float(first)

    return run


def start(net, arrays, batch):
    return trainer(logits_of, stack(arrays), batch)
