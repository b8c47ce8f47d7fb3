"""How much of a table may have duplicates of a batch, read from its metadata only: no job, no data file."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import Append, BlockSegment, TableState
from floodmark.lake.manifests import ListedFile, Manifests
from floodmark.rows.identities import Keyed
from floodmark.schema import SEQ
from floodmark.schema.types import DATE
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    from pyiceberg.expressions import BooleanExpression
    from pyiceberg.table import Table as IcebergTable

DISTINCT = b"floodmark.distinct"
"""In a segment file: no two of its rows have one identity."""
TIMED = b"floodmark.timed"
"""In a segment file: every row has an event time."""
NAMED = b"floodmark.named"
"""In a segment file: every row has an identity."""
ABSENT = b"floodmark.absent"
"""In a segment file: the snapshot in which none of its rows has a duplicate."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Overlap:
    """The data files that may have duplicates of a batch."""

    files: int
    rows: int
    listed: tuple[ListedFile, ...] = field(default=(), compare=False)
    """The files themselves."""
    snapshot: int | None = field(default=None, compare=False)


def is_distinct(
    segments: Sequence[BlockSegment], notes: Sequence[dict[bytes, bytes]], *, any_time: bool = False
) -> bool:
    """Whether no two rows of a batch can have one key: none within a segment, and no event time in two of them.

    The event time is part of the key, unless identities are compared at any time: then segments of different times have
    no key in common.
    """
    if not all(DISTINCT in item for item in notes):
        return False
    if len(segments) == 1 or any_time:
        return len(segments) == 1
    spans = sorted(segment.event_span for segment in segments if segment.event_span is not None)
    apart = all(one[1] < other[0] for one, other in itertools.pairwise(spans))
    return apart and len(spans) == len(segments) and all(TIMED in item for item in notes)


def is_absent(request: Append, notes: Sequence[dict[bytes, bytes]]) -> bool:
    """Whether all rows of a batch were searched in its base, and none was found."""
    base = str(request.base.snapshot).encode()
    return request.base.snapshot is not None and all(item.get(ABSENT) == base for item in notes)


def looked_through(request: Append, notes: Sequence[dict[bytes, bytes]], state: TableState) -> int:
    """The number up to which no row of the table has a duplicate in the batch: it was searched.

    Since then rows were only added, after all others (I2). A settle function could change those that were there.
    """
    if request.settle is not None or not all(ABSENT in item for item in notes):
        return 0
    return min(state.through_at(int(item[ABSENT])) for item in notes)


def overlap(
    table: IcebergTable,
    keyed: Keyed,
    event_span: tuple[int, int] | None,
    *,
    snapshot: int | None,
    timed: bool,
    manifests: Manifests,
    above: int = 0,
) -> Overlap | None:
    """The files of the snapshot that may have duplicates of the batch; None if they cannot be told.

    Where the batch has a span of event times, those are the files that reach into it; otherwise all.

    A batch in which every row has its event time (`timed`) has no duplicate among rows that have none. Only rows with
    numbers `above` count.
    """
    from pyiceberg.expressions import AlwaysTrue, And, GreaterThan, IsNull, Or

    if snapshot is None:
        return None
    near: BooleanExpression = AlwaysTrue()
    column = None if keyed.key_time is None else keyed.schema.get(keyed.key_time)
    is_date = column is not None and column.type == DATE
    try:
        time = None if keyed.key_time is None else table.schema().find_field(keyed.key_time).field_id
        if keyed.key_time is not None and event_span is not None:
            near = within_span(keyed.key_time, event_span, is_date=is_date)
            if not timed:
                near = Or(near, IsNull(keyed.key_time))
        if above:
            near = And(near, GreaterThan(SEQ, above))
        number = table.schema().find_field(SEQ).field_id
        span = tuple(_stored(micros, is_date=is_date) for micros in event_span or ())
        found = tuple(
            file
            for file in manifests.files(table, snapshot, within=SequenceRange(above, SEQUENCE_MAX), row_filter=near)
            if file.numbers(number)[1] > above and _is_near(file, time, span, timed=timed)
        )
    except Exception:  # noqa: BLE001 - an optimisation: where it fails, or the snapshot has expired, the work is done
        return None
    return Overlap(len(found), sum(file.rows for file in found), found, snapshot)


def _is_near(file: ListedFile, time: int | None, span: tuple[int, ...], *, timed: bool) -> bool:
    """Whether a file may have rows with an event time in a span, or, unless all of the batch have one, without."""
    if time is None or not span or (bounds := file.span(time)) is None:
        return True
    if not timed and file.nulls.get(time, 1):
        return True
    return bounds[0] <= span[1] and bounds[1] >= span[0]


def _stored(micros: int, *, is_date: bool) -> int:
    """A time as Iceberg stores it: dates are days."""
    return micros // 86_400_000_000 if is_date else micros


def within_span(event_time: str, span: tuple[int, int], *, is_date: bool) -> BooleanExpression:
    """The rows with an event time in a span."""
    from pyiceberg.expressions import And, GreaterThanOrEqual, LessThanOrEqual

    low, high = (_literal(micros, is_date=is_date) for micros in span)
    return And(GreaterThanOrEqual(event_time, low), LessThanOrEqual(event_time, high))


def _literal(micros: int, *, is_date: bool) -> Any:
    moment = _EPOCH + timedelta(microseconds=micros)
    return moment.date().isoformat() if is_date else moment.isoformat(timespec="microseconds")
