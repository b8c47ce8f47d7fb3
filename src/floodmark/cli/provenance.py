"""`floodmark provenance list|forget`"""

from __future__ import annotations

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import print_json, print_table


@click.group()
def provenance() -> None:
    """See which stores forwarded rows have passed through, and correct it.

    Every chunk that this store forwards names those stores, so that no row goes round in a circle. What a sender named
    wrongly, by mistake or on purpose, stops the forwarding to the store that was named: `forget` takes it back.
    """


@provenance.command(name="list")
@click.option("--dataset", metavar="NAME", help="Only of this dataset.")
@click.option("--passed", metavar="ID", help="Only who says that rows passed through this store.")
@json_option
def list_(dataset: str | None, passed: str | None, as_json: bool) -> None:
    """List the stores that rows have passed through, and which origin says so.

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
        click.echo("No forwarded rows have come here.")
    else:
        rows = [[item.dataset, item.origin, item.store] for item in found]
        print_table(["dataset", "origin", "passed through"], rows)


@provenance.command()
@click.argument("origin")
@click.option("--dataset", metavar="NAME", help="Only of this dataset; the default is all.")
@click.option("--passed", metavar="ID", help="Only that rows passed through this store; the default is all it said.")
def forget(origin: str, dataset: str | None, passed: str | None) -> None:
    """Take back what ORIGIN said about where its rows have been.

    Do this only if it was not true: rows that did pass through a store can go round once it is forgotten. Revoke the
    token that was used first, else the next chunk says the same again.

    \b
    Example:
      floodmark provenance forget edge-7 --passed 0b5c…
    """
    from floodmark.hub.provenance import forget_provenance

    with open_store() as store:
        gone = forget_provenance(store, origin, dataset=dataset, passed=passed)
    click.echo(f"Forgotten: {gone:,} {'entry' if gone == 1 else 'entries'} of {origin}.")
