"""Demands on every public layer, and the highway layer once more in NumPy."""

import json
import warnings

import keras
import numpy as np
import tensorflow as tf

POLICIES = ("float32", "float64", "mixed_float16", "mixed_bfloat16")


def check_layer(make, input_shape, weights, tmp_path):
    """Does with a layer what users of Keras do with layers.

    `make(dtype=None)` returns a fresh layer; `input_shape` includes the batch;
    `weights` is the number of weights that the layer must have once it is built.
    """
    rng = np.random.default_rng(1)
    x = rng.normal(size=input_shape).astype("float32")

    layer = make()
    assert config(again(layer)) == config(layer)
    layer.build(input_shape)
    assert len(layer.weights) == weights
    assert config(again(layer)) == config(layer)
    assert again(layer).name == layer.name
    assert all(w.path.startswith(layer.name + "/") for w in layer.weights)

    for dtype in POLICIES:
        layer = make(dtype=dtype)
        assert again(layer).dtype_policy == layer.dtype_policy
        symbolic, eager = layer(keras.Input(batch_shape=input_shape)), layer(x)
        assert tuple(symbolic.shape) == tuple(eager.shape)
        assert symbolic.dtype == keras.backend.standardize_dtype(eager.dtype)
        assert tuple(layer.compute_output_shape(input_shape)) == tuple(eager.shape)
        open_batch = layer(keras.Input(input_shape[1:]))
        assert tuple(open_batch.shape) == (None, *eager.shape[1:])
        assert np.isfinite(np.array(eager, "float64")).all()
        variable_dtype = keras.DTypePolicy(dtype).variable_dtype
        assert {w.dtype for w in layer.trainable_weights} == {variable_dtype}

    model = model_of(make(), input_shape)
    before = [w.numpy() for w in model.trainable_weights]
    model.compile(keras.optimizers.SGD(0.1), "mse")
    model.train_on_batch(x, rng.normal(size=model(x).shape))
    for weight, old in zip(model.trainable_weights, before, strict=True):
        assert not np.array_equal(weight, old), f"{weight.path} did not move"

    y = np.array(model(x))
    paths = [w.path for w in model.weights]
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # "… in an unbuilt state"
        model.save(tmp_path / "layer.keras")
        loaded = keras.models.load_model(tmp_path / "layer.keras")
        model.save_weights(tmp_path / "layer.weights.h5")
        fresh = model_of(make(), input_shape)
        fresh.load_weights(tmp_path / "layer.weights.h5")
    clone = keras.models.clone_model(model)
    clone.set_weights(model.get_weights())
    for copy in (loaded, fresh, clone):
        assert np.array_equal(copy(x), y)
    for copy in (loaded, clone):
        assert config(copy.layers[1]) == config(model.layers[1])
        assert [w.path for w in copy.weights] == paths


def model_of(layer, input_shape):
    inputs = keras.Input(input_shape[1:])
    return keras.Model(inputs, layer(inputs))


def again(layer):
    return type(layer).from_config(layer.get_config())


def config(layer):
    """A layer's config as JSON, whether it is built or not."""
    return json.dumps(layer.get_config(), sort_keys=True)


def close(a, b, tolerance):
    """Whether a and b differ by `tolerance` at most, relative to b where b > 1."""
    a, b = np.array(a, "float64"), np.array(b, "float64")
    return a.shape == b.shape and np.abs(a - b).max() <= tolerance * max(
        1.0, np.abs(b).max()
    )


