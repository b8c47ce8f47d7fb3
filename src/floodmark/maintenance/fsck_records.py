"""The lake against the control database: numbers, commits, files."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark.commit.protocol import TableState
from floodmark.commit.recovery import catch_up, decide, recover_dataset
from floodmark.control import blocks, datasets, deliveries, generations, inspection, quarantine, removals
from floodmark.control.blocks import Block
from floodmark.control.datasets import Dataset, PartitionTotals
from floodmark.control.deliveries import Channel, check_tiling
from floodmark.control.inspection import BlockRecord, IntentRecord, Removal
from floodmark.control.quarantine import Entry
from floodmark.control.removals import Operation
from floodmark.delivery.destination import Finding
from floodmark.engine import Engine
from floodmark.errors import FilesMissing
from floodmark.lake import inventory, queries
from floodmark.maintenance.audit import lake_differences
from floodmark.maintenance.findings import (
    REPAIR,
    Problem,
    flush_is_running,
    rebuild_is_running,
    table_now,
    worth_knowing,
)
from floodmark.sequence import SequenceRange, Tally

_RESTORE = "Restore the file from a backup; until then the rows in it cannot be read."


def check_lake(engine: Engine, dataset: Dataset, *, deep: bool) -> Iterator[Problem]:
    try:
        state = table_now(engine, dataset)
        files = None if state is None else engine.lake.files(state, check=True)
    except FilesMissing as error:
        found = Finding("file-missing", error.message, f"{dataset.name} metadata", _RESTORE)
        yield Problem(found, _recover(engine, dataset))
        return
    if state is None or files is None:
        if dataset.horizon and not dataset.fenced:
            what = f"The table {dataset.table_name!r} is missing, and rows up to {dataset.horizon} are committed."
            yield Problem(Finding("table-missing", what, dataset.name, "Restore the lake's directory, or its catalog."))
        return
    for file in files.missing:
        what = f"A file that the table refers to is missing or damaged: {file}."
        # Only what never was known to be on the disk may be undone automatically.
        found = Finding("file-missing", what, f"{dataset.name} {file}", _RESTORE)
        yield Problem(found, _recover(engine, dataset) if state.head != dataset.synced_snapshot else None)
    for file in files.twice:
        what = f"The table refers to data file {file} twice: its rows are read twice."
        run = f"Run `floodmark rebuild {dataset.name}`."
        yield Problem(Finding("file-twice", what, f"{dataset.name} {file}", run))
    if not files.missing:
        yield from _commits(engine, dataset, state, deep=deep)


def _recover(engine: Engine, dataset: Dataset) -> Callable[[], str]:
    def repair() -> str:
        recover_dataset(engine, dataset.name)
        return "The recovery steps of a flush were run."

    return repair


def _commits(engine: Engine, dataset: Dataset, state: TableState, *, deep: bool) -> Iterator[Problem]:
    forgotten = forgotten_commits(engine, dataset, state)
    if forgotten is not None:
        what = f"The table has rows in {forgotten} that the control database does not have."
        run = f"Was it restored from a backup? Run `floodmark flush {dataset.name}`: it records them."
        found = worth_knowing(Finding("commits-forgotten", what, dataset.name, run, forgotten))
        yield Problem(found, lambda: _caught_up(engine, dataset, state))
        return
    lost = list(_rolled_back(engine, dataset, state))
    if lost:
        span = SequenceRange(lost[-1].range.after, lost[0].range.through)
        rows = sum(item.rows for item in lost)
        what = f"{rows} rows of {span} were committed, and the table's history no longer has these commits."
        snapshot = next((item.snapshot for item in lost if item.snapshot is not None), None)
        run = f"Was the table rolled back? Set its current snapshot to {snapshot} again, or restore the lake."
        yield Problem(Finding("table-rolled-back", what, dataset.name, run, span))
    elif deep and state.head is not None:
        yield from map(Problem, _counted(engine, dataset.name, state))


def forgotten_commits(engine: Engine, dataset: Dataset, state: TableState) -> SequenceRange | None:
    """What the table shows above everything that is on record."""
    highest = inventory.highest_seq(engine.lake, state)
    horizon, undecided = engine.database.read(
        lambda c: (datasets.get(c, dataset.name).horizon, blocks.undecided(c, dataset.name))
    )
    known = max(horizon, undecided.range.through if undecided else 0)
    if state.head is None or highest <= known:
        return None
    span = SequenceRange(known, highest)
    return span if queries.has_rows(engine.lake, state.name, snapshot=state.head, within=span) else None


def _caught_up(engine: Engine, dataset: Dataset, state: TableState) -> str:
    catch_up(engine, dataset, state)
    horizon = engine.database.read(lambda c: datasets.get(c, dataset.name)).horizon
    return f"The commits of {dataset.name} up to {horizon} are recorded again."


def _rolled_back(engine: Engine, dataset: Dataset, state: TableState) -> Iterator[BlockRecord]:
    """From the newest block back, those whose commit is not in the history and whose rows are not to be seen.

    A commit may be missing there because its snapshot has expired: its rows are still visible then.
    """
    known = {snapshot.id for snapshot in state.lineage}
    recorded, removed = engine.database.read(
        lambda c: (inspection.committed_blocks(c, dataset.name), inspection.removals_of(c, dataset.name))
    )
    for block in recorded:
        if block.snapshot in known and block.generation == dataset.generation:
            return
        if not block.rows or _was_removed(block, removed):
            continue
        if state.head is not None and queries.has_rows(
            engine.lake, state.name, snapshot=state.head, within=block.range
        ):
            return
        yield block


def _was_removed(block: BlockRecord, removed: list[Removal]) -> bool:
    return sum(item.tally.rows for item in removed if item.range.intersect(block.range)) >= block.rows


def _counted(engine: Engine, name: str, state: TableState) -> Iterator[Finding]:
    dataset = engine.database.read(lambda c: datasets.get(c, name))  # the horizon before the table: I9
    state = table_now(engine, dataset) or state
    if state.head is None:
        return
    stats = queries.stats(
        engine.lake,
        state.name,
        snapshot=state.head,
        within=SequenceRange(0, dataset.horizon),
        partition_by=dataset.partition_by,
    )
    recorded, removed = engine.database.read(
        lambda c: (inspection.totals_of_blocks(c, name), inspection.removals_of(c, name))
    )
    yield from lake_differences(name, {item.partition: item.tally for item in stats}, recorded, removed)


def check_numbers(engine: Engine) -> Iterator[Problem]:
    """The allocator, which is the whole store's."""
    seen = 0
    for dataset in engine.database.read(datasets.everyone):
        try:
            state = table_now(engine, dataset)
        except FilesMissing:
            continue
        seen = max(seen, 0 if state is None else inventory.highest_seq(engine.lake, state))
    has, needs = engine.database.read(lambda c: (blocks.allocated(c), blocks.highest_number(c, seen_through=seen)))
    if has < needs:
        what = f"The next sequence number would be {has + 1}, but {needs} is already used."
        found = worth_knowing(Finding("allocator-behind", what, "the store", f"The next flush raises it. {REPAIR}"))

        def repair() -> str:
            engine.database.transact(lambda c: blocks.raise_allocator(c, seen_through=seen))
            return f"The allocator is raised to {needs}."

        yield Problem(found, repair)


