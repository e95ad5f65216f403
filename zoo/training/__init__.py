"""Parts of training runs: weight decay, schedules and resuming."""

from zoo.training.decay import set_decay
from zoo.training.resume import Resume
from zoo.training.schedules import StepSchedule

__all__ = ["Resume", "StepSchedule", "set_decay"]
