"""`floodmark provenance list|forget`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, json_option, open_store
from floodmark.cli.output import print_json, print_table

if TYPE_CHECKING:
    from floodmark.control.provenance import Passed
    from floodmark.store import Store


@click.group()
def provenance() -> None:
    """Show and correct which stores forwarded rows have passed through.

    Every forwarded chunk names the stores that its rows have passed through, which prevents loops. If a sender names a
    store wrongly, rows are no longer forwarded to that store: `forget` removes the wrong entry.
    """


@provenance.command(name="list")
@click.option("--dataset", metavar="NAME", help="Only this dataset.", shell_complete=dataset_names)
@click.option("--passed", metavar="ID", help="Only origins that report this store.")
@json_option
def list_(dataset: str | None, passed: str | None, as_json: bool) -> None:
    """List the stores that rows have passed through, as reported by each origin.

    \b
    Example:
      floodmark provenance list --passed 0b5c…
    """
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
@click.option("--dataset", metavar="NAME", help="Only this dataset. Default: all.", shell_complete=dataset_names)
@click.option("--passed", metavar="ID", help="Only entries that name this store. Default: all.")
@json_option
def forget(origin: str, dataset: str | None, passed: str | None, as_json: bool) -> None:
    """Remove what ORIGIN reported about the path of its rows.

    Do this only if the report was wrong: otherwise rows can loop between stores. First revoke the token that was used,
    else the next chunk reports the same again.

    \b
    Example:
      floodmark provenance forget edge-7 --passed 0b5c…
    """
    with open_store() as store:
        gone = forget_provenance(store, origin, dataset=dataset, passed=passed)
    if as_json:
        print_json({"origin": origin, "removed": gone})
    else:
        click.echo(f"Removed {gone:,} {'entry' if gone == 1 else 'entries'} of {origin}.")


def list_provenance(store: Store, *, dataset: str | None = None, passed: str | None = None) -> list[Passed]:
    """The stores that rows have passed through, and the origin that reported each; of one dataset, or one store."""
    from floodmark.control import provenance as records

    return store.engine.database.read(lambda c: records.everything(c, dataset=dataset, store=passed))


def forget_provenance(store: Store, origin: str, *, dataset: str | None = None, passed: str | None = None) -> int:
    """Remove entries of an origin; returns how many.

    The operator is responsible: if rows did pass through those stores, they can now loop.
    """
    from floodmark.control import provenance as records
    from floodmark.errors import Permanent

    gone = store.engine.database.transact(lambda c: records.forget(c, origin=origin, dataset=dataset, store=passed))
    if not gone:
        raise Permanent(f"{origin!r} has no such entry.", hint="See `floodmark provenance list`. Nothing was changed.")
    return gone