# ── The control database against itself ──────────────────────────────────────────────────────────────────────────────


_BACKUP = "Restore the control database from an intact backup: a flush finds the newer commits of the lake."


@dataclass(frozen=True, slots=True)
class _Records:
    undecided: Block | None
    horizon: int
    committed_through: int
    ahead: list[tuple[Channel, int]]
    intents: list[IntentRecord]
    marks: dict[Channel, int]
    partitions: list[PartitionTotals]
    totals: dict[str, Tally]
    removals: list[Removal]
    unfinished: Operation | None
    entries: list[Entry]


def check_records(engine: Engine, dataset: Dataset) -> Iterator[Problem]:
    name = dataset.name
    records = engine.database.read(lambda c: _read(c, name))
    if records.undecided is not None and not flush_is_running(engine.root, name):
        what = f"Block {records.undecided.range} is undecided: a flush ended before it was known to be committed."
        run = f"Nothing is lost. The next flush decides it: run `floodmark flush {name}`."
        found = worth_knowing(Finding("block-undecided", what, name, run, records.undecided.range))
        yield Problem(found, lambda: _decided(engine, name))
    if records.horizon != records.committed_through:
        what = f"The horizon is {records.horizon}, and the last committed block ends at {records.committed_through}."
        yield Problem(Finding("horizon-differs", what, name, _BACKUP))
    yield from map(Problem, _rebuild(engine, dataset))
    yield from map(Problem, _marks(name, records))
    yield from map(Problem, _intents(name, records))
    yield from map(Problem, _partitions(name, records))
    yield from map(Problem, _removals(name, records))
    for entry in records.entries:
        if entry.payload_path is not None and not (engine.root / entry.payload_path).exists():
            what = f"The payload of quarantine entry {entry.id[:12]} is missing: {entry.payload_path}."
            run = f"Restore the file, or `floodmark quarantine discard {entry.id[:12]}`."
            yield Problem(Finding("payload-missing", what, f"{name} {entry.payload_path}", run))


def _rebuild(engine: Engine, dataset: Dataset) -> Iterator[Finding]:
    """A rebuild that no process works on. After the fence it blocks every flush."""
    begun = engine.database.read(lambda c: generations.unfinished(c, dataset.name))
    if begun is None or rebuild_is_running(engine.root, dataset.name):
        return
    waits = "; flushes wait for it" if dataset.fenced else ""
    what = f"A rebuild of {dataset.name!r} was started and not completed{waits}."
    found = Finding("rebuild-unfinished", what, dataset.name, f"Run `floodmark rebuild {dataset.name}`: it continues.")
    yield found if dataset.fenced else worth_knowing(found)


