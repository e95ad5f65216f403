import csv
import json

import numpy as np
import pytest

import zoo
from zoo import analysis
from zoo.analysis import Lesions, Trace


def rows(path):
    with open(path, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_csv_of_an_array(tmp_path):
    array = np.array([[1.0, 2.5], [3.0, np.nan]])
    path = analysis.to_csv(array, tmp_path / "a.csv", names=["one", "two"])
    assert rows(path)[0] == {"layer": "one", "value_0": "1.0", "value_1": "2.5"}
    assert rows(path)[1]["value_1"] == "nan"
    by_class = analysis.to_csv(array, tmp_path / "b.csv", axis=1)
    assert rows(by_class)[0] == {"layer": "layer_1", "value_0": "1.0", "value_1": "3.0"}


def test_csv_of_different_widths(tmp_path):
    path = analysis.to_csv([np.ones(2), np.zeros(1)], tmp_path / "a.csv")
    assert [row["value_1"] for row in rows(path)] == ["1.0", ""]


def test_csv_of_results_with_names(tmp_path):
    one = np.array([0.5, 0.25])
    lesions = Lesions(one, one, one, 0.1, 0.9, 2.0, 0.1, ["a", "b"])
    path = analysis.to_csv(lesions, tmp_path / "a.csv")
    assert rows(path)[1] == {
        "layer": "b",
        "loss": "0.25",
        "accuracy": "0.25",
        "changed": "0.25",
    }
    trace = Trace(np.ones((2, 1, 1)), np.arange(3.0).reshape(3, 1, 1), ["a", "b"])
    path = analysis.to_csv(trace, tmp_path / "b.csv")
    assert rows(path)[0] == {"layer": "a", "gates_0_0": "1.0", "outputs_0_0": "1.0"}
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.csv", "b.csv"]


def test_names_that_do_not_fit(tmp_path):
    with pytest.raises(ValueError, match="one name for each layer.*2 names, 3 rows"):
        analysis.to_csv(np.ones(3), tmp_path / "a.csv", names=["a", "b"])
    assert not list(tmp_path.iterdir())


def test_json(tmp_path):
    model = zoo.highway_mlp((4,), depth=3, units=2)
    lesions = analysis.lesions(model, np.ones((2, 4)), [0, 1])
    found = json.loads(analysis.to_json(lesions, tmp_path / "a.json").read_text())
    assert found["loss"] == lesions.loss.tolist()
    assert found["names"] == ["highway_01", "highway_02"]
    result = {"array": np.array([np.inf, 1]), "list": [np.zeros((1, 1))], "n": None}
    found = json.loads(analysis.to_json(result, tmp_path / "b.json").read_text())
    assert found == {"array": [None, 1.0], "list": [[[0.0]]], "n": None}
