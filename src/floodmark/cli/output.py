"""The output of commands: reports as text or JSON on standard output, progress on standard error.

On a terminal tables have colours and lines; elsewhere they are plain columns for `grep` and `cut`.
"""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floodmark.maintenance.findings import Finding


def print_json(report: Any) -> None:
    """A report (a dataclass, or lists and dicts of them) as one JSON document."""
    import msgspec

    try:
        text = msgspec.json.format(msgspec.json.encode(report), indent=2).decode()
    except UnicodeEncodeError:  # a path may contain bytes that are not UTF-8: escaped, they are valid JSON
        text = json.dumps(msgspec.to_builtins(report), indent=2)
    click.echo(text)


def print_table(
    headers: Sequence[str], rows: Sequence[Sequence[Any]], *, title: str | None = None, grouped: bool = True
) -> None:
    """Rows under headers; numbers are right-aligned, with thousands separators if `grouped`."""
    cells = [[cell_text(value, grouped=grouped) for value in row] for row in rows]
    right = [bool(rows) and all(_is_number(row[index]) for row in rows) for index in range(len(headers))]
    if sys.stdout.isatty():
        _print_rich(headers, cells, right, title)
        return
    if title:
        click.echo(title)
    for line in plain_lines([list(headers), *cells], right):
        click.echo(line)


def plain_lines(cells: Sequence[Sequence[str]], right: Sequence[bool]) -> Iterator[str]:
    widths = [max(len(row[index]) for row in cells) for index in range(len(right))]
    for row in cells:
        aligned = [
            cell.rjust(width) if at_right else cell.ljust(width)
            for cell, width, at_right in zip(row, widths, right, strict=True)
        ]
        yield "  ".join(aligned).rstrip()


def _print_rich(headers: Sequence[str], cells: list[list[str]], right: list[bool], title: str | None) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(title=title, box=box.SIMPLE_HEAD, title_justify="left", pad_edge=False, padding=(0, 1, 0, 0))
    for header, at_right in zip(headers, right, strict=True):
        table.add_column(header, justify="right" if at_right else "left", overflow="fold", no_wrap=at_right)
    for row in cells:
        table.add_row(*[Text(cell) for cell in row])
    Console().print(table)


def cell_text(value: Any, *, grouped: bool = True) -> str:
    """The text of a value in a table: empty for None, and without control characters."""
    if value is None:
        return ""
    if grouped and isinstance(value, int) and not isinstance(value, bool):
        return f"{value:,}"
    text = str(value)
    return text if text.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool))


def size_text(count: int) -> str:
    """A number of bytes with a unit."""
    size = float(count)
    for unit in ("B", "KiB", "MiB"):
        if size < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} GiB"


def counted(number: int, of: str, plural: str | None = None) -> str:
    """A number of things: `1 row`, `2,000 rows`."""
    return f"{number:,} {of if number == 1 else plural or of + 's'}"


def note(text: str) -> None:
    """One line of progress or advice, on standard error."""
    click.echo(text, err=True)


@contextlib.contextmanager
def working(text: str) -> Iterator[None]:
    """Show a spinner; only on a terminal, and not while Spark's own output is shown."""
    context = click.get_current_context(silent=True)
    if not sys.stderr.isatty() or (context is not None and context.find_root().params.get("verbose")):
        yield
        return
    from rich.console import Console

    with Console(stderr=True).status(text):
        yield


# ── How findings of a check are shown: what is wrong, where, and what to run ─────────────────────────────────────────


WRONG = 3
"""The exit code of a check that found something."""
SHOWN_MAX = 200


def print_findings(findings: Sequence[Finding], *, sound: str) -> None:
    wrong = [item for item in findings if item.wrong]
    for item in [*wrong, *(item for item in findings if not item.wrong)][:SHOWN_MAX]:
        click.echo(f"{'WRONG' if item.wrong else 'note '}  {item.kind}  {item.where}")
        click.echo(f"       {item.what}")
        click.echo(f"       {item.run}")
    if len(findings) > SHOWN_MAX:
        click.echo(f"… and {len(findings) - SHOWN_MAX} more. Use `--json` to see all.")
    click.echo(f"{counted(len(wrong), 'problem')} found." if wrong else sound)


def finding_json(item: Finding) -> dict[str, Any]:
    return {
        "kind": item.kind,
        "wrong": item.wrong,
        "where": item.where,
        "range": None if item.range is None else [item.range.after, item.range.through],
        "what": item.what,
        "run": item.run,
    }


# ── Progress of work in named steps, on standard error ───────────────────────────────────────────────────────────────


@contextlib.contextmanager
def steps(title: str) -> Iterator[Callable[[str], None] | None]:
    """Show the current step; only on a terminal."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{title} …") as status:
        yield lambda step: status.update(f"{title}: {step} …")
