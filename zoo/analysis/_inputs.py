"""Checks of what analysis functions are given, before they compute anything."""

import keras
import numpy as np


def check_images(model, images):
    """`images` as an array that fits the model's one input."""
    if not isinstance(model, keras.Model):
        raise ValueError(
            "`model` must be a live keras.Model, such as zoo.load gives. "
            f"Received: {type(model).__name__}"
        )
    images = np.asarray(images)
    if not np.issubdtype(images.dtype, np.number) or not np.isfinite(images).all():
        raise ValueError(
            "`images` must be finite numbers. Received: "
            f"images.dtype={images.dtype}, with NaN or infinity or no numbers at all"
        )
    if len(model.inputs) != 1:
        raise ValueError(
            f"`model` must have one input. Received: {len(model.inputs)} inputs"
        )
    expected = tuple(model.inputs[0].shape)
    fits = images.ndim == len(expected) and all(
        want in (None, got) for want, got in zip(expected, images.shape, strict=True)
    )
    if not fits or not len(images):
        raise ValueError(
            f"`images` must have the shape {_show(expected)} with at least one image. "
            f"Received: images.shape={images.shape}"
        )
    return images


def check_labels(model, images, labels):
    """`labels` as integers, one for each image and inside the model's classes."""
    labels = np.asarray(labels)
    classes = model.outputs[0].shape[-1]
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


def _show(shape):
    return "(" + ", ".join("batch" if n is None else str(n) for n in shape) + ")"
