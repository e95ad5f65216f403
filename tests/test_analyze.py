import json
import re

import numpy as np
import pytest
from helpers import hostile

import zoo
from recipes import analyze, findings, train
from zoo import datasets
from zoo.analysis import GateSparsity, Lesions, OutputChange, Trace


def net(**arguments):
    return zoo.highway_mlp(
        (8, 8, 1), depth=5, units=6, gate_bias=-1.0, rescale=1 / 16, **arguments
    )


@pytest.fixture
def saved(tmp_path):
    """A release with a card and a history, as a finished run leaves it."""
    card = {"dataset": "digits", "metrics": {"test": {"accuracy": 0.5}}}
    path = zoo.export.export_saved_model(net(name="tiny"), tmp_path / "tiny", card=card)
    return path


def test_a_saved_model(saved, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = [str(saved), "--out", str(out), "--images", "60", "--prune", "1"]
    assert analyze.main(arguments) == 0
    printed = capsys.readouterr().out
    assert "tiny: 60 images of digits, test" in printed
    assert "layers 2–4 can be removed together" in printed.lower()
    assert "Pruning for at most 100.00% of accuracy keeps 0 of 4 layers" in printed
    marks = re.findall(r"\[(.*)\]", printed)
    assert len(marks) == 9 and set(marks) <= {findings.SEEN, findings.NOT_SEEN}
    names = {p.name for p in out.iterdir()}
    figures = {"gates", "strip", "routing", "lesions", "change", "carry", "gradients"}
    assert {f"{name}.png" for name in figures} == {n for n in names if "png" in n}
    for name in ("lesions", "gate_biases", "jacobian_norms", "tail_lesions"):
        assert {f"{name}.csv", f"{name}.json"} <= names
    assert zoo.load(out / "pruned").name == "tiny_pruned"
    found = json.loads((out / "findings.json").read_text())
    assert all(f["sentence"] in printed for f in found["findings"])
    assert not [name for name in names if "tmp" in name]

    page = (out / "report.html").read_text(encoding="utf-8")
    assert page.count("data:image/png;base64,") == len(figures)
    assert "http" not in page and "<script" not in page and "<link" not in page
    assert all(
        source.startswith("data:") for source in re.findall(r'src="(.*?)"', page)
    )
    assert page.count("<li>") == len(found["findings"]) + len(found["notes"])

    arguments = [str(saved), "--out", str(tmp_path / "served"), "--served"]
    assert analyze.main([*arguments, "--images", "60"]) == 0
    live, served = (
        json.loads((d / "mean_gates.json").read_text())
        for d in (out, tmp_path / "served")
    )
    assert np.allclose(live, served, atol=1e-6)
    assert not (tmp_path / "served" / "lesions.csv").exists()


def test_a_run_that_left_the_validation_images_out(tmp_path, capsys):
    run = tmp_path / "run"
    changes = ("train_split=train", "model.depth=3", "model.units=4")
    arguments = [part for change in changes for part in ("--set", change)]
    command = ["highway_mlp_digits_5", "--run-dir", str(run), "--epochs", "1"]
    assert train.main([*command, *arguments]) == 0
    assert analyze.main([str(run), "--prune"]) == 0
    pruned = json.loads((run / "analysis" / "prune.json").read_text())
    assert (pruned["chosen_by_images"], pruned["images"]) == (127, 540)
    assert {"curves.png", "report.html"} <= {
        p.name for p in (run / "analysis").iterdir()
    }


def test_keras_file_of_a_residual_net(tmp_path, capsys):
    model = zoo.preact_resnet(8, input_shape=(8, 8, 1), name="units")
    model.save(tmp_path / "net.keras")
    arguments = [str(tmp_path / "net.keras"), "--out", str(tmp_path / "out")]
    assert analyze.main([*arguments, "--dataset", "digits", "--images", "20"]) == 0
    assert "Closing one of the first" in capsys.readouterr().out
    names = {p.name for p in (tmp_path / "out").iterdir()}
    assert "lesions.png" in names and "gates.png" not in names


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--image", "600", "--images", "60"], "`--image` must be below the number of"),
        (["--images", "0"], "`--images` must be an integer of at least 1"),
        (["--split", "all"], "`--split` must be one of"),
        (["--dataset", "digit"], "`--dataset` must be one of digits"),
        (["--prune", "2"], "`--prune` must be a share in 0 … 1"),
        (["--served", "--prune"], "`--prune` needs the live net"),
        (["--dataset", "mnist"], r"`images` must have the shape \(batch, 8, 8, 1\)"),
    ],
)
def test_wrong_input(saved, made_up_data, arguments, message, tmp_path, capsys):
    out = tmp_path / "out"
    assert analyze.main([str(saved), "--out", str(out), *arguments]) == 2
    assert re.match(f"error: .*{message}", capsys.readouterr().err)
    assert not out.exists()


