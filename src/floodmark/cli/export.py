"""`floodmark export`"""

from __future__ import annotations

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import print_json, print_table, size_text, working


@click.command()
@click.argument("sink", required=False)
@json_option
@click.pass_context
def export(context: click.Context, sink: str | None, as_json: bool) -> None:
    """Deliver what is new to SINK, or to every sink.

    Each committed row arrives exactly once. After a crash, or beside another export, run it again: what had left is
    recognised. The exit code is 1 if a sink is blocked or could not be reached.

    \b
    Examples:
      floodmark export
      floodmark export archive --json
    """
    with open_store() as store:
        names = [sink] if sink is not None else [item.name for item in store.sinks()]
        reports = []
        for name in names:
            with working(f"Exporting to {name} …"):
                reports.append(store.export(name))
    if as_json:
        print_json(
            [
                {
                    "sink": report.sink,
                    "rows": report.rows,
                    "chunks": report.chunks,
                    "bytes": report.bytes,
                    "blocked": report.blocked,
                    "watermarks": [
                        {"dataset": dataset, "partition": partition, "seq": seq}
                        for (dataset, partition), seq in report.watermarks.items()
                    ],
                    "errors": [
                        {"dataset": dataset, "partition": partition, "error": error}
                        for (dataset, partition), error in report.errors.items()
                    ],
                }
                for report in reports
            ]
        )
    elif not reports:
        click.echo("No sinks yet. Add one with `floodmark sink add NAME blob --url file:///…`.")
    else:
        print_table(
            ["sink", "rows", "objects", "bytes", "problem"],
            [
                [r.sink, r.rows, r.chunks, size_text(r.bytes), r.blocked or "; ".join(r.errors.values()) or None]
                for r in reports
            ],
        )
    if any(report.blocked or report.errors for report in reports):
        context.exit(1)
