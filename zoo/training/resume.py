"""Exact resume: the whole state of a training in one file, renamed into place."""

import glob
import hashlib
import io
import json
import os
import pathlib
import re
import time

import keras
import numpy as np

from zoo import _replicas
from zoo._checks import check_int

_SEAL = b"sha256:"  # and 64 hexadecimal digits end a file; zip readers skip them
_PLAIN = (bool, int, float, str, type(None))


class Resume(keras.callbacks.Callback):
    """Saves the state of training and goes on from the newest.

    A training that was killed at any moment and is run again ends with the weights,
    bit for bit, and the history of an undisturbed one, given data that are a function
    of (seed, epoch, step), layers that draw from generators of their own, and the same
    number of threads. The state is every variable of model, optimizer and metrics on
    every replica, the generators of dropout included; the rows of history so far;
    and of the other callbacks given to `fit` the public attributes that are numbers,
    strings or lists of arrays, such as `best` and `wait`.

    It is saved after each epoch, every `every` steps, and on `stop()`: written
    beside, with a SHA-256, and renamed into place. Two generations are kept; where
    the newest cannot be read, the one before serves. Of several workers each keeps
    its own, and all go on from the newest that all can read.

    Args:
        directory: where `resume-00012.npz`, after 12 epochs, 500 steps later
            `resume-00012-0000500.npz`, and the like are kept.
        name: how their names begin, "resume" by default; another one where two
            trainings share the directory.
        every: steps between states within an epoch; None (the default) saves after
            epochs only. A state costs a copy of all variables and a write to disk.

    Attributes:
        epoch: number of epochs done.
        step: number of steps done in the epoch that has begun.
        history: rows of metrics, one dict an epoch, with its seconds.
        notes: a dict for whatever else is to be kept, as JSON.

    Example:
        >>> import tempfile, zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=2, units=8)
        >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        >>> model.compile("adam", loss)
        >>> def stream(epoch, step):
        ...     return zoo.datasets.load(
        ...         "digits", "train", 64, epoch=epoch, step=step, epochs=None
        ...     )
        >>> resume = zoo.training.Resume(tempfile.mkdtemp(), every=10)
        >>> resume.fit(model, stream, epochs=2, steps_per_epoch=21, verbose=0)
        >>> len(resume.history)
        2
    """

    def __init__(self, directory, name="resume", every=None):
        super().__init__()
        if every is not None:
            check_int("every", every)
        self.directory = pathlib.Path(directory)
        self.name, self.every = name, every
        self.epoch, self.step, self.history, self.notes = 0, 0, [], {}
        self._pending = None  # of the state that was read, until training begins
        self._driver = None  # what `fit` was given, while it runs
        self._stopping = self._stopped = False

    def restore(self, model) -> int:
        """Loads the newest readable state into the compiled `model`.

        Returns:
            The number of epochs done, 0 where nothing was saved: `initial_epoch`.

        Raises:
            ValueError: states exist and none can be read, or they are another
                model's, or workers have none in common.
        """
        if not model.optimizer.built:  # a second time would make more variables
            model.optimizer.build(model.trainable_variables)
        found, problems = {}, []
        for path in reversed(self._files()):
            try:
                found[_place(path)] = path, *_read(path)
            except Exception as e:  # a damaged zip file can be any of a dozen
                problems.append(f"{path.name}: {e}")
        place = _replicas.newest_common(model, list(found))
        if place is None and problems:
            raise ValueError(
                f"No saved state in {self.directory} can be read: {'; '.join(problems)}"
            )
        if place is None:
            return 0
        path, record, arrays = found[place]
        variables = _variables(model)
        if record["shapes"] != [list(v.shape) for v in variables]:
            raise ValueError(
                f"The state in {path} is another model's: its variables have other "
                "shapes."
            )
        if problems:
            print(f"Unreadable, so steps are repeated: {'; '.join(problems)}")
        for variable, values in zip(variables, arrays, strict=False):
            _replicas.assign(model, variable, values)
        self._pending = record, arrays[len(variables) :]
        self.epoch, self.step = place
        self.history, self.notes = record["history"], record["notes"]
        self._stopped = record["stopped"]
        return self.epoch

    def fit(
        self, model, stream, epochs, steps_per_epoch, callbacks=(), **arguments
    ) -> None:
        """Trains from the restored state on (from the newest, if none was restored).

        Args:
            model: compiled.
            stream: function of an epoch and a step that gives the endless data from
                there on, such as `zoo.datasets.load` with `epochs=None`.
            epochs: how many in all.
            steps_per_epoch: int.
            callbacks: others, whose state is kept too. `Resume` comes after them.
            **arguments: of `keras.Model.fit`, such as `validation_data`.

        Raises:
            KeyboardInterrupt: after `stop()`, once the state is saved.
            OSError: a state cannot be written, for a full disk, say. The one before
                is left, and the same call goes on from there.
        """
        if self._pending is None:
            self.restore(model)
        data = stream(self.epoch, self.step)
        if self.step:  # makes the variables of the metrics, which have a state too
            model.evaluate(data.take(1), verbose=0)
        self._driver = _Driver(steps_per_epoch, callbacks)
        try:
            model.fit(
                data,
                epochs=epochs,
                initial_epoch=epochs if self._stopped else self.epoch,
                steps_per_epoch=steps_per_epoch,
                callbacks=[_Uncut(self), *callbacks, self],
                shuffle=False,  # the stream has its order
                **arguments,
            )
        finally:
            self._driver, self._stopping = None, False

    def stop(self) -> bool:
        """Ends `fit` after the present step, whose state is saved first; for signal
        handlers. Returns whether `fit` is running."""
        self._stopping = self._driver is not None
        return self._stopping

    def on_train_begin(self, logs=None):
        if self._driver is None:
            if self.step:
                raise ValueError(
                    f"The state in {self.directory} is from the middle of an epoch; "
                    "go on by `Resume.fit`."
                )
        elif self._pending:
            self._driver.restore(self._pending[0]["callbacks"])

    def on_epoch_begin(self, epoch, logs=None):
        self._first, done_before = self.step, 0.0  # steps of this epoch done before
        if self.step:
            record, arrays = self._pending
            done_before = record["seconds"]
            variables = self.model.metrics_variables
            for variable, values in zip(variables, arrays, strict=True):
                _replicas.assign(self.model, variable, values)
        self._pending = None
        self._began = time.perf_counter() - done_before
        self._cut = False

    def on_train_batch_end(self, batch, logs=None):
        if self._driver is None:
            return
        before, self.step = self.step, self._first + batch + 1
        if self.step >= self._driver.steps:
            self._cut = self._first > 0  # Keras would go on for a whole epoch
            self.model.stop_training |= self._cut
        elif self._stopping:
            self._save()
            raise KeyboardInterrupt
        elif self.every and self.step // self.every > before // self.every:
            self._save()

    def on_epoch_end(self, epoch, logs=None):
        row = {"epoch": epoch + 1, "seconds": time.perf_counter() - self._began}
        row.update({key: float(value) for key, value in (logs or {}).items()})
        self.history = [*self.history[:epoch], row]
        self.epoch, self.step = epoch + 1, 0
        self._stopped = self.model.stop_training
        self._save()
        if self._stopping:
            raise KeyboardInterrupt

    def discard(self):
        """Deletes the saved states: the run is finished."""
        for path in (*self._files(), *self._files(".tmp")):
            path.unlink()

    def _save(self):
        getattr(self.model, "jax_state_sync", int)()  # JAX keeps it to itself
        variables = _variables(self.model)
        metrics = self.model.metrics_variables if self.step else []
        arrays = {}
        for i, variable in enumerate((*variables, *metrics)):
            for j, value in enumerate(_replicas.values(self.model, variable)):
                arrays[f"{i}.{j}"] = value
        states, more = self._driver.states() if self._driver else ({}, {})
        record = {
            "epoch": self.epoch,
            "step": self.step,
            "seconds": time.perf_counter() - self._began,
            "stopped": self._stopped,
            "history": self.history,
            "notes": self.notes,
            "callbacks": states,
            "shapes": [list(v.shape) for v in variables],
        }
        step = f"-{self.step:07d}" if self.step else ""
        path = self.directory / f"{self.name}-{self.epoch:05d}{step}.npz"
        _write(path, record, {**arrays, **more})
        kept = [p for p in self._files() if _place(p) <= _place(path)][-2:]
        for old in self._files():
            if old not in kept:  # also unreadable ones that were to come after
                old.unlink()

    def _files(self, suffix=".npz"):
        """Paths of the states, the oldest first."""
        pattern = re.compile(rf"{re.escape(self.name)}-\d{{5}}(-\d{{7}})?{suffix}")
        paths = self.directory.glob(f"{glob.escape(self.name)}-*")
        return sorted((p for p in paths if pattern.fullmatch(p.name)), key=_place)


