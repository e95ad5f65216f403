"""Trained nets by name or path, live or served."""

import functools
import json
import os
import pathlib

import keras
import tensorflow as tf

from zoo import datasets, models
from zoo._checks import known
from zoo.export import CARD, SEAL, hashes, seal, weights_by_path

PLACES = (
    pathlib.Path(__file__).parent / "saved_models",  # an installed wheel
    pathlib.Path(__file__).parents[1] / "saved_models",  # a checkout
)


def list_pretrained(details: bool = False) -> list:
    """Names that `load` and `load_served` take.

    Args:
        details: gives a dict for each instead: name, dataset, parameters, accuracy on
            the test set, and the split trained on; None for what a card does not say.

    Example:
        >>> import zoo
        >>> isinstance(zoo.list_pretrained(), list)
        True
    """
    found = _pretrained()
    if not details:
        return sorted(found)
    cards = [open_card(found[name])[1] for name in sorted(found)]
    return [
        {
            "name": name,
            "dataset": card.get("dataset"),
            "parameters": card["parameters"],
            "accuracy": card.get("metrics", {}).get("test", {}).get("accuracy"),
            "trained_on": card.get("recipe", {}).get("train_split"),
        }
        for name, card in zip(sorted(found), cards, strict=True)
    ]


def load(
    name: str | os.PathLike,
    *,
    num_classes: int | None = None,
    scan: str | bool | None = None,
) -> keras.Model:
    """A trained net as a live Keras model: predict, fit, analyse.

    Args:
        name: a name of `list_pretrained()`, the folder of an exported model, or the
            directory of a finished run.
        num_classes: another number of classes: the net gets a new, untrained layer
            `logits`, all other weights are the trained ones. None (the default)
            keeps the trained layer.
        scan: as in `zoo.convert`: loops or single layers. None (the default) leaves
            the net as it was trained.

    Returns:
        An uncompiled `keras.Model` with the trained weights.

    Raises:
        ValueError: an unknown name, with the known ones nearest first; a file that
            differs from its SHA-256 on the card; weights that do not fit;
            `num_classes` for a net that no builder makes.

    Example:
        >>> import tempfile, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=3, units=8)
        >>> path = zoo.export.export_saved_model(model, tempfile.mkdtemp() + "/net")
        >>> zoo.load(path, num_classes=3).output_shape
        (None, 3)
    """
    path, card = open_card(name)
    model = _filled(path, card)
    if num_classes is not None:
        model = _with_new_head(model, card, num_classes)
    return model if scan is None else models.convert(model, scan)


