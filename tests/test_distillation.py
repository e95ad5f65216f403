"""Hints and distillation, on nets small enough to reckon by hand."""

import keras
import numpy as np
import pytest
from helpers import close
from test_fitnet import GUIDED

import zoo
from zoo.layers import MaxoutConv
from zoo.training import Distiller, HintTrainer, Resume

layers = keras.layers


def net(width, name, shape=(8, 8, 3), classes=4, batch_norm=False, dropout=False):
    """Two convolutions, each with a pool, and logits."""
    x = inputs = keras.Input(shape, name="image")
    for i in (1, 2):
        x = layers.Conv2D(width, 3, padding="same", name=f"conv_{i}")(x)
        if batch_norm:
            x = layers.BatchNormalization(momentum=0.5, name=f"norm_{i}")(x)
        x = layers.ReLU(name=f"relu_{i}")(x)
        if dropout:
            x = layers.Dropout(0.5, name=f"dropout_{i}")(x)
        x = layers.MaxPooling2D(2, name=f"pool_{i}")(x)
    x = layers.Flatten(name="flatten")(x)
    return keras.Model(inputs, layers.Dense(classes, name="logits")(x), name=name)


def pair(**arguments):
    """A teacher with batch normalisation and dropout, and a thinner student."""
    teacher = net(6, "teacher", batch_norm=True, dropout=True)
    return teacher, net(3, "student", **arguments)


def data(count=16, seed=1):
    """Images of four patches of one colour each; labels in turn."""
    rng = np.random.default_rng(seed)
    images = rng.uniform(0, 4, (count, 2, 2, 3)).repeat(4, axis=1).repeat(4, axis=2)
    return images.astype("float32"), np.arange(count) % 4


def hint_of(teacher, images):
    """The teacher's hint, and the error of the best constant map."""
    found = keras.Model(teacher.input, teacher.get_layer("pool_2").output)
    hint = np.array(found(images, training=False), "float64")
    return hint, ((hint - hint.mean(0)) ** 2).sum((1, 2, 3)).mean() / 2


def states(model):
    return [w.numpy() for w in model.variables]


def same(one, two):
    return all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


def log_softmax(z):
    z = z - z.max(-1, keepdims=True)
    return z - np.log(np.exp(z).sum(-1, keepdims=True))


# Hints


def test_hint_loss_by_hand():
    images, labels = data()
    teacher, student = pair()
    trainer = HintTrainer(teacher, student)
    trainer.compile()
    guided = keras.Model(student.input, student.get_layer("pool_2").output)
    u, _ = hint_of(teacher, images)
    v = np.array(guided(images), "float64")
    assert u.shape == (16, 2, 2, 6) and v.shape == (16, 2, 2, 3)
    kernel, bias = trainer.get_layer("regressor").get_weights()
    assert kernel.shape == (1, 1, 3, 12)
    r = (v @ kernel[0, 0] + bias).reshape(16, 2, 2, 2, 6).max(3)
    expected = ((u - r) ** 2).sum((1, 2, 3)).mean() / 2
    for given in [(images,), (images, labels)]:  # labels are not looked at
        loss = trainer.evaluate(*given, verbose=0)
        assert abs(loss - expected) < 1e-5 * expected
    history = trainer.fit(images, batch_size=16, verbose=0).history
    assert abs(history["loss"][0] - expected) < 1e-5 * expected


@pytest.mark.parametrize(
    "hint, guided, kernel",
    [
        ("pool_2", "pool_2", (1, 1)),
        ("pool_2", "relu_2", (3, 3)),  # 4×4 → 2×2
        ("pool_2", "conv_1", (7, 7)),  # 8×8 → 2×2
        (2, 2, (1, 1)),
        (2, 1, (3, 3)),  # with its pool, 4×4
        ("conv_2", "pool_1", (1, 1)),
    ],
)
def test_regressor_brings_the_map_to_the_size_of_the_hint(hint, guided, kernel):
    teacher, student = net(6, "teacher"), net(3, "student")
    if isinstance(hint, int):  # the pool must follow the convolution itself
        teacher, student = bare(6), bare(3)
    trainer = HintTrainer(teacher, student, hint, guided)
    regressor = trainer.get_layer("regressor")
    assert isinstance(regressor, MaxoutConv)
    assert (regressor.kernel_size, regressor.pieces) == (kernel, 2)
    size = 4 if hint == "conv_2" else 2
    assert trainer.output_shape == (None, size, size, 6)


