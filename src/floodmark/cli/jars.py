"""`floodmark jars`"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click

from floodmark.cli.options import json_option, tell_of_downloads
from floodmark.cli.output import print_json, working

_QUIET = "-Xlog:disable"
"""The JVM lists every class that it cannot archive."""


@click.command()
@click.option("--to", "directory", type=click.Path(path_type=Path), help="Store the jars in this directory.")
@click.option("--archive", is_flag=True, help="Also write a class archive for faster Spark starts.")
@click.option(
    "--for",
    "needs",
    type=click.Choice(["s3", "postgresql"]),
    multiple=True,
    help="Also the jars for a lake in S3, or for a SQL catalog on PostgreSQL.",
)
@json_option
def jars(directory: Path | None, archive: bool, needs: tuple[str, ...], as_json: bool) -> None:
    """Download the Spark jars, once, for offline use.

    They are downloaded by Spark's own resolver (mirrors and proxies configured for Spark apply), verified against
    pinned checksums, and stored in FLOODMARK_JARS, else in the user's cache. Valid jars are not downloaded again. For a
    machine without network, copy the directory and set FLOODMARK_JARS to it.

    With --archive, an archive of Spark's classes is written next to the jars (200 MB, about a minute, once per Java
    build). Spark then starts in about half the time.

    \b
    Examples:
      floodmark jars
      floodmark jars --archive
      floodmark jars --to /opt/floodmark/jars --for s3 --for postgresql
    """
    from floodmark.lake.jars import fetch, jar_directory

    place = (directory or jar_directory()).expanduser().absolute()
    tell_of_downloads()
    paths = fetch(place, needs=needs)
    if archive:
        paths.append(_archive(place))
    if as_json:
        print_json([str(path) for path in paths])
        return
    for path in paths:
        click.echo(str(path))


def _archive(place: Path) -> Path:
    from floodmark.errors import EnvironmentProblem

    with working("Writing the class archive …"):
        made = make_archive(place)
    if made is None:
        raise EnvironmentProblem("This Java cannot write a class archive.", hint="Everything works without it.")
    return made


def make_archive(directory: Path) -> Path | None:
    """Make the archive if it is not there; None where this Java cannot. It takes about half a minute."""
    from floodmark.lake.jars import archive_file

    file = archive_file(directory)
    if file.is_file():
        return file
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), _QUIET, f"-XX:ArchiveClassesAtExit={unfinished}"]
    subprocess.run(
        [sys.executable, "-c", f"from {__name__} import warm_up; warm_up()"],
        env={**os.environ, "FLOODMARK_JARS": str(directory), "SPARK_SUBMIT_OPTS": " ".join(options).strip()},
        capture_output=True,
        check=False,
    )
    if not unfinished.is_file():
        return None
    unfinished.rename(file)
    return file


def warm_up() -> None:
    """Do what most commands do (commit, dedup, compaction, reading): the JVM archives the classes that this takes."""
    from floodmark.lake.session import end_session
    from floodmark.store import init

    with tempfile.TemporaryDirectory(prefix="floodmark-warmup-") as scratch, init(Path(scratch) / "store") as store:
        store.add_dataset("rows", identity=["id"], schema={"id": "string", "n": "long"})
        for turn in range(3):
            store.capture("rows", [{"id": f"{n}", "n": n} for n in range(turn, turn + 50)])
            store.flush("rows")
        store.compact("rows")
        store.sql("SELECT n, count(*) FROM rows GROUP BY n ORDER BY n").toArrow()
        end_session(store.spark)
