"""A table sink: chunks are copied into another Iceberg table, each exactly once.

The copy runs in Spark, as a compare-and-swap append. Whatever the call returns, the target's history shows whether the
chunk was delivered; `lake.targets` has the terms and the rules. The steps, and their purpose:

1. Load the target once, and record its base if none is on record. The first base is kept (D5): it is older than every
   attempt, so the history since then has all of them.
2. Decide from that load (D6). Delivered → make it durable, done. Unknown → stop with an error: a user may have
   deleted the rows, and must not get them again.
3. Otherwise append on that load's head, and load again, whatever the append returned.

Rows that a user deletes from the target stay deleted: an acknowledged chunk is never sent again, and other chunks are
recognised by the mark of the commit, not by their rows.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark import faults
from floodmark.commit.protocol import Base
from floodmark.control import chunks, datasets, deliveries, removals
from floodmark.control.database import Database
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import (
    Account,
    Audited,
    Copied,
    Delivered,
    Destination,
    ExpectedRange,
    Finding,
    Kind,
    Parcel,
    Source,
    whole_number,
)
from floodmark.delivery.outcomes import Holdings
from floodmark.delivery.sinks.objects import LocalObjects
from floodmark.engine import Engine
from floodmark.errors import (
    DivergedHistory,
    FilesMissing,
    FloodmarkError,
    InvalidSetting,
    Permanent,
    Retryable,
    reason_of,
)
from floodmark.lake import queries
from floodmark.lake.files import local_path
from floodmark.lake.targets import (
    ORIGIN_SEQ,
    Census,
    Claim,
    Cut,
    Fate,
    Landed,
    Mark,
    Origin,
    Target,
    TargetAppend,
    TargetName,
    TargetState,
    check_claim,
    fate,
    missing_columns,
)
from floodmark.schema import Schema, columns_of_arrow
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa


# ── Table audit ──────────────────────────────────────────────────────────────────────────────────────────────────────
# Whether a target has the rows of a channel exactly once: counted by number, and if `deep` compared row by row.
#
# One count of everything comes first. Only if it differs, the chunks are halved until the ranges that differ are found,
# so a correct table costs one query for any number of chunks.


FINDINGS_MAX = 20
"""How many ranges are named; a table that lost more cannot be repaired range by range."""
_REMEDY = (
    "Was it changed by hand? Rows that were deleted on purpose are not sent again. To get every row, deliver to "
    "another table."
)


@dataclass(frozen=True, slots=True)
class TableAudit:
    """One audit of one channel's rows in one target."""

    target: Target
    state: TargetState
    origin: Origin
    account: Account

    def run(self, *, deep: bool) -> Audited:
        expected = self.account.expected
        rows = 0
        found: list[Finding] = []
        if expected:
            whole = _hull(expected)
            counted = self._census(whole)
            rows = counted.rows
            found += list(self._counted(expected, counted))[:FINDINGS_MAX]
            if deep and not any(item.kind == "rows-missing" for item in found):
                found += self._altered(expected)
        beyond = max([self.account.watermark, *(item.through for item in self.account.pending)])
        more = self._census(SequenceRange(beyond, SEQUENCE_MAX))
        if more.rows:
            what = f"The table has {more.rows} rows above {beyond}, but nothing above it was sent."
            found.append(self._finding("rows-extra", what, SequenceRange(beyond, SEQUENCE_MAX)))
        return Audited(rows + more.rows, tuple(found))

    def _counted(self, expected: Sequence[ExpectedRange], counted: Census) -> Iterator[Finding]:
        wanted = sum(item.tally.rows for item in expected)
        if counted == Census(wanted, wanted):
            return
        if len(expected) > 1:
            middle = len(expected) // 2
            for half in (expected[:middle], expected[middle:]):
                yield from self._counted(half, self._census(_hull(half)))
            return
        span = expected[0].range
        if counted.numbers < wanted:
            kind = "rows-missing" if expected[0].recorded or counted.numbers else "never-sent"
            yield self._finding(kind, f"The table has {counted.numbers} of {wanted} rows of {span}.", span)
        if counted.rows > counted.numbers:
            what = f"The table has {counted.rows - counted.numbers} duplicate rows of {span}."
            yield self._finding("rows-doubled", what, span)
        if counted.numbers > wanted:
            yield self._finding(
                "rows-extra", f"The table has {counted.numbers} rows of {span}, but {wanted} were sent.", span
            )

    def _altered(self, expected: Sequence[ExpectedRange]) -> Iterator[Finding]:
        for run in _alike(expected):
            source = run[0].source
            without = frozenset(source.given_up)
            hull = _hull(run)
            cut = Cut(
                source.table, source.snapshot, hull, source.columns, source.partition_values, source.row_filter, without
            )
            numbers = self.target.unlike(self.state, cut, self.origin, count_max=FINDINGS_MAX)
            if numbers:
                shown = ", ".join(str(number) for number in numbers)
                more = " and more" if len(numbers) == FINDINGS_MAX else ""
                what = f"Rows {shown}{more} differ from the rows that were delivered."
                yield self._finding("rows-altered", what, SequenceRange(numbers[0] - 1, numbers[-1]))

    def _census(self, within: SequenceRange) -> Census:
        return self.target.census(self.state, store=self.origin.store, partition=self.origin.partition, within=within)

    def _finding(self, kind: str, what: str, span: SequenceRange) -> Finding:
        return Finding(kind, what, str(self.target.name), _REMEDY, span)


