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
@click.option("--archive", is_flag=True, help="Prepare quick starts of Spark, too.")
@json_option
def jars(directory: Path | None, archive: bool, as_json: bool) -> None:
    """Fetch the Spark jars, once, for offline use.

    They are downloaded by Spark's own resolver (mirrors and proxies that are set up for Spark apply), checked
    against pinned checksums, and kept in FLOODMARK_JARS, else in the user's cache. Jars that are there and good are
    not fetched again. On a machine without network, copy the directory and set FLOODMARK_JARS to it.

    With --archive, Spark's classes are kept beside them as the JVM needs them (200 MB, about a minute, once for each
    build of Java): sessions then start with about half the work.

    \b
    Examples:
      floodmark jars
      floodmark jars --archive
      floodmark jars --to /opt/floodmark/jars
    """
    from floodmark.lake.jars import fetch, jar_directory

    place = (directory or jar_directory()).expanduser().absolute()
    with working("Fetching the Spark jars …"):
        paths = fetch(place)
    if archive:
        paths.append(_archive(place))
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        click.echo(str(path))


def _archive(place: Path) -> Path:
    from floodmark.errors import EnvironmentProblem
    from floodmark.warmup import make_archive

    with working("Preparing quick starts of Spark …"):
        made = make_archive(place)
    if made is None:
        raise EnvironmentProblem("This Java makes no class archive.", hint="Everything works without it.")
    return made
