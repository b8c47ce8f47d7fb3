"""Large text files: Spark's workers parse and fit them.

    files → pieces → where their lines begin, and how many → parsed and fitted, a group at a time → batches, in order

The workers run the same readers and the same fitting that this process uses for less, and their batches have the same
marks: a load can begin in one way and continue in the other. What they give is written down in Arrow's own form,
so that no type is converted by Spark. One group is parsed while the one before it is stored.

Parquet needs none of this: it is parsed already, and Spark reads it in place.
"""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NamedTuple

from floodmark import errors, faults
from floodmark.errors import FloodmarkError, Retryable
from floodmark.rows.fit import Fit
from floodmark.rows.plain import Demands
from floodmark.schema import Column, Schema
from floodmark.sources.files import read_file
from floodmark.sources.shaping import fit_batch, kinds, misfits
from floodmark.sources.staging import Staging
from floodmark.sources.units import Batch, Mark, Problem, Source, SourceFile, Unit, read_each

if TYPE_CHECKING:
    import pyarrow as pa

LARGE_BYTES = 256 << 20
"""Less text than this is loaded here before the workers would have begun."""
PIECE_BYTES = 32 << 20
"""What a worker parses in one go."""
GROUP_BYTES = 512 << 20
"""What is parsed at once. So much of it is stored, and as much waits parsed."""
COUNT_BYTES = 1 << 20
_FILLER = "rows"
"""A column of nulls: without it, rows of nothing would not be counted."""
_COLUMNS = b"floodmark.columns"


@dataclass(frozen=True, slots=True)
class Workers:
    """Who reads large text files for a backfill."""

    gathered: Callable[..., list[Any]]
    """What they say of some tasks: `(tasks, work, *, columns)`."""
    written: Callable[..., list[Path]]
    """What they make of some tasks, in files: `(tasks, work, directory, *, columns)`."""
    are_here: Callable[[], bool]
    """Whether they see this machine's files, and write where this process finds it."""
    staging: Staging
    schema: Callable[[], Schema]
    """The dataset's, at this moment."""
    renamed: Mapping[str, str]
    demands: Demands

    @contextlib.contextmanager
    def reading(self, source: Source) -> Iterator[Source]:
        """The source, read by them if it is large."""
        with contextlib.ExitStack() as resources:
            yield replace(source, read=lambda left: self._read(left, resources))

    def _read(self, left: Sequence[tuple[Unit, Mark]], resources: contextlib.ExitStack) -> Iterator[Iterator[Batch]]:
        texts = [_rest(unit.text, mark) for unit, mark in left if unit.text is not None]
        if sum(piece.bytes for piece in texts) < LARGE_BYTES or not self.are_here():
            return read_each(left)
        stream = self._stream(texts, resources)
        return (_up_to_none(stream) if unit.text else unit.read(mark) for unit, mark in left)

    def _stream(self, texts: list[_Piece], resources: contextlib.ExitStack) -> Iterator[Batch | None]:
        """The batches of all files in order, with None after each file."""
        # The first batch is read here: it is what gives a new dataset its columns.
        kind_of = kinds(self.schema(), self.renamed)
        opening = next(read_file(texts[0].file, kind_of, texts[0].mark, limits=self.demands.limits), None)
        if opening is not None:
            yield opening
            texts[0] = _rest(texts[0].file, opening.behind)
        groups = self._parsed(texts, resources.enter_context(self.staging.scratch()))
        ahead = resources.enter_context(ThreadPoolExecutor(1, thread_name_prefix="backfill-workers"))
        coming = ahead.submit(next, groups, None)
        while (group := coming.result()) is not None:
            coming = ahead.submit(next, groups, None)
            faults.reach("backfill.spread")
            yield from group.batches()
            shutil.rmtree(group.directory)

    def _parsed(self, texts: Sequence[_Piece], scratch: Path) -> Iterator[_Group]:
        for number, pieces in enumerate(self._planned(texts)):
            tasks = list(_by_size(pieces, PIECE_BYTES))
            directory = scratch / f"group-{number}"
            work = partial(_parse, schema=self.schema(), renamed=dict(self.renamed), demands=self.demands)
            parts = self.written(tasks, work, directory, columns=_RECORD)
            yield _Group(directory, parts, pieces)

    def _planned(self, texts: Sequence[_Piece]) -> Iterator[list[_Piece]]:
        """The pieces in groups, with the marks that this process would have come to."""
        lines = 0
        for group in _by_size((part for piece in texts for part in _cut(piece)), GROUP_BYTES):
            cut = [piece for piece in group if piece.end is not None]
            spans = iter(self.gathered(cut, _span, columns=_SPAN) if cut else ())
            planned = []
            for piece in group:
                if piece.end is None:
                    planned.append(piece)
                    continue
                span = next(spans)
                before = lines if piece.mark and piece.mark[1] is None else (piece.mark or (0, 0))[1]
                lines = before + span["lines"]
                planned.append(replace(piece, mark=(span["begin"], before), end=span["end"]))
            yield planned


