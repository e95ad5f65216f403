"""The rate by steps: case 14, and half cosines."""

import math

import keras
import numpy as np
import pytest

from zoo.training import CosineRestarts, StepSchedule

# Steps and rates of He et al. 2016 for deep nets of the original unit.
PAPER = {0: 0.01, 399: 0.01, 400: 0.1, 31_999: 0.1, 32_000: 0.01, 48_000: 0.001}


def paper():
    return StepSchedule(0.1, [32_000, 48_000], warmup_steps=400)


def test_the_paper_at_its_steps():
    rate = paper()
    for step, expected in PAPER.items():
        assert np.isclose(rate(step), expected, rtol=1e-6), step
    assert np.isclose(rate(47_999), 0.01, rtol=1e-6)
    assert np.isclose(rate(64_000), 0.001, rtol=1e-6)


@pytest.mark.parametrize("dtype", ["int32", "int64", "float32"])
def test_takes_a_step_of_any_type(dtype):
    for step, expected in PAPER.items():
        given = paper()(keras.ops.cast(step, dtype))
        assert keras.backend.standardize_dtype(given.dtype) == "float32"
        assert np.isclose(given, expected, rtol=1e-6)


@pytest.mark.parametrize(
    "arguments, rates",
    [
        ({}, [0.1] * 8),
        ({"boundaries": [3]}, [0.1] * 3 + [0.01] * 5),
        ({"boundaries": (2, 5), "factor": 0.5}, [0.1] * 2 + [0.05] * 3 + [0.025] * 3),
        ({"warmup_steps": 2}, [0.01] * 2 + [0.1] * 6),
        ({"warmup_steps": 2, "warmup_rate": 0.3}, [0.3] * 2 + [0.1] * 6),
        ({"warmup_steps": 4, "boundaries": [2]}, [0.01] * 8),  # .01 twice over
    ],
)
def test_every_step(arguments, rates):
    schedule = StepSchedule(0.1, **arguments)
    assert np.allclose([float(schedule(step)) for step in range(8)], rates, rtol=1e-6)


def model_of_one_weight(schedule):
    """Its gradient is 1 at any place: each step takes the rate off the weight."""
    model = keras.Sequential(
        [
            keras.Input((1,)),
            keras.layers.Dense(1, use_bias=False, kernel_initializer="zeros"),
        ]
    )
    model.compile(keras.optimizers.SGD(schedule), lambda y, y_pred: y_pred)
    return model


class Steps(keras.callbacks.Callback):
    """How far each step has moved the weight."""

    def __init__(self):
        super().__init__()
        self.moves, self.last = [], None

    def on_train_begin(self, logs=None):
        self.last = float(self.model.get_weights()[0][0, 0])

    def on_train_batch_end(self, batch, logs=None):
        now = float(self.model.get_weights()[0][0, 0])
        self.moves.append(self.last - now)
        self.last = now


def test_boundaries_inside_an_epoch_and_between_two_fits():
    """7 steps an epoch; warm-up ends at 2, the rate falls at 10 and at 17."""
    schedule = StepSchedule(0.1, [10, 17], warmup_steps=2)
    model, steps = model_of_one_weight(schedule), Steps()
    ones = np.ones((14, 1))
    for _ in range(3):
        model.fit(ones, ones, batch_size=2, callbacks=[steps], verbose=0)
    expected = [0.01] * 2 + [0.1] * 8 + [0.01] * 7 + [0.001] * 4
    assert np.allclose(steps.moves, expected, atol=1e-6)
    assert np.isclose(model.optimizer.learning_rate, 0.001, rtol=1e-6)


def test_a_saved_model_goes_on_where_it_was(tmp_path):
    schedule = StepSchedule(0.1, [3, 6], factor=0.2, warmup_steps=1, warmup_rate=0.05)
    model = model_of_one_weight(schedule)
    ones = np.ones((4, 1))
    model.compile(keras.optimizers.SGD(schedule), "mean_absolute_error")
    model.fit(ones, ones, batch_size=1, verbose=0)  # 4 steps
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    given = loaded.optimizer._learning_rate
    assert type(given) is StepSchedule
    assert given.get_config() == schedule.get_config()
    assert int(loaded.optimizer.iterations) == 4
    for net in (model, loaded):
        net.fit(ones, ones, batch_size=1, verbose=0)
        assert np.isclose(net.optimizer.learning_rate, 0.1 * 0.2**2, rtol=1e-6)
    assert np.array_equal(model.get_weights(), loaded.get_weights())


