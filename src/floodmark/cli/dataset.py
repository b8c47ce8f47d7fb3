"""`floodmark dataset add|list`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import column_list, declared_dataset, json_option, open_store
from floodmark.cli.output import print_json, print_table

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset


@click.group()
def dataset() -> None:
    """Declare datasets and list them.

    A dataset is a named stream of rows. It is declared once, before its first row; its columns come by
    themselves, or are declared where their types must not be guessed.
    """


@dataset.command()
@click.argument("name")
@click.option(
    "--identity",
    "identities",
    multiple=True,
    metavar="COLUMNS",
    help="Columns by which two rows are the same row, like part_id or order,line, if their event time is the same too. "
    "Given again, it is used for rows in which the columns before it are null.",
)
@click.option(
    "--event-time",
    metavar="COLUMN",
    help="When the row happened; compared together with the identity, so that duplicates are looked for at that time "
    "only.",
)
@click.option(
    "--identity-scope",
    type=click.Choice(["event_time", "all"]),
    help="`all`: rows of one identity are one row whatever their event time; every flush reads the identities of all "
    "committed rows. Otherwise (`event_time`) only rows of the same event time are compared.",
)
@click.option(
    "--identity-null",
    type=click.Choice(["content", "keep", "quarantine"]),
    help="A row whose identity is null: `content` (the default) compares all of its columns, `keep` never takes it "
    "for a duplicate, `quarantine` does not store it.",
)
@click.option(
    "--partition-by", metavar="COLUMNS", callback=column_list, help="Columns that slice the dataset for delivery."
)
@click.option(
    "--column", "columns", multiple=True, metavar="NAME:TYPE", help="Declare a column's type; may be given again."
)
@click.option(
    "--settle",
    metavar="MODULE:FUNCTION",
    help="A function that sees the rows of a flush before they go in; its module must be under [functions] allow.",
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

    Declaring it again in the same way changes nothing. Identity, event time and partitions are fixed for its life.

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
    """In a sentence: by what two rows are one."""
    if not declared.identity:
        return "It has no identity: every row is another one."
    choices = ", else ".join(" and ".join(names) for names in declared.identity)
    if declared.event_time is None:
        return f"Rows are the same row if {choices} is the same."
    if declared.key_time is None:
        return f"Rows are the same row if {choices} is the same, whatever their {declared.event_time}."
    return (
        f"Rows are the same row if {choices} is the same, and {declared.event_time} (the event time) too: the same "
        "identity at another time is another row."
    )


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _column(text: str) -> tuple[str, str]:
    name, colon, kind = text.partition(":")
    if not (colon and name.strip() and kind.strip()):
        raise click.BadParameter(f"{text!r} is not NAME:TYPE.", param_hint="'--column'")
    return name.strip(), kind.strip()
