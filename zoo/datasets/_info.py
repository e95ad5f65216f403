from dataclasses import dataclass


@dataclass(frozen=True)
class DatasetInfo:
    """What is known about a data set.

    Args:
        name: The name that `zoo.datasets.load` knows it by.
        image_shape: (height, width, channels) of an image; None of a text.
        class_names: Name of each class; the place of a name is its label.
        pixel_range: Smallest and largest value that a pixel can have; None of a text.
        num_train: Examples of the split "train", nine tenths of the training set.
        num_validation: Examples of the split "validation", the other tenth.
        num_test: Examples of the split "test".
        sha256: Of all examples, where they differ from machine to machine: the text
            of installed packages.
    """

    name: str
    image_shape: tuple[int, int, int] | None
    class_names: tuple[str, ...]
    pixel_range: tuple[int, int] | None
    num_train: int
    num_validation: int
    num_test: int
    sha256: str | None = None

    @property
    def num_classes(self) -> int:
        """Number of classes: labels are 0 … `num_classes` − 1."""
        return len(self.class_names)
