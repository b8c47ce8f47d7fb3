"""Bugs in the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from floodmark import faults
from floodmark.engine import Engine
from floodmark.hub import chunks as hub_chunks
from floodmark.hub.decision import AlreadyThere, Take
from floodmark.spool.segments import add_segment

from .replacing import replaced
from .seeding import HUB_DIES, bug, dies, stops


@bug(
    "ledger after rows",
    invariant="H1",
    profile="hub",
    short=[stops(0, "export central", "segment.registered"), HUB_DIES],
)
def _() -> Iterator[None]:
    def store(engine: Engine, dataset: Any, rows: Any, *, also: Any) -> bool:
        return add_segment(engine, dataset, rows) and bool(engine.database.transact(also))

    with replaced(hub_chunks, "store", store):
        yield


@bug("rows after ledger", invariant="H1", profile="hub", short=[stops(0, "export central", "hub.stored"), HUB_DIES])
def _() -> Iterator[None]:
    def store(engine: Engine, dataset: Any, rows: Any, *, also: Any) -> bool:
        if not engine.database.transact(also):
            return False
        faults.reach("hub.stored")
        return add_segment(engine, dataset, rows)

    with replaced(hub_chunks, "store", store):
        yield


@bug(
    "the hub stores a chunk that it has",
    invariant="H2",
    profile="hub",
    short=[dies(0, "export central", "network.answering", times=2)],
)
def _() -> Iterator[None]:
    real = hub_chunks.decide

    def decide(header: Any, *, dataset: str, seen: Any, given_up: Any = ()) -> Any:
        step = real(header, dataset=dataset, seen=seen, given_up=given_up)
        return Take(replace(seen, version=seen.version + 1), seen.version) if isinstance(step, AlreadyThere) else step

    with replaced(hub_chunks, "decide", decide):
        yield
