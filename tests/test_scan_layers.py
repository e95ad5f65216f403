"""A loop over stacked weights against the same layers one after the other."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from helpers import check_layer, close

from zoo.layers import (
    Highway,
    HighwayConv,
    HighwayDense,
    PreActResidual,
    ScanLayers,
)

FORMS = ({"jit": False}, {"jit": True}, {"jit": False, "remat": True})

TEMPLATES = {
    "dense": (lambda: HighwayDense(gate_bias=-1, name="hw"), (8,)),
    "conv": (lambda: HighwayConv(carry="separate", name="hw"), (6, 6, 3)),
    "residual": (lambda: PreActResidual(4, name="hw"), (6, 6, 4)),
    "wrapped": (
        lambda: Highway(
            keras.layers.Conv1D(4, 3, padding="same", activation="tanh"), name="hw"
        ),
        (7, 4),
    ),
    "plain": (lambda: keras.layers.Dense(8, "tanh", name="hw"), (8,)),
    "penalised": (
        lambda: HighwayDense(
            kernel_regularizer="l2",
            gate_kernel_regularizer=keras.regularizers.OrthogonalRegularizer(),
            gate_kernel_constraint="unit_norm",
            activity_regularizer="l1",
            name="hw",
        ),
        (8,),
    ),
}


def pair(make, shape, length=4, **options):
    """(loop, its model, the model of single layers with the same weights)."""
    loop = ScanLayers(make(), length, **options)
    x = inputs = keras.Input(shape)
    looped = keras.Model(inputs, head()(loop(x)))
    singles = []
    for i, name in enumerate(loop.copy_names):
        single = type(loop.template).from_config({**make().get_config(), "name": name})
        x = single(x)
        for variable, value in zip(single.variables, loop.copy_weights(i), strict=True):
            variable.assign(value)
        singles.append(single)
    unrolled = keras.Model(inputs, head()(x))
    return loop, looped, singles, unrolled


def head():
    kernel = keras.initializers.HeNormal(seed=1)
    return keras.Sequential(
        [keras.layers.Flatten(), keras.layers.Dense(3, kernel_initializer=kernel)]
    )


def train(model, x, y, steps):
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    data = tf.data.Dataset.from_tensors((x, y)).repeat()
    fit = model.fit(data, steps_per_epoch=1, epochs=steps, verbose=0, shuffle=False)
    return fit.history["loss"]


@pytest.mark.parametrize("form", FORMS, ids=str)
@pytest.mark.parametrize("name", TEMPLATES)
def test_loop_equals_single_layers_for_20_training_steps(name, form):
    make, shape = TEMPLATES[name]
    loop, looped, singles, unrolled = pair(make, shape, **form)
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, *shape)).astype("float32")
    y = rng.integers(0, 3, 8)
    assert close(looped(x), unrolled(x), 1e-6)
    assert close(train(looped, x, y, 20), train(unrolled, x, y, 20), 1e-5)
    for i, single in enumerate(singles):  # BN statistics too
        for value, variable in zip(loop.copy_weights(i), single.variables, strict=True):
            assert close(value, variable, 1e-5), variable.path


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients_equal_those_of_single_layers(form):
    make, shape = TEMPLATES["dense"]
    loop, looped, singles, unrolled = pair(make, shape, **form)
    x = np.random.default_rng(0).normal(size=(8, *shape)).astype("float32")

    @tf.function
    def gradients(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(looped(x, training=True) ** 2)
        return tape.gradient(loss, [s.value for s in loop.stacks])

    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(unrolled(x, training=True) ** 2)
    single = tape.gradient(loss, [[w.value for w in s.weights] for s in singles])
    for stack, parts in zip(gradients(x), zip(*single, strict=True), strict=True):
        parts = np.stack(parts)
        assert np.abs(stack - parts).max() <= 1e-6 * np.abs(parts).max()


def test_remat_changes_no_loss_and_no_statistic():
    """Case 13: Keras' own remat updates moving statistics twice a step."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(8, 6, 6, 4)).astype("float32")
    y = rng.integers(0, 3, 8)
    losses, statistics = [], []
    for remat in (False, True):
        keras.utils.set_random_seed(0)
        make, shape = TEMPLATES["residual"]
        loop, looped, _, _ = pair(make, shape, remat=remat, jit=False)
        losses.append(train(looped, x, y, 3))
        statistics.append([s.numpy() for s in loop.non_trainable_weights])
    assert close(*losses, 1e-6)
    for kept, recomputed in zip(*statistics, strict=True):
        assert close(kept, recomputed, 1e-6)
        assert np.abs(kept).max() > 0


