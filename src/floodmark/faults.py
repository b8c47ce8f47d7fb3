"""Fault points: named points in the code at which tests crash.

Code calls `reach("flush.reserved")` at each important step, which normally costs a dictionary lookup. A test arms a
point to raise, to call a function, or to kill the process. Every name is declared here, so that tests can enumerate
them all and a misspelt name fails at once.

In a real process `FLOODMARK_FAULT=flush.appended` kills it (SIGKILL) on reaching the point;
`FLOODMARK_FAULT=flush.appended:3` on the third time.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
from collections.abc import Callable, Iterator

from floodmark.errors import EnvironmentProblem

POINTS: dict[str, str] = {
    "capture.written": "an envelope is in the landing file, not yet synced",
    "capture.synced": "an envelope is durable, not yet acknowledged",
    "segment.announced": "the segment's row says `writing`; no file yet",
    "segment.written": "the segment's file is written and synced, not yet registered",
    "segment.registered": "the segment is registered",
    "seal.landing_finished": "a dead writer's landing file is sealed to its end, not yet removed",
    "seal.landing_removed": "a landing file's row says `removed`, the file is still there",
    "flush.base_loaded": "the base is known, nothing is reserved",
    "flush.reserved": "a block is reserved",
    "flush.appending": "about to send the append",
    "flush.appended": "the append returned",
    "flush.decided": "the verdict is known, not recorded",
    "flush.synced": "the commit's files are durable, the block is still undecided",
    "flush.recorded": "the block is recorded as committed, its segment files still exist",
    "flush.segment_removed": "one segment file of a committed block was removed",
    "pending.sized": "a read of pending rows has the sizes of the landing files, the records are not read",
    "pending.pinned": "a read of pending rows has read the records, no file of the spool is copied",
    "pending.copied": "a read of pending rows has copies of all files of the spool, the table is not loaded",
    "pending.loaded": "a read of pending rows has the table's snapshot, no row is read",
    "delivery.pinning": "a channel's watermark was read, and nothing is pinned by this exporter",
    "delivery.pinned": "a range is pinned, no chunk of it is recorded",
    "delivery.planned": "the chunks are recorded, none was sent",
    "delivery.shipped": "a chunk is at its destination, not yet acknowledged",
    "delivery.split": "a chunk was split into two, neither was sent",
    "delivery.given_up": "a refused row is in quarantine and its chunk acknowledged, the next was not sent",
    "delivery.replayed": "a quarantined row was replayed to its destination, the entry is still open",
    "delivery.acknowledged": "a chunk is acknowledged, the next was not sent",
    "task.segments_read": "a task has read its segments, and has not written the last of their rows",
    "task.range_done": "a task has done the work on a range, such as storing an object, and has not answered",
    "hub.stored": "a request's rows and its ledger row or receipt are written, not yet committed",
    "hub.accepted": "a request's rows are committed, the response was not sent",
    "table.base_recorded": "a target's base is on record, nothing was sent to it",
    "table.decided": "a target was read and does not have the chunk, nothing was sent since",
    "table.appended": "an append to a target returned, the target was not read since",
    "table.synced": "a chunk is durable in its target, not yet acknowledged",
    "run.exported": "a sink's scheduled tick has ended, its slot is not yet recorded",
    "fsck.mending": "a problem of the store was found twice, and is about to be repaired",
    "giving_up.moved": "the rest of a segment's file is in quarantine, the loss is not recorded",
    "fsck.mended": "a problem of the store is repaired, the next is not",
    "barrier.sending": "about to send an append without rows, after which a block can no longer land",
    "barrier.sent": "the append without rows returned, the block is still undecided",
    "split.written": "the two halves of a segment are written, neither is registered",
    "split.replaced": "the two halves are registered in a segment's place, its file still exists",
    "flush.released": "a void block's segments are free again",
    "adopt.read": "a part of the adopted data is read, nothing of it is stored",
    "adopt.stored": "a part of the adopted data is a registered segment, and the position is after it",
    "backfill.staging": "the rows that Spark read from a source are staged, not yet marked complete",
    "backfill.staged": "the rows that Spark read from a source are staged, none is stored",
    "backfill.spread": "workers have parsed a part of a large source, none of it is stored",
    "backfill.sealed": "a backfill has sealed the landing logs, no row of its source is stored",
    "backfill.read": "rows of a source are read and fitted, none is stored",
    "backfill.stored": "rows of a source are a registered segment, and the positions are after them",
    "backfill.loaded": "all rows of a source are in the spool, not yet committed",
    "settle.looked": "the settle function was called beside flushes to see if rows change, nothing is recorded",
    "settle.asked": "the settle function was called with committed rows, nothing is recorded",
    "settle.planned": "the changes of settling again are recorded, the commit is not sent",
    "settle.committed": "the commit that settles rows again returned, the table was not read since",
    "settle.superseded": "a commit that prevents a settlement from landing returned, the table was not read since",
    "settle.dropped": "the record of a settlement that can never land was removed",
    "removal.counted": "the rows to remove are counted, nothing is recorded",
    "removal.planned": "a removal of rows is recorded, none is removed",
    "removal.max_seq_raised": "the table has the highest number as a property, no row is removed",
    "removal.deleted": "the rows are deleted from a table, the records still say planned",
    "removal.recorded": "the rows are recorded as removed, old snapshots still contain them",
    "removal.expired": "the files are removed too, the operation has not ended",
    "compact.rewriting": "a bucket's files are about to be compacted",
    "compact.rewritten": "a bucket's files are compacted, the new ones may not be durable yet",
    "upkeep.synced": "rewritten files are durable and recorded, the old ones still exist",
    "upkeep.expiring": "no block is undecided, old snapshots are about to expire",
    "compact.manifests_joined": "a table's manifests are merged, not yet durable",
    "compact.expired": "old snapshots are expired, unreferenced files still exist",
    "backup.sealed": "the landing log is sealed for a backup, nothing is copied",
    "backup.records_copied": "a backup has the control database, no segment is copied",
    "backup.segments_copied": "a backup has the segments, it is not complete",
    "restore.spool_copied": "a restored store has its spool, and no control database",
    "restore.records_copied": "a restored store has its control database, and no settings",
    "move.fenced": "the control database refuses changes, nothing of it is at its new place",
    "move.copied": "the control database is at its new place, the settings name the old one",
    "move.begun": "a move of tables and segments is on record, nothing has moved",
    "move.marked": "the old lake has a mark for a table that the new lake does not have yet",
    "move.dataset_moved": "one dataset is in the new lake, others may be in the old one",
    "move.dropped": "every dataset is in the new lake, and nothing is in the old one",
    "move.recorded": "the records name the new lake and segments, the settings the old ones",
    "move.segments_copied": "every waiting segment is at the new place, the settings name the old one",
    "move.written": "the settings name the new lake and segments, the store is not checked",
    "fold.looked": "the files of committed segments were found to be removed; their records still exist",
    "fold.segments": "a batch of records of finished segments is deleted",
    "fold.blocks": "a batch of old blocks is joined",
    "fold.deliveries": "old intents of a channel are joined",
    "purge.segment_replaced": "a waiting segment was replaced by a copy without the purged rows",
    "purge.staged_written": "staged files of a backfill are copied without the purged rows, not used yet",
    "purge.staged_replaced": "a backfill uses the files without the purged rows, the old ones still exist",
    "purge.quarantine_cleared": "the payloads of purged rows are removed from quarantine",
    "rewind.recorded": "a sink is rewound in the records, nothing was sent since",
    "remove.forgotten": "the records of a dataset are deleted, its tables and files still exist",
    "remove.table_dropped": "one table of a removed dataset is dropped, others and its files may still exist",
    "remove.files_removed": "one directory of a removed dataset is removed, the records still say that it exists",
    "rebuild.taken_over": "a rebuild has its epoch, the staging table has the previous epoch's name, or does not exist",
    "rebuild.named": "the staging table, if it exists, has the epoch's name",
    "rebuild.copying": "about to send a copy",
    "rebuild.copied": "a copy returned, it is not yet durable",
    "rebuild.cleared": "rows that differ are deleted from the staging table, not yet copied again",
    "rebuild.caught_up": "the tables were compared and are equal, flushes continue",
    "rebuild.fenced": "the dataset is fenced in the records, its table still has its name",
    "rebuild.renamed": "the old table is renamed, its last block may be undecided",
    "rebuild.settled": "no block of the old table is undecided, the tables are not compared",
    "rebuild.equal": "the tables are equal after the fence, the pointer is not switched",
    "rebuild.switched": "the dataset has its new table",
    "rebuild.dropped": "a retired table is removed, the records still call it retired",
    "column.changed": "a column's type is corrected in the records, the table still has the old one",
    "column.dropped": "a table's column of the old type is dropped, one of the new type is not added",
    "eventlog.staged": "a transaction is in the staging file, synced, not yet in `events/`",
    "eventlog.renamed": "a transaction is in `events/`, its name not yet synced",
    "eventlog.committed": "a transaction is durable, its events are not yet numbered",
    "eventlog.ingested": "the lines of the ingestion log are written, not yet synced",
    "eventlog.index_staged": "a new index is written beside the old one",
    "eventlog.identity_made": "the replica has a new identity, its fingerprint is still the old one",
    "eventlog.applied": "a projection's effect is done, not yet committed",
    "eventlog.checkpointed": "a projection's effect and checkpoint are committed",
}

_armed: dict[str, Callable[[], None]] = {}


def reach(point: str) -> None:
    """Pass a fault point; an armed action runs now."""
    action = _armed.get(point)
    if action is not None:
        action()
    elif point not in POINTS:
        raise LookupError(f"fault point {point!r} is not declared in floodmark.faults")


def arm(point: str, action: Callable[[], None]) -> None:
    """Run an action whenever the point is reached."""
    if point not in POINTS:
        raise LookupError(f"fault point {point!r} is not declared in floodmark.faults")
    _armed[point] = action


def disarm_all() -> None:
    _armed.clear()


@contextlib.contextmanager
def disarmed() -> Iterator[None]:
    """Nothing is armed while the block runs: what another process does there stops nowhere."""
    armed = dict(_armed)
    disarm_all()
    try:
        yield
    finally:
        _armed.update(armed)


def kill_process() -> None:
    """Die like in a power loss: no handler, no flush, no clean-up."""
    os.kill(os.getpid(), signal.SIGKILL)


def nth_time(count: int, action: Callable[[], None]) -> Callable[[], None]:
    """Ignore the first `count - 1` passes."""
    left = count

    def step() -> None:
        nonlocal left
        left -= 1
        if left == 0:
            action()

    return step


def _arm_from_environment() -> None:
    wanted = os.environ.get("FLOODMARK_FAULT")
    if wanted:
        point, _, count = wanted.partition(":")
        if point not in POINTS or not re.fullmatch(r"[0-9]{0,9}", count):
            raise EnvironmentProblem(
                f"FLOODMARK_FAULT is {wanted[:80]!r}, which is not a fault point.",
                hint="It is for crash tests only. Unset it, or write flush.appended or flush.appended:3.",
            )
        arm(point, nth_time(int(count or 1), kill_process))


_arm_from_environment()
