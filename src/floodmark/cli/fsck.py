"""`floodmark fsck`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import json_option, open_store, store_path
from floodmark.cli.output import WRONG, counted, finding_json, note, print_findings, print_json, steps

if TYPE_CHECKING:
    from floodmark.maintenance.findings import Offer
    from floodmark.maintenance.fsck import FsckReport


@click.command()
@click.option("--deep", is_flag=True, help="Also count the rows in the lake.")
@click.option("--repair", is_flag=True, help="Repair everything that needs no decision, and list what was done.")
@click.option(
    "--give-up",
    "given_up",
    type=int,
    multiple=True,
    metavar="SEGMENT",
    help="Give up the rows of this damaged segment. Can be repeated.",
)
@click.option(
    "--retry",
    "retried",
    type=int,
    multiple=True,
    metavar="SEGMENT",
    help="Let flush try this segment again. Can be repeated.",
)
@click.option("--yes", is_flag=True, help="Give rows up without asking.")
@click.option("--rebuild-records", is_flag=True, help="Rebuild a lost control database from lake and spool.")
@json_option
@click.pass_context
def fsck(
    context: click.Context,
    deep: bool,
    repair: bool,
    given_up: tuple[int, ...],
    retried: tuple[int, ...],
    yes: bool,
    rebuild_records: bool,
    as_json: bool,
) -> None:
    """Check that control database, lake and spool are consistent.

    Without --repair nothing is changed. Every finding shows the command to run. The exit code is 3 if a problem was
    found (with --repair: if a problem remains). What the next flush repairs automatically is reported as a note.

    A segment whose file is damaged or missing is never given up automatically. With --repair you are asked about each
    one, or you name it with --give-up. Its acknowledged rows are then lost, the rest of the file moves to quarantine/,
    and the loss is recorded.

    \b
    Examples:
      floodmark fsck
      floodmark fsck --repair --json
      floodmark fsck --repair --give-up 4711 --yes
    """
    if (given_up or retried) and not repair:
        raise click.UsageError("--give-up and --retry need --repair, because they change the store.")
    if rebuild_records:
        _rebuild(as_json=as_json)
    with open_store() as store, steps("Checking") as progress:
        named = [item for item in store.fsck().offers if item.segment in given_up] if given_up and not yes else []
        if named and not all(map(_agreed, named)):
            raise click.Abort
        report = store.fsck(deep=deep, repair=repair, give_up=given_up, retry=retried, progress=progress)
        asked = report.offers if repair and not as_json and not given_up else ()
        chosen = [item.segment for item in asked if yes or (sys.stdin.isatty() and _agreed(item))]
        if chosen:
            again = store.fsck(deep=deep, repair=True, give_up=chosen, progress=progress)
            report = _with(again, report.repaired)
    if as_json:
        print_json(
            {
                "deep": report.deep,
                "sound": report.sound,
                "datasets": report.datasets,
                "repaired": report.repaired,
                "findings": [finding_json(item) for item in report.findings],
                "offers": [_offer_json(item) for item in report.offers],
            }
        )
    else:
        for line in report.repaired:
            click.echo(f"done   {line}")
        print_findings(report.findings, sound=f"{counted(len(report.datasets), 'dataset')} checked, no problems found.")
    if not report.sound:
        context.exit(WRONG)


def _with(report: FsckReport, before: tuple[str, ...]) -> FsckReport:
    from dataclasses import replace

    return replace(report, repaired=(*before, *report.repaired))


def _agreed(item: Offer) -> bool:
    numbers = f", sequence numbers {item.range}" if item.range is not None else ""
    rows = counted(item.rows, "acknowledged row")
    about = f"Segment {item.segment} of dataset {item.dataset} ({rows}{numbers}): {item.problem}"
    click.echo(about, err=True)
    if item.range is not None:
        click.echo(
            "Its block is undecided and will be decided first. If the block was committed, no row is lost.", err=True
        )
    return click.confirm("Give up these rows permanently?", default=False, err=True)


def _offer_json(item: Offer) -> dict[str, object]:
    return {
        "segment": item.segment,
        "dataset": item.dataset,
        "rows": item.rows,
        "range": None if item.range is None else [item.range.after, item.range.through],
        "problem": item.problem,
    }


def _rebuild(*, as_json: bool) -> None:
    from floodmark.store import rebuild_records

    made = rebuild_records(store_path())
    if as_json:
        print_json(made)
        return
    click.echo(
        f"A new control database was created with {counted(len(made.datasets), 'dataset')}: {', '.join(made.datasets)}."
    )
    if made.kept_at is not None:
        note(f"The damaged file is kept as {made.kept_at}.")
    for name in made.undeclared:
        note(
            f"The table of {name} has no stored declaration. Run `floodmark dataset add {name} …` with the same "
            "options as before."
        )
    for name in made.unclear:
        note(f"Dataset {name} was being rebuilt. Restore a backup of the control database to continue with it.")
    note(
        "Run `floodmark flush`: it finds all commits and all captured rows. Then add sinks, tokens and "
        "sources again, and repeat retention and purges: their records existed only in the lost control "
        "database."
    )
