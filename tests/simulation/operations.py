"""What processes do in a schedule, and where in the middle of it they are stopped or killed."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from functools import partial
from typing import Any

import pyarrow as pa

from floodmark.commit import block
from floodmark.errors import Permanent, SchemaConflict
from floodmark.maintenance import fold as folding
from floodmark.schema import SEQ
from floodmark.sequence import Cursor
from floodmark.sources.adopt import Adopter
from floodmark.store import Store

from .others import AMOUNT, Legacy, Unsteady
from .world import DATASET, World

_SEGMENT = ("segment.announced", "segment.written", "segment.registered")
_SEAL = (*_SEGMENT, "seal.landing_finished", "seal.landing_removed")
_DELIVERY = ("delivery.pinning", "delivery.pinned", "delivery.planned", "delivery.shipped", "delivery.acknowledged")
_REMOVAL = (
    *("removal.counted", "removal.planned", "removal.max_seq_raised"),
    *("removal.deleted", "removal.recorded", "removal.expired"),
)
ANYWHERE = ("control.transact", "control.transacted", "control.read", "lake.load")
POINTS: dict[str, tuple[str, ...]] = {
    "capture": ("capture.written", "capture.synced", "capture.answered"),
    "capture again": ("capture.written", "capture.synced", "capture.answered"),
    "capture arrow": (*_SEGMENT, "capture.answered"),
    "seal": _SEAL,
    "flush": (
        *("flush.base_loaded", "flush.reserved", "flush.appending", "lake.append", "lake.committing"),
        *("flush.appended", "flush.decided", "lake.sync", "flush.synced", "flush.recorded"),
        *("flush.segment_removed", "flush.released"),
        *_SEAL,
    ),
    "block off": ("barrier.sending", "lake.barrier", "barrier.sent", "lake.sync", "flush.released"),
    "capture amounts": (*_SEGMENT, "capture.answered"),
    "correct a type": ("lake.aggregate", "column.changed", "column.dropped"),
    "read": ("lake.scan", "read.stored", "pending.sized", "pending.pinned", "pending.copied"),
    "export archive": (*_DELIVERY, "bucket.list", "bucket.create", "bucket.created", "lake.scan"),
    "export central": (
        *(*_DELIVERY, "network.sending", "network.answering", "lake.scan"),
        *("hub.stored", "hub.accepted", "segment.announced", "segment.written", "segment.registered"),
    ),
    "export mirror": (
        *(*_DELIVERY, "table.base_recorded", "table.decided", "table.appended", "table.synced"),
        *("target.load", "target.append", "target.appended"),
    ),
    "export figures": (*_DELIVERY, "lake.scan"),
    "retain": (*_REMOVAL, "lake.remove"),
    "purge": (*_REMOVAL, "lake.remove", "purge.segment_replaced", "purge.quarantine_cleared", *_SEGMENT),
    "compact": (
        *("compact.rewriting", "compact.rewritten", "compact.expired", "lake.rewrite", "lake.expire", "lake.sync"),
        *("upkeep.synced", "upkeep.expiring"),
    ),
    "settle": (
        *("lake.resettle", "settle.asked", "removal.planned", "settle.planned", "lake.settling", "settle.committed"),
        *("settle.superseded", "settle.dropped", "removal.recorded"),
    ),
    "backfill": (
        *("backfill.sealed", "backfill.read", "backfill.stored", "backfill.loaded", "backfill.answered"),
        *_SEGMENT,
    ),
    "backfill in another order": ("backfill.read", "backfill.stored", "backfill.loaded"),
    "adopt": ("adopt.read", "adopt.stored", "adopt.answered", *_SEGMENT),
    "rebuild": (
        *("rebuild.taken_over", "rebuild.named", "rebuild.copying", "rebuild.copied", "rebuild.caught_up"),
        *("rebuild.fenced", "rebuild.renamed", "rebuild.settled", "rebuild.equal", "rebuild.switched", "lake.copy"),
    ),
    "fold": ("fold.looked", "fold.segments", "fold.blocks", "fold.deliveries"),
    "rewind archive": ("rewind.recorded", *ANYWHERE),
    "rewind central": ("rewind.recorded", *ANYWHERE),
    "rewind mirror": ("rewind.recorded", *ANYWHERE),
    "rest": ("control.transacted",),
    "check": ANYWHERE,
    "fsck": ("fsck.mending", "fsck.mended", *_SEGMENT),
}
"""Where each operation is stopped or killed: its own instants, each as often as any other."""

Operation = Callable[[World, Store, int], Any]


def capture(world: World, store: Store, count: int, *, arrow: bool = False, again: bool = False) -> None:
    rows = world.oracle.unanswered()[:count] if again else world.oracle.rows(count, partitions=world.sites)
    if not rows:
        return
    sent = [world.as_captured(row) for row in rows]
    store.capture(DATASET, pa.Table.from_pylist(sent) if arrow else sent)
    world.stage.pause("capture.answered")
    world.oracle.acknowledge(rows)


def capture_amounts(world: World, store: Store, count: int) -> None:
    """Rows with a value in the column whose type is corrected: a value of the type that it has at the beginning."""
    text = column_type(store) == "string"
    rows = world.oracle.rows(count, partitions=world.sites)
    for row in rows:
        row[AMOUNT] = f"amount of {row['id']}" if text else int(row["id"].removeprefix("row-"))
    try:
        store.capture(DATASET, pa.Table.from_pylist([world.as_captured(row) for row in rows]))
    except SchemaConflict:
        world.counts["amounts of a type that was corrected"] += 1
        return
    world.stage.pause("capture.answered")
    world.oracle.acknowledge(rows)


def correct_a_type(world: World, store: Store, _size: int) -> None:
    try:
        store.change_dataset(DATASET, types={AMOUNT: "long" if column_type(store) == "string" else "string"})
    except SchemaConflict:
        world.counts["correct a type: refused"] += 1
    else:
        world.counts["types corrected"] += 1


def column_type(store: Store) -> str:
    (declared,) = store.datasets()
    return declared.schema.column(AMOUNT).text


def retain(world: World, store: Store, keep_rows: int) -> Any:
    world.removing = True
    rows = world.numbered("edge")
    report = store.retain(DATASET, keep_rows=keep_rows)
    for part in report.removed:
        here = [row for row in rows if row[SEQ] in part.range and f"site={row['site']}" == part.partition]
        world.retired |= {str(row["id"]) for row in here}
    return report


def purge(world: World, store: Store, place: int) -> Any:
    """Somebody asks for one row to be removed for good: one that is committed, or one that waits in the spool."""
    acknowledged = list(world.oracle.acknowledged)
    return world.purge(store, acknowledged[-min(place, len(acknowledged))], by_key=place % 2 == 1)


def backfill(world: World, store: Store, _size: int) -> Any:
    """History that overlaps what was captured, if rows can be told apart."""
    if not world.history:
        known = list(world.oracle.attempted.values())[:1] if world.identified else []
        world.history = [*known, *world.oracle.rows(2, partitions=world.sites)]
    report = store.backfill(DATASET, [world.as_captured(row) for row in world.history], source_id="history")
    world.stage.pause("backfill.answered")
    world.oracle.acknowledge(world.history)
    return report


def backfill_in_another_order(world: World, store: Store, _size: int) -> Any:
    """History that comes in another order each time. Without an identity only its first run may bring it."""
    if not world.unsteady:
        known = list(world.oracle.attempted.values())[:1] if world.identified else []
        world.unsteady = [*known, *world.oracle.rows(2, partitions=world.sites)]
    world.counts["histories read in another order"] += 1
    rows = Unsteady(list(map(world.as_captured, world.unsteady)), turn=world.counts["histories read in another order"])
    try:
        report = store.backfill(DATASET, rows, source_id="unsteady")
    except Permanent as error:
        if world.identified or "partly loaded" not in error.message:
            raise
        world.counts["backfill: refused"] += 1  # and nobody was told that its rows are stored
        return None
    world.stage.pause("backfill.answered")
    world.oracle.acknowledge(world.unsteady)
    return report


def settle(world: World, store: Store, _size: int) -> Any:
    world.settling += 1
    report = store.compact(DATASET)
    if not any(item.settled.problem for item in report.datasets):
        world.settling -= 1
    return report


def adopt(world: World, store: Store, _size: int) -> Any:
    """Data that was there before the store."""
    if not world.legacy:
        world.legacy = world.oracle.rows(4, partitions=world.sites)
    adopter = Adopter(store.engine, store.spool)
    report = adopter.adopt(DATASET, Legacy([world.as_captured(row) for row in world.legacy]))
    world.stage.pause("adopt.answered")
    world.oracle.acknowledge(world.legacy)
    return report


def rebuild(world: World, store: Store, _size: int) -> Any:
    world.rebuilding = True
    report = store.rebuild(DATASET)
    world.rebuilding = False
    return report


def compact(world: World, store: Store, _size: int) -> Any:
    world.compacted = True
    return store.compact(DATASET)


NOTHING_IS_NEW = folding.Kept(blocks=0, intents=0, segments_age=timedelta(days=-36_500))
"""Everything that is decided is old enough to be folded."""


def fold(_world: World, store: Store, _size: int) -> Any:
    return folding.fold_dataset(store.engine, DATASET, kept=NOTHING_IS_NEW)


UNDER_WAY = {"block-undecided", "rebuild-unfinished", "removal-unfinished", "file-missing", "landing-missing"}
"""What may be seen of a store while others are at work on it, or after one has died."""


def check(world: World, store: Store, _size: int) -> None:
    """Somebody looks whether the store is sound, and then its archive, while others are at work."""
    found = [("fsck", item) for item in store.fsck().findings]
    for sink in store.sinks():
        found += [("audit", item) for item in store.audit(sink.name).findings]
    for look, finding in found:
        if finding.wrong and finding.kind not in UNDER_WAY:
            world.wrong.append(f"a false alarm of {look}: {finding.kind}: {finding.what}")


def fsck(world: World, store: Store, _size: int) -> Any:
    report = store.fsck(repair=True)
    world.restored = False
    return report


def rewind(world: World, store: Store, size: int, *, sink: str) -> Any:
    """Somebody lets a sink begin again: at its first row, or after some of those that it has."""
    mark = store.watermark(sink, DATASET) // size
    to = [Cursor(store.store_id, DATASET, None, mark)] if mark and size > 1 else []
    try:
        report = store.rewind_sink(sink, to=to)
    except Permanent:
        world.counts["rewind: refused"] += 1  # a range is on its way, or the cursor is after the watermark
        return None
    world.counts["rewind: done"] += 1
    return report


def rest(world: World, store: Store, size: int) -> None:
    """Somebody pauses a sink or the dataset, and resumes it: whoever is at it meanwhile stops, or does not begin."""
    world.paused = True
    sink = store.sinks()[0].name
    if size % 2:
        store.pause_sink(sink)
        store.resume_sink(sink)
    else:
        store.pause_dataset(DATASET)
        store.resume_dataset(DATASET)


OPERATIONS: dict[str, Operation] = {
    "capture": capture,
    "capture arrow": lambda world, store, size: capture(world, store, size, arrow=True),
    "capture again": lambda world, store, size: capture(world, store, size, again=True),
    "capture, seal": lambda world, store, size: (capture(world, store, size), store.seal(DATASET))[1],
    "capture, flush": lambda world, store, size: (capture(world, store, size), store.flush(DATASET))[1],
    "seal": lambda _world, store, _size: store.seal(DATASET),
    "flush": lambda _world, store, _size: store.flush(DATASET),
    "block off": lambda _world, store, _size: block.raise_barrier(store.engine, DATASET),
    "read": lambda world, store, _size: world.read(store),
    "export archive": lambda _world, store, _size: store.export("archive"),
    "export central": lambda _world, store, _size: store.export("central"),
    "export mirror": lambda _world, store, _size: store.export("mirror"),
    "export figures": lambda _world, store, _size: store.export("figures"),
    "capture amounts": capture_amounts,
    "correct a type": correct_a_type,
    "retain": retain,
    "purge": purge,
    "backfill": backfill,
    "backfill in another order": backfill_in_another_order,
    "adopt": adopt,
    "compact": compact,
    "fold": fold,
    "check": check,
    "settle": settle,
    "rebuild": rebuild,
    "fsck": fsck,
    "rewind archive": partial(rewind, sink="archive"),
    "rewind central": partial(rewind, sink="central"),
    "rewind mirror": partial(rewind, sink="mirror"),
    "rest": rest,
}
