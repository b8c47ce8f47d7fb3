"""`floodmark quarantine list|show|replay|discard`"""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from floodmark.cli.options import dataset_names, declared_dataset, json_option, open_store
from floodmark.cli.output import counted, note, print_json, print_table
from floodmark.errors import FloodmarkError, SchemaConflict

if TYPE_CHECKING:
    from floodmark.control.quarantine import Entry
    from floodmark.store import Store

SHORT_ID = 12


@click.group()
def quarantine() -> None:
    """Inspect, replay or discard rows that did not fit.

    A row that does not fit its dataset does not block other rows. It is stored in quarantine with the reason, counted
    in `status`, and kept until it is replayed or discarded. An entry is named by its id or by a unique prefix of the
    id.
    """


@quarantine.command(name="list")
@click.argument("dataset", required=False, shell_complete=dataset_names)
@json_option
def list_(dataset: str | None, as_json: bool) -> None:
    """List the entries of DATASET, or of all datasets, oldest first.

    \b
    Examples:
      floodmark quarantine list
      floodmark quarantine list orders --json
    """
    with open_store() as store:
        entries = _held(store, dataset)
    if as_json:
        print_json(entries)
    elif entries:
        print_table(
            ["id", "dataset", "since", "rows", "reason"],
            [
                [entry.id[:SHORT_ID], entry.dataset, entry.created_at[:19], entry.rows, entry.reason]
                for entry in entries
            ],
        )
    else:
        click.echo("The quarantine is empty.")


@quarantine.command()
@click.argument("entry_id", metavar="ID")
@json_option
def show(entry_id: str, as_json: bool) -> None:
    """Print one entry with its complete payload.

    \b
    Example:
      floodmark quarantine show 3f2a
    """
    with open_store() as store:
        entry, payload = store.quarantine.show(entry_id)
    text = payload.decode("utf-8", "backslashreplace").rstrip("\n")
    if as_json:
        print_json({"entry": entry, "payload": text})
        return
    for name, value in (
        ("id", entry.id),
        ("dataset", entry.dataset),
        ("state", entry.state),
        ("since", entry.created_at),
        ("rows", entry.rows),
        ("token", entry.token or "-"),
        ("reason", entry.reason),
    ):
        note(f"{name + ':':<9}{value}")
    click.echo(text)


@quarantine.command()
@click.argument("entry_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Replay all entries.")
@click.option("--dataset", help="With --all: only this dataset.", shell_complete=dataset_names)
@json_option
def replay(entry_ids: tuple[str, ...], everything: bool, dataset: str | None, as_json: bool) -> None:
    """Try entries again with the current schema.

    Rows that fit now are committed by the next flush. Entries that still do not fit stay in quarantine, the reason is
    printed, and the exit code is 1. An entry that is replayed twice is stored once.

    \b
    Examples:
      floodmark quarantine replay 3f2a
      floodmark quarantine replay --all --dataset orders
    """
    with open_store() as store:
        chosen = _chosen(store, entry_ids, everything=everything, dataset=dataset)
        rows, refused = 0, {}
        for entry_id in chosen:
            try:
                rows += store.quarantine.replay(entry_id)
            except SchemaConflict as error:
                refused[entry_id] = str(error)
    if as_json:
        print_json({"entries": len(chosen), "rows": rows, "refused": refused})
    else:
        click.echo(
            f"{counted(rows, 'row')} ready for the next flush. "
            f"{counted(len(refused), 'entry', 'entries')} still in quarantine."
        )
    for reason in refused.values():
        note(reason)
    if refused:
        click.get_current_context().exit(1)


@quarantine.command()
@click.argument("entry_ids", metavar="[ID]...", nargs=-1)
@click.option("--all", "everything", is_flag=True, help="Discard all entries.")
@click.option("--dataset", help="With --all: only this dataset.", shell_complete=dataset_names)
@click.option("--dry-run", is_flag=True, help="Only show what would be discarded.")
@json_option
def discard(entry_ids: tuple[str, ...], everything: bool, dataset: str | None, dry_run: bool, as_json: bool) -> None:
    """Discard entries permanently. Their records stay, but they cannot be replayed.

    \b
    Examples:
      floodmark quarantine discard 3f2a 77c0
      floodmark quarantine discard --all --dataset orders --dry-run
    """
    with open_store() as store:
        chosen = _chosen(store, entry_ids, everything=everything, dataset=dataset)
        held = [store.quarantine.show(entry_id)[0] for entry_id in chosen]
        discarded = [entry.id for entry in held if entry.state == "held"]
        if not dry_run:
            discarded = [entry_id for entry_id in discarded if store.quarantine.discard(entry_id)]
    if as_json:
        print_json({"discarded": discarded, "dry_run": dry_run})
        return
    click.echo(f"{'Would discard' if dry_run else 'Discarded'} {len(discarded):,} of {len(chosen):,} entries.")


def _chosen(store: Store, entry_ids: tuple[str, ...], *, everything: bool, dataset: str | None) -> list[str]:
    if bool(entry_ids) == everything or (dataset is not None and not everything):
        raise click.UsageError("Give the ids of the entries, or --all (optionally with --dataset).")
    if everything:
        return [entry.id for entry in _held(store, dataset)]
    # An unknown id must stop the command before the first entry is changed.
    try:
        return [store.quarantine.show(entry_id)[0].id for entry_id in entry_ids]
    except FloodmarkError as error:
        error.hint = "Nothing was changed. `floodmark quarantine list` shows the ids."
        raise


def _held(store: Store, dataset: str | None) -> list[Entry]:
    if dataset is not None:
        declared_dataset(store, dataset)  # a misspelt name is an error, not an empty list
    return store.quarantine.entries(dataset)
