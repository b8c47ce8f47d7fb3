"""Bugs that are put into the product on purpose. Each undoes one protection; the simulation must find every one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import update

from floodmark import faults
from floodmark.backfill import load
from floodmark.commit import Base
from floodmark.control import blocks, deliveries
from floodmark.control import segments as segment_records
from floodmark.control.schema import intents, landing, watermarks
from floodmark.delivery.outcomes import Holdings
from floodmark.delivery.shared import Errand
from floodmark.delivery.shipping import Shipment
from floodmark.delivery.sinks.blob import BlobSink
from floodmark.flush import Flusher
from floodmark.hub import chunks as hub_chunks
from floodmark.hub.chunks import Chunks
from floodmark.hub.decision import AlreadyThere, Take
from floodmark.read import Reader
from floodmark.removal import Need
from floodmark.spool import landing as landing_log
from floodmark.spool import sealing
from floodmark.spool.landing import LandingWriter
from floodmark.upkeep import retain

from .replacing import replaced
from .schedule import PROFILES, TO_THE_END, Schedule, Step


@dataclass(frozen=True, slots=True)
class Bug:
    """One protection undone."""

    name: str
    invariant: str
    """What it breaks, as `docs/explanation/invariants.md` has it."""
    profile: str
    """The schedules in which it can show."""
    short: tuple[Step, ...]
    """A few steps in which it shows, for some chances of the power and the network."""
    patch: Callable[[], contextlib.AbstractContextManager[Any]]
    identified: bool = False
    """Whether it shows only where rows have an identity."""

    def schedule(self, seed: int) -> Schedule:
        """The short schedule with other chances."""
        steps = tuple(replace(step, seed=seed) for step in self.short)
        return Schedule(seed, PROFILES[self.profile], self.identified, partitions=1, steps=steps)


BUGS: list[Bug] = []


def bug(
    name: str, *, invariant: str, short: list[list[Step]], profile: str = "commit", identified: bool = False
) -> Callable[[Callable[[], Iterator[None]]], Bug]:
    def made(function: Callable[[], Iterator[None]]) -> Bug:
        steps = tuple(step for some in short for step in some)
        BUGS.append(Bug(name, invariant, profile, steps, contextlib.contextmanager(function), identified))
        return BUGS[-1]

    return made


def does(process: int, name: str) -> list[Step]:
    """A process does something to its end."""
    return [Step("begin", process, name, 1), Step("run", process, number=TO_THE_END)]


def stops(process: int, name: str, at: str, *, times: int = 1) -> list[Step]:
    """A process begins something and stands still in the middle."""
    return [Step("begin", process, name, 1), Step("run", process, at, times)]


def dies(process: int, name: str, at: str, *, times: int = 1) -> list[Step]:
    """A process begins something and dies in the middle."""
    return [Step("begin", process, name, 1), Step("die", process, at, times)]


GOES_ON = [Step("run", 0, number=TO_THE_END)]
HUB_DIES = [Step("die", 3)]
POWER = [Step("power", 0, "edge")]


# ── capture and sealing ──────────────────────────────────────────────────────────────────────────────────────────────


@bug("acknowledged before it is synced", invariant="L1", short=[does(0, "capture"), POWER])
def _() -> Iterator[None]:
    def write(self: LandingWriter, content: bytes) -> None:
        if self._descriptor is None:
            self._descriptor, self._size = landing_log._create(self._directory), 0
        os.write(self._descriptor, content)
        faults.reach("capture.written")

    with replaced(LandingWriter, "_write", write):
        yield


@bug("a landing file whose name is not synced", invariant="L1", short=[does(0, "capture"), POWER])
def _() -> Iterator[None]:
    with replaced(landing_log, "sync_directory", lambda _path: None):
        yield


@bug("a live writer's file is removed", invariant="L5", short=[does(0, "capture"), does(1, "seal"), does(0, "capture")])
def _() -> Iterator[None]:
    def always(_descriptor: int) -> bool:
        return True

    # Last, so that it lies over what the simulation itself has put there.
    real = sealing.Sealer._seal_file

    def seal_file(self: Any, *arguments: Any) -> None:
        with replaced(sealing, "try_lock", always):
            real(self, *arguments)

    with replaced(sealing.Sealer, "_seal_file", seal_file):
        yield


@bug(
    "lines are sealed by whoever comes",
    invariant="I6",
    short=[does(1, "capture"), stops(0, "seal", "segment.announced"), does(2, "seal"), GOES_ON],
)
def _() -> Iterator[None]:
    def advance(connection: Any, lines: Any) -> bool:
        connection.execute(update(landing).where(landing.c.file == lines.file).values(sealed=lines.end))
        return True

    ids = iter(range(1, 1 << 40))
    with (
        replaced(segment_records, "advance_landing", advance),
        # Segments of the same lines have the same id, which alone would already keep them single.
        replaced(segment_records, "landing_segment_id", lambda _lines: next(ids)),
    ):
        yield


# ── the commit ───────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "reserve before base",
    invariant="I2",
    short=[stops(0, "flush", "flush.reserved"), stops(1, "flush", "lake.sync"), GOES_ON],
)
def _() -> Iterator[None]:
    real_reserve, real_settle = Flusher._reserve, Flusher.settle
    without_base: set[str] = set()

    def reserve(self: Flusher, dataset: str) -> Any:
        ids = replaced(blocks, "reserve", remembering(blocks.reserve))
        with ids:
            reserved = real_reserve(self, dataset)
        if reserved is None:
            return None
        state = self.lake.load(reserved.dataset.table_name)
        base = Base(state.uuid, reserved.block.base.generation, state.head)
        without_base.discard(reserved.block.id)
        return replace(reserved, block=replace(reserved.block, base=base))

    def remembering(real: Any) -> Any:
        def remembered(connection: Any, *, id: str, **options: Any) -> Any:
            without_base.add(id)
            return real(connection, id=id, **options)

        return remembered

    def settle(self: Flusher, dataset: str) -> list[Any]:
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None and block.id in without_base:
            # Nothing can have been sent without a base, so it looks free to be given up.
            self._void(block, reason="it has no base", consume=False)
        return real_settle(self, dataset)

    with replaced(Flusher, "_reserve", reserve), replaced(Flusher, "settle", settle):
        yield


@bug("an error is a verdict", invariant="I4", short=[does(0, "flush"), does(1, "flush")])
def _() -> Iterator[None]:
    real = Flusher._send

    def commit(self: Flusher, block: Any, segments: Any, declared: Any, **_options: Any) -> Any:
        out = self._left_out(block, segments, declared)
        landed, error = real(self, self._request(block, segments, declared, purged=out.purged))
        if error is not None or not landed:
            return self._void(block, reason="it failed", consume=not landed)
        return self._record(block, segments, declared, self.lake.load(declared.table_name))

    with replaced(Flusher, "_commit", commit):
        yield


@bug("segment files go before the record", invariant="I7", short=[dies(0, "flush", "lake.sync"), POWER])
def _() -> Iterator[None]:
    real = Flusher._record

    def record(self: Flusher, block: Any, segments: Any, *arguments: Any, **options: Any) -> Any:
        self._remove_segments(segments)
        return real(self, block, segments, *arguments, **options)

    with replaced(Flusher, "_record", record):
        yield


@bug("the commit's files are not synced", invariant="I7", short=[does(0, "flush"), POWER])
def _() -> Iterator[None]:
    real = Flusher._record

    def record(self: Flusher, *arguments: Any, **options: Any) -> Any:
        with replaced(type(self.lake), "sync", lambda *_arguments, **_options: None):
            return real(self, *arguments, **options)

    with replaced(Flusher, "_record", record):
        yield


@bug("an undecided block is let be", invariant="I8", short=[dies(0, "flush", "flush.appended"), does(1, "flush")])
def _() -> Iterator[None]:
    # Whoever finds one takes its segments for free instead of settling it.
    def settle(self: Flusher, dataset: str) -> list[Any]:
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None:
            self._void(block, reason="somebody died", consume=False)
        return []

    with replaced(Flusher, "settle", settle):
        yield


@bug(
    "rows are looked for in an old snapshot",
    invariant="I9",
    profile="bucket",
    short=[does(0, "export archive"), does(0, "flush"), does(0, "export archive")],
)
def _() -> Iterator[None]:
    real = Reader.view
    seen: dict[int, Any] = {}

    def view(self: Reader, dataset: str) -> Any:
        fresh = real(self, dataset)
        first = seen.setdefault(id(self.lake), fresh)
        return replace(fresh, snapshot=first.snapshot or fresh.snapshot)

    with replaced(Reader, "view", view):
        yield


# ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "the range is pinned anew at every try",
    invariant="D1",
    profile="bucket",
    short=[dies(0, "export archive", "delivery.shipped", times=2), does(1, "flush")],
)
def _() -> Iterator[None]:
    real = deliveries.pin

    def pin(connection: Any, channel: Any, **options: Any) -> Any:
        mine = (intents.c.sink == channel.sink) & (intents.c.partition_key == channel.partition)
        connection.execute(update(intents).where(mine, intents.c.state == "open").values(state="closed"))
        return real(connection, channel, **{**options, "uncut": ()})

    with replaced(deliveries, "pin", pin), replaced(BlobSink, "held", _nothing):
        yield


def _nothing(*_arguments: Any, **_options: Any) -> Any:
    return Holdings()


@bug(
    "watermark by maximum", invariant="D2", profile="bucket", short=[dies(0, "export archive", "delivery.acknowledged")]
)
def _() -> Iterator[None]:
    real = deliveries.advance

    def advance(connection: Any, intent: Any) -> int:
        real(connection, intent)
        mine = (watermarks.c.sink == intent.channel.sink) & (watermarks.c.partition_key == intent.channel.partition)
        connection.execute(update(watermarks).where(mine).values(seq=intent.range.through))
        connection.execute(update(intents).where(intents.c.id == intent.id).values(state="closed"))
        return int(intent.range.through)

    with replaced(deliveries, "advance", advance):
        yield


@bug(
    "a chunk counts as delivered before it is sent",
    invariant="D2",
    profile="bucket",
    short=[dies(0, "export archive", "bucket.create", times=3)],
)
def _() -> Iterator[None]:
    real = Shipment._hand_over

    def hand_over(self: Any, chunk: Any, parcel: Any) -> None:
        self._acknowledge(chunk, parcel.tally, bytes=0)
        real(self, chunk, parcel)

    with replaced(Shipment, "_hand_over", hand_over):
        yield


@bug(
    "an intent is fulfilled from an older look",
    invariant="D7",
    profile="bucket",
    short=[
        stops(0, "export archive", "bucket.list"),
        does(1, "flush"),
        dies(1, "export archive", "delivery.planned"),
        GOES_ON,
    ],
)
def _() -> Iterator[None]:
    with replaced(Errand, "look_up_to", lambda _self, _seq: True):
        yield


# ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "ledger after rows",
    invariant="H1",
    profile="hub",
    short=[stops(0, "export central", "segment.registered"), HUB_DIES],
)
def _() -> Iterator[None]:
    real = Chunks._take

    def take(self: Chunks, content: Any, step: Take) -> bool:
        if content.sequence and not self.intake.segments.add(content.dataset, content.table):
            return False
        return real(self, replace(content, sequence=()), step)

    with replaced(Chunks, "_take", take):
        yield


@bug("rows after ledger", invariant="H1", profile="hub", short=[stops(0, "export central", "hub.stored"), HUB_DIES])
def _() -> Iterator[None]:
    real = Chunks._take

    def take(self: Chunks, content: Any, step: Take) -> bool:
        if not real(self, replace(content, sequence=()), step):
            return False
        faults.reach("hub.stored")
        return not content.sequence or self.intake.segments.add(content.dataset, content.table)

    with replaced(Chunks, "_take", take):
        yield


@bug(
    "the hub stores a chunk that it has",
    invariant="H2",
    profile="hub",
    short=[dies(0, "export central", "network.answering", times=2)],
)
def _() -> Iterator[None]:
    real = hub_chunks.decide

    def decide(header: Any, *, dataset: str, seen: Any, replayed: Any = None) -> Any:
        step = real(header, dataset=dataset, seen=seen, replayed=replayed)
        return Take(replace(seen, version=seen.version + 1), seen.version) if isinstance(step, AlreadyThere) else step

    with replaced(hub_chunks, "decide", decide):
        yield


# ── backfill ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "a source's position moves after its rows",
    invariant="B1",
    profile="upkeep",
    short=[does(0, "seal"), dies(0, "backfill", "segment.registered"), does(1, "backfill")],
)
def _() -> Iterator[None]:
    def register(self: Any, step: Any, written: Any) -> bool:
        # Without the step's own number too, by which a second registration would be refused.
        self.parts.segments.register(self.declared, written, held=step.held)
        return bool(self.parts.database.transact(self._mover(step)))

    with replaced(load._Run, "_register", register):
        yield


@bug(
    "a flush does not look for duplicates",
    invariant="B2",
    identified=True,
    short=[dies(0, "capture", "capture.answered"), does(1, "capture again")],
)
def _() -> Iterator[None]:
    real = Flusher._request

    def request(self: Flusher, *arguments: Any, **options: Any) -> Any:
        return replace(real(self, *arguments, **options), identity=())

    with replaced(Flusher, "_request", request):
        yield


# ── upkeep ───────────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "retention does not ask the sinks",
    invariant="U10",
    profile="everything",
    short=[does(0, "flush"), does(0, "retain")],
)
def _() -> Iterator[None]:
    real = retain.needs_of

    def needs_of(connection: Any, declared: Any) -> Any:
        found = real(connection, declared)
        nobody: dict[str, list[Need]] = {}
        return replace(found, by_partition=nobody)

    with replaced(retain, "needs_of", needs_of):
        yield
