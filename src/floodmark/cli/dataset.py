"""`floodmark dataset add|change|pause|resume|remove|list`"""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import column_list, dataset_names, declared_dataset, each_once, json_option, open_store
from floodmark.cli.output import print_json, print_table

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset
    from floodmark.maintenance.remove_dataset import RemovedDataset


@click.group()
def dataset() -> None:
    """Declare datasets, change, pause and remove them.

    A dataset is a named stream of rows. Declare it once, before its first row. Columns are added automatically with
    their first value; declare a column where its type must not be inferred.
    """


@dataset.command()
@click.argument("name")
@click.option(
    "--identity",
    "identities",
    multiple=True,
    metavar="COLUMNS",
    help="Columns that identify a row, such as part_id or order,line. Two rows with the same identity and the "
    "same event time are duplicates. Can be repeated: the next one is used for rows in which the columns "
    "before it are null.",
)
@click.option(
    "--event-time",
    metavar="COLUMN",
    help="The column with the row's event time. It is compared together with the identity, so duplicates are "
    "searched at that time only.",
)
@click.option(
    "--identity-scope",
    type=click.Choice(["event_time", "all"]),
    help="`event_time` (the default): rows with the same identity and event time are duplicates. `all`: rows with "
    "the same identity are duplicates, with any event time; every flush then reads the identities of all "
    "committed rows.",
)
@click.option(
    "--identity-null",
    type=click.Choice(["content", "keep", "quarantine"]),
    help="What to do with a row whose identity is null. `content` (the default): compare all columns. `keep`: "
    "never treat it as a duplicate. `quarantine`: do not store it.",
)
@click.option(
    "--partition-by",
    metavar="COLUMNS",
    callback=column_list,
    help="Partition columns. Each combination of their values is delivered separately.",
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME:TYPE", help="Declare a column's type. Can be repeated."
)
@click.option(
    "--settle",
    metavar="MODULE:FUNCTION",
    help="A function that may change or drop the rows of a flush before the commit. Its module must be listed in "
    "[functions] allow.",
)
@json_option
def add(
    name: str,
    identities: tuple[str, ...],
    event_time: str | None,
    identity_scope: str | None,
    identity_null: str | None,
    partition_by: list[str] | None,
    columns: tuple[str, ...],
    settle: str | None,
    as_json: bool,
) -> None:
    """Declare a dataset called NAME.

    Declaring it again in the same way changes nothing. Identity, event time and partition columns cannot be changed
    later.

    Types: boolean, int, long, float, double, string, binary, date, timestamp, json, decimal(P,S), list<TYPE>,
    struct<field:TYPE,…>.

    \b
    Examples:
      floodmark dataset add orders --identity order_id --event-time placed_at
      floodmark dataset add messages --identity part_id --identity message_id,part_index \\
          --event-time ts --partition-by source --column 'tokens:long' --column 'cost:decimal(12,6)'
    """
    with open_store() as store:
        store.settings.functions.check(settle, by_command=True)
        store.add_dataset(
            name,
            [_names(identity) for identity in identities] or None,
            event_time=event_time,
            partition_by=partition_by or (),
            schema=each_once(map(_column, columns), "'--column'") or None,
            settle=settle,
            identity_null=identity_null,
            identity_scope=identity_scope,
        )
        if as_json:
            print_json(next(item for item in store.status().datasets if item.name == name))
        else:
            click.echo(f"Dataset {name} is declared.")
            click.echo(_what_is_one_row(declared_dataset(store, name)))


@dataset.command()
@click.argument("name", shell_complete=dataset_names)
@click.option(
    "--type",
    "types",
    multiple=True,
    metavar="COLUMN=TYPE",
    help="Give a column another type. Can be repeated.",
)
@click.option(
    "--settle",
    metavar="MODULE:FUNCTION",
    help="Give the dataset another settle function. Its module must be listed in [functions] allow.",
)
@click.option("--no-settle", is_flag=True, help="Take its settle function away.")
@json_option
def change(name: str, types: tuple[str, ...], settle: str | None, no_settle: bool, as_json: bool) -> None:
    """Correct column types of dataset NAME, or change its settle function.

    A new settle function applies from the next commit on; compaction settles committed rows with it again.

    The first value of a column that is not declared determines its type. A wrong type can be corrected while no
    committed row has a value in the column; committed values are not converted. Identity, event time and partition
    columns cannot be changed. Replay quarantined rows afterwards. What sinks have delivered is not changed.

    \b
    Example:
      floodmark purge orders --where 'price IS NOT NULL'
      floodmark dataset change orders --type 'price=decimal(12,2)'
      floodmark quarantine replay --all --dataset orders
    """
    if not types and settle is None and not no_settle:
        raise click.UsageError("Give --type, --settle or --no-settle.")
    if settle is not None and no_settle:
        raise click.UsageError("Give either --settle or --no-settle.")
    wanted = each_once(map(_type, types), "'--type'")
    with open_store() as store:
        store.settings.functions.check(settle, by_command=True)
        store.change_dataset(name, types=wanted, settle="" if no_settle else settle)
        if as_json:
            print_json(next(item for item in store.status().datasets if item.name == name))
            return
    said = [f"{column} is {kind}" for column, kind in wanted.items()]
    said += [f"the settle function is {settle}"] if settle is not None else []
    said += ["there is no settle function"] if no_settle else []
    click.echo(f"Dataset {name}: " + ", ".join(said) + ".")


