"""The large language model that reads characters on the One Billion Word Benchmark.

    python recipes/train.py char_lstm_lm1b_2

Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models": the large
net, two highway layers and LSTMs of 650 units, with the solver of
`char_lstm_python_docs_1`, on the first 200,000 sentences (downloaded by TensorFlow
Datasets). Not trained by us.
"""

from recipes.configs import char_lstm_python_docs_1
from zoo.datasets.text import WORDS

CONFIG = char_lstm_python_docs_1.CONFIG.replace(
    model={"num_classes": WORDS["lm1b"], "variant": "large"},
    dataset="lm1b",
    batch_size=100,
)
