"""Kim et al. 2016, "Character-Aware Neural Language Models": what highway layers add.

Full budget: the config `char_lstm_python_docs_1`, 8 epochs of all its text. Small:
4,000 of its 15,000 windows of 35 words, 3 epochs, the whole test set, 3 seeds, with
He's kernels and a rate of 2e-3. With the paper's U(±.05) nets take 1,500 steps to get
beyond how frequent words are, and the small budget has 600. The printed column is Penn
Treebank (small net), which nobody may pass on: another text, so only the order of the
rows can be compared.
"""

import keras
import numpy as np

from recipes import configs
from recipes.tables.runs import Runs, Table
from zoo import analysis, datasets
from zoo.analysis import plots
from zoo.layers import CharacterTokenizer, HighwayDense

# (highway layers, dense layers): perplexity printed. One dense layer is the paper's;
# two have the parameters of one highway layer.
NETS = {
    "no highway layer": ((0, 0), 100.3),
    "one highway layer": ((1, 0), 92.3),
    "two highway layers": ((2, 0), 90.1),
    "one dense layer": ((0, 1), 111.2),
    "two dense layers": ((0, 2), None),
}
SMALL = {
    "epochs": 3,
    "train_images": 4_000,
    "model": {"kernel_initializer": "he_normal"},
    "optimizer": {"learning_rate": 2e-3},
}
# As the paper chose them: frequent words, and words that are none.
QUERIES = ("while", "returns", "array", "his", "indexes", "reshaped", "looooook")
NEAREST = 5


def char_cnn_highways(seeds, budget):
    """Perplexity with 0, 1, 2 highway layers, and dense layers instead."""
    base, results = _trained(seeds, budget)
    words = f"{base.epochs} epochs"
    if base.train_images:
        words += f" of {base.train_images:,} windows"
    rows = []
    for name, metrics in results.items():
        values = [m["test"]["perplexity"] for m in metrics]
        rows.append(
            {
                "net": name,
                "perplexity": float(np.mean(values)),
                "std": float(np.std(values, ddof=1)) if len(values) > 1 else 0.0,
                "n": len(values),
                "printed": NETS[name][1],
                "parameters": metrics[0]["parameters"],
                "budget": words,
            }
        )
    return rows, _figure(results, seeds, budget)


def char_cnn_words(seeds, budget):
    """Nearest words by angle, before and behind the highway layers; seed 0."""
    _, results = _trained(seeds, budget)
    rows = [
        {"net": name, "word": query}
        | {
            f"nearest behind the {place}": " ".join(near[query])
            for place, near in metrics[0]["nearest"].items()
        }
        for name, metrics in results.items()
        for query in QUERIES
    ]
    return rows, _figure(results, seeds, budget)


def _trained(seeds, budget):
    """(base config, {net: metrics of each seed})."""
    base = configs.load("char_lstm_python_docs_1")
    if budget == "small":
        base = base.replace(**SMALL)
    runs = Runs(seeds, context=words_in_space)
    for name, ((highways, dense), _) in NETS.items():
        layers = {"highway_layers": highways, "dense_layers": dense}
        slug = f"char_lstm_{highways}_{dense}_{budget}"
        runs.add(name, base.replace(model=layers), slug)
    return base, runs.results()


def _figure(results, seeds, budget):
    return plots.character_figure(
        results["one highway layer"][0]["gates_by_character"],
        {
            name: [m["test"]["perplexity"] for m in metrics]
            for name, metrics in results.items()
        },
        title=f"Small net, budget {budget!r}, {seeds} seeds",
    )


def words_in_space(config, model):
    """Nearest words before and behind the highway layers, and gates by character."""
    words = [w for w in datasets.info(config.dataset).class_names if w[0] != "<"]
    tokenizer = CharacterTokenizer(
        config.flat()["model.vocabulary"],
        characters=config.model["characters"],
        lowercase=config.model["lowercase"],
        words=1,
    )
    texts = [*words, *QUERIES]
    ids = np.concatenate([np.array(tokenizer(group)) for group in _groups(texts)])
    places = {"characters": model.get_layer("characters").output}
    highways = [la for la in model.layers if isinstance(la, HighwayDense)]
    if highways:
        places["highway layers"] = highways[-1].output
    start = model.get_layer("tokens").output
    vectors = keras.Model(start, places).predict(ids, 512, verbose=0)
    nearest = {
        place: _nearest(np.asarray(v)[:, 0], words) for place, v in vectors.items()
    }
    if not highways:
        return {"nearest": nearest}
    found = analysis.gates_by_character(model, words)
    by_character = {
        character: float(gates[0])
        for gates, count, character in zip(*found, strict=True)
        if count >= 10
    }
    return {"nearest": nearest, "gates_by_character": by_character}


def _groups(words, size=1024):
    return [words[i : i + size] for i in range(0, len(words), size)]


def _nearest(vectors, words):
    """{query: the words of the smallest angle to it}; queries are the last vectors."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    known = unit[: len(words)]
    found = {}
    for query, vector in zip(QUERIES, unit[len(words) :], strict=True):
        order = np.argsort(-(known @ vector), kind="stable")
        found[query] = [words[i] for i in order if words[i] != query][:NEAREST]
    return found


def findings(rows):
    """Which of the paper's orderings came out."""
    by_name = {row["net"]: row for row in rows}
    sentences = []
    for one, other in (
        ("one highway layer", "no highway layer"),
        ("two highway layers", "one highway layer"),
        ("one highway layer", "one dense layer"),
        ("one highway layer", "two dense layers"),
    ):
        a, b = by_name[one], by_name[other]
        difference = a["perplexity"] - b["perplexity"]
        spread = float(np.hypot(a["std"], b["std"]))
        word = "within the spread" if abs(difference) <= spread else "beyond the spread"
        sentences.append(
            f"{one} − {other}: {difference:+.1f} ({word} of the seeds, {spread:.1f})."
        )
    return sentences


SEEDS = {"full": 3, "small": 3}
TABLES = {
    "char_cnn_highways": Table(char_cnn_highways, SEEDS, findings),
    "char_cnn_words": Table(char_cnn_words, SEEDS),
}