@dataset.command()
@click.argument("name", shell_complete=dataset_names)
@json_option
def pause(name: str, as_json: bool) -> None:
    """Commit and deliver nothing of dataset NAME until it is resumed.

    Capture, the hub and backfills continue: their rows wait in the spool, up to spool.backlog_bytes_max.

    \b
    Example:
      floodmark dataset pause orders
    """
    with open_store() as store:
        store.pause_dataset(name)
    _say(f"Dataset {name} is paused. Captured rows wait in the spool.", name, paused=True, as_json=as_json)


@dataset.command()
@click.argument("name", shell_complete=dataset_names)
@json_option
def resume(name: str, as_json: bool) -> None:
    """Commit and deliver the rows of the paused dataset NAME again.

    \b
    Example:
      floodmark dataset resume orders
    """
    with open_store() as store:
        store.resume_dataset(name)
    _say(f"Dataset {name} continues.", name, paused=False, as_json=as_json)


def _say(text: str, name: str, *, paused: bool, as_json: bool) -> None:
    if as_json:
        print_json({"dataset": name, "paused": paused})
    else:
        click.echo(text)


@dataset.command()
@click.argument("name", shell_complete=dataset_names)
@click.option("--dry-run", is_flag=True, help="Only show what would be removed, and what depends on it.")
@click.option("--give-up", is_flag=True, help="Also if rows are not committed, or a sink has not received them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@json_option
def remove(name: str, dry_run: bool, give_up: bool, yes: bool, as_json: bool) -> None:
    """Remove dataset NAME with its table, spool, quarantine and records.

    Delivered rows stay at their destinations. The name cannot be used again. It is refused while rows are not committed
    or a sink has not received them (unless --give-up), while a sink delivers nothing else, and while a process captures
    rows of it. After a crash, run it again.

    \b
    Examples:
      floodmark dataset remove orders --dry-run
      floodmark dataset remove orders --yes
    """
    with open_store() as store:
        if not dry_run and not yes and sys.stdin.isatty():
            _show_removal(store.remove_dataset(name, dry_run=True))
            click.confirm(f"Remove dataset {name} permanently?", abort=True, err=True)
        elif not dry_run and not yes:
            raise click.UsageError("Give --yes, or look first with --dry-run.")
        report = store.remove_dataset(name, give_up=give_up, dry_run=dry_run)
    if as_json:
        print_json(report)
        return
    _show_removal(report)


def _show_removal(report: RemovedDataset) -> None:
    verb = "were removed" if report.removed else "would be removed"
    click.echo(
        f"{report.rows:,} committed rows, {report.waiting_rows:,} sealed rows, {report.waiting_bytes:,} bytes of the "
        f"landing log and {report.quarantined:,} quarantine entries of {report.dataset} {verb}."
    )
    for need in report.needed:
        click.echo(f"Sink {need.sink} has not received about {need.rows:,} rows.")
    for sink in report.sinks:
        only = " It delivers nothing else: remove it first." if sink in report.only_sinks else ""
        click.echo(f"Sink {sink} names it.{only}")
    for origin in report.origins:
        click.echo(f"Store {origin} forwards rows to it.")
    for source in report.sources:
        click.echo(f"Source {source} feeds it.")


@dataset.command(name="list")
@json_option
def list_(as_json: bool) -> None:
    """List the datasets with their declarations.

    \b
    Example:
      floodmark dataset list --json
    """
    with open_store() as store:
        found = store.status().datasets
    if as_json:
        print_json(found)
        return
    if not found:
        click.echo("No datasets yet. Add one with `floodmark dataset add NAME`.")
        return
    print_table(
        ["dataset", "identity", "event time", "partition by", "columns"],
        [
            [
                item.name,
                ", else ".join("+".join(choice) for choice in item.identity),
                item.event_time,
                ", ".join(item.partition_by),
                ", ".join(f"{name} {kind}" for name, kind in item.columns.items()),
            ]
            for item in found
        ],
    )


def _what_is_one_row(declared: Dataset) -> str:
    """One sentence that says when two rows are duplicates."""
    if not declared.identity:
        return "It has no identity: no row is treated as a duplicate."
    choices = ", else ".join(" and ".join(names) for names in declared.identity)
    if declared.event_time is None or all(declared.event_time in names for names in declared.identity):
        return f"Two rows are duplicates if {choices} {_are(declared)} the same."
    if declared.key_time is None:
        return f"Two rows are duplicates if {choices} {_are(declared)} the same, with any {declared.event_time}."
    return (
        f"Two rows are duplicates if {choices} and {declared.event_time} (the event time) are the same. The "
        "same identity with another event time is another row."
    )


def _are(declared: Dataset) -> str:
    return "is" if len(declared.identity[-1]) == 1 else "are"


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _type(text: str) -> tuple[str, str]:
    name, sign, kind = text.partition("=")
    if not (sign and name.strip() and kind.strip()):
        raise click.BadParameter(f"{text!r} is not COLUMN=TYPE.", param_hint="'--type'")
    return name.strip(), kind.strip()


def _column(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not (colon and name.strip() and kind.strip()):
        raise click.BadParameter(f"{text!r} is not NAME:TYPE.", param_hint="'--column'")
    return name.strip(), kind.strip()