def bare(width):
    x = inputs = keras.Input((8, 8, 3), name="image")
    for i in (1, 2):
        x = layers.Conv2D(width, 3, padding="same", name=f"conv_{i}")(x)
        x = layers.MaxPooling2D(2, name=f"pool_{i}")(x)
    return keras.Model(inputs, layers.GlobalAveragePooling2D()(x))


@pytest.mark.parametrize("number", GUIDED)
def test_defaults_are_the_papers(number):
    """Guided are the 6th, 6th, 8th, 11th layer, by the teacher's second."""
    teacher, student = zoo.fitnet_teacher(0.1), zoo.fitnet(number)
    trainer = HintTrainer(teacher, student)
    counted = HintTrainer(teacher, student, 2, GUIDED[number])
    assert trainer.output_shape == counted.output_shape == (None, 6, 6, 19)
    paths = [w.path for w in trainer.trainable_weights]
    assert paths == [w.path for w in counted.trainable_weights]
    # kernel and bias of each guided layer and of the regressor
    assert len(paths) == 2 * GUIDED[number] + 2
    assert paths[-4] == f"conv_{GUIDED[number]:02d}/linear/kernel"
    regressor = trainer.get_layer("regressor")
    assert regressor.kernel_size == (3, 3)  # 8×8 → 6×6
    assert 0.045 < np.abs(regressor.linear.kernel).max() <= 0.05


def test_hints_train_the_guided_layers_and_nothing_else():
    images, _ = data()
    teacher, student = pair(batch_norm=True)
    trainer = HintTrainer(teacher, student, "relu_1", "relu_1")
    trainer.compile(keras.optimizers.SGD(0.001))
    before, of_teacher = dict(by_layer(student)), states(teacher)
    trainer.fit(images, epochs=2, verbose=0)
    assert same(states(teacher), of_teacher)
    assert teacher.trainable and teacher.trainable_weights
    for name, old in before.items():
        moved = not same(states(student.get_layer(name)), old)
        assert moved == (name in ("conv_1", "norm_1")), name


def by_layer(model):
    return [(la.name, states(la)) for la in model.layers if la.variables]


def test_the_teacher_is_not_among_the_variables():
    teacher, student = pair()
    for trainer in (HintTrainer(teacher, student), Distiller(teacher, student, 10)):
        mine = {id(w) for w in trainer.variables}
        assert not mine & {id(w) for w in teacher.variables}
        assert mine & {id(w) for w in student.variables}


def test_hints_are_learned():
    """Better than the best constant map, and better than a regressor by itself."""
    images, _ = data(256)
    teacher, student = net(6, "teacher"), net(6, "student")
    frozen = keras.models.clone_model(student)
    frozen.set_weights(student.get_weights())
    frozen.trainable = False
    losses = []
    for guided in (student, frozen):
        trainer = HintTrainer(teacher, guided)
        trainer.compile(keras.optimizers.Adam(0.02))
        history = trainer.fit(images, epochs=20, batch_size=64, verbose=0).history
        losses.append(history["loss"][-1])
    assert losses[0] < 0.6 * hint_of(teacher, images)[1]
    assert losses[0] < 0.5 * losses[1]


