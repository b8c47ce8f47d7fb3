"""Bugs in the commit, and in what readers rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from floodmark import faults, pending, read
from floodmark.commit import block as one_block
from floodmark.commit import flush
from floodmark.commit.protocol import Base, Verdict
from floodmark.control import blocks
from floodmark.control import datasets as dataset_records
from floodmark.control import segments as segment_records
from floodmark.engine import Engine
from floodmark.lake import inventory

from .replacing import everywhere, replaced
from .seeding import BACK_UP, GOES_ON, LATE, POWER, RESTORE, REWRITTEN, bug, dies, does, held_up, stops


@bug(
    "numbers that only the table knows are given again",
    invariant="I1",
    profile="restored",
    short=[BACK_UP, does(0, "flush"), does(0, "read"), RESTORE, does(0, "flush")],
)
def _() -> Iterator[None]:
    with replaced(inventory, "highest_seq", lambda _lake, _state: 0):
        yield


@bug(
    "the horizon rises when numbers are reserved",
    invariant="I3",
    short=[stops(0, "flush", "flush.reserved"), does(1, "read"), GOES_ON],
)
def _() -> Iterator[None]:
    real = blocks.reserve

    def reserve(connection: Any, *, dataset: str, **options: Any) -> Any:
        reserved = real(connection, dataset=dataset, **options)
        if reserved is not None:
            through = reserved.block.range.through
            dataset_records.raise_horizon(connection, dataset, through=through, synced_snapshot=None)
        return reserved

    with replaced(blocks, "reserve", reserve):
        yield


@bug(
    "what waits is read in one transaction and taken in another",
    invariant="I5",
    short=[stops(0, "flush", "flush.base_loaded"), does(1, "flush"), GOES_ON],
)
def _() -> Iterator[None]:
    real_reserve, real_waiting = flush.reserve_block, segment_records.waiting
    seen: dict[int, Any] = {}

    def reserve(engine: Engine, dataset: str, **options: Any) -> Any:
        limits = {"rows_max": 1000, "bytes_max": 1 << 30, "count_max": 100}
        seen[threading.get_ident()] = engine.database.read(lambda c: real_waiting(c, dataset, **limits))
        return real_reserve(engine, dataset, **options)

    def waiting(*_arguments: Any, **_options: Any) -> Any:
        return seen[threading.get_ident()]

    with replaced(flush, "reserve_block", reserve), replaced(segment_records, "waiting", waiting):
        yield


@bug(
    "reserve before base",
    invariant="I2",
    short=[stops(0, "flush", "flush.reserved"), stops(1, "flush", "lake.sync"), GOES_ON],
)
def _() -> Iterator[None]:
    real_reserve, real_decide = flush.reserve_block, one_block.decide_block
    without_base: set[str] = set()

    def reserve(engine: Engine, dataset: str, **options: Any) -> Any:
        ids = replaced(blocks, "reserve", remembering(blocks.reserve))
        with ids:
            reserved = real_reserve(engine, dataset, **options)
        if reserved is None:
            return None
        state = engine.lake.load(reserved.dataset.table_name)
        base = Base(state.uuid, reserved.block.base.generation, state.head)
        without_base.discard(reserved.block.id)
        return replace(reserved, block=replace(reserved.block, base=base))

    def remembering(real: Any) -> Any:
        def remembered(connection: Any, *, id: str, **options: Any) -> Any:
            without_base.add(id)
            return real(connection, id=id, **options)

        return remembered

    def decide(engine: Engine, dataset: str) -> list[Any]:
        block = engine.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None and block.id in without_base:
            # Nothing can have been sent without a base, so it looks free to be given up.
            one_block.void_block(engine, block, reason="it has no base", consume=False)
        return real_decide(engine, dataset)

    with replaced(flush, "reserve_block", reserve), everywhere(one_block.decide_block, decide):
        yield


@bug("an error is a verdict", invariant="I4", short=[does(0, "flush"), does(1, "flush")])
def _() -> Iterator[None]:
    real_send, real_verdict = one_block.send, one_block.verdict
    failed: set[str] = set()

    def send(engine: Engine, request: Any) -> Any:
        sent, error = real_send(engine, request)
        if error is not None:
            failed.add(request.block)
        return sent, error

    def verdict(*, block: str, **options: Any) -> Verdict:
        return Verdict.VOID if block in failed else real_verdict(block=block, **options)

    with replaced(one_block, "send", send), replaced(one_block, "verdict", verdict):
        yield


@bug("segment files go before the record", invariant="I7", short=[dies(0, "flush", "lake.sync"), POWER])
def _() -> Iterator[None]:
    real = one_block.record_landed

    def record(engine: Engine, block: Any, segments: Any, *arguments: Any, **options: Any) -> Any:
        one_block.remove_segments(engine, segments)
        return real(engine, block, segments, *arguments, **options)

    with replaced(one_block, "record_landed", record):
        yield


@bug("the commit's files are not synced", invariant="I7", short=[does(0, "flush"), POWER])
def _() -> Iterator[None]:
    with replaced(one_block, "make_durable", lambda *_arguments: None):
        yield


@bug("a sync begins at the snapshot that it is about", invariant="I7", short=[does(0, "flush"), POWER])
def _() -> Iterator[None]:
    def make_durable(engine: Engine, _declared: Any, state: Any) -> None:
        engine.lake.sync(state, since=state.head)

    with replaced(one_block, "make_durable", make_durable):
        yield


@bug(
    "a sync begins at the block's base, behind a rewrite that nobody has synced",
    invariant="I7",
    short=[does(0, "flush"), REWRITTEN, does(0, "capture, flush"), POWER],
)
def _() -> Iterator[None]:
    def make_durable(engine: Engine, declared: Any, state: Any) -> None:
        block = engine.database.read(lambda c: blocks.undecided(c, declared.name))
        if block is not None:
            engine.lake.sync(state, since=block.base.snapshot)

    with replaced(one_block, "make_durable", make_durable):
        yield


@bug("an undecided block is let be", invariant="I8", short=[dies(0, "flush", "flush.appended"), does(1, "flush")])
def _() -> Iterator[None]:
    # Whoever finds one takes its segments for free instead of settling it.
    def decide(engine: Engine, dataset: str) -> list[Any]:
        block = engine.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None:
            one_block.void_block(engine, block, reason="somebody died", consume=False)
        return []

    with everywhere(one_block.decide_block, decide):
        yield


@bug(
    "a block is given up without a barrier",
    invariant="U34",
    short=[held_up(dies(0, "flush", "flush.appended")), does(1, "block off"), LATE, does(1, "flush")],
)
def _() -> Iterator[None]:
    def raise_barrier(engine: Engine, dataset: str) -> None:
        block = engine.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None:
            one_block.void_block(engine, block, reason="somebody said so", consume=False)

    with everywhere(one_block.raise_barrier, raise_barrier):
        yield


@bug(
    "rows are looked for in an old snapshot",
    invariant="I9",
    profile="bucket",
    short=[does(0, "export archive"), does(0, "flush"), does(0, "export archive")],
)
def _() -> Iterator[None]:
    real = read.view_of
    seen: dict[int, Any] = {}

    def view_of(engine: Engine, dataset: str) -> Any:
        fresh = real(engine, dataset)
        first = seen.setdefault(id(engine.lake), fresh)
        return replace(fresh, snapshot=first.snapshot or fresh.snapshot)

    with everywhere(read.view_of, view_of):
        yield


@bug(
    "a look at pending rows goes up to the newest horizon",
    invariant="I12",
    short=[stops(0, "read", "pending.copied"), does(1, "flush"), GOES_ON],
    shows="a look at pending rows",
)
def _() -> Iterator[None]:
    with replaced(pending, "at_the_instant", lambda view, _declared: view):
        yield


@bug(
    "landing files are sized behind the records",
    invariant="I12",
    short=[stops(0, "read", "pending.pinned"), does(1, "seal"), GOES_ON],
    shows="a look at pending rows",
)
def _() -> Iterator[None]:
    real_sizes, real_records = pending.landed_sizes, pending.waiting_records
    seen: dict[int, Any] = {}

    def sizes(engine: Engine, dataset: str) -> Any:
        files = [path.stem for path, _ in real_sizes(engine, dataset)]
        seen[threading.get_ident()] = real_records(engine, dataset, files)
        faults.reach("pending.pinned")
        return real_sizes(engine, dataset)

    def records(*_arguments: Any) -> Any:
        return seen[threading.get_ident()]

    with replaced(pending, "landed_sizes", sizes), replaced(pending, "waiting_records", records):
        yield
