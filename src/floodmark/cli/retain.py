"""`floodmark retain`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, json_option, open_store
from floodmark.cli.output import counted, note, print_json, print_table, size_text, working

if TYPE_CHECKING:
    from floodmark.maintenance.retain import RetainReport


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.option("--older-than", metavar="AGE", help="Remove rows older than this, such as 30d, 12h or 8w.")
@click.option(
    "--by",
    type=click.Choice(["event", "ingest"]),
    default="event",
    show_default=True,
    help="Measure age from a row's event time, or from its commit.",
)
@click.option(
    "--keep-rows", type=click.IntRange(min=0), metavar="N", help="Keep the newest N rows, and remove all others."
)
@click.option(
    "--give-up",
    multiple=True,
    metavar="SINK",
    help="Do not wait for this sink: it never receives the removed rows. Can be repeated.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
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
    """Remove old rows of DATASET, and free their disk space.

    Rows that a sink has not received yet are kept, and the sink is reported. Rows without an event time are never
    removed by age. After a removal by event time, older rows that arrive later are counted as expired and not
    committed.

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
        click.echo(f"{counted(report.rows, 'row')} of {report.dataset} would be removed.")
    else:
        freed = f"; {size_text(report.bytes_freed)} freed" if report.bytes_freed else ""
        click.echo(f"{counted(report.rows, 'row')} of {report.dataset} removed{freed}.")
    if report.removed:
        print_table(
            ["partition", "rows", "range"], [[item.partition, item.rows, item.range] for item in report.removed]
        )
    for holding in report.held_back_by:
        note(
            f"Sink {holding.sink} is {counted(holding.lag_rows, 'row')} behind and still needs "
            f"{counted(holding.rows, 'old row')} (about {size_text(holding.bytes)}). "
            "Export to it, or name it with --give-up."
        )
    for item in report.forfeited:
        will = "would not receive" if report.dry_run else "does not receive"
        note(f"Sink {item.sink} {will} {counted(item.rows, 'row')} of {item.partition}: those of {item.range}.")
