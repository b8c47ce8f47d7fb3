"""`floodmark audit`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store, sink_names
from floodmark.cli.output import NOTHING, WRONG, finding_json, print_findings, print_json, print_table, steps

if TYPE_CHECKING:
    from floodmark.maintenance.audit import AuditReport


@click.command()
@click.argument("sink", shell_complete=sink_names)
@click.option("--deep", is_flag=True, help="Read and compare every row, in the lake and at the destination.")
@json_option
@click.pass_context
def audit(context: click.Context, sink: str, deep: bool, as_json: bool) -> None:
    """Check that SINK's destination has every committed row exactly once.

    Row counts and checksums are compared per range: rows committed, rows acknowledged, and rows at the destination.
    Without --deep only records, listings and counts are read. Nothing is changed. The exit code is 3 if a difference
    was found, and 1 if the destination could not be reached.

    \b
    Examples:
      floodmark audit archive
      floodmark audit archive --deep --json
    """
    with open_store() as store, steps(f"Auditing {sink}", left=NOTHING) as progress:
        report = store.audit(sink, deep=deep, progress=progress)
    if as_json:
        print_json(
            {
                "sink": report.sink,
                "kind": report.kind,
                "deep": report.deep,
                "sound": report.sound,
                "asked": report.asked,
                "channels": report.channels,
                "findings": [finding_json(item) for item in report.findings],
            }
        )
    else:
        _show(report)
    if not report.sound:
        context.exit(WRONG)
    if report.failed:
        context.exit(1)


def _show(report: AuditReport) -> None:
    print_table(
        ["dataset", "partition", "watermark", "committed", "acknowledged", "given up", "waiting", "found"],
        [
            [c.dataset, c.partition, c.watermark, c.committed, c.settled, c.given_up, c.waiting, c.there]
            for c in report.channels
        ],
    )
    for note in sorted({channel.note for channel in report.channels if channel.note}):
        click.echo(note)
    if not report.asked:
        sound = f"The records of sink {report.sink} are consistent. Its destination could not be checked."
    elif report.channels:
        sound = f"Sink {report.sink} has every delivered row exactly once."
    else:
        sound = f"No committed row is in the scope of sink {report.sink} yet."
    print_findings(report.findings, sound=sound)
