"""The tables of character nets, on made-up text."""

import pytest
from test_reproduce import table

from recipes import configs, reproduce
from recipes.tables import characters, runs
from zoo.datasets import text


@pytest.fixture(autouse=True)
def small(made_up_data, tmp_path, monkeypatch):
    tiny = configs.load("char_lstm_python_docs_1").replace(
        model={"num_classes": 50, "lstm_units": 4}
    )
    monkeypatch.setitem(text.WORDS, "python_docs", 50)
    monkeypatch.setattr(runs, "ROOT", tmp_path)
    monkeypatch.setattr(characters.configs, "load", lambda name: tiny)
    monkeypatch.setattr(characters, "SMALL", {"epochs": 1, "train_images": 20})


def test_highways_and_words(tmp_path, capsys):
    arguments = ["--budget", "small", "--seeds", "1"]
    assert reproduce.main(["char_cnn_highways", *arguments]) == 0
    rows = table(tmp_path / "char_cnn_highways_small")
    assert [row["printed"] for row in rows] == [100.3, 92.3, 90.1, 111.2, None]
    assert all(row["perplexity"] > 1 for row in rows)
    highway, none = rows[1]["parameters"], rows[0]["parameters"]
    assert highway - none == 2 * (525**2 + 525)
    assert rows[0]["budget"] == "1 epochs of 20 windows"
    assert "one highway layer − no highway layer: " in capsys.readouterr().out
    assert reproduce.main(["char_cnn_words", *arguments]) == 0
    rows = table(tmp_path / "char_cnn_words_small")
    assert len(rows) == 5 * len(characters.QUERIES)
    assert len(rows[0]["nearest behind the characters"].split()) == 5
    assert rows[0].get("nearest behind the highway layers") is None
    assert len(rows[7]["nearest behind the highway layers"].split()) == 5


def test_findings():
    rows = [
        {"net": name, "perplexity": float(i), "std": 0.5}
        for i, name in enumerate(
            (
                "one highway layer",
                "no highway layer",
                "two highway layers",
                "one dense layer",
                "two dense layers",
            )
        )
    ]
    sentences = characters.findings(rows)
    assert sentences[0] == (
        "one highway layer − no highway layer: -1.0 (beyond the spread of the seeds, "
        "0.7)."
    )