def _read(connection: Connection, name: str) -> _Records:
    intents = inspection.every_intent(connection, name)
    marks = {}
    for channel in {item.intent.channel for item in intents}:
        mark = deliveries.watermark(connection, channel)
        if mark is not None:
            marks[channel] = mark.seq
    horizon = datasets.get(connection, name).horizon
    return _Records(
        blocks.undecided(connection, name),
        horizon,
        inspection.highest_committed(connection, name),
        inspection.watermarks_above(connection, name, horizon),
        intents,
        marks,
        datasets.partition_totals(connection, name),
        inspection.totals_of_blocks(connection, name),
        inspection.removals_of(connection, name),
        removals.unfinished(connection, name),
        quarantine.entries(connection, dataset=name),
    )


def _decided(engine: Engine, name: str) -> str | None:
    before = engine.database.read(lambda c: blocks.undecided(c, name))
    if before is None:
        return None
    decide(engine, name)
    after = engine.database.read(lambda c: blocks.get(c, before.id))
    return f"Block {before.range} of {name} is {'deleted' if after is None else after.state}."


def _marks(name: str, records: _Records) -> Iterator[Finding]:
    for channel, seq in records.ahead:
        what = f"A watermark of sink instance {channel.sink} is at {seq}, and the horizon is {records.horizon}."
        run = (
            f"Was the control database restored from a backup? `floodmark flush {name}` restores its records. "
            "If this remains, remove the sink and add it again: it queries its destination."
        )
        yield Finding("watermark-ahead", what, f"{name} {channel.partition}", run)


def _intents(name: str, records: _Records) -> Iterator[Finding]:
    for item in records.intents:
        intent = item.intent
        where = f"{name} {intent.channel.partition} intent {intent.id[:12]}"
        try:
            check_tiling(intent.range, [chunk.range for chunk in item.chunks])
        except ValueError:
            if item.chunks or item.state == "closed":
                what = f"The chunks of the pinned range {intent.range} do not cover it exactly."
                yield Finding("chunks-do-not-tile", what, where, _BACKUP, intent.range)
        pending = sum(chunk.state == "pending" for chunk in item.chunks)
        if item.state == "closed" and pending:
            what = f"The pinned range {intent.range} is closed, and {pending} chunks of it are not acknowledged."
            yield Finding("intent-unsettled", what, where, "Run `floodmark audit` for its sink.", intent.range)
        mark = records.marks.get(intent.channel)
        if item.state == "open" and mark is not None and intent.range.after > mark:
            what = f"The pinned range {intent.range} starts above the watermark {mark}: rows between were never sent."
            yield Finding("intent-beyond-watermark", what, where, _BACKUP, intent.range)
    yield from map(worth_knowing, _lost_marks(name, records))


def _lost_marks(name: str, records: _Records) -> Iterator[Finding]:
    settled: dict[Channel, int] = {}
    for item in records.intents:
        if item.state == "closed":
            channel = item.intent.channel
            settled[channel] = max(settled.get(channel, 0), item.intent.range.through)
    for channel, through in settled.items():
        if records.marks.get(channel, 0) < through:
            what = f"Everything up to {through} is acknowledged, and the watermark is {records.marks.get(channel, 0)}."
            run = "The next export queries the destination, and continues after the rows that it has."
            yield Finding("watermark-behind", what, f"{name} {channel.partition}", run)


def _partitions(name: str, records: _Records) -> Iterator[Finding]:
    """U17: a partition's own figures are those of its blocks without what was removed."""
    removed: dict[str, Tally] = {}
    for item in records.removals:
        if item.state == "planned":
            continue
        removed[item.partition] = removed.get(item.partition, Tally()) + item.tally
    known = {item.partition: item.tally for item in records.partitions}
    for partition in sorted({*known, *records.totals}):
        have = known.get(partition, Tally())
        left = records.totals.get(partition, Tally()) - removed.get(partition, Tally())
        if have != left:
            what = f"The partition counts {have.rows} rows, and its blocks without what was removed {left.rows}"
            what += "." if have.rows != left.rows else ", others."
            yield Finding("partition-differs", what, f"{name} {partition}", _BACKUP)


def _removals(name: str, records: _Records) -> Iterator[Finding]:
    begun = {item.operation for item in records.removals if item.state == "planned"}
    if records.unfinished is not None:  # settling again may remove nothing
        begun = {records.unfinished.id}
    for operation in sorted(begun):
        what = f"A removal of rows, or settling them again, was started and not completed ({operation})."
        run = f"Run the same command again: `floodmark retain`, `purge` or `compact {name}` completes it."
        yield worth_knowing(Finding("removal-unfinished", what, f"{name} {operation}", run))