class _Driver:
    """What `fit` was given: the steps of an epoch, and the other callbacks, of which
    the attributes are kept that training has changed."""

    def __init__(self, steps, callbacks):
        self.steps, self.callbacks = steps, {}
        for callback in callbacks:
            kind = type(callback).__name__
            number = sum(name.startswith(f"{kind} ") for name in self.callbacks)
            self.callbacks[f"{kind} {number}"] = callback
        self.given = {name: dict(vars(c)) for name, c in self.callbacks.items()}

    def states(self):
        """({callback: {attribute: value}} as JSON can hold it, {key: array})."""
        plain, arrays = {}, {}
        for name, callback in self.callbacks.items():
            plain[name] = {}
            for key, value in vars(callback).items():
                if isinstance(value, np.generic):
                    value = value.item()
                if key.startswith("_"):
                    continue
                if isinstance(value, _PLAIN):
                    if value is not self.given[name].get(key, ...):
                        plain[name][key] = value
                elif isinstance(value, list) and value:
                    if all(isinstance(part, np.ndarray) for part in value):
                        for i, part in enumerate(value):
                            arrays[f"{name}/{key}/{i}"] = part
        return plain, arrays

    def restore(self, states):
        for name, state in states.items():
            if name in self.callbacks:
                vars(self.callbacks[name]).update(state)


