"""Training a deep, thin net by a shallow, wide one: hints, then distillation."""

import math

import keras
from keras import ops

from zoo import _replicas
from zoo._checks import check_int, known
from zoo.layers import MaxoutConv
from zoo.models._builder import Net


class HintTrainer(Net):
    """First stage: the student's lower half learns the teacher's inner map.

    L = ½·|u(x) − r(v(x))|², summed over the map, mean over the batch; u is the
    teacher up to its hint layer, v the student up to its guided layer, and r a
    regressor on top of it: one maxout convolution of two pieces without padding,
    whose kernel brings the guided map to the size of the hint. What is trained are
    the student's own layers up to the guided one, and r, which is thrown away
    afterwards. Labels are not needed; if the data have some, they are not looked at.

    The teacher is no part of the trainer's variables: it runs as in inference and
    neither its weights nor its moving statistics change.

    Args:
        teacher, student: functional models of the same input. Train them on the raw
            images that both take.
        hint_layer: of the teacher: name of a layer; or n for the n-th convolution,
            together with a pool that follows it. "pool_2" by default, the second of
            `fitnet_teacher`, the paper's.
        guided_layer: of the student, likewise. "pool_2" by default: in FitNets 1 to
            4 it ends the 6th, 6th, 8th and 11th layer, the paper's.

    Call arguments:
        images: raw images, as the student takes them.

    Input shape:
        The student's.

    Output shape:
        The hint's, `(batch, height, width, channels)`.

    Raises:
        ValueError: a model that is not functional, or inputs that differ; a layer
            that is unknown, out of range, or not a map of known size; a guided map
            smaller than the hint.

    Example:
        >>> import zoo
        >>> teacher = zoo.fitnet_teacher(width=0.25)
        >>> student = zoo.fitnet(1)
        >>> trainer = zoo.training.HintTrainer(teacher, student)
        >>> trainer.compile("rmsprop")  # then trainer.fit(images), student.save(…)
        >>> trainer.get_layer("regressor").kernel_size, trainer.output_shape
        ((3, 3), (None, 6, 6, 48))

    Reference:
        Romero, Ballas, Kahou, Chassang, Gatta, Bengio 2015, "FitNets: Hints for Thin
        Deep Nets", §2.2 and algorithm 1: RMSProp with 5e-3, batches of 128. (In the
        authors' files convolutions take .05 of that rate.)
    """

    def __init__(
        self,
        teacher: keras.Model,
        student: keras.Model,
        hint_layer: str | int = "pool_2",
        guided_layer: str | int = "pool_2",
        **kwargs,
    ):
        _check_pair(teacher, student)
        hint = _map("hint_layer", hint_layer, teacher)
        guided = _map("guided_layer", guided_layer, student)
        kernel = [guided.shape[i] - hint.shape[i] + 1 for i in (1, 2)]
        if min(kernel) < 1:
            raise ValueError(
                "`guided_layer` must have a map at least as high and wide as the hint, "
                "since the regressor is a convolution without padding. Received: "
                f"guided_layer={guided_layer!r} with {_size(guided)}, "
                f"hint_layer={hint_layer!r} with {_size(hint)}"
            )
        regressor = MaxoutConv(
            hint.shape[-1],
            kernel,
            kernel_initializer=keras.initializers.RandomUniform(-0.05, 0.05),
            name="regressor",  # −.05: the authors' fitnets_stage1.py
        )
        super().__init__(student.inputs[0], regressor(guided), **kwargs)
        self._hint = _frozen(Net(teacher.inputs[0], hint))

    def compile(self, optimizer="rmsprop", loss=None, **kwargs):
        """As `keras.Model.compile`; the loss is the hint's and cannot be given."""
        if loss is not None:
            raise ValueError(
                "`loss` is the squared error to the hint, always; leave it out. "
                f"Received: loss={loss!r}"
            )
        super().compile(optimizer, hint_loss, **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        return super().compute_loss(x, self._hint(x), y_pred, sample_weight, training)


def hint_loss(hint, regressed):
    """½·|hint − regressed|² for each image of a batch."""
    return ops.sum(ops.square(hint - regressed), axis=(1, 2, 3)) / 2


class Distiller(Net):
    """Second stage: the whole student learns labels and the teacher's answers.

    L = H(y, p) + λ·H(q, p_τ), with the student's p = softmax(z) and p_τ =
    softmax(z/τ), and the teacher's q = softmax(z_teacher/τ); H is the cross-entropy.
    λ falls linearly with the training steps, from `weight` to `final_weight` within
    `steps`. The count of steps is one of the trainer's variables: what resumes them
    (`zoo.training.Resume`) resumes λ.

    The trainer is the student in other clothes: same layers, same outputs, and
    `student.save` saves what was trained. `evaluate` gives the accuracy of the
    student, and the loss with the present λ. The teacher is no part of the
    trainer's variables and stays as it is, as in `HintTrainer`.

    Args:
        teacher, student: functional models of the same input that give logits of the
            same classes.
        steps: int, training steps (batches) within which λ falls; batches of an epoch
            × epochs for all of the training.
        temperature: τ, above 0; 3 by default, the paper's. It softens the answers:
            what the teacher holds of the wrong classes counts for more.
        weight: λ at the first step; 4 by default, the paper's.
        final_weight: λ after `steps`; 1 by default, the paper's. In between harder
            examples come to be learned from their labels.

    Call arguments:
        images: raw images, as the student takes them.

    Input shape, output shape:
        The student's.

    Raises:
        ValueError: a model that is not functional or ends in a softmax; inputs or
            classes that differ; `temperature`, `weight`, `final_weight` or `steps` out
            of their range.

    Example:
        >>> import zoo
        >>> teacher = zoo.fitnet_teacher(width=0.25)
        >>> student = zoo.fitnet(1)
        >>> trainer = zoo.training.Distiller(teacher, student, steps=1000)
        >>> trainer.compile("rmsprop")  # then trainer.fit(images, labels)
        >>> float(trainer.weight())
        4.0

    Reference:
        Romero, Ballas, Kahou, Chassang, Gatta, Bengio 2015, "FitNets: Hints for Thin
        Deep Nets", §2.1 and §2.3; Hinton, Vinyals, Dean 2015, "Distilling the
        Knowledge in a Neural Network".
    """

    def __init__(
        self,
        teacher: keras.Model,
        student: keras.Model,
        steps: int,
        temperature: float = 3.0,
        weight: float = 4.0,
        final_weight: float = 1.0,
        **kwargs,
    ):
        _check_pair(teacher, student)
        _check_logits(teacher, student)
        check_int("steps", steps)
        if not (_is_number(temperature) and temperature > 0):
            raise ValueError(
                f"`temperature` must be above 0. Received: temperature={temperature!r}"
            )
        for name, value in (("weight", weight), ("final_weight", final_weight)):
            if not (_is_number(value) and value >= 0):
                raise ValueError(
                    f"`{name}` must be a number, 0 or more. Received: {name}={value!r}"
                )
        super().__init__(student.inputs[0], student.outputs[0], **kwargs)
        self.steps = steps
        self.temperature = temperature
        self.weights_of_teacher = (weight, final_weight)
        self.step = self.add_weight(
            name="step",
            shape=(),
            dtype="int32",
            initializer="zeros",
            trainable=False,
            aggregation="only_first_replica",
        )
        self._answer = _frozen(teacher)
        self._soft_loss = keras.losses.CategoricalCrossentropy(from_logits=True)

    def weight(self):
        """λ at the present step."""
        first, last = self.weights_of_teacher
        done = ops.minimum(ops.cast(self.step, "float32") / self.steps, 1.0)
        return first + (last - first) * done

    def compile(self, optimizer="rmsprop", loss=None, metrics=("accuracy",), **kwargs):
        """As `keras.Model.compile`, with defaults for integer labels.

        Args:
            optimizer, …: as there.
            loss: H(y, p); None is the cross-entropy of integer labels and logits.
            metrics: of labels and the student's logits; accuracy by default.
        """
        if loss is None:
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        super().compile(optimizer, loss, metrics=list(metrics or ()), **kwargs)

    def compute_loss(
        self, x=None, y=None, y_pred=None, sample_weight=None, training=True
    ):
        hard = super().compute_loss(x, y, y_pred, sample_weight, training)
        answer = ops.softmax(ops.cast(self._answer(x), "float32") / self.temperature)
        logits = ops.cast(y_pred, "float32") / self.temperature
        soft = self._soft_loss(answer, logits, sample_weight)
        loss = hard + self.weight() * _replicas.part(soft, ops.shape(logits)[0])
        if training:
            self.step.assign_add(1)
        return loss


def _frozen(model):
    """A function of images, the model in inference. A function, because Keras would
    make a model that is an attribute part of the trainer and train it."""
    return lambda images: ops.stop_gradient(model(images, training=False))


def _check_pair(teacher, student):
    for name, model in (("teacher", teacher), ("student", student)):
        inputs = getattr(model, "inputs", None) or ()
        outputs = getattr(model, "outputs", None) or ()
        if len(inputs) != 1 or len(outputs) != 1:
            raise ValueError(
                f"`{name}` must be a functional model with one input and one output. "
                f"Received: {name}={model!r}"
            )
    if teacher.input_shape[1:] != student.input_shape[1:]:
        raise ValueError(
            "`teacher` and `student` must take the same images. Received: inputs "
            f"{teacher.input_shape[1:]} and {student.input_shape[1:]}"
        )


def _check_logits(teacher, student):
    if teacher.output_shape != student.output_shape or len(student.output_shape) != 2:
        raise ValueError(
            "`teacher` and `student` must give logits (batch, classes) of the same "
            f"classes. Received: outputs {teacher.output_shape} and "
            f"{student.output_shape}"
        )
    for name, model in (("teacher", teacher), ("student", student)):
        last = getattr(model.layers[-1], "activation", None)
        if last is keras.activations.softmax:
            raise ValueError(
                f"`{name}` must give logits, without a softmax. Received: {name} with "
                f"last layer {model.layers[-1].name!r}, activation softmax"
            )


def _map(argument, which, model):
    """The map that a layer gives: by name, or after the n-th convolution."""
    layers = model.layers
    if isinstance(which, str):
        known(argument, which, [layer.name for layer in layers])
        output = model.get_layer(which).output
    else:
        kinds = (MaxoutConv, keras.layers.Conv2D)
        places = [i for i, layer in enumerate(layers) if isinstance(layer, kinds)]
        if type(which) is not int or not 1 <= which <= len(places):
            raise ValueError(
                f"`{argument}` must be the name of a layer, or from 1 to "
                f"{len(places)}, the convolutions of {model.name!r}. "
                f"Received: {argument}={which!r}"
            )
        place = places[which - 1]
        output = layers[place].output
        following = layers[place + 1] if place + 1 < len(layers) else None
        pool = isinstance(following, keras.layers.MaxPooling2D)
        if pool and following.input is output:
            output = following.output
    if len(output.shape) != 4 or None in output.shape[1:]:
        raise ValueError(
            f"`{argument}` must be a layer that gives a map (batch, height, width, "
            f"channels) of known size. Received: {argument}={which!r} with "
            f"{tuple(output.shape)}"
        )
    return output


def _size(x):
    return "×".join(map(str, x.shape[1:3]))


def _is_number(value):
    real = isinstance(value, (int, float)) and not isinstance(value, bool)
    return real and math.isfinite(value)