def test_nets_that_cannot_be_analysed(tmp_path, capsys):
    assert analyze.main([str(tmp_path / "no.keras")]) == 2
    assert "`name` must be a file that exists" in capsys.readouterr().err
    net().save(tmp_path / "net.keras")
    assert analyze.main([str(tmp_path / "net.keras")]) == 2
    assert "`--dataset` must be given" in capsys.readouterr().err
    plain = zoo.plain_mlp((8, 8, 1), depth=3)
    card = {"dataset": "digits"}
    path = zoo.export.export_saved_model(plain, tmp_path / "plain", card=card)
    assert analyze.main([str(path), "--served"]) == 2
    assert "the endpoint 'gates'" in capsys.readouterr().err


def lesions(accuracy, intact=0.9):
    accuracy = np.array(accuracy)
    return Lesions(accuracy, accuracy, accuracy, 0.1, intact, 2.0, 0.1, [])


def test_findings_of_the_papers_mnist_net():
    one = lesions([0.5] * 15 + [0.9] * 34)
    tails = lesions([0.1] * 14 + [0.8995] + [0.9] * 34)
    first, second = findings.of_lesions("mnist", one, tails)
    assert first.mark == findings.SEEN
    assert "costs 40.00 points of accuracy on average, one of the" in first.sentence
    assert "for 15 layers, 100% of the first 15" in first.sentence
    assert "Layers 16–49 can be removed together at a cost of 0.00" in second.sentence
    assert "layers 15–49 at a cost of 0.05 points" in second.sentence
    change = OutputChange(np.r_[np.ones(10), np.full(39, 0.1)], np.ones(49), [])
    assert findings.of_change("mnist", change).mark == findings.SEEN
    late = OutputChange(change.change[::-1], np.ones(49), [])
    assert findings.of_change("mnist", late).mark == findings.NOT_SEEN
    assert (
        "half of it is reached at layer 43" in findings.of_change(None, late).sentence
    )


def test_lesions_that_the_paper_did_not_see():
    everywhere = lesions([0.5] * 49)
    first, second = findings.of_lesions("mnist", everywhere, everywhere)
    assert first.mark == second.mark == findings.NOT_SEEN
    assert "no layers at the end go for 0.1% or less" in second.sentence


def test_findings_of_gates():
    depth = np.linspace(0, 1, 10)[:, None] * np.ones((10, 4))
    outputs = np.ones((11, 1, 4))
    results = {
        "mean_gates": 0.5 - 0.4 * depth,
        "gate_biases": -5 + depth,
        "initial_biases": np.full((10, 4), -4.5),
        "gate_sparsity": GateSparsity(np.full(10, 0.1), np.full(10, 0.6), 0.5, []),
        "gates_by_class": np.stack([depth[::-1], -depth[::-1]]),
        "trace": Trace(None, outputs, []),
    }
    found = findings.of_gates("cifar100", results)
    assert [f.mark for f in found] == [
        findings.NOT_SEEN,  # half of the biases fell, not more
        *[findings.SEEN] * 4,
        findings.NOT_SEEN,  # routing fades with depth
    ]
    assert "from -5.00 to -4.00" in found[0].sentence
    results["gate_biases"] = -5 - depth
    found = findings.of_gates("mnist", results)
    assert (found[0].mark, found[1].mark) == (findings.SEEN, findings.NOT_SEEN)
    assert found[-1].mark == findings.SEEN


