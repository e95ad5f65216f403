"""ResNet-20 of pre-activation units on CIFAR-10, on a schedule for a CPU.

    python recipes/train.py preact_resnet_cifar10_20

He et al. 2016, "Identity Mappings in Deep Residual Networks": the net, its
initialisation and its augmentation (pad 4, crop, flip).

Departures: the paper's schedule is 164 epochs of the rate .1, ÷10 at 32,000 and 48,000
steps, decay 1e-4 on everything; here 60 epochs on half a cosine after a warm-up of two,
with Nesterov's momentum and a decay of 5e-4 on kernels only. Convolutions are trained
in bfloat16, which takes two thirds of the time on CPUs that have it (AVX512_BF16).

Result: .9185 on the test set (1 seed), 2.0 hours on one CPU core of two, beside other
work; the paper-style ResNet-20 has .9125 (He et al. 2015, table 6). With 30 epochs,
last batches of 80 included, it was .9054. Label smoothing and mixup were not tried.
"""

from recipes.configs import Config

CONFIG = Config(
    builder="preact_resnet",
    model={"depth": 20, "augment": True},
    dataset="cifar10",
    epochs=60,
    batch_size=128,
    drop_remainder=True,
    optimizer={
        "name": "sgd",
        "learning_rate": 0.1,
        "momentum": 0.9,
        "nesterov": True,
    },
    schedule={"name": "cosine", "warmup_epochs": 2},
    rate_batch_size=128,
    decay=5e-4,
    dtype_policy="mixed_bfloat16",
)
