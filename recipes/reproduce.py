"""Reproduces a table or figure of a paper: its runs, beside the paper's column.

    python recipes/reproduce.py digits_depth
    python recipes/reproduce.py digits_gate_bias --seeds 3
    python recipes/reproduce.py table1_shortcuts --budget small

Writes table.csv, table.json and a plot under runs/reproduce/TABLE/ (TABLE_small/ for
the small budget). Runs that are done are kept and used again: stop with Ctrl-C, and
the same command goes on.
"""

import argparse
import csv
import io
import json
import os
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from rich import box  # noqa: E402
from rich.console import Console  # noqa: E402
from rich.table import Table  # noqa: E402

from recipes import train  # noqa: E402
from recipes.tables import (  # noqa: E402
    characters,
    cifar,
    digits,
    identity_mappings,
    runs,
    very_deep,
)
from zoo._checks import check_int, known  # noqa: E402
from zoo.analysis import plots  # noqa: E402

TABLES = {
    **digits.TABLES,
    **very_deep.TABLES,
    **cifar.TABLES,
    **identity_mappings.TABLES,
    **characters.TABLES,
}


def _show(value):
    if value is None:
        return ""
    if isinstance(value, float):
        small = value != 0 and abs(value) < 1e-2
        return f"{value:.2e}" if small else f"{value:.4g}"
    return str(value)


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("table", nargs="?", help=", ".join(TABLES))
    parser.add_argument("--budget", default="full", help="full (the paper's) or small")
    parser.add_argument("--seeds", type=int, help="seeds a row (5; 2 for small)")
    args = parser.parse_args(argv)
    try:
        table = TABLES[known("table", args.table, TABLES)]
        known("--budget", args.budget, table.seeds)
        seeds = table.seeds[args.budget] if args.seeds is None else args.seeds
        check_int("--seeds", seeds)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    try:
        rows, figure = table.make(seeds, args.budget)
    except (runs.Refused, OSError) as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("\nStopped; the same command goes on with the runs that are missing.")
        return 130
    name = args.table + ("" if args.budget == "full" else f"_{args.budget}")
    folder = runs.ROOT / name
    folder.mkdir(parents=True, exist_ok=True)
    columns = list(dict.fromkeys(key for row in rows for key in row))
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    train.write(folder / "table.csv", text.getvalue())
    sentences = table.findings(rows)
    record = {"table": name, "rows": rows, "findings": sentences}
    train.write(folder / "table.json", json.dumps(record, indent=2) + "\n")
    plots.save(figure, folder / "plot.png")
    show(columns, rows, table.make.__doc__.splitlines()[0])
    for sentence in sentences:
        print(sentence)
    print(f"In {folder}: plot.png, table.csv, table.json")
    return 0


def show(columns, rows, title):
    table = Table(box=box.SIMPLE, title=title)
    for column in columns:
        table.add_column(column, overflow="fold")
    for row in rows:
        table.add_row(*(_show(row.get(column)) for column in columns))
    console = Console()
    if not console.is_terminal:  # a file or a pipe has room
        console = Console(width=150)
    console.print(table)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except KeyboardInterrupt:
        sys.exit("\nStopped.")
