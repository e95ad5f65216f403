"""Learning rates by step."""

import math
import numbers

import keras
from keras import ops

from zoo._checks import check_int


@keras.saving.register_keras_serializable("zoo")
class StepSchedule(keras.optimizers.schedules.LearningRateSchedule):
    """A rate that is multiplied by a factor at given steps, perhaps after a warm-up.

    rate(step) = `warmup_rate` for step < `warmup_steps`, then `initial_rate` ·
    `factor`^(number of `boundaries` ≤ step). Steps count from 0, and a boundary is the
    first step of the new rate, as in Caffe and Torch files. (Keras'
    `PiecewiseConstantDecay` keeps the old rate at the boundary itself.) The step is
    the optimizer's own counter: a resumed run has the rate of an undisturbed one, and
    boundaries need not fall between epochs.

    Args:
        initial_rate: after the warm-up, above 0.
        boundaries: increasing steps.
        factor: 0.1 by default.
        warmup_steps: 0 by default: none. He et al. use 400 for 110 and more layers of
            the original unit; the pre-activation unit needs none.
        warmup_rate: of the warm-up; a tenth of `initial_rate` by default.

    Raises:
        ValueError: a rate that is not positive, boundaries that do not increase.

    Example:
        >>> import zoo
        >>> rate = zoo.training.StepSchedule(0.1, [32_000, 48_000], warmup_steps=400)
        >>> [round(float(rate(s)), 4) for s in (0, 399, 400, 32_000, 48_000)]
        [0.01, 0.01, 0.1, 0.01, 0.001]

    Reference:
        He, Zhang, Ren, Sun 2016, "Identity Mappings in Deep Residual Networks",
        appendix; "Deep Residual Learning for Image Recognition", §4.2 (warm-up).
    """

    def __init__(
        self,
        initial_rate,
        boundaries=(),
        factor=0.1,
        warmup_steps=0,
        warmup_rate=None,
    ):
        _check_positive(initial_rate=initial_rate, factor=factor)
        if warmup_rate is None:
            warmup_rate = initial_rate / 10
        _check_positive(warmup_rate=warmup_rate)
        boundaries = _increasing("boundaries", boundaries)
        check_int("warmup_steps", warmup_steps, 0)
        self.initial_rate = initial_rate
        self.boundaries = boundaries
        self.factor = factor
        self.warmup_steps = warmup_steps
        self.warmup_rate = warmup_rate

    def __call__(self, step):
        rate = ops.cast(self.initial_rate, "float32")
        for i, boundary in enumerate(self.boundaries, 1):
            rate = ops.where(step >= boundary, self.initial_rate * self.factor**i, rate)
        return ops.where(step < self.warmup_steps, self.warmup_rate, rate)

    def get_config(self):
        return {
            "initial_rate": self.initial_rate,
            "boundaries": self.boundaries,
            "factor": self.factor,
            "warmup_steps": self.warmup_steps,
            "warmup_rate": self.warmup_rate,
        }


@keras.saving.register_keras_serializable("zoo")
class CosineRestarts(keras.optimizers.schedules.LearningRateSchedule):
    """Half cosines one after the other, each from `factor` of the rate before to 0.

    From a start s to the next one e, cycle i = 0, 1, … has

        rate(step) = `initial_rate` · `factor`^i · (1 + cos(π (step − s)/(e − s))) / 2

    The first starts at the end of a linear warm-up from 0, the last ends at
    `total_steps`, behind which the rate is 0. (Keras' `CosineDecayRestarts` has no
    warm-up, and its cycles never end.)

    Args:
        initial_rate: at the top of the first cycle, above 0.
        total_steps: int.
        restarts: increasing steps, between warm-up and end, at which a cycle starts.
        factor: of the top of a cycle to the one before, 0.5 by default.
        warmup_steps: 0 by default: none.

    Raises:
        ValueError: a rate that is not positive, steps that do not increase.

    Example:
        >>> import zoo
        >>> rate = zoo.training.CosineRestarts(0.1, 300, [100], warmup_steps=20)
        >>> [round(float(rate(s)), 4) for s in (0, 10, 20, 60, 99, 100, 200, 300)]
        [0.0, 0.05, 0.1, 0.05, 0.0, 0.05, 0.025, 0.0]

    Reference:
        Loshchilov, Hutter 2017, "SGDR: Stochastic Gradient Descent with Warm Restarts",
        §3.
    """

    def __init__(
        self, initial_rate, total_steps, restarts=(), factor=0.5, warmup_steps=0
    ):
        _check_positive(initial_rate=initial_rate, factor=factor)
        check_int("total_steps", total_steps)
        check_int("warmup_steps", warmup_steps, 0)
        restarts = _increasing("restarts", restarts)
        ends = [warmup_steps, *restarts, total_steps]
        if any(b <= a for a, b in zip(ends, ends[1:], strict=False)):
            raise ValueError(
                "`restarts` must lie between warm-up and end. Received: restarts="
                f"{restarts}, warmup_steps={warmup_steps}, total_steps={total_steps}"
            )
        self.initial_rate = initial_rate
        self.total_steps = total_steps
        self.restarts = restarts
        self.factor = factor
        self.warmup_steps = warmup_steps

    def __call__(self, step):
        step = ops.cast(step, "float32")
        starts = [self.warmup_steps, *self.restarts]
        rate = self.initial_rate * step / max(self.warmup_steps, 1)
        for i, end in enumerate([*self.restarts, self.total_steps]):
            done = ops.minimum((step - starts[i]) / (end - starts[i]), 1.0)
            top = self.initial_rate * self.factor**i
            cycle = top * 0.5 * (1.0 + ops.cos(math.pi * done))
            rate = ops.where(step >= starts[i], cycle, rate)
        return rate

    def get_config(self):
        return {
            "initial_rate": self.initial_rate,
            "total_steps": self.total_steps,
            "restarts": self.restarts,
            "factor": self.factor,
            "warmup_steps": self.warmup_steps,
        }


def _check_positive(**values):
    for name, value in values.items():
        number = isinstance(value, numbers.Real) and math.isfinite(value)
        if not (number and value > 0):
            raise ValueError(
                f"`{name}` must be a number above 0. Received: {name}={value!r}"
            )


def _increasing(name, steps):
    if not isinstance(steps, (list, tuple)):
        raise ValueError(f"`{name}` must be a list. Received: {name}={steps!r}")
    steps = list(steps)
    for step in steps:
        check_int(name, step)
    if any(b <= a for a, b in zip(steps, steps[1:], strict=False)):
        raise ValueError(f"`{name}` must increase. Received: {name}={steps}")
    return steps