def test_fitnet_learns_from_hints():
    """From U(±.005), through six layers, past the best constant map."""
    images, _ = data(64)
    teacher, student = net(6, "teacher"), zoo.fitnet(1, 4, (8, 8, 3))
    trainer = HintTrainer(teacher, student)
    trainer.compile(keras.optimizers.RMSprop(2e-3))
    history = trainer.fit(images, batch_size=16, epochs=50, verbose=0).history
    assert min(history["loss"]) < 0.8 * hint_of(teacher, images)[1]


def test_mixed_precision(policy):
    """The losses are reckoned in float32, from half-precision maps and logits."""
    policy("mixed_float16")
    images, labels = data()
    teacher, student = pair()
    trainer = HintTrainer(teacher, student)
    trainer.compile()
    hint, _ = hint_of(teacher, images)
    error = ((hint - np.array(trainer(images), "float64")) ** 2).sum((1, 2, 3)) / 2
    loss = trainer.fit(images, verbose=0).history["loss"][0]
    assert abs(loss - error.mean()) < 0.01 * error.mean()
    trainer = Distiller(teacher, student, 2)
    trainer.compile()
    assert np.isfinite(trainer.fit(images, labels, verbose=0).history["loss"][0])


# Distillation


@pytest.mark.parametrize("temperature", [1.0, 3.0])
def test_distillation_loss_by_hand(temperature):
    images, labels = data()
    teacher, student = pair()
    trainer = Distiller(teacher, student, 10, temperature, 5.0, 2.0)
    trainer.compile()
    z = np.array(student(images), "float64")
    answer = np.exp(log_softmax(np.array(teacher(images)) / temperature))
    hard = -log_softmax(z)[np.arange(16), labels]
    soft = -(answer * log_softmax(z / temperature)).sum(-1)
    found = trainer.evaluate(images, labels, verbose=0, return_dict=True)
    assert abs(found["loss"] - (hard + 5 * soft).mean()) < 1e-5
    assert abs(found["accuracy"] - (z.argmax(-1) == labels).mean()) < 1e-6
    weights = np.linspace(0, 1, 16)
    loss = trainer.evaluate(images, labels, sample_weight=weights, verbose=0)[0]
    assert abs(loss - (weights * (hard + 5 * soft)).mean()) < 1e-5
    trainer.step.assign(5)  # half of the way
    loss = trainer.evaluate(images, labels, verbose=0)[0]
    assert abs(loss - (hard + 3.5 * soft).mean()) < 1e-5


def test_distillation_gradient_by_hand():
    """Of the logits: p − y + λ/τ·(p_τ − q), for each image."""
    images, labels = data(4)
    teacher, student = pair()
    student.get_layer("logits").kernel.assign(np.zeros((12, 4)))
    trainer = Distiller(teacher, student, 10)
    trainer.compile(keras.optimizers.SGD(1.0))
    q = np.exp(log_softmax(np.array(teacher(images), "float64") / 3))
    trainer.fit(images, labels, batch_size=4, verbose=0)
    gradient = 1 / 4 - np.eye(4)[labels] + 4 / 3 * (1 / 4 - q)
    assert close(student.get_layer("logits").bias, -gradient.mean(0), 1e-5)


def test_distillation_leaves_the_teacher_alone():
    images, labels = data()
    teacher, student = pair(batch_norm=True)
    before, of_student = states(teacher), states(student)
    trainer = Distiller(teacher, student, 4)
    trainer.compile()
    trainer.fit(images, labels, batch_size=8, epochs=2, verbose=0)
    assert same(states(teacher), before)
    moved = [
        not same([a], [b]) for a, b in zip(states(student), of_student, strict=True)
    ]
    assert all(moved)


def test_weight_falls_linearly():
    images, labels = data(32)
    trainer = Distiller(*pair(), steps=8)
    trainer.compile()
    assert float(trainer.weight()) == 4
    weights = []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: weights.append(float(trainer.weight()))
    )
    trainer.fit(images, labels, batch_size=8, epochs=3, callbacks=[note], verbose=0)
    trainer.evaluate(images, labels, verbose=0)  # is not a step of training
    assert close(weights, [*np.linspace(4, 1, 9)[1:], 1, 1, 1, 1], 1e-6)
    assert float(trainer.weight()) == 1


