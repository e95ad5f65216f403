"""Recipe configs: one module a result, its claim in the docstring.

A module holds `CONFIG = Config(...)`; `load(name)` gives it, `names()` lists them.
"""

import ast
import dataclasses
import difflib
import importlib
import inspect
import pathlib
from typing import Any

from zoo import models
from zoo._checks import known


@dataclasses.dataclass(frozen=True)
class Config:
    """Everything that a run's numbers depend on.

    Attributes:
        builder: name of a function of `zoo.models`.
        model: its arguments.
        dataset: name for `zoo.datasets.load`.
        epochs, batch_size: of training.
        drop_remainder: whether an epoch leaves out its last batch if that is not full
            (and not its only one). With batch normalisation a small last batch leaves
            its mark on the moving statistics.
        optimizer: {"name": a Keras optimizer, its arguments …}; "sgd" is
            `zoo.training.SGD`, which takes `bias_rate` too.
        schedule: of the learning rate. {} keeps it; {"name": "step", …} takes the
            arguments of `zoo.training.StepSchedule`, in steps at `rate_batch_size`;
            {"name": "cosine", "warmup_epochs": …} rises linearly from 0, over half of
            the steps at most, and falls along half a cosine to 0 at the last step;
            with "restarts": […] it starts again after these epochs, each time from
            "factor" of the rate before (`zoo.training.CosineRestarts`);
            {"name": "exponential", "decay_rate": …} multiplies it by that each epoch,
            little by little.
        rate_batch_size: batch size that rate and schedule are meant for: another
            `batch_size` scales the rate in proportion (Goyal et al. 2017) and the
            steps of the schedule inversely. None leaves both as they are.
        decay, decay_on, decay_head_factor: λ, what it is on, and its factor on the
            logits, see `zoo.training.set_decay`.
        teacher: of a student: name of a config whose run is finished, directory of a
            finished run, or a name of `zoo.list_pretrained()`. None trains the model
            alone, whatever `hint` and `distill` say.
        hint: a first stage of `zoo.training.HintTrainer`: {"epochs": …, its layers}.
            It has optimizer and schedule of its own from the same settings, and no
            decay. {} leaves it out.
        distill: arguments of `zoo.training.Distiller` for the `epochs` of training,
            whose steps are those within which λ falls; {} learns from labels alone.
        train_split: split trained on; "train" leaves "validation" for choosing.
        test_sizes: further sizes of square images to test at, for a model of open
            height and width and a data set that is cropped to size (ImageNet).
        train_images: train on the first so many images of the split in its base
            order, a fixed sample; None takes all.
        validate: whether the split "validation" is evaluated after each epoch, for
            the curve in history.csv; with `train_split` "train".
        seed: of weights, dropout and the order of the data.
        strategy: of `zoo.distribution.strategy`.
        dtype_policy: of training: "float32", "mixed_bfloat16" (faster where the
            hardware has it) or "mixed_float16" (with loss scaling). Whatever it is,
            the trained weights are float32, and are tested and exported as such.
        jit_compile: whether Keras compiles the step with XLA; slower for unrolled
            nets on a CPU.
    """

    builder: str
    model: dict[str, Any]
    dataset: str
    epochs: int
    batch_size: int
    optimizer: dict[str, Any]
    drop_remainder: bool = False
    schedule: dict[str, Any] = dataclasses.field(default_factory=dict)
    rate_batch_size: int | None = None
    decay: float = 0.0
    decay_on: str = "kernels"
    decay_head_factor: float = 1.0
    teacher: str | None = None
    hint: dict[str, Any] = dataclasses.field(default_factory=dict)
    distill: dict[str, Any] = dataclasses.field(default_factory=dict)
    train_split: str = "train+validation"
    test_sizes: tuple[int, ...] = ()
    train_images: int | None = None
    validate: bool = False
    seed: int = 0
    strategy: str = "auto"
    dtype_policy: str = "float32"
    jit_compile: bool = False

    def replace(self, **changes) -> "Config":
        """A copy with other values; dicts are merged into the present ones."""
        for key, value in changes.items():
            if isinstance(value, dict):
                changes[key] = {**getattr(self, key), **value}
        return dataclasses.replace(self, **changes)

    def set(self, assignment: str) -> "Config":
        """A copy with one `key=value` set; `model.gate_bias=-3` reaches into dicts,
        `hint=none` and `distill=none` empty them.

        Raises:
            ValueError: no `=`, an unknown field, or a value of another type.
        """
        key, equals, text = assignment.partition("=")
        if not equals:
            raise ValueError(f"`--set` takes key=value. Received: {assignment!r}")
        if key in ("hint", "distill") and text.lower() == "none":
            return dataclasses.replace(self, **{key: {}})
        fields = self.flat()
        if key.startswith(("optimizer.", "schedule.")) and key not in fields:
            fields[key] = None  # the optimizer and the schedule know what they take
        if key.startswith(("hint.", "distill.")):
            fields[key] = None  # so do the trainers, and layers have names or numbers
        if key not in fields:
            # a name without its group: model.gate_bias for gate_bias
            near = [name for name in fields if name.split(".")[-1] == key]
            near += difflib.get_close_matches(key, fields, 5, 0.6)
            raise ValueError(
                f"`--set` takes a field of the config, such as "
                f"{', '.join(dict.fromkeys(near)) or ', '.join(fields)}. "
                f"Received: {key!r}"
            )
        own = {field.name: field.default for field in dataclasses.fields(self)}
        default = {**own, **self.defaults()}.get(key, ...)
        value = _parse(key, text, fields[key], default)
        group, dot, name = key.partition(".")
        return self.replace(**{group: {name: value} if dot else value})

    def defaults(self) -> dict[str, Any]:
        """The builder's defaults, by dotted name."""
        builder = getattr(models, known("builder", self.builder, models.BUILDERS))
        return {
            f"model.{name}": parameter.default
            for name, parameter in inspect.signature(builder).parameters.items()
            if parameter.kind is not parameter.POSITIONAL_ONLY
            and name != "name"  # the run's
        }

    def flat(self) -> dict[str, Any]:
        """All fields by dotted name, the builder's unset arguments included."""
        fields = {}
        for key, value in dataclasses.asdict(self).items():
            if key == "model":
                fields.update(self.defaults())
            if isinstance(value, dict):
                fields.update({f"{key}.{k}": v for k, v in value.items()})
            else:
                fields[key] = value
        return fields


