"""`floodmark dataset add|change|list`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import column_list, declared_dataset, json_option, open_store
from floodmark.cli.output import print_json, print_table

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset


@click.group()
def dataset() -> None:
    """Declare datasets, change column types and list datasets.

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
            schema=dict(_column(text) for text in columns) or None,
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
@click.argument("name")
@click.option(
    "--type",
    "types",
    multiple=True,
    required=True,
    metavar="COLUMN=TYPE",
    help="Give a column another type. Can be repeated.",
)
def change(name: str, types: tuple[str, ...]) -> None:
    """Correct the types of columns of dataset NAME.

    The first value of a column that is not declared determines its type. A wrong type can be corrected while no
    committed row has a value in the column; committed values are not converted. Identity, event time and partition
    columns cannot be changed. Replay quarantined rows afterwards. What sinks have delivered is not changed.

    \b
    Example:
      floodmark purge orders --where 'price IS NOT NULL'
      floodmark dataset change orders --type 'price=decimal(12,2)'
      floodmark quarantine replay --all --dataset orders
    """
    wanted = dict(_type(text) for text in types)
    with open_store() as store:
        store.change_dataset(name, types=wanted)
    click.echo(f"Dataset {name}: " + ", ".join(f"{column} is {kind}" for column, kind in wanted.items()) + ".")


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
    if declared.event_time is None:
        return f"Two rows are duplicates if {choices} is the same."
    if declared.key_time is None:
        return f"Two rows are duplicates if {choices} is the same, with any {declared.event_time}."
    return (
        f"Two rows are duplicates if {choices} and {declared.event_time} (the event time) are the same. The "
        "same identity with another event time is another row."
    )


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
