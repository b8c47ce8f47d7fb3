"""The line of sequence numbers of a dataset: the picture that explains the system.

    rows      ▕███████░░███▒▒▒▒▒▒███████▏     ▏        committed and void blocks, removed rows, gaps (other datasets)
    archive   ▕███████████████▨▨▨       ▏     ▏        delivered up to the watermark, and the pinned range
                                      horizon allocator

What is shown is a *window* of numbers. It is divided into a few hundred bins and read from the records by bin, so that
a page costs the same for ten blocks and for a million.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Connection, Table, func, select

from floodmark.control.schema import blocks, removals
from floodmark.sequence import SequenceRange
from floodmark.status import DatasetStatus, SinkStatus

BINS = 400
SINKS_MAX = 20
TICKS = 5
WIDTH_MIN = 10
"""How few numbers a window shows at least."""


@dataclass(frozen=True, slots=True)
class Stretch:
    """Numbers that are shown as one bar, as shares of the window in percent."""

    kind: str
    """`committed`, `void`, `reserved`, `removed`, `delivered` or `pinned`."""
    left: float
    width: float
    title: str


@dataclass(frozen=True, slots=True)
class Lane:
    """One horizontal bar of the picture."""

    name: str
    note: str
    stretches: tuple[Stretch, ...]


@dataclass(frozen=True, slots=True)
class Mark:
    """A vertical line."""

    name: str
    seq: int
    left: float


@dataclass(frozen=True, slots=True)
class Line:
    """The picture of one dataset."""

    window: SequenceRange
    lanes: tuple[Lane, ...]
    marks: tuple[Mark, ...]
    ticks: tuple[tuple[float, int], ...]
    """Place and number."""
    blocks: int
    void: int
    removed_rows: int
    summary: str
    """The same as a sentence, for screen readers."""


@dataclass(frozen=True, slots=True)
class _Bin:
    kind: str
    first: int
    last: int
    count: int
    rows: int


def window_of(first: int | None, last: int | None, *, allocated: int) -> SequenceRange:
    """The window that was asked for, kept inside of what there is; without a wish, everything."""
    end = end_of(allocated)
    through = end if last is None else min(max(last, 1), end)
    after = 0 if first is None else min(max(first - 1, 0), through - 1)
    if through - after < WIDTH_MIN:
        after = max(0, through - WIDTH_MIN)
        through = after + WIDTH_MIN
    return SequenceRange(after, through)


def end_of(allocated: int) -> int:
    """The last number that can be shown: a little beyond the allocator, so that it stands apart from the edge."""
    return max(allocated + allocated // 40, 1)


def zoomed(window: SequenceRange, factor: float, *, allocated: int, shift: float = 0.0) -> tuple[int, int]:
    """First and last number of another window: `factor` 0.5 is half as wide, `shift` moves it by a share of it."""
    width = max(WIDTH_MIN, round(len(window) * factor))
    middle = window.after + len(window) / 2 + shift * len(window)
    first = max(1, round(middle - width / 2) + 1)
    last = min(end_of(allocated), first + width - 1)
    return max(1, last - width + 1), last


def read_line(
    connection: Connection,
    dataset: DatasetStatus,
    sinks: Sequence[SinkStatus],
    window: SequenceRange,
    *,
    allocated: int,
) -> Line:
    """Two statements, for any number of blocks, removals and sinks."""
    of_blocks = _bins(connection, blocks, blocks.c.state, blocks.c.dataset == dataset.name, window)
    done = (removals.c.dataset == dataset.name) & (removals.c.state == "done")
    of_removals = _bins(connection, removals, removals.c.state, done, window)
    names = {"committed": "committed", "void": "void", "reserved": "reserved"}
    stretches = [_stretch(names.get(one.kind, one.kind), one, window) for one in of_blocks]
    stretches += [_stretch("removed", one, window) for one in of_removals]
    count = sum(one.count for one in of_blocks if one.kind == "committed")
    void = sum(one.count for one in of_blocks if one.kind == "void")
    removed = sum(one.rows for one in of_removals)
    lanes = [Lane("rows", f"{dataset.rows:,} in the table", tuple(stretches))]
    taking = [sink for sink in sinks if any(one.dataset == dataset.name for one in sink.channels)][:SINKS_MAX]
    lanes += [_sink_lane(sink, dataset, window) for sink in taking]
    marks = [("horizon", dataset.horizon), ("allocator", allocated)]
    return Line(
        window,
        tuple(lanes),
        tuple(Mark(name, seq, place(seq, window)) for name, seq in marks if window.after <= seq <= window.through),
        tuple(_ticks(window)),
        count,
        void,
        removed,
        _summary(dataset, taking, window, blocks=count, void=void, removed=removed, allocated=allocated),
    )


def mark_of(sink: SinkStatus, dataset: DatasetStatus) -> int:
    """Up to which number the sink has everything of a dataset: the horizon, if it is behind in no partition."""
    behind = [one.watermark for one in sink.channels if one.dataset == dataset.name and one.lag]
    return min(behind, default=dataset.horizon)


def place(seq: int, window: SequenceRange) -> float:
    """Where a number is in the window, in percent from the left."""
    return round(100 * (seq - window.after) / len(window), 3)


def _bins(
    connection: Connection,
    table: Table,
    kind: ColumnElement[str],
    condition: ColumnElement[bool],
    window: SequenceRange,
) -> list[_Bin]:
    """The ranges of a table in the window, joined where they share a bin."""
    bin_of = (table.c.through_seq - 1 - window.after) // -(-len(window) // BINS)
    found = connection.execute(
        select(
            kind,
            func.min(table.c.after_seq),
            func.max(table.c.through_seq),
            func.count(),
            func.sum(table.c.row_count),
        )
        .where(condition, table.c.through_seq > window.after, table.c.after_seq < window.through)
        .group_by(kind, bin_of)
        .order_by(func.min(table.c.after_seq))
        .limit(4 * BINS)
    )
    return [
        _Bin(str(what), int(after), int(through), int(many), int(rows)) for what, after, through, many, rows in found
    ]


def _stretch(kind: str, one: _Bin, window: SequenceRange) -> Stretch:
    left = max(place(one.first, window), 0.0)
    right = min(place(one.last, window), 100.0)
    words = {
        "committed": f"{_many(one.count, 'block')} committed, {one.rows:,} rows",
        "void": f"{_many(one.count, 'void block')}: no row has these numbers",
        "reserved": "reserved by a flush in progress",
        "removed": f"{one.rows:,} rows removed",
    }
    title = f"{words.get(kind, kind)}, {one.first + 1:,} to {one.last:,}"
    return Stretch(kind, left, round(max(right - left, 0.15), 3), title)


def _sink_lane(sink: SinkStatus, dataset: DatasetStatus, window: SequenceRange) -> Lane:
    mark = mark_of(sink, dataset)
    lag = sum(one.lag for one in sink.channels if one.dataset == dataset.name)
    stretches = []
    if mark > window.after:
        right = min(place(mark, window), 100.0)
        stretches.append(Stretch("delivered", 0.0, right, f"delivered to {sink.name} up to {mark:,}"))
    open_ranges = [one.pinned for one in sink.channels if one.dataset == dataset.name and one.pinned is not None]
    if open_ranges:
        first, last = min(one.after for one in open_ranges), max(one.through for one in open_ranges)
        left, right = max(place(first, window), 0.0), min(place(last, window), 100.0)
        if right > left:
            title = f"pinned: {first + 1:,} to {last:,} is being delivered to {sink.name}"
            stretches.append(Stretch("pinned", left, round(max(right - left, 0.3), 3), title))
    note = f"watermark {mark:,}" + (f", {lag:,} rows behind" if lag else "")
    return Lane(sink.name, note, tuple(stretches))


def _ticks(window: SequenceRange) -> Iterable[tuple[float, int]]:
    for step in range(TICKS):
        seq = window.after + round(len(window) * step / (TICKS - 1))
        yield place(seq, window), max(seq, 1)


def _many(number: int, of: str) -> str:
    return f"{number:,} {of}" if number == 1 else f"{number:,} {of}s"


def _summary(
    dataset: DatasetStatus,
    sinks: Sequence[SinkStatus],
    window: SequenceRange,
    *,
    blocks: int,
    void: int,
    removed: int,
    allocated: int,
) -> str:
    parts = [
        f"Sequence numbers {window.after + 1:,} to {window.through:,} of {dataset.name}:",
        f"{_many(blocks, 'committed block')}, {_many(void, 'void block')}, {removed:,} rows removed.",
        f"The horizon is {dataset.horizon:,}, the allocator {allocated:,}.",
    ]
    parts += [f"{sink.name} is delivered up to {mark_of(sink, dataset):,}." for sink in sinks]
    return " ".join(parts)
