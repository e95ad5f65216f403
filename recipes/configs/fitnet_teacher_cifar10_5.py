"""Teacher of the FitNets on CIFAR-10: five maxout layers, 8,567,830 parameters.

    python recipes/train.py fitnet_teacher_cifar10_5

Romero et al. 2015, "FitNets: Hints for Thin Deep Nets": .9018, printed ~9M. The net
is that of Goodfellow et al. 2013, "Maxout Networks", with its dropout; per-image
contrast normalisation, then ZCA whitening fitted to the training images. RMSProp,
batch 128 and kernels from U(±.005) as for the students.

Departures: the FitNets paper does not say how its teacher was trained. Here no norm of
a filter is limited, the rate is 1e-3, and there are 100 epochs on half a cosine.

Result: not trained yet.
"""

from recipes.configs import Config

CONFIG = Config(
    builder="fitnet_teacher",
    model={"whiten": True},
    dataset="cifar10",
    epochs=100,
    batch_size=128,
    optimizer={"name": "rmsprop", "learning_rate": 1e-3},
    schedule={"name": "cosine", "warmup_epochs": 0},
)
