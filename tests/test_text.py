import collections
import hashlib

import numpy as np
import pytest

import zoo
from zoo import datasets
from zoo.datasets import text


def test_tokens():
    assert text.tokens("Don't  a_b\n(x2)") == ["Don", "'", "t", "a_b", "(", "x2", ")"]


def test_windows_by_hand(monkeypatch, tmp_path):
    streams = {
        "train": ["b", "a"] * 40 + ["rare"],
        "validation": ["a"] * 36,
        "test": ["new", *["b"] * 35],
    }
    monkeypatch.setattr(text, "_stream", lambda name, split, *_: streams[split])
    monkeypatch.setitem(text.WORDS, "python_docs", 4)
    here = str(tmp_path)
    assert text._words("python_docs", here, False) == (text.UNKNOWN, "a", "b", "rare")
    texts, labels, marked = text.read("python_docs", "train", here, False)
    assert len(texts) == 3  # 81 words hold two windows and what follows, 36 one
    assert texts[0].split() == [b"b", b"a"] * 17 + [b"b"]
    assert labels[0].tolist() == [1, 2] * 17 + [1]
    assert texts[1].split()[0] == b"a"  # goes on where the first one ended
    assert marked.tolist() == [False, False, True]
    texts, labels, marked = text.read("python_docs", "test", here, False)
    assert texts[0].split()[0] == b"new" and labels[0].tolist() == [2] * 35
    assert not marked.any()


@pytest.fixture(scope="module")
def docs():
    return {s: datasets.arrays("python_docs", s) for s in ("train", "test")}


def test_python_docs(docs):
    """The manual and NumPy as they are installed."""
    info = datasets.info("python_docs")
    assert info.num_classes == 6000 and info.class_names[0] == text.UNKNOWN
    assert info.num_train == len(docs["train"][0]) > 5000
    assert info.num_test == len(docs["test"][0]) > 300
    assert len(info.sha256) == 64
    names = info.class_names
    following = [names[i] for i in docs["train"][1][0]]
    words = docs["train"][0][0].decode().split()
    same = [a == b for a, b in zip(words[1:], following, strict=False)]
    assert np.mean(same) > 0.7  # the rest are words that the classes do not have
    tokenizer = zoo.layers.CharacterTokenizer(lowercase=True)
    for split in docs:
        ids = tokenizer(np.array(docs[split][0][:2000], object))
        assert ids.shape[1] == 35 and np.array(ids[:, :, 0] == 2).all()


def test_held_out_text_is_apart(docs):
    train, test = (set(docs[split][0]) for split in docs)
    assert len(train & test) < 0.02 * len(test)


def test_docstrings(monkeypatch):
    monkeypatch.setattr(text, "PACKAGES", {"keras": ("src/layers/core",)})
    rows = text._docstrings.__wrapped__("keras")
    assert len({t for _, t in rows}) == len(rows) > 30
    assert {split for split, _ in rows} <= {"train", "validation", "test"}
    assert any("densely-connected" in t for _, t in rows)
    assert not any("def test_" in t for _, t in rows)
    hashes = [hashlib.sha256(t.encode()).digest() for _, t in rows]
    assert hashes == sorted(hashes)


def test_whole_modules_are_held_out(monkeypatch, tmp_path):
    for module in "abcdefghijklmnopqrst":
        lines = [f'"""Module {module}."""', f'class A:\n    "One of {module}."']
        (tmp_path / f"{module}.py").write_text("\n".join(lines))
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.py").write_text('"""A test."""')
    (tmp_path / "__init__.py").write_text("raise SystemExit  # is not run")
    monkeypatch.syspath_prepend(tmp_path.parent)
    monkeypatch.setattr(text, "PACKAGES", {tmp_path.name: (".",)})
    rows = text._docstrings.__wrapped__(tmp_path.name)
    assert len(rows) == 40
    splits = collections.defaultdict(set)
    for split, sentence in rows:
        splits[sentence.rstrip(".")[-1]].add(split)
    assert all(len(found) == 1 for found in splits.values())


def test_news_and_sentences_come_through_tensorflow_datasets(made_up_data):
    info = datasets.info("ag_news_subset")
    assert info.class_names == ("World", "Sports", "Business", "Sci/Tech")
    assert info.num_train + info.num_validation == 60
    texts, labels = next(iter(datasets.load("ag_news_subset", "train", 8)))
    assert texts.shape == labels.shape == (8,) and texts.dtype == "string"
    info = datasets.info("lm1b")
    assert info.name == "lm1b" and len(set(info.class_names)) == 10_000
    texts, labels = next(iter(datasets.load("lm1b", "test", 8)))
    assert texts.shape == (8,) and labels.shape == (8, 35)


def test_text_has_no_image_size(made_up_data):
    with pytest.raises(ValueError, match="`image_size` must be None for 'docstrings'"):
        datasets.load("docstrings", "test", image_size=8)
