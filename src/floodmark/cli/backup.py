"""`floodmark backup`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import note, print_json, size_text


@click.command()
@click.argument("destination", type=click.Path(path_type=Path))
@json_option
def backup(destination: Path, as_json: bool) -> None:
    """Copy control database, spool, quarantine and settings to the new directory DESTINATION.

    Other processes can use the store at the same time. Captured rows are sealed first, so that the backup has them in
    segments. The tables of the lake are not copied; the report names their
    location. Segments in a bucket and a control database in PostgreSQL are not copied either: back up the database with
    its own tools first, then run this command on each host.

    \b
    Examples:
      floodmark backup /backup/shop-2026-03-02
    """
    with open_store() as store:
        report = store.backup(destination)
    if as_json:
        print_json(report)
        return
    click.echo(f"{report.path}: {report.segments:,} segments, {size_text(report.bytes)} in all.")
    if not report.control:
        note("The control database is in PostgreSQL and is not in this backup: use pg_dump, before this command.")
    note(f"The tables are not in this backup. They are at {report.lake}.")
    if report.segments_at:
        note(f"Segments are not in this backup. They are at {report.segments_at}.")
