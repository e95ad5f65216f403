import keras
import numpy as np
import pytest

import zoo
from zoo.training import SGD, set_decay


def trained(optimizer, steps, decay=0.0, head_factor=1.0):
    """w and b of 2·x·w + b with squared loss to 0 on x = 1, after some steps."""
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, kernel_initializer="ones", name="logits"),
        ]
    )
    model.compile(optimizer, "mse")
    set_decay(model, decay, head_factor=head_factor)
    for _ in range(steps):
        model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
    return [float(np.squeeze(w)) for w in model.get_weights()]


def test_first_step_by_hand():
    # y = 1, g = 2·y = 2 for both; λ adds 10·0.1·1 = 1 to the kernel's
    # Nesterov: v = −η·g, w ← w + m·v − η·g = w − η·g·(1 + m); the bias has 2·η
    optimizer = SGD(0.1, momentum=0.9, nesterov=True, bias_rate=2.0)
    kernel, bias = trained(optimizer, 1, decay=0.1, head_factor=10.0)
    assert kernel == pytest.approx(1 - 0.1 * 3 * 1.9, abs=1e-6)
    assert bias == pytest.approx(0 - 0.2 * 2 * 1.9, abs=1e-6)


@pytest.mark.parametrize("nesterov", [False, True])
def test_several_steps_by_hand(nesterov):
    w, b, v, u = 1.0, 0.0, 0.0, 0.0
    for _ in range(5):
        g = 2 * (w + b)
        v, u = 0.9 * v - 0.1 * g, 0.9 * u - 0.2 * g
        w, b = (
            (w + 0.9 * v - 0.1 * g, b + 0.9 * u - 0.2 * g)
            if nesterov
            else (w + v, b + u)
        )
    found = trained(SGD(0.1, momentum=0.9, nesterov=nesterov, bias_rate=2.0), 5)
    assert found == pytest.approx([w, b], abs=1e-5)


def test_is_kerass_own_without_a_bias_rate():
    mine = trained(SGD(0.1, momentum=0.9), 4)
    assert mine == trained(keras.optimizers.SGD(0.1, momentum=0.9), 4)


def test_reaches_gate_biases_of_loops_and_nothing_else():
    def step(bias_rate):
        keras.utils.set_random_seed(1)
        model = zoo.highway_mlp((6,), num_classes=3, depth=20, units=4)
        model.compile(SGD(0.1, bias_rate=bias_rate), "sparse_categorical_crossentropy")
        before = model.get_weights()
        model.train_on_batch(np.eye(6), np.arange(6) % 3)
        moved = [a - b for a, b in zip(model.get_weights(), before, strict=True)]
        return [w.path for w in model.weights], moved

    paths, once = step(1.0)
    _, twice = step(2.0)
    assert any("gate/bias" in path for path in paths)
    for path, a, b in zip(paths, once, twice, strict=True):
        factor = 2 if path.endswith("bias") else 1
        assert np.allclose(b, factor * a, rtol=1e-4, atol=1e-6), path


def test_saves_and_loads(tmp_path):
    model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
    model.compile(SGD(0.1, momentum=0.9, bias_rate=2.0), "mse")
    model.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
    model.save(tmp_path / "model.keras")
    copy = keras.models.load_model(tmp_path / "model.keras")
    for net in (model, copy):
        net.train_on_batch(np.ones((1, 1)), np.zeros((1, 1)))
    assert copy.optimizer.bias_rate == 2.0
    assert all(map(np.array_equal, copy.get_weights(), model.get_weights()))


@pytest.mark.parametrize("rate", [0, -1, float("nan")])
def test_wrong_rate(rate):
    with pytest.raises(ValueError, match="`bias_rate` must be above 0. Received"):
        SGD(0.1, bias_rate=rate)
