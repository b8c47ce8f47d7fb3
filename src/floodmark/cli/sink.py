"""`floodmark sink add|list|remove`"""

from __future__ import annotations

from typing import Any

import click

from floodmark.cli.options import column_list, json_option, open_store
from floodmark.cli.output import print_json, print_table


@click.group()
def sink() -> None:
    """Add destinations and list them.

    A sink receives every committed row of its datasets exactly once, in sequence order. `floodmark export` delivers.
    """


@sink.command()
@click.argument("name")
@click.argument("kind", type=click.Choice(["blob"]))
@click.option("--url", required=True, metavar="URL", help="Where the objects go: file:///absolute/directory.")
@click.option("--datasets", metavar="NAMES", callback=column_list, help="Only these datasets; the default is all.")
@click.option("--format", "object_format", default="parquet", show_default=True, help="parquet, jsonl or jsonl.gz.")
@click.option("--chunk-rows", type=int, metavar="N", help="About how many rows one object holds.")
@json_option
def add(
    name: str,
    kind: str,
    url: str,
    datasets: list[str] | None,
    object_format: str,
    chunk_rows: int | None,
    as_json: bool,
) -> None:
    """Add a destination called NAME, of a KIND.

    It starts from the beginning of each dataset. Objects are named by the range of numbers they hold, and the place
    belongs to this sink alone.

    \b
    Example:
      floodmark sink add archive blob --url file:///srv/archive --format jsonl.gz
    """
    with open_store() as store:
        store.add_sink(name, kind, url=url, datasets=datasets, format=object_format, chunk_rows=chunk_rows)
        added = next(item for item in store.sinks() if item.name == name)
    if as_json:
        print_json(added)
    else:
        click.echo(f"Sink {name} delivers to {url}.")


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
                "name": item.name,
                "kind": item.kind,
                "url": item.settings["url"],
                "state": item.state,
                "reason": item.reason,
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
            [item["name"], item["kind"], item["url"], item["state"], dataset, mark, item["reason"]]
            for item in found
            for dataset, mark in (item["watermarks"] or {"": None}).items()
        ]
        print_table(["sink", "kind", "url", "state", "dataset", "watermark", "reason"], rows, grouped=False)


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