def _hull(expected: Sequence[ExpectedRange]) -> SequenceRange:
    return SequenceRange(expected[0].range.after, max(item.range.through for item in expected))


def _alike(expected: Sequence[ExpectedRange]) -> Iterator[list[ExpectedRange]]:
    """Consecutive ranges that were sent with the same columns and filter."""
    run: list[ExpectedRange] = []
    for item in expected:
        if run and (item.source.columns, item.source.row_filter) != (run[0].source.columns, run[0].source.row_filter):
            yield run
            run = []
        run.append(item)
    if run:
        yield run


# ── Table ────────────────────────────────────────────────────────────────────────────────────────────────────────────


SENDS_MAX = 2
"""How often one call appends on the same head: if it is still the head, the failure was not a conflict."""
CONFLICTS_MAX = 8
"""How many heads one call tries before it gives up because of other writers."""
_PART = re.compile(r"[A-Za-z0-9_-]{1,128}")


@dataclass(frozen=True, slots=True)
class _Chunk:
    """What is appended, and how it is recognised."""

    mark: Mark
    last: int | None
    """The number of its last row, if it is known already."""
    rows: Cut | pa.Table
    columns: Schema
    claim: Claim
    intent: Intent | None
    """None for replayed rows: their chunk is acknowledged, and has no base."""


