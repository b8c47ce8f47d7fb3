"""`floodmark status`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store
from floodmark.cli.output import note, print_json, print_table, size_text

if TYPE_CHECKING:
    from floodmark.status import Status


@click.command()
@json_option
def status(as_json: bool) -> None:
    """Show what the store holds and what waits, without starting Spark.

    rows: committed. horizon: the sequence number up to which everything is visible. waiting: captured and not yet
    committed. quarantined: rows that did not fit and wait for a decision.

    \b
    Examples:
      floodmark status
      floodmark status --json | jq '.datasets[].spool'
    """
    with open_store() as store:
        found = store.status()
    if as_json:
        print_json(found)
    else:
        _show(found)


def _show(found: Status) -> None:
    click.echo(f"Store {found.store} ({found.store_id})")
    if not found.datasets:
        click.echo("No datasets yet. Add one with `floodmark dataset add NAME`.")
        return
    print_table(
        ["dataset", "rows", "partitions", "horizon", "waiting", "quarantined", "undecided"],
        [
            [
                item.name,
                item.rows,
                len(item.partitions),
                item.horizon,
                _waiting(item.spool.landing_bytes, item.spool.segment_rows, item.spool.segment_bytes),
                item.quarantined,
                item.undecided_block,
            ]
            for item in found.datasets
        ],
    )
    for item in found.datasets:
        if item.problem is not None:
            since = "" if item.problem_since is None else f" (since {item.problem_since:%Y-%m-%d %H:%M:%S} UTC)"
            note(f"{item.name}: the last flush could not commit everything{since}. {item.problem}")
        if item.lost_rows:
            note(f"{item.name}: {item.lost_rows:,} acknowledged rows were given up; `floodmark fsck` names them.")


def _waiting(landing_bytes: int, segment_rows: int, segment_bytes: int) -> str:
    if not landing_bytes and not segment_rows:
        return "-"
    sealed = f"{segment_rows:,} rows sealed" if segment_rows else None
    landed = size_text(landing_bytes) + " landed" if landing_bytes else None
    total = size_text(segment_bytes) if segment_rows else None
    return " + ".join(part for part in (landed, f"{sealed} ({total})" if sealed else None) if part)
