"""The layers and small nets on JAX: from the same weights the same numbers.

Run as a script, with KERAS_BACKEND=jax, this file is the other side of the test.
"""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from test_preprocessing import draws, images

import zoo
from zoo.layers import (
    Highway,
    HighwayConv,
    HighwayDense,
    PadCropFlip,
    PreActResidual,
    Residual,
)
from zoo.training import StepSchedule

layers = keras.layers


def around_gru():
    recurrent = layers.GRU(4, return_sequences=True)
    return Highway(recurrent, layers.Dense(4, "sigmoid"))


LAYERS = {
    "highway": (lambda: Highway(layers.Conv1D(4, 3, padding="same")), (5, 4)),
    "highway_gru": (around_gru, (5, 4)),
    "highway_dense": (lambda: HighwayDense(carry="separate"), (6,)),
    "highway_conv": (lambda: HighwayConv(kernel_size=2, gate_kernel_size=3), (5, 6, 3)),
    "residual": (lambda: PreActResidual(4, first=True), (5, 6, 4)),
    "residual_strided": (lambda: PreActResidual(6, strides=2), (5, 6, 4)),
    "residual_padded": (lambda: PreActResidual(6, 2, shortcut="A"), (5, 6, 4)),
    "bottleneck": (lambda: PreActResidual(2, 2, bottleneck=True), (5, 6, 4)),
    "original": (lambda: Residual(6, 2), (5, 6, 4)),
    "bn_after_addition": (lambda: Residual(4, order="bn_after_addition"), (5, 6, 4)),
    "relu_only": (lambda: Residual(4, order="relu_only_preactivation"), (5, 6, 4)),
    "highway_unit": (
        lambda: Residual(
            6, 2, order="relu_before_addition", shortcut="exclusive_gating", gate="twin"
        ),
        (5, 6, 4),
    ),
    "shortcut_gate": (lambda: Residual(4, shortcut="shortcut_only_gating"), (5, 6, 4)),
    "scaled": (lambda: Residual(4, shortcut="constant_scaling"), (5, 6, 4)),
    "dropout": (lambda: Residual(4, shortcut="dropout"), (5, 6, 4)),
    "augment": (lambda: PadCropFlip(2), (5, 6, 4)),
}
NETS = {
    "highway_mlp": lambda: zoo.highway_mlp((4, 4, 1), depth=4, units=8),
    "highway_cnn": lambda: zoo.highway_cnn(
        input_shape=(8, 8, 3), stages=[(4, 1), (6, 1)], dropout=0
    ),
    "plain_mlp": lambda: zoo.plain_mlp(6, depth=4, units=8),
    "preact_resnet": lambda: zoo.preact_resnet(8, input_shape=(8, 8, 3), augment=True),
    "resnet": lambda: zoo.resnet(8, input_shape=(8, 8, 3), shortcut="dropout"),
}


def nets():
    """Name → model: each layer by itself, and the small nets."""
    models = {}
    for name, (make, shape) in LAYERS.items():
        inputs = keras.Input(shape)
        models[name] = keras.Model(inputs, make()(inputs))
    return models | {name: make() for name, make in NETS.items()}


def sample(model):
    rng = np.random.default_rng(1)
    return rng.normal(size=(3, *model.input_shape[1:])).astype("float32")


def output_and_gradients(model, x):
    """y, and the gradients of mean(y²) with respect to the trainable weights."""
    trainable = [w.value for w in model.trainable_variables]
    if keras.backend.backend() == "jax":
        import jax

        def loss(trainable):
            others = [w.value for w in model.non_trainable_variables]
            y, _ = model.stateless_call(trainable, others, x, training=False)
            return (y**2).mean(), y

        (_, y), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(trainable)
        return y, gradients
    import tensorflow as tf

    with tf.GradientTape() as tape:
        y = model(x, training=False)
        loss = tf.reduce_mean(y**2)
    return y, tape.gradient(loss, trainable)


def results(weights):
    """Outputs and gradients of all nets; draws `weights` {net: [array]} if empty."""
    arrays = {}
    for name, model in nets().items():
        if name in weights:
            model.set_weights(weights[name])
        else:
            weights[name] = model.get_weights()
        y, gradients = output_and_gradients(model, sample(model))
        for i, array in enumerate([y, *gradients]):
            arrays[f"{name}/{i}"] = np.array(array)
    return arrays


def fit_one_step():
    """How far one step of `fit` moves each trainable weight of the small nets."""
    changes = {}
    for name, make in NETS.items():
        model = make()
        before = [np.array(w) for w in model.trainable_variables]
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.1), loss)
        model.fit(sample(model), np.array([0, 1, 2]), batch_size=3, verbose=0)
        changes[f"step/{name}"] = np.array(
            [
                np.abs(np.array(w) - old).max()
                for w, old in zip(model.trainable_variables, before, strict=True)
            ]
        )
    return changes


def augmented():
    """Images, and what a compiled training step makes of them."""
    layer, x = PadCropFlip(2), images()

    def step(state, x):
        scope = keras.StatelessScope([(layer.generator.state, state)])
        with scope:
            return layer(x, training=True)

    import jax

    y = jax.jit(step)(layer.generator.state.value, x)
    return {"augmented": np.array(y)}


def rates():
    """Case 14, as an optimizer asks for them."""
    rate = StepSchedule(0.1, [32_000, 48_000], warmup_steps=400)
    steps = keras.ops.convert_to_tensor([0, 399, 400, 32_000, 48_000])
    return {"rates": np.array([rate(step) for step in steps])}


def test_jax_gives_the_numbers_of_tensorflow(tmp_path):
    if importlib.util.find_spec("jax") is None:
        pytest.skip("jax is not installed")
    weights = {}
    expected = results(weights)
    flat = {f"{n}/{i:03d}": w for n, ws in weights.items() for i, w in enumerate(ws)}
    np.savez(tmp_path / "weights.npz", **flat)
    environment = {
        **os.environ,
        "KERAS_BACKEND": "jax",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": str(Path(zoo.__file__).parents[1]),
        "XLA_FLAGS": "--xla_backend_optimization_level=0",  # compiles faster
    }
    # A warning of JAX, such as of a dtype that it has not, is an error.
    command = [sys.executable, "-W", "error::UserWarning", __file__]
    command += [tmp_path / "weights.npz", tmp_path / "out.npz"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    given = dict(np.load(tmp_path / "out.npz"))
    changes = {name: given.pop(name) for name in list(given) if name[:5] == "step/"}
    assert len(changes) == len(NETS)
    for name, change in changes.items():
        assert np.all(np.isfinite(change) & (change > 0)), name
    draws(images(), given.pop("augmented"), 2)  # each one of the possible crops
    assert np.allclose(given.pop("rates"), [0.01, 0.01, 0.1, 0.01, 0.001], rtol=1e-6)
    assert given.keys() == expected.keys()
    for name, array in expected.items():
        scale = max(1.0, np.abs(array).max())
        assert np.abs(given[name] - array).max() <= 1e-5 * scale, name


if __name__ == "__main__":
    assert keras.backend.backend() == "jax"
    assert "tensorflow" not in sys.modules
    stored = {}
    for name, array in np.load(sys.argv[1]).items():
        stored.setdefault(name.rpartition("/")[0], []).append(array)
    arrays = results(stored) | fit_one_step() | augmented() | rates()
    np.savez(sys.argv[2], **arrays)