def test_weight_goes_on_after_resume(tmp_path):
    images, labels = data(32)

    def trained(resume, epochs):
        keras.utils.set_random_seed(2)
        trainer = Distiller(*pair(), steps=12)
        trainer.compile(keras.optimizers.RMSprop(1e-3))
        done = resume.restore(trainer)
        trainer.fit(
            images,
            labels,
            batch_size=8,
            shuffle=False,
            epochs=epochs,
            initial_epoch=done,
            callbacks=[resume],
            verbose=0,
        )
        return trainer

    for folder in ("whole", "parts"):
        (tmp_path / folder).mkdir()
    whole = trained(Resume(tmp_path / "whole"), 3)
    first = trained(Resume(tmp_path / "parts"), 1)
    assert float(first.weight()) == 3
    second = trained(Resume(tmp_path / "parts"), 3)
    assert float(second.weight()) == float(whole.weight()) == 1
    assert same(states(second), states(whole))


def test_the_student_is_a_plain_model(tmp_path):
    images, labels = data()
    teacher, student = pair()
    paths = [w.path for w in student.weights]
    trainer = Distiller(teacher, student, 2, name="distiller")
    trainer.compile()
    trainer.fit(images, labels, verbose=0)
    assert [w.path for w in student.weights] == paths
    assert np.array_equal(trainer(images), student(images))
    student.save(tmp_path / "student.keras")
    loaded = keras.models.load_model(tmp_path / "student.keras")
    assert type(loaded) is type(student)
    assert np.array_equal(loaded(images), student(images))


def test_the_student_comes_to_agree_with_the_teacher():
    """Even where the labels are noise, if λ is large."""
    images, _ = data(256)
    teacher, student = net(6, "teacher"), net(8, "student")
    head, z = teacher.layers[-1], np.array(teacher(images))
    scale = 3 / z.std(0)  # sure of its answers, and fond of no class
    head.kernel.assign(scale * head.kernel)
    head.bias.assign(-scale * z.mean(0))
    answers = np.argmax(teacher(images), -1)
    assert np.bincount(answers).max() < 90
    noise = np.random.default_rng(1).integers(0, 4, 256)
    trainer = Distiller(teacher, student, 100, weight=50, final_weight=50)
    trainer.compile(keras.optimizers.Adam(0.005))
    trainer.fit(images, noise, batch_size=64, epochs=30, verbose=0)
    assert np.mean(np.argmax(student(images), -1) == answers) > 0.7


def test_other_losses_and_metrics():
    images, labels = data()
    trainer = Distiller(*pair(), steps=4)
    trainer.compile()
    loss = trainer.evaluate(images, labels, verbose=0)[0]
    trainer.compile(
        loss=keras.losses.CategoricalCrossentropy(from_logits=True),
        metrics=[keras.metrics.TopKCategoricalAccuracy(2, name="top_2")],
    )
    one_hot = np.eye(4, dtype="float32")[labels]
    found = trainer.evaluate(images, one_hot, verbose=0, return_dict=True)
    assert set(found) == {"loss", "top_2"}
    assert abs(found["loss"] - loss) < 1e-5


def test_decay_counts_once():
    images, labels = data()
    teacher, student = pair()
    for trainer, given in (
        (HintTrainer(teacher, student), (images,)),
        (Distiller(teacher, student, 4), (images, labels)),
    ):
        trainer.compile()
        before = trainer.evaluate(*given, verbose=0, return_dict=True)["loss"]
        zoo.training.set_decay(trainer, 0.1)
        trainer.compile()
        kernels = [w for w in trainer.trainable_weights if w.path.endswith("kernel")]
        penalty = 0.05 * sum(np.sum(w.numpy() ** 2) for w in kernels)
        after = trainer.evaluate(*given, verbose=0, return_dict=True)["loss"]
        assert abs(after - before - penalty) < 1e-4 * after
        zoo.training.set_decay(trainer, 0.0)