@dataclass(frozen=True, slots=True)
class TableSink:
    """One dataset's target, from one store."""

    target: Target
    database: Database
    store_id: str
    dataset: str
    row_filter: str | None

    def open(self) -> None:
        """Check that the catalog responds, and that this sink may write to the table, if it exists."""
        self._checked(self.target.load(), Claim(self.store_id, self.dataset, self.row_filter))

    def held(self, channel: Channel, *, after: int) -> Holdings:
        """The highest number that the table has: from our commits if known, otherwise from the rows.

        Chunks arrive in order, so all lower rows have arrived as well.
        """
        state = self._checked(self.target.load(), Claim(self.store_id, self.dataset, self.row_filter))
        if state is None or state.history.head is None:
            return Holdings()
        known = [landed.mark for landed in state.chunks_of(self._origin(channel))]
        if known:
            newest = max(known, key=lambda mark: mark.range.through)
            end, totals = newest.range.through, newest.totals
        else:
            beyond = SequenceRange(after, SEQUENCE_MAX)
            seen = self.target.seen(state, store=self.store_id, partition=channel.partition, within=beyond)
            end, totals = seen.last, None
        return Holdings(end=end, tally=totals) if end > after else Holdings()

    def copy(self, intent: Intent, range: SequenceRange, source: Source) -> Copied:
        inside = {seq: tally for seq, tally in source.given_up.items() if seq in range}
        cut = Cut(
            source.table,
            source.snapshot,
            range,
            source.columns,
            source.partition_values,
            source.row_filter,
            frozenset(inside),
        )
        tally = queries.tally(self.target.lake, cut)
        if tally.rows == 0:
            return Copied(0, Tally())  # without rows there is nothing to commit
        mark = Mark(self._origin(intent.channel), range, tally, self._totals(intent, range, tally, inside))
        claim = Claim(self.store_id, self.dataset, source.row_filter)
        return self._deliver_chunk(_Chunk(mark, None, cut, source.columns, claim, intent))

    def deliver(self, parcel: Parcel) -> Delivered:
        """Append rows that were given up before: a whole chunk, or one row. Other chunks are copied.

        They are recognised by their mark or by their last row. After a crash they would be sent again if the rows were
        deleted and the snapshot expired between the crash and the next attempt.
        """
        mark = Mark(self._origin(parcel.channel), parcel.range, parcel.tally)
        columns = Schema(tuple(columns_of_arrow(parcel.rows.schema)))
        rows = parcel.rows.append_column(ORIGIN_SEQ, parcel.sequence)
        claim = Claim(self.store_id, self.dataset, self.row_filter)
        return Delivered(
            self._deliver_chunk(_Chunk(mark, parcel.sequence[-1].as_py(), rows, columns, claim, None)).bytes
        )

    def audited(self, channel: Channel, account: Account, *, deep: bool) -> Audited:
        """Count the rows of the channel by their numbers, and if `deep` compare each with the lake's."""
        state = self.target.load()
        if state is not None:
            missing_columns(self.target.name, state, Schema())  # without the origin's columns, rows cannot be queried
            return TableAudit(self.target, state, self._origin(channel), account).run(deep=deep)
        rows = sum(item.tally.rows for item in account.expected)
        if not rows:
            return Audited(0)
        what = f"The table does not exist, but {rows} rows were delivered to it."
        remedy = "Restore the table, or deliver everything again with a new sink."
        return Audited(0, (Finding("rows-missing", what, str(self.target.name), remedy),))

    def close(self) -> None:
        pass

    def _origin(self, channel: Channel) -> Origin:
        return Origin(self.store_id, channel.dataset, channel.partition)

    def _totals(
        self, intent: Intent, range: SequenceRange, tally: Tally, given_up: Mapping[int, Tally]
    ) -> Tally | None:
        """The totals including this chunk, if the watermark is directly before it."""
        before = self.database.read(lambda c: deliveries.watermark(c, intent.channel))
        if before is None or before.seq != range.after:
            return None
        return sum(given_up.values(), before.tally + tally)

    # ── one chunk ────────────────────────────────────────────────────────────────────────────────────────────────

    def _deliver_chunk(self, chunk: _Chunk) -> Copied:
        """Deliver one chunk."""
        base: Base | None = None
        sent: list[int | None] = []
        error: Exception | None = None
        while True:
            state = self._loaded_or_made(chunk, base)
            first_look = False
            if base is None:
                base = self._base(chunk, state)
                faults.reach("table.base_recorded")
                if base is None:
                    return Copied(0, chunk.mark.tally)  # acknowledged by another process since: nothing may be sent
                first_look = state is not None and base == state.base
                if not first_look:
                    continue  # another attempt recorded the base, perhaps after this load: load again
            outcome = self._fate(chunk, base, state, first_look=first_look)
            if outcome is Fate.DELIVERED and state is not None:
                return self._durable(chunk, base, state)
            if outcome is not Fate.OPEN or state is None:
                raise self._problem(chunk, outcome)
            head = state.history.head
            if len(sent) == CONFLICTS_MAX or sent.count(head) == SENDS_MAX:
                raise self._not_now(chunk, error)
            sent.append(head)
            faults.reach("table.decided")
            error = send(self.target, chunk, state)
            faults.reach("table.appended")

    def _loaded_or_made(self, chunk: _Chunk, base: Base | None) -> TargetState | None:
        state = self.target.load()
        if state is None and base is None and self._recorded(chunk) is None:
            self.target.fit(chunk.columns, chunk.claim)
            state = self.target.load()
            if state is None:
                raise Retryable(f"Table {self.target.name} was created, but it does not exist.")
        if base is not None and (state is None or state.history.uuid != base.table_uuid):
            return state  # another table: report that, not the owner of its rows
        return self._checked(state, chunk.claim)

    def _checked(self, state: TargetState | None, claim: Claim) -> TargetState | None:
        """The state, if its rows of this store can only be rows of this dataset."""
        if state is None or check_claim(self.target.name, state, claim) or state.history.head is None:
            return state
        missing_columns(self.target.name, state, Schema())  # without the origin's columns, rows cannot be queried
        everything = SequenceRange(0, SEQUENCE_MAX)
        if self.target.seen(state, store=self.store_id, partition=None, within=everything).tally.rows:
            key, value = claim.property
            raise Permanent(
                f"Table {self.target.name} has rows of this store, but does not name their dataset.",
                hint=f"If they are rows of {claim.dataset!r}, and this sink should continue after them: "
                f"ALTER TABLE {self.target.name} SET TBLPROPERTIES ('{key}' = '{value}').",
            )
        return state

    def _recorded(self, chunk: _Chunk) -> Base | None:
        intent = chunk.intent
        if intent is None:
            return None
        return self.database.read(lambda c: chunks.recorded_base(c, intent, chunk.mark.range))

    def _base(self, chunk: _Chunk, state: TargetState | None) -> Base | None:
        """The recorded base, otherwise this load's. None if the chunk is acknowledged."""
        intent = chunk.intent
        if intent is None:
            return None if state is None else state.base
        if state is None:
            return self._recorded(chunk)
        return self.database.transact(
            lambda c: chunks.record_base(c, intent, chunk.mark.range, state.base), landed=lambda _: False
        )

    def _fate(self, chunk: _Chunk, base: Base, state: TargetState | None, *, first_look: bool) -> Fate:
        mark, replayed = chunk.mark, chunk.intent is None
        outcome = fate(mark, base=base, state=state, first_look=first_look or replayed)
        if state is None:
            return outcome
        if outcome is Fate.OTHER_ROWS and self._fewer_since(chunk, state):
            return Fate.DELIVERED
        # The target has the chunk around a replayed row, without that row.
        if outcome is not Fate.ASK_ROWS and not (replayed and outcome is Fate.OTHER_RANGES):
            return outcome
        seen = self.target.seen(state, store=mark.origin.store, partition=mark.origin.partition, within=mark.range)
        if seen.tally.rows and seen.last == self._last(chunk):
            return Fate.DELIVERED  # a chunk arrives completely, and after earlier chunks
        unknown = state.history.since(base.snapshot) is None
        return Fate.ASK_ROWS if seen.tally.rows or unknown else Fate.OPEN

    def _last(self, chunk: _Chunk) -> int | None:
        return queries.last_seq(self.target.lake, chunk.rows) if isinstance(chunk.rows, Cut) else chunk.last

    def _fewer_since(self, chunk: _Chunk, state: TargetState) -> bool:
        """Whether retention or purge removed rows of the source since the delivery, and the others are the same."""
        intent, mark = chunk.intent, chunk.mark
        if intent is None:
            return False
        condition = intent.settings.get("where")
        removed = self.database.read(
            lambda c: removals.removed_within(c, intent.channel, mark.range, condition=condition)
        )
        landed = _landed(state, mark)
        return landed is not None and landed.mark.tally == mark.tally + removed

    def _durable(self, chunk: _Chunk, base: Base, state: TargetState) -> Copied:
        """A local warehouse does not sync automatically: an acknowledged chunk must survive a loss of power."""
        landed = _landed(state, chunk.mark)
        known = {snapshot.id for snapshot in state.history.since(base.snapshot) or ()}
        before_base = landed is not None and landed.snapshot not in known  # the record of its delivery was lost
        since = landed.parent if landed is not None and before_base else base.snapshot
        try:
            self.target.sync(state, since=since)
        except FilesMissing:
            # Snapshots may have expired while we synced their files: then a newer load has no such files.
            newer = self.target.load()
            if newer is None or newer.history.head == state.history.head:
                raise
            self.target.sync(newer, since=since)
        faults.reach("table.synced")
        return Copied(0, chunk.mark.tally) if landed is None else Copied(landed.bytes, landed.mark.tally)

    # ── messages ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _what(self, chunk: _Chunk) -> str:
        mark = chunk.mark
        return f"rows {mark.range} of {mark.origin.dataset!r} ({mark.origin.partition})"

    def _problem(self, chunk: _Chunk, outcome: Fate) -> Permanent:
        table, what = self.target.name, self._what(chunk)
        again = "remove the sink and add it again: it continues after the highest number of this store in the table"
        if outcome is Fate.OTHER_TABLE:
            return Permanent(
                f"Table {table} was dropped, or is not the table that {what} were first sent to.",
                hint=f"To deliver to the present table of that name, {again}.",
            )
        if outcome is Fate.OTHER_ROWS:
            return DivergedHistory(
                f"Table {table} already has {what}, but they are other rows.",
                hint="Was this store restored from a backup, or copied? Deliver to another table.",
            )
        if outcome is Fate.OTHER_RANGES:
            return DivergedHistory(
                f"Table {table} already has a part of {what}, in chunks with other ranges.",
                hint=f"Was this store restored from a backup, or copied? If it is this store's own, {again}.",
            )
        return Permanent(
            f"Whether {what} were delivered to table {table} is unknown: its snapshots since the first attempt have "
            "expired, and some of the rows are missing. They were not sent again.",
            hint=f"If they never arrived, {again}. If they were deleted since, `floodmark sink skip` gives them up.",
        )

    def _not_now(self, chunk: _Chunk, error: Exception | None) -> Retryable:
        cause = f": {reason_of(error)}" if error else ""
        return Retryable(
            f"The append of {self._what(chunk)} to table {self.target.name} did not succeed{cause}.",
            hint="The next export checks the table first, and tries again.",
        )


