"""`floodmark flush`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, json_option, open_store
from floodmark.cli.output import counted, note, print_json, print_table, working
from floodmark.errors import Corrupt, FloodmarkError

if TYPE_CHECKING:
    from floodmark.commit.flush import FlushReport

FAILED, CORRUPT = 1, 3


@click.command()
@click.argument("dataset", required=False, shell_complete=dataset_names)
@json_option
@click.pass_context
def flush(context: click.Context, dataset: str | None, as_json: bool) -> None:
    """Commit captured rows of DATASET, or of all datasets.

    When it ends, every row that was acknowledged before the call is in the table exactly once, with its sequence
    number. Several processes can flush at the same time. After a crash, run it again. If one dataset fails, it is
    reported and the others are still flushed; the exit code is then 1, or 3 if stored data is damaged.

    \b
    Examples:
      floodmark flush
      floodmark flush orders --json
    """
    from floodmark.commit.flush import FlushReport

    with open_store() as store:
        declared = store.datasets()
        names = [dataset] if dataset is not None else [item.name for item in declared if item.paused_at is None]
        for item in declared if dataset is None else ():
            if item.paused_at is not None:
                note(f"{item.name} is paused: its rows wait in the spool.")
        reports = []
        code = 0
        for name in names:
            try:
                with working(
                    f"Flushing {name}", left="Rows that are not committed are safe in the spool: flush again."
                ):
                    reports.append(store.flush(name))
            except FloodmarkError as error:
                if len(names) == 1:
                    raise
                code = max(code, CORRUPT if isinstance(error, Corrupt) else FAILED)
                reports.append(FlushReport(name, problems=(str(error),)))
    if as_json:
        print_json(reports)
    else:
        _show(reports)
    if not code and any(report.problems for report in reports):
        code = CORRUPT
    context.exit(code)


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
            note(
                f"{counted(report.expired, 'row')} of {report.dataset} not committed: older than the retention limit, "
                "or purged."
            )
        if report.dropped:
            note(f"{counted(report.dropped, 'row')} of {report.dataset} dropped by the settle function.")
        if report.settle_problem:
            note(report.settle_problem)
        for problem in report.problems:
            note(f"{report.dataset}: {problem}")
