"""`floodmark move`"""

from __future__ import annotations

import click

from floodmark.cli.options import json_option, open_store, store_path
from floodmark.cli.output import note, print_json


@click.command()
@click.option(
    "--control",
    metavar="URL",
    required=True,
    help="The new place: postgresql://…, env:NAME or file:/path for a URL that is stored there, or `sqlite`.",
)
@json_option
@click.pass_context
def move(context: click.Context, control: str, as_json: bool) -> None:
    """Move the control database of the store to PostgreSQL, or back to a SQLite file in its directory.

    All records are copied: watermarks, cursors, ledger, quarantine and the rest. Captures of rows continue; other
    processes of the store fail until they are started again, and change nothing. An interrupted move can be run again.
    At the end, the store and its sinks are checked.

    \b
    Examples:
      floodmark move --control env:SHOP_CONTROL
      floodmark move --control sqlite
    """
    from floodmark.maintenance.move import move_control

    report = move_control(store_path(), control)
    with open_store() as store:
        findings = [item for item in store.fsck().findings if item.wrong]
        for sink in store.sinks():
            findings += [item for item in store.audit(sink.name).findings if item.wrong]
    if as_json:
        print_json({"control": report.control, "records": report.records, "findings": findings})
    else:
        click.echo(f"The control database is in {report.control} now: {report.records:,} records.")
        for item in findings:
            note(f"{item.kind}: {item.what}")
    if findings:
        context.exit(3)
