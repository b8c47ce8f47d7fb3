"""`floodmark read`"""

from __future__ import annotations

import contextlib
import itertools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click

from floodmark.cli.options import column_list, dataset_names, declared_dataset, open_store
from floodmark.cli.output import NOTHING, note, working
from floodmark.cli.rowtext import FORMATS, RowWriter, row_writer
from floodmark.errors import InvalidCursor, SchemaConflict, reason_of
from floodmark.sequence import Cursor

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset
    from floodmark.read import Batch
    from floodmark.store import Store


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.option("--since", metavar="CURSOR", help="Only rows after this cursor.")
@click.option("--until", metavar="CURSOR", help="Only rows up to this cursor.")
@click.option("--columns", metavar="A,B", callback=column_list, help="Only these columns, in this order.")
@click.option("--partition", metavar="KEY", help="Only this partition, as `floodmark status --json` names it.")
@click.option(
    "--format", "kind", type=click.Choice(FORMATS), default="jsonl", show_default=True, help="The output format."
)
@click.option("--json", "as_json", is_flag=True, help="Print the rows as one JSON document: --format json.")
@click.option(
    "--limit", type=click.IntRange(min=1), help="At most this many rows. The cursor points after the last one."
)
@click.option(
    "--cursor-file",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Start from the cursor in this file, if it exists, and store the new cursor in it after the rows are written.",
)
@click.option(
    "--pending",
    is_flag=True,
    help="Also rows that are captured and not committed yet, exactly once. There is no cursor.",
)
def read(
    dataset: str,
    since: str | None,
    until: str | None,
    columns: list[str] | None,
    partition: str | None,
    kind: str,
    as_json: bool,
    limit: int | None,
    cursor_file: Path | None,
    *,
    pending: bool,
) -> None:
    """Print the rows of DATASET in the order of their sequence numbers.

    Rows go to standard output. The new cursor goes to standard error, as `cursor: …`. Give it to --since the next time
    to read exactly the rows that were committed later. With --cursor-file the cursor is kept in a file, and updated
    only after all rows were written.

    With --pending, rows that are not committed yet follow, in the order in which they were captured. They have no
    sequence number yet, so no cursor is printed. A settle function has not seen them.

    \b
    Examples:
      floodmark read orders --limit 10 --format table
      floodmark read orders --since fm1.WyI5…
      floodmark read orders --cursor-file orders.cursor --columns order_id,total >> orders.jsonl
      floodmark read orders --pending
    """
    if pending and (since, until, cursor_file) != (None, None, None):
        raise click.UsageError(
            "--pending takes no --since, --until or --cursor-file: pending rows have no sequence number yet."
        )
    if since is not None and cursor_file is not None:
        raise click.UsageError("Give --since or --cursor-file, not both.")
    if cursor_file is not None:
        since = _stored(cursor_file)
    with open_store() as store:
        declared = _declared(store, dataset, columns)
        shown = list(columns or declared.schema.names)
        writer = row_writer(
            "json" if as_json else kind, shown, json_columns=[c.name for c in declared.schema if c.text == "json"]
        )
        if pending:
            _write_with_pending(store, dataset, shown, writer, partition=partition, limit=limit)
            return
        position = Position(store, dataset, partition=partition, since=since, until=until, limit=limit)
        with working(f"Reading {dataset} …", left=NOTHING):
            batches = store.read_since(dataset, since, partition=partition, columns=columns)
            first = next(batches, None)
        if first is not None:
            position.write(first, shown, writer)
            for batch in batches:
                if position.at_end:
                    break
                position.write(batch, shown, writer)
        writer.finish()
    if cursor_file is not None:
        from floodmark.files import durable_write

        # Only now: if the cursor were stored before its rows are written, a crash would lose them.
        durable_write(cursor_file.absolute(), f"{position.cursor}\n".encode())
    note(f"cursor: {position.cursor}")


