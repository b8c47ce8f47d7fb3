"""`floodmark init`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import json_option, store_path
from floodmark.cli.output import print_json


@click.command()
@click.argument("directory", type=click.Path(path_type=Path), required=False)
@click.option(
    "--control",
    metavar="URL",
    default="",
    help="A PostgreSQL database for the control records (postgresql://…, env:NAME or file:/path). Default: SQLite.",
)
@json_option
def init(directory: Path | None, control: str, as_json: bool) -> None:
    """Create a new store.

    The store is created in DIRECTORY, or in the directory given with -s. It contains a control database, a spool, a
    lake, and a floodmark.toml with every setting and its default. If the directory already contains a store, the
    command fails and changes nothing.

    \b
    Examples:
      floodmark init shop
      floodmark -s shop init
      floodmark init shop --control env:SHOP_CONTROL
    """
    from floodmark.store import init as make

    with make(directory or store_path(), control=control) as store:
        if as_json:
            print_json({"store": str(store.path), "store_id": store.store_id})
        else:
            click.echo(f"Created a store in {store.path} ({store.store_id}).")
