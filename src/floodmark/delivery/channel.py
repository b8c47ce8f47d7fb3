"""The delivery of one channel in a tick: ask → pin → plan → ship → acknowledge → advance.

The order of the steps matters (D1 to D4 in `control.deliveries` and `control.chunks`): after a crash at any point, the
next tick, in this process or another, finds an open intent and sends exactly the same ranges.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
import uuid
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from sqlalchemy import Connection

from floodmark import faults, meters
from floodmark.clock import Clock
from floodmark.control import chunks, deliveries, quarantine, removals, sinks
from floodmark.control.chunks import Chunk, parcel_start
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Intent, Watermark, chunk_ranges
from floodmark.control.sinks import Sink
from floodmark.delivery.destination import (
    CopyingDestination,
    Delivered,
    Destination,
    Kind,
    ParallelDestination,
    Parcel,
    PreparingDestination,
    TransactionalDestination,
)
from floodmark.delivery.outcomes import Ahead, Busy, Holdings, Oversized, Refused, StoredByTask, Task
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import SCAN_ROWS_MAX, Piece, RowSource
from floodmark.errors import DivergedHistory, Permanent, Retryable
from floodmark.read import View
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import GivenUpRange

T = TypeVar("T")


# ── the tick: what its channels share ────────────────────────────────────────────────────────────────────────────────


class Stop:
    """Ends a tick after the present chunk, and a wait immediately."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Wait; false if the wait was interrupted."""
        until = self._clock.monotonic_seconds() + seconds
        while not self.is_set and (left := until - self._clock.monotonic_seconds()) > 0:
            self._clock.sleep(min(left, 0.1))
        return not self.is_set


@dataclass(slots=True)
class ExportReport:
    """What one export of a sink did."""

    sink: str
    rows: int = 0
    chunks: int = 0
    bytes: int = 0
    watermarks: dict[tuple[str, str], int] = field(default_factory=dict)
    """The watermark of each partition that had new rows, by dataset and partition."""
    blocked: str | None = None
    """Why the destination accepts nothing until a user corrects the cause."""
    errors: dict[tuple[str, str], str] = field(default_factory=dict)
    """Errors by dataset and partition; the other channels continued."""
    damaged: dict[str, str] = field(default_factory=dict)
    """Datasets of the sink whose rows cannot be committed or read, with the problem. Their new rows wait."""
    quarantined: int = 0
    """Rows that the destination refused permanently."""
    spark_jobs: int = 0
    """Spark actions that were started."""
    wait_seconds: float | None = None
    """How long to wait before the next attempt, if a delivery failed."""


def together(reports: Sequence[ExportReport]) -> ExportReport:
    """Several sinks' reports as one: sums, the lowest watermark of each partition, and every problem by sink."""
    whole = ExportReport("*")
    for report in reports:
        for figure in ("rows", "chunks", "bytes", "quarantined", "spark_jobs"):
            setattr(whole, figure, getattr(whole, figure) + getattr(report, figure))
        for key, seq in report.watermarks.items():
            whole.watermarks[key] = min(seq, whole.watermarks.get(key, seq))
        whole.damaged |= report.damaged
        for (dataset, partition), error in report.errors.items():
            whole.errors[f"{report.sink}: {dataset}", partition] = error
    blocked = [f"{report.sink}: {report.blocked}" for report in reports if report.blocked]
    whole.blocked = "; ".join(blocked) or None
    return whole


