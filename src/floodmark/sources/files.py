"""Files as a source: JSON lines, CSV and Parquet, plain or gzipped; one file, a pattern, or a directory.

Each file is a unit. Its fingerprint is its size and its time of change: a file that was changed is something else to
load. Files of a directory tree like `year=2026/month=1` have what the names say as columns of their own.
"""

from __future__ import annotations

import contextlib
import gzip
import operator
import shutil
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from floodmark.config import SpoolSettings
from floodmark.errors import InvalidSetting, Permanent, Retryable, reason_of
from floodmark.rows.textlines import Overlong, ParsedLines, overlong, parse_lines, whole_lines
from floodmark.schema.types import BOOLEAN, DOUBLE, FLOAT, INT, JSON, LONG, STRING, ColumnType
from floodmark.sources.units import Batch, Mark, Problem, Source, SourceFile, Unit

if TYPE_CHECKING:
    import pyarrow as pa


# ── Columns of text, as CSV has them, in the types of a dataset ──────────────────────────────────────────────────────
# A column whose every value can be read becomes one of its type. Any other keeps its values, those
# that can be read in their type: fitting then reports which rows are wrong, and why.


_NUMBERS = frozenset({INT, LONG, FLOAT, DOUBLE})
_TRUTHS = {"true": True, "1": True, "false": False, "0": False}


KindOf = Callable[[str], ColumnType | None]
"""The type of the dataset's column that a column of the source becomes; None if it has none yet."""


