"""One channel's way through a tick: ask → pin → plan → ship → acknowledge → advance.

The order of every step is the point (D1 to D4 in `control.deliveries`): whatever dies in between, the next tick,
by this process or another, finds an open intent and sends exactly the same ranges.

Poison. A chunk that the destination refuses is split, again and again, until the refused rows stand alone; each split
is recorded before a half of it leaves. A lone refused row is given up: settled, with the row in quarantine. But
if *no* row of a chunk of more than a hundred gets through, it is not the rows: nothing is given up, and the sink is
blocked. So lone refused rows wait (`_waiting`) until one of their neighbours is accepted.
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
from typing import Any

from sqlalchemy import Connection

from floodmark import faults
from floodmark.clock import Clock
from floodmark.control import deliveries, removals
from floodmark.control.chunking import chunk_ranges
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Chunk, GivenUp, Intent, Watermark
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
from floodmark.delivery.report import ExportReport
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import SCAN_ROWS_MAX, Piece, RowSource
from floodmark.errors import DivergedHistory, Permanent, Retryable
from floodmark.read import View
from floodmark.rows.jsontext import canonical_json
from floodmark.sequence import SequenceRange, Tally

PARALLEL_ROWS_MIN = 200_000
"""From so many rows on, tasks of Spark's store chunks at once. Fewer are quicker here: a task costs time to start."""
INTENT_CHUNKS_MAX = 64
"""How many chunks are pinned at once: what is acknowledged is looked through with every acknowledgement."""
GIVEN_UP_BEFORE = "It was given up before; the destination never got it."
BLAME_ROWS_MIN = 100
"""If every row of a chunk larger than this is refused, it is the destination that is wrong."""