def send(target: Target, chunk: _Chunk, state: TargetState) -> Exception | None:
    """Send the chunk; an error does not mean that it was not appended."""
    if missing_columns(target.name, state, chunk.columns) or not check_claim(target.name, state, chunk.claim):
        target.fit(chunk.columns, chunk.claim)
    try:
        target.append(TargetAppend(chunk.mark, state.history.head, chunk.rows, chunk.columns))
    except FloodmarkError:
        raise  # nothing was sent: the target raises our own errors only then
    except Exception as error:  # noqa: BLE001 - the target's history decides, not the error
        return error
    return None


def _landed(state: TargetState, mark: Mark) -> Landed | None:
    return next((landed for landed in state.chunks_of(mark.origin) if landed.mark.range == mark.range), None)


def target_name(text: Any, dataset: str) -> TargetName:
    """The table of a dataset: in `catalog.namespace` it has the dataset's name, `catalog.namespace.table` names it."""
    parts = text.split(".") if isinstance(text, str) else []
    if len(parts) not in (2, 3) or not all(_PART.fullmatch(part) for part in parts):
        raise InvalidSetting(
            f"table is {text!r}.",
            hint='Write "catalog.namespace" for one table per dataset, or "catalog.namespace.table".',
        )
    return TargetName(parts[0], parts[1], (parts[2:] or [dataset])[0])


