"""`floodmark purge`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import note, print_json, size_text, working

if TYPE_CHECKING:
    from floodmark.maintenance.purge import PurgeReport


@click.command()
@click.argument("dataset")
@click.option("--where", metavar="SQL", required=True, help="Rows for which this is true go for good.")
@click.option("--dry-run", is_flag=True, help="Only tell what would go.")
@json_option
def purge(dataset: str, where: str, dry_run: bool, as_json: bool) -> None:
    """Remove rows of DATASET for good: from lake, spool and quarantine, whether or not a sink has got them.

    Afterwards no data file holds them. What is left is a hash of each identity, so that no backfill brings the rows
    back. Rows that had already left to a sink are counted; remove them there yourself.

    \b
    Examples:
      floodmark purge messages --where "author = 'someone@example.org'" --dry-run
      floodmark purge messages --where "author = 'someone@example.org'"
    """
    with open_store() as store, working(f"Purging {dataset} …"):
        report = store.purge(dataset, where, dry_run=dry_run)
    if as_json:
        print_json(report)
    else:
        _show(report)


def _show(report: PurgeReport) -> None:
    verb = "would go" if report.dry_run else "are gone"
    click.echo(
        f"{report.rows:,} rows from the lake, {report.spool_rows:,} from the spool and {report.quarantined:,} entries "
        f"of the quarantine {verb}."
    )
    if not report.dry_run:
        click.echo(f"{report.identities:,} identities do not come back; {size_text(report.bytes_freed)} are free.")
    for item in report.already_delivered:
        note(f"Sink {item.sink} had been given {item.rows:,} of the rows: remove them there.")
    for id in report.not_evaluated:
        note(f"Quarantine entry {id} cannot be judged: look at it, and discard it if it belongs to them.")
    for name in report.landing_files:
        note(f"A writer still holds the landing file {name}: what is in it goes when the writer closes it.")
