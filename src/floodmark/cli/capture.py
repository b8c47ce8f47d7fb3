"""`floodmark capture`"""

from __future__ import annotations

import contextlib
import select
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

import click

from floodmark.cli.options import dataset_names, declared_dataset, json_option, open_store
from floodmark.cli.output import note, print_json
from floodmark.errors import FloodmarkError, Permanent, reason_of

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.control.datasets import Dataset
    from floodmark.rows.textlines import Problem
    from floodmark.sources.units import Batch
    from floodmark.spool.capture import Texts
    from floodmark.store import Store

PROBLEMS_SHOWN_MAX = 20
"""Further problems are counted, not printed."""

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
STREAM = "standard input"


@dataclass(slots=True)
class CaptureReport:
    """The result of a capture command. Everything in `rows` and `quarantined` is durable."""

    dataset: str
    rows: int = 0
    quarantined: int = 0
    lines: int = 0
    problems: list[str] = field(default_factory=list)

    def problem(self, text: str) -> None:
        if len(self.problems) < PROBLEMS_SHOWN_MAX:
            self.problems.append(text)
            note(text)


@click.command()
@click.argument("dataset", shell_complete=dataset_names)
@click.argument(
    "source", metavar="[FILE|-]", default="-", type=click.Path(exists=True, dir_okay=False, allow_dash=True)
)
@click.option(
    "--format",
    "kind",
    type=click.Choice(sorted(set(FORMATS.values()))),
    help="The input format. Default: detected by file extension, else jsonl.",
)
@click.option(
    "--batch-rows", type=click.IntRange(1, 1_000_000), default=1000, show_default=True, help="Rows per capture call."
)
@json_option
def capture(dataset: str, source: str, kind: str | None, batch_rows: int, as_json: bool) -> None:
    """Store rows of DATASET from a file, or from standard input.

    The input is JSON lines (one object per line), CSV, Parquet or Arrow. All formats except Arrow can be gzipped. Rows
    are durable when they are counted. Rows from a pipe are stored as soon as the pipe pauses. Spark is not started.
    Rows become visible with the next flush.

    A line that is not a JSON object, that is too long, or that has a value or a column name that does not fit, goes to
    quarantine with its line number. The other rows are stored. The exit code is then 1, and `floodmark quarantine list
    DATASET` shows the entries.

    \b
    Examples:
      floodmark capture orders orders.jsonl
      tail -F app.log | floodmark capture orders -
      floodmark capture orders history.parquet
    """
    chosen = kind or _format_of(source)
    report = CaptureReport(dataset)
    with open_store() as store:
        declared = declared_dataset(store, dataset)  # an unknown dataset fails before the first line is read
        try:
            if source == "-" and chosen == "jsonl":
                with click.open_file(source, "rb") as stream:
                    capture_stream(store, stream, batch_rows, report)
            else:
                _capture_file(store, declared, source, chosen, batch_rows, report)
        except (FloodmarkError, KeyboardInterrupt):
            note(f"Stopped: {_so_far(report)}")
            raise
    if report.quarantined:
        note(f"`floodmark quarantine list {dataset}` shows what was quarantined.")
    if as_json:
        print_json(report)
    else:
        click.echo(_so_far(report))
    if report.quarantined:
        click.get_current_context().exit(1)


def _format_of(source: str) -> str:
    path = Path(source)
    return FORMATS.get((path.with_suffix("") if path.suffix.lower() == ".gz" else path).suffix.lower(), "jsonl")


def _so_far(report: CaptureReport) -> str:
    parts = [f"Stored {report.rows:,} {'row' if report.rows == 1 else 'rows'} of {report.dataset}."]
    if report.quarantined:
        parts.append(f"Quarantined: {report.quarantined:,}.")
    if report.lines:
        parts.append(f"Read to line {report.lines:,}.")
    return " ".join(parts)


def _store(store: Store, texts: Texts, report: CaptureReport) -> None:
    receipt = store.capture_texts(report.dataset, texts)
    report.rows += receipt.rows
    report.quarantined += receipt.quarantined
    for reason in receipt.reasons:
        report.problem(reason)


# ── a stream of JSON lines ───────────────────────────────────────────────────────────────────────────────────────────


