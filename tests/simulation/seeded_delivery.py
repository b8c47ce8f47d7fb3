"""Bugs on the way to a destination."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import update

from floodmark.control import chunks as bases
from floodmark.control import chunks as chunk_records
from floodmark.control import deliveries
from floodmark.control.schema import chunks, intents, watermarks
from floodmark.delivery import channel
from floodmark.delivery.channel import ChannelRun, Shipment
from floodmark.delivery.context import ChannelTask
from floodmark.delivery.outcomes import Holdings
from floodmark.delivery.sinks.blob import BlobSink
from floodmark.delivery.sinks.table import TableSink
from floodmark.lake.targets import TargetAppend

from .places import DROP, LAND
from .replacing import replaced
from .seeding import GOES_ON, OWNER_FORGETS, bug, dies, does, fated, mutated, stops


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


@contextlib.contextmanager
def watermark_by_maximum() -> Iterator[None]:
    real = chunk_records.advance

    def advance(connection: Any, intent: Any) -> int:
        real(connection, intent)
        mine = (watermarks.c.sink == intent.channel.sink) & (watermarks.c.partition_key == intent.channel.partition)
        connection.execute(update(watermarks).where(mine).values(seq=intent.range.through))
        connection.execute(update(intents).where(intents.c.id == intent.id).values(state="closed"))
        return int(intent.range.through)

    with replaced(chunk_records, "advance", advance):
        yield


@bug(
    "a range is pinned from a watermark that was read before",
    invariant="D1",
    profile="projection",
    short=[
        does(2, "export figures"),
        does(2, "flush"),
        stops(0, "export figures", "delivery.pinning"),
        does(1, "export figures"),
        GOES_ON,
    ],
)
def _() -> Iterator[None]:
    real = ChannelRun._pin
    seen: dict[int, Any] = {}

    def pin(self: ChannelRun) -> Any:
        seen[threading.get_ident()] = self.task.read(lambda c: deliveries.watermark(c, self.task.channel))
        return real(self)

    def stale() -> Any:
        return seen[threading.get_ident()]

    read = "mark = watermark(connection, channel)"
    # A channel that is there for the first time has no watermark that could be stale.
    with (
        replaced(ChannelRun, "_pin", pin),
        mutated(deliveries, "pin", read, f"{read} and (stale() or watermark(connection, channel))", stale=stale),
    ):
        yield


@bug(
    "watermark by maximum", invariant="D2", profile="bucket", short=[dies(0, "export archive", "delivery.acknowledged")]
)
def _() -> Iterator[None]:
    with watermark_by_maximum():
        yield


@bug(
    "the watermark passes a chunk that is not settled, where a later one is",
    invariant="D2",
    profile="bucket",
    # The prefix is signed, the first object is lost, and the second is stored.
    short=[fated(does(0, "export archive"), LAND, LAND, DROP, LAND)],
    parallel=True,
)
def _() -> Iterator[None]:
    stops_there = 'if chunk.state == "pending" or chunk.range.after != seq:\n            break'
    with mutated(chunk_records, "advance", stops_there, 'if chunk.state == "pending":\n            continue'):
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
    with replaced(ChannelTask, "refresh_up_to", lambda _self, _seq: True):
        yield


@bug(
    "chunks are cut anew at every try",
    invariant="D3",
    profile="bucket",
    short=[dies(0, "export archive", "delivery.shipped")],
)
def _() -> Iterator[None]:
    sizes, real = iter([3]), channel.chunk_ranges

    def cut(within: Any, found: Any, *, rows_max: int, fixed: Any) -> Any:
        return real(within, found, rows_max=next(sizes, rows_max - 1), fixed=fixed)

    def anew(connection: Any, intent: Any) -> list[Any]:
        recorded = chunk_records.of_intent(connection, intent)
        if any(chunk.state != "pending" for chunk in recorded):
            return recorded
        connection.execute(chunks.delete().where(chunks.c.intent == intent.id))
        return []

    with (
        mutated(ChannelRun, "_plan", "chunks.of_intent(connection, intent)", "anew(connection, intent)", anew=anew),
        replaced(channel, "chunk_ranges", cut),
        replaced(BlobSink, "held", _nothing),
    ):
        yield


@bug(
    "a late acknowledgement counts",
    invariant="D4",
    profile="projection",
    short=[stops(0, "export figures", "delivery.planned"), does(1, "export figures"), GOES_ON],
)
def _() -> Iterator[None]:
    real = chunk_records.acknowledge

    def acknowledge(*arguments: Any, **options: Any) -> bool:
        real(*arguments, **options)
        return True

    with replaced(chunk_records, "acknowledge", acknowledge):
        yield


@bug(
    "the base of the last attempt stands",
    invariant="D5",
    profile="table",
    short=[dies(0, "export mirror", "target.appended"), OWNER_FORGETS],
    shows="back again",
)
def _() -> Iterator[None]:
    with mutated(bases, "record_base", "pending, chunks.c.base.is_(None)", "pending"):
        yield


@bug("a target's error is a verdict", invariant="D6", profile="table", short=[does(0, "export mirror")])
def _() -> Iterator[None]:
    real = TableSink._append

    def append(self: TableSink, chunk: Any, state: Any) -> Exception | None:
        error = real(self, chunk, state)
        head = self.target.load()
        if error is not None and head is not None:  # it failed, so it is sent again
            self.target.append(TargetAppend(chunk.mark, head.history.head, chunk.rows, chunk.columns))
        return None

    with replaced(TableSink, "_append", append):
        yield
