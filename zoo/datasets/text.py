"""Text data sets: what the installed packages say of themselves, and public ones."""

import ast
import collections
import functools
import hashlib
import importlib.metadata
import importlib.util
import pathlib
import re

import numpy as np

from zoo.datasets import images
from zoo.datasets._info import DatasetInfo

END = "¶"  # a word of its own behind each text of a language model
UNKNOWN = "<unknown>"  # class 0: a word that the classes do not have
WINDOW = 35  # words of an example of a language model, as in Kim et al. 2016
DOCSTRINGS = 3000  # of each package at most
# Package → folders that are read; TensorFlow has five times the text of the others.
PACKAGES = {
    "numpy": (".",),
    "scikit-learn": (".",),
    "keras": (".",),
    "tensorflow": ("python/ops", "python/data/ops", "python/framework"),
}
_IMPORTS = {"scikit-learn": "sklearn"}
_TESTS = re.compile(r"(^|/)(tests?|.*_test\.py|test_.*\.py|conftest\.py)(/|$)")
_NEWS = ("World", "Sports", "Business", "Sci/Tech")
# Language models: number of classes, the unknown word included.
WORDS = {"python_docs": 6_000, "lm1b": 10_000}
NAMES = ("docstrings", "python_docs", "ag_news_subset", "lm1b")
_SENTENCES = {"train": "train[:200000]", "test": "test[:20000]"}  # of lm1b's 30 million


def tokens(text: str) -> list[str]:
    """The words of a text: letters and digits in a row, and each mark by itself."""
    return re.findall(r"\w+|[^\w\s]", text)


def describe(name: str, data_dir: str, download: bool) -> DatasetInfo:
    """Facts of a text set; those of this machine's packages, since versions differ."""
    train = read(name, "train", data_dir, download)
    test = read(name, "test", data_dir, download)
    held = int(train[2].sum())
    if name in WORDS:
        classes = _words(name, data_dir, download)
    else:
        classes = _NEWS if name == "ag_news_subset" else tuple(PACKAGES)
    digest = hashlib.sha256()
    for texts, labels, marked in (train, test):
        for text in texts:
            digest.update(text + b"\0")
        digest.update(labels.tobytes() + marked.tobytes())
    return DatasetInfo(
        name=name,
        image_shape=None,
        class_names=classes,
        pixel_range=None,
        num_train=len(train[0]) - held,
        num_validation=held,
        num_test=len(test[0]),
        sha256=digest.hexdigest(),
    )


@functools.lru_cache(maxsize=8)
def read(name: str, part: str, data_dir: str, download: bool):
    """Reads one part of a text set.

    Args:
        name: one of `NAMES`.
        part: "train" or "test".
        data_dir, download: as in `images.read`.

    Returns:
        texts: (examples,), bytes, UTF-8.
        labels: (examples,) classes; (examples, 35) next words of a language model.
        marked: (examples,), bool: which ones are kept for validation.

    Reference:
        - python_docs, docstrings: `pydoc_data.topics` (PSF licence) and the
          docstrings of NumPy, scikit-learn (BSD), Keras and TensorFlow (Apache 2.0),
          as installed.
        - ag_news_subset, lm1b: TensorFlow Datasets.
    """
    if name in WORDS:
        return _windows(name, part, data_dir, download)
    if name == "docstrings":
        rows = [
            (text.encode(), label, split == "validation")
            for label, package in enumerate(PACKAGES)
            for split, text in _docstrings(package)
            if (split == "test") == (part == "test")
        ]
        texts, labels, marked = map(list, zip(*rows, strict=True))
    else:
        columns = images.columns(name, part, data_dir, download)
        texts, labels = list(columns["description"]), columns["label"]
        hashes = [hashlib.sha256(t).digest() for t in texts]
        marked = [part == "train" and h[0] < 26 for h in hashes]  # a tenth
    return np.array(texts, object), np.array(labels, np.int64), np.array(marked)


def _windows(name, part, data_dir, download):
    """Texts one after the other, cut into examples of 35 words and what follows."""
    index = {word: i for i, word in enumerate(_words(name, data_dir, download))}
    texts, labels, marked = [], [], []
    splits = ("test",) if part == "test" else ("train", "validation")
    for split in splits:
        words = _stream(name, split, data_dir, download)
        ids = np.array([index.get(word, 0) for word in words], np.int64)
        for first in range(0, len(words) - WINDOW, WINDOW):
            texts.append(" ".join(words[first : first + WINDOW]).encode())
            labels.append(ids[first + 1 : first + WINDOW + 1])
            marked.append(split == "validation")
    if not texts:
        return np.array([], object), np.zeros((0, WINDOW), np.int64), np.array([], bool)
    return np.array(texts, object), np.stack(labels), np.array(marked)


@functools.lru_cache(maxsize=4)
def _words(name, data_dir, download):
    """The classes: the unknown word, then the most frequent ones of "train"."""
    counts = collections.Counter(_stream(name, "train", data_dir, download))
    common = sorted(counts, key=lambda word: (-counts[word], word))
    common = common[: WORDS[name] - 1]
    rest = (f"<unused {i}>" for i in range(WORDS[name] - 1 - len(common)))
    return UNKNOWN, *common, *rest


@functools.lru_cache(maxsize=8)
def _stream(name, split, data_dir, download):
    """All words of a split, in lower case, each text with its end."""
    if name == "python_docs":
        from pydoc_data.topics import topics

        found = [text for s, text in map(_placed, topics.items()) if s == split]
        found += [text for s, text in _docstrings("numpy") if s == split]
    else:
        part = "test" if split == "test" else "train"
        columns = images.columns(name, part, data_dir, download, _SENTENCES[part])
        held = len(columns["text"]) // 10 if part == "train" else 0
        end = len(columns["text"]) - held
        rows = columns["text"][end:] if split == "validation" else columns["text"][:end]
        found = [row.decode("utf-8", "replace") for row in rows]
    return [word for text in found for word in (*tokens(text.lower()), END)]


def _placed(item):
    """(split, text) of a named text: a tenth of the names for validation and test."""
    name, text = item
    place = hashlib.sha256(name.encode()).digest()[0]
    return "test" if place < 26 else "validation" if place < 52 else "train", text


@functools.lru_cache(maxsize=8)
def _docstrings(package):
    """(split, docstring) of a package, whole modules in a split, each text once.

    The files are parsed, not imported.
    """
    spec = importlib.util.find_spec(_IMPORTS.get(package, package))
    root = pathlib.Path(spec.origin).parent
    found, seen = [], set()
    paths = sorted({p for f in PACKAGES[package] for p in (root / f).rglob("*.py")})
    for path in paths:
        module = path.relative_to(root).as_posix()
        if _TESTS.search(module):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
            text = ast.get_docstring(node) if isinstance(node, kinds) else None
            if text and text not in seen:
                seen.add(text)
                found.append(_placed((f"{package}/{module}", text)))
    found.sort(key=lambda row: hashlib.sha256(row[1].encode()).digest())
    return found[:DOCSTRINGS]


def versions() -> dict[str, str]:
    """Versions of the packages whose docstrings are read."""
    return {name: importlib.metadata.version(name) for name in PACKAGES}
