"""Retention: rows that are old enough go, but never one that a sink still needs.

The rule is an age, by event time or by ingest time, or a number of rows to keep. Which rows it names is counted in the
table; which of them go is decided in the transaction that records it, from the sinks' positions at that instant (U10).
Only that transaction keeps flushes on this machine waiting: rows are counted and deleted beside them.
A retention by event time is remembered: rows from before its cutoff that arrive later are not committed any more
(counted as `expired`), so that a backfill does not restore removed rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial

from sqlalchemy import Connection

from floodmark.commit.flush import flush_lock
from floodmark.control import blocks, datasets, removals, sinks
from floodmark.control.datasets import Dataset
from floodmark.control.removals import Operation
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, Retryable
from floodmark.lake import inventory
from floodmark.lake.inventory import TableFiles
from floodmark.maintenance.pending_deliveries import Needs, lag_rows, needs_of
from floodmark.maintenance.remover import (
    Counted,
    Records,
    carry_out,
    check_same,
    count_rows,
    end_unfinished,
    plan_operation,
    prepare,
    read_records,
    record_plan,
    retry_if_changed,
)
from floodmark.removal import Part, Selection, Verdict, judge
from floodmark.schema import SEQ
from floodmark.schema.types import DATE
from floodmark.sequence import SequenceRange

_AGE = re.compile(r"([1-9][0-9]{0,8})\s*([smhdw])")
_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 7 * 86_400}
_DAY = 86_400_000_000
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
TRIES_MAX = 20
"""How often rows are counted again because others were removed or changed in the meantime."""
WINDOW_ROWS_MIN, WINDOW_ROWS_MAX = 10_000, 1_000_000
"""How many numbers are scanned at once."""


@dataclass(frozen=True, slots=True)
class RemovedRows:
    """Rows of one partition that were removed, or would be."""

    partition: str
    range: SequenceRange
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class HoldingSink:
    """A sink because of which old rows stay."""

    sink: str
    lag_rows: int
    """About how many rows it has still to get of this dataset."""
    rows: int
    """Rows that are old enough and stay for it."""
    bytes: int
    """About how much room those take."""


@dataclass(frozen=True, slots=True)
class ForfeitedRows:
    """Rows that a sink will never get, because it was given up."""

    sink: str
    partition: str
    range: SequenceRange
    rows: int
    checksum: str


@dataclass(frozen=True, slots=True)
class RetainReport:
    """What a retention removed, and what it could not."""

    dataset: str
    rows: int = 0
    bytes_freed: int = 0
    """As seen on the disk."""
    removed: tuple[RemovedRows, ...] = ()
    held_back_by: tuple[HoldingSink, ...] = ()
    forfeited: tuple[ForfeitedRows, ...] = ()
    event_cutoff: datetime | None = None
    """Rows with an older event time are not committed any more."""
    dry_run: bool = False


def retain(
    engine: Engine,
    dataset: str,
    *,
    older_than: str | timedelta | None = None,
    by: str = "event_time",
    keep_rows: int | None = None,
    give_up: str | Sequence[str] | None = None,
    dry_run: bool = False,
) -> RetainReport:
    age = _age(older_than, keep_rows, by)
    given_up = _instances(engine, give_up)
    if not dry_run:
        prepare(engine, dataset)
    for _ in range(TRIES_MAX):
        if not dry_run:
            end_unfinished(engine, dataset)
        records = read_records(engine, dataset)
        with retry_if_changed(engine, records):
            selection = _selection(engine, records.declared, age, by=by, keep_rows=keep_rows)
            if selection is None:
                return RetainReport(dataset, dry_run=dry_run)
            counted = count_rows(engine, records, selection)
            if dry_run:
                verdict = judge(counted.stretches, records.needs.by_partition, given_up=given_up)
                return _report(engine, records.declared, verdict, records.needs, selection, dry_run=True)
            return _go(engine, records, selection, counted, given_up)
    raise Retryable(f"Rows of {dataset!r} are changed too often for this retention.", hint="Run it again.")


def _go(engine: Engine, records: Records, selection: Selection, counted: Counted, given_up: list[str]) -> RetainReport:
    declared = records.declared
    decided: list[tuple[Verdict, Needs]] = []

    def work(connection: Connection) -> Operation | None:
        # U10: positions of this very instant. A sink that was added since the rows were counted needs them too.
        needs = needs_of(connection, declared)
        check_same(counted, needs)
        verdict = judge(counted.stretches, needs.by_partition, given_up=given_up)
        decided[:] = [(verdict, needs)]
        if selection.before is not None:
            removals.raise_cutoff(connection, declared.name, to=selection.before)
        if not verdict.parts:
            return None
        spared = _spare(selection, verdict)
        return record_plan(
            engine,
            connection,
            records,
            verdict,
            kind="retain",
            selection=spared,
            counted=counted,
            reason=_reason(selection),
        )

    with flush_lock(engine, declared.name):
        operation = plan_operation(engine, declared.name, work)
    verdict, needs = decided[0]
    report = _report(engine, declared, verdict, needs, selection, dry_run=False)
    if operation is None:
        return report
    gone = carry_out(engine, operation)
    return replace(report, rows=gone.rows, bytes_freed=gone.bytes_freed, removed=_removed(gone.parts))


def _instances(engine: Engine, give_up: str | Sequence[str] | None) -> list[str]:
    names = [give_up] if isinstance(give_up, str) else list(give_up or ())
    return engine.database.read(lambda c: [sinks.get(c, name).instance for name in names])


def _selection(
    engine: Engine, declared: Dataset, age: timedelta | None, *, by: str, keep_rows: int | None
) -> Selection | None:
    if age is None:
        through = rows_to_keep(engine, declared, keep_rows or 0)
        return None if through == 0 else Selection(through)
    until = engine.clock.now() - age
    if by == "ingest_time":
        through = engine.database.read(lambda c: blocks.committed_before(c, declared.name, until))
        return None if through == 0 else Selection(through)
    if declared.event_time is None:
        raise InvalidSetting(
            f"Dataset {declared.name!r} has no event time.", hint="Retain by ingest time, or by a number of rows."
        )
    cutoff = (until - _EPOCH) // timedelta(microseconds=1)
    if declared.schema.column(declared.event_time).type == DATE:
        cutoff -= cutoff % _DAY  # a day is over when all of it is
    return Selection(declared.horizon, event_time=declared.event_time, before=cutoff)


def rows_to_keep(engine: Engine, declared: Dataset, keep_rows: int) -> int:
    """The number of the last row that is not among the newest ones to keep.

    Whole buckets are counted by what the table's lists say of their files. Rows are read of one bucket only, in which
    the newest ones begin, and of buckets whose files do not say it: those with deleted rows, or with rows of a commit
    that is not decided.
    """
    lake = engine.lake
    state = lake.load(declared.table_name)
    if state is None or state.head is None:
        return 0
    if keep_rows == 0:
        return declared.horizon
    left = keep_rows
    for within, count in _buckets(lake.files(state), declared.horizon):
        if count is not None and count <= left:
            left -= count
            continue
        if left == 0:
            return within.through
        for window in _windows(within, rows=left):
            parts = lake.scan(declared.table_name, snapshot=state.head, within=window, columns=())
            numbers = [seq for part in parts for seq in part[SEQ].to_pylist()]
            if len(numbers) > left:
                return int(numbers[len(numbers) - left - 1])
            left -= len(numbers)
    return 0


def _buckets(files: TableFiles, horizon: int) -> Iterator[tuple[SequenceRange, int | None]]:
    """The buckets from the horizon back, each with the number of its rows, if the files say it."""
    deletes = any(file.deletes for file in files.files)
    for bucket in reversed(files.buckets):
        own = bucket.range.intersect(SequenceRange(0, horizon))
        if own is not None:
            known = not deletes and all(file.last <= horizon for file in bucket.files)
            yield own, sum(file.rows for file in bucket.files) if known else None


def _windows(within: SequenceRange, *, rows: int) -> Iterator[SequenceRange]:
    """A range from its end back, in parts of about so many rows, if no number is missing."""
    step = min(max(rows, WINDOW_ROWS_MIN), WINDOW_ROWS_MAX)
    for through in range(within.through, within.after, -step):
        yield SequenceRange(max(within.after, through - step), through)


def _report(
    engine: Engine, declared: Dataset, verdict: Verdict, needs: Needs, selection: Selection, *, dry_run: bool
) -> RetainReport:
    database, lake = engine.database, engine.lake
    rows = max(1, database.read(lambda c: datasets.row_count(c, declared.name)))
    each = inventory.stored_bytes(lake, declared.table_name) / rows if verdict.held_back else 0
    holding = [
        HoldingSink(
            needs.names[sink],
            database.read(partial(lag_rows, declared=declared, needs=needs, sink=sink)),
            tally.rows,
            round(tally.rows * each),
        )
        for sink, tally in verdict.held_back.items()
    ]
    return RetainReport(
        declared.name,
        verdict.tally.rows,
        0,
        _removed(verdict.parts),
        tuple(sorted(holding, key=lambda item: item.sink)),
        tuple(
            ForfeitedRows(needs.names[f.sink], f.partition, f.range, f.tally.rows, f.tally.checksum_text)
            for f in verdict.forfeits
        ),
        None if selection.before is None else _EPOCH + timedelta(microseconds=selection.before),
        dry_run,
    )


def _removed(parts: Sequence[Part]) -> tuple[RemovedRows, ...]:
    return tuple(RemovedRows(p.partition, p.range, p.tally.rows, p.tally.checksum_text) for p in parts)


def _spare(selection: Selection, verdict: Verdict) -> Selection:
    return Selection(selection.through, selection.event_time, selection.before, selection.where, tuple(verdict.spared))


def _reason(selection: Selection) -> str:
    if selection.before is not None:
        return f"retention: {selection.event_time} before {_EPOCH + timedelta(microseconds=selection.before)}"
    return f"retention: up to {selection.through}"


def _age(older_than: str | timedelta | None, keep_rows: int | None, by: str) -> timedelta | None:
    if by not in ("event_time", "ingest_time"):
        raise InvalidSetting(f"`by` is {by!r}.", hint="Use event_time or ingest_time.")
    if (older_than is None) == (keep_rows is None):
        raise InvalidSetting("A retention needs exactly one rule.", hint="Give either older_than or keep_rows.")
    if keep_rows is not None and keep_rows < 0:
        raise InvalidSetting(f"keep_rows is {keep_rows}.", hint="It must be a number of rows, 0 or more.")
    if older_than is None or isinstance(older_than, timedelta):
        return older_than
    match = _AGE.fullmatch(older_than.strip())
    if match is None:
        raise InvalidSetting(f"{older_than!r} is not an age.", hint="Write it as 30d, 12h, 8w, 90m or 45s.")
    return timedelta(seconds=int(match[1]) * _UNITS[match[2]])
