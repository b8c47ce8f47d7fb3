"""`floodmark sink add|list|change|pause|resume|rewind|remove|skip|replay`"""

from __future__ import annotations

from typing import Any

import click

from floodmark.cli.options import column_list, dataset_names, each_once, json_option, open_store, sink_names
from floodmark.cli.output import counted, note, print_json, print_table


@click.group()
def sink() -> None:
    """Add, list and change destinations, and repair a blocked one.

    A sink receives every committed row of its datasets exactly once, in sequence order. `floodmark export` delivers
    once; `floodmark run` delivers continuously.
    """


def _setting(_context: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, Any]:
    """`--set key=value`: numbers and true/false as such, everything else as text."""
    pairs: list[tuple[str, Any]] = []
    for item in given:
        key, equals, text = item.partition("=")
        if not equals or not key:
            raise click.BadParameter(f"{item!r} is not key=value.")
        pairs.append((key.replace("-", "_"), _value(text)))
    return each_once(pairs)


def _value(text: str) -> Any:
    if text.isascii() and text.isdigit() and len(text) <= 18:  # longer numbers are not valid for rows, bytes or seconds
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
    "--function",
    metavar="PATH",
    help="projection: package.module:function. The module must be listed in [functions] allow.",
)
@click.option("--format", "object_format", metavar="FORMAT", help="blob: parquet, jsonl, jsonl.gz or jsonl.zst.")
@click.option("--token", metavar="TOKEN", help="forward: where to read the token, as env:NAME or file:/path.")
@click.option(
    "--datasets", metavar="NAMES", callback=column_list, help="Only these datasets, separated by commas. Default: all."
)
@click.option(
    "--partition",
    "partitions",
    metavar="COL=VAL",
    multiple=True,
    callback=_slices,
    help="Only partitions with this value. Can be repeated.",
)
@click.option(
    "--later", is_flag=True, default=None, help="Accept datasets and partition columns that do not exist yet."
)
@click.option("--where", metavar="SQL", help="Only rows for which this condition is true.")
@click.option("--start", metavar="WHERE", help="beginning (the default), now, or a cursor.")
@click.option("--every", metavar="TIME", help="How often `floodmark run` delivers, such as 30s, 5m or 1h.")
@click.option("--cron", metavar="EXPR", help="When `floodmark run` delivers, as a cron expression (UTC).")
@click.option("--chunk-rows", type=int, metavar="N", help="Target number of rows per object or request.")
@click.option("--chunk-bytes", type=int, metavar="N", help="Most bytes per object or request.")
@click.option(
    "--set",
    "more",
    metavar="KEY=VALUE",
    multiple=True,
    callback=_setting,
    help="Any other setting of this kind of sink.",
)
@json_option
def add(name: str, kind: str, object_format: str | None, more: dict[str, Any], as_json: bool, **given: Any) -> None:
    """Add a destination called NAME.

    \b
    blob        objects in files, S3, GCS or Azure, named by their sequence number range
    forward     HTTP requests to another store's hub, or to a server that supports Idempotency-Key
    table       another Iceberg table
    projection  a Python function

    No two sinks may use the same location, or a location inside each other's or inside the store. Give a token as
    env:NAME or file:/path, never as a literal.

    \b
    Examples:
      floodmark sink add archive blob --url file:///srv/archive --format jsonl.gz
      floodmark sink add central forward --url https://hub.example --token env:HUB_TOKEN --every 30s
      floodmark sink add copy table --table prod.events --datasets messages --where "kind <> 'debug'"
    """
    given["format"] = object_format
    # Only given options: an option that is not given must not override --set.
    options = {key: value for key, value in given.items() if value is not None}
    settings = each_once([*more.items(), *options.items()], "'--set'")
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
            f"WARNING: The token is sent unencrypted: {_described(added)['place']} uses http and is not on "
            "this machine. Use https or a tunnel."
        )


def _sends_token_in_the_clear(settings: dict[str, Any]) -> bool:
    from urllib.parse import urlsplit

    from floodmark.hub.serve import is_loopback

    if settings.get("token") is None:
        return False
    parts = urlsplit(settings["url"])
    return parts.scheme == "http" and not is_loopback(parts.hostname or "")


def _say(text: str, report: dict[str, Any], *, as_json: bool) -> None:
    if as_json:
        print_json(report)
    else:
        click.echo(text)


def _described(item: Any, *, settings: bool = True) -> dict[str, Any]:
    """Its settings need its kind, with libraries of its own, for what is secret among them."""
    from floodmark.delivery.kinds import place_of, shown

    return {
        "name": item.name,
        "kind": item.kind,
        "place": place_of(item),
        "settings": shown(item) if settings else None,
        "state": item.state if item.paused_at is None else "paused",
        "reason": item.reason,
    }


