"""`floodmark doctor`"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store, store_path
from floodmark.cli.output import NOTHING, note, print_json, steps

if TYPE_CHECKING:
    from floodmark.doctor import DoctorReport

FAILED = 1


@click.command()
@click.option("--no-spark", is_flag=True, help="Do not start Spark.")
@json_option
@click.pass_context
def doctor(context: click.Context, no_spark: bool, as_json: bool) -> None:
    """Check this machine and the store: what is missing, and what to do about it.

    It checks versions, Java, the jars, memory, disk space, whether an fsync is honest, limits, the clock, permissions,
    the settings, the control database, the catalog, each sink (reachable and writable; nothing is left there) and the
    start of Spark. Where there is no store, only the machine is checked. Nothing is changed.

    \b
    Examples:
      floodmark doctor
      floodmark doctor --no-spark
      floodmark -s shop doctor --json | jq '.checks[] | select(.state != "ok")'

    Exit codes: 0 nothing is wrong (there may be warnings), 1 something is wrong.
    """
    report = _report(start_spark=not no_spark)
    if as_json:
        print_json({"store": report.store, "sound": report.sound, "checks": report.checks})
    else:
        _show(report)
    if not report.sound:
        context.exit(FAILED)


def _report(*, start_spark: bool) -> DoctorReport:
    from floodmark.doctor import WRONG, Checkup, examine
    from floodmark.errors import FloodmarkError, StoreMissing

    machine = _start_anywhere if start_spark else None
    with steps("Checking", left=NOTHING) as progress:
        try:
            store = open_store()
        except StoreMissing:
            note(f"There is no store at {store_path().absolute()}: only this machine is checked.")
            return examine(None, start_spark=machine, progress=progress)
        except FloodmarkError as error:  # the settings or the control database: the machine can be checked
            report = examine(None, start_spark=machine, progress=progress)
            first = Checkup("store", WRONG, error.message, error.hint or "")
            return replace(report, store=str(store_path().absolute()), checks=(first, *report.checks))
        with store:
            return store.doctor(spark=start_spark, progress=progress)


def _start_anywhere() -> str:
    import tempfile
    from pathlib import Path

    from floodmark.config import Settings
    from floodmark.lake.embedded import embedded_lake, try_spark

    with tempfile.TemporaryDirectory(prefix="floodmark-doctor-") as scratch:
        return try_spark(embedded_lake(Path(scratch), Settings("doctor")))


def _show(report: DoctorReport) -> None:
    for one in report.checks:
        click.echo(f"{one.state:8} {one.name}: {one.what}")
        if one.run:
            click.echo(f"{'':8} Try: {one.run}")
    wrong = sum(one.state == "wrong" for one in report.checks)
    warned = sum(one.state == "warning" for one in report.checks)
    click.echo(
        f"{len(report.checks)} checks: {wrong} {'problem' if wrong == 1 else 'problems'}, "
        f"{warned} {'warning' if warned == 1 else 'warnings'}."
    )
