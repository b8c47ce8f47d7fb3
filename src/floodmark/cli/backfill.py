"""`floodmark backfill`"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, each_once, json_option, open_store
from floodmark.cli.output import Progress, note, print_json, print_table, progress
from floodmark.errors import FloodmarkError

if TYPE_CHECKING:
    from floodmark.sources.units import BackfillReport


def _renames(_ctx: click.Context, _parameter: click.Parameter, values: tuple[str, ...]) -> dict[str, str]:
    pairs = [value.partition("=") for value in values]
    if not all(old and new for old, _, new in pairs):
        raise click.BadParameter("write it as old=new")
    return each_once((old, new) for old, _, new in pairs)


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.option("--from", "source", metavar="PATH", help="Files, an Iceberg table, or what a provider reads.")
@click.option(
    "--format",
    "file_format",
    type=click.Choice(["jsonl", "csv", "parquet"]),
    help="The file format. Default: detected by file extension.",
)
@click.option(
    "--since",
    metavar="TIME",
    help="Only rows with this event time or later, such as 2026-01-31 or 2026-01-31T12:00:00Z.",
)
@click.option("--until", metavar="TIME", help="Only rows with an earlier event time.")
@click.option(
    "--map", "renamed", multiple=True, metavar="OLD=NEW", callback=_renames, help="Rename a column. Can be repeated."
)
@click.option("--select", metavar="SQL", help="A Spark SQL query over the view `source`; its result is loaded.")
@click.option("--source-id", metavar="ID", help="The name of the source. A source is loaded once under one name.")
@click.option(
    "--provider", "providers", multiple=True, metavar="NAME", help="Read with this Python provider. Can be repeated."
)
@json_option
def backfill(
    dataset: str,
    source: str | None,
    file_format: str | None,
    since: str | None,
    until: str | None,
    renamed: dict[str, str],
    select: str | None,
    source_id: str | None,
    providers: tuple[str, ...],
    as_json: bool,
) -> None:
    """Load history into DATASET, each row exactly once.

    Live capture can run at the same time. Rows whose identity is already stored or captured are skipped. After an
    interruption run the same command: it continues after the last loaded row. A second run after the end adds nothing.
    Rows that do not fit go to quarantine with file and line. PATH is a file, a directory or a pattern of jsonl, csv and
    parquet files, also gzipped, or a table as catalog.namespace.table. With several providers, one that fails does not
    stop the others; the exit code is then 1.

    \b
    Examples:
      floodmark backfill messages --from history/
      floodmark backfill messages --from 'dump-*.jsonl.gz' --since 2026-01-01 --map id=part_id
      floodmark backfill messages --from prod.chat.messages --select "SELECT id AS part_id, at FROM source"
      floodmark backfill transcripts --provider transcripts --from ~/.claude/projects
    """
    if source is None and not providers:
        raise click.UsageError("Give --from PATH or --provider NAME.")
    reports, failed = [], False
    with open_store() as store:
        for provider in providers or (None,):
            try:
                with progress(f"Loading into {dataset}") as shown:
                    report = store.backfill(
                        dataset,
                        source,
                        format=file_format,
                        since=since,
                        until=until,
                        map=renamed,
                        select=select,
                        source_id=source_id,
                        provider=provider,
                        progress=_tell(shown),
                    )
            except FloodmarkError as error:
                if len(providers) < 2:
                    raise
                failed = True  # other providers are not affected
                note(f"Error: {provider}: {error.message}")
                if error.hint:
                    note(f"Try:   {error.hint}")
                continue
            reports.append(report)
    if as_json:
        print_json(reports[0] if len(providers) < 2 else reports)
    else:
        _show(reports)
    if failed:
        click.get_current_context().exit(1)


def _show(reports: list[BackfillReport]) -> None:
    print_table(
        ["source", "read", "new", "already stored", "waiting in spool", "quarantined"],
        [[r.source, r.read, r.new, r.already_stored, r.already_spooled, r.quarantined] for r in reports],
    )
    for report in reports:
        for count, what in (
            (report.units_loaded_before, "Already loaded, and not read again: {} of {} units."),
            (report.quarantined, "Do not fit: {}. `floodmark quarantine list` shows the reason, file and line."),
            (
                report.without_identity,
                "Identity is null: {}. The dataset's identity_null setting defines how they are compared.",
            ),
            (report.outside, "Outside --since and --until: {}."),
            (report.expired, "Older than the retention limit, or purged: {}. They were not committed."),
            (report.dropped, "Dropped by the settle function: {}."),
        ):
            if count:
                note(what.format(f"{count:,}", f"{report.units + report.units_loaded_before:,}"))


def _tell(shown: Progress) -> Callable[[BackfillReport], None]:
    return lambda report: shown.update(report.read, done=report.bytes, total=report.bytes_total)
