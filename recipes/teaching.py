"""Where the teacher of a student comes from."""

import difflib
import pathlib

import keras

import zoo
from recipes import configs
from recipes.configs import Config
from zoo import pretrained

RUNS = pathlib.Path("runs")  # of the configs, each in a directory of its name


def teacher(config: Config) -> keras.Model | None:
    """The trained teacher of a config; None where it wants none.

    Raises:
        ValueError: there is none yet, with the command that makes it; it is of
            another data set.
    """
    if config.teacher is None or not (config.hint or config.distill):
        return None
    place = _find(config.teacher)
    _, card = pretrained.open_card(place)
    dataset = card.get("dataset", config.dataset)
    if dataset != config.dataset:
        raise ValueError(
            "`teacher` must be trained on the data set of its student. Received: "
            f"teacher={config.teacher!r}, trained on {dataset}, and "
            f"dataset={config.dataset!r}"
        )
    return zoo.load(place)


def _find(name):
    """A path or name for `zoo.load`: one's own run comes before a release."""
    for place in (pathlib.Path(str(name)), RUNS / str(name)):
        if any((p / zoo.export.CARD).is_file() for p in (place, place / "saved_model")):
            return place
    released = pretrained.list_pretrained()
    if name in released:
        return name
    if name in configs.names():
        raise ValueError(
            f"`teacher` must be trained before its student, by `python "
            f"recipes/train.py {name}`. Received: teacher={name!r}, without a "
            f"finished run in {RUNS / name}"
        )
    near = difflib.get_close_matches(str(name), [*configs.names(), *released], 3, 0)
    raise ValueError(
        "`teacher` must be the directory of a finished run with its SavedModel, or the "
        f"name of a config or a released net, such as {', '.join(near)}. Received: "
        f"teacher={name!r}"
    )
