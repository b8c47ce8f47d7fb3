"""`floodmark sink add|list|change|remove|skip|replay`"""

from __future__ import annotations

from typing import Any

import click

from floodmark.cli.options import column_list, json_option, open_store
from floodmark.cli.output import note, print_json, print_table


@click.group()
def sink() -> None:
    """Add destinations, list them, and help one that is stuck.

    A sink receives every committed row of its datasets exactly once, in sequence order. `floodmark export` delivers,
    and so does `floodmark run`, by itself.
    """


def _setting(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """`--set key=value`: numbers and true/false as such, everything else as text."""
    settings: dict[str, Any] = {}
    for item in given:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{item!r} is not key=value.")
        settings[key.replace("-", "_")] = _value(text)
    return settings


def _value(text: str) -> Any:
    if text.isascii() and text.isdigit() and len(text) <= 18:  # more digits are no number of rows, bytes or seconds
        return int(text)
    return {"true": True, "false": False}.get(text, text)


def _slices(
    _context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]
) -> dict[str, list[str]] | None:
    found: dict[str, list[str]] = {}
    for item in given:
        name, equals, value = item.partition("=")
        if not equals or not name:
            raise click.BadParameter(f"{item!r} is not column=value.")
        found.setdefault(name, []).append(value)
    return found or None


@sink.command()
@click.argument("name")
@click.argument("kind", type=click.Choice(["blob", "forward", "table", "projection"]))
@click.option("--url", metavar="URL", help="blob: file:///…, s3://…, gs://…, az://…; forward: the hub's http(s)://….")
@click.option("--table", metavar="NAME", help="table: catalog.namespace, or catalog.namespace.table for one dataset.")
@click.option(
    "--function", metavar="PATH", help="projection: package.module:function, of a module that [functions] allows."
)
@click.option("--format", "object_format", metavar="FORMAT", help="blob: parquet, jsonl, jsonl.gz or jsonl.zst.")
@click.option("--token", metavar="TOKEN", help="forward: where the token is, as env:NAME or file:/path.")
@click.option("--datasets", metavar="NAMES", callback=column_list, help="Only these datasets; the default is all.")
@click.option("--partition", "partitions", metavar="COL=VAL", multiple=True, callback=_slices, help="Only this slice.")
@click.option("--later", is_flag=True, default=None, help="--datasets and --partition may name what is added later.")
@click.option("--where", metavar="SQL", help="Only rows for which this is true; the others count as passed.")
@click.option("--start", metavar="WHERE", help="beginning (the default), now, or a cursor.")
@click.option("--every", metavar="TIME", help="How often `floodmark run` delivers: 30s, 5m, 1h.")
@click.option("--cron", metavar="EXPR", help="… or when, as a cron expression.")
@click.option("--chunk-rows", type=int, metavar="N", help="About how many rows one object or request holds.")
@click.option("--chunk-bytes", type=int, metavar="N", help="How many bytes it has at most.")
@click.option("--set", "more", metavar="KEY=VALUE", multiple=True, callback=_setting, help="Any other setting.")
@json_option
def add(name: str, kind: str, object_format: str | None, more: dict[str, Any], as_json: bool, **given: Any) -> None:
    """Add a destination called NAME, of a KIND.

    \b
    blob        objects named by the range of numbers they hold: files, S3, GCS, Azure
    forward     requests to another store's hub, or to any server that honours Idempotency-Key
    table       another Iceberg table
    projection  a Python function

    The place belongs to this sink alone. A token is given as env:NAME or file:/path, never itself.

    \b
    Examples:
      floodmark sink add archive blob --url file:///srv/archive --format jsonl.gz
      floodmark sink add central forward --url https://hub.example --token env:HUB_TOKEN --every 30s
      floodmark sink add copy table --table prod.events --datasets messages --where "kind <> 'debug'"
    """
    given["format"] = object_format
    # Only what was given: an option that was not must not push aside what --set says.
    settings = {**more, **{key: value for key, value in given.items() if value is not None}}
    with open_store() as store:
        store.settings.functions.check(settings.get("function"), by_command=True)
        store.add_sink(name, kind, **settings)
        added = next(item for item in store.sinks() if item.name == name)
    if as_json:
        print_json(_described(added))
    else:
        click.echo(f"Sink {name} delivers to {_described(added)['place']}.")
    if _sends_token_in_the_clear(added.settings):
        note(
            f"WARNING: The token travels in the clear: {_described(added)['place']} is http, and not on this machine. "
            "Use https, or a tunnel."
        )


