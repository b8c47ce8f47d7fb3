"""`floodmark retain`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import note, print_json, print_table, size_text, working

if TYPE_CHECKING:
    from floodmark.maintenance.retain import RetainReport


@click.command()
@click.argument("dataset")
@click.option("--older-than", metavar="AGE", help="Rows older than this go: 30d, 12h, 8w.")
@click.option(
    "--by",
    type=click.Choice(["event", "ingest"]),
    default="event",
    show_default=True,
    help="Whether age is counted from a row's event time, or from its commit.",
)
@click.option("--keep-rows", type=click.IntRange(min=0), metavar="N", help="All but the newest N rows go.")
@click.option("--give-up", multiple=True, metavar="SINK", help="Do not wait for this sink: it never gets what goes.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@json_option
def retain(
    dataset: str,
    older_than: str | None,
    by: str,
    keep_rows: int | None,
    give_up: tuple[str, ...],
    dry_run: bool,
    as_json: bool,
) -> None:
    """Remove the old rows of DATASET, and free the room they take.

    A row that a sink has still to get stays, and the sink is named. A row without an event time is never too old. What
    went by event time does not come back: older rows that arrive later are counted as expired, and not committed.

    \b
    Examples:
      floodmark retain events --older-than 30d --dry-run
      floodmark retain events --older-than 90d --by ingest
      floodmark retain events --keep-rows 1000000
      floodmark retain events --older-than 30d --give-up archive
    """
    with open_store() as store, working(f"Removing old rows of {dataset} …"):
        report = store.retain(
            dataset,
            older_than=older_than,
            by=f"{by}_time",
            keep_rows=keep_rows,
            give_up=give_up,
            dry_run=dry_run,
        )
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: RetainReport) -> None:
    if report.dry_run:
        click.echo(f"{report.rows:,} rows of {report.dataset} would go.")
    else:
        click.echo(f"{report.rows:,} rows of {report.dataset} are gone; {size_text(report.bytes_freed)} are free.")
    if report.removed:
        print_table(
            ["partition", "rows", "range"], [[item.partition, item.rows, item.range] for item in report.removed]
        )
    for holding in report.held_back_by:
        note(
            f"Sink {holding.sink} is {holding.lag_rows:,} rows behind and holds {holding.rows:,} old rows back "
            f"(about {size_text(holding.bytes)}). Export to it, or name it with --give-up."
        )
    for item in report.forfeited:
        will = "would never get" if report.dry_run else "never gets"
        note(f"Sink {item.sink} {will} {item.rows:,} rows of {item.partition}: those of {item.range}.")
