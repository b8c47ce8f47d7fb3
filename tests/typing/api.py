"""The public API as a type checker sees it. Not run: `mypy --strict` reads it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, assert_type

import floodmark
from floodmark.commit.flush import FlushReport
from floodmark.delivery.rewind import Rewound
from floodmark.doctor import DoctorReport
from floodmark.eventlog import Event, EventLog, RecordedEvent
from floodmark.maintenance.remove_dataset import RemovedDataset
from floodmark.pending import Part
from floodmark.read import Batch
from floodmark.sources.eventlog import FeedReport
from floodmark.sources.units import BackfillReport
from floodmark.spool.capture import Receipt
from floodmark.status import Status
from floodmark.store import Store


def stores() -> None:
    assert_type(floodmark.init("path"), Store)
    with floodmark.open("path") as store:
        assert_type(store, Store)


def rows_in(store: Store) -> None:
    store.add_dataset("messages", identity=["part_id"], event_time="ts", partition_by=["source"], schema=None)
    store.add_dataset("parts", identity=[["part_id"], ["message_id", "part_index"]], schema={"n": "long not null"})
    assert_type(store.capture("messages", [{"part_id": "a"}]), Receipt)
    report = store.flush("messages")
    assert_type(report, FlushReport)
    assert_type(report.rows, int)
    assert_type(report.duplicates, int)
    assert_type(report.block, floodmark.SequenceRange | None)
    assert_type(report.snapshot_id, int | None)
    assert_type(store.flush(), FlushReport)
    assert_type(store.backfill("messages", "history/", since="2026-01-01", map={"id": "part_id"}), BackfillReport)
    assert_type(store.backfill("messages", [{"part_id": "a"}], source_id="mine"), BackfillReport)


def rows_out(store: Store) -> None:
    for part in store.read_with_pending("messages", partition=None, columns=None):
        assert_type(part, Part)
        assert_type(part.pending, bool)
    for batch in store.read_since("messages", since=None, partition=None):
        assert_type(batch, Batch)
        assert_type(batch.cursor, floodmark.Cursor)
        assert_type(batch.pairs(), Iterator[tuple[dict[str, Any], floodmark.Cursor]])
    assert_type(floodmark.Cursor.parse("text"), floodmark.Cursor)
    assert_type(store.horizon("messages"), int)
    assert_type(store.status(), Status)


def changes(store: Store) -> None:
    store.pause_sink("archive")
    store.resume_sink("archive")
    store.pause_dataset("messages")
    store.resume_dataset("messages")
    store.change_dataset("messages", types={"n": "long"}, settle="package.module:function")
    assert_type(store.rewind_sink("archive", to=["cursor"], resend=False, dry_run=True), Rewound)
    assert_type(store.remove_dataset("messages", give_up=False, dry_run=True), RemovedDataset)
    assert_type(store.doctor(spark=False), DoctorReport)


def events(store: Store) -> None:
    log = EventLog.open("path")
    log.append([Event("account-1", {"n": 1})], expected={"account-1": 6})
    assert_type(log.read_stream("account-1"), list[RecordedEvent])
    assert_type(log.read_events(after=None, limit=None, prefix=None), list[RecordedEvent])
    assert_type(log.topology_generation, int)
    assert_type(store.feed("events", log), FeedReport)
