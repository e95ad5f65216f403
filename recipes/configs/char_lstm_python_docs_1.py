"""Language model that reads characters, one highway layer, on Python's own manual.

    python recipes/train.py char_lstm_python_docs_1

Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language Models": the small
net, one highway layer between the character convolutions and two LSTMs of 300 units.
The text is that of `pydoc_data.topics` and of NumPy's docstrings, in the versions that
are installed; whole topics and modules are held out.

Departures: Adam at 1e-3 along half a cosine in place of SGD at 1 that is halved when
the perplexity stops falling; the LSTMs' states start at zero every 35 words.

Result: perplexity 44.7 a word on the held-out topics and modules (1 seed), 42 minutes
on one CPU core of two, beside other work. From kernels of U(±.05), the paper's, it
takes 1,500 of its 6,104 steps to get beyond how frequent words are.
"""

from recipes.configs import Config
from zoo.datasets.text import WORDS

CONFIG = Config(
    builder="char_lstm",
    model={"num_classes": WORDS["python_docs"], "characters": 24, "lowercase": True},
    dataset="python_docs",
    epochs=8,
    batch_size=20,
    drop_remainder=True,
    optimizer={"name": "adam", "learning_rate": 1e-3, "clipnorm": 5.0},
    schedule={"name": "cosine"},
)
