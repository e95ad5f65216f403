import keras
import numpy as np
import pytest
import tensorflow as tf

import zoo
from zoo import analysis
from zoo.training import GateMonitor

RNG = np.random.default_rng(0)
IMAGES, LABELS = RNG.random((32, 8, 8, 1)), RNG.integers(0, 10, 32)


def fit(monitor, epochs=2, model=None):
    model = model or zoo.highway_mlp((8, 8, 1), depth=4, units=6, gate_bias=-1.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss)
    run = model.fit(  # four steps an epoch
        IMAGES, LABELS, batch_size=8, epochs=epochs, verbose=0, callbacks=[monitor]
    )
    return model, run.history


def test_history_is_what_analysis_says():
    model, history = fit(GateMonitor(IMAGES[:10], every=1))
    means = analysis.mean_gates(model, IMAGES[:10])
    assert np.isclose(history["gate_mean"][-1], means.mean(), atol=1e-6)
    assert history["gate_open"][-1] == np.mean(means > 0.5)
    biases = analysis.gate_biases(model)
    assert np.isclose(history["gate_bias"][-1], biases.mean(), atol=1e-6)
    assert history["gate_bias"][0] != history["gate_bias"][1]


def test_epochs_without_a_look():
    looked = []
    monitor = GateMonitor(IMAGES[:2], every=8)
    monitor._write = lambda *_: looked.append(int(monitor.model.optimizer.iterations))
    monitor.log_dir = "unused"
    _, history = fit(monitor, epochs=5)
    assert looked == [8, 16]
    assert len(history["loss"]) == 5 and len(history["gate_mean"]) == 2


def test_events(tmp_path):
    fit(GateMonitor(IMAGES[:2], every=4, log_dir=tmp_path))
    (file,) = tmp_path.iterdir()
    tags = {}
    for event in tf.compat.v1.train.summary_iterator(str(file)):
        for value in event.summary.value:
            tags.setdefault(value.tag, []).append(event.step)
    names = [f"highway_0{i}" for i in (1, 2, 3)]
    expected = {f"{kind}/{n}" for kind in ("gate_mean", "gate_bias") for n in names}
    assert set(tags) == {"gates/mean", "gates/bias", *expected}
    assert all(steps == [4, 8] for steps in tags.values())


def test_input_that_does_not_fit():
    with pytest.raises(ValueError, match="`every` must be an integer of at least 1"):
        GateMonitor(IMAGES, every=0)
    with pytest.raises(ValueError, match=r"`images` must have the shape \(batch, 8, 8"):
        fit(GateMonitor(np.ones((2, 9, 8, 1))))
    with pytest.raises(ValueError, match="`model` must have highway layers"):
        fit(GateMonitor(IMAGES), model=zoo.plain_mlp((8, 8, 1), depth=3))
