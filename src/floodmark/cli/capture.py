"""`floodmark capture`"""

from __future__ import annotations

import select
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from floodmark.cli.options import declared_dataset, json_option, open_store
from floodmark.cli.output import note, print_json
from floodmark.errors import FloodmarkError, Permanent, SchemaConflict, UnknownDataset, reason_of

if TYPE_CHECKING:
    from floodmark.schema import Schema
    from floodmark.store import Store

PROBLEMS_SHOWN_MAX = 20
"""More than this many problems are counted, not printed: the first ones tell what is wrong."""

CHUNK_BYTES = 1 << 20

FORMATS = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".json": "jsonl",
    ".csv": "csv",
    ".parquet": "parquet",
    ".arrow": "arrow",
    ".feather": "arrow",
}


@dataclass(slots=True)
class CaptureReport:
    """What a capture command did. Everything in `rows` and `quarantined` is durable."""

    dataset: str
    rows: int = 0
    quarantined: int = 0
    refused: int = 0
    malformed: int = 0
    lines: int = 0
    problems: list[str] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        return not self.refused and not self.malformed

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(text)
            note(text)


@click.command()
@click.argument("dataset")
@click.argument(
    "source", metavar="[FILE|-]", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(sorted(set(FORMATS.values()))),
    help="What the input is; told from the file's ending otherwise, JSON lines where that says nothing.",
)
@click.option("--batch-rows", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Rows per call.")
@json_option
def capture(dataset: str, source: str, kind: str | None, batch_rows: int, as_json: bool) -> None:
    """Store rows of DATASET from a file, or from standard input.

    The input is JSON lines: one object per line. CSV, Parquet and Arrow files are taken too. Rows are durable when
    they are counted, and a pipe that pauses has all it sent stored; nothing waits for Spark. They become visible with
    the next flush.

    A line that is not a JSON object is reported with its number and left out; the exit code is 1 then. A row that
    does not fit the dataset goes to quarantine.

    \b
    Examples:
      floodmark capture orders orders.jsonl
      tail -F app.log | floodmark capture orders -
      floodmark capture orders history.parquet
    """
    chosen = kind or FORMATS.get(Path(source).suffix.lower(), "jsonl")
    report = CaptureReport(dataset)
    with open_store() as store:
        declared = declared_dataset(store, dataset)  # an unknown one is told before the first line is read
        try:
            if chosen == "jsonl":
                with click.open_file(source, "rb") as lines:
                    _capture_lines(store, lines, batch_rows, report)
            else:
                _capture_tables(store, declared.schema, source, chosen, report)
        except (FloodmarkError, KeyboardInterrupt):
            note(f"Stopped: {_so_far(report)}")
            raise
    if as_json:
        print_json(report)
    else:
        click.echo(_so_far(report))
    if not report.complete:
        click.get_current_context().exit(1)


def _so_far(report: CaptureReport) -> str:
    parts = [f"Stored {report.rows:,} {'row' if report.rows == 1 else 'rows'} of {report.dataset}."]
    for name, count in (
        ("Quarantined", report.quarantined),
        ("Refused", report.refused),
        ("Not JSON objects", report.malformed),
    ):
        if count:
            parts.append(f"{name}: {count:,}.")
    if report.lines:
        parts.append(f"Read to line {report.lines:,}.")
    return " ".join(parts)


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _capture_lines(store: Store, file: IO[bytes], batch_rows: int, report: CaptureReport) -> None:
    """A batch goes when it is full, and when the input pauses: nobody waits for the next line of a quiet pipe."""
    numbers: list[int] = []
    rows: list[dict[str, Any]] = []
    for number, line in _numbered_lines(file):
        row = None if line is None else _object(number, line, report)
        if row is not None:
            numbers.append(number)
            rows.append(row)
        if rows and (line is None or len(rows) >= batch_rows):
            _store(store, rows, numbers, report)
            numbers, rows = [], []
        report.lines = number if not rows else report.lines


def _numbered_lines(file: IO[bytes]) -> Iterator[tuple[int, bytes | None]]:
    """The lines with their numbers; None where the input pauses, and once at its end."""
    rest, number = b"", 0
    while chunk := file.read1(CHUNK_BYTES):  # type: ignore[attr-defined]  # every binary file of ours has it
        *whole, rest = (rest + chunk).split(b"\n")
        for line in whole:
            number += 1
            yield number, line
        if not _has_more(file):
            yield number, None
    if rest:
        number += 1
        yield number, rest
    yield number, None


def _has_more(file: IO[bytes]) -> bool:
    """Whether reading on would not wait; what cannot be asked (a file in memory) never waits."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError, TypeError):
        return True


def _object(number: int, line: bytes, report: CaptureReport) -> dict[str, Any] | None:
    import orjson

    if not line or line.isspace():
        return None
    try:
        row = orjson.loads(line)
    except orjson.JSONDecodeError as error:
        report.malformed += 1
        report.problem(f"Line {number}: not JSON ({error.msg} at column {error.colno}).")
        return None
    if type(row) is not dict:
        report.malformed += 1
        report.problem(f"Line {number}: not an object but a {type(row).__name__}.")
        return None
    return row


def _store(store: Store, rows: list[dict[str, Any]], numbers: list[int], report: CaptureReport) -> None:
    """Capture a batch. Where one row's name or value makes the whole call impossible, that row is found by halving."""
    try:
        receipt = store.capture(report.dataset, rows)
    except UnknownDataset:
        raise
    except Permanent as error:
        # A conflict with the schema means that none of the rows fits; halves would be refused like the whole.
        if len(rows) == 1 or isinstance(error, SchemaConflict):
            report.refused += len(rows)
            report.problem(f"{_place(numbers)}: refused. {error}")
            return
        middle = len(rows) // 2
        _store(store, rows[:middle], numbers[:middle], report)
        _store(store, rows[middle:], numbers[middle:], report)
    else:
        report.rows += receipt.rows
        report.quarantined += receipt.quarantined


def _place(numbers: list[int]) -> str:
    return f"Line {numbers[0]}" if len(numbers) == 1 else f"Lines {numbers[0]} to {numbers[-1]}"


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def _capture_tables(store: Store, schema: Schema, source: str, kind: str, report: CaptureReport) -> None:
    """Typed files go in batch by batch, each a segment of its own; one that does not fit is refused as a whole."""
    readers = {"csv": _csv_batches, "parquet": _parquet_batches, "arrow": _arrow_batches}
    opened = sys.stdin.buffer if source == "-" else source
    for batch in _reading(source, kind, readers[kind](opened, schema)):
        receipt = store.capture(report.dataset, batch)
        report.rows += receipt.rows
        report.quarantined += receipt.quarantined


def _reading(source: str, kind: str, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of a file; what is wrong with it is told in one way, whoever finds it."""
    import pyarrow as pa

    try:
        yield from batches
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Permanent(
            f"{source} cannot be read as {kind}: {reason_of(error)}.",
            hint="Name the format with --format, or correct the file. What was counted before is stored.",
        ) from error


def _csv_batches(source: Any, schema: Schema) -> Iterator[Any]:
    from pyarrow import csv

    known = schema.arrow()
    options = csv.ConvertOptions(column_types=known, strings_can_be_null=True, quoted_strings_can_be_null=False)
    yield from csv.open_csv(source, read_options=csv.ReadOptions(block_size=16 << 20), convert_options=options)


def _parquet_batches(source: Any, _schema: Schema) -> Iterator[Any]:
    import pyarrow as pa
    from pyarrow import parquet

    file = parquet.ParquetFile(pa.py_buffer(source.read()) if hasattr(source, "read") else source)
    yield from file.iter_batches(batch_size=100_000)


def _arrow_batches(source: Any, _schema: Schema) -> Iterator[Any]:
    import pyarrow as pa

    content = pa.py_buffer(source.read()) if hasattr(source, "read") else pa.memory_map(str(source))
    try:
        file = pa.ipc.open_file(content)
    except pa.ArrowInvalid:
        if not isinstance(content, pa.Buffer):
            content.seek(0)
        yield from pa.ipc.open_stream(content)
        return
    for index in range(file.num_record_batches):
        yield file.get_batch(index)
