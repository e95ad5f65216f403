import json

import keras
import numpy as np
import pytest
from keras import ops

import zoo
from zoo import datasets
from zoo.training import Resume, set_decay


def mlp(scan="auto"):
    return zoo.highway_mlp(
        (8, 8, 1), depth=4, units=8, bias_initializer="random_normal", scan=scan
    )


def cnn():
    return zoo.highway_cnn(input_shape=(8, 8, 1), stages=((4, 2), (6, 1)))


def resnet():
    return zoo.preact_resnet(8, input_shape=(8, 8, 3))


def train_without_loss(model, steps, rate):
    """Steps of a loss that is identically 0: all that is left is the decay."""
    model.compile(
        keras.optimizers.SGD(rate), lambda y, logits: ops.sum(0 * logits, axis=-1)
    )
    shape = (4, *model.input.shape[1:])
    for _ in range(steps):
        images = np.random.default_rng(0).integers(0, 255, shape)
        model.train_on_batch(images, np.zeros(4))


@pytest.mark.parametrize(
    "make",
    [mlp, lambda: mlp(scan=False), cnn, resnet],
    ids=["loop", "mlp", "cnn", "bn"],
)
def test_decay_reaches_kernels_only(make):
    model = make()
    kernels = [w for w in model.trainable_weights if w.path.endswith("kernel")]
    others = [w for w in model.trainable_weights if not w.path.endswith("kernel")]
    before = [w.numpy() for w in kernels], [w.numpy() for w in others]
    assert set_decay(model, 0.1) == len(kernels)
    train_without_loss(model, steps=5, rate=0.5)
    for kernel, old in zip(kernels, before[0], strict=True):
        assert np.allclose(kernel, old * (1 - 0.5 * 0.1) ** 5, rtol=1e-6)
    for weight, old in zip(others, before[1], strict=True):
        assert np.array_equal(weight, old), weight.path


@pytest.mark.parametrize(
    "make", [mlp, lambda: mlp(scan=False), resnet], ids=["loop", "mlp", "bn"]
)
def test_decay_on_everything(make):
    """As the authors' Torch code: biases, γ and β shrink like kernels."""
    model = make()
    for weight in model.trainable_weights:
        if weight.name in ("bias", "beta"):
            weight.assign(np.full(weight.shape, 0.5))
    before = [w.numpy() for w in model.trainable_weights]
    assert set_decay(model, 0.1, "everything") == len(before)
    train_without_loss(model, steps=5, rate=0.5)
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert np.abs(old).min() > 0 or weight.path.endswith("kernel")
        assert np.allclose(weight, old * (1 - 0.5 * 0.1) ** 5, rtol=2e-6), weight.path
    assert all(w.regularizer is None for w in model.non_trainable_weights)


def test_decay_on_everything_is_taken_back():
    model = resnet()
    set_decay(model, 0.1, "everything")
    set_decay(model, 0.0, "everything")
    assert model.losses == []
    assert all(w.regularizer is None for w in model.weights)
    set_decay(model, 0.1, "everything")
    count = set_decay(model, 0.1)  # kernels, and of nothing else
    assert sum(w.regularizer is not None for w in model.weights) == count


def test_decay_on_something_else():
    with pytest.raises(ValueError, match="`on` must be one of .*on='biases'"):
        set_decay(mlp(), 0.1, "biases")


def test_decay_is_in_the_loss():
    model = mlp()
    set_decay(model, 0.1)
    kernels = [w.numpy() for w in model.weights if w.path.endswith("kernel")]
    penalty = 0.1 / 2 * sum(np.sum(np.square(kernel)) for kernel in kernels)
    assert np.isclose(sum(map(float, model.losses)), penalty, rtol=1e-6)


def test_no_decay():
    model = mlp()
    set_decay(model, 0.1)
    set_decay(model, 0)
    assert model.losses == []
    before = model.get_weights()
    train_without_loss(model, steps=1, rate=0.5)
    assert all(map(np.array_equal, model.get_weights(), before))


@pytest.mark.parametrize("rate", [-1e-4, float("nan"), float("inf"), "0.1", None, True])
def test_decay_that_is_no_rate(rate):
    with pytest.raises(ValueError, match=f"`rate` must be a number.*rate={rate!r}"):
        set_decay(mlp(), rate)


