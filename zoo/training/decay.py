"""Weight decay as the papers mean it: through the gradient, on kernels."""

import math
import numbers

import keras

from zoo._checks import known


def set_decay(
    model: keras.Model, rate: float, on: str = "kernels", *, head_factor: float = 1.0
) -> int:
    """Adds `rate`·w to the gradient of every kernel w, and of nothing else.

    This is the decay λ of Caffe and Torch files: a loss of λ/2·|w|². With SGD a
    kernel without other gradient shrinks by 1 − learning rate·λ a step. Gate biases,
    other biases and BN's γ and β are left alone, so that a gate keeps the bias it was
    given. (The `weight_decay` of Keras' optimizers is another thing: decoupled, and
    on every variable.)

    Args:
        model: built model. Call before the first training step.
        rate: λ, 0 or more.
        on: "kernels" (the default) or "everything": biases, γ and β too, as the
            authors' Torch code for ResNets does.
        head_factor: multiplies λ on the kernel of the layer `logits`; 1 by default,
            10 in the Caffe files of the highway nets.

    Returns:
        The number of variables under decay; the stack of a loop is one.

    Raises:
        ValueError: `rate` is negative or not finite; another value of `on`.

    Example:
        >>> import zoo
        >>> model = zoo.highway_mlp((8, 8, 1), depth=6, units=16)
        >>> zoo.training.set_decay(model, 1e-4)  # stem, 5 times H and T, logits
        12
    """
    for name, value in (("rate", rate), ("head_factor", head_factor)):
        number = isinstance(value, numbers.Real) and not isinstance(value, bool)
        if not (number and math.isfinite(value) and value >= 0):
            raise ValueError(
                f"`{name}` must be a number ≥ 0. Received: {name}={value!r}"
            )
    known("on", on, ("kernels", "everything"))
    decayed = []
    for weight in model.trainable_weights:
        if on == "everything" or weight.path.rsplit("/", 1)[-1] == "kernel":
            decayed.append(weight)
        elif isinstance(weight.regularizer, _Decay):  # of an earlier call
            weight.regularizer = None
    for weight in decayed:
        factor = head_factor if weight.path.endswith("logits/kernel") else 1.0
        penalty = rate * factor / 2
        weight.regularizer = _Decay(penalty) if penalty else None
    return len(decayed)


class _Decay(keras.regularizers.L2):
    """Marks what `set_decay` put on a weight."""