def text_net(tmp_path, model, dataset):
    return str(
        zoo.export.export_saved_model(
            model, tmp_path / "net", card={"dataset": dataset}
        )
    )


def test_a_net_that_reads_text(made_up_data, monkeypatch, tmp_path, capsys):
    def docstrings(package):
        words = ["alpha bravo charlie", "delta", f"{package} echo foxtrot golf"]
        return [(split, " ".join(words)) for split in ["train"] * 3 + ["test"] * 20]

    monkeypatch.setattr(datasets.text, "_docstrings", docstrings)
    model = zoo.char_cnn(characters=12, num_classes=4, highway_layers=2, gate_bias=-1.0)
    path, out = text_net(tmp_path, model, "docstrings"), tmp_path / "out"
    assert analyze.main([path, "--out", str(out), "--prune", "1"]) == 0
    printed = capsys.readouterr().out
    assert "80 texts of docstrings, test" in printed
    assert "gates are widest for words with" in printed
    assert "Pruning for at most 100.00% of accuracy keeps 0 of 2 layers" in printed
    figures = {p.stem for p in out.iterdir() if p.suffix == ".png"}
    expected = {"gates", "characters", "routing", "carry", "gradients", "change"}
    assert figures == {*expected, "lesions"}
    rows = (out / "gates_by_character.csv").read_text().splitlines()
    assert rows[0] == "character,gates_0,gates_1,words"
    assert len(rows) == 1 + 95
    assert "80 texts of the split test" in (out / "report.html").read_text()
    arguments = [path, "--out", str(tmp_path / "served"), "--served"]
    assert analyze.main(arguments) == 0
    live, served = (
        json.loads((d / "mean_gates.json").read_text())
        for d in (out, tmp_path / "served")
    )
    assert np.allclose(live, served, atol=1e-6)


def test_a_language_model(made_up_data, monkeypatch, tmp_path, capsys):
    monkeypatch.setitem(datasets.text.WORDS, "python_docs", 5)
    model = zoo.char_lstm(5, characters=8, lstm_units=4)
    path, out = text_net(tmp_path, model, "python_docs"), tmp_path / "out"
    assert analyze.main([path, "--out", str(out)]) == 0
    names = {p.name for p in out.iterdir()}
    assert {"characters.png", "gates.png", "mean_gates.csv", "report.html"} <= names
    assert "lesions.csv" not in names
    again = [path, "--out", str(tmp_path / "again")]
    assert analyze.main([*again, "--prune"]) == 2
    assert "`--prune` needs a classifier" in capsys.readouterr().err
    model = zoo.char_lstm(5, characters=8, lstm_units=4, highway_layers=0)
    model.save(tmp_path / "none.keras")
    none = [str(tmp_path / "none.keras"), "--dataset", "python_docs", *again[1:]]
    assert analyze.main(none) == 2
    assert "must be a net with gates" in capsys.readouterr().err
    assert not (tmp_path / "again").exists()


def test_fine_tuning(saved, tmp_path, capsys):
    arguments = [str(saved), "--out", str(tmp_path / "out"), "--images", "60"]
    assert analyze.main([*arguments, "--prune", "1", "--fine-tune", "1"]) == 0
    report = json.loads((tmp_path / "out" / "prune.json").read_text())
    assert 0 <= report["accuracy_before_tuning"] <= 1
    before, after = zoo.load(saved), zoo.load(tmp_path / "out" / "pruned")
    kernels = [m.get_layer("stem").kernel.numpy() for m in (before, after)]
    assert 0 < np.abs(kernels[1] - kernels[0]).max() < 0.01  # Adam, 13 steps of 1e-4


def test_code_in_a_keras_file_is_refused(tmp_path, capsys):
    trace = tmp_path / "was here"
    hostile(trace).save(tmp_path / "hostile.keras")
    arguments = [str(tmp_path / "hostile.keras"), "--dataset", "digits"]
    assert analyze.main(arguments) == 2
    assert "unsafe" in capsys.readouterr().err
    assert not trace.exists()