class StopAt(keras.callbacks.Callback):
    """Ends everything after the third step of an epoch, or of what is left of it."""

    def __init__(self, epoch, action=None):
        super().__init__()
        self.epoch, self.current, self._action = epoch, None, action

    def on_epoch_begin(self, epoch, logs=None):
        self.current = epoch

    def on_train_batch_end(self, batch, logs=None):
        if self.current == self.epoch and batch == 2:
            if self._action is not None:
                return self._action()
            raise KeyboardInterrupt


STEPS = 5  # an epoch of the data


def run(directory, epochs=4, stop_at=None, every=None, also=(), softly=False):
    """A run with everything that has a state: dropout, Adam, the order of the data."""
    keras.utils.clear_session()
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 1)),
            keras.layers.Rescaling(1 / 16),
            keras.layers.Flatten(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(8, "relu"),
            zoo.layers.HighwayDense(),
            keras.layers.BatchNormalization(),
            keras.layers.Dropout(0.3),
            keras.layers.Dense(10),
        ]
    )
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile("adam", loss, metrics=["accuracy"])
    resume = Resume(directory, every=every)

    def stream(epoch, step):
        return datasets.load(
            "digits", "train", 256, seed=3, epoch=epoch, step=step, epochs=None
        )

    callbacks = [*also]
    if stop_at is not None:
        callbacks.append(StopAt(stop_at, resume.stop if softly else None))
    try:
        resume.fit(
            model,
            stream,
            epochs,
            STEPS,
            callbacks,
            validation_data=datasets.load("digits", "validation", 144),
            verbose=0,
        )
    except KeyboardInterrupt:
        assert stop_at is not None
    return model, resume


def result(run):
    """Weights, state of optimizer and dropout, and history without its times."""
    model, resume = run
    variables = [*model.variables, *model.optimizer.variables]
    rows = [{k: v for k, v in r.items() if k != "seconds"} for r in resume.history]
    return [v.numpy().tolist() for v in variables], rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    return result(run(tmp_path_factory.mktemp("undisturbed")))


def test_resumed_run_ends_like_an_undisturbed_one(undisturbed, tmp_path):
    _, resume = run(tmp_path, stop_at=2)
    assert resume.epoch == 2
    _, resume = run(tmp_path, stop_at=3)
    assert resume.epoch == 3
    assert result(run(tmp_path)) == undisturbed


@pytest.mark.parametrize("every", [1, 3])
def test_run_that_ends_within_an_epoch_goes_on_there(every, undisturbed, tmp_path):
    """Bit for bit, the metrics of the epoch included."""
    _, resume = run(tmp_path, stop_at=1, every=every)
    assert (resume.epoch, resume.step) == (1, 2)  # the third was not counted
    kept = {
        1: ["00001-0000001", "00001-0000002"],
        3: ["00000-0000003", "00001"],
    }
    assert files(tmp_path) == [f"resume-{name}.npz" for name in kept[every]]
    reached = 0 if every == 3 else 2
    _, resume = run(tmp_path, stop_at=1, every=every)  # three steps later, or two
    assert (resume.epoch, resume.step) == (1, min(reached + 2, STEPS))
    _, resume = run(tmp_path, stop_at=3, every=every)
    assert result(run(tmp_path, every=every)) == undisturbed


def test_stop_saves_the_step(undisturbed, tmp_path):
    _, resume = run(tmp_path, stop_at=2, softly=True)
    assert (resume.epoch, resume.step) == (2, 3)
    assert files(tmp_path) == ["resume-00002-0000003.npz", "resume-00002.npz"]
    assert not resume.stop()  # nothing to be stopped
    assert result(run(tmp_path)) == undisturbed


def test_stop_at_the_last_step_of_an_epoch(undisturbed, tmp_path):
    run(tmp_path, stop_at=1, softly=True)
    run(tmp_path, stop_at=1, every=4)  # ended by the epoch before it can stop
    resume = Resume(tmp_path)
    model, _ = run(tmp_path / "other", epochs=0)
    assert resume.restore(model) == 4
    assert result(run(tmp_path)) == undisturbed


def test_state_within_an_epoch_needs_fit(tmp_path):
    model, _ = run(tmp_path, stop_at=2, softly=True)
    resume = Resume(tmp_path)
    resume.restore(model)
    images, labels = (part[:32] for part in datasets.arrays("digits", "train"))
    with pytest.raises(ValueError, match="from the middle of an epoch.*`Resume.fit`"):
        model.fit(images, labels, callbacks=[resume], verbose=0)


