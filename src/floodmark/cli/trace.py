"""`floodmark trace`"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import dataset_names, declared_dataset, each_once, json_option, open_store
from floodmark.cli.output import NOTHING, print_json, working

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset
    from floodmark.maintenance.trace import CommittedRow, Trace

UNKNOWN = 1
"""The exit code if the row was not found."""


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.argument("values", nargs=-1, metavar="[COLUMN=VALUE]...")
@click.option("--id", "content_id", metavar="ID", help="The row's content id, instead of values.")
@click.option("--row", metavar="JSON", help="The whole row as a JSON object, instead of values.")
@json_option
@click.pass_context
def trace(
    context: click.Context,
    dataset: str,
    values: tuple[str, ...],
    content_id: str | None,
    row: str | None,
    as_json: bool,
) -> None:
    """Show where one row of DATASET is: landing file, segment, block, snapshot, data file, and each sink's chunk.

    Give the identity columns as COLUMN=VALUE. Also give the event time if there is one: it limits how much is read. For
    a sink that does not have the row, the reason is shown. The exit code is 1 if the row was not found.

    \b
    Examples:
      floodmark trace orders order_id=A-17
      floodmark trace orders --row '{"order_id": "A-17", "lines": [1, 2]}' --json
    """
    if sum((bool(values), content_id is not None, row is not None)) != 1:
        raise click.UsageError("Give COLUMN=VALUE, --id or --row.")
    with open_store() as store:
        asked = content_id or (_object(row) if row is not None else _parsed(declared_dataset(store, dataset), values))
        with working(f"Searching the row in {dataset} …", left=NOTHING):
            found = store.trace(dataset, asked)
    if as_json:
        print_json(_described(found))
    else:
        _show(found)
    if not found.known:
        context.exit(UNKNOWN)


def _object(text: str) -> dict[str, Any]:
    import orjson

    try:
        found = orjson.loads(text)
    except ValueError as error:
        raise click.BadParameter(f"it is not JSON: {error}", param_hint="--row") from error
    if not isinstance(found, dict):
        raise click.BadParameter("it is not an object", param_hint="--row")
    return found


def _parsed(dataset: Dataset, values: tuple[str, ...]) -> dict[str, Any]:
    """A value of a string column is text; for other types it is parsed as JSON, if it is valid JSON."""
    import orjson

    from floodmark.schema import STRING

    asked: dict[str, Any] = {}
    each_once((item.partition("=")[0], item) for item in values)
    for item in values:
        name, equals, text = item.partition("=")
        if not equals:
            raise click.BadParameter(f"{item!r} is not COLUMN=VALUE")
        column = dataset.schema.get(name)
        asked[name] = text
        if column is not None and column.type != STRING:
            try:
                asked[name] = orjson.loads(text)
            except ValueError:
                asked[name] = text
    return asked


def _described(found: Trace) -> dict[str, Any]:
    return {
        "dataset": found.dataset,
        "known": found.known,
        "spooled": found.spooled,
        "committed": found.committed,
        "quarantined": found.quarantined,
        "notes": found.notes,
    }


def _show(found: Trace) -> None:
    for row in found.spooled:
        place = f"row {row.at} of segment {row.segment}" if row.segment is not None else f"the line at byte {row.at}"
        click.echo(f"spool       {row.file}, {place}")
        click.echo(f"            {row.why}")
    for item in found.committed:
        _show_committed(item)
    for entry in found.quarantined:
        place = "" if entry.sink is None else f" of sink {entry.sink}, sequence number {entry.seq}"
        click.echo(f"quarantine  entry {entry.id[:12]}{place}: {entry.state}, since {entry.at}")
        click.echo(f"            {entry.reason}")
    for note in found.notes:
        click.echo(f"note        {note}")
    if not found.known:
        click.echo(f"Not found: the row is not in the spool, the lake or the quarantine of {found.dataset}.")


def _show_committed(row: CommittedRow) -> None:
    click.echo(f"lake        sequence number {row.seq}, partition {row.partition}, content id {row.content_id}")
    forgotten = "folded: not kept for an old commit" if row.folded > 1 else "no landing file"
    click.echo(f"  landing   {row.landing or row.source or forgotten}")
    click.echo(f"  segment   {row.segment}")
    if row.folded > 1:
        click.echo(
            f"  block     one of {row.folded} that are folded into {row.block}, committed up to {row.committed_at}"
        )
    else:
        click.echo(f"  block     {row.block}, committed {row.committed_at}, snapshot {row.snapshot}")
    click.echo(f"  file      {row.file}")
    for step in row.sinks:
        when = "" if step.at is None else f" at {step.at}"
        chunk = "" if step.chunk is None else f" in chunk {step.chunk}"
        click.echo(f"  sink      {step.sink}: {step.state}{chunk}{when}. {step.why}")
