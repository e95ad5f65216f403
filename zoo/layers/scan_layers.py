"""Depth as a loop: one layer with stacked weights stands for many."""

import contextlib
import importlib
import inspect

import keras
from keras import ops

from zoo import _replicas
from zoo.layers.initializers import draw_stack


@keras.saving.register_keras_serializable("zoo")
class ScanLayers(keras.layers.Layer):
    """`length` copies of a layer, run by one loop over stacked weights.

    y = f(… f(f(x; w₁); w₂) …; w_L), where f is the template and w_i the i-th slice of
    the stacks. Graph, build and first step cost as much as one layer's, for any
    length; the result is that of `length` layers one after the other.

    Each copy has weights, an initial draw, BN statistics, regularisation,
    constraints and dropout masks of its own. A regulariser's penalty is the sum over
    the copies. A template with batch normalisation runs unrolled, without `remat`,
    where a strategy spreads the batch over replicas: no loop of TensorFlow can wait
    for the statistics of the others.

    Args:
        template: Keras layer that keeps shape and dtype of its input. It is copied by
            its config; the given object is not used and must not be built.
        length: int, number of copies, 1 or more.
        remat: bool, recomputes each copy in the backward pass instead of keeping its
            inner values. False by default: it takes a second forward pass. Losses,
            gradients and BN statistics stay the same.
        jit: "auto" (the default), True or False: whether XLA compiles the training
            loop, whatever `compile` says. It recomputes as `remat` does. "auto": on a
            CPU only for templates without convolution kernels, which XLA slows down
            there; on a GPU always. JAX compiles the whole step instead.
        copy_names: names of the copies; template_01, … by default.

    Call arguments:
        x: float tensor.
        mask: passed to each copy that takes one, and on to the next layer.
        training: bool.

    Input shape:
        Whatever the template accepts.

    Output shape:
        The input's.

    Raises:
        ValueError: the template is no layer, is built, or changes the shape;
            `length` < 1.

    Example:
        >>> import keras, zoo
        >>> stack = zoo.layers.ScanLayers(zoo.layers.HighwayDense(gate_bias=-8), 900)
        >>> stack(keras.ops.ones((2, 32))).shape
        TensorShape([2, 32])
        >>> len(stack.weights)
        4
    """

    def __init__(
        self, template, length, remat=False, jit="auto", copy_names=None, **kwargs
    ):
        super().__init__(autocast=False, **kwargs)
        if not isinstance(template, keras.layers.Layer):
            raise ValueError(
                f"`template` must be a Keras layer. Received: template={template!r}"
            )
        if template.weights:
            raise ValueError(
                "`template` must be a layer without weights yet, used nowhere else: "
                "ScanLayers makes copies of it with new weights. Received: template="
                f"{template.name!r}, which has {len(template.weights)} weights"
            )
        if type(length) is not int or length < 1:
            raise ValueError(
                "`length` must be an integer of at least 1. "
                f"Received: length={length!r}"
            )
        if jit not in ("auto", True, False):
            raise ValueError(
                f"`jit` must be 'auto', True or False. Received: jit={jit!r}"
            )
        if copy_names is None:
            digits = max(2, len(str(length)))
            copy_names = [
                f"{template.name}_{i:0{digits}d}" for i in range(1, length + 1)
            ]
        if len(copy_names) != length:
            raise ValueError(
                f"`copy_names` must be {length} names, one a copy. "
                f"Received: {len(copy_names)}"
            )
        self.length = length
        self.remat = remat
        self.jit = jit
        self.copy_names = list(copy_names)
        self.supports_masking = True
        self._untracked = _Untracked(template)

    @property
    def template(self):
        """The layer that computes one copy; its own variables are never used."""
        return self._untracked.layer

    @property
    def trainable(self):
        return keras.layers.Layer.trainable.fget(self)

    @trainable.setter
    def trainable(self, value):
        keras.layers.Layer.trainable.fset(self, value)
        self.template.trainable = value  # frozen BN uses its moving statistics

    def build(self, input_shape):
        template = self.template
        initializers = self._untracked.build(input_shape)
        output_shape = template.compute_output_shape(input_shape)
        if tuple(output_shape)[1:] != tuple(input_shape)[1:]:
            raise ValueError(
                "`template` must keep the shape of its input; put a layer that changes "
                f"it before the loop. Received: input shape {tuple(input_shape)}, "
                f"output shape {tuple(output_shape)}"
            )
        stacks = []
        for variable in template.variables:
            *scopes, name = _relative(variable.path, template.name)
            with contextlib.ExitStack() as scope:  # add_weight knows no inner scopes
                for part in scopes:
                    scope.enter_context(keras.name_scope(part))
                stack = keras.Variable(
                    _stacker(initializers[id(variable)], self.length),
                    shape=(self.length, *variable.shape),
                    dtype=variable.dtype,
                    trainable=variable.trainable,
                    aggregation=variable.aggregation,
                    name=name,
                )
            stack.regularizer = _for_each_copy(variable.regularizer, penalty=True)
            stack.constraint = _for_each_copy(variable.constraint)
            variable.regularizer = None  # counted once, on the stack
            stacks.append(stack)
        self.stacks = stacks
        self._is_state = [not variable.trainable for variable in template.variables]

    def call(self, x, mask=None, training=None):
        def function(template, x, _):
            return self._call_template(template, x, mask, training), ()

        state = [s for s in self._state_stacks() if training]
        y, updates, _ = self._loop(function, x, training=training, state=state)
        for stack, update in zip(state, updates, strict=True):
            stack.assign(update)
        return y

    def map_copies(self, function, x, extras=(), dtypes=()):
        """Runs the copies in inference mode and collects inner values of each.

        Args:
            function: `function(template, x, slices) -> (y, values)` with the weights
                of one copy in place; `slices` are those of `extras`.
            x: input of the first copy.
            extras: tensors `(length, …)`.
            dtypes: of the values.

        Returns:
            (output of the last copy, list of values stacked to `(length, …)`).
        """
        y, _, values = self._loop(function, x, extras=extras, dtypes=dtypes)
        return y, values

    def _loop(self, function, x, *, extras=(), dtypes=(), training=False, state=()):
        """(output, new values of the `state` stacks, values of `function`)."""
        template = self.template
        variables = template.variables
        state_variables = [
            v for v, s in zip(variables, self.stacks, strict=True) if _among(s, state)
        ]
        lossy = []

        def step(x, slices):
            own, more = slices[: len(variables)], slices[len(variables) :]
            mapping = list(zip(variables, own, strict=True))
            with keras.StatelessScope(mapping, collect_losses=True) as scope:
                y, values = function(template, x, more)
                losses = list(template.losses) if training else []
                new = [scope.get_current_value(v) for v in state_variables]
            lossy.append(bool(losses))
            loss = sum(ops.cast(ops.sum(loss), "float32") for loss in losses)
            loss = loss if losses else ops.zeros((), "float32")
            return ops.cast(y, x.dtype), [*new, loss, *values]

        # batch normalisation of a batch that is spread over replicas
        together = _replicas.several() and any(
            v.name == "moving_mean" for v in variables
        )
        backend = _backend()
        jit = self.jit
        if jit == "auto":
            jit = backend.prefers_compiled([len(v.shape) for v in variables])
        x = ops.cast(x, self.state_dtype)
        y, results = backend.scan(
            step,
            x,
            [ops.convert_to_tensor(s) for s in (*self.stacks, *extras)],
            self.length,
            [*(v.dtype for v in state_variables), "float32", *dtypes],
            compiled=bool(jit and training),
            remat=bool(self.remat and training),
            unrolled=bool(training and together),
        )
        losses = results[len(state)]
        if any(lossy):
            self.add_loss(ops.sum(losses))
        return y, results[: len(state)], results[len(state) + 1 :]

    def _call_template(self, template, x, mask, training):
        # `training` is explicit: the backward loop runs outside of this call.
        arguments = {"training": bool(training)}
        if mask is not None and "mask" in inspect.signature(template.call).parameters:
            arguments["mask"] = mask
        return template(x, **arguments)

    def _state_stacks(self):
        """Stacks of what a training step updates: BN statistics, dropout seeds."""
        return [
            s
            for s, is_state in zip(self.stacks, self._is_state, strict=True)
            if is_state
        ]

    @property
    def state_dtype(self):
        """What the template puts out: half under a mixed policy for plain layers."""
        return self._untracked.dtype

    def stack_of(self, variable):
        """The stack of one of the template's variables; None for None."""
        for own, stack in zip(self.template.variables, self.stacks, strict=True):
            if own is variable:
                return stack
        return None

    def copy_weights(self, index):
        """NumPy values of one copy's variables, in the order of the template's."""
        return [ops.convert_to_numpy(stack[index]) for stack in self.stacks]

    def compute_mask(self, inputs, previous_mask=None):
        return previous_mask

    def compute_output_shape(self, input_shape):
        return input_shape

    def compute_output_spec(self, x, mask=None, training=None):
        return keras.KerasTensor(x.shape, dtype=self.state_dtype)

    def get_config(self):
        config = super().get_config()
        config.update(
            template=keras.saving.serialize_keras_object(self._untracked.given),
            length=self.length,
            remat=self.remat,
            jit=self.jit,
            copy_names=self.copy_names,
        )
        return config

    @classmethod
    def from_config(cls, config, custom_objects=None):
        config = dict(config)
        config["template"] = keras.saving.deserialize_keras_object(
            config["template"], custom_objects=custom_objects
        )
        return cls(**config)