class Worse(keras.callbacks.Callback):
    """Says that the second epoch was the best, and all others equally bad."""

    def on_epoch_end(self, epoch, logs=None):
        logs["quality"] = float(epoch == 1)


def watched(directory, **arguments):
    """A run of callbacks that have a state; (its result, theirs)."""
    best = directory / "best.weights.h5"
    stopping = keras.callbacks.EarlyStopping(
        "quality", mode="max", patience=4, restore_best_weights=True
    )
    also = [
        Worse(),
        keras.callbacks.ModelCheckpoint(
            best, "quality", mode="max", save_best_only=True, save_weights_only=True
        ),
        keras.callbacks.ReduceLROnPlateau(
            "quality", mode="max", patience=2, factor=0.5
        ),
        stopping,
    ]
    ended = run(directory, epochs=9, every=2, also=also, **arguments)
    return result(ended), best.read_bytes(), stopping.stopped_epoch


def test_state_of_other_callbacks(tmp_path):
    """The best checkpoint stays the best, patience goes on, and a training that was
    stopped early stays stopped and ends with its best weights."""
    for name in ("whole", "parts"):
        (tmp_path / name).mkdir()
    whole = watched(tmp_path / "whole")
    assert whole[2] == 5
    assert len(whole[0][1]) == 6
    for epoch in (2, 4):
        _, best, _ = watched(tmp_path / "parts", stop_at=epoch)
        assert best == whole[1]
    assert watched(tmp_path / "parts") == whole
    assert watched(tmp_path / "parts") == whole  # again, with nothing left to do


def test_full_disk_leaves_the_state_before(undisturbed, tmp_path, monkeypatch):
    run(tmp_path, epochs=2)

    def fail(number):
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch, pytest.raises(OSError, match="No space"):
        patch.setattr("os.fsync", fail)
        run(tmp_path)
    assert files(tmp_path) == ["resume-00001.npz", "resume-00002.npz"]
    assert result(run(tmp_path)) == undisturbed


def test_a_new_run_begins_at_0(tmp_path):
    model, _ = run(tmp_path / "a", epochs=0)
    assert Resume(tmp_path / "b").restore(model) == 0
    assert not list(tmp_path.iterdir())


def test_history(undisturbed):
    _, rows = undisturbed
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert list(rows[0]) == ["epoch", "accuracy", "loss", "val_accuracy", "val_loss"]


def files(directory):
    return sorted(file.name for file in directory.iterdir())


def test_two_generations_are_kept_and_other_files_left_alone(tmp_path):
    for name in ("notes.txt", "resume-best.npz", "other.npz"):
        (tmp_path / name).write_text("mine")
    own = ["resume-00003.npz", "resume-00004.npz"]
    foreign = ["notes.txt", "other.npz", "resume-best.npz"]
    model, resume = run(tmp_path)
    assert files(tmp_path) == sorted(own + foreign)
    assert resume.restore(model) == 4
    (tmp_path / "resume-00005.tmp").write_bytes(b"left by a process that was killed")
    resume.discard()
    assert files(tmp_path) == foreign


def truncate(file):
    file.write_bytes(file.read_bytes()[:-100])


def empty(file):
    file.write_bytes(b"")


def flip(file):
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 0xFF
    file.write_bytes(content)


@pytest.mark.parametrize("damage", [truncate, empty, flip])
def test_damaged_file_costs_an_epoch(damage, undisturbed, tmp_path, capsys):
    run(tmp_path, epochs=3)
    damage(tmp_path / "resume-00003.npz")
    again = run(tmp_path)
    assert "Unreadable, so steps are repeated: resume-00003" in capsys.readouterr().out
    assert result(again) == undisturbed


def test_no_readable_file_is_an_error(tmp_path):
    run(tmp_path, epochs=3)
    for file in tmp_path.iterdir():
        truncate(file)
    before = {file: file.read_bytes() for file in tmp_path.iterdir()}
    message = "No saved state in .* can be read: resume-00003.npz: .*resume-00002.npz: "
    with pytest.raises(ValueError, match=message):
        run(tmp_path)
    assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before


