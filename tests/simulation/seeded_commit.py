"""Bugs in the commit, and in what readers rely on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from floodmark.commit.flush import Flusher
from floodmark.commit.protocol import Base
from floodmark.control import blocks
from floodmark.control import datasets as dataset_records
from floodmark.control import segments as segment_records
from floodmark.lake import inventory
from floodmark.read import Reader

from .replacing import replaced
from .seeding import BACK_UP, GOES_ON, LATE, POWER, RESTORE, REWRITTEN, bug, dies, does, held_up, mutated, stops


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
    real_reserve, real_waiting = Flusher._reserve, segment_records.waiting
    seen: dict[int, Any] = {}

    def reserve(self: Flusher, dataset: str, **options: Any) -> Any:
        limits = {"rows_max": 1000, "bytes_max": 1 << 30, "count_max": 100}
        seen[threading.get_ident()] = self.database.read(lambda c: real_waiting(c, dataset, **limits))
        return real_reserve(self, dataset, **options)

    def waiting(*_arguments: Any, **_options: Any) -> Any:
        return seen[threading.get_ident()]

    with replaced(Flusher, "_reserve", reserve), replaced(segment_records, "waiting", waiting):
        yield


@bug(
    "reserve before base",
    invariant="I2",
    short=[stops(0, "flush", "flush.reserved"), stops(1, "flush", "lake.sync"), GOES_ON],
)
def _() -> Iterator[None]:
    real_reserve, real_settle = Flusher._reserve, Flusher._settle
    without_base: set[str] = set()

    def reserve(self: Flusher, dataset: str, **options: Any) -> Any:
        ids = replaced(blocks, "reserve", remembering(blocks.reserve))
        with ids:
            reserved = real_reserve(self, dataset, **options)
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

    with replaced(Flusher, "_reserve", reserve), replaced(Flusher, "_settle", settle):
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


@bug("a sync begins at the snapshot that it is about", invariant="I7", short=[does(0, "flush"), POWER])
def _() -> Iterator[None]:
    with mutated(Flusher, "_record", "since=declared.synced_snapshot", "since=state.head"):
        yield


@bug(
    "a sync begins at the block's base, behind a rewrite that nobody has synced",
    invariant="I7",
    short=[does(0, "flush"), REWRITTEN, does(0, "capture, flush"), POWER],
)
def _() -> Iterator[None]:
    with mutated(Flusher, "_record", "since=declared.synced_snapshot", "since=block.base.snapshot"):
        yield


@bug("an undecided block is let be", invariant="I8", short=[dies(0, "flush", "flush.appended"), does(1, "flush")])
def _() -> Iterator[None]:
    # Whoever finds one takes its segments for free instead of settling it.
    def settle(self: Flusher, dataset: str) -> list[Any]:
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None:
            self._void(block, reason="somebody died", consume=False)
        return []

    with replaced(Flusher, "_settle", settle):
        yield


@bug(
    "a block is given up without a barrier",
    invariant="U34",
    short=[held_up(dies(0, "flush", "flush.appended")), does(1, "block off"), LATE, does(1, "flush")],
)
def _() -> Iterator[None]:
    def block_off(self: Flusher, dataset: str) -> None:
        block = self.database.read(lambda c: blocks.undecided(c, dataset))
        if block is not None:
            self._void(block, reason="somebody said so", consume=False)

    with replaced(Flusher, "block_off", block_off):
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
