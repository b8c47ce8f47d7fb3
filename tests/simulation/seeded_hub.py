"""Bugs in the hub."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from floodmark import faults
from floodmark.hub import chunks as hub_chunks
from floodmark.hub.chunks import Chunks
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
    real = Chunks._take

    def take(self: Chunks, content: Any, step: Take, header: Any) -> bool:
        if content.sequence and not add_segment(self.engine, content.dataset, content.table):
            return False
        return real(self, replace(content, sequence=()), step, header)

    with replaced(Chunks, "_take", take):
        yield


@bug("rows after ledger", invariant="H1", profile="hub", short=[stops(0, "export central", "hub.stored"), HUB_DIES])
def _() -> Iterator[None]:
    real = Chunks._take

    def take(self: Chunks, content: Any, step: Take, header: Any) -> bool:
        if not real(self, replace(content, sequence=()), step, header):
            return False
        faults.reach("hub.stored")
        return not content.sequence or add_segment(self.engine, content.dataset, content.table)

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

    def decide(header: Any, *, dataset: str, seen: Any, given_up: Any = ()) -> Any:
        step = real(header, dataset=dataset, seen=seen, given_up=given_up)
        return Take(replace(seen, version=seen.version + 1), seen.version) if isinstance(step, AlreadyThere) else step

    with replaced(hub_chunks, "decide", decide):
        yield
