"""Bugs in upkeep: compaction, removals, rebuilds, repairs, adopted data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any

from sqlalchemy import update

from floodmark import compaction
from floodmark.commit import block, flush
from floodmark.commit import recovery as recovery_module
from floodmark.commit.protocol import Verdict
from floodmark.control import datasets, deliveries, generations, removals, segments
from floodmark.control import folding as folding_records
from floodmark.control.datasets import Dataset
from floodmark.control.schema import rebuilds
from floodmark.engine import Engine
from floodmark.maintenance import (
    audit,
    column_types,
    compact,
    expiry,
    fold,
    fsck,
    fsck_spool,
    purge,
    rebuild,
    remover,
    retain,
)
from floodmark.maintenance.table_copy import TableCopy
from floodmark.removal import Need
from floodmark.schema import SEQ
from floodmark.sources import steps
from floodmark.testing.memory import lake as memory_lake
from floodmark.testing.memory.lake import MemoryLake

from .replacing import everywhere, replaced
from .schedule import Step
from .seeded_backfill import register_apart
from .seeded_delivery import watermark_by_maximum
from .seeding import (
    BACK_UP,
    GOES_ON,
    LATE,
    LEARN,
    OTHER_GOES_ON,
    POWER,
    RESTORE,
    REWRITTEN,
    bug,
    dies,
    does,
    held_up,
    stops,
)

# ── keeping tables small ─────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "a rewrite gives rows other numbers",
    invariant="U1",
    profile="upkeep",
    short=[does(0, "flush"), does(0, "read"), does(0, "compact")],
)
def _() -> Iterator[None]:
    real_rewrite, real_store = MemoryLake.rewrite, MemoryLake.store

    def turned_round(self: MemoryLake, rows: Any) -> int:
        numbers = rows[SEQ].take(list(range(rows.num_rows))[::-1])
        return real_store(self, rows.set_column(rows.column_names.index(SEQ), SEQ, numbers))

    def rewrite(self: MemoryLake, *arguments: Any, **options: Any) -> None:
        with replaced(MemoryLake, "store", turned_round):
            real_rewrite(self, *arguments, **options)

    with replaced(MemoryLake, "rewrite", rewrite):
        yield


@bug(
    "old files go before new ones are on the disk",
    invariant="U2",
    profile="upkeep",
    short=[does(0, "flush"), does(0, "compact"), POWER],
)
def _() -> Iterator[None]:
    def record_only(engine: Engine, declared: Dataset) -> Any:
        state = engine.lake.load(declared.table_name)
        if state is not None and state.head is not None:
            engine.database.transact(lambda c: datasets.record_synced(c, declared, snapshot=state.head))
        return state

    with everywhere(expiry.make_durable, record_only):
        yield


@bug(
    "expiry takes what is behind an unsynced rewrite",
    invariant="U3",
    profile="upkeep",
    short=[does(0, "flush"), stops(0, "compact", "upkeep.expiring"), REWRITTEN, GOES_ON, POWER],
)
def _() -> Iterator[None]:
    with replaced(expiry, "needed", lambda *_arguments: 0):
        yield


@bug(
    "a rewrite that the power took is not taken back",
    invariant="U4",
    profile="upkeep",
    short=[does(0, "flush"), dies(0, "compact", "compact.rewritten"), POWER],
)
def _() -> Iterator[None]:
    with replaced(recovery_module, "is_droppable", lambda *_arguments, **_options: False):
        yield


@bug(
    "a file that nothing refers to yet is taken for nobody's",
    invariant="U5",
    profile="upkeep",
    short=[stops(0, "compact", "compact.expired"), stops(1, "flush", "lake.committing"), GOES_ON, OTHER_GOES_ON],
)
def _() -> Iterator[None]:
    with replaced(compact, "orphan_age", lambda _engine: timedelta(seconds=-1)):
        yield


@bug("compaction never ends", invariant="U6", profile="upkeep", short=[does(0, "flush"), does(0, "compact")])
def _() -> Iterator[None]:
    with (
        replaced(compaction, "is_halved", lambda *_arguments: True),
        replaced(compaction, "without_large_in_front", lambda files: files * 2),
    ):
        yield


@bug(
    "what is on its way is folded",
    invariant="U35",
    profile="folding",
    short=[does(0, "flush"), dies(0, "export archive", "delivery.planned"), does(1, "fold")],
)
def _() -> Iterator[None]:
    with replaced(folding_records, "is_settled", lambda *_arguments: True):
        yield


@bug(
    "a segment's record goes before its file",
    invariant="U36",
    profile="folding",
    short=[
        does(1, "flush"),
        does(0, "capture arrow"),
        dies(0, "flush", "flush.recorded"),
        does(1, "fold"),
        does(1, "export archive"),
        does(1, "export central"),
        does(1, "retain", 0),
    ],
)
def _() -> Iterator[None]:
    with replaced(fold, "gone_for_good", lambda _engine, _dataset, segments: list(segments)):
        yield


# ── removing rows ────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "retention does not ask the sinks",
    invariant="U10",
    profile="everything",
    short=[does(0, "flush"), does(0, "retain")],
)
def _() -> Iterator[None]:
    real = retain.needs_of

    def needs_of(connection: Any, declared: Any) -> Any:
        found = real(connection, declared)
        nobody: dict[str, list[Need]] = {}
        return replace(found, by_partition=nobody)

    with replaced(retain, "needs_of", needs_of):
        yield


def _not_under_way(real: Any) -> Any:
    def needs_of(connection: Any, declared: Any) -> Any:
        found = real(connection, declared)
        needs = {key: [replace(need, under_way=None) for need in items] for key, items in found.by_partition.items()}
        return replace(found, by_partition=needs)

    return needs_of


@bug(
    "rows that are on their way are removed",
    invariant="U11",
    profile="everything",
    short=[dies(0, "export central", "network.answering", times=2), does(0, "purge", 6)],
)
def _() -> Iterator[None]:
    with replaced(purge, "needs_of", _not_under_way(purge.needs_of)):
        yield


@bug(
    "a removal is not recorded before rows go",
    invariant="U12",
    profile="removal",
    short=[dies(0, "purge", "removal.deleted", size=6), POWER],
)
def _() -> Iterator[None]:
    with replaced(removals, "plan", lambda *_arguments, **_options: None):
        yield


@bug(
    "a purge is remembered while a block is undecided",
    invariant="U13",
    profile="removal",
    identified=True,
    short=[
        does(1, "flush"),
        dies(0, "capture", "capture.answered"),
        held_up(dies(2, "flush", "flush.appended")),
        does(0, "capture again"),
        does(1, "purge"),
        does(1, "flush"),
        LATE,
    ],
    shows="back again",
)
def _() -> Iterator[None]:
    # Nor is the block settled, wherever a purge meets it: each of these alone would still do it in time.
    with (
        replaced(removals, "check_decided", lambda *_arguments: None),
        replaced(remover, "decide", lambda *_arguments: None),
        replaced(flush, "decide", lambda *_arguments: None),
        replaced(segments, "is_waiting", lambda *_arguments: False),
    ):
        yield


@bug(
    "a range is pinned over rows that are being removed",
    invariant="U14",
    profile="everything",
    short=[
        stops(0, "purge", "removal.planned", size=6),
        dies(1, "export central", "network.answering", times=2),
        GOES_ON,
    ],
)
def _() -> Iterator[None]:
    with replaced(deliveries, "check_unremoved", lambda *_arguments, **_options: None):
        yield


@bug(
    "the highest number goes with its row",
    invariant="U15",
    profile="upkeep",
    short=[
        does(0, "flush"),
        BACK_UP,
        does(0, "capture, flush"),
        does(0, "read"),
        does(0, "purge"),
        RESTORE,
        does(0, "capture, flush"),
    ],
)
def _() -> Iterator[None]:
    real = MemoryLake.ensure

    def without_max_seq(lake: MemoryLake, *arguments: Any, max_seq: int = 0, **options: Any) -> None:
        real(lake, *arguments, **options)

    # Nor by expiry, which takes the last commit that knows of it.
    with (
        replaced(MemoryLake, "ensure", without_max_seq),
        replaced(memory_lake, "highest_known", lambda state: state.max_seq),
    ):
        yield


@bug(
    "a segment and its copy change places in two transactions",
    invariant="U16",
    profile="removal",
    short=[does(0, "capture", 3), does(0, "seal"), dies(0, "purge", "segment.registered")],
)
def _() -> Iterator[None]:
    real = purge.add_segment

    def parted(engine: Engine, declared: Dataset, rows: Any, *, also: Any) -> bool:
        return real(engine, declared, rows) and bool(engine.database.transact(also))

    with replaced(purge, "add_segment", parted):
        yield


@bug(
    "rows that another has removed meanwhile are recorded once more",
    invariant="U17",
    profile="removal",
    short=[does(0, "flush"), stops(0, "purge", "removal.counted"), does(1, "purge"), GOES_ON],
    shows="the totals",
)
def _() -> Iterator[None]:
    # Nor is what is recorded compared with what the delete took.
    real = removals.plan

    def plan(connection: Any, operation: Any, *, seen: int, **options: Any) -> None:
        real(connection, operation, seen=removals.moment(connection, operation.dataset), **options)

    with replaced(removals, "plan", plan), replaced(remover, "taken_rows", lambda *_arguments: None):
        yield


def _misread(outcome: Verdict, *, as_if: Verdict) -> Any:
    real = remover.verdict

    def verdict(*arguments: Any, **options: Any) -> Any:
        found, landed = real(*arguments, **options)
        return as_if if found is outcome else found, landed

    return verdict


@bug(
    "a settlement whose commit was refused is recorded as made",
    invariant="U18",
    profile="changes",
    short=[does(1, "seal"), *[LEARN] * 2, stops(0, "settle", "settle.planned"), does(1, "flush"), GOES_ON],
    shows="the totals",
)
def _() -> Iterator[None]:
    with replaced(remover, "verdict", _misread(Verdict.VOID, as_if=Verdict.LANDED)):
        yield


@bug(
    "a settlement that may still land is dropped",
    invariant="U18",
    profile="changes",
    short=[does(0, "flush"), *[LEARN] * 3, held_up(does(0, "settle")), LATE],
    shows="the totals",
)
def _() -> Iterator[None]:
    with replaced(remover, "verdict", _misread(Verdict.OPEN, as_if=Verdict.VOID)):
        yield


# ── rebuilding ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _sends_a_copy(process: int) -> list[Step]:
    """A rebuilder that has sent a copy, and does not know what became of it."""
    return [*stops(process, "rebuild", "lake.copy"), Step("run", process, "control.read", 1)]


@bug(
    "the staging table keeps its name",
    invariant="U20",
    profile="upkeep",
    short=[
        does(1, "flush"),
        held_up(_sends_a_copy(0)),
        [Step("die", 0)],
        does(1, "retain", 0),
        does(1, "rebuild"),
        LATE,
    ],
)
def _() -> Iterator[None]:
    real = generations.take_over

    def take_over(connection: Any, *, dataset: str, **options: Any) -> Any:
        found = generations.unfinished(connection, dataset)
        if found is None:
            return real(connection, dataset=dataset, **options)
        later = replace(found, epoch=found.epoch + 1)
        connection.execute(update(rebuilds).where(rebuilds.c.id == found.id).values(epoch=later.epoch))
        return later

    with replaced(generations, "take_over", take_over):
        yield


@bug(
    "a late copy of one's own is passed over",
    invariant="U21",
    profile="upkeep",
    short=[does(1, "flush"), held_up(_sends_a_copy(0)), does(1, "retain", 0), GOES_ON, LATE],
)
def _() -> Iterator[None]:
    real_rebuild, real_take_over = rebuild.Rebuilder.rebuild, rebuild.take_over
    taken: dict[int, Any] = {}

    def rebuilt(self: rebuild.Rebuilder, *arguments: Any, **options: Any) -> Any:
        taken.pop(id(self.engine), None)
        return real_rebuild(self, *arguments, **options)

    def take_over(engine: Engine, *arguments: Any) -> Any:
        if id(engine) not in taken:
            taken[id(engine)] = real_take_over(engine, *arguments)
        return taken[id(engine)]

    with replaced(rebuild.Rebuilder, "rebuild", rebuilt), replaced(rebuild, "take_over", take_over):
        yield


@bug(
    "a table that was renamed is gone",
    invariant="U22",
    profile="upkeep",
    short=[dies(1, "flush", "flush.appended"), does(0, "rebuild")],
)
def _() -> Iterator[None]:
    def table_of(_database: Any, lake: Any, declared: Any, base: Any) -> Any:
        return lake.load(declared.of_generation(base.generation).table_name)

    with replaced(block, "table_of", table_of):
        yield


@bug(
    "the pointer is switched without a comparison",
    invariant="U23",
    profile="removal",
    short=[
        does(1, "export archive"),
        does(1, "export mirror"),
        stops(0, "rebuild", "rebuild.caught_up"),
        does(1, "retain"),
        GOES_ON,
    ],
)
def _() -> Iterator[None]:
    with replaced(TableCopy, "compare", lambda _self: (0, [])):
        yield


@bug(
    "a table is fenced while rows are removed from it",
    invariant="U24",
    profile="removal",
    short=[
        does(1, "export archive"),
        does(1, "export mirror"),
        stops(0, "retain", "removal.max_seq_raised"),
        does(1, "rebuild"),
        GOES_ON,
    ],
)
def _() -> Iterator[None]:
    with (
        replaced(generations, "check_no_removal", lambda *_arguments, **_options: None),
        everywhere(remover.end_unfinished, lambda _engine, _dataset: None),
    ):
        yield


# ── looking and repairing ────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "one look is believed",
    invariant="U30",
    profile="bucket",
    short=[does(1, "export archive"), stops(0, "check", "control.read", times=13), does(1, "capture, flush"), GOES_ON],
    shows="false alarm",
)
def _() -> Iterator[None]:
    with (
        replaced(fsck.Fsck, "seen_twice", lambda self, *, deep: list(self.seen_once(deep=deep))),
        replaced(audit, "agreed", lambda first, _second: tuple(first)),
    ):
        yield


@bug(
    "an audit believes the watermark",
    invariant="U31",
    profile="bucket",
    short=[dies(0, "export archive", "delivery.acknowledged")],
    shows="audit",
)
def _() -> Iterator[None]:
    with watermark_by_maximum(), replaced(audit, "holes", lambda *_arguments: []):
        yield


@bug(
    "a repair removes a segment that nobody has registered",
    invariant="U32",
    profile="restored",
    short=[BACK_UP, does(0, "capture arrow"), RESTORE, does(0, "fsck")],
)
def _() -> Iterator[None]:
    def everything(engine: Engine, dataset: Dataset) -> set[int]:
        return set(fsck_spool.unregistered_files(engine, dataset.name).values())

    with replaced(fsck_spool, "committed_segments", everything):
        yield


# ── correcting a column's type ───────────────────────────────────────────────────────────────────────────────────────


@bug(
    "a type is corrected although rows came since the look",
    invariant="U42",
    profile="types",
    short=[stops(0, "correct a type", "lake.aggregate"), does(1, "capture amounts"), does(1, "flush"), GOES_ON],
)
def _() -> Iterator[None]:
    with replaced(column_types, "nothing_since", lambda *_arguments: True):
        yield


@bug(
    "rows that were fitted to the old type are registered",
    invariant="U42",
    profile="types",
    short=[stops(0, "capture amounts", "segment.written"), does(1, "correct a type"), GOES_ON],
)
def _() -> Iterator[None]:
    with replaced(datasets, "check_types", lambda *_arguments: None):
        yield


# ── adopting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@bug(
    "adopted rows and their position move apart",
    invariant="U40",
    profile="upkeep",
    short=[dies(0, "adopt", "segment.registered"), does(1, "adopt")],
)
def _() -> Iterator[None]:
    with replaced(steps.StepLoader, "register", register_apart):
        yield
