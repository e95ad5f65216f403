"""The dense stack that highway_mlp and plain_mlp share."""

import keras

from zoo._checks import check_int
from zoo.layers import ContrastNormalization
from zoo.layers.initializers import fork
from zoo.models._builder import (
    Net,
    check_image_shape,
    layer_names,
    logits_layer,
)
from zoo.models.convert import apply_scan, repeat


def dense_stack(
    make_layer,
    layer_prefix,
    input_shape,
    num_classes,
    depth,
    units,
    activation,
    kernel_initializer,
    bias_initializer,
    rescale,
    contrast,
    scan,
    name,
):
    """input → normalise → flatten → dense stem → depth − 1 layers → logits.

    `make_layer(name, kernel_initializer, bias_initializer)` returns one layer.
    """
    check_int("depth", depth)
    check_int("units", units)
    check_int("num_classes", num_classes)
    if isinstance(input_shape, int):
        input_shape = (input_shape,)
    if len(input_shape) == 1:
        check_int("input_shape", input_shape[0])
    else:
        check_image_shape(input_shape)
        if None in tuple(input_shape):
            raise ValueError(
                "`input_shape` must be known for a dense net. "
                f"Received: input_shape={tuple(input_shape)}"
            )
    image = len(input_shape) == 3
    if contrast and (rescale is not None or not image):
        raise ValueError(
            "`contrast` is for images and takes the place of `rescale`. Received: "
            f"contrast={contrast}, rescale={rescale}, input_shape={tuple(input_shape)}"
        )
    if rescale is None:
        rescale = 1 / 255 if image else 1.0
    kernels = keras.initializers.get(kernel_initializer)
    biases = keras.initializers.get(bias_initializer)

    inputs = keras.Input(tuple(input_shape), name="image" if image else "features")
    x = inputs
    if contrast:
        x = ContrastNormalization(name="contrast")(x)
    elif rescale != 1:
        x = keras.layers.Rescaling(rescale, name="rescale")(x)
    if image:
        x = keras.layers.Flatten(name="flatten")(x)
    x = keras.layers.Dense(
        units,
        activation,
        kernel_initializer=fork(kernels, "stem"),
        bias_initializer=fork(biases, "stem_bias"),
        name="stem",
    )(x)
    template = make_layer(
        layer_prefix, fork(kernels, layer_prefix), fork(biases, layer_prefix + "_bias")
    )
    x = repeat(template, layer_names(layer_prefix, depth - 1), x)
    x = logits_layer(num_classes, kernels, biases)(x)
    model = Net(inputs, x, name=name)
    return apply_scan(model, scan)