@dataclass(slots=True)
class _Gathered:
    """Lines that were read from a stream and are not stored yet."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    numbers: list[int] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def capture_stream(store: Store, file: IO[bytes], batch_rows: int, report: CaptureReport) -> None:
    """A batch is stored when it is full, and when the input pauses: a row never waits for the next line of a pipe."""
    from floodmark.rows.textlines import Overlong, overlong, parse_lines, whole_lines

    limit = store.settings.spool.line_bytes_max
    gathered = _Gathered()
    number = 0

    def read() -> bytes:
        chunk: bytes = file.read1(CHUNK_BYTES)  # type: ignore[attr-defined]  # every binary file of ours has it
        return chunk

    for text in whole_lines(read, line_bytes_max=limit):
        if isinstance(text, Overlong):
            number += 1
            gathered.problems.append(overlong(_place(number), text, limit))
        elif text:
            parsed = parse_lines(text, before=number, place=_place, line_bytes_max=limit)
            number += parsed.count
            gathered.rows += parsed.rows
            gathered.numbers += parsed.numbers
            gathered.problems += parsed.problems
        while len(gathered.rows) >= batch_rows:
            _store_first(store, gathered, batch_rows, report)
        if not _has_more(file):
            _store_first(store, gathered, batch_rows, report)
            report.lines = number
    _store_first(store, gathered, batch_rows, report)
    report.lines = number


def _store_first(store: Store, gathered: _Gathered, batch_rows: int, report: CaptureReport) -> None:
    """Store as many rows as fit in one call, and quarantine the lines that are not rows."""
    from floodmark.spool.capture import Texts

    rows, numbers, problems = gathered.rows[:batch_rows], gathered.numbers[:batch_rows], gathered.problems
    gathered.rows, gathered.numbers, gathered.problems = gathered.rows[batch_rows:], gathered.numbers[batch_rows:], []
    if rows or problems:
        _store(store, Texts(rows, lambda row: _place(numbers[row]), problems), report)
    if numbers:
        report.lines = numbers[-1]


def _place(number: int) -> str:
    return f"{STREAM}, line {number}"


def _has_more(file: IO[bytes]) -> bool:
    """Whether the next read would not block. A file in memory never blocks."""
    try:
        return bool(select.select([file], [], [], 0)[0])
    except (OSError, ValueError, TypeError):
        return True


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _capture_file(
    store: Store, declared: Dataset, source: str, kind: str, batch_rows: int, report: CaptureReport
) -> None:
    """A file is read like in a backfill. Each typed batch becomes a segment."""
    import pyarrow as pa

    from floodmark.sources.files import read_file
    from floodmark.sources.shaping import kinds
    from floodmark.sources.units import SourceFile
    from floodmark.spool.capture import Texts

    if kind == "arrow":
        opened = sys.stdin.buffer if source == "-" else source
        first = 0
        for batch in _reading(source, kind, _arrow_batches(opened)):
            place = partial(_row_of, STREAM if source == "-" else source, first)
            _store(store, Texts(pa.Table.from_batches([batch]), place), report)
            first += batch.num_rows
        return
    with _on_disk(source) as path:
        limits = store.settings.spool
        batches = read_file(SourceFile(path, kind), kinds(declared.schema, {}), None, limits=limits)
        for batch in _reading(source, kind, batches):
            for texts in _calls(batch, batch_rows):
                _store(store, texts if source != "-" else _of_the_stream(texts, path), report)
            if kind == "jsonl":
                report.lines = batch.behind[1]


@contextlib.contextmanager
def _on_disk(source: str) -> Iterator[Path]:
    """The file, or a copy of standard input: a typed file needs random access."""
    if source != "-":
        yield Path(source).expanduser().absolute()  # the same name as in a backfill, so that a line is quarantined once
        return
    with tempfile.NamedTemporaryFile() as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
        copy.flush()
        yield Path(copy.name)


def _calls(batch: Batch, batch_rows: int) -> Iterator[Texts]:
    """The capture calls that store a batch. Lines that are not rows are part of the first call."""
    from floodmark.spool.capture import Texts

    if not isinstance(batch.rows, list):
        yield Texts(batch.rows, batch.place, batch.problems, lasting=True)
        return
    problems = batch.problems
    for start in range(0, max(len(batch.rows), 1), batch_rows):
        place = partial(_behind, batch.place, start)
        yield Texts(batch.rows[start : start + batch_rows], place, problems, lasting=True)
        problems = ()


def _row_of(source: str, first: int, row: int) -> str:
    return f"{source} row {first + row + 1}"


def _behind(place: Callable[[int], str], start: int, row: int) -> str:
    return place(start + row)


def _of_the_stream(texts: Texts, path: Path) -> Texts:
    """A message about a copy of standard input, without the name of the temporary file."""
    problems = [replace(item, place=item.place.replace(str(path), STREAM)) for item in texts.problems]
    return replace(
        texts, place=lambda row: texts.place(row).replace(str(path), STREAM), problems=problems, lasting=False
    )


def _reading(source: str, kind: str, batches: Iterator[Any]) -> Iterator[Any]:
    """The batches of a file. All read errors become one kind of error."""
    import pyarrow as pa

    hint = "Give the format with --format, or correct the file. Rows that were counted before are stored."
    try:
        yield from batches
    except Permanent as error:
        raise Permanent(error.message, hint=hint) from error
    except (pa.ArrowException, OSError, ValueError) as error:
        raise Permanent(f"{source} cannot be read as {kind}: {reason_of(error)}.", hint=hint) from error


def _arrow_batches(source: Any) -> Iterator[Any]:
    import pyarrow as pa

    content = pa.py_buffer(source.read()) if hasattr(source, "read") else pa.memory_map(str(source))
    try:
        file = pa.ipc.open_file(content)
    except pa.ArrowInvalid:
        if not isinstance(content, pa.Buffer):
            content.seek(0)
        yield from map(_checked, pa.ipc.open_stream(content))
        return
    for index in range(file.num_record_batches):
        yield _checked(file.get_batch(index))


def _checked(batch: pa.RecordBatch) -> pa.RecordBatch:
    """A batch whose offsets lie inside its buffers: Arrow follows those of a damaged file wherever they point.

    Layouts by views are refused, because not even a full validation looks at each of their offsets.
    """
    import pyarrow as pa

    names = batch.schema.names
    for column in batch.schema:
        if names.count(column.name) > 1:
            raise pa.ArrowInvalid(f"several columns are called {column.name!r}")
        if "view" in str(column.type):
            raise pa.ArrowInvalid(
                f"column {column.name!r} is of type {column.type}; write it as string, binary or list"
            )
    batch.validate(full=True)
    return batch