def verify(name: str | os.PathLike, batch_size: int = 256) -> dict:
    """Evaluates a trained net on the whole test set again.

    Args:
        name: as for `load`. Its card must name a data set of `zoo.datasets`.
        batch_size: of the evaluation.

    Returns:
        {"accuracy", "loss": as found now, "recorded": the accuracy on the card, "n":
        number of test examples, "equal": whether not one example differs}.

    Raises:
        ValueError: as for `load`; a card without data set or accuracy.
    """
    _, card = open_card(name)
    try:
        dataset = card["dataset"]
        recorded = card["metrics"]["test"]["accuracy"]
    except KeyError as error:
        raise ValueError(
            f"`name` must be a net whose card has data set and test accuracy. "
            f"Received: {name}, without {error}"
        ) from None
    model = load(name)
    model.compile(
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    data = datasets.load(dataset, "test", batch_size)
    found = model.evaluate(data, verbose=0, return_dict=True)
    n = datasets.info(dataset).num_test
    return {
        "accuracy": found["accuracy"],
        "loss": found["loss"],
        "recorded": recorded,
        "n": n,
        "equal": abs(found["accuracy"] - recorded) < 0.5 / n,
    }


def _filled(path, card):
    """The net on the card with the weights in the folder."""
    built_by = card.get("built_by")
    if built_by:
        builder = known("builder", built_by["builder"], models.BUILDERS)
        model = getattr(models, builder)(**built_by["arguments"], name=card["name"])
    else:
        model = keras.models.model_from_json(json.dumps(card["config"]))
    reader = tf.train.load_checkpoint(str(path / "variables" / "variables"))
    shapes = reader.get_variable_to_shape_map()
    stored = {_path(key): key for key in shapes if key.startswith("weights/")}
    weights = weights_by_path(model)
    for name in sorted(weights.keys() | stored.keys()):
        in_file = shapes[stored[name]] if name in stored else None
        in_net = list(weights[name].shape) if name in weights else None
        if in_file != in_net:
            raise ValueError(
                f"The weights in {path} are not those of the net on its card: {name} "
                f"has the shape {in_file} in the file and {in_net} in the net."
            )
    for name, weight in weights.items():
        weight.assign(reader.get_tensor(stored[name]))
    return model


def _with_new_head(model, card, num_classes):
    built_by = card.get("built_by")
    if not built_by or "num_classes" not in built_by["arguments"]:
        raise ValueError(
            "`num_classes` is for nets that a builder with this argument makes; take "
            "the features of the layer before the last one instead. Received: "
            f"num_classes={num_classes}, {card['name']}"
        )
    arguments = {**built_by["arguments"], "num_classes": num_classes}
    new = getattr(models, built_by["builder"])(**arguments, name=card["name"])
    trained = weights_by_path(model)
    for path, weight in weights_by_path(new).items():
        if path.split("/")[0] != "logits":
            weight.assign(trained[path])
    return new


def _path(key):
    """A weight's path from its name in the file, where TensorFlow escapes it."""
    return key.split("/")[1].replace(".S", "/").replace("..", ".")


class Served:
    """The endpoints of a SavedModel as methods.

    It keeps the SavedModel alive: TensorFlow's own functions fail once the object
    that they were loaded with is gone.
    """

    def __init__(self, path, card):
        self.card = card
        self._loaded = tf.saved_model.load(str(path))

    def __getattr__(self, name):
        if name not in self.card["endpoints"]:
            raise AttributeError(
                f"no endpoint {name!r}; there are {', '.join(self.card['endpoints'])}"
            )
        return functools.partial(self._call, name)

    @property
    def num_classes(self) -> int:
        """Width of the logits."""
        outputs = self._loaded.signatures["serve"].structured_outputs
        return outputs["logits"].shape[-1]

    def __dir__(self):
        return [*super().__dir__(), *self.card["endpoints"]]

    def _call(self, endpoint, *args, **kwargs):
        return getattr(self._loaded, endpoint)(*args, **kwargs)


def load_served(name: str | os.PathLike) -> Served:
    """A trained net as TensorFlow functions, without Keras.

    Args:
        name: as for `load`.

    Returns:
        `Served`: `.serve(image)` → {"logits", "probabilities"}, `.gates(image)` →
        {"stage_1", …}, and the `.card`.

    Raises:
        ValueError: as for `load`.
    """
    return Served(*open_card(name))


def _pretrained():
    """{name: folder}; $ZOO_SAVED_MODELS comes before the package and the checkout."""
    places = [*PLACES]
    if "ZOO_SAVED_MODELS" in os.environ:
        places.insert(0, pathlib.Path(os.environ["ZOO_SAVED_MODELS"]))
    found = {}
    for place in reversed(places):
        found.update(
            {card.parent.name: card.parent for card in place.glob(f"*/{CARD}")}
        )
    return found


def open_card(name):
    """(folder, card) of a name, path or run, its files checked against the card."""
    path = pathlib.Path(name)
    folders = [path, path / "saved_model"]
    path = next((p for p in folders if (p / CARD).is_file()), None)
    if path is None:
        found, given = _pretrained(), pathlib.Path(name)
        if given.is_dir() and str(name) not in found:
            raise ValueError(
                f"`name` must be the folder of an exported model. Received: {given}, "
                f"which has no {CARD}, nor has {given / 'saved_model'}"
            )
        if not found:
            raise ValueError(
                "`name` must be the folder of an exported model or a finished run; "
                f"there is none. Received: name={str(name)!r}"
            )
        path = found[known("name", str(name), found)]
    try:
        card = json.loads((path / CARD).read_text(encoding="utf-8"))
        recorded = dict(card["sha256"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path / CARD} cannot be read as a card: {error}") from None
    if card.get("format") != 1:
        raise ValueError(
            f"{path / CARD} has a format of a newer zoo. "
            f"Received: format={card.get('format')!r}, known: 1"
        )
    if card != seal(card):
        raise ValueError(
            f"{path / CARD} is not as it was written. SHA-256 of its content on the "
            f"card: {card.get(SEAL)}, found: {seal(card)[SEAL]}"
        )
    actual = hashes(path)
    for file in sorted(recorded.keys() | actual.keys()):
        if recorded.get(file) != actual.get(file):
            raise ValueError(
                f"{path / file} is not the file on its card. SHA-256 on the card: "
                f"{recorded.get(file)}, of the file: {actual.get(file)}"
            )
    return path, card
