"""5 plain layers on scikit-learn's digits.

    python recipes/train.py plain_mlp_digits_5

As `plain_mlp_digits_50`.

Result: test accuracy .9333 ± .0254 (5 seeds), seconds of training on 2 CPU cores.
"""

from recipes.configs import plain_mlp_digits_50

CONFIG = plain_mlp_digits_50.CONFIG.replace(model={"depth": 1 + 5})
