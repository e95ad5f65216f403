"""5 highway layers on scikit-learn's digits.

    python recipes/train.py highway_mlp_digits_5

As `highway_mlp_digits_50`, with the tutorial's own gate bias of −2.

Result: test accuracy .9585 ± .0061 (5 seeds), seconds of training on 2 CPU cores.
"""

from recipes.configs import highway_mlp_digits_50

CONFIG = highway_mlp_digits_50.CONFIG.replace(model={"depth": 1 + 5, "gate_bias": -2.0})