def test_config_round_trip():
    schedule = StepSchedule(0.2, (5, 9), factor=0.5, warmup_steps=3, warmup_rate=0.1)
    config = schedule.get_config()
    assert config == {
        "initial_rate": 0.2,
        "boundaries": [5, 9],
        "factor": 0.5,
        "warmup_steps": 3,
        "warmup_rate": 0.1,
    }
    again = StepSchedule.from_config(config)
    assert again.get_config() == config
    stored = keras.optimizers.schedules.serialize(schedule)
    loaded = keras.optimizers.schedules.deserialize(stored)
    assert type(loaded) is StepSchedule and loaded.get_config() == config


@pytest.mark.parametrize(
    "arguments, message",
    [
        (
            {"initial_rate": 0},
            "`initial_rate` must be a number above 0.*initial_rate=0",
        ),
        ({"initial_rate": -0.1}, "`initial_rate` must be a number above 0.*=-0.1"),
        (
            {"initial_rate": float("nan")},
            "`initial_rate` must be a number above 0.*nan",
        ),
        ({"factor": 0.0}, "`factor` must be a number above 0.*factor=0.0"),
        (
            {"warmup_rate": 0.0},
            "`warmup_rate` must be a number above 0.*warmup_rate=0.0",
        ),
        ({"initial_rate": "0.1"}, "`initial_rate` must be a number above 0.*'0.1'"),
        ({"initial_rate": float("inf")}, "`initial_rate` must be a number.*inf"),
        ({"boundaries": 5}, "`boundaries` must be a list.*boundaries=5"),
        ({"boundaries": [5, 5]}, r"`boundaries` must increase.*\[5, 5\]"),
        ({"boundaries": [9, 5]}, r"`boundaries` must increase.*\[9, 5\]"),
        ({"boundaries": [0]}, "`boundaries` must be an integer of at least 1.*=0"),
        ({"boundaries": [2.5]}, "`boundaries` must be an integer.*=2.5"),
        ({"warmup_steps": -1}, "`warmup_steps` must be an integer of at least 0.*-1"),
        ({"warmup_steps": 1.0}, "`warmup_steps` must be an integer.*=1.0"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        StepSchedule(**{"initial_rate": 0.1, **arguments})


def test_cosine_restarts_at_every_step():
    """Warm-up 0, .2, .4, .6 of .8; a cycle of 6 steps; one of 4 from half the rate."""
    schedule = CosineRestarts(0.8, 14, [10], warmup_steps=4)
    first = [0.4 * (1 + math.cos(math.pi * i / 6)) for i in range(6)]
    second = [0.2 * (1 + math.cos(math.pi * i / 4)) for i in range(5)]
    expected = [0.0, 0.2, 0.4, 0.6, *first, *second, 0.0]
    assert np.allclose([float(schedule(s)) for s in range(16)], expected, atol=1e-7)
    assert expected[4] == 0.8 and expected[10] == 0.4 and expected[14] == 0


def test_one_cycle_is_keras_cosine():
    ours = CosineRestarts(0.1, 100, warmup_steps=10)
    keras_s = keras.optimizers.schedules.CosineDecay(
        0.0, 90, warmup_target=0.1, warmup_steps=10
    )
    steps = range(0, 101)
    assert np.allclose([ours(s) for s in steps], [keras_s(s) for s in steps], atol=1e-7)


def test_cosine_restarts_come_back():
    schedule = CosineRestarts(0.1, 50, (20, 30), factor=0.3, warmup_steps=5)
    stored = keras.optimizers.schedules.serialize(schedule)
    again = keras.optimizers.schedules.deserialize(stored)
    assert type(again) is CosineRestarts and again.get_config() == schedule.get_config()
    assert again.restarts == [20, 30] and float(again(20)) == pytest.approx(0.03)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"initial_rate": 0}, "`initial_rate` must be a number above 0"),
        ({"factor": float("nan")}, "`factor` must be a number above 0"),
        ({"total_steps": 0}, "`total_steps` must be an integer"),
        ({"restarts": 5}, "`restarts` must be a list"),
        ({"restarts": [6, 5]}, "`restarts` must increase"),
        ({"restarts": [0.5]}, "`restarts` must be an integer"),
        ({"restarts": [2], "warmup_steps": 2}, "must lie between warm-up and end"),
        ({"restarts": [10]}, "must lie between warm-up and end"),
        ({"warmup_steps": 10}, "must lie between warm-up and end"),
        ({"warmup_steps": -1}, "`warmup_steps` must be an integer"),
    ],
)
def test_wrong_cosine_restarts(arguments, message):
    with pytest.raises(ValueError, match=message):
        CosineRestarts(**{"initial_rate": 0.1, "total_steps": 10, **arguments})