def _up_to_none(stream: Iterator[Batch | None]) -> Iterator[Batch]:
    for batch in stream:
        if batch is None:
            return
        yield batch


# ── pieces ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class _Piece:
    """A file after a mark, or some lines of it."""

    file: SourceFile
    mark: Mark
    bytes: int
    end: int | None = None
    is_last: bool = True
    """It is the last piece of its file."""


def _rest(file: SourceFile, mark: Mark) -> _Piece:
    size = file.path.stat().st_size
    return _Piece(file, mark, size - mark[0] if mark and _has_lines(file) else size)


def _has_lines(file: SourceFile) -> bool:
    """Whether it can be read from any line on: not where a text may go over several, and not where it is packed."""
    return file.kind == "jsonl" and not file.is_gzipped


def _cut(piece: _Piece) -> Iterator[_Piece]:
    """Into pieces of one size, wherever that is in a line."""
    if not _has_lines(piece.file):
        yield piece
        return
    begin, _ = piece.mark or (0, 0)
    end = begin + piece.bytes
    for start in range(begin, max(end, begin + 1), PIECE_BYTES):
        stop = min(start + PIECE_BYTES, end)
        mark = piece.mark if start == begin else (start, None)
        yield _Piece(piece.file, mark, stop - start, stop, is_last=stop == end)


def _by_size(pieces: Iterable[_Piece], limit: int) -> Iterator[list[_Piece]]:
    """Adjacent pieces, up to this many bytes."""
    together: list[_Piece] = []
    size = 0
    for piece in pieces:
        if together and size + piece.bytes > limit:
            yield together
            together, size = [], 0
        together.append(piece)
        size += piece.bytes
    if together:
        yield together


# ── in the workers ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Span(NamedTuple):
    """The lines of a piece."""

    begin: int
    end: int
    lines: int


_SPAN = "begin long, end long, lines long"


def _span(piece: _Piece) -> Iterator[_Span]:
    """Where the lines of a piece begin and end, and how many there are."""
    begin, number = piece.mark or (0, 0)
    end = begin + piece.bytes
    with piece.file.path.open("rb") as opened:
        first = begin if number is not None else _line_behind(opened, begin)
        last = end if piece.is_last else _line_behind(opened, end)
        opened.seek(first)
        lines, left = 0, last - first
        while left and (block := opened.read(min(left, COUNT_BYTES))):
            lines, left = lines + block.count(b"\n"), left - len(block)
    yield _Span(first, last, lines)


def _line_behind(opened: IO[bytes], place: int) -> int:
    """Where the first line begins that begins there or later."""
    opened.seek(place - 1)
    while (piece := opened.readline(COUNT_BYTES)) and not piece.endswith(b"\n"):
        pass
    return opened.tell()


