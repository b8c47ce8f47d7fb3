"""`floodmark torture`"""

from __future__ import annotations

import contextlib
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from floodmark.cli.options import Amount, json_option, open_store
from floodmark.cli.output import SHOWN_MAX, WRONG, note, print_json, print_table

if TYPE_CHECKING:
    from floodmark.torture.verdict import Verdict

UNPROVEN = 1
"""The exit code of a run without problems that was too short to prove anything."""


TERMINATED = 128 + signal.SIGTERM


@click.command()
@click.option(
    "--minutes",
    type=Amount(min=0, min_open=True),
    default=5.0,
    show_default=True,
    help="How long to kill processes.",
)
@click.option(
    "--sink", "sinks", metavar="NAME", multiple=True, help="Test only this sink. Can be repeated. Default: all."
)
@click.option("--writers", type=click.IntRange(1, 64), default=2, show_default=True, help="Number of writer processes.")
@click.option("--seed", type=int, help="Repeat the random choices of an earlier run. Default: random.")
@click.option(
    "--hub-store",
    type=click.Path(exists=True, path_type=Path),
    help="The store of the hub of a forward sink, if it is on this machine. Its rows are checked.",
)
@click.option("--hub-dataset", metavar="NAME", help="A dataset at the hub, declared for this test.")
@click.option("--keep", is_flag=True, help="Keep the scratch store and the delivered rows.")
@json_option
@click.pass_context
def torture(
    context: click.Context,
    minutes: float,
    sinks: tuple[str, ...],
    writers: int,
    seed: int | None,
    hub_store: Path | None,
    hub_dataset: str | None,
    keep: bool,
    as_json: bool,
) -> None:
    """Kill writers and the daemon at random, and check that your destinations get every row once.

    A scratch store is created in a temporary directory. Its sinks have the settings of this store's sinks, but a new
    location: a new prefix, a new table, or a separate dataset at the hub. Writers capture generated rows and log what
    was acknowledged. Writers and `floodmark run` are killed (SIGKILL) and restarted. Then all rows are delivered, each
    destination is read back, and an independent check reports rows that are missing, duplicated, changed, unexpected or
    out of order. This store, its datasets and its
    delivered rows are not changed.

    \b
    Examples:
      floodmark torture --minutes 2
      floodmark torture --sink archive --minutes 30 --seed 7 --json
      floodmark torture --sink central --hub-store /srv/hub

    Exit codes: 0 every row arrived once; 1 no problem found, but the run was too short to prove it; 3 a problem was
    found.
    """
    import secrets

    from floodmark.torture.chaos_run import Trial
    from floodmark.torture.scratch import HubAccess

    # Its child processes do not end automatically.
    signal.signal(signal.SIGTERM, lambda _number, _frame: sys.exit(TERMINATED))
    with open_store() as store, _progress() as tell:
        access = HubAccess(hub_store, hub_dataset)
        number = secrets.randbelow(10**6) if seed is None else seed
        trial = Trial(store, minutes, number, sinks=sinks, writers=writers, hub=access, keep=keep, tell=tell)
        verdict = trial.run()
    if as_json:
        print_json(_described(verdict))
    else:
        _show(verdict)
    if not verdict.sound:
        context.exit(WRONG)
    if not verdict.proven:
        context.exit(UNPROVEN)


@contextlib.contextmanager
def _progress() -> Iterator[Callable[[str], None]]:
    """On a terminal one line that is updated; elsewhere one line per message."""
    if not sys.stderr.isatty():
        yield note
        return
    from rich.console import Console

    with Console(stderr=True).status("Creating a scratch store …") as status:
        yield status.update


def _show(verdict: Verdict) -> None:
    done = verdict.exercised
    click.echo(f"Seed {verdict.seed}, {verdict.seconds:.0f} seconds.\n")
    print_table(["killed", "how", "where", "times"], _deaths(verdict), title="What was killed")
    amounts = [
        ["processes started", done.starts],
        ["rows acknowledged", done.rows_acknowledged],
        ["rows captured again after an unknown outcome", done.rows_captured_again],
        ["duplicates dropped", done.duplicates_dropped],
        ["commits reported", done.commits],
        ["deliveries reported", done.ticks],
        ["rows delivered while processes were killed", done.rows_in_trouble],
        ["chunks reported", done.chunks],
        ["settings changed", done.setting_changes],
        ["problems reported by the daemon", done.problems],
    ]
    click.echo()
    print_table(["what happened", "times"], amounts)
    click.echo()
    rows = [[item.name, item.rows, len(item.findings), item.how] for item in verdict.destinations]
    print_table(["destination", "rows", "wrong", "compared"], rows, title="What arrived")
    click.echo()
    for finding in verdict.findings[:SHOWN_MAX]:
        click.echo(f"WRONG  {finding}")
    for text in (*verdict.left_out, *verdict.astray):
        click.echo(f"note   {text}")
    for text in verdict.kept:
        click.echo(f"kept   {text}")
    click.echo(_sentence(verdict))


def _deaths(verdict: Verdict) -> list[list[Any]]:
    from collections import Counter

    counted = Counter((kill.kind, kill.how, kill.where) for kill in verdict.exercised.kills)
    return [[*death, count] for death, count in sorted(counted.items())]


def _sentence(verdict: Verdict) -> str:
    if not verdict.drained:
        return f"Not all rows were delivered. {verdict.stuck or 'Delivery made no more progress.'}"
    if verdict.findings:
        return (
            f"{len(verdict.findings):,} rows are wrong. Run it again with --seed {verdict.seed} --keep to inspect them."
        )
    if verdict.unexercised:
        return f"No problem found, but nothing is proven: {', '.join(verdict.unexercised)}. Use more --minutes."
    return (
        f"{len(verdict.exercised.kills):,} kills. Each of {verdict.exercised.rows_acknowledged:,} "
        "acknowledged rows arrived at every destination exactly once, unchanged and in order."
    )


def _described(verdict: Verdict) -> dict[str, Any]:
    done = verdict.exercised
    return {
        "seed": verdict.seed,
        "seconds": round(verdict.seconds, 1),
        "sound": verdict.sound,
        "proven": verdict.proven,
        "drained": verdict.drained,
        "stuck": verdict.stuck,
        "destinations": [
            {"name": item.name, "rows": item.rows, "compared": item.how, "findings": item.findings}
            for item in verdict.destinations
        ],
        "killed": done.killed,
        "exercised": done,
        "unexercised": verdict.unexercised,
        "left_out": verdict.left_out,
        "ended_by_themselves": verdict.astray,
        "kept": verdict.kept,
    }
