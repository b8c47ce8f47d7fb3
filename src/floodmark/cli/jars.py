"""`floodmark jars`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import json_option
from floodmark.cli.output import print_json, working


@click.command()
@click.option(
    "--to", "directory", type=click.Path(path_type=Path), help="Where to put them, instead of the usual place."
)
@json_option
def jars(directory: Path | None, as_json: bool) -> None:
    """Fetch the Spark jars, once, for offline use.

    They are downloaded by Spark's own resolver (mirrors and proxies that are set up for Spark apply), checked
    against pinned checksums, and kept in FLOODMARK_JARS, else in the user's cache. Jars that are there and good are
    not fetched again. On a machine without network, copy the directory and set FLOODMARK_JARS to it.

    \b
    Examples:
      floodmark jars
      floodmark jars --to /opt/floodmark/jars
    """
    from floodmark.lake.jars import fetch, jar_directory

    with working("Fetching the Spark jars …"):
        paths = fetch((directory or jar_directory()).expanduser().absolute())
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        click.echo(str(path))
