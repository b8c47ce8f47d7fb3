"""`floodmark adopt`"""

from __future__ import annotations

import click

from floodmark.cli.options import column_list, dataset_names, json_option, open_store
from floodmark.cli.output import counted, print_json, progress


@click.command()
@click.argument("source")
@click.option(
    "--dataset",
    required=True,
    metavar="NAME",
    help="The dataset. It is declared if it does not exist.",
    shell_complete=dataset_names,
)
@click.option(
    "--format", "file_format", metavar="FORMAT", help="SOURCE is a path of this format: parquet, csv, json, …"
)
@click.option("--identity", metavar="COLUMNS", callback=column_list, help="For a new dataset: the identity columns.")
@click.option("--event-time", metavar="COLUMN", help="For a new dataset: the column with the event time.")
@click.option(
    "--partition-by", metavar="COLUMNS", callback=column_list, help="For a new dataset: the partition columns."
)
@json_option
def adopt(
    source: str,
    dataset: str,
    file_format: str | None,
    identity: list[str] | None,
    event_time: str | None,
    partition_by: list[str] | None,
    as_json: bool,
) -> None:
    """Import existing data, without sequence numbers, into a dataset.

    SOURCE is an Iceberg table (catalog.namespace.table) or, with --format, a path. It is read in parts, at one fixed
    version. After a crash run the same command: it continues with the next part. A source that was adopted completely
    is not read again, also if rows were added to it since.

    \b
    Examples:
      floodmark adopt prod.events.legacy --dataset messages --identity part_id
      floodmark adopt /data/history --format parquet --dataset history
    """
    with open_store() as store, progress(f"Adopting into {dataset}") as shown:
        report = store.adopt(
            source,
            dataset,
            format=file_format,
            identity=identity,
            event_time=event_time,
            partition_by=partition_by or (),
            progress=lambda done: shown.update(done.rows),
        )
    if as_json:
        print_json(report)
    elif report.parts == 0 and report.already:
        click.echo(f"{source} was already adopted; no rows were added.")
    else:
        click.echo(f"{counted(report.rows, 'row')} adopted into {dataset}, {report.quarantined:,} in quarantine.")