# Wrong input


def softmax_net():
    inputs = keras.Input((8, 8, 3))
    x = layers.Dense(4, activation="softmax", name="answer")(layers.Flatten()(inputs))
    return keras.Model(inputs, x)


@pytest.mark.parametrize(
    "teacher, student, arguments, message",
    [
        (net, net, ("pool_3",), "`hint_layer` must be one of pool_[12], .*='pool_3'"),
        (net, net, ("pool_2", "x"), "`guided_layer` must be one of .*='x'"),
        (net, net, (3,), "`hint_layer` .* from 1 to 2, .*'teacher'.*hint_layer=3"),
        (net, net, (2, 0), "`guided_layer` .* from 1 to 2, .*guided_layer=0"),
        (net, net, (2, 1.0), "`guided_layer` must be .*guided_layer=1.0"),
        (net, net, ("logits",), r"`hint_layer` must be .* a map .*\(None, 4\)"),
        (
            net,
            net,
            ("conv_1", "pool_2"),
            "`guided_layer` must have a map at least as high .*'pool_2' with 2×2, "
            "hint_layer='conv_1' with 8×8",
        ),
    ],
)
def test_wrong_layers(teacher, student, arguments, message):
    with pytest.raises(ValueError, match=message):
        HintTrainer(teacher(6, "teacher"), student(3, "student"), *arguments)


def test_maps_of_unknown_size():
    x = inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(3, 3, name="conv_1")(x)
    open_size = keras.Model(inputs, layers.GlobalAveragePooling2D()(x))
    with pytest.raises(ValueError, match="`hint_layer` must be .*of known size.*None"):
        HintTrainer(open_size, open_size, "conv_1", "conv_1")


def test_the_loss_of_hints_is_fixed():
    with pytest.raises(ValueError, match="`loss` is the squared error.*loss='mse'"):
        HintTrainer(*pair()).compile("sgd", "mse")


@pytest.mark.parametrize("make", [HintTrainer, lambda t, s: Distiller(t, s, 10)])
def test_wrong_models(make):
    student = net(3, "student")
    with pytest.raises(ValueError, match=r"the same images.*\(8, 8, 1\) and \(8, 8, 3"):
        make(net(6, "teacher", shape=(8, 8, 1)), student)
    with pytest.raises(ValueError, match="`teacher` must be a functional model.*=None"):
        make(None, student)
    with pytest.raises(ValueError, match="`student` must be a functional model"):
        make(student, keras.Sequential([layers.Dense(4)]))


def test_wrong_answers():
    student = net(3, "student")
    with pytest.raises(ValueError, match=r"same classes.*\(None, 5\) and \(None, 4\)"):
        Distiller(net(6, "teacher", classes=5), student, 10)
    for name, two in (
        ("teacher", (softmax_net(), student)),
        ("student", (student, softmax_net())),
    ):
        with pytest.raises(ValueError, match=f"`{name}` must give logits.*'answer'"):
            Distiller(*two, 10)


@pytest.mark.parametrize(
    "arguments, message",
    [
        ({"steps": 0}, "`steps` must be an integer of at least 1.*steps=0"),
        ({"temperature": 0}, "`temperature` must be above 0.*temperature=0"),
        ({"temperature": -1.0}, "`temperature` must be above 0.*temperature=-1.0"),
        ({"temperature": float("nan")}, "`temperature` must be .*temperature=nan"),
        ({"weight": -1}, "`weight` must be a number, 0 or more.*weight=-1"),
        ({"weight": "4"}, "`weight` must be a number.*weight='4'"),
        ({"final_weight": float("inf")}, "`final_weight` must be .*final_weight=inf"),
        ({"final_weight": None}, "`final_weight` must be .*final_weight=None"),
    ],
)
def test_wrong_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        Distiller(net(6, "teacher"), net(3, "student"), **{"steps": 10, **arguments})
