"""900 weight layers on CIFAR-100: leaves chance, where 100 plain layers do not.

    python recipes/train.py highway_mlp_cifar100_900

Srivastava, Greff, Schmidhuber 2015, "Highway Networks": a 900-layer highway net trains
on CIFAR-100. The paper gives no width and no settings; ours are those of its MNIST
depth study, with the gates at −8 and a rate at which a 30-layer net trains (10 times
as much silences the ReLUs of the first layer).

Result: after 3 epochs (1,500 steps, 200 s on 2 CPU cores) training loss 4.28, test
accuracy .050 (1 seed); `plain_mlp_cifar100_100` is still at chance, 4.61 and .010.
"""

from recipes.configs import Config

CONFIG = Config(
    builder="highway_mlp",
    model={
        "input_shape": (32, 32, 3),
        "num_classes": 100,
        "depth": 900,
        "units": 50,
        "gate_bias": -8.0,
    },
    dataset="cifar100",
    epochs=3,
    batch_size=100,
    optimizer={"name": "sgd", "learning_rate": 0.005, "momentum": 0.9},
)