def _parse(
    pieces: Sequence[_Piece], *, schema: Schema, renamed: Mapping[str, str], demands: Demands
) -> Iterator[_Record]:
    """The batches of some pieces, and an empty record after each piece."""
    kind_of = kinds(schema, renamed)
    for piece in pieces:
        try:
            for batch in read_file(piece.file, kind_of, piece.mark, limits=demands.limits, end=piece.end):
                yield _record(batch, fit_batch(schema, batch, renamed, demands), renamed)
        except FloodmarkError as error:  # reported where it is reached: the rows before it are loaded
            fault = {"kind": type(error).__name__, "message": error.message, "hint": error.hint}
            yield _Record(fault=json.dumps(fault))
        yield _Record()


# ── what they give ───────────────────────────────────────────────────────────────────────────────────────────────────


class _Record(NamedTuple):
    """A batch, what went wrong instead of one, or neither: the end of a piece."""

    behind: str = "null"
    size: int = 0
    rows: bytes | None = None
    problems: bytes | None = None
    fault: str | None = None


_RECORD = "behind string, size long, rows binary, problems binary, fault string"


def _record(batch: Batch, fitted: Fit, renamed: Mapping[str, str]) -> _Record:
    import pyarrow as pa

    grown = [(column.name, column.text) for column in (*fitted.new_columns, *fitted.widened)]
    counted = fitted.table.append_column(_FILLER, pa.nulls(fitted.table.num_rows))
    problems = [asdict(problem) for problem in (*misfits(fitted, batch, renamed), *batch.problems)]
    return _Record(
        behind=json.dumps(batch.behind),
        size=batch.bytes,
        rows=_packed(counted.replace_schema_metadata({_COLUMNS: json.dumps(grown)})),
        problems=_packed(pa.Table.from_pylist(problems)) if problems else None,
    )


def _packed(table: pa.Table) -> bytes:
    import pyarrow as pa

    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(compression="lz4")) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def _unpacked(packed: bytes) -> pa.Table:
    import pyarrow as pa

    return pa.ipc.open_stream(packed).read_all()


def _batch(record: _Record, rows: bytes, file: SourceFile) -> Batch:
    packed = _unpacked(rows)
    problems = _unpacked(record.problems).to_pylist() if record.problems else []
    columns = json.loads(packed.schema.metadata[_COLUMNS])
    behind = json.loads(record.behind)
    last = f"line {behind[1]}" if file.kind == "jsonl" else f"row {behind}"
    return Batch(
        rows=packed.select(packed.column_names[:-1]).replace_schema_metadata(None),
        behind=behind,
        place=lambda _: f"{file.path}, up to {last}",  # which one it is, only its worker knew
        problems=tuple(Problem(**item) for item in problems),
        bytes=record.size,
        columns=tuple(Column.parse(name, text) for name, text in columns),
        fitted=True,
    )


@dataclass(frozen=True, slots=True)
class _Group:
    """What the workers gave for some pieces."""

    directory: Path
    parts: Sequence[Path]
    pieces: Sequence[_Piece]

    def batches(self) -> Iterator[Batch | None]:
        """In order, with None after the last of a file."""
        records = self._records()
        for piece in self.pieces:
            for record in records:
                if record.fault is not None:
                    fault = json.loads(record.fault)
                    raise getattr(errors, fault["kind"])(fault["message"], hint=fault["hint"])
                if record.rows is None:
                    break
                yield _batch(record, record.rows, piece.file)
            else:
                raise Retryable(f"Spark's workers returned only a part of {piece.file.path}.", hint="Run it again.")
            if piece.is_last:
                yield None

    def _records(self) -> Iterator[_Record]:
        import pyarrow.parquet as pq

        for part in self.parts:
            with pq.ParquetFile(part) as opened:
                for batch in opened.iter_batches(1):
                    yield from (_Record(**record) for record in batch.to_pylist())