class _Uncut(keras.callbacks.Callback):
    """First of the callbacks: the end of an epoch that was begun before is not the
    end of training, unless one of the others says so."""

    def __init__(self, resume):
        super().__init__()
        self._resume = resume

    def on_epoch_end(self, epoch, logs=None):
        if self._resume._cut:
            self.model.stop_training = False


def _place(path):
    """(epochs, steps) done, from the name of a state."""
    numbers = re.search(r"-(\d{5})(?:-(\d{7}))?\.", path.name)
    return int(numbers[1]), int(numbers[2] or 0)


def _variables(model):
    return [*model.variables, *model.optimizer.variables]


def _write(path, record, arrays):
    content = io.BytesIO()
    text = np.frombuffer(json.dumps(record).encode(), np.uint8)
    np.savez(content, record=text, **arrays)
    seal = _SEAL + hashlib.sha256(content.getbuffer()).hexdigest().encode()
    temporary = path.with_suffix(".tmp")
    try:
        with open(temporary, "wb") as file:
            file.write(content.getbuffer())
            file.write(seal)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)  # the new name is on disk before an old state is deleted
    finally:
        os.close(folder)


def _read(path):
    """(record, list of the values of each variable) of a state."""
    content = path.read_bytes()
    end = len(content) - len(_SEAL) - 64
    seal = _SEAL + hashlib.sha256(content[:end]).hexdigest().encode()
    if end < 0 or content[end:] != seal:
        raise ValueError("its SHA-256 is another one")
    with np.load(io.BytesIO(content), allow_pickle=False) as file:
        record, arrays = json.loads(file["record"].tobytes()), []
        for key in file.files[1:]:  # "0.0", "0.1", "1.0", …, "EarlyStopping 0/…/0", …
            if "/" in key:
                name, attribute, _ = key.split("/")
                parts = record["callbacks"][name].setdefault(attribute, [])
            elif key.endswith(".0"):
                arrays.append(parts := [])
            parts.append(file[key])
    return record, arrays