class Stop:
    """Ends a tick after the chunk that is under way, and a wait at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._event = threading.Event()

    def set(self) -> None:
        self._event.set()

    @property
    def is_set(self) -> bool:
        return self._event.is_set()

    def wait(self, seconds: float) -> bool:
        """Let time pass; false if the wait was broken off."""
        until = self._clock.monotonic_seconds() + seconds
        while not self.is_set and (left := until - self._clock.monotonic_seconds()) > 0:
            self._clock.sleep(min(left, 0.1))
        return not self.is_set


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
    look: Callable[[str], View]
    """A dataset as it is now."""
    asked: set[tuple[Channel, int]]
    """The channels, with the identity of the destination that this process has asked what it holds of them."""
    progress: Callable[[ExportReport], None] | None = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def settled(self, *, rows: int, bytes: int) -> None:
        with self.lock:
            self.report.rows += rows
            self.report.bytes += bytes
            self.report.chunks += 1 if rows else 0
        if self.progress is not None:
            self.progress(self.report)


@dataclass(slots=True)
class ChannelRun:
    """One channel in one tick."""

    tick: Tick
    channel: Channel
    source: RowSource
    _fixed: tuple[SequenceRange, ...] = ()
    """What the destination holds beyond the watermark under names of its own: those ranges are chunks as they are."""
    _waiting: list[tuple[Chunk, Piece, str]] = field(default_factory=list)
    """Lone refused rows of a large chunk of which nothing has been accepted yet."""
    _end: Watermark | None = None
    """Where the destination's ledger ends, if that was compared: parcels do not reach back below it."""
    _there: Holdings | None = None
    """What the destination turned out to hold beyond our record, once it has been compared."""

    def run(self) -> None:
        """Deliver everything up to the horizon of this tick."""
        while not self.tick.stop.is_set:
            self._ask()
            intent = self._pin()
            if intent is None:
                return
            # D7: it may be another exporter's, pinned after a later look than ours. Our snapshot lacks its newest rows,
            # and their chunks would be settled as empty: delivered for ever, and never sent.
            self._look_up_to(intent.range.through)
            self._fulfil(intent)

    # ── before anything leaves ───────────────────────────────────────────────────────────────────────────────────

    def _ask(self) -> None:
        """Ask the destination what it holds: where our own record is lost or may be an old one, it knows better."""
        mark, opened = self._read(
            lambda c: (deliveries.watermark(c, self.channel), deliveries.open_intent(c, self.channel))
        )
        destination = self._connect({} if opened is None else opened.settings)
        if mark is not None and (self.channel, id(destination)) in self.tick.asked:
            return
        at = self.tick.scope.start(self.channel) if mark is None else mark.seq
        held = destination.held(self.channel, after=at)
        if held.end is not None and held.end > at and opened is None:
            self._fast_forward(held, mark=mark, at=at)
        elif mark is None and opened is None and held.ranges:
            held = self._behind_removals(held, at=at)
        self._fixed = held.ranges
        furthest = max((item.through for item in held.ranges), default=0)
        if not self._look_up_to(furthest):
            raise self._diverged(furthest)
        self.tick.asked.add((self.channel, id(destination)))

    def _look_up_to(self, seq: int) -> bool:
        """Whether our look reaches up to a number; another look is taken first if it does not.

        Since this tick looked, rows may have been committed, and pinned or delivered by another exporter.
        """
        if seq > self.source.view.horizon:
            self.source = RowSource(self.source.lake, self.tick.look(self.channel.dataset))
        return seq <= self.source.view.horizon

    def _fast_forward(self, held: Holdings, *, mark: Watermark | None, at: int) -> None:
        """Go on behind what the destination has. What it never got, because it was given up, is held here again."""
        to = self._compared(held, since=mark or Watermark(at, Tally()))
        pinned = {"columns": list(self.source.view.dataset.schema.names), "where": self.tick.sink.settings.get("where")}
        missing: list[GivenUp] = []
        for seq in sorted(one for one in held.given_up if at < one <= to.seq):
            span = SequenceRange(seq - 1, seq)
            missing += given_up_rows(self.source.rows(Intent("", self.channel, span, pinned), span))
        now = self.tick.clock.now()

        def work(connection: Connection) -> None:
            if deliveries.fast_forward(connection, self.channel, seen=mark, to=to):
                deliveries.hold(connection, self.channel, missing, reason=GIVEN_UP_BEFORE, now=now)

        self._transact(work)

    def _behind_removals(self, held: Holdings, *, at: int) -> Holdings:
        """Go on behind rows that are gone: they went because this sink had them (U10), and cannot be compared any more.

        They lie in whole objects: a watermark never stands inside of one.
        """
        proved = self._read(lambda c: removals.proved_delivered(c, self.channel))
        end = max([proved, *(item.through for item in held.ranges if item.after < proved)])
        if proved <= at:
            return held
        self._fast_forward(Holdings(end=end), mark=None, at=at)
        return Holdings(tuple(item for item in held.ranges if item.after >= end))

    def _compared(self, held: Holdings, *, since: Watermark) -> Watermark:
        """The destination's end, if what it counts up to there is what we count; else the histories have parted."""
        end = held.end or 0
        if not self._look_up_to(end):
            raise self._diverged(end)
        within = SequenceRange(since.seq, end)
        tally = since.tally + self._counted(within)
        if held.tally is not None and held.tally != tally:
            raise self._diverged(end, theirs=held.tally, ours=tally)
        return Watermark(end, tally)

    def _counted(self, within: SequenceRange) -> Tally:
        """What this store counts in a range: the rows in the lake and those that were removed, at one instant."""

        def gone(connection: Connection) -> tuple[bool, int, Tally]:
            return (
                removals.under_way(connection, self.channel, after=within.after),
                removals.moment(connection, self.channel.dataset),
                deliveries.removed_within(connection, self.channel, within),
            )

        before: tuple[bool, int, Tally] = self._read(gone)
        there = self.source.afresh().totals(self.channel, within, keep=self.tick.sink.settings.get("where"))
        # U12: rows go between `planned` and `removed`. If nothing of that happened meanwhile, each row counted once.
        if before[0] or self._read(gone) != before:
            raise Retryable(f"Rows of {self.channel.dataset!r} are being removed just now.", hint="Export again.")
        return there + before[2]

    def _diverged(self, end: int, *, theirs: Tally | None = None, ours: Tally | None = None) -> DivergedHistory:
        where = f"{self.channel.dataset!r} ({self.channel.partition})"
        if theirs is None or ours is None:
            said = f"has {where} up to {end}, and this store ends at {self.source.view.horizon}"
        else:
            said = f"counts {theirs.rows} rows of {where} up to {end}, and this store {ours.rows}"
            said += "" if theirs.rows != ours.rows else " others"
        return DivergedHistory(
            f"The destination {said}: their histories have parted.",
            hint="Was this store restored from a backup, or copied? Deliver to a new place: another prefix, or "
            "another `origin` at the hub (`floodmark sink add … --start now` for what is new only).",
        )

    def _pin(self) -> Intent | None:
        """D1: what leaves, and how, is settled before anything does."""
        tick, view = self.tick, self.source.view
        settings = {key: tick.sink.settings[key] for key in tick.kind.pinned}
        settings |= {"columns": list(view.dataset.schema.names), "where": tick.sink.settings.get("where")}
        intent_id = uuid.uuid4().hex
        intent = tick.database.transact(
            lambda c: deliveries.pin(
                c,
                self.channel,
                id=intent_id,
                horizon=view.horizon,
                settings=settings,
                start=tick.scope.start(self.channel),
                rows_max=INTENT_CHUNKS_MAX * tick.sink.settings["chunk_rows"],
                uncut=self._fixed,
                removals_seen=view.removals,
                now=tick.clock.now(),
            ),
            landed=lambda c: deliveries.open_intent(c, self.channel) is not None,
        )
        faults.reach("delivery.pinned")
        return intent

    def _plan(self, connection: Connection, intent: Intent) -> tuple[list[Chunk], int]:
        """The intent's chunks, and about how many rows it has."""
        found = deliveries.stretches(connection, self.channel, intent.range)
        recorded = deliveries.chunks_of(connection, intent)
        if not recorded:
            fixed = [item for item in self._fixed if intent.range.intersect(item) == item]
            rows_max = intent.settings["chunk_rows"]
            ranges = chunk_ranges(intent.range, found, rows_max=rows_max, fixed=fixed)
            recorded = deliveries.plan(connection, intent, ranges)
        return recorded, sum(stretch.rows for stretch in found)

    # ── shipping ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _fulfil(self, intent: Intent) -> None:
        """Ship the intent's pending chunks in order."""
        destination = self._connect(intent.settings)
        chunks, rows = self._transact(lambda c: self._plan(c, intent))
        faults.reach("delivery.planned")
        pending = [chunk for chunk in chunks if chunk.state == "pending"]
        if not pending:
            self._transact(lambda c: deliveries.advance(c, intent))
        elif isinstance(destination, CopyingDestination):
            self._copy(intent, destination, pending)
        elif isinstance(destination, ParallelDestination) and rows >= PARALLEL_ROWS_MIN and len(pending) > 1:
            self._ship_in_parallel(intent, destination.task(self.channel), pending)
        else:
            self._ship_in_turn(intent, destination, pending)

    def _copy(self, intent: Intent, destination: CopyingDestination, pending: Sequence[Chunk]) -> None:
        place = self.source.place(intent)
        for chunk in pending:
            if self.tick.stop.is_set:
                return
            copied = destination.copy(intent, chunk.range, place)
            self._acknowledge(intent, chunk, copied.tally, bytes=copied.bytes)

    def _ship_in_parallel(self, intent: Intent, task: Task, pending: Sequence[Chunk]) -> None:
        """Tasks of Spark's store the chunks; here only their tallies arrive."""
        place = self.source.place(intent)
        by_range = {chunk.range: chunk for chunk in pending}
        stored = self.source.lake.each_range(
            place.table,
            snapshot=place.snapshot,
            ranges=list(by_range),
            columns=place.columns.names,
            where=None if place.where is None else dict(place.where),
            keep=place.keep,
            work=StoredByTask(task),
            schema=self.source.view.dataset.schema,
        )
        for span, tally, result in stored:
            if result.get("oversized"):
                self._halve(intent, by_range[span], self.source.rows(intent, span))
            else:
                self._acknowledge(intent, by_range[span], tally, bytes=int(result.get("bytes", 0)))

    def _ship_in_turn(self, intent: Intent, destination: Destination, pending: Sequence[Chunk]) -> None:
        groups = list(_scans(pending, rows_max=SCAN_ROWS_MAX, chunk_rows=intent.settings["chunk_rows"]))
        with contextlib.closing(self._looked_up(intent, groups)) as looked_up:
            for group, rows in looked_up:
                self._ship_group(intent, destination, deque((chunk, rows.within(chunk.range)) for chunk in group))
                if self.tick.stop.is_set:
                    return
        if self._waiting:
            raise self._nothing_gets_through()

    def _ship_group(self, intent: Intent, destination: Destination, left: deque[tuple[Chunk, Piece]]) -> None:
        with _Ahead(destination) as ahead:
            while left and not self.tick.stop.is_set:
                chunk, piece = left.popleft()
                if left:
                    ahead.prepare(self.channel, *left[0])
                left.extendleft(reversed(self._ship(intent, destination, chunk, piece)))

    def _looked_up(self, intent: Intent, groups: Sequence[list[Chunk]]) -> Generator[tuple[list[Chunk], Piece]]:
        """Each group of chunks with its rows; the next one's are fetched while this one's are shipped."""

        def fetch(group: list[Chunk]) -> Piece:
            return self.source.rows(intent, SequenceRange(group[0].range.after, group[-1].range.through))

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

    def _ship(self, intent: Intent, destination: Destination, chunk: Chunk, piece: Piece) -> list[tuple[Chunk, Piece]]:
        """Ship one chunk; returns what it was split into, if it was."""
        if self._waiting and chunk.root != self._waiting[0][0].root:
            raise self._nothing_gets_through()
        if piece.rows == 0:
            self._acknowledge(intent, chunk, Tally(), bytes=0)
        elif self._there is not None and chunk.range.after < (self._there.end or 0):
            return self._take_over(intent, chunk, piece, self._there)
        elif (parcel := self._parcel(chunk, piece)) is not None:  # None: another exporter has settled it
            return self._send(intent, destination, chunk, piece, parcel)
        return []

    def _send(
        self, intent: Intent, destination: Destination, chunk: Chunk, piece: Piece, parcel: Parcel
    ) -> list[tuple[Chunk, Piece]]:
        try:
            self._hand_over(intent, destination, chunk, parcel)
        except Oversized:
            return self._halve(intent, chunk, piece)
        except Ahead as error:
            end = error.holdings.end or 0
            if parcel.range.after < end <= chunk.range.after:
                # It ends inside what the parcel reached back over: the same chunk, from there on.
                start = Watermark(self.tick.scope.start(self.channel), Tally())
                self._end = self._compared(error.holdings, since=start)
                return [(chunk, piece)]
            self._there = self._proved(chunk, error.holdings)
            return self._take_over(intent, chunk, piece, self._there)
        except DivergedHistory:
            # Held in hands for long: another exporter has delivered it since, and its rows may be pruned here by now.
            if self._is_pending(intent, chunk):
                raise
        except Refused as error:
            if piece.rows > 1:
                return self._halve(intent, chunk, piece)
            self._refused(intent, chunk, piece, error.words)
        else:
            self._give_up_waiting(intent)
        return []

    def _hand_over(self, intent: Intent, destination: Destination, chunk: Chunk, parcel: Parcel) -> None:
        if isinstance(destination, TransactionalDestination):
            self._deliver_within(intent, destination, chunk, parcel)
            return
        delivered = self._deliver_patiently(destination, parcel)
        self._acknowledge(intent, chunk, parcel.tally, bytes=delivered.bytes)

    def _deliver_within(
        self, intent: Intent, destination: TransactionalDestination, chunk: Chunk, parcel: Parcel
    ) -> None:
        """Effect and acknowledgement in one transaction; the acknowledgement is the guard, so it comes first."""

        def work(connection: Connection) -> Delivered | None:
            now = self.tick.clock.now()
            if not deliveries.acknowledge(connection, intent, chunk.range, parcel.tally, now=now):
                return None
            delivered = destination.deliver_within(connection, parcel)
            faults.reach("delivery.shipped")
            return delivered

        delivered = self._transact(work)
        faults.reach("delivery.acknowledged")
        if delivered is not None:
            self.tick.settled(rows=parcel.tally.rows, bytes=delivered.bytes)

    def _deliver_patiently(self, destination: Destination, parcel: Parcel) -> Delivered:
        """A short wait that the destination asks for is waited out here; a longer one is left to the next tick."""
        left = float(self.tick.sink.settings.get("wait_seconds_max", 0))
        while True:
            try:
                return destination.deliver(parcel)
            except Busy as error:
                wait = error.retry_after_seconds
                if not wait or wait > left or not self.tick.stop.wait(wait):
                    raise
                left -= wait

    def _parcel(self, chunk: Chunk, piece: Piece) -> Parcel | None:
        parcel = Parcel(self.channel, chunk.range, piece.table, piece.sequence, piece.ids, piece.tally)
        if not self.tick.kind.contiguous:
            return parcel
        waiting = {int(item.sequence[0].as_py()): item.tally for _, item, _ in self._waiting}
        reach, mark = self._read(
            lambda c: (deliveries.reach_back(c, self.channel), deliveries.watermark(c, self.channel))
        )
        if mark is not None and mark.seq > chunk.range.after:
            return None
        after, before = reach.after, reach.before
        if self._end is not None and after < self._end.seq <= chunk.range.after:
            after, before = self._end.seq, self._end.tally
        return replace(
            parcel,
            range=SequenceRange(after, chunk.range.through),
            before=before,
            given_up={seq: tally for seq, tally in {**reach.given_up, **waiting}.items() if seq > after},
        )

    def _acknowledge(self, intent: Intent, chunk: Chunk, tally: Tally, *, bytes: int) -> None:
        faults.reach("delivery.shipped")
        now = self.tick.clock.now()
        ours = self._transact(lambda c: deliveries.acknowledge(c, intent, chunk.range, tally, now=now))
        faults.reach("delivery.acknowledged")
        if ours:
            self.tick.settled(rows=tally.rows, bytes=bytes)

    # ── what does not fit, and what is there already ─────────────────────────────────────────────────────────────

    def _halve(self, intent: Intent, chunk: Chunk, piece: Piece) -> list[tuple[Chunk, Piece]]:
        """D3: the halves are recorded before one of them leaves. Kept in memory only, a retry would cut elsewhere."""
        halves = self._transact(lambda c: deliveries.split(c, intent, chunk, at=piece.middle(), rows=piece.rows))
        faults.reach("delivery.split")
        return [(half, piece.within(half.range)) for half in halves or ()]

    def _refused(self, intent: Intent, chunk: Chunk, piece: Piece, words: str) -> None:
        root = chunk.root
        large = root is not None and root.rows > BLAME_ROWS_MIN
        if large and root is not None and not self._read(lambda c: deliveries.root_was_accepted(c, intent, root)):
            self._waiting.append((chunk, piece, words))
        else:
            self._give_up(intent, chunk, piece, words)

    def _give_up_waiting(self, intent: Intent) -> None:
        for chunk, piece, words in self._waiting:
            self._give_up(intent, chunk, piece, words)
        self._waiting.clear()

    def _give_up(self, intent: Intent, chunk: Chunk, piece: Piece, words: str) -> None:
        now = self.tick.clock.now()
        rows = given_up_rows(piece)
        ours = self._transact(lambda c: deliveries.give_up(c, intent, chunk.range, rows, reason=words, now=now))
        faults.reach("delivery.given_up")
        if ours:
            with self.tick.lock:
                self.tick.report.quarantined += len(rows)

    def _nothing_gets_through(self) -> Permanent:
        words = self._waiting[-1][2].rstrip(".")
        return Permanent(
            f"The destination refuses every one of {len(self._waiting)} rows of {self.channel.dataset!r}: {words}.",
            hint="None of them was given up. Correct the destination and export again, or give the chunk up with "
            "`floodmark sink skip`.",
        )

    def _proved(self, chunk: Chunk, held: Holdings) -> Holdings:
        """The destination has more than we recorded. If it counts as we do, what it has is settled."""
        mark = self._read(lambda c: deliveries.watermark(c, self.channel))
        if mark is None or (held.end or 0) <= chunk.range.after:
            raise self._diverged(held.end or 0)
        self._compared(held, since=mark)
        return held

    def _take_over(self, intent: Intent, chunk: Chunk, piece: Piece, held: Holdings) -> list[tuple[Chunk, Piece]]:
        """Settle a chunk that is there already; of one that is there in part, the rest remains."""
        end = held.end or 0
        if end < chunk.range.through:
            halves = self._transact(lambda c: deliveries.split(c, intent, chunk, at=end, rows=piece.rows))
            return [(half, piece.within(half.range)) for half in halves or ()]
        missing = [row for row in given_up_rows(piece) if row.seq in held.given_up] if held.given_up else []
        now = self.tick.clock.now()

        def work(connection: Connection) -> bool:
            ours = deliveries.acknowledge(connection, intent, chunk.range, piece.tally, now=now)
            if ours:  # what it counts and never got is held here again
                deliveries.hold(connection, self.channel, missing, reason=GIVEN_UP_BEFORE, now=now)
            return ours

        if self._transact(work):
            with self.tick.lock:
                self.tick.report.quarantined += len(missing)
            self.tick.settled(rows=piece.tally.rows - len(missing), bytes=0)
        return []

    def _is_pending(self, intent: Intent, chunk: Chunk) -> bool:
        found = self._read(lambda c: deliveries.chunks_of(c, intent))
        return any(item.range == chunk.range and item.state == "pending" for item in found)

    # ── small words ──────────────────────────────────────────────────────────────────────────────────────────────

    def _connect(self, settings: dict[str, Any]) -> Destination:
        return self.tick.connect(self.source.view.dataset, self.channel, settings)

    def _read(self, work: Callable[[Connection], Any]) -> Any:
        return self.tick.database.read(work)

    def _transact(self, work: Callable[[Connection], Any]) -> Any:
        return self.tick.database.transact(work)


