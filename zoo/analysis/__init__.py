"""What a trained net does with its depth: gates, gradients, lesions.

Numbers come back as NumPy arrays over layers; `zoo.analysis.plots` draws them.
"""

from zoo.analysis.gates import (
    Trace,
    gate_biases,
    gated_layers,
    gates_by_class,
    is_gated,
    mean_gates,
    trace,
)
from zoo.analysis.gradients import gradient_norms
from zoo.analysis.lesions import Lesions, lesions

__all__ = [
    "Lesions",
    "Trace",
    "gate_biases",
    "gated_layers",
    "gates_by_class",
    "gradient_norms",
    "is_gated",
    "lesions",
    "mean_gates",
    "trace",
]
