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
        for name, value in (
            ("initial_rate", initial_rate),
            ("factor", factor),
            ("warmup_rate", initial_rate if warmup_rate is None else warmup_rate),
        ):
            number = isinstance(value, numbers.Real) and math.isfinite(value)
            if not (number and value > 0):
                raise ValueError(
                    f"`{name}` must be a number above 0. Received: {name}={value!r}"
                )
        if warmup_rate is None:
            warmup_rate = initial_rate / 10
        if not isinstance(boundaries, (list, tuple)):
            raise ValueError(
                f"`boundaries` must be a list. Received: boundaries={boundaries!r}"
            )
        boundaries = list(boundaries)
        for boundary in boundaries:
            check_int("boundaries", boundary)
        if any(b <= a for a, b in zip(boundaries, boundaries[1:], strict=False)):
            raise ValueError(
                f"`boundaries` must increase. Received: boundaries={boundaries}"
            )
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