@pytest.mark.parametrize("seed", [None, 7])
def test_all_copies_start_differently(seed):
    kernels = keras.initializers.HeNormal(seed=seed)
    for template in (
        HighwayDense(kernel_initializer=kernels, gate_kernel_initializer=kernels),
        HighwayDense(kernel_initializer=keras.initializers.Orthogonal(seed=seed)),
    ):
        loop = ScanLayers(template, 12)
        loop.build((None, 16))
        draws = [k for s in loop.stacks if len(s.shape) == 3 for k in s.numpy()]
        assert len({k.tobytes() for k in draws}) == 24


@pytest.mark.parametrize(
    "initializer",
    [
        "he_normal",
        "glorot_uniform",
        keras.initializers.VarianceScaling(2, "fan_out", "untruncated_normal"),
        keras.initializers.RandomNormal(stddev=0.3),
        "orthogonal",
    ],
    ids=lambda x: x if isinstance(x, str) else type(x).__name__,
)
def test_each_copy_has_the_variance_of_a_single_layer(initializer):
    template = HighwayConv(kernel_initializer=initializer)
    loop = ScanLayers(template, 20)
    loop.build((None, 5, 5, 32))
    single = HighwayConv(kernel_initializer=initializer)
    single.build((None, 5, 5, 32))
    want = np.std(single.transform.kernel)
    for kernel in loop.stacks[0].numpy():  # 9,216 values: ± 3 %
        assert abs(np.std(kernel) / want - 1) < 0.05


def test_dropout_differs_in_each_copy_and_step():
    loop = ScanLayers(keras.layers.Dropout(0.5), 2)
    one = ScanLayers(keras.layers.Dropout(0.5), 1)
    x = np.ones((1, 400), "float32")
    step = tf.function(lambda x: loop(x, training=True))
    masks = [np.array(step(x)) for _ in range(3)]
    assert len({mask.tobytes() for mask in masks}) == 3
    kept = np.mean([mask > 0 for mask in masks])
    assert 0.18 < kept < 0.32  # equal masks in both copies would keep a half
    assert np.mean(np.array(one(x, training=True)) > 0) > 0.4
    assert np.array_equal(loop(x), x)


def test_one_loop_is_a_good_keras_layer(tmp_path):
    def make(dtype=None):
        return ScanLayers(HighwayDense(name="hw", dtype=dtype), 3, dtype=dtype)

    loop = make()
    loop.build((2, 8))
    assert [tuple(w.shape) for w in loop.weights] == [
        (3, 8, 8),
        (3, 8),
        (3, 8, 8),
        (3, 8),
    ]
    assert [w.path.partition("/")[2] for w in loop.weights] == [
        "transform/kernel",
        "transform/bias",
        "gate/kernel",
        "gate/bias",
    ]
    assert loop.copy_names == ["hw_01", "hw_02", "hw_03"]
    check_layer(make, (2, 8), 4, tmp_path)


def test_the_template_keeps_out_of_the_model():
    loop = ScanLayers(HighwayDense(), 5)
    model = keras.Sequential([keras.Input((8,)), loop])
    assert model.count_params() == 5 * 2 * (8 * 8 + 8)
    assert len(model.trainable_variables) == 4


def test_frozen_loops_keep_weights_and_statistics():
    loop = ScanLayers(PreActResidual(4), 2)
    head = keras.layers.Conv2D(4, 1)
    model = keras.Sequential([keras.Input((4, 4, 4)), loop, head])
    loop.trainable = False
    before = [s.numpy() for s in loop.stacks]
    x = np.random.default_rng(0).normal(size=(4, 4, 4, 4))
    model.compile("sgd", "mse")
    model.train_on_batch(x, x)
    for old, stack in zip(before, loop.stacks, strict=True):
        assert np.array_equal(old, stack.numpy()), stack.path


def test_masks_reach_every_copy_and_the_next_layer():
    tokens = keras.Input((None,), dtype="int32")
    x = keras.layers.Embedding(20, 6, mask_zero=True)(tokens)
    recurrent = keras.layers.GRU(6, return_sequences=True)
    x = ScanLayers(Highway(recurrent, keras.layers.Dense(6, "sigmoid")), 3)(x)
    model = keras.Model(tokens, keras.layers.LSTM(4)(x))
    padded = model(np.array([[4, 5, 0, 0, 0]]))
    assert close(padded, model(np.array([[4, 5]])), 1e-6)


