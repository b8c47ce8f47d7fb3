"""Folding: the records of old commits and deliveries become a few, so that the control database stays small.

    segments that are committed and whose files are gone → deleted
      → old blocks joined → old deliveries joined, channel by channel → rows of removed landing files forgotten

Totals, numbers and answers stay what they were (U35); only the steps between are no longer told one by one: of a row
that was committed long ago `trace` names the joined range instead of its block and its chunk. Everything is done in
transactions of bounded size, each of which leaves a sound database: after a crash the next run goes on. Any number of
processes may fold at once, beside flushes and exports.

Invariants
- U36 A segment's record goes only after its file has gone for good. A file without a record would be taken for one that
  a restored control database has forgotten, and its rows be committed again.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import datasets
from floodmark.control import folding as records
from floodmark.control.deliveries import Channel
from floodmark.engine import Engine
from floodmark.folding import block_runs, intent_runs, rows_per_block
from floodmark.maintenance.fsck_spool import age_out
from floodmark.spool.segments import without_files

BATCH = 500
"""How many records one transaction reads: it keeps flushes and exports waiting."""
BATCHES_MAX = 2_000
"""How many transactions one call makes of each kind: the next call goes on."""


@dataclass(frozen=True, slots=True)
class Kept:
    """The newest records, which stay as they are: processes may still work on them, and people look at them."""

    blocks: int = 100
    """Of each dataset, with their segments."""
    intents: int = 20
    """Of each channel."""
    segments_age: timedelta = timedelta(minutes=10)
    """A segment's record stays at least so long, whatever was committed since …"""
    sources_age: timedelta = timedelta(days=1)
    """… and that of a source's step so long: a backfill counts its own at its end."""


KEPT = Kept()


@dataclass(frozen=True, slots=True)
class DatasetFolding:
    """How many records of a dataset are gone, each replaced by another that includes it, or needed no more."""

    dataset: str
    segments: int = 0
    blocks: int = 0
    intents: int = 0
    chunks: int = 0

    @property
    def records(self) -> int:
        return self.segments + self.blocks + self.intents + self.chunks


def fold_dataset(engine: Engine, dataset: str, *, kept: Kept = KEPT) -> DatasetFolding:
    """Join the old records of one dataset."""
    segments = _fold_segments(engine, dataset, kept)
    blocks = _fold_blocks(engine, dataset, kept)
    intents = chunks = 0
    for channel in engine.database.read(lambda c: records.long_channels(c, dataset, keep=kept.intents)):
        joined = _fold_deliveries(engine, channel, kept)
        intents, chunks = intents + joined[0], chunks + joined[1]
    age_out(engine, dataset)
    return DatasetFolding(dataset, segments, blocks, intents, chunks)


def _fold_segments(engine: Engine, dataset: str, kept: Kept) -> int:
    count, position = 0, -1
    now = engine.clock.now()

    def finished(connection: Connection) -> list[int]:
        return records.finished_segments(
            connection,
            dataset,
            before=now - kept.segments_age,
            sources_before=now - kept.sources_age,
            below=records.newest_but(connection, dataset, count=kept.blocks),
            after=position,
            count_max=BATCH,
        )

    for _ in range(BATCHES_MAX):
        found = engine.database.read(finished)
        if not found:
            break
        position = found[-1]
        gone = gone_for_good(engine, dataset, found)
        faults.reach("fold.looked")
        count += engine.database.transact(partial(records.forget_segments, ids=gone))
        faults.reach("fold.segments")
    return count


def gone_for_good(engine: Engine, dataset: str, segments: Sequence[int]) -> list[int]:
    """U36: those of which no file is left, nor comes back."""
    return without_files(engine, dataset, segments)


def _fold_blocks(engine: Engine, dataset: str, kept: Kept) -> int:
    count, position = 0, 0
    for _ in range(BATCHES_MAX):
        joined, position_next = engine.database.transact(
            partial(_join_blocks, engine=engine, dataset=dataset, kept=kept, after=position)
        )
        count += joined
        if joined:
            faults.reach("fold.blocks")
        if position_next is None:
            break
        position = position_next
    return count


def _join_blocks(
    connection: Connection, *, engine: Engine, dataset: str, kept: Kept, after: int
) -> tuple[int, int | None]:
    """How many blocks are gone, and where the next batch begins; None behind the last one."""
    through = records.newest_but(connection, dataset, count=kept.blocks)
    found = records.block_spans(connection, dataset, after=after, through=through, count_max=BATCH)
    runs = block_runs(
        found,
        rows_max=rows_per_block(datasets.row_count(connection, dataset)),
        watermarks=records.lagging_watermarks(connection, dataset),
        now=engine.clock.now(),
    )
    gone = 0
    end = found[-1].range.through if found else 0
    for run in runs:
        through = records.join_blocks(connection, [span.id for span in run])
        gone += len(run) - 1
        end = through if run[-1] == found[-1] else end
    # The last one of a batch may be joined with the first one of the next.
    return gone, None if len(found) < BATCH else end - 1


def _fold_deliveries(engine: Engine, channel: Channel, kept: Kept) -> tuple[int, int]:
    intents = chunks = position = 0
    for _ in range(BATCHES_MAX):
        joined, gone, position_next = engine.database.transact(
            partial(_join_deliveries, channel=channel, kept=kept, after=position)
        )
        intents, chunks = intents + joined, chunks + gone
        if joined or gone:
            faults.reach("fold.deliveries")
        if position_next is None:
            break
        position = position_next
    return intents, chunks


def _join_deliveries(
    connection: Connection, *, channel: Channel, kept: Kept, after: int
) -> tuple[int, int, int | None]:
    found = records.intent_spans(connection, channel, after=after, keep=kept.intents, count_max=BATCH)
    intents = chunks = 0
    begins = [span.range.after for span in found]
    for run in intent_runs(found):
        chunks += records.join_intents(connection, run)
        intents += len(run) - 1
        begins = [begin for begin in begins if begin not in {span.range.after for span in run[1:]}]
    if len(found) < BATCH:
        return intents, chunks, None
    # The last one of a batch may be joined with the first one of the next.
    return intents, chunks, begins[-1] if intents or begins[-1] > after else after + 1
