"""`floodmark move`"""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

import click

from floodmark.cli.options import json_option, lake_option, open_store, store_path
from floodmark.cli.output import counted, note, print_json, progress


@click.command()
@click.option(
    "--control",
    metavar="URL",
    help="The new place of the control database: postgresql://…, env:NAME or file:/path for where its URL is kept, or "
    "`sqlite`.",
)
@click.option("--warehouse", metavar="URL", help="The new place of the tables' files: s3://…, gs://…, abfss://….")
@click.option(
    "--lake-type",
    type=click.Choice(["sql", "rest", "embedded"]),
    help="The kind of the tables' new Iceberg catalog; `embedded`: back into the store's directory. Default: sql.",
)
@click.option(
    "--lake-uri", metavar="URL", help="The new catalog's database or REST server. Default: the control database."
)
@lake_option
@click.option("--segments", metavar="URL", help="The new place of segments: s3://…, gs://…, az://…, or `directory`.")
@json_option
@click.pass_context
def move(
    context: click.Context,
    control: str | None,
    warehouse: str | None,
    lake_type: str | None,
    lake_uri: str | None,
    lake: dict[str, str],
    segments: str | None,
    as_json: bool,
) -> None:
    """Move the control database, the tables and the segments of the store: to PostgreSQL and a bucket, or back.

    All records stay valid: watermarks, cursors, ledger, quarantine and the rest. Captures of rows continue; other
    processes of the store fail until they are started again, and change nothing. Tables are copied, compared and then
    deleted at the old place. An interrupted move can be run again, with the same options. At the end, the store and its
    sinks are checked.

    \b
    Examples:
      floodmark move --control env:SHOP_CONTROL --warehouse s3://shop/lake --segments s3://shop/segments
      floodmark move --lake-type embedded --segments directory
      floodmark move --control sqlite
    """
    from floodmark.lake.embedded import lakes_of_a_move
    from floodmark.maintenance.move import has_moved, move_control
    from floodmark.maintenance.move_lake import move_lake

    named = {"type": lake_type, "uri": lake_uri, "warehouse": warehouse}
    described = {key: value for key, value in named.items() if value} | lake
    if control is None and not described and segments is None:
        raise click.UsageError("Nothing to move. Give --control, --warehouse, --lake-type or --segments.")
    tables = bool(described) or segments is not None
    told: dict[str, Any] = {}
    lines: list[str] = []
    if control is not None and not (tables and has_moved(store_path(), control)):  # an interrupted move is run again
        records = move_control(store_path(), control)
        told |= asdict(records)
        lines.append(f"The control database is in {records.control} now: {counted(records.records, 'record')}.")
    if tables:
        with progress("Moving the tables") as shown:
            report = move_lake(
                store_path(),
                lake=described or None,
                segments=segments,
                lakes=lakes_of_a_move,
                progress=lambda done: shown.update(done.rows_copied),
            )
        told |= asdict(report)
        moved = f"{counted(report.datasets, 'dataset')} with {counted(report.rows, 'row')}"
        lines.append(f"Tables: {report.lake}. Moved: {moved}.")
        lines.append(f"Segments: {report.segments}. Moved: {counted(report.segments_copied, 'segment')}.")
    for line in () if as_json else lines:
        click.echo(line)
    with open_store() as store:
        findings = [item for item in store.fsck().findings if item.wrong]
        for sink in store.sinks():
            findings += [item for item in store.audit(sink.name).findings if item.wrong]
    if as_json:
        print_json({**told, "findings": findings})
    for item in () if as_json else findings:
        note(f"{item.kind}: {item.what}")
    if findings:
        context.exit(3)
