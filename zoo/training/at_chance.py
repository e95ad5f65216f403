"""Ending early what does not train at all."""

import math

import keras
import numpy as np

# Examples on which the spread of the outputs is measured.
_SAMPLE = 256


class StopAtChance(keras.callbacks.Callback):
    """Ends a training that shows no sign of leaving chance.

    A net that is too deep for its gates gives every image the same logits; it learns
    how frequent the classes are, and stays there. One that trains slowly can have the
    same loss for long, but its logits already differ more and more between images: a
    highway net of depth 101 on digits with gate bias −2 leaves chance after 19 epochs
    of 30, yet after 10 its logits differ nine times as much as at the start; with
    gate bias 0 they differ by rounding errors all the time.

    From `steps` steps on, once an epoch, a training ends if the mean loss of no epoch
    so far was below (1 − `margin`) times that of guessing by the frequencies of the
    classes, and the standard deviation of the logits over images is less than `growth`
    times that at the start. A loss that is not finite ends it at once.

    Args:
        images, labels: the training set.
        steps: how many steps a training has, at least; None only watches.
        margin: 1 % by default.
        growth: 4 by default; without training it fluctuated by a factor of 2.

    Attributes:
        chance: the loss of guessing.
        state: "at chance", "trains" or "diverged".
        done: number of steps that were done.

    Example:
        >>> import zoo
        >>> images, labels = zoo.datasets.arrays("digits", "train")
        >>> round(zoo.training.StopAtChance(images, labels, steps=100).chance, 4)
        2.3025
    """

    def __init__(self, images, labels, steps, margin=0.01, growth=4.0):
        super().__init__()
        counts = np.bincount(np.asarray(labels))
        shares = counts[counts > 0] / counts.sum()
        self.chance = float(-(shares * np.log(shares)).sum())
        self.images = images[:_SAMPLE]
        self.steps, self.margin, self.growth = steps, margin, growth
        self.state, self.done = "at chance", 0

    def on_train_begin(self, logs=None):
        self.spread = self._spread()

    def on_epoch_end(self, epoch, logs=None):
        self.done += self.params["steps"]
        loss = logs["loss"] - float(sum(self.model.losses))  # without weight decay
        if not math.isfinite(loss):
            self.state = "diverged"
            self.model.stop_training = True
        elif loss < (1 - self.margin) * self.chance:
            self.state = "trains"
        elif self.state == "at chance" and self.steps and self.done >= self.steps:
            if self._spread() < self.growth * self.spread:
                self.model.stop_training = True

    def _spread(self):
        """How far the logits differ between images."""
        logits = self.model(self.images, training=False)
        return float(np.std(np.asarray(logits, "float64"), axis=0).mean())
