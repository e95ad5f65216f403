"""Parts of training runs: optimizer, weight decay, schedules and resuming."""

from zoo.training.adapt import adapt
from zoo.training.at_chance import StopAtChance
from zoo.training.decay import set_decay
from zoo.training.distillation import Distiller, HintTrainer
from zoo.training.gate_monitor import GateMonitor
from zoo.training.resume import Resume
from zoo.training.schedules import CosineRestarts, StepSchedule
from zoo.training.sgd import SGD

__all__ = [
    "SGD",
    "CosineRestarts",
    "Distiller",
    "GateMonitor",
    "HintTrainer",
    "Resume",
    "StopAtChance",
    "StepSchedule",
    "adapt",
    "set_decay",
]
