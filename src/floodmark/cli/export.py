"""`floodmark export`"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import json_option, open_store, sink_names
from floodmark.cli.output import Progress, note, print_json, print_table, progress, size_text

if TYPE_CHECKING:
    from floodmark.delivery.channel import ExportReport
    from floodmark.store import Store


LEFT = "Rows that were sent are recorded; the next export continues with the same chunks."


@click.command()
@click.argument("sink", required=False, shell_complete=sink_names)
@click.option(
    "--dry-run", is_flag=True, help="Show each range that would be delivered with its rows, and send nothing."
)
@json_option
@click.pass_context
def export(context: click.Context, sink: str | None, dry_run: bool, as_json: bool) -> None:
    """Deliver new rows to SINK, or to all sinks.

    Each committed row arrives exactly once. It is safe to run after a crash, or while another export runs: rows that
    were already delivered are detected. The exit code is 1 if a sink is blocked or could not be reached.

    \b
    Examples:
      floodmark export
      floodmark export archive --json
      floodmark export archive --dry-run
    """
    with open_store() as store:
        added = store.sinks()
        names = [sink] if sink is not None else [item.name for item in added if item.paused_at is None]
        for item in added if sink is None else ():
            if item.paused_at is not None:
                note(f"{item.name} is paused.")
        if not names and not added:
            click.echo(
                "[]" if as_json else "No sinks yet. Add one with `floodmark sink add NAME blob --url file:///…`."
            )
            return
        if dry_run:
            _forecast(store, names, as_json=as_json)
            return
        reports = []
        for name in names:
            with progress(f"Exporting to {name}", left=LEFT) as shown:
                reports.append(store.export(name, progress=_tell(shown, store.rows_waiting(name))))
    if as_json:
        print_json([described(report) for report in reports])
    else:
        print_table(
            ["sink", "rows", "chunks", "bytes", "problem"],
            [
                [r.sink, r.rows, r.chunks, size_text(r.bytes), r.blocked or "; ".join(r.errors.values()) or None]
                for r in reports
            ],
        )
        for dataset, problem in {key: value for r in reports for key, value in r.damaged.items()}.items():
            note(f"{dataset}: its rows are not delivered yet. {problem}")
    if any(report.blocked or report.errors for report in reports):
        context.exit(1)


def _tell(shown: Progress, waiting: int) -> Callable[[ExportReport], None]:
    return lambda report: shown.update(report.rows, total=waiting or None)


def described(report: ExportReport) -> dict[str, Any]:
    """The JSON form of a report."""
    return {
        "sink": report.sink,
        "rows": report.rows,
        "chunks": report.chunks,
        "bytes": report.bytes,
        "quarantined": report.quarantined,
        "spark_jobs": report.spark_jobs,
        "blocked": report.blocked,
        "watermarks": [
            {"dataset": dataset, "partition": partition, "seq": seq}
            for (dataset, partition), seq in report.watermarks.items()
        ],
        "damaged": [{"dataset": dataset, "problem": problem} for dataset, problem in report.damaged.items()],
        "errors": [
            {"dataset": dataset, "partition": partition, "error": error}
            for (dataset, partition), error in report.errors.items()
        ],
    }


def _forecast(store: Store, names: list[str], *, as_json: bool) -> None:
    found = [
        {
            "sink": name,
            "dataset": item.dataset,
            "partition": item.partition,
            "after": item.range.after,
            "through": item.range.through,
            "rows": item.rows,
            "under_way": item.under_way,
        }
        for name in names
        for item in store.forecast_export(name)
    ]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("Nothing to deliver: every sink is up to date.")
    else:
        print_table(list(found[0]), [list(item.values()) for item in found], grouped=False)