def _check(settings: dict[str, Any]) -> None:
    whole_number(settings, "chunk_rows")
    target_name(settings["table"], "dataset")
    if settings["table"].count(".") > 1:
        chosen = settings.get("datasets")
        if chosen is None or len(chosen) != 1:
            raise InvalidSetting(
                f"table is {settings['table']!r}, one table, and the sink takes "
                f"{'every dataset' if chosen is None else f'{len(chosen)} datasets'}.",
                hint='Name exactly one in datasets, or write "catalog.namespace" for one table per dataset.',
            )


def _connect(engine: Engine, channel: Channel, settings: Mapping[str, Any]) -> Destination:
    return TableSink(
        target=engine.lake.target(target_name(settings["table"], channel.dataset)),
        database=engine.database,
        store_id=engine.store_id,
        dataset=channel.dataset,
        row_filter=settings.get("where"),
    )


def _probe(engine: Engine, sink: Sink) -> str:
    """The catalog is asked for each table. Only a warehouse on this machine can be tried without a commit."""
    catalog = target_name(sink.settings["table"], "dataset").catalog
    described = engine.settings.catalogs.get(catalog)
    if described is None:
        return (
            f"The catalog {catalog} is not in floodmark.toml. Whether the Spark session has it, only a delivery shows."
        )
    chosen = sink.settings["datasets"] or [one.name for one in engine.database.read(datasets.everyone)]
    there = []
    for dataset in chosen:
        name = target_name(sink.settings["table"], dataset)
        state = engine.lake.target(name).load()
        if state is not None:
            check_claim(name, state, Claim(engine.store_id, dataset, sink.settings.get("where")))
            there.append(str(name))
    warehouse = local_path(described.warehouse or "")
    if warehouse is not None:
        LocalObjects(Path(warehouse)).try_write()
    shown = f"has {', '.join(there)}" if there else "has no table of this sink yet"
    return f"The catalog {catalog} answers and {shown}."


KIND = Kind(
    name="table",
    defaults={"chunk_rows": 1_000_000},
    required=("table",),
    check=_check,
    connect=_connect,
    probe=_probe,
    pinned=("table", "chunk_rows"),
)
