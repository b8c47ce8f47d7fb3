"""Channels with pinned ranges in a control database, made by hand: for tests of one destination at a time."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime

from sqlalchemy import Connection, select

from floodmark.control import chunks as chunk_records
from floodmark.control import datasets, deliveries
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.schema import chunks, intents, sinks, watermarks
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally

NOW = datetime(2026, 1, 1, tzinfo=UTC)


def open_channel(
    database: Database, *, dataset: str = "events", partition: str = "all", sink: str | None = None
) -> Channel:
    """A sink's channel that starts from the beginning; the dataset is declared if it is not."""
    channel = Channel(sink or uuid.uuid4().hex, dataset, partition)

    def work(connection: Connection) -> None:
        if datasets.find(connection, dataset) is None:
            datasets.insert(connection, Dataset(dataset, (), None, (), Schema()), now=NOW)
        if connection.execute(select(sinks).where(sinks.c.instance == channel.sink)).first() is None:
            connection.execute(
                sinks.insert().values(
                    instance=channel.sink,
                    name=f"sink_{channel.sink[:8]}",
                    kind="test",
                    settings="{}",
                    state="active",
                    created_at=NOW.isoformat(),
                )
            )
        connection.execute(
            watermarks.insert().values(sink=channel.sink, dataset=dataset, partition_key=partition, seq=0)
        )

    database.transact(work)
    return channel


def pin(database: Database, channel: Channel, ranges: Sequence[SequenceRange]) -> Intent:
    """An open intent whose chunks are these ranges."""
    whole = SequenceRange(ranges[0].after, ranges[-1].through)
    intent = Intent(uuid.uuid4().hex, channel, whole, {})

    def work(connection: Connection) -> None:
        connection.execute(
            intents.insert().values(
                id=intent.id,
                sink=channel.sink,
                dataset=channel.dataset,
                partition_key=channel.partition,
                after_seq=whole.after,
                through_seq=whole.through,
                settings="{}",
                state="open",
                pinned_at=NOW.isoformat(),
            )
        )
        connection.execute(
            chunks.insert(),
            [
                {"intent": intent.id, "after_seq": item.after, "through_seq": item.through, "state": "pending"}
                for item in ranges
            ],
        )

    database.transact(work)
    return intent


def acknowledge(database: Database, intent: Intent, range: SequenceRange, tally: Tally) -> bool:
    return database.transact(lambda c: chunk_records.acknowledge(c, intent, range, tally, now=NOW))


def watermark(database: Database, channel: Channel) -> int:
    found = database.read(lambda c: deliveries.watermark(c, channel))
    return 0 if found is None else found.seq
