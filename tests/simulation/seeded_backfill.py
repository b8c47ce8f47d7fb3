"""Bugs in backfill and settlement."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from floodmark import settlement
from floodmark.commit import block
from floodmark.maintenance import settle
from floodmark.sources import load, steps
from floodmark.spool.segments import register_segment
from floodmark.testing.memory import lake

from . import others
from .replacing import replaced
from .seeding import GOES_ON, LATE, LEARN, bug, dies, does, held_up, stops


def register_apart(self: Any, step: Any, written: Any) -> bool:
    """Without the step's own number too, by which a second registration would be refused."""
    register_segment(self.engine, step.dataset, written, quarantined=step.quarantined)
    return bool(self.engine.database.transact(self.mover(step)))


@bug(
    "a source's position moves after its rows",
    invariant="B1",
    profile="upkeep",
    short=[does(0, "seal"), dies(0, "backfill", "segment.registered"), does(1, "backfill")],
)
def _() -> Iterator[None]:
    with replaced(steps.StepLoader, "register", register_apart):
        yield


@bug(
    "a flush does not look for duplicates",
    invariant="B2",
    identified=True,
    short=[dies(0, "capture", "capture.answered"), does(1, "capture again")],
)
def _() -> Iterator[None]:
    real = block.append_request

    def request(*arguments: Any, **options: Any) -> Any:
        return replace(real(*arguments, **options), identity=())

    with replaced(block, "append_request", request):
        yield


@bug(
    "rows whose identity is null are not compared",
    invariant="B10",
    identified=True,
    short=[dies(0, "capture", "capture.answered"), does(1, "capture again")],
)
def _() -> Iterator[None]:
    real = block.append_request

    def request(*arguments: Any, **options: Any) -> Any:
        return replace(real(*arguments, **options), by_content=False)

    with replaced(block, "append_request", request):
        yield


@bug(
    "a source is another one each time",
    invariant="B3",
    profile="upkeep",
    short=[does(0, "backfill"), does(1, "backfill")],
)
def _() -> Iterator[None]:
    real, numbers = load.Backfiller.load, iter(range(1 << 40))

    def renamed(self: Any, dataset: str, source: Any, *arguments: Any, **options: Any) -> Any:
        return real(self, dataset, replace(source, name=f"{source.name}/{next(numbers)}"), *arguments, **options)

    with replaced(load.Backfiller, "load", renamed):
        yield


@bug(
    "a source is read on from its middle in another order",
    invariant="B4",
    profile="upkeep",
    short=[
        dies(0, "backfill in another order", "backfill.stored"),
        does(1, "backfill in another order"),
    ],
)
def _() -> Iterator[None]:
    with (
        replaced(load, "check_goes_on", lambda *_arguments: None),
        replaced(load, "resumes_at", lambda _unit, mark: mark),
    ):
        yield


# ── settlement ───────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "a settle function that leaves nothing ends a block that was sent",
    invariant="B5",
    profile="settlement",
    short=[
        does(1, "flush"),
        does(0, "capture"),
        held_up(dies(0, "flush", "flush.appended")),
        *[LEARN] * 3,
        does(1, "flush"),
        LATE,
    ],
    shows="not settled",
)
def _() -> Iterator[None]:
    with replaced(block, "may_land_late", lambda **_options: False):
        yield


@bug(
    "what a settle function does is not looked at",
    invariant="B6",
    profile="settlement",
    short=[does(0, "flush")],
)
def _() -> Iterator[None]:
    def unchecked(request: Any, rows: Any) -> Any:
        return others.settle(rows).select(rows.column_names)

    others.mischief.append("it moves rows")
    try:
        with replaced(lake, "settled_table", unchecked):
            yield
    finally:
        others.mischief.clear()


@bug(
    "rows are settled over what came meanwhile",
    invariant="B7",
    profile="settlement",
    short=[does(1, "seal"), LEARN, stops(0, "settle", "settle.planned"), does(1, "flush"), GOES_ON],
)
def _() -> Iterator[None]:
    with replaced(lake, "only_rewritten_since", lambda *_arguments: True):
        yield


@bug(
    "the higher number stays",
    invariant="B8",
    profile="settlement",
    short=[does(0, "flush"), does(0, "read"), LEARN, does(0, "settle")],
)
def _() -> Iterator[None]:
    with replaced(settlement, "all_but_lowest", lambda group: [seq for seq, _ in group[:-1]]):
        yield


@bug(
    "what is on its way is settled again",
    invariant="B9",
    profile="settlement",
    short=[does(0, "flush"), dies(0, "export archive", "delivery.shipped"), *[LEARN] * 3, does(0, "settle")],
)
def _() -> Iterator[None]:
    with (
        replaced(settle, "kept_back", lambda _needs: ()),
        replaced(settle, "under_way", lambda *_arguments: False),
        replaced(settle, "needs_of", _nothing_under_way(settle.needs_of)),
    ):
        yield


def _nothing_under_way(real: Any) -> Any:
    def needs_of(connection: Any, declared: Any) -> Any:
        found = real(connection, declared)
        needs = {key: [replace(need, under_way=None) for need in items] for key, items in found.by_partition.items()}
        return replace(found, by_partition=needs)

    return needs_of
