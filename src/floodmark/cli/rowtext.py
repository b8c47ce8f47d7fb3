"""Rows as text on standard output: JSON lines, one JSON array, CSV, or a table."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import IO, Any, Protocol

import click

from floodmark.cli.output import print_table

FORMATS = ("jsonl", "json", "table", "csv")

TABLE_ROWS_MAX = 10_000
"""A table is laid out in memory; for more rows use jsonl or csv."""


class RowWriter(Protocol):
    """Writes rows in order; after `finish` all rows are written to standard output."""

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None: ...

    def finish(self) -> None: ...


def row_writer(kind: str, columns: Sequence[str], *, json_columns: Sequence[str] = ()) -> RowWriter:
    """A writer on standard output. The text of `json_columns` is written as JSON values in JSON lines."""
    if kind == "jsonl":
        return JsonLines(sys.stdout.buffer, json_columns)
    if kind == "json":
        return JsonArray(sys.stdout.buffer, json_columns)
    if kind == "csv":
        return CsvLines(sys.stdout.buffer, columns)
    return TableText(columns)


class JsonLines:
    """One object per line, in the format that `floodmark capture` reads."""

    def __init__(self, file: IO[bytes], json_columns: Sequence[str]) -> None:
        self._file = file
        self._json_columns = json_columns

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        self._file.writelines(map(self._line, rows))

    def _line(self, row: Mapping[str, Any]) -> bytes:
        import orjson

        content = plain_row(row)
        for name in self._json_columns:
            if content.get(name) is not None:
                content[name] = orjson.Fragment(content[name])
        return orjson.dumps(content, option=orjson.OPT_APPEND_NEWLINE)

    def finish(self) -> None:
        self._file.flush()


class JsonArray:
    """All rows as one JSON document: an array of objects."""

    def __init__(self, file: IO[bytes], json_columns: Sequence[str]) -> None:
        self._file = file
        self._lines = JsonLines(file, json_columns)
        self._next = b"["

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._file.write(self._next)
            self._lines.write([row])
            self._next = b","

    def finish(self) -> None:
        self._file.write(b"[]\n" if self._next == b"[" else b"]\n")
        self._file.flush()


class CsvLines:
    """A header and one line per row; lists and objects as JSON, nothing for null."""

    def __init__(self, file: IO[bytes], columns: Sequence[str]) -> None:
        self._file = file
        self._text = io.StringIO()
        self._columns = columns
        self._csv = csv.writer(self._text, lineterminator="\n")
        self._csv.writerow(columns)
        self._send()

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            self._csv.writerow([csv_text(row[name]) for name in self._columns])
        self._send()

    def _send(self) -> None:
        self._file.write(self._text.getvalue().encode())
        self._text.seek(0)
        self._text.truncate()

    def finish(self) -> None:
        self._file.flush()


class TableText:
    """Aligned columns."""

    def __init__(self, columns: Sequence[str]) -> None:
        self._columns = columns
        self._rows: list[list[Any]] = []

    def write(self, rows: Iterable[Mapping[str, Any]]) -> None:
        for row in rows:
            if len(self._rows) >= TABLE_ROWS_MAX:
                raise click.UsageError(
                    f"A table shows {TABLE_ROWS_MAX:,} rows at most: use --limit, or --format jsonl or csv."
                )
            self._rows.append([csv_text(row[name]) for name in self._columns])

    def finish(self) -> None:
        print_table(self._columns, self._rows, grouped=False)  # an id has no thousands separators
        sys.stdout.flush()


def plain_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row whose values can be written as JSON."""
    from floodmark.rows.jsontext import plain_json

    return {name: plain_json(value) for name, value in row.items()}


def csv_text(value: Any) -> Any:
    import orjson

    from floodmark.rows.jsontext import plain_json

    plain = plain_json(value)
    if isinstance(plain, bool):
        return "true" if plain else "false"
    return orjson.dumps(plain).decode() if isinstance(plain, list | dict) else plain
