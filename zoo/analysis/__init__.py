"""What a trained net does with its depth: gates, gradients, lesions.

Numbers come back as NumPy arrays over layers; `zoo.analysis.plots` draws them.
"""

from zoo.analysis._blocks import gated_layers, is_block, is_gated
from zoo.analysis._results import to_csv, to_json
from zoo.analysis.characters import CharacterGates, gates_by_character
from zoo.analysis.cost import flops, latency
from zoo.analysis.gates import (
    GateSparsity,
    Trace,
    gate_biases,
    gate_sparsity,
    gates_by_class,
    mean_gates,
    trace,
)
from zoo.analysis.gradients import (
    OutputChange,
    carry_products,
    gradient_norms,
    jacobian_norms,
    layer_names,
    output_change,
)
from zoo.analysis.lesions import Lesions, lesions
from zoo.analysis.pruning import PruneReport, prune

__all__ = [
    "CharacterGates",
    "GateSparsity",
    "Lesions",
    "OutputChange",
    "PruneReport",
    "Trace",
    "carry_products",
    "flops",
    "gate_biases",
    "gate_sparsity",
    "gated_layers",
    "gates_by_character",
    "gates_by_class",
    "gradient_norms",
    "is_block",
    "is_gated",
    "jacobian_norms",
    "latency",
    "layer_names",
    "lesions",
    "mean_gates",
    "output_change",
    "prune",
    "to_csv",
    "to_json",
    "trace",
]