@dataclass(slots=True)
class Tick:
    """What the channels of one tick of one sink share."""

    sink: Sink
    kind: Kind
    scope: Scope
    report: ExportReport
    database: Database
    clock: Clock
    stop: Stop
    connect: Callable[[Dataset, Channel, dict[str, Any]], Destination]
    view: Callable[[str], View]
    """Reads the present view of a dataset."""
    asked: set[tuple[Channel, int]]
    """The channels whose holdings this process has already compared, each with the identity of its destination."""
    progress: Callable[[ExportReport], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def acknowledged(self, *, rows: int, bytes: int) -> None:
        with self.lock:
            self.report.rows += rows
            self.report.bytes += bytes
            self.report.chunks += 1 if rows else 0
        if self.progress is not None:
            self.progress(self.report)


# ── the channel: ask → pin → plan ────────────────────────────────────────────────────────────────────────────────────

PARALLEL_ROWS_MIN = 200_000
"""From this many rows on, Spark tasks store chunks in parallel. Fewer are faster here: a task takes time to start."""
INTENT_CHUNKS_MAX = 64
"""How many chunks are pinned at once: every acknowledgement reads all chunks of its intent."""


@dataclass(slots=True)
class ChannelTask:
    """One channel in one tick, and the snapshot of its dataset from which rows are read."""

    tick: Tick
    channel: Channel
    source: RowSource

    def refresh_up_to(self, seq: int) -> bool:
        """Whether our view includes a number. If it does not, it is read again first.

        Since this tick read it, rows may have been committed, and pinned or delivered by another exporter.
        """
        if seq > self.source.view.horizon:
            self.source = RowSource(self.source.lake, self.tick.view(self.channel.dataset))
        return seq <= self.source.view.horizon

    def connect(self, settings: dict[str, Any]) -> Destination:
        return self.tick.connect(self.source.view.dataset, self.channel, settings)

    def read(self, work: Callable[[Connection], T]) -> T:
        return self.tick.database.read(work)

    def transact(self, work: Callable[[Connection], T]) -> T:
        return self.tick.database.transact(work)


def deliver(tick: Tick, channel: Channel, source: RowSource) -> None:
    """Bring one channel up to the horizon of this tick."""
    task = ChannelTask(tick, channel, source)
    ChannelRun(task, Comparison(task)).run()


@dataclass(slots=True)
class ChannelRun:
    """One channel in one tick."""

    task: ChannelTask
    comparison: Comparison

    def run(self) -> None:
        """Deliver everything up to the horizon of this tick."""
        while not self.task.tick.stop.is_set:
            self.comparison.ask()
            intent = self._pin()
            if intent is None:
                return
            # D7: another exporter may have pinned it with a newer view than ours. Our snapshot lacks its newest rows,
            # and their chunks would be acknowledged as empty: recorded as delivered, and never sent.
            self.task.refresh_up_to(intent.range.through)
            self._fulfil(intent)

    def _pin(self) -> Intent | None:
        """D1: record what is sent, and how, before anything is sent."""
        tick, channel, view = self.task.tick, self.task.channel, self.task.source.view
        settings = {key: tick.sink.settings[key] for key in tick.kind.pinned}
        settings |= {"columns": list(view.dataset.schema.names), "where": tick.sink.settings.get("where")}
        intent_id = uuid.uuid4().hex
        faults.reach("delivery.pinning")
        intent = tick.database.transact(
            lambda c: deliveries.pin(
                c,
                channel,
                id=intent_id,
                horizon=view.horizon,
                settings=settings,
                start=tick.scope.start(channel),
                rows_max=INTENT_CHUNKS_MAX * tick.sink.settings["chunk_rows"],
                uncut=self.comparison.fixed,
                removals_seen=view.removals,
                now=tick.clock.now(),
            ),
            landed=lambda c: deliveries.open_intent(c, channel) is not None,
        )
        faults.reach("delivery.pinned")
        return intent

    def _fulfil(self, intent: Intent) -> None:
        """Ship the intent's pending chunks in order."""
        destination = self.task.connect(intent.settings)
        planned, rows = self.task.transact(lambda c: self._plan(c, intent))
        faults.reach("delivery.planned")
        pending = [chunk for chunk in planned if chunk.state == "pending"]
        shipment = Shipment(self.task, self.comparison, intent, destination)
        if not pending:
            self.task.transact(lambda c: chunks.advance(c, intent))
        elif isinstance(destination, CopyingDestination):
            shipment.copy(destination, pending)
        elif isinstance(destination, ParallelDestination) and rows >= PARALLEL_ROWS_MIN and len(pending) > 1:
            task = destination.task(self.task.channel)
            if task.is_local and not self.task.source.lake.tasks_here:  # it would write to the disks of other machines
                shipment.in_turn(pending)
            else:
                shipment.in_parallel(task, pending)
        else:
            shipment.in_turn(pending)

    def _plan(self, connection: Connection, intent: Intent) -> tuple[list[Chunk], int]:
        """The intent's chunks, and about how many rows it has."""
        found = deliveries.stretches(connection, self.task.channel, intent.range)
        recorded = chunks.of_intent(connection, intent)
        if not recorded:
            fixed = [item for item in self.comparison.fixed if intent.range.intersect(item) == item]
            rows_max = intent.settings["chunk_rows"]
            ranges = chunk_ranges(intent.range, found, rows_max=rows_max, fixed=fixed)
            recorded = chunks.plan(connection, intent, ranges)
        return recorded, sum(stretch.rows for stretch in found)


# ── the shipment of one pinned intent: ship → acknowledge → advance ──────────────────────────────────────────────────
# Poison. A chunk that the destination refuses is split repeatedly, until each refused row is a chunk of its own; each
# split is recorded before one of its halves is sent. A single refused row is given up, and quarantined. But if *no* row
# of a chunk of more than a hundred is accepted, the rows are not the cause: nothing is given up, and the sink is
# blocked. So single refused rows wait (`_waiting`) until another row of their chunk is accepted.


BLAME_ROWS_MIN = 100
"""If every row of a chunk larger than this is refused, the cause is the destination, not the rows."""


@dataclass(slots=True)
class Shipment:
    """One intent's chunks."""

    task: ChannelTask
    comparison: Comparison
    intent: Intent
    destination: Destination
    _waiting: list[tuple[Chunk, Piece, str]] = field(default_factory=list)
    """Single refused rows of a large chunk of which no row has been accepted yet."""

    @property
    def tick(self) -> Tick:
        return self.task.tick

    @property
    def channel(self) -> Channel:
        return self.task.channel

    def copy(self, destination: CopyingDestination, pending: Sequence[Chunk]) -> None:
        """The destination reads the rows from the lake itself."""
        place = self.task.source.place(self.intent)
        for chunk in pending:
            if self.tick.stop.is_set:
                return
            copied = destination.copy(self.intent, chunk.range, place)
            self.acknowledge(chunk, copied.tally, bytes=copied.bytes)

    def in_parallel(self, task: Task, pending: Sequence[Chunk]) -> None:
        """Spark tasks store the chunks; only their tallies arrive here."""
        place = self.task.source.place(self.intent)
        by_range = {chunk.range: chunk for chunk in pending}
        stored = self.task.source.lake.each_range(
            place.table,
            snapshot=place.snapshot,
            ranges=list(by_range),
            columns=place.columns.names,
            partition_values=None if place.partition_values is None else dict(place.partition_values),
            row_filter=place.row_filter,
            work=StoredByTask(task),
            schema=self.task.source.view.dataset.schema,
        )
        for span, tally, result in stored:
            if result.get("oversized"):
                self._halve(by_range[span], self.task.source.rows(self.intent, span))
            else:
                self.acknowledge(by_range[span], tally, bytes=int(result.get("bytes", 0)))

    def in_turn(self, pending: Sequence[Chunk]) -> None:
        """One chunk after another; while one is sent, the next is fetched and prepared."""
        groups = list(_scans(pending, rows_max=SCAN_ROWS_MAX, chunk_rows=self.intent.settings["chunk_rows"]))
        with contextlib.closing(self._fetched(groups)) as fetched:
            for group, rows in fetched:
                self._ship_group(deque((chunk, rows.within(chunk.range)) for chunk in group))
                if self.tick.stop.is_set:
                    return
        if self._waiting:
            raise self._nothing_gets_through()

    def _ship_group(self, left: deque[tuple[Chunk, Piece]]) -> None:
        with Preparation(self.destination) as ahead:
            while left and not self.tick.stop.is_set:
                chunk, piece = left.popleft()
                if left:
                    ahead.prepare(self.channel, *left[0])
                left.extendleft(reversed(self._ship(chunk, piece)))

    def _fetched(self, groups: Sequence[list[Chunk]]) -> Generator[tuple[list[Chunk], Piece]]:
        """Each group of chunks with its rows; the next one's are fetched while this one's are shipped."""

        def fetch(group: list[Chunk]) -> Piece:
            return self.task.source.rows(self.intent, SequenceRange(group[0].range.after, group[-1].range.through))

        if len(groups) == 1:
            yield groups[0], fetch(groups[0])
            return
        with ThreadPoolExecutor(1, thread_name_prefix="fetch") as pool:
            coming = pool.submit(fetch, groups[0])
            for group, following in itertools.zip_longest(groups, groups[1:]):
                rows = coming.result()
                if following is not None:
                    coming = pool.submit(fetch, following)
                yield group, rows

    def _ship(self, chunk: Chunk, piece: Piece) -> list[tuple[Chunk, Piece]]:
        """Ship one chunk; returns what it was split into, if it was."""
        if self._waiting and chunk.root != self._waiting[0][0].root:
            raise self._nothing_gets_through()
        if piece.rows == 0:
            self.acknowledge(chunk, Tally(), bytes=0)
        elif (there := self.comparison.there) is not None and chunk.range.after < (there.end or 0):
            return self._take_over(chunk, piece, there)
        elif (parcel := self._parcel(chunk, piece)) is not None:  # None: another exporter has delivered it
            return self._send(chunk, piece, parcel)
        return []

    def _send(self, chunk: Chunk, piece: Piece, parcel: Parcel) -> list[tuple[Chunk, Piece]]:
        try:
            self.hand_over(chunk, parcel)
        except Oversized:
            return self._halve(chunk, piece)
        except Ahead as error:
            end = error.holdings.end or 0
            if parcel.range.after < end <= chunk.range.after:
                # It ends inside the part before the chunk's own rows: send the same chunk from there on.
                start = Watermark(parcel.range.after, parcel.before)
                self.comparison.end = self.comparison.compared(error.holdings, since=start)
                return [(chunk, piece)]
            self.comparison.there = self.comparison.proved(chunk, error.holdings)
            return self._take_over(chunk, piece, self.comparison.there)
        except DivergedHistory:
            # This attempt may be old: another exporter may have delivered the chunk, and its rows may be gone.
            if self._is_pending(chunk):
                raise
        except Refused as error:
            if piece.rows > 1:
                return self._halve(chunk, piece)
            self._refused(chunk, piece, error.words)
        else:
            self._give_up_waiting()
        return []

    def hand_over(self, chunk: Chunk, parcel: Parcel) -> None:
        if isinstance(self.destination, TransactionalDestination):
            self._deliver_within(self.destination, chunk, parcel)
            return
        delivered = self._deliver_patiently(parcel)
        self.acknowledge(chunk, parcel.tally, bytes=delivered.bytes)

    def _deliver_within(self, destination: TransactionalDestination, chunk: Chunk, parcel: Parcel) -> None:
        """Effect and acknowledgement in one transaction; the acknowledgement is the guard, so it comes first."""

        def work(connection: Connection) -> Delivered | None:
            now = self.tick.clock.now()
            if not chunks.acknowledge(connection, self.intent, chunk.range, parcel.tally, now=now):
                return None
            delivered = destination.deliver_within(connection, parcel)
            faults.reach("delivery.shipped")
            return delivered

        delivered = self.task.transact(work)
        faults.reach("delivery.acknowledged")
        if delivered is not None:
            self.tick.acknowledged(rows=parcel.tally.rows, bytes=delivered.bytes)

    def _deliver_patiently(self, parcel: Parcel) -> Delivered:
        """Wait here if the destination asks for a short wait; a longer one is left to the next tick."""
        left = float(self.tick.sink.settings.get("wait_seconds_max", 0))
        while True:
            try:
                return self.destination.deliver(parcel)
            except Busy as error:
                wait = error.retry_after_seconds
                if not wait or wait > left or not self.tick.stop.wait(wait):
                    raise
                meters.count(meters.DELIVERY_RETRIES, self.tick.sink.name)
                left -= wait

    def _parcel(self, chunk: Chunk, piece: Piece) -> Parcel | None:
        parcel = Parcel(self.channel, chunk.range, piece.table, piece.sequence, piece.ids, piece.tally)
        if not self.tick.kind.contiguous:
            return parcel
        begin = self.task.read(lambda c: parcel_start(c, self.channel))
        if begin.watermark > chunk.range.after:
            return None
        waiting = sum((item.tally for _, item, _ in self._waiting), Tally())
        after, before, given_up = begin.after, begin.before, begin.given_up + waiting
        end = self.comparison.end
        if end is not None and after < end.seq <= chunk.range.after:
            after, before, given_up = end.seq, end.tally, before + given_up - end.tally
        # The range before the chunk's own rows is empty or given up, so one range describes it.
        return replace(
            parcel,
            range=SequenceRange(after, chunk.range.through),
            before=before,
            given_up=GivenUpRange(SequenceRange(after, chunk.range.after), given_up) if given_up.rows else None,
        )

    def acknowledge(self, chunk: Chunk, tally: Tally, *, bytes: int) -> None:
        faults.reach("delivery.shipped")
        now = self.tick.clock.now()
        ours = self.task.transact(lambda c: chunks.acknowledge(c, self.intent, chunk.range, tally, now=now))
        faults.reach("delivery.acknowledged")
        if ours:
            self.tick.acknowledged(rows=tally.rows, bytes=bytes)

    # ── rows that are refused, and rows that the destination already has ─────────────────────────────────────────

    def _halve(self, chunk: Chunk, piece: Piece) -> list[tuple[Chunk, Piece]]:
        """D3: the halves are recorded before one of them is sent. Otherwise a retry would split elsewhere."""
        halves = self._split(chunk, piece, at=piece.middle())
        faults.reach("delivery.split")
        return halves

    def _split(self, chunk: Chunk, piece: Piece, *, at: int) -> list[tuple[Chunk, Piece]]:
        halves = self.task.transact(lambda c: chunks.split(c, self.intent, chunk, at=at, rows=piece.rows))
        return [(half, piece.within(half.range)) for half in halves or ()]

    def _refused(self, chunk: Chunk, piece: Piece, words: str) -> None:
        root = chunk.root
        if (
            root is not None
            and root.rows > BLAME_ROWS_MIN
            and not self.task.read(lambda c: chunks.root_was_accepted(c, self.intent, root))
        ):
            self._waiting.append((chunk, piece, words))
        else:
            self._give_up(chunk, piece, words)

    def _give_up_waiting(self) -> None:
        for chunk, piece, words in self._waiting:
            self._give_up(chunk, piece, words)
        self._waiting.clear()

    def _give_up(self, chunk: Chunk, piece: Piece, words: str) -> None:
        now = self.tick.clock.now()
        rows = piece.one_by_one()
        ours = self.task.transact(lambda c: chunks.give_up(c, self.intent, chunk.range, rows, reason=words, now=now))
        faults.reach("delivery.given_up")
        if ours:
            with self.tick.lock:
                self.tick.report.quarantined += len(rows)

    def _nothing_gets_through(self) -> Permanent:
        words = self._waiting[-1][2].rstrip(".")
        return Permanent(
            f"The destination refuses all {len(self._waiting)} rows of {self.channel.dataset!r}: {words}.",
            hint="None of them was given up. Correct the destination and export again, or give the chunk up with "
            "`floodmark sink skip`.",
        )

    def _take_over(self, chunk: Chunk, piece: Piece, holdings: Holdings) -> list[tuple[Chunk, Piece]]:
        """Acknowledge a chunk that the destination already has. If it has only a part, the rest remains."""
        end = holdings.end or 0
        if end < chunk.range.through:
            return self._split(chunk, piece, at=end)
        missing = [row for row in piece.one_by_one() if holdings.never_got(row.seq)] if holdings.given_up else []
        now = self.tick.clock.now()

        def work(connection: Connection) -> bool:
            ours = chunks.acknowledge(connection, self.intent, chunk.range, piece.tally, now=now)
            if ours:  # rows that it counts but never received are quarantined again
                quarantine.hold_given_up(connection, self.channel, missing, reason=GIVEN_UP_BEFORE, now=now)
            return ours

        if self.task.transact(work):
            with self.tick.lock:
                self.tick.report.quarantined += len(missing)
            self.tick.acknowledged(rows=piece.tally.rows - len(missing), bytes=0)
        return []

    def _is_pending(self, chunk: Chunk) -> bool:
        found = self.task.read(lambda c: chunks.of_intent(c, self.intent))
        return any(item.range == chunk.range and item.state == "pending" for item in found)


class Preparation(contextlib.ExitStack):
    """Prepares the next chunk while this one is sent, if the destination supports it."""

    def __init__(self, destination: Destination) -> None:
        super().__init__()
        self._destination = destination
        self._pool: ThreadPoolExecutor | None = None

    def prepare(self, channel: Channel, chunk: Chunk, piece: Piece) -> None:
        if not isinstance(self._destination, PreparingDestination) or piece.rows == 0:
            return
        if self._pool is None:
            self._pool = self.enter_context(ThreadPoolExecutor(1, thread_name_prefix="prepare"))
        # An error there is ignored: `deliver` raises it again.
        self._pool.submit(
            self._destination.prepare,
            Parcel(channel, chunk.range, piece.table, piece.sequence, piece.ids, Tally()),
        )


def _scans(pending: Sequence[Chunk], *, rows_max: int, chunk_rows: int) -> Iterator[list[Chunk]]:
    """Neighbouring chunks that share one scan of the lake."""
    count = max(1, rows_max // chunk_rows)
    group: list[Chunk] = []
    for chunk in pending:
        if group and (len(group) == count or group[-1].range.through != chunk.range.after):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


# ── what the destination already has ─────────────────────────────────────────────────────────────────────────────────
# Compares our record of a channel with what its destination reports that it has.
#
# This is needed if our record is lost or may be outdated: the destination then has the newer record, provided that its
# totals equal ours. If they differ, the histories diverged, and nothing more may be sent.


GIVEN_UP_BEFORE = "It was given up before; the destination never received it."
QUARANTINE_ROWS = 5_000
"""How many rows are quarantined in one transaction."""


@dataclass(slots=True)
class Comparison:
    """The record of one channel and that of its destination, in one tick."""

    task: ChannelTask
    fixed: tuple[SequenceRange, ...] = ()
    """Ranges beyond the watermark that the destination has under their own names: each is one chunk, unchanged."""
    end: Watermark | None = None
    """The end of the destination's ledger, if it was compared: parcels do not begin below it."""
    there: Holdings | None = None
    """What the destination has beyond our record, after the comparison."""

    @property
    def tick(self) -> Tick:
        return self.task.tick

    @property
    def channel(self) -> Channel:
        return self.task.channel

    def ask(self) -> None:
        """Ask the destination what it has: our own record may be lost or outdated."""
        mark, opened = self.task.read(
            lambda c: (deliveries.watermark(c, self.channel), deliveries.open_intent(c, self.channel))
        )
        destination = self.task.connect({} if opened is None else opened.settings)
        if mark is not None and (self.channel, id(destination)) in self.tick.asked:
            return
        at = self.tick.scope.start(self.channel) if mark is None else mark.seq
        holdings = destination.held(self.channel, after=at)
        if holdings.end is not None and holdings.end > at and opened is None:
            self._fast_forward(holdings, mark=mark, at=at)
        elif mark is None and opened is None and holdings.ranges:
            holdings = self._behind_removals(holdings, at=at)
        self.fixed = holdings.ranges
        furthest = max((item.through for item in holdings.ranges), default=0)
        if not self.task.refresh_up_to(furthest):
            raise self._diverged(furthest)
        self.tick.asked.add((self.channel, id(destination)))

    def _fast_forward(self, holdings: Holdings, *, mark: Watermark | None, at: int) -> None:
        """Continue after what the destination has. Rows that it never received are quarantined here again."""
        to = self.compared(holdings, since=mark or Watermark(at, Tally()))
        columns = list(self.task.source.view.dataset.schema.names)
        pinned = {"columns": columns, "where": self.tick.sink.settings.get("where")}
        # First quarantine, then advance: in the other order a crash in between would leave rows that no record names.
        for span in holdings.given_up:
            inside = span.intersect(SequenceRange(at, to.seq)) if to.seq > at else None
            if inside is not None:
                self._quarantine(inside, pinned)
        self.task.transact(lambda c: deliveries.fast_forward(c, self.channel, seen=mark, to=to))

    def _quarantine(self, span: SequenceRange, pinned: dict[str, Any]) -> None:
        """Quarantine the rows of a range in parts: it may have any number of rows."""
        found = self.task.read(lambda c: deliveries.stretches(c, self.channel, span))
        for part in chunk_ranges(span, found, rows_max=QUARANTINE_ROWS):
            rows = self.task.source.rows(Intent("", self.channel, part, pinned), part).one_by_one()
            hold = partial(quarantine.hold_given_up, channel=self.channel, rows=rows, reason=GIVEN_UP_BEFORE)
            self.task.transact(partial(hold, now=self.tick.clock.now()))

    def _behind_removals(self, holdings: Holdings, *, at: int) -> Holdings:
        """Continue after removed rows: they were removed because this sink had them (U10), and cannot be compared.

        They are in complete objects: a watermark is never inside one.
        """
        proved = self.task.read(lambda c: removals.proved_delivered(c, self.channel))
        end = max([proved, *(item.through for item in holdings.ranges if item.after < proved)])
        if proved <= at:
            return holdings
        self._fast_forward(Holdings(end=end), mark=None, at=at)
        return Holdings(tuple(item for item in holdings.ranges if item.after >= end))

    def compared(self, holdings: Holdings, *, since: Watermark) -> Watermark:
        """The destination's end, if its totals up to there equal ours; otherwise the histories diverged."""
        end = holdings.end or 0
        if not self.task.refresh_up_to(end):
            raise self._diverged(end)
        tallies = [since.tally + counted for counted in self._counted(SequenceRange(since.seq, end))]
        if holdings.tally is not None and holdings.tally not in tallies:
            raise self._diverged(end, theirs=holdings.tally, ours=tallies[0])
        return Watermark(end, holdings.tally if holdings.tally is not None else tallies[0])

    def _counted(self, within: SequenceRange) -> list[Tally]:
        """What this store counts in a range: the rows in the lake and those that were removed, at one instant.

        Rows that were removed before this sink was added were never delivered by it (U19), but an earlier sink may have
        delivered them. So there is one sum for each sink of this destination.
        """
        row_filter = self.tick.sink.settings.get("where")

        def removed_rows(connection: Connection) -> tuple[bool, int, list[Tally]]:
            return (
                removals.under_way(connection, self.channel, after=within.after),
                removals.moment(connection, self.channel.dataset),
                [
                    removals.removed_within(
                        connection,
                        replace(self.channel, sink=sink.instance),
                        within,
                        condition=row_filter,
                        added=sink.number,
                    )
                    for sink in sinks.same_destination(connection, self.channel.sink)
                ],
            )

        before: tuple[bool, int, list[Tally]] = self.task.read(removed_rows)
        there = self.task.source.afresh().totals(self.channel, within, row_filter=row_filter)
        # U12: rows are removed between `planned` and `removed`. If no removal ran meanwhile, each row was counted once.
        if before[0] or self.task.read(removed_rows) != before:
            raise Retryable(f"Rows of {self.channel.dataset!r} are being removed now.", hint="Export again.")
        return [there + removed for removed in before[2]]

    def _diverged(self, end: int, *, theirs: Tally | None = None, ours: Tally | None = None) -> DivergedHistory:
        where = f"{self.channel.dataset!r} ({self.channel.partition})"
        if theirs is None or ours is None:
            difference = f"has {where} up to {end}, but this store ends at {self.task.source.view.horizon}"
        else:
            difference = f"counts {theirs.rows} rows of {where} up to {end}, but this store counts {ours.rows}"
            difference += "" if theirs.rows != ours.rows else ", with another checksum"
        return DivergedHistory(
            f"The destination {difference}: the histories diverged.",
            hint="Was this store restored from a backup, or copied? Deliver to a new place: another prefix, or "
            "another `origin` at the hub (`floodmark sink add … --start now` for new rows only).",
        )

    def proved(self, chunk: Chunk, holdings: Holdings) -> Holdings:
        """The destination has more than we recorded. If its totals equal ours, what it has counts as delivered."""
        mark = self.task.read(lambda c: deliveries.watermark(c, self.channel))
        if mark is None or (holdings.end or 0) <= chunk.range.after:
            raise self._diverged(holdings.end or 0)
        self.compared(holdings, since=mark)
        return holdings
