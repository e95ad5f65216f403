"""Kinds of news, read as characters with a highway layer.

    python recipes/train.py char_cnn_ag_news_subset_1

The net and solver of `char_cnn_docstrings_1` on AG's News (120,000 texts, downloaded by
TensorFlow Datasets). Not trained by us.
"""

from recipes.configs import char_cnn_docstrings_1

CONFIG = char_cnn_docstrings_1.CONFIG.replace(
    dataset="ag_news_subset", epochs=2, batch_size=64
)
