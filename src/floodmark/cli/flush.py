"""`floodmark flush`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import note, print_json, print_table, working

if TYPE_CHECKING:
    from floodmark.flush import FlushReport


@click.command()
@click.argument("dataset", required=False)
@json_option
def flush(dataset: str | None, as_json: bool) -> None:
    """Stamp and commit what was captured, of DATASET or of all datasets.

    Everything that was acknowledged before this call is in the table when it ends: each row once, with the next
    sequence numbers. Any number of processes may flush at the same time. After a crash, run it again.

    \b
    Examples:
      floodmark flush
      floodmark flush orders --json
    """
    with open_store() as store:
        names = [dataset] if dataset is not None else [item.name for item in store.datasets()]
        reports = []
        for name in names:
            with working(f"Flushing {name} …"):
                reports.append(store.flush(name))
    if as_json:
        print_json(reports)
    else:
        _show(reports)


def _show(reports: list[FlushReport]) -> None:
    if not reports:
        click.echo("No datasets yet. Add one with `floodmark dataset add NAME`.")
        return
    print_table(
        ["dataset", "committed", "duplicates", "quarantined", "blocks", "range"],
        [[r.dataset, r.rows, r.duplicates, r.quarantined, r.blocks, r.block or "nothing new"] for r in reports],
    )
    for report in reports:
        if report.expired:
            note(f"{report.expired:,} rows of {report.dataset} were not committed: their like was removed before.")
        if report.dropped:
            note(f"{report.dropped:,} rows of {report.dataset} were left out by the settle function.")
        if report.settle_problem:
            note(report.settle_problem)
