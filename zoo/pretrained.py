"""Trained nets by name or path, live or served."""

import functools
import json
import os
import pathlib

import keras
import tensorflow as tf

from zoo import models
from zoo._checks import known
from zoo.export import CARD, hashes, weights_by_path

PLACES = (
    pathlib.Path(__file__).parent / "saved_models",  # an installed wheel
    pathlib.Path(__file__).parents[1] / "saved_models",  # a checkout
)


def list_pretrained() -> list[str]:
    """Names that `load` and `load_served` take.

    Example:
        >>> import zoo
        >>> isinstance(zoo.list_pretrained(), list)
        True
    """
    return sorted(_pretrained())


def load(name: str | os.PathLike) -> keras.Model:
    """A trained net as a live Keras model: predict, fit, analyse.

    Args:
        name: a name of `list_pretrained()`, the folder of an exported model, or the
            directory of a finished run.

    Returns:
        An uncompiled `keras.Model` with the trained weights.

    Raises:
        ValueError: an unknown name, with the known ones nearest first; a file that
            differs from its SHA-256 on the card; weights that do not fit.
    """
    path, card = open_card(name)
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
    actual = hashes(path)
    for file in sorted(recorded.keys() | actual.keys()):
        if recorded.get(file) != actual.get(file):
            raise ValueError(
                f"{path / file} is not the file on its card. SHA-256 on the card: "
                f"{recorded.get(file)}, of the file: {actual.get(file)}"
            )
    return path, card