def test_no_flipped_byte_loads_something_else(tmp_path):
    keras.utils.clear_session()
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2)])
    model.compile("sgd", "mse")
    model.fit(np.ones((1, 2)), np.ones((1, 2)), verbose=0, callbacks=[Resume(tmp_path)])
    file = tmp_path / "resume-00001.npz"
    content = file.read_bytes()
    right = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
    refused = 0
    for place in range(0, len(content), 3):
        changed = bytearray(content)
        changed[place] ^= 0xFF
        file.write_bytes(changed)
        resume = Resume(tmp_path)
        try:
            resume.restore(model)
        except ValueError:
            refused += 1
            continue
        now = [v.numpy() for v in (*model.variables, *model.optimizer.variables)]
        assert all(map(np.array_equal, now, right)), place
        assert resume.epoch == len(resume.history) == 1
    assert refused > len(content) / 3 / 2


def test_state_of_another_model(tmp_path):
    run(tmp_path, epochs=1)
    model = mlp()
    model.compile("adam", "mse")
    with pytest.raises(ValueError, match="resume-00001.npz is another model's"):
        Resume(tmp_path).restore(model)


def test_nothing_is_half_written(tmp_path, monkeypatch):
    model, resume = run(tmp_path, epochs=1)
    before = (tmp_path / "resume-00001.npz").read_bytes()

    def fail(file, **arrays):
        file.write(b"half a")
        raise OSError("disk full")

    monkeypatch.setattr(np, "savez", fail)
    with pytest.raises(OSError, match="disk full"):
        run(tmp_path, epochs=2)
    assert (tmp_path / "resume-00001.npz").read_bytes() == before
    assert Resume(tmp_path).restore(model) == 1


def test_state_is_readable_without_this_package(tmp_path):
    run(tmp_path, epochs=1)
    with np.load(tmp_path / "resume-00001.npz", allow_pickle=False) as file:
        record = json.loads(file["record"].tobytes())
    assert record["epoch"] == 1
    assert record["history"][0]["epoch"] == 1


def test_two_trainings_share_a_directory(tmp_path):
    for name in ("first", "second"):
        model = mlp()
        model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(True))
        resume = Resume(tmp_path, name)
        assert resume.restore(model) == 0
        images, labels = (part[:32] for part in datasets.arrays("digits", "train"))
        epochs = 1 if name == "first" else 3
        model.fit(images, labels, epochs=epochs, callbacks=[resume], verbose=0)
    assert sorted(file.name for file in tmp_path.iterdir()) == [
        "first-00001.npz",
        "second-00002.npz",
        "second-00003.npz",
    ]
    assert Resume(tmp_path, "first").restore(model) == 1
    resume.discard()
    assert [file.name for file in tmp_path.iterdir()] == ["first-00001.npz"]


# Statistics of the training images


def test_adapt_sets_the_layers_in_turn():
    """Each sees what those before it make of the images once they are set."""
    inputs = keras.Input((4, 3, 2))
    x = zoo.layers.MeanImage(name="first")(inputs)
    x = keras.layers.Dropout(0.5)(2 * x)  # not at inference
    x = zoo.layers.ZCAWhitening(name="whiten")(x)
    model = keras.Model(inputs, zoo.layers.MeanImage(name="last")(x))
    images = np.random.default_rng(1).integers(0, 256, (90, 4, 3, 2), "uint8")
    assert zoo.training.adapt(model, images, 32) == ["first", "whiten", "last"]
    mean = images.mean(0)
    assert np.allclose(model.get_layer("first").mean, mean, atol=1e-4)
    rows = 2 * (images - mean).reshape(90, -1)
    variances, vectors = np.linalg.eigh(rows.T @ rows / 90)
    matrix = vectors @ np.diag((variances + 0.1) ** -0.5) @ vectors.T
    assert np.allclose(model.get_layer("whiten").matrix, matrix, atol=1e-5)
    assert np.allclose(model.get_layer("last").mean, 0, atol=1e-4)
    assert np.allclose(model(images), (rows @ matrix).reshape(images.shape), atol=1e-3)


def test_adapt_without_layers_or_images():
    assert zoo.training.adapt(mlp(), np.ones((2, 8, 8, 1))) == []
    with pytest.raises(ValueError, match="`images` must hold an image at least"):
        zoo.training.adapt(mlp(), np.ones((0, 8, 8, 1)))
