"""`floodmark attach`"""

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
    required=True,
    help="The PostgreSQL database with the store's control records (postgresql://…, env:NAME or file:/path).",
)
@lake_option
@spark_options
@json_option
def attach(directory: Path | None, control: str, lake: dict[str, str], spark: dict[str, str], as_json: bool) -> None:
    """Use an existing store from this host, too.

    Creates DIRECTORY with a floodmark.toml for this host, from what the control database knows about the store: its id,
    its lake and the place of its segments. Captured rows land on this host's disk and are sealed here; everything else
    is shared. Secrets that were given as text when the store was created are not in the database: give them again.

    \b
    Examples:
      floodmark attach shop --control env:SHOP_CONTROL
      floodmark attach shop --control env:SHOP_CONTROL --lake s3.secret-access-key=env:S3_SECRET
    """
    from floodmark.store import attach as join

    with join(directory or store_path(), control=control, lake=lake, spark=spark or None) as store:
        if as_json:
            print_json({"store": str(store.path), "store_id": store.store_id})
        else:
            click.echo(f"{store.path} is now a directory of the store {store.store_id}.")
