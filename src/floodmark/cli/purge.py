"""`floodmark purge`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, json_option, open_store
from floodmark.cli.output import counted, note, print_json, size_text, working

if TYPE_CHECKING:
    from floodmark.maintenance.purge import PurgeReport


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.option("--where", metavar="SQL", required=True, help="Remove rows for which this condition is true.")
@click.option("--dry-run", is_flag=True, help="Only show what would be removed.")
@json_option
def purge(dataset: str, where: str, dry_run: bool, as_json: bool) -> None:
    """Remove rows of DATASET permanently, from lake, spool and quarantine.

    Rows are removed whether or not a sink has received them. Afterwards no data file contains them. Only a hash of each
    identity is kept, so that a backfill cannot load the rows again. Rows that were already delivered to a sink are
    counted; remove them there yourself.

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
    verb = "would be removed" if report.dry_run else "removed"
    click.echo(
        f"{counted(report.rows, 'row')} from the lake, {report.spool_rows:,} from the spool and "
        f"{counted(report.quarantined, 'quarantine entry', 'quarantine entries')} {verb}."
    )
    if not report.dry_run:
        freed = f" {size_text(report.bytes_freed)} freed." if report.bytes_freed else ""
        click.echo(f"{counted(report.identities, 'identity', 'identities')} blocked from being loaded again.{freed}")
    for item in report.already_delivered:
        note(f"Sink {item.sink} has received {item.rows:,} of these rows. Remove them at the destination.")
    for id in report.not_evaluated:
        note(f"Quarantine entry {id} cannot be evaluated. Inspect it, and discard it if it matches.")
    for name in report.landing_files:
        note(f"A writer still has the landing file {name} open. Its rows are removed when the writer closes it.")
