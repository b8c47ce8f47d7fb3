"""Parcels, and forward sinks to send them with, on a control database of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from engines import engine_of
from floodmark.control import datasets
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.delivery.backoff import wait_seconds
from floodmark.delivery.destination import Parcel
from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks.forward import KIND, ForwardSink
from floodmark.errors import FloodmarkError
from floodmark.rows.content import content_ids, tally
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange
from floodmark.testing import ManualClock, MemoryLake
from scenarios.delivery.servers import Answer, Reaction, ScriptedServer, always, hub_says
from tables import lay_out

STORE = "5d1f6f1e-0000-4000-8000-00000000000a"
CHANNEL = Channel("sink-1", "m", "all")


@dataclass
class Sender:
    """A store as far as a forward sink sees it."""

    database: Database
    clock: ManualClock = field(default_factory=ManualClock)
    opened: list[ForwardSink] = field(default_factory=list)

    @classmethod
    def make(cls, directory: Path, schema: dict[str, str] | None = None) -> Sender:
        database = Database(f"sqlite:///{directory}/control.db")
        lay_out(database)
        sender = cls(database)
        declared = Dataset(
            name="m",
            identity=(),
            event_time=None,
            partition_by=(),
            schema=Schema.declare(schema or {"n": "long", "text": "string"}),
            settle=None,
        )
        database.transact(lambda c: datasets.insert(c, declared, now=sender.clock.now()))
        return sender

    def sink(self, url: str, **settings: Any) -> ForwardSink:
        """A sink as the tick makes one of its settings; what is to fail in these tests fails soon.

        Servers in these tests are no hubs, unless `accept` says so.
        """
        whole = {**KIND.defaults, "timeout_seconds": 5, "accept": "status", "url": url, **settings}
        KIND.check(whole)
        engine = engine_of(self.database, MemoryLake(), self.clock, store_id=STORE)
        made = KIND.connect(engine, CHANNEL, whole)
        assert isinstance(made, ForwardSink)
        self.opened.append(made)
        return made

    def close(self) -> None:
        for sink in self.opened:
            sink.close()
        self.database.close()


def parcel_of(rows: pa.Table | Sequence[dict[str, Any]], *, after: int = 0, **more: Any) -> Parcel:
    """Rows numbered from `after` on."""
    table = rows if isinstance(rows, pa.Table) else pa.Table.from_pylist(list(rows))
    ids, prefixes = content_ids(table)
    numbers = pa.array(range(after + 1, after + 1 + table.num_rows), pa.int64())
    return replace(
        Parcel(
            CHANNEL,
            SequenceRange(after, after + table.num_rows),
            table,
            pa.chunked_array([numbers]),
            pa.chunked_array([ids]),
            tally(prefixes),
        ),
        **more,
    )


def numbered(count: int, *, after: int = 0, **more: Any) -> Parcel:
    rows = [{"n": number, "text": f"row {number}"} for number in range(after + 1, after + 1 + count)]
    return parcel_of(rows, after=after, **more)


def in_a_row(*counts: int) -> Iterator[Parcel]:
    """Parcels of these sizes that follow each other, with their totals."""
    after, before = 0, numbered(1).before
    for count in counts:
        parcel = numbered(count, after=after, before=before)
        after, before = parcel.range.through, before + parcel.tally
        yield parcel


def reply_to(sender: Sender, server: ScriptedServer, reaction: Reaction, **settings: Any) -> FloodmarkError:
    """What comes of a chunk that is answered so."""
    server.script = always(reaction)
    return outcome(sender, server, **settings)


def reply_of_a_hub(sender: Sender, server: ScriptedServer, answer: Answer) -> FloodmarkError:
    """What comes of a chunk that a hub answers so."""
    server.script = hub_says(answer)
    return outcome(sender, server, accept="hub")


def outcome(sender: Sender, server: ScriptedServer, **settings: Any) -> FloodmarkError:
    sink = sender.sink(server.url, timeout_seconds=0.3, **settings)
    with pytest.raises(FloodmarkError) as raised:
        sink.deliver(numbered(3))
    return raised.value


def waits(clock: ManualClock, attempt: Callable[[], Any], *, times: int) -> list[float]:
    """How long a patient caller waits between attempts that all end in `Busy`."""
    result = []
    for failures in range(1, times + 1):
        try:
            attempt()
        except Busy as error:
            result.append(wait_seconds(failures, error.retry_after_seconds))
            clock.advance(result[-1])
    return result
