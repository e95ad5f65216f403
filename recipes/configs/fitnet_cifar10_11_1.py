"""FitNet 1 on CIFAR-10, taught by hints and distillation: 11 layers.

    python recipes/train.py fitnet_cifar10_11_1

Romero et al. 2015, "FitNets: Hints for Thin Deep Nets": .8901; 348,694 parameters,
printed ~250K. Its teacher is trained first, by
`python recipes/train.py fitnet_teacher_cifar10_5`. Then two stages: the sixth layer
learns to give the teacher's second through a regressor; the whole net learns labels and
the teacher's answers, τ = 3, λ from 4 to 1. RMSProp, batch 128, kernels from U(±.005),
contrast normalisation and ZCA whitening.

Departures: the rate is 1e-3 on all weights, in place of 5e-3, of which the authors'
files take a twentieth on convolutions, and no norm of a filter is limited; both stages
end after a fixed number of epochs, on half a cosine, in place of early stopping.

Result: not trained yet.
"""

import dataclasses

from recipes.configs import fitnet_teacher_cifar10_5

CONFIG = dataclasses.replace(
    fitnet_teacher_cifar10_5.CONFIG,
    builder="fitnet",
    model={"number": 1, "whiten": True},
    teacher="fitnet_teacher_cifar10_5",
    hint={"epochs": 50},
    distill={"temperature": 3.0, "weight": 4.0, "final_weight": 1.0},
)