def typed_columns(table: pa.Table, kind_of: KindOf, guessed: pa.Schema | None) -> pa.Table | list[dict[str, Any]]:
    """The table with its texts read as the dataset's types (or, for a column it lacks, as the guessed ones)."""
    import pyarrow as pa

    columns: dict[str, Any] = {}
    readable = True
    for name in table.column_names:
        texts = table[name]
        if not pa.types.is_string(texts.type):
            columns[name] = texts
            continue
        kind = kind_of(name)
        columns[name], whole = _known(texts, kind) if kind else _guessed(texts, name, guessed)
        readable = readable and whole
    if readable:
        return pa.table(columns)
    lists = [values if isinstance(values, list) else values.to_pylist() for values in columns.values()]
    return [dict(zip(columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _guessed(texts: Any, name: str, guessed: pa.Schema | None) -> tuple[Any, bool]:
    import pyarrow as pa

    if guessed is None or name not in guessed.names or pa.types.is_null(guessed.field(name).type):
        return texts, True
    try:
        return texts.cast(guessed.field(name).type), True
    except pa.ArrowInvalid:
        return texts, True  # a later block is less regular than the first: the rows that do not fit are reported


def _known(texts: Any, kind: ColumnType) -> tuple[Any, bool]:
    import pyarrow as pa

    from floodmark.rows.columns import fit_values
    from floodmark.schema.types import to_arrow

    if kind in {STRING, JSON}:
        return texts, True  # a file has JSON as text
    if kind in _NUMBERS or kind == BOOLEAN:
        try:
            return texts.cast(to_arrow(kind)), True
        except pa.ArrowInvalid:
            return [value_of(text, kind) for text in texts.to_pylist()], False
    array, faults = fit_values(kind, texts.to_pylist())
    return (texts.to_pylist(), False) if faults else (array, True)


def value_of(text: str | None, kind: ColumnType | None) -> Any:
    """The number or truth that a text is, where its column holds such; the text itself, if it is none."""
    if text is None or (kind not in _NUMBERS and kind != BOOLEAN):
        return text
    if kind == BOOLEAN:
        return _TRUTHS.get(text.strip().lower(), text)
    try:
        return int(text) if kind in {INT, LONG} else float(text)
    except ValueError:
        return text


# ── Files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


FORMATS = {".jsonl": "jsonl", ".ndjson": "jsonl", ".json": "jsonl", ".csv": "csv", ".parquet": "parquet"}
BLOCK_BYTES = 8 << 20
BATCH_ROWS = 1 << 16
Opened = IO[bytes] | gzip.GzipFile


def file_source(path: str | Path, kind_of: KindOf, *, format: str | None, limits: SpoolSettings) -> Source:
    """The files that a path names, in order of their names."""
    found = find_files(path, format=format)
    return Source(str(_canonical(path)), tuple(_unit(file, kind_of, limits) for file in found))


def find_files(path: str | Path, *, format: str | None) -> list[SourceFile]:
    if format is not None and format not in FORMATS.values():
        raise InvalidSetting(
            f"Files of format {format!r} cannot be loaded.",
            hint="The formats are jsonl, csv and parquet. For others, give a Spark DataFrame.",
        )
    root = _canonical(path)
    if root.is_file():
        return [_file(root, root.parent, format=format, named=True)]
    if root.is_dir():
        paths = sorted(item for item in root.rglob("*") if item.is_file() and not _is_hidden(item.relative_to(root)))
    else:
        paths = sorted(item for item in Path(root.anchor).glob(str(root.relative_to(root.anchor))) if item.is_file())
        root = root.parent
    files = [_file(item, root, format=format, named=False) for item in paths if format or _format_of(item)]
    if not files:
        raise InvalidSetting(
            f"There is nothing to load at {path}.",
            hint="Name a file, a directory or a pattern of jsonl, csv or parquet files, or set the format.",
        )
    return files


def _canonical(path: str | Path) -> Path:
    return Path(path).expanduser().absolute()


def _is_hidden(relative: Path) -> bool:
    """Spark's own `_SUCCESS`, a commit in progress, a checksum: no data."""
    return any(part.startswith(("_", ".")) for part in relative.parts)


def _format_of(path: Path) -> str | None:
    name = path.with_suffix("") if path.suffix.lower() == ".gz" else path
    return FORMATS.get(name.suffix.lower())


def _file(path: Path, root: Path, *, format: str | None, named: bool) -> SourceFile:
    kind = format or _format_of(path)
    if kind is None:
        raise InvalidSetting(
            f"The format of {path} cannot be detected from its file extension.", hint="Set it: jsonl, csv, parquet."
        )
    parts = () if named or not path.is_relative_to(root) else path.relative_to(root).parts[:-1]
    pairs = [part.partition("=") for part in parts if "=" in part]
    return SourceFile(path, kind, tuple((name, value) for name, _, value in pairs))


def _unit(file: SourceFile, kind_of: KindOf, limits: SpoolSettings) -> Unit:
    about = file.path.stat()
    is_parquet = file.kind == "parquet"
    return Unit(
        name=str(file.path),
        read=lambda mark: read_file(file, kind_of, mark, limits=limits),
        fingerprint=f"{about.st_size}-{about.st_mtime_ns}",
        bytes=about.st_size,
        file=file.path if is_parquet and not file.is_gzipped else None,
        text=None if is_parquet else file,
    )


def read_file(
    file: SourceFile, kind_of: KindOf, mark: Mark, *, limits: SpoolSettings, end: int | None = None
) -> Iterator[Batch]:
    """The batches of a file after a mark; of JSON lines also up to an `end`, the place of a line's beginning."""
    import pyarrow as pa

    try:
        match file.kind:
            case "jsonl":
                yield from _json_lines(file, kind_of, mark, end, limits.line_bytes_max)
            case "csv":
                yield from _csv(file, kind_of, mark)
            case _:
                yield from _parquet(file, kind_of, mark)
    except (
        FileNotFoundError,
        PermissionError,
        gzip.BadGzipFile,
        zlib.error,
        EOFError,
        pa.ArrowException,
        ValueError,
    ) as error:
        reason = reason_of(error)
        if isinstance(error, UnicodeDecodeError):
            reason = f"it is not UTF-8 (byte 0x{error.object[error.start]:02x})"
        raise Permanent(
            f"{file.path} cannot be read as {file.kind}: {reason}.",
            hint="Correct it or exclude it. Loaded rows stay loaded; the next run continues after them.",
        ) from error
    except OSError as error:
        raise Retryable(
            f"{file.path} could not be read: {reason_of(error)}.",
            hint="Run the command again: it continues after the loaded rows.",
        ) from error


# ── JSON lines ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _json_lines(file: SourceFile, kind_of: KindOf, mark: Mark, end: int | None, line_bytes_max: int) -> Iterator[Batch]:
    """The mark is a place in the (unpacked) bytes, and how many lines are before it."""
    offset, number = mark or (0, 0)
    constants = {name: value_of(text, kind_of(name)) for name, text in file.constants}

    def place(line: int) -> str:
        return f"{file.path}:{line}"

    with _opened(file) as opened:
        opened.seek(offset)
        consumed = _consumed(opened)
        for text in whole_lines(_blocks(opened, offset, end), line_bytes_max=line_bytes_max):
            if text == b"":
                continue
            if isinstance(text, Overlong):
                number, offset = number + 1, offset + text.taken
                parsed = ParsedLines([], [], [overlong(place(number), text, line_bytes_max)])
            else:
                parsed = parse_lines(text, before=number, place=place, line_bytes_max=line_bytes_max)
                number, offset = number + parsed.count, offset + len(text)
            before, consumed = consumed, _consumed(opened)
            yield Batch(
                [constants | row for row in parsed.rows] if constants else parsed.rows,
                (offset, number),
                _places_of(parsed.numbers, place),
                tuple(parsed.problems),
                bytes=consumed - before,
            )


def _places_of(numbers: Sequence[int], place: Callable[[int], str]) -> Callable[[int], str]:
    """The place of each row in a batch of lines, of which some may have been left out."""
    return lambda row: place(numbers[row])


def _row_names(path: Path, number: Callable[[int], int]) -> Callable[[int], str]:
    """The place of each row in a batch: the file, and the number of the row in it."""
    return lambda row: f"{path} row {number(row)}"


def _blocks(opened: Opened, offset: int, end: int | None) -> Callable[[], bytes]:
    """What reads on, block by block, up to the end."""
    left = [None if end is None else end - offset]

    def read() -> bytes:
        block = opened.read(BLOCK_BYTES if left[0] is None else min(BLOCK_BYTES, left[0]))
        left[0] = None if left[0] is None else left[0] - len(block)
        return block

    return read


def _opened(file: SourceFile) -> Opened:
    return gzip.open(file.path, "rb") if file.is_gzipped else file.path.open("rb")


def _consumed(opened: Opened) -> int:
    """How far the file itself was read, in compressed bytes."""
    return int(getattr(opened, "fileobj", opened).tell())


# ── CSV ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


def _csv(file: SourceFile, kind_of: KindOf, mark: Mark) -> Iterator[Batch]:
    """The mark is a number of rows. All is read as text, and each value made what its column is."""
    import pyarrow as pa
    from pyarrow import csv

    # Not in threads: there rows are not counted. And by a name of UTF-8 that has Arrow decode before it parses: a
    # broken row of other bytes would otherwise raise an exception that cannot be caught.
    blocks = csv.ReadOptions(block_size=BLOCK_BYTES, use_threads=False, encoding="utf-8-sig")
    broken = _BrokenRows()
    # A text in quotes may go over several lines, and over the end of a block.
    lines = csv.ParseOptions(newlines_in_values=True, invalid_row_handler=broken.skip)
    with _opened(file) as opened, csv.open_csv(opened, read_options=blocks, parse_options=lines) as guessing:
        guessed = guessing.schema
    _check_names(file, guessed.names)
    broken.waiting.clear()
    texts = csv.ConvertOptions(
        column_types={name: pa.string() for name in guessed.names},
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )
    done = consumed = 0
    with (
        _opened(file) as opened,
        csv.open_csv(opened, read_options=blocks, parse_options=lines, convert_options=texts) as batches,
    ):
        for batch in batches:
            done += batch.num_rows
            places, found = broken.beside(batch.num_rows)
            before, consumed = consumed, _consumed(opened)
            if done <= (mark or 0):
                continue  # a row may go over several lines, so the way into the middle is through the beginning
            yield Batch(
                typed_columns(_with_constants(pa.Table.from_batches([batch]), file), kind_of, guessed),
                done,
                _row_names(file.path, places),
                tuple(_broken_row(file, item) for item in found),
                bytes=consumed - before,
            )
    if broken.waiting and (mark or 0) <= done:
        yield Batch([], done + 1, lambda _: str(file.path), tuple(_broken_row(file, item) for item in broken.waiting))


OTHER_SEPARATORS = ";\t|"
"""In the only name of a header they mean that the file is not separated by commas."""


def _check_names(file: SourceFile, names: Sequence[str]) -> None:
    repeated = [name for name, times in Counter(names).items() if times > 1]
    if repeated:
        raise Permanent(
            f"{file.path} has several columns that are called {repeated[0]!r}.",
            hint="Give each column its own name, or exclude the file.",
        )
    sign = next((sign for sign in OTHER_SEPARATORS if sign in names[0]), None) if len(names) == 1 else None
    if sign is not None:
        raise Permanent(
            f"{file.path} has one column, {names[0]!r}: its columns are separated by {sign!r}.",
            hint="Separate them by commas. If it is one column, give it a name without that character.",
        )


@dataclass(slots=True)
class _BrokenRows:
    """Rows of a CSV file with too many or too few columns: left out by its parser, which is ahead of what it gives."""

    waiting: list[Any] = field(default_factory=list)
    before: int = 0
    """How many rows, broken ones too, are before the batch."""

    def skip(self, row: Any) -> str:
        self.waiting.append(row)
        return "skip"

    def beside(self, count: int) -> tuple[Callable[[int], int], list[Any]]:
        """The place of each row of the next batch in the file, and the broken ones among them.

        One after the last row belongs to the next batch: whether the parser has come to it is chance,
        and a backfill that continues must find it in the same place.
        """
        first = self.before
        found: list[Any] = []
        while self.waiting and _place(self.waiting[0]) <= first + count + len(found):
            found.append(self.waiting.pop(0))
        self.before = first + count + len(found)
        places = [_place(item) for item in found]

        def place(row: int) -> int:
            at = first + row + 1
            for broken in places:
                at += broken <= at
            return at

        return place, found


def _place(row: Any) -> int:
    """The place of a broken row, counted from the first row after the header."""
    return int(row.number) - 1


def _broken_row(file: SourceFile, row: Any) -> Problem:
    found = row.actual_columns
    reason = f"it has {found} {'column' if found == 1 else 'columns'} instead of {row.expected_columns}"
    return Problem(f"{file.path} row {_place(row)}", reason, row.text.encode())


def _with_constants(table: pa.Table, file: SourceFile) -> pa.Table:
    import pyarrow as pa

    for name, value in file.constants:
        if name not in table.column_names:
            table = table.append_column(name, pa.repeat(pa.scalar(value, pa.string()), table.num_rows))
    return table


# ── Parquet ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _parquet(file: SourceFile, kind_of: KindOf, mark: Mark) -> Iterator[Batch]:
    """The mark is a number of rows; row groups before it are not read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    with _seekable(file) as path, pq.ParquetFile(path) as opened:
        _check_names(file, opened.schema_arrow.names)
        about = opened.metadata
        share = path.stat().st_size / max(about.num_rows, 1)
        start = 0
        for group in range(about.num_row_groups):
            count = about.row_group(group).num_rows
            if start + count <= (mark or 0):
                start += count
                continue
            for batch in opened.iter_batches(BATCH_ROWS, row_groups=[group]):
                first, start = start, start + batch.num_rows
                if start <= (mark or 0):
                    continue
                rows = pa.Table.from_batches([batch])
                if file.constants:
                    rows = typed_columns(_with_constants(rows, file), kind_of, None)
                yield Batch(
                    rows,
                    start,
                    _row_names(file.path, partial(operator.add, first + 1)),
                    bytes=int(share * batch.num_rows),
                    first=first,
                )


@contextlib.contextmanager
def _seekable(file: SourceFile) -> Iterator[Path]:
    """The file as it can be read from any place: unpacked, if it is packed."""
    if not file.is_gzipped:
        yield file.path
        return
    with tempfile.NamedTemporaryFile(suffix=".parquet") as unpacked:
        with gzip.open(file.path, "rb") as packed:
            shutil.copyfileobj(packed, unpacked)
        unpacked.flush()
        yield Path(unpacked.name)
