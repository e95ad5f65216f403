"""FitNet 2 on CIFAR-10, taught by hints and distillation: 11 layers.

    python recipes/train.py fitnet_cifar10_11_2

Romero et al. 2015, "FitNets: Hints for Thin Deep Nets": .9106; 1,057,622 parameters,
printed ~862K. The guided layer is the sixth; all else as in `fitnet_cifar10_11_1`.

Result: not trained yet.
"""

from recipes.configs import fitnet_cifar10_11_1

CONFIG = fitnet_cifar10_11_1.CONFIG.replace(model={"number": 2})
