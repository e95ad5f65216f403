import dataclasses

import keras
import numpy as np
import pytest

from zoo import datasets

pytest.register_assert_rewrite("helpers")


@pytest.fixture(autouse=True)
def seed():
    """Every test starts with the same draws."""
    keras.utils.set_random_seed(0)


@pytest.fixture
def policy():
    """Sets the global dtype policy for one test."""
    before = keras.config.dtype_policy()
    yield keras.config.set_dtype_policy
    keras.config.set_dtype_policy(before)


@pytest.fixture
def made_up_data(tmp_path, monkeypatch):
    """Images of noise, ten a class, in place of the data sets that are downloaded, and
    a few words in place of the texts."""

    def read(name, part, data_dir, download):
        labels = np.repeat(np.arange(infos[name].num_classes), 10)
        shape = (len(labels), *infos[name].image_shape)
        return np.random.default_rng(0).integers(0, 256, shape, "uint8"), labels

    infos = {**datasets._load._IN_MEMORY}
    del infos["digits"]
    for name, info in infos.items():
        n = info.num_classes
        small = {"num_train": 9 * n, "num_validation": n, "num_test": 10 * n}
        info = dataclasses.replace(info, **small)
        monkeypatch.setitem(datasets._load._IN_MEMORY, name, info)
    monkeypatch.setattr(datasets._load.images, "read", read)

    def docstrings(package):
        splits = ["train"] * 8 + ["validation", "test"]
        return [(split, f"{package} {i}: {split}.") for i, split in enumerate(splits)]

    def columns(name, part, data_dir, download, split=None):
        texts = np.array([f"News number {i}." for i in range(60)], "S")
        return {"description": texts, "label": np.arange(60) % 4}

    words = ["the", "cat", "sat", ".", "¶"] * 200
    monkeypatch.setattr(datasets._load.text, "_docstrings", docstrings)
    monkeypatch.setattr(datasets._load.text, "_stream", lambda *arguments: words)
    monkeypatch.setattr(datasets._load.text.images, "columns", columns)
    monkeypatch.setenv("TFDS_DATA_DIR", str(tmp_path))  # so none are remembered
