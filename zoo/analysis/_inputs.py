"""Checks of what analysis functions are given, before they compute anything."""

import keras
import numpy as np


def is_served(model) -> bool:
    """Whether it is what `zoo.load_served` gives: endpoints and a card."""
    return not isinstance(model, keras.Model) and hasattr(model, "card")


def check_model(model):
    """`model` if it is a live model with one input."""
    if not isinstance(model, keras.Model):
        hint = "; this function needs more than a SavedModel's endpoints"
        raise ValueError(
            "`model` must be a live keras.Model, such as zoo.load gives"
            f"{hint if is_served(model) else ''}. Received: {type(model).__name__}"
        )
    if not model.built or not hasattr(model, "inputs"):
        raise ValueError(
            "`model` must be a functional or Sequential model that is built. "
            f"Received: {type(model).__name__} {model.name!r}"
        )
    if len(model.inputs) != 1:
        raise ValueError(
            f"`model` must have one input. Received: {len(model.inputs)} inputs"
        )
    return model


def check_images(model, images):
    """`images` as an array that fits the model's one input; for a net that reads text
    an array of strings."""
    if not is_served(model):
        check_model(model)
    if _reads_text(model):
        return _check_texts(images)
    images = np.asarray(images)
    if not np.issubdtype(images.dtype, np.number) or not np.isfinite(images).all():
        raise ValueError(
            "`images` must be finite numbers. Received: "
            f"images.dtype={images.dtype}, with NaN or infinity or no numbers at all"
        )
    expected = _input_shape(model)
    fits = images.ndim == len(expected) and all(
        want in (None, got) for want, got in zip(expected, images.shape, strict=True)
    )
    if not fits or not len(images):
        raise ValueError(
            f"`images` must have the shape {_show(expected)} with at least one image. "
            f"Received: images.shape={images.shape}"
        )
    return images


def _reads_text(model):
    if is_served(model):
        return model.card["input"]["name"] == "text"
    return model.inputs[0].dtype == "string"


def _check_texts(texts):
    texts = np.asarray(texts, object)
    if (
        texts.ndim != 1
        or not len(texts)
        or not all(isinstance(text, (str, bytes)) for text in texts)
    ):
        raise ValueError(
            "`images` must be strings, one at least, since the net reads text. "
            f"Received: an array of shape {texts.shape}, beginning with "
            f"{texts.flat[0] if texts.size else ''!r}"
        )
    return texts


def check_labels(model, images, labels):
    """`labels` as integers, one for each image and inside the model's classes."""
    if labels is None:
        raise ValueError(
            "`labels` must be given, one class for each image, or `images` be a data "
            "set of (images, labels). Received: labels=None"
        )
    labels = np.asarray(labels)
    classes = num_classes(model)
    if labels.shape != (len(images),) or not np.issubdtype(labels.dtype, np.integer):
        raise ValueError(
            f"`labels` must be {len(images)} integers, one for each image. Received: "
            f"labels.shape={labels.shape}, dtype={labels.dtype}"
        )
    if labels.min() < 0 or labels.max() >= classes:
        raise ValueError(
            f"`labels` must lie in 0 … {classes - 1}, the model's classes. "
            f"Received: {labels.min()} … {labels.max()}"
        )
    return labels


def batches(model, images, labels=None, *, batch_size, labelled=False):
    """Checked (images, labels) of at most `batch_size`, as an iterator.

    `images` is an array, checked as a whole and at once; or an iterable such as a
    tf.data.Dataset of batches, each images or (images, labels, …), checked as they
    come. `labels` are None unless `labelled`.
    """
    if type(batch_size) is not int or batch_size < 1:
        raise ValueError(
            "`batch_size` must be an integer of at least 1. "
            f"Received: batch_size={batch_size!r}"
        )

    def checked(images, labels):
        images = check_images(model, images)
        return images, check_labels(model, images, labels) if labelled else None

    def parts(images, labels):
        for start in range(0, len(images), batch_size):
            part = slice(start, start + batch_size)
            yield images[part], None if labels is None else labels[part]

    if isinstance(images, (list, tuple)) or hasattr(images, "__array__"):
        return parts(*checked(images, labels))
    return _of_data_set(model, images, checked, parts)


def _of_data_set(model, data, checked, parts):
    if not is_served(model):
        check_model(model)
    try:
        infinite = hasattr(data, "cardinality") and int(data.cardinality()) == -1
        data = None if infinite else iter(data)
    except TypeError:
        raise ValueError(
            "`images` must be an array or a data set of batches. "
            f"Received: {type(data).__name__}"
        ) from None
    if infinite:
        raise ValueError(
            "`images` must be a data set that ends; use .take(n). "
            "Received: an endless data set"
        )

    def read():
        empty = True
        for batch in data:
            pair = batch if isinstance(batch, (list, tuple)) else (batch,)
            empty = False
            yield from parts(*checked(pair[0], pair[1] if len(pair) > 1 else None))
        if empty:
            raise ValueError(
                "`images` must be a data set with at least one batch. Received: none"
            )

    return read()


def num_classes(model) -> int:
    """Width of the logits, the model's one output."""
    if is_served(model):
        return model.num_classes
    shapes = [tuple(output.shape) for output in model.outputs]
    if len(shapes) != 1 or len(shapes[0]) != 2:
        raise ValueError(
            "`model` must put out logits, (batch, classes). "
            f"Received: {', '.join(map(_show, shapes))}"
        )
    return shapes[0][1]


def _input_shape(model):
    if is_served(model):
        return tuple(model.card["input"]["shape"])
    return tuple(model.inputs[0].shape)


def _show(shape):
    return "(" + ", ".join("batch" if n is None else str(n) for n in shape) + ")"
