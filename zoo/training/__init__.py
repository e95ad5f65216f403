"""Parts of training runs: weight decay and resuming."""

from zoo.training.decay import set_kernel_decay
from zoo.training.resume import Resume

__all__ = ["Resume", "set_kernel_decay"]