@sink.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the sinks with their state and watermark.

    \b
    Example:
      floodmark sink list --json
    """
    with open_store() as store:
        names = [item.name for item in store.datasets()]
        found: list[dict[str, Any]] = [
            {
                **_described(item, settings=as_json),
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
@click.argument("name", shell_complete=sink_names)
@click.option(
    "--set",
    "settings",
    metavar="KEY=VALUE",
    multiple=True,
    required=True,
    callback=_setting,
    help="A setting and its new value. Can be repeated.",
)
@json_option
def change(name: str, settings: dict[str, Any], as_json: bool) -> None:
    """Change settings of the sink called NAME.

    Changes apply from the next range on. A range in progress is delivered with the old settings.

    \b
    Example:
      floodmark sink change archive --set chunk_rows=50000 --set format=jsonl.zst
    """
    with open_store() as store:
        store.settings.functions.check(settings.get("function"), by_command=True)
        store.change_sink(name, **settings)
        changed = next(item for item in store.sinks() if item.name == name)
    _say(f"Sink {name} was changed.", _described(changed), as_json=as_json)


@sink.command()
@click.argument("name", shell_complete=sink_names)
@json_option
def pause(name: str, as_json: bool) -> None:
    """Deliver nothing to the sink called NAME until it is resumed.

    A range that an exporter has begun is finished. Retention keeps the rows that the sink has still to receive.

    \b
    Example:
      floodmark sink pause archive
    """
    with open_store() as store:
        store.pause_sink(name)
    _say(f"Sink {name} is paused.", {"sink": name, "paused": True}, as_json=as_json)


@sink.command()
@click.argument("name", shell_complete=sink_names)
@json_option
def resume(name: str, as_json: bool) -> None:
    """Deliver to the paused sink called NAME again, from where it stopped.

    \b
    Example:
      floodmark sink resume archive
    """
    with open_store() as store:
        store.resume_sink(name)
    _say(f"Sink {name} continues.", {"sink": name, "paused": False}, as_json=as_json)


@sink.command()
@click.argument("name", shell_complete=sink_names)
@click.option(
    "--to",
    "cursors",
    metavar="CURSOR",
    multiple=True,
    help="Begin after this cursor. Can be repeated, for several datasets or partitions; others are not changed.",
)
@click.option("--beginning", is_flag=True, help="Begin at the first row.")
@click.option("--resend", is_flag=True, help="For projections and servers that are not hubs: send rows a second time.")
@click.option("--dry-run", is_flag=True, help="Only show where the sink would begin.")
@json_option
def rewind(name: str, cursors: tuple[str, ...], beginning: bool, resend: bool, dry_run: bool, as_json: bool) -> None:
    """Let the sink called NAME begin again, at a cursor or at its first row.

    \b
    blob                  objects after the position are compared with the lake; missing ones are written again
    forward, to a hub     the hub is asked, and delivery continues where its ledger ends
    table                 the table is asked, and delivery continues after its highest sequence number
    projection, and a     every row after the position is sent again; only with --resend
    server that is no hub

    Rows that the destination has are not sent twice. A position inside an object's range is moved to its beginning.

    \b
    Examples:
      floodmark sink rewind archive --beginning --dry-run
      floodmark sink rewind totals --to "$(cat yesterday.cursor)" --resend
    """
    if bool(cursors) == beginning:
        raise click.UsageError("Give either --to CURSOR or --beginning.")
    with open_store() as store:
        done = store.rewind_sink(name, to=cursors, resend=resend, dry_run=dry_run)
    if as_json:
        print_json(done)
        return
    print_table(
        ["dataset", "partition", "watermark", "begins after"],
        [[one.dataset, one.partition, one.watermark, one.position] for one in done.channels],
        grouped=False,
    )
    if done.destination_decides:
        click.echo("The destination is asked at the next export, and delivery continues after what it has.")
    if done.discarded:
        click.echo(f"{done.discarded:,} quarantined rows of the sink are sent again with all others.")
    if dry_run:
        click.echo("Nothing was changed.")


@sink.command()
@click.argument("name", shell_complete=sink_names)
@json_option
def remove(name: str, as_json: bool) -> None:
    """Remove the sink called NAME.

    Delivered rows stay at the destination. A sink that is added later with the same name starts from the beginning, and
    needs a new location.

    \b
    Example:
      floodmark sink remove archive
    """
    with open_store() as store:
        store.remove_sink(name)
    _say(f"Sink {name} was removed.", {"sink": name, "removed": True}, as_json=as_json)


@sink.command()
@click.argument("name", shell_complete=sink_names)
@click.option("--dataset", metavar="NAME", help="Only in this dataset.", shell_complete=dataset_names)
@click.option("--partition", metavar="KEY", help="Only in this partition.")
@json_option
def skip(name: str, dataset: str | None, partition: str | None, as_json: bool) -> None:
    """Skip the chunk that blocks the sink called NAME.

    Its rows go to quarantine, and delivery continues with the next chunk. `floodmark sink replay` sends them later.

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
            click.echo(
                f"Skipped {item.range} of {item.dataset} ({item.partition}): {counted(item.rows, 'row')} in quarantine."
            )


@sink.command()
@click.argument("name", shell_complete=sink_names)
@click.option("--id", metavar="ID", help="Only this quarantine entry.")
@json_option
@click.pass_context
def replay(context: click.Context, name: str, id: str | None, as_json: bool) -> None:
    """Retry the rows that the sink called NAME could not deliver.

    Each row arrives once, also if it is replayed several times. The exit code is 1 if rows are still refused.

    \b
    Example:
      floodmark sink replay central
    """
    with open_store() as store:
        done = store.replay(name, id=id)
    if as_json:
        print_json(done)
    else:
        click.echo(f"{counted(done.rows, 'row')} delivered, {done.refused:,} still refused.")
    if done.refused:
        context.exit(1)
