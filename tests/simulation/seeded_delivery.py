"""Bugs on the way to a destination."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from sqlalchemy import update

from floodmark.control import chunks as chunk_records
from floodmark.control import deliveries
from floodmark.control.schema import chunks, intents, watermarks
from floodmark.delivery import channel
from floodmark.delivery.channel import ChannelTask, Comparison, Shipment
from floodmark.delivery.outcomes import Holdings
from floodmark.delivery.sinks import table
from floodmark.delivery.sinks.blob import BlobSink
from floodmark.lake.targets import TargetAppend

from .places import DROP, LAND
from .replacing import replaced
from .seeding import GOES_ON, OWNER_FORGETS, bug, dies, does, fated, stops


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

    def advance(connection: Any, intent: Any, **options: Any) -> int:
        real(connection, intent, **options)
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
    real_ask, real_read = Comparison.ask, deliveries.delivered_through
    seen: dict[int, Any] = {}

    def ask(self: Comparison) -> None:
        real_ask(self)
        seen[threading.get_ident()] = self.task.read(lambda c: deliveries.watermark(c, self.task.channel))

    def delivered_through(connection: Any, channel: Any, *, start: int) -> int:
        # A channel that is there for the first time has no watermark that could be stale.
        stale = seen[threading.get_ident()]
        return real_read(connection, channel, start=start) if stale is None else int(stale.seq)

    with replaced(Comparison, "ask", ask), replaced(deliveries, "delivered_through", delivered_through):
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
    def with_gaps(ahead: Any, *, after: int) -> Any:
        return [chunk for chunk in ahead if chunk.state != "pending"]

    with replaced(chunk_records, "gapless_run", with_gaps):
        yield


@bug(
    "a chunk counts as delivered before it is sent",
    invariant="D2",
    profile="bucket",
    short=[dies(0, "export archive", "bucket.create", times=3)],
)
def _() -> Iterator[None]:
    real = Shipment.hand_over

    def hand_over(self: Shipment, chunk: Any, parcel: Any) -> None:
        self.acknowledge(chunk, parcel.tally, bytes=0)
        real(self, chunk, parcel)

    with replaced(Shipment, "hand_over", hand_over):
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
    sizes, real_cut, real_pin = iter([3]), channel.chunk_ranges, deliveries.pin

    def cut(within: Any, found: Any, *, rows_max: int, fixed: Any) -> Any:
        return real_cut(within, found, rows_max=next(sizes, rows_max - 1), fixed=fixed)

    def pin(connection: Any, *arguments: Any, **options: Any) -> Any:
        intent = real_pin(connection, *arguments, **options)
        if intent and all(chunk.state == "pending" for chunk in chunk_records.of_intent(connection, intent)):
            connection.execute(chunks.delete().where(chunks.c.intent == intent.id))
        return intent

    with (
        replaced(deliveries, "pin", pin),
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
    real = chunk_records.record_base

    def record_base(connection: Any, intent: Any, range: Any, base: Any) -> Any:
        mine = (chunks.c.intent == intent.id) & (chunks.c.after_seq == range.after) & (chunks.c.state == "pending")
        connection.execute(update(chunks).where(mine).values(base=None))
        return real(connection, intent, range, base)

    with replaced(chunk_records, "record_base", record_base):
        yield


@bug("a target's error is a verdict", invariant="D6", profile="table", short=[does(0, "export mirror")])
def _() -> Iterator[None]:
    real = table.send

    def send(target: Any, chunk: Any, state: Any) -> Exception | None:
        error = real(target, chunk, state)
        head = target.load()
        if error is not None and head is not None:  # it failed, so it is sent again
            target.append(TargetAppend(chunk.mark, head.history.head, chunk.rows, chunk.columns))
        return None

    with replaced(table, "send", send):
        yield
