"""Results of analysis as files."""

import csv
import io
import json
import os
import pathlib
from collections.abc import Sequence

import numpy as np


def to_json(result, path: str | os.PathLike) -> pathlib.Path:
    """Writes a result of analysis as JSON; NaN and infinity become null.

    Args:
        result: an array, a list of arrays, a NamedTuple of such, or a dict of these.
        path: file, written beside and renamed into place.

    Returns:
        The path.

    Example:
        >>> import tempfile, zoo
        >>> path = tempfile.mkdtemp() + "/biases.json"
        >>> model = zoo.highway_mlp((4,), depth=3, units=2)
        >>> zoo.analysis.to_json(zoo.analysis.gate_biases(model), path).read_text()
        '[[-2.0, -2.0], [-2.0, -2.0]]\\n'
    """
    return _write(path, json.dumps(_plain(result), allow_nan=False) + "\n")


def to_csv(
    result,
    path: str | os.PathLike,
    *,
    names: Sequence[str] | None = None,
    axis: int = 0,
    row: str = "layer",
) -> pathlib.Path:
    """Writes a result of analysis as CSV, a row for each layer.

    Args:
        result: an array over layers, a list of such rows, or a NamedTuple: of its
            fields those over layers become columns. Further axes are columns too:
            `gates_3_1` is image 3, unit 1 in the trace's gates; what a narrow layer
            lacks is empty.
        path: file, written beside and renamed into place.
        names: of the layers; a NamedTuple brings its own.
        axis: which axis of an array is that of the layers: 1 for `gates_by_class`.
        row: heading of the column of names; "character" for `gates_by_character`.

    Returns:
        The path.

    Raises:
        ValueError: names that do not fit, or nothing that runs over layers.
    """
    fields = result._asdict() if hasattr(result, "_asdict") else {"value": result}
    names = fields.pop("names", names)
    fields = {
        key: value.swapaxes(0, axis) if isinstance(value, np.ndarray) else value
        for key, value in fields.items()
        if isinstance(value, (np.ndarray, list))
    }
    count = len(names if names is not None else next(iter(fields.values()), ()))
    if "outputs" in fields:  # of a trace: the first layer's input has no row
        fields["outputs"] = fields["outputs"][1:]
    if not count or any(len(value) != count for value in fields.values()):
        raise ValueError(
            "`names` must be one name for each layer. Received: "
            f"{count} names, {', '.join(f'{len(v)} rows' for v in fields.values())}"
        )
    names = [f"layer_{i}" for i in range(1, count + 1)] if names is None else names
    rows = []
    for i, name in enumerate(names):
        cells = {row: name}
        for key, value in fields.items():
            one = np.asarray(value[i])
            for index in np.ndindex(one.shape):
                cells["_".join([key, *map(str, index)])] = one[index]
        rows.append(cells)
    text = io.StringIO(newline="")
    columns = dict.fromkeys(key for cells in rows for key in cells)
    writer = csv.DictWriter(text, list(columns), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return _write(path, text.getvalue())


def _plain(value):
    if hasattr(value, "_asdict"):
        value = value._asdict()
    if isinstance(value, dict):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, np.ndarray):
        return _plain(value.tolist())
    if isinstance(value, (list, tuple)):
        return [_plain(one) for one in value]
    if isinstance(value, np.generic):
        return _plain(value.item())
    return None if isinstance(value, float) and not np.isfinite(value) else value


def _write(path, text):
    path = pathlib.Path(path)
    temporary = path.with_name(f".{path.name}.tmp")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(path)
    return path