def _sends_token_in_the_clear(settings: dict[str, Any]) -> bool:
    from urllib.parse import urlsplit

    from floodmark.hub.serve import is_loopback

    if settings.get("token") is None:
        return False
    parts = urlsplit(settings["url"])
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _described(item: Any) -> dict[str, Any]:
    from floodmark.delivery.kinds import place_of, shown

    return {
        "name": item.name,
        "kind": item.kind,
        "place": place_of(item),
        "settings": shown(item),
        "state": item.state,
        "reason": item.reason,
    }


@sink.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the sinks, and how far each got.

    \b
    Example:
      floodmark sink list --json
    """
    with open_store() as store:
        names = [item.name for item in store.datasets()]
        found: list[dict[str, Any]] = [
            {
                **_described(item),
                "watermarks": {
                    name: store.watermark(item.name, name)
                    for name in names
                    if item.settings["datasets"] is None or name in item.settings["datasets"]
                },
            }
            for item in store.sinks()
        ]
    if as_json:
        print_json(found)
    elif not found:
        click.echo("No sinks yet. Add one with `floodmark sink add NAME blob --url file:///…`.")
    else:
        rows = [
            [item["name"], item["kind"], item["place"], item["state"], dataset, mark, item["reason"]]
            for item in found
            for dataset, mark in (item["watermarks"] or {"": None}).items()
        ]
        print_table(["sink", "kind", "place", "state", "dataset", "watermark", "reason"], rows, grouped=False)


@sink.command()
@click.argument("name")
@click.option(
    "--set", "settings", metavar="KEY=VALUE", multiple=True, required=True, callback=_setting, help="A setting."
)
def change(name: str, settings: dict[str, Any]) -> None:
    """Change settings of the sink called NAME.

    They apply from the next range on: what is under way leaves as it was pinned.

    \b
    Example:
      floodmark sink change archive --set chunk_rows=50000 --set format=jsonl.zst
    """
    with open_store() as store:
        store.settings.functions.check(settings.get("function"), by_command=True)
        store.change_sink(name, **settings)
    click.echo(f"Sink {name} is changed.")


@sink.command()
@click.argument("name")
def remove(name: str) -> None:
    """Forget the sink called NAME.

    What it delivered stays where it is. A sink that is added under the same name later starts anew, and needs
    a place of its own.

    \b
    Example:
      floodmark sink remove archive
    """
    with open_store() as store:
        store.remove_sink(name)
    click.echo(f"Sink {name} is removed.")


@sink.command()
@click.argument("name")
@click.option("--dataset", metavar="NAME", help="Only where it is stuck in this dataset.")
@click.option("--partition", metavar="KEY", help="Only where it is stuck in this partition.")
@json_option
def skip(name: str, dataset: str | None, partition: str | None, as_json: bool) -> None:
    """Give up the chunk that the sink called NAME is stuck at.

    Its rows go to quarantine, from where `floodmark sink replay` sends them later, and the rest goes on.

    \b
    Example:
      floodmark sink skip central --dataset messages
    """
    with open_store() as store:
        skipped = store.skip(name, dataset=dataset, partition=partition)
    if as_json:
        print_json(skipped)
    else:
        for item in skipped:
            click.echo(f"Skipped {item.range} of {item.dataset} ({item.partition}): {item.rows:,} rows in quarantine.")


@sink.command()
@click.argument("name")
@click.option("--id", metavar="ID", help="Only this quarantine entry.")
@json_option
@click.pass_context
def replay(context: click.Context, name: str, id: str | None, as_json: bool) -> None:
    """Send the rows again that the sink called NAME could not deliver.

    Each arrives once, however often it is replayed. The exit code is 1 if some are still refused.

    \b
    Example:
      floodmark sink replay central
    """
    with open_store() as store:
        done = store.replay(name, id=id)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{done.rows:,} rows delivered, {done.refused:,} still refused.")
    if done.refused:
        context.exit(1)
