"""FitNet 4 on CIFAR-10, taught by hints and distillation: 19 layers.

    python recipes/train.py fitnet_cifar10_19_4

Romero et al. 2015, "FitNets: Hints for Thin Deep Nets": .9161; 2,742,102 parameters,
printed ~2.5M. The guided layer is the eleventh; all else as in `fitnet_cifar10_11_1`.

Result: not trained yet.
"""

from recipes.configs import fitnet_cifar10_11_1

CONFIG = fitnet_cifar10_11_1.CONFIG.replace(model={"number": 4})
