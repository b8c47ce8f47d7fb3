"""`make bench`: every figure as a ratio in one run, as JSON in .cache/bench and as a table in the terminal.

With --record the figures become those of bench/records, and docs/explanation/performance.md is written anew.
"""

from __future__ import annotations

import argparse
import importlib
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.page import write_page
from bench.records import HERE, keep, new_record

PARTS = (
    "fresh",
    "growth",
    "live",
    "store",
    "captures",
    "delivery",
    "upkeep",
    "eventlog",
    "backfill",
    "folding",
    "cluster",
)
OTHERS = ("watch", "metadata", "edges")
"""By name only: half an hour of a store that is left alone, tables of up to 10^10 rows, and 200 edges, which need the
programs of a PostgreSQL server.
"""


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument(
        "parts",
        nargs="*",
        default=[],
        metavar="PART",
        help=f"which of: {', '.join(PARTS)} (default: all), {', '.join(OTHERS)}",
    )
    parser.add_argument("--scale", type=float, help="of the usual size, for a quick look (not for eventlog)")
    parser.add_argument("--record", action="store_true", help="keep the figures in bench/records, and write the page")
    parser.add_argument("--beside", action="store_true", help="say that the machine had other work, too")
    given = parser.parse_args()
    sized = {} if given.scale is None else {"scale": given.scale}
    console = Console()
    directory = HERE if given.record else Path(".cache/bench")
    directory.mkdir(parents=True, exist_ok=True)
    for part in given.parts or PARTS:
        console.rule(f"bench: {part}")
        figures = importlib.import_module(f"bench.{part}").run(**sized)
        record = new_record(part, figures, scale=given.scale or 1.0, quiet=not given.beside)
        file = keep(record, directory)
        console.print(_table(part, figures))
        console.print(f"written to {file}")
        if given.record:
            console.print(f"written to {write_page()}")


def _table(title: str, figures: dict[str, Any]) -> Table:
    table = Table(title=title)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, value in _flat(figures):
        table.add_row(name, f"{value:,}" if isinstance(value, int) else str(value))
    return table


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in figures.items():
        path = f"{prefix}{name}"
        found += _flat(value, f"{path} · ") if isinstance(value, dict) else [(path, value)]
    return found


if __name__ == "__main__":
    main()