def jacobian(function, x):
    """(batch, outputs, inputs) of a function of `(batch, inputs)`."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.batch_jacobian(y, x).numpy()


def gradients(function, x, dy, weights):
    """y, and the gradients of sum(dy · y) with respect to x and the weights."""
    x = tf.convert_to_tensor(x)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    dx, *dw = tape.gradient(y, [x, *(w.value for w in weights)], output_gradients=dy)
    return y.numpy(), dx.numpy(), [g.numpy() for g in dw]


def distinct_draws(kernels):
    """Whether no two kernels come from one stream of random numbers, whatever
    their scale: the signs of the first values tell."""
    signs = [tuple(np.ravel(kernel)[:64] > 0) for kernel in kernels]
    assert min(map(len, signs)) >= 48, "too few values to tell"
    return len(set(signs)) == len(signs)


def sigmoid(z):
    return 1 / (1 + np.exp(-z))


def conv(x, kernel):
    """'Same' convolution of (n, h, w, c) and (i, j, c, f): a sum of shifted images."""
    rows, columns = x.shape[1:3]
    x = _padded(x, kernel)
    return sum(
        x[:, i : i + rows, j : j + columns] @ kernel[i, j]
        for i, j in np.ndindex(kernel.shape[:2])
    )


def conv_gradients(x, kernel, dz):
    """Gradients of sum(dz · conv(x, kernel)) with respect to x and kernel."""
    rows, columns = x.shape[1:3]
    x = _padded(x, kernel)
    dx, dkernel = np.zeros_like(x), np.zeros_like(kernel)
    for i, j in np.ndindex(kernel.shape[:2]):
        dx[:, i : i + rows, j : j + columns] += dz @ kernel[i, j].T
        window = x[:, i : i + rows, j : j + columns]
        dkernel[i, j] = np.einsum("nhwc,nhwf->cf", window, dz)
    top, left = ((n - 1) // 2 for n in kernel.shape[:2])
    return dx[:, top : top + rows, left : left + columns], dkernel


def strided_conv(x, kernel, strides):
    """Convolution centred on every `strides`-th pixel, odd kernels."""
    rows, columns = x.shape[1:3]
    edge = len(kernel) // 2
    x = np.pad(x, [(0, 0), (edge, edge), (edge, edge), (0, 0)])
    return sum(
        x[:, i : i + rows : strides, j : j + columns : strides] @ kernel[i, j]
        for i, j in np.ndindex(kernel.shape[:2])
    )


def _padded(x, kernel):
    edges = [((n - 1) // 2, n // 2) for n in kernel.shape[:2]]
    return np.pad(x, [(0, 0), *edges, (0, 0)])


def highway_stack(x, layers, dy, carry="coupled"):
    """A stack of ReLU highway layers, y = T·H + C·x, and its gradients, by hand.

    `layers` holds ((kernel, bias), …) of transform, gate and perhaps carry gate for
    each layer. Arrays are (n, h, w, c); a dense layer is a 1×1 convolution. Returns
    y, dx and the gradients of all kernels and biases in order, for sum(dy · y).
    """
    steps = []
    for halves in layers:
        h, t, *c = (conv(x, kernel) + bias for kernel, bias in halves)
        h, t = np.maximum(h, 0), sigmoid(t)
        c = {"coupled": 1 - t, "identity": 1.0}.get(carry) if not c else sigmoid(c[0])
        steps.append((x, h, t, c))
        x = t * h + c * x
    y, weights = x, []
    for halves, (x, h, t, c) in zip(layers[::-1], steps[::-1], strict=True):
        dt = h - x if carry == "coupled" else h
        dz = [dy * t * (h > 0), dy * dt * t * (1 - t), dy * x * c * (1 - c)]
        dx, mine = dy * c, []
        for (kernel, _), d in zip(halves, dz, strict=False):
            back, dkernel = conv_gradients(x, kernel, d)
            dx = dx + back
            mine += [dkernel, d.sum((0, 1, 2))]
        dy, weights = dx, mine + weights
    return y, dy, weights


def hostile(trace):
    """A Keras model whose file has code in it, which makes the file `trace`."""
    place = str(trace)
    inputs = keras.Input((8, 8, 1))
    x = keras.layers.Lambda(lambda x: (open(place, "w").close(), x)[1])(inputs)
    trace.unlink()
    return keras.Model(inputs, x)
