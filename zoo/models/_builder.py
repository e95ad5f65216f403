"""What the builders share: variants, the record of how a model was built, checks."""

import functools
import inspect
import json

import keras
from keras import ops

from zoo import _replicas
from zoo._checks import known
from zoo.layers.initializers import fork


@keras.saving.register_keras_serializable("zoo")
class Net(keras.Model):
    """A functional `keras.Model` whose first training step takes one trace, not two.

    TensorFlow traces a function again whose first trace creates variables, as Keras'
    does with the optimizer's: 1.2 of the 3.2 s to the end of the first step of a
    ResNet-110.

    Under a strategy of TensorFlow a batch of any size trains as on one device: the
    mean loss is that over all examples, however they are shared out, and a replica
    may have none.
    """

    def call(self, inputs, training=None, mask=None):
        if not _replicas.several():
            return super().call(inputs, training=training, mask=mask)
        with _replicas.at_least_one(inputs) as filled:
            outputs = super().call(filled, training=training, mask=mask)
        count = ops.shape(keras.tree.flatten(inputs)[0])[0]
        return keras.tree.map_structure(lambda output: output[:count], outputs)

    def compute_loss(self, x=None, y=None, y_pred=None, *args, **kwargs):
        loss = super().compute_loss(x, y, y_pred, *args, **kwargs)
        return _replicas.weigh(loss, ops.shape(y_pred)[0])

    def make_train_function(self, force=False):
        if self.built and self.optimizer is not None and not self.optimizer.built:
            self.optimizer.build(self.trainable_variables)
        return super().make_train_function(force)


def builder(function=None, *, variants=None):
    """Makes a public builder: looks up variants and records the arguments.

    With `variants`, a table {name: {argument: value}}, a string as the builder's first
    argument is a variant's name; its row gives the defaults, the call overrides them.
    The model remembers builder and arguments in `zoo_spec`, a JSON string that
    export writes on the card.
    """
    if function is None:
        return functools.partial(builder, variants=variants)
    signature = inspect.signature(function)

    @functools.wraps(function)
    def build(*args, **kwargs):
        if variants is not None and args and isinstance(args[0], str):
            variant, *args = args
            row = variants[known("variant", variant, variants)]
            kwargs = {**row, **kwargs}
        try:
            bound = signature.bind(*args, **kwargs)
        except TypeError as error:
            raise TypeError(
                f"{function.__name__}: {error}. It takes "
                f"{', '.join(build.__signature__.parameters)}."
            ) from None
        bound.apply_defaults()
        model = function(*bound.args, **bound.kwargs)
        arguments = {k: v for k, v in bound.arguments.items() if k != "name"}
        model.zoo_spec = json.dumps(
            {"builder": function.__name__, "arguments": arguments}, default=_jsonable
        )
        return model

    build.__signature__ = signature
    if variants is not None:
        variant = inspect.Parameter(
            "variant", inspect.Parameter.POSITIONAL_ONLY, default=None
        )
        parameters = signature.parameters.values()
        build.__signature__ = signature.replace(parameters=[variant, *parameters])
    return build


def _jsonable(value):
    return keras.saving.serialize_keras_object(value)


def check_image_shape(input_shape, minimum=1):
    """`input_shape` as (height, width, channels); None is an open height or width."""
    shape = tuple(input_shape)
    sizes = [n for n in shape[:2] if n is not None]
    if (
        len(shape) != 3
        or not all(type(n) is int and n > 0 for n in sizes)
        or type(shape[2]) is not int
        or shape[2] < 1
    ):
        raise ValueError(
            "`input_shape` must be (height, width, channels) of positive integers, "
            f"height and width perhaps None. Received: input_shape={input_shape}"
        )
    if sizes and min(sizes) < minimum:
        raise ValueError(
            f"`input_shape`: this net needs images of at least {minimum}×{minimum} "
            f"pixels. Received: input_shape={input_shape}"
        )
    return shape


def layer_names(prefix, count):
    """prefix_01, prefix_02, …: zero-padded, so that they sort by depth."""
    digits = max(2, len(str(count)))
    return [f"{prefix}_{i:0{digits}d}" for i in range(1, count + 1)]


def logits_layer(num_classes, kernel_initializer, bias_initializer="zeros"):
    """The last layer: float32 whatever the policy, so that losses stay finite."""
    return keras.layers.Dense(
        num_classes,
        kernel_initializer=fork(kernel_initializer, "logits"),
        bias_initializer=fork(bias_initializer, "logits_bias"),
        dtype="float32",
        name="logits",
    )


def check_outputs(include_top, pooling, stage_outputs):
    """ValueError where the outputs that are asked for contradict each other."""
    if pooling not in (None, "avg", "max"):
        raise ValueError(
            f"`pooling` must be None, 'avg' or 'max'. Received: pooling={pooling!r}"
        )
    if include_top and pooling is not None:
        raise ValueError(
            "`pooling` is for include_top=False; the classifier averages already. "
            f"Received: include_top=True, pooling={pooling!r}"
        )
    if stage_outputs and (include_top or pooling is not None):
        raise ValueError(
            "`stage_outputs` is for include_top=False and pooling=None. Received: "
            f"stage_outputs=True, include_top={include_top}, pooling={pooling!r}"
        )


def pool_features(pooling, x):
    """Global pooling of a map, named by its kind; the map itself for None."""
    if pooling == "avg":
        return keras.layers.GlobalAveragePooling2D("channels_last", name="gap")(x)
    if pooling == "max":
        return keras.layers.GlobalMaxPooling2D("channels_last", name="gmp")(x)
    return x
