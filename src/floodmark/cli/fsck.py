"""`floodmark fsck`"""

from __future__ import annotations

import click

from floodmark.cli.findings import WRONG, finding_json, print_findings
from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import print_json
from floodmark.cli.stepwise import steps


@click.command()
@click.option("--deep", is_flag=True, help="Count the lake's rows too.")
@click.option("--repair", is_flag=True, help="Repair what needs nobody's decision, and say what was done.")
@json_option
@click.pass_context
def fsck(context: click.Context, deep: bool, repair: bool, as_json: bool) -> None:
    """Check the store: control database, lake and spool against each other.

    Without --repair nothing is changed. Every finding says what to run. The exit code is 3 if something is wrong (with
    --repair: if something is left).

    \b
    Examples:
      floodmark fsck
      floodmark fsck --repair --json
    """
    with open_store() as store, steps("Checking") as progress:
        report = store.fsck(deep=deep, repair=repair, progress=progress)
    if as_json:
        print_json(
            {
                "deep": report.deep,
                "sound": report.sound,
                "datasets": report.datasets,
                "repaired": report.repaired,
                "findings": [finding_json(item) for item in report.findings],
            }
        )
    else:
        for line in report.repaired:
            click.echo(f"done   {line}")
        print_findings(report.findings, sound=f"{len(report.datasets)} datasets: nothing is wrong.")
    if not report.sound:
        context.exit(WRONG)
