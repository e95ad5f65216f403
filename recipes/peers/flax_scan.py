"""Flax, the usual way: `nn.scan` over a linen module."""

import flax.linen as nn

from recipes.peers import WIDTH
from recipes.peers.jax_scan import stack, trainer


class Highway(nn.Module):
    @nn.compact
    def __call__(self, x, _):
        gate = nn.sigmoid(nn.Dense(WIDTH, name="gate")(x))
        transformed = nn.relu(nn.Dense(WIDTH, name="transform")(x))
        return x + gate * (transformed - x), None


class HighwayMLP(nn.Module):
    depth: int

    @nn.compact
    def __call__(self, x):
        x = nn.relu(nn.Dense(WIDTH, name="stem")(x))
        layers = nn.scan(
            Highway,
            variable_axes={"params": 0},
            split_rngs={"params": True},
            length=self.depth - 1,
        )
        x, _ = layers(name="layers")(x, None)
        return nn.Dense(10, name="logits")(x)


def start(net, arrays, batch):
    stacked = stack(arrays)

    def dense(weights, prefix):
        return {part: weights[f"{prefix}/{part}"] for part in ("kernel", "bias")}

    params = {name: dense(stacked, name) for name in ("stem", "logits")}
    params["layers"] = {
        half: dense(stacked["layers"], half) for half in ("transform", "gate")
    }
    return trainer(HighwayMLP(net["depth"]).apply, {"params": params}, batch)
