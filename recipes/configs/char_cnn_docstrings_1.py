"""Which package a docstring comes from, read as characters with a highway layer.

    python recipes/train.py char_cnn_docstrings_1

The encoder of Kim, Jernite, Sontag, Rush 2016, "Character-Aware Neural Language
Models", small: word vectors of 525, their mean over the first 100 words, logits of
NumPy, scikit-learn, Keras and TensorFlow. Whole modules are held out.

Result: .590 on the 1,273 docstrings of the test set (1 seed; the largest class is
.321), 17 minutes on one CPU core of two, beside other work. Two of three docstrings of
Keras are taken for TensorFlow's; of scikit-learn's, 79 % are known.
"""

from recipes.configs import Config

CONFIG = Config(
    builder="char_cnn",
    model={"num_classes": 4, "words": 100, "characters": 24, "dropout": 0.3},
    dataset="docstrings",
    epochs=5,
    batch_size=32,
    optimizer={"name": "adam", "learning_rate": 1e-3},
    schedule={"name": "cosine"},
)