class _Untracked:
    """The template behind an object that Keras does not look into: its variables
    are placeholders and must not become weights of the stack."""

    def __init__(self, given):
        self.given = given
        self.initializers = {}
        with keras.StatelessScope() as _:  # variables keep their initializers in it
            self.layer = type(given).from_config(given.get_config())
            self._record()

    def build(self, input_shape):
        """Builds the template; {id of a variable: its initializer}."""
        with keras.StatelessScope():
            if not self.layer.built:
                self.layer.build(tuple(input_shape))
            self._record()
        spec = keras.KerasTensor(tuple(input_shape), dtype=self.layer.compute_dtype)
        self.dtype = self.layer.compute_output_spec(spec).dtype
        return self.initializers

    def _record(self):
        for variable in self.layer.variables:
            if variable._initializer is not None:
                self.initializers.setdefault(id(variable), variable._initializer)


def _stacker(initializer, length):
    def initialize(shape, dtype=None):
        if getattr(initializer, "__name__", "") == "seed_initializer":
            first = initializer(shape[1:], dtype)  # (seed, counter) of a generator
            offsets = ops.arange(length, dtype=first.dtype) * 7919
            states = ops.stack([first[0] + offsets, ops.zeros_like(offsets)], axis=1)
            return ops.cast(states, dtype)
        return draw_stack(initializer, length, tuple(shape)[1:], dtype)

    return initialize


def _for_each_copy(function, penalty=False):
    """A regulariser or constraint of one weight as one of the stack."""
    if function is None:
        return None
    elementwise = (
        keras.regularizers.L1,
        keras.regularizers.L2,
        keras.regularizers.L1L2,
        keras.constraints.NonNeg,
    )
    if type(function) in elementwise:
        return function

    def apply(stack):
        values = ops.vectorized_map(function, stack)
        return ops.sum(values) if penalty else values

    return apply


def _relative(path, name):
    """Path of a template's variable below the template: ["gate", "bias"]."""
    parts = path.split("/")
    return parts[parts.index(name) + 1 :] if name in parts else parts


def _among(item, items):
    return any(item is other for other in items)


def _backend():
    name = keras.backend.backend()
    if name not in ("tensorflow", "jax"):
        raise RuntimeError(
            "ScanLayers works on the backends tensorflow and jax. "
            f"Received: KERAS_BACKEND={name}"
        )
    return importlib.import_module(f"zoo.layers._scan_{name}")
