"""`floodmark provenance list|forget`"""

from __future__ import annotations

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import print_json, print_table


@click.group()
def provenance() -> None:
    """Show and correct which stores forwarded rows have passed through.

    Every forwarded chunk names the stores that its rows have passed through, which prevents loops. If a sender names a
    store wrongly, rows are no longer forwarded to that store: `forget` removes the wrong entry.
    """


@provenance.command(name="list")
@click.option("--dataset", metavar="NAME", help="Only this dataset.")
@click.option("--passed", metavar="ID", help="Only origins that report this store.")
@json_option
def list_(dataset: str | None, passed: str | None, as_json: bool) -> None:
    """List the stores that rows have passed through, as reported by each origin.

    \b
    Example:
      floodmark provenance list --passed 0b5c…
    """
    from floodmark.hub.provenance import list_provenance

    with open_store() as store:
        found = list_provenance(store, dataset=dataset, passed=passed)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("This store has received no forwarded rows.")
    else:
        rows = [[item.dataset, item.origin, item.store] for item in found]
        print_table(["dataset", "origin", "passed through"], rows)


@provenance.command()
@click.argument("origin")
@click.option("--dataset", metavar="NAME", help="Only this dataset. Default: all.")
@click.option("--passed", metavar="ID", help="Only entries that name this store. Default: all.")
def forget(origin: str, dataset: str | None, passed: str | None) -> None:
    """Remove what ORIGIN reported about the path of its rows.

    Do this only if the report was wrong: otherwise rows can loop between stores. First revoke the token that was used,
    else the next chunk reports the same again.

    \b
    Example:
      floodmark provenance forget edge-7 --passed 0b5c…
    """
    from floodmark.hub.provenance import forget_provenance

    with open_store() as store:
        gone = forget_provenance(store, origin, dataset=dataset, passed=passed)
    click.echo(f"Removed {gone:,} {'entry' if gone == 1 else 'entries'} of {origin}.")
