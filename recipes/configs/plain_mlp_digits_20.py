"""20 plain layers on scikit-learn's digits.

    python recipes/train.py plain_mlp_digits_20

As `plain_mlp_digits_50`.
"""

from recipes.configs import plain_mlp_digits_50

CONFIG = plain_mlp_digits_50.CONFIG.replace(model={"depth": 1 + 20})
