"""`floodmark demo`: the complete pipeline on a scratch store, with its results checked."""

from __future__ import annotations

import contextlib
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option
from floodmark.cli.output import note, print_json, print_table

if TYPE_CHECKING:
    from floodmark.cli.demo.story import Story


@click.command()
@click.option(
    "--rows", type=click.IntRange(min=1000), default=40_000, show_default=True, help="Number of rows to send."
)
@click.option("--store", "directory", type=click.Path(path_type=Path), help="Create the store here, and keep it.")
@click.option("--keep", is_flag=True, help="Keep the scratch store.")
@json_option
def demo(rows: int, directory: Path | None, keep: bool, as_json: bool) -> None:
    """Run the complete pipeline on scratch stores, and check the result.

    Two edge stores have live writers, which send messages out of order, some of them twice, and one each that does not
    fit. Both edges commit and forward them to a hub in another process, which is killed halfway and started again.
    There, history is loaded that overlaps the live rows; the rows are delivered to files and to another Iceberg table,
    and the table is compacted. Late messages go all the way, and a reader gets exactly these. An audit compares every
    row at every destination. Every count is compared with what was sent; the exit code is 1 if one differs.

    On a terminal it ends with the address of the hub's dashboard, and waits for Enter.

    \b
    Examples:
      floodmark demo
      floodmark demo --store /tmp/demo && floodmark -s /tmp/demo status
    """
    from floodmark.cli.demo.rows import Plan
    from floodmark.cli.demo.story import Story

    started = time.perf_counter()
    with _place(directory, keep=keep) as place:
        note(f"Store: {place}")
        story = Story(Plan(rows), str(place), note, None if as_json or not sys.stdin.isatty() else _wait)
        story.run()
        if as_json:
            print_json({"holds": story.holds, "steps": story.steps, "claims": story.claims})
        else:
            _show(story, seconds=time.perf_counter() - started)
    if keep or directory is not None:
        note(f"The store is kept. To inspect it, run: floodmark -s {place} status")
    if not story.holds:
        click.get_current_context().exit(1)


@contextlib.contextmanager
def _place(directory: Path | None, *, keep: bool) -> Iterator[Path]:
    if directory is not None:
        yield directory.expanduser().absolute()
    elif keep:
        yield Path(tempfile.mkdtemp(prefix="floodmark-demo-")) / "store"
    else:
        with tempfile.TemporaryDirectory(prefix="floodmark-demo-", ignore_cleanup_errors=True) as scratch:
            yield Path(scratch) / "store"


def _wait(address: str) -> None:
    """Leave the hub running, with its dashboard, until somebody has looked at it."""
    note(f"The dashboard of the hub is at {address}/ Look at it, then press Enter.")
    with contextlib.suppress(EOFError):
        input()


def _show(story: Story, *, seconds: float) -> None:
    click.echo()
    print_table(
        ["step", "seconds", "result"],
        [[step.name, f"{step.seconds:7.2f}", step.result] for step in story.steps],
        title="What happened",
    )
    click.echo()
    print_table(
        ["claim", "expected", "found", "holds"],
        [[claim.text, claim.wanted, claim.found, "yes" if claim.holds else "NO"] for claim in story.claims],
        title="Checks",
    )
    click.echo()
    verdict = "All checks passed" if story.holds else "A check failed"
    click.echo(f"{verdict}. {seconds:.0f} seconds in total.")
