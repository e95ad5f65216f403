"""FitNet 3 on CIFAR-10, taught by hints and distillation: 13 layers.

    python recipes/train.py fitnet_cifar10_13_3

Romero et al. 2015, "FitNets: Hints for Thin Deep Nets": .9110; 1,699,638 parameters,
printed ~1.6M. The guided layer is the eighth; all else as in `fitnet_cifar10_11_1`.

Result: not trained yet.
"""

from recipes.configs import fitnet_cifar10_11_1

CONFIG = fitnet_cifar10_11_1.CONFIG.replace(model={"number": 3})
