"""`floodmark status`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import Amount, json_option, open_store
from floodmark.cli.output import counted, note, print_json, print_table, size_text

if TYPE_CHECKING:
    from floodmark.status import Status

PARTITIONS_MAX = 20
"""Most partitions that are shown; a dataset may have thousands."""


@click.command()
@click.option("--watch", is_flag=True, help="Show it again and again, with rates and trends, until q or Ctrl-C.")
@click.option(
    "--seconds",
    type=Amount(0.1, 3600),
    default=2.0,
    show_default=True,
    help="With --watch: the time between two readings.",
)
@click.option("--count", type=click.IntRange(1), help="With --watch: stop after this many readings.")
@json_option
def status(watch: bool, seconds: float, count: int | None, as_json: bool) -> None:
    """Show committed rows, waiting rows and the state of each sink.

    Spark is not started. rows: committed rows. horizon: every row up to this sequence number is visible. waiting: rows
    captured but not committed. quarantined: rows that did not fit. lag: committed rows that the sink has not received,
    before its filter. reason: why the sink is blocked, or the last error. next attempt: when `floodmark run` delivers
    again.

    With --watch a terminal shows the same as the dashboard; elsewhere each reading is one line, or with --json one JSON
    document per line.

    \b
    Examples:
      floodmark status
      floodmark status --watch
      floodmark status --json | jq '.datasets[].spool'
      floodmark status --json | jq '.sinks[] | select(.lag > 0)'
    """
    with open_store() as store:
        if watch:
            from floodmark.cli.watch import watch_status

            watch_status(store, seconds=seconds, count=count, as_json=as_json)
            return
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
            note(f"{item.name}: the last flush could not commit all rows{since}. {item.problem}")
        if item.paused_since is not None:
            since = f"{item.paused_since:%Y-%m-%d %H:%M:%S} UTC"
            note(f"{item.name}: paused since {since}. `floodmark dataset resume {item.name}` continues.")
        if item.lost_rows:
            note(f"{item.name}: {counted(item.lost_rows, 'acknowledged row')} given up; `floodmark fsck` lists them.")
    _show_partitions(found)
    _show_sinks(found)
    for task in found.tasks:
        if task.failures:
            since = "" if task.failing_since is None else f" (since {task.failing_since:%Y-%m-%d %H:%M:%S} UTC)"
            note(f"{task.task} of {task.subject or 'the store'} fails{since}. {task.message}")


def _show_partitions(found: Status) -> None:
    rows = [
        [item.name, one.partition, one.rows, one.last_seq]
        for item in found.datasets
        if item.partition_by
        for one in item.partitions
    ]
    if rows:
        click.echo()
        print_table(["dataset", "partition", "rows", "last sequence number"], rows[:PARTITIONS_MAX])
    if len(rows) > PARTITIONS_MAX:
        click.echo(f"… and {len(rows) - PARTITIONS_MAX:,} more partitions. Use `--json` to see all.")


def _show_sinks(found: Status) -> None:
    if not found.sinks:
        return
    click.echo()
    print_table(
        ["sink", "kind", "place", "state", "lag", "partitions behind", "next attempt", "reason"],
        [
            [
                item.name,
                item.kind,
                item.place,
                item.state,
                item.lag,
                sum(1 for one in item.channels if one.lag),
                None if item.next_attempt is None else item.next_attempt.isoformat(sep=" ", timespec="seconds"),
                item.reason,
            ]
            for item in found.sinks
        ],
    )
    for item in found.sinks:
        for warning in item.warnings:
            click.echo(f"Warning: sink {item.name} does not deliver everything that its settings name. {warning}")


def _waiting(landing_bytes: int, segment_rows: int, segment_bytes: int) -> str:
    if not landing_bytes and not segment_rows:
        return "-"
    sealed = f"{counted(segment_rows, 'row')} sealed" if segment_rows else None
    landed = size_text(landing_bytes) + " landed" if landing_bytes else None
    total = size_text(segment_bytes) if segment_rows else None
    return " + ".join(part for part in (landed, f"{sealed} ({total})" if sealed else None) if part)
