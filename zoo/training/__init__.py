"""Parts of training runs: optimizer, weight decay, schedules and resuming."""

from zoo.training.adapt import adapt
from zoo.training.decay import set_decay
from zoo.training.resume import Resume
from zoo.training.schedules import StepSchedule
from zoo.training.sgd import SGD

__all__ = ["SGD", "Resume", "StepSchedule", "adapt", "set_decay"]
