"""`floodmark compact`"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, json_option, open_store
from floodmark.cli.output import counted, note, print_json, print_table, size_text, steps

if TYPE_CHECKING:
    from floodmark.maintenance.compact import CompactReport, DatasetCompaction


@click.command()
@click.argument("dataset", required=False, shell_complete=dataset_names)
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@json_option
@click.pass_context
def compact(context: click.Context, dataset: str | None, dry_run: bool, as_json: bool) -> None:
    """Compact small data files of DATASET, or of all datasets, and remove unused files.

    Sequence numbers do not change, so readers and sinks are not affected. Old snapshots expire. Files that no snapshot
    refers to are removed when they are old enough. Old records of commits and deliveries in the control database are
    folded into a few, with the same totals. It is safe to run during flushes and exports. One run does a limited
    amount of work, see [upkeep] in floodmark.toml.

    If one step fails, the other steps are still done, and the exit code is 1.

    \b
    Examples:
      floodmark compact events --dry-run
      floodmark compact
    """
    with open_store() as store, steps("Compacting") as progress:
        report = store.compact(dataset, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(report)
    else:
        _show(report)
    if not report.sound:
        context.exit(1)


def _show(report: CompactReport) -> None:
    for item in report.datasets:
        click.echo(_summary(item, dry_run=report.dry_run))
        if item.compacted:
            print_table(
                ["numbers", "files", "files after", "bytes", "bytes after"],
                [
                    [one.range, one.files_before, one.files_after, one.bytes_before, one.bytes_after]
                    for one in item.compacted
                ],
            )
        for reason, count in Counter(one.reason for one in item.skipped).items():
            click.echo(f"  {counted(count, 'bucket')} not changed: {reason}")
        for generation in item.generations_removed:
            click.echo(f"  generation {generation}, replaced by an earlier rebuild, was removed")
        if item.settled.changed or item.settled.collapsed or item.settled.dropped:
            click.echo(
                f"  settled again: {counted(item.settled.changed, 'row')} changed, {item.settled.collapsed:,} merged, "
                f"{item.settled.dropped:,} dropped"
            )
        if item.settled.waiting:
            click.echo(
                f"  {counted(item.settled.waiting, 'row')} not settled again yet: a delivery to a sink is in progress"
            )
        if item.folded is not None and item.folded.records:
            click.echo(f"  {item.folded.records:,} old records of commits and deliveries folded")
        for bucket in item.failed:
            note(f"  {bucket.range} could not be compacted: {bucket.reason}")
        for problem in item.problems:
            note(f"  {problem}")


def _summary(item: DatasetCompaction, *, dry_run: bool) -> str:
    files = sum(one.files_before for one in item.compacted)
    found = f"{counted(item.orphans, 'unreferenced file')} ({size_text(item.orphan_bytes)})"
    if dry_run:
        return f"{item.dataset}: {counted(files, 'file')} would be compacted, and {found} would be removed."
    if item.idle:
        return f"{item.dataset}: nothing to do."
    left = sum(one.files_after or 0 for one in item.compacted)
    return (
        f"{item.dataset}: {counted(files, 'file')} compacted to {left:,}, "
        f"{counted(item.snapshots_expired, 'snapshot')} expired, {found} removed, {size_text(item.bytes_freed)} freed."
    )
