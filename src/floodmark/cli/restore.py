"""`floodmark restore`"""

from __future__ import annotations

from pathlib import Path

import click

from floodmark.cli.options import json_option
from floodmark.cli.output import note, print_json


@click.command()
@click.argument("source", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.argument("directory", type=click.Path(path_type=Path))
@json_option
def restore(source: Path, directory: Path, as_json: bool) -> None:
    """Create a store in DIRECTORY from the backup SOURCE.

    A store or a control database in DIRECTORY is not replaced. Files in its spool are kept, so that rows that were
    captured after the backup are not lost. The tables are used where they are. The old store must not be used
    after that.

    \b
    Examples:
      floodmark restore /backup/shop-2026-03-02 /srv/shop
    """
    from floodmark.maintenance.backup import restore as put_back

    root = put_back(source, directory)
    if as_json:
        print_json({"store": str(root)})
        return
    click.echo(f"Restored a store in {root}.")
    note("Run `floodmark flush` and `floodmark fsck` next: commits and rows since the backup are found there.")
