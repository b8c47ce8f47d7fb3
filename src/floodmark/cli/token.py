"""`floodmark token add|list|revoke`"""

from __future__ import annotations

import re
from datetime import timedelta

import click

from floodmark.cli.options import column_list, json_option, open_store
from floodmark.cli.output import note, print_json, print_table

_UNITS = {"m": 60, "h": 3600, "d": 86_400}


def _duration(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> timedelta | None:
    if value is None:
        return None
    found = re.fullmatch(r"([0-9]{1,6})([mhd])", value)
    if found is None:
        raise click.BadParameter(f"{value!r} is not a duration. Write 30m, 12h or 90d.")
    return timedelta(seconds=int(found[1]) * _UNITS[found[2]])


@click.group()
def token() -> None:
    """Manage the tokens of clients that send rows to this store's hub.

    As soon as one token exists, every request that sends rows needs a token. This stays so after the last token is
    revoked.
    """


@token.command()
@click.argument("name")
@click.option(
    "--origins",
    metavar="IDS",
    callback=column_list,
    help="Allow chunks of these stores, by store id, and access to their ledger.",
)
@click.option("--any-origin", is_flag=True, help="Allow chunks of any store.")
@click.option(
    "--relay",
    is_flag=True,
    help="With --origins: also allow rows that those stores received from other stores. For a hub that forwards.",
)
@click.option("--capture", is_flag=True, help="Allow captures: rows posted by any client.")
@click.option("--metrics", is_flag=True, help="Allow reading /metrics from another machine.")
@click.option("--dashboard", is_flag=True, help="Allow the dashboard from another machine. It shows quarantined rows.")
@click.option("--datasets", metavar="NAMES", callback=column_list, help="Allow these datasets only.")
@click.option("--any-dataset", is_flag=True, help="Allow any dataset.")
@click.option("--expires", metavar="TIME", callback=_duration, help="Expire after this time, such as 12h or 90d.")
@json_option
def add(
    name: str,
    origins: list[str] | None,
    any_origin: bool,
    relay: bool,
    capture: bool,
    metrics: bool,
    dashboard: bool,
    datasets: list[str] | None,
    any_dataset: bool,
    expires: timedelta | None,
    as_json: bool,
) -> None:
    """Create a token called NAME and print it once.

    The token allows only what is named here. Only its hash is stored, so a lost token cannot be shown again: create a
    new one. Standard output contains only the token, so that it can be redirected to a file.

    \b
    Examples:
      floodmark token add edge-7 --origins 0b5c… --datasets orders --expires 90d > edge-7.token
      floodmark token add shop --capture --datasets orders,returns
      floodmark token add prometheus --metrics
    """
    from floodmark.hub.access import add_token

    given = {"capture": capture, "metrics": metrics, "dashboard": dashboard}
    rights = [right for right, asked in given.items() if asked]
    with open_store() as store:
        made, secret = add_token(
            store,
            name,
            origins=origins,
            datasets=datasets,
            any_origin=any_origin,
            any_dataset=any_dataset,
            relay=relay,
            rights=rights,
            expires=expires,
        )
    if as_json:
        print_json(
            {
                "name": made.name,
                "token": secret,
                "origins": made.origins,
                "datasets": made.datasets,
                "rights": made.rights,
                "expires_at": made.expires_at,
            }
        )
    else:
        click.echo(secret)
        note(f"This is the token {name}. It is not shown again.")


@token.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the tokens with their permissions. The tokens themselves cannot be shown.

    \b
    Example:
      floodmark token list --json
    """
    from floodmark.hub.access import list_tokens

    with open_store() as store:
        found = list_tokens(store)
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No tokens yet: the hub accepts rows from this machine only. Create one with `floodmark token add`.")
    else:
        rows = [
            [
                item.name,
                "any" if item.origins is None else ", ".join(item.origins),
                "any" if item.datasets is None else ", ".join(item.datasets),
                ", ".join(item.rights),
                item.created_at,
                item.expires_at,
                item.revoked_at,
            ]
            for item in found
        ]
        print_table(["token", "origins", "datasets", "rights", "created", "expires", "revoked"], rows)


@token.command()
@click.argument("name")
@json_option
def revoke(name: str, as_json: bool) -> None:
    """Revoke the token called NAME. A running hub refuses it within a second.

    \b
    Example:
      floodmark token revoke edge-7
    """
    from floodmark.hub.access import revoke_token

    with open_store() as store:
        revoke_token(store, name)
    if as_json:
        print_json({"token": name, "revoked": True})
    else:
        click.echo(f"Token {name} was revoked.")