def _write_with_pending(
    store: Store, dataset: str, columns: list[str], writer: RowWriter, *, partition: str | None, limit: int | None
) -> None:
    committed = pending = 0
    with contextlib.closing(store.read_with_pending(dataset, partition=partition, columns=columns)) as parts:
        with working(f"Reading {dataset} …", left=NOTHING):
            first = next(parts, None)
        for part in itertools.chain(() if first is None else [first], parts):
            rows = part.table if limit is None else part.table.slice(0, limit - committed - pending)
            writer.write(rows.to_pylist())
            committed += 0 if part.pending else rows.num_rows
            pending += rows.num_rows if part.pending else 0
            if committed + pending == limit:
                break
    writer.finish()
    note(f"Committed: {committed:,}. Pending: {pending:,}.")


class Position:
    """The position of a read, and its end."""

    def __init__(
        self,
        store: Store,
        dataset: str,
        *,
        partition: str | None,
        since: str | None,
        until: str | None,
        limit: int | None,
    ) -> None:
        self.cursor = Cursor(store.store_id, dataset, partition, 0) if since is None else Cursor.parse(since)
        self.at_end = False
        self._until = None if until is None else _checked(store, dataset, partition, until)
        self._left = limit
        if self._until is not None and self._until.seq <= self.cursor.seq:
            self.at_end = True

    def write(self, batch: Batch, columns: list[str], writer: RowWriter) -> None:
        """Write a batch, up to the limit."""
        if self.at_end:
            return
        taken, self.cursor = self._part(batch)
        if self._left is not None:
            self._left -= taken
        writer.write(batch.table.select(columns).slice(0, taken).to_pylist())

    def _part(self, batch: Batch) -> tuple[int, Cursor]:
        """How many rows of a batch are within the limit, and the cursor after them."""
        rows = batch.table.num_rows
        if self._until is None and (self._left is None or rows < self._left):
            return rows, batch.cursor
        taken = 0
        for _, cursor in batch.pairs():
            if self._until is not None and cursor.seq > self._until.seq:
                self.at_end = True
                return taken, self._until
            taken += 1
            if taken == self._left:
                self.at_end = True
                return taken, cursor
        if self._until is not None and batch.cursor.seq >= self._until.seq:
            self.at_end = True
            return taken, self._until
        return taken, batch.cursor


def _stored(file: Path) -> str | None:
    """The cursor in a file; None if the file does not exist yet.

    A place where it could not be written is refused before the first row is, which would be read again the next time.
    """
    if not os.access(file.absolute().parent, os.W_OK):
        raise InvalidCursor(
            f"The cursor file {file} cannot be written: its directory is missing or read-only.",
            hint="Create the directory, or give another file. Nothing was read.",
        )
    try:
        return file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise InvalidCursor(
            f"The cursor file {file} cannot be read: {reason_of(error)}.",
            hint="Restore it, or remove it to read from the beginning.",
        ) from error


def _declared(store: Store, dataset: str, columns: list[str] | None) -> Dataset:
    declared = declared_dataset(store, dataset)
    for name in columns or ():
        if name not in declared.schema:
            raise SchemaConflict(
                f"Dataset {dataset!r} has no column {name!r}.", hint=f"It has {', '.join(declared.schema.names)}."
            )
    return declared


def _checked(store: Store, dataset: str, partition: str | None, text: str) -> Cursor:
    """The end of a read, checked like its beginning."""
    cursor = Cursor.parse(text)
    if (cursor.store_id, cursor.dataset, cursor.partition) != (store.store_id, dataset, partition):
        raise InvalidCursor(
            "The cursor of --until belongs to another store, dataset or partition.",
            hint="Use a cursor from a read of the same store, dataset and partition.",
        )
    if cursor.seq > store.horizon(dataset):
        raise InvalidCursor(
            f"The cursor of --until is at {cursor.seq}, but the horizon of {dataset!r} is {store.horizon(dataset)}.",
            hint="Was the store restored from a backup? Read without --until.",
        )
    return cursor
