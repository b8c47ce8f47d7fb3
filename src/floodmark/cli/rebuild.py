"""`floodmark rebuild`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import column_list, dataset_names, json_option, open_store
from floodmark.cli.output import counted, note, print_json, progress

if TYPE_CHECKING:
    from floodmark.maintenance.rebuild import RebuildReport


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.option("--bucket-width", type=int, metavar="N", help="Sequence numbers per table partition.")
@click.option("--format-version", type=click.Choice(["2", "3"]), help="The Iceberg format version of the new table.")
@click.option("--warehouse", metavar="PLACE", help="The directory or URL for the new table's files.")
@click.option("--sort", metavar="COLUMNS", callback=column_list, help="Sort the rows of a file by these columns first.")
@click.option("--take-over", is_flag=True, help="Take over from a process that is still running the rebuild.")
@json_option
def rebuild(
    dataset: str,
    bucket_width: int | None,
    format_version: str | None,
    warehouse: str | None,
    sort: list[str] | None,
    take_over: bool,
    as_json: bool,
) -> None:
    """Copy DATASET into a new table, with another layout or location, and switch to it.

    Flushes continue while rows are copied, and wait only for the switch. Readers, cursors and sinks are not affected.
    Options that are not given keep their value. After a crash run the same command to continue. The old table is kept
    for a day, and removed by a later rebuild or compaction.

    \b
    Examples:
      floodmark rebuild events --bucket-width 4194304
      floodmark rebuild events --warehouse /mnt/larger-disk --format-version 3
    """
    with open_store() as store, progress(f"Rebuilding {dataset}") as shown:
        report = store.rebuild(
            dataset,
            bucket_width=bucket_width,
            format_version=None if format_version is None else int(format_version),
            warehouse=warehouse,
            sort=sort,
            takeover=take_over,
            progress=lambda done: shown.update(done.rows_copied),
        )
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: RebuildReport) -> None:
    click.echo(
        f"{report.dataset} is now in a new table (generation {report.generation}) with {counted(report.rows, 'row')}."
    )
    click.echo(
        f"It is at {report.location}; the table at {report.previous_location} is removed by a later compaction or "
        "rebuild."
    )
    note(f"{counted(report.rows_copied, 'row')} copied in {counted(report.copies, 'part')}.")
    if report.buckets_repaired:
        note(f"{report.buckets_repaired:,} buckets changed during the copy and were copied again.")
    for generation in report.removed:
        note(f"Generation {generation}, replaced by an earlier rebuild, was removed.")
