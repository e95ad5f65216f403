"""The zoo's own builders: plain `compile()` and `fit`."""

import keras
import numpy as np
import tensorflow as tf

import zoo
from recipes.peers import GATE_BIAS, MOMENTUM, RATE, WIDTH
from zoo.layers import ScanLayers


def build(net, scan="auto", remat=False):
    """The benchmark's net; `remat` on all its loops."""
    if net["kind"] == "mlp":
        model = zoo.highway_mlp(
            depth=net["depth"], units=WIDTH, gate_bias=GATE_BIAS, scan=scan
        )
    else:
        model = zoo.preact_resnet(net["depth"], scan=scan)
    for layer in model.layers:
        if isinstance(layer, ScanLayers):
            layer.remat = remat
    return model


def start(net, arrays, batch, scan="auto", remat=False):
    model = build(net, scan, remat)
    if scan is False:  # plain Keras, as one would write it without the zoo
        model = keras.Model(model.input, model.output)
    load(model, arrays)
    model.compile(
        keras.optimizers.SGD(RATE, MOMENTUM),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    # tf.data's tuner, which has nothing to tune here, holds the end of `fit` back until
    # it wakes, after 10, 20, 40, … ms: up to as long again as the steps have taken.
    options = tf.data.Options()
    options.autotune.enabled = False
    data = tf.data.Dataset.from_tensors(batch).repeat().with_options(options)
    losses = keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda step, logs: (
            first.append(logs["loss"]) if not first else None
        )
    )
    first = []

    def run(steps):
        first.clear()
        model.fit(
            data, steps_per_epoch=steps, verbose=0, shuffle=False, callbacks=[losses]
        )
        return first[0]

    return run


def arrays_of(model):
    """{name of a layer or copy / variable: value} of a model in either form."""
    arrays = {}
    for layer in model.layers:
        if not isinstance(layer, ScanLayers):
            for variable in layer.variables:
                arrays[_key(layer.name, variable, layer.name)] = variable.numpy()
            continue
        for variable, stack in zip(layer.template.variables, layer.stacks, strict=True):
            values = stack.numpy()
            for name, value in zip(layer.copy_names, values, strict=True):
                arrays[_key(name, variable, layer.template.name)] = value
    return arrays


def load(model, arrays):
    """Sets the weights that `arrays_of` gave."""
    for layer in model.layers:
        if not isinstance(layer, ScanLayers):
            for variable in layer.variables:
                variable.assign(arrays[_key(layer.name, variable, layer.name)])
            continue
        for variable, stack in zip(layer.template.variables, layer.stacks, strict=True):
            keys = [
                _key(name, variable, layer.template.name) for name in layer.copy_names
            ]
            stack.assign(np.stack([arrays[key] for key in keys]))


def _key(name, variable, own):
    """highway_03/gate/bias, whatever the variable's path begins with."""
    parts = variable.path.split("/")
    return "/".join([name, *parts[parts.index(own) + 1 :]])