class _Ahead(contextlib.ExitStack):
    """Has the next chunk made ready while this one is under way, where the destination can."""

    def __init__(self, destination: Destination) -> None:
        super().__init__()
        self._destination = destination
        self._pool: ThreadPoolExecutor | None = None

    def prepare(self, channel: Channel, chunk: Chunk, piece: Piece) -> None:
        if not isinstance(self._destination, PreparingDestination) or piece.rows == 0:
            return
        if self._pool is None:
            self._pool = self.enter_context(ThreadPoolExecutor(1, thread_name_prefix="prepare"))
        # What goes wrong there goes wrong again in `deliver`, which is where it counts.
        self._pool.submit(
            self._destination.prepare,
            Parcel(channel, chunk.range, piece.table, piece.sequence, piece.ids, Tally()),
        )


def given_up_rows(piece: Piece) -> list[GivenUp]:
    return [
        GivenUp(int(seq), piece.slice(index, 1).tally, canonical_json(row))
        for index, (seq, row) in enumerate(zip(piece.sequence.to_pylist(), piece.table.to_pylist(), strict=True))
    ]


def _scans(pending: Sequence[Chunk], *, rows_max: int, chunk_rows: int) -> Iterator[list[Chunk]]:
    """Neighbouring chunks that share one look into the lake."""
    count = max(1, rows_max // chunk_rows)
    group: list[Chunk] = []
    for chunk in pending:
        if group and (len(group) == count or group[-1].range.through != chunk.range.after):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group
