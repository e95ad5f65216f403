"""Resuming a run: one file an epoch, written beside and renamed into place."""

import json
import os
import pathlib
import time

import keras
import numpy as np


class Resume(keras.callbacks.Callback):
    """Saves the state of training after each epoch and restores the newest.

    The state is every variable of model and optimizer, the generators of dropout
    included, and the rows of history so far: with data that are a function of (seed,
    epoch), a resumed run ends with the weights of an undisturbed one. Two
    generations are kept; where the newest cannot be read, the one before serves.

    Args:
        directory: where `resume-00012.npz` and the like are kept.
        name: how their names begin, "resume" by default; another one where two
            trainings share the directory.

    Attributes:
        epoch: number of epochs done.
        history: rows of metrics, one dict an epoch, with its seconds.

    Example:
        >>> import tempfile, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=2, units=8)
        >>> model.compile("adam", "mse")
        >>> resume = zoo.training.Resume(tempfile.mkdtemp())
        >>> resume.restore(model)
        0
    """

    def __init__(self, directory, name="resume"):
        super().__init__()
        self.directory = pathlib.Path(directory)
        self.name = name
        self.epoch = 0
        self.history = []

    def restore(self, model) -> int:
        """Loads the newest readable state into the compiled `model`.

        Returns:
            The number of epochs done, 0 where nothing was saved: `initial_epoch`.

        Raises:
            ValueError: states exist and none can be read, or they are another
                model's.
        """
        model.optimizer.build(model.trainable_variables)
        problems = []
        for path in reversed(self._files()):
            try:
                with open(path, "rb") as raw, np.load(raw, allow_pickle=False) as file:
                    record = json.loads(file["record"].tobytes())
                    values = [file[str(i)] for i in range(len(record["shapes"]))]
            except Exception as e:  # a damaged zip file can be any of a dozen
                problems.append(f"{path.name}: {e}")
                continue
            variables = _variables(model)
            if record["shapes"] != [list(v.shape) for v in variables]:
                raise ValueError(
                    f"The state in {path} is another model's: its variables have "
                    "other shapes."
                )
            for variable, value in zip(variables, values, strict=True):
                variable.assign(value)
            if problems:
                print(f"Unreadable, so an epoch is repeated: {'; '.join(problems)}")
            self.epoch, self.history = record["epoch"], record["history"]
            return self.epoch
        if problems:
            raise ValueError(
                f"No saved state in {self.directory} can be read: {'; '.join(problems)}"
            )
        return 0

    def on_epoch_begin(self, epoch, logs=None):
        self.began = time.perf_counter()

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "seconds": time.perf_counter() - self.began}
        row.update({key: float(value) for key, value in (logs or {}).items()})
        self.history = [*self.history[:epoch], row]
        self.epoch = epoch + 1
        variables = _variables(self.model)
        record = {
            "epoch": self.epoch,
            "history": self.history,
            "shapes": [list(v.shape) for v in variables],
        }
        arrays = {str(i): v.numpy() for i, v in enumerate(variables)}
        arrays["record"] = np.frombuffer(json.dumps(record).encode(), np.uint8)
        path = self.directory / f"{self.name}-{self.epoch:05d}.npz"
        temporary = path.with_suffix(".tmp")
        with open(temporary, "wb") as file:
            np.savez(file, **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
        for old in self._files()[:-2]:
            old.unlink()

    def discard(self):
        """Deletes the saved states: the run is finished."""
        for path in (*self._files(), *self._files(".tmp")):
            path.unlink()

    def _files(self, suffix=".npz"):
        return sorted(self.directory.glob(f"{self.name}-{'[0-9]' * 5}{suffix}"))


def _variables(model):
    return [*model.variables, *model.optimizer.variables]
