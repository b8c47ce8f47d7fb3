"""The output of commands: reports as text or JSON on standard output, progress on standard error.

On a terminal tables have colours and lines; elsewhere they are plain columns for `grep` and `cut`.
"""

from __future__ import annotations

import contextlib
import json
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from floodmark.delivery.destination import Finding


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


# ── Progress, on standard error ──────────────────────────────────────────────────────────────────────────────────────
# On a terminal one line that changes; elsewhere a plain line when work takes longer than two seconds, and then now and
# then. A piece of work that is interrupted says what is left to do.


FIRST_SECONDS = 2.0
LATER_SECONDS = 10.0
AGAIN = "Run the same command again: it continues."
NOTHING = "Nothing was changed."


class Progress:
    """What one piece of work has done: a step that it is at, or how many of how many."""

    def __init__(self, title: str, unit: str = "rows") -> None:
        self.title = title
        self._unit = unit
        self._begun = time.monotonic()
        self._step = ""
        self._done = 0
        self._rows = 0
        self._total: int | None = None
        self.changed = threading.Event()

    def step(self, text: str) -> None:
        """Name what it is at."""
        self._step = text
        self.changed.set()

    def update(self, rows: int, *, done: int | None = None, total: int | None = None) -> None:
        """Count rows. `done` of `total` is how far it is, where that is counted in something else: bytes."""
        self._rows, self._done, self._total = rows, rows if done is None else done, total
        self.changed.set()

    def line(self) -> str:
        """Everything in one line: `Exporting to archive: 2,000 of 9,000 rows, 800/s, about 9 s left`."""
        seconds = max(time.monotonic() - self._begun, 0.001)
        if not self._rows:
            step = f": {self._step}" if self._step else ""
            return f"{self.title}{step} … {seconds:.0f} s" if seconds >= FIRST_SECONDS else f"{self.title}{step} …"
        rate = self._rows / seconds
        whole = f" of {self._total:,}" if self._total and self._done == self._rows else ""
        parts = [f"{self._rows:,}{whole} {self._unit}", f"{rate:,.0f}/s"]
        if self._total and 0 < self._done <= self._total:
            parts.append(f"about {seconds / self._done * (self._total - self._done):,.0f} s left")
        return f"{self.title}: {', '.join(parts)}"


@contextlib.contextmanager
def progress(title: str, *, left: str = AGAIN, unit: str = "rows") -> Iterator[Progress]:
    """Show how far a piece of work is. `left` says what is to be done if it is interrupted."""
    shown = Progress(title, unit)
    ended = threading.Event()
    context = click.get_current_context(silent=True)
    loud = context is not None and bool(context.find_root().params.get("verbose"))  # Spark's own output is shown
    show = _show_on_terminal if sys.stderr.isatty() and not loud else _show_plainly
    thread = threading.Thread(target=show, args=(shown, ended), daemon=True)
    thread.start()
    try:
        yield shown
    except KeyboardInterrupt:
        ended.set()
        thread.join()
        note(f"Interrupted. {shown.line().replace(' …', '')}. {left}")
        raise
    finally:
        ended.set()
        thread.join()


def _show_plainly(shown: Progress, ended: threading.Event) -> None:
    wait = FIRST_SECONDS
    while not ended.wait(wait):
        note(shown.line())
        wait = LATER_SECONDS


def _show_on_terminal(shown: Progress, ended: threading.Event) -> None:
    from rich.console import Console
    from rich.text import Text

    with Console(stderr=True).status(Text(shown.line())) as status:
        while not ended.wait(0.2):
            status.update(Text(shown.line()))


@contextlib.contextmanager
def working(text: str, *, left: str = AGAIN) -> Iterator[None]:
    """Show that something is being done."""
    with progress(text.removesuffix(" …"), left=left):
        yield


@contextlib.contextmanager
def steps(title: str, *, left: str = AGAIN) -> Iterator[Callable[[str], None]]:
    """Show the current step."""
    with progress(title, left=left) as shown:
        yield shown.step
