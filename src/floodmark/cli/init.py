"""`floodmark init`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import json_option, lake_option, spark_options, store_path
from floodmark.cli.output import print_json


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option(
    "--control",
    metavar="URL",
    default="",
    help="A PostgreSQL database for the control records (postgresql://…, env:NAME or file:/path). Default: SQLite.",
)
@click.option("--warehouse", metavar="URL", help="Where the tables' files are: s3://…, gs://…, abfss://… or file:///….")
@click.option(
    "--lake-type", type=click.Choice(["sql", "rest"]), help="The kind of the tables' Iceberg catalog. Default: sql."
)
@click.option(
    "--lake-uri", metavar="URL", help="The catalog's database or REST server. Default: the database of --control."
)
@lake_option
@click.option("--segments", metavar="URL", default="", help="Where segments are: s3://…, gs://… or az://….")
@spark_options
@json_option
def init(
    directory: Path | None,
    control: str,
    warehouse: str | None,
    lake_type: str | None,
    lake_uri: str | None,
    lake: dict[str, str],
    segments: str,
    spark: dict[str, str],
    as_json: bool,
) -> None:
    """Create a new store.

    The store is created in DIRECTORY, or in the directory given with -s. It contains a control database, a spool, a
    lake, and a floodmark.toml with every setting and its default. If the directory already contains a store, the
    command fails and changes nothing.

    For a store that several hosts use, the control records, the tables and the segments must be elsewhere: give
    --control, --warehouse and --segments here, and run `floodmark attach` on the other hosts.

    \b
    Examples:
      floodmark init shop
      floodmark -s shop init
      floodmark init shop --control env:SHOP_CONTROL --warehouse s3://shop/lake --segments s3://shop/segments
    """
    from floodmark.store import init as make

    named = {"type": lake_type, "uri": lake_uri, "warehouse": warehouse}
    described = {key: value for key, value in named.items() if value} | lake
    with make(
        directory or store_path(), control=control, lake=described or None, segments=segments, spark=spark
    ) as store:
        if as_json:
            print_json({"store": str(store.path), "store_id": store.store_id})
        else:
            click.echo(f"Created a store in {store.path} ({store.store_id}).")
