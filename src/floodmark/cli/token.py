"""`floodmark token add|list|revoke`"""

from __future__ import annotations

import click

from floodmark.cli.options import column_list, json_option, open_store
from floodmark.cli.output import note, print_json, print_table


@click.group()
def token() -> None:
    """Decide who may send rows to this store's hub.

    As soon as there is a token, the hub asks for one with every request that brings rows. It stays so when the last one
    is revoked.
    """


@token.command()
@click.argument("name")
@click.option(
    "--origins", metavar="IDS", callback=column_list, help="Only rows of these stores, by id; the default is any."
)
@click.option("--datasets", metavar="NAMES", callback=column_list, help="Only these datasets; the default is all.")
@click.option(
    "--relay",
    is_flag=True,
    help="With --origins: also rows that other stores have sent to those; for a hub that forwards.",
)
@json_option
def add(name: str, origins: list[str] | None, datasets: list[str] | None, relay: bool, as_json: bool) -> None:
    """Make a token called NAME and print it, this once.

    Only its hash is stored: a token that was not noted down is lost, and another is made instead. It is printed alone
    on standard output, so that it can go straight into a file.

    \b
    Examples:
      floodmark token add edge-7 --origins 0b5c… --datasets orders > edge-7.token
      floodmark token add dashboards
    """
    from floodmark.hub.tokens import add_token

    with open_store() as store:
        made, secret = add_token(store, name, origins=origins, datasets=datasets, relay=relay)
    if as_json:
        print_json({"name": made.name, "token": secret, "origins": made.origins, "datasets": made.datasets})
    else:
        click.echo(secret)
        note(f"This is the token {name}. It is not shown again.")


@token.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the tokens, and what each is for. The tokens themselves are not known any more.

    \b
    Example:
      floodmark token list --json
    """
    from floodmark.hub.tokens import list_tokens

    with open_store() as store:
        found = list_tokens(store)
    if as_json:
        print_json(found)
    elif not found:
        click.echo(
            "No tokens yet: the hub takes rows from this machine only. Make one with `floodmark token add NAME`."
        )
    else:
        rows = [
            [
                item.name,
                "any" if item.origins is None else ", ".join(item.origins),
                "all" if item.datasets is None else ", ".join(item.datasets),
                item.created_at,
                item.revoked_at,
            ]
            for item in found
        ]
        print_table(["token", "origins", "datasets", "created", "revoked"], rows)


@token.command()
@click.argument("name")
def revoke(name: str) -> None:
    """Refuse the token called NAME from now on. A running hub does so within a second.

    \b
    Example:
      floodmark token revoke edge-7
    """
    from floodmark.hub.tokens import revoke_token

    with open_store() as store:
        revoke_token(store, name)
    click.echo(f"Token {name} is revoked.")