def names() -> list[str]:
    """Names of all configs."""
    return sorted(p.stem for p in pathlib.Path(__file__).parent.glob("[a-z]*.py"))


def load(name: str) -> Config:
    """The config of that name; ValueError lists the known ones, nearest first."""
    known("name", name, names())
    return importlib.import_module(f"{__name__}.{name}").CONFIG


def claim(name: str) -> str:
    """First line of the config's docstring."""
    module = importlib.import_module(f"{__name__}.{known('name', name, names())}")
    return module.__doc__.strip().splitlines()[0]


def _parse(key, text, present, default):
    """`text` as a Python literal of the type of the present value, if it has one."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = {"true": True, "false": False, "none": None, "null": None}.get(
            text.lower(), text
        )
    if present is None or present is inspect.Parameter.empty or value is default:
        return value
    if isinstance(present, float) and type(value) is int:
        return float(value)
    kinds = (list, tuple) if isinstance(present, (list, tuple)) else (type(present),)
    # an initializer by name or as a dict; `scan`: "auto", True or False
    flexible = {type(present), type(value)} in ({str, dict}, {str, bool})
    if type(value) not in kinds and not flexible:
        raise ValueError(
            f"`{key}` must be of type {type(present).__name__}, such as {present!r}. "
            f"Received: {key}={text}"
        )
    return value