@pytest.mark.parametrize("policy_name", ["mixed_float16", "mixed_bfloat16"])
def test_100_nearly_closed_copies_train_in_half_precision(policy, policy_name):
    """Case 28: the state stays float32, so that small updates are not lost."""
    policy(policy_name)
    inputs = keras.Input((16,))
    loop = ScanLayers(HighwayDense(gate_bias=-6), 100)
    states = loop(inputs)
    assert states.dtype == "float32"
    logits = keras.layers.Dense(3, dtype="float32")(states)
    model = keras.Model(inputs, logits)
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(32, 16)), rng.integers(0, 3, 32)
    losses = train(model, x.astype("float32"), y, 5)
    assert np.isfinite(losses).all() and losses[-1] < losses[0]
    closed = ScanLayers(HighwayDense(gate_bias=-200), 100)
    assert np.array_equal(closed(x.astype("float32")), x.astype("float32"))


def test_a_sequential_and_a_subclassed_model_train():
    class Net(keras.Model):
        def __init__(self):
            super().__init__()
            self.loop = ScanLayers(HighwayDense(), 3)
            self.out = keras.layers.Dense(1)

        def call(self, x):
            return self.out(self.loop(x))

    x = np.ones((8, 4), "float32")
    for model in (Net(), keras.Sequential([ScanLayers(HighwayDense(), 3)])):
        model.compile("sgd", "mse")
        losses = model.fit(x, x[:, :1] * 3, epochs=3, verbose=0).history["loss"]
        assert losses[-1] < losses[0]


@pytest.mark.parametrize("jit", [False, True])
def test_the_whole_step_compiles_too(jit):
    model = keras.Sequential(
        [keras.Input((8,)), ScanLayers(HighwayDense(), 3, jit=jit)]
    )
    model.compile("sgd", "mse", jit_compile=True)
    x = np.ones((4, 8), "float32")
    loss = model.fit(x, 2 * x, epochs=3, verbose=0).history["loss"]
    assert loss[-1] < loss[0]


def test_saved_model_keeps_the_loop(tmp_path):
    model = keras.Sequential([keras.Input((8,)), ScanLayers(HighwayDense(), 30)])
    model.export(tmp_path / "net", verbose=False)
    served = tf.saved_model.load(tmp_path / "net")
    x = np.ones((3, 8), "float32")
    assert close(served.serve(x), model(x), 1e-6)


def test_map_copies_collects_inner_values():
    loop = ScanLayers(HighwayDense(gate_bias=-1), 4)
    x = np.random.default_rng(0).normal(size=(5, 8)).astype("float32")
    y = loop(x)

    def look(layer, x, slices):
        h, t, _ = layer.parts(x)
        return layer.mix(x, h, slices[0] * t), (t,)

    ones, zeros = np.ones(4, "float32"), np.zeros(4, "float32")
    out, (gates,) = loop.map_copies(look, x, (ones,), ("float32",))
    assert close(out, y, 1e-6) and gates.shape == (4, 5, 8)
    assert np.array_equal(loop.map_copies(look, x, (zeros,), ("float32",))[0], x)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ScanLayers(HighwayDense(), 0), "`length` must be an integer of at"),
        (lambda: ScanLayers(HighwayDense(), 2.0), "`length`.*Received: length=2.0"),
        (lambda: ScanLayers("dense", 2), "`template` must be a Keras layer"),
        (lambda: ScanLayers(HighwayDense(), 2, jit="yes"), "`jit` must be"),
        (
            lambda: ScanLayers(HighwayDense(), 2, copy_names=["a"]),
            "`copy_names` must be 2 names",
        ),
    ],
)
def test_wrong_arguments(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_template_with_weights_is_refused():
    layer = HighwayDense()
    layer(np.ones((2, 4)))
    with pytest.raises(ValueError, match="without weights yet.*which has 4 weights"):
        ScanLayers(layer, 3)


def test_a_template_that_changes_the_shape_is_refused():
    with pytest.raises(ValueError, match=r"keep the shape.*\(2, 4\).*\(2, 5\)"):
        ScanLayers(keras.layers.Dense(5), 3)(np.ones((2, 4)))
