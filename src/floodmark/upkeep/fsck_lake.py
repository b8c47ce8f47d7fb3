"""The lake against the control database: numbers, commits, files."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from floodmark.commit import TableState
from floodmark.control import blocks, datasets, inspection
from floodmark.control.datasets import Dataset
from floodmark.control.inspection import BlockRecord, Removal
from floodmark.errors import FilesMissing
from floodmark.sequence import SequenceRange
from floodmark.upkeep.audit import lake_differences
from floodmark.upkeep.findings import Finding
from floodmark.upkeep.mending import REPAIR, Problem, Workshop, worth_knowing

_RESTORE = "Restore the file from a backup; until then the rows in it cannot be read."


def check_lake(workshop: Workshop, dataset: Dataset, *, deep: bool) -> Iterator[Problem]:
    try:
        state = workshop.table(dataset)
        files = None if state is None else workshop.lake.inspect_files(state)
    except FilesMissing as error:
        found = Finding("file-missing", error.message, f"{dataset.name} metadata", _RESTORE)
        yield Problem(found, _recover(workshop, dataset))
        return
    if state is None or files is None:
        if dataset.horizon and not dataset.fenced:
            what = f"The table {dataset.table_name!r} is not there, and rows up to {dataset.horizon} are committed."
            yield Problem(Finding("table-missing", what, dataset.name, "Restore the lake's directory, or its catalog."))
        return
    for file in files.missing:
        what = f"A file that the table refers to is missing, or not whole: {file}."
        # Only what never was known to be on the disk may be undone by itself.
        found = Finding("file-missing", what, f"{dataset.name} {file}", _RESTORE)
        yield Problem(found, _recover(workshop, dataset) if state.head != dataset.synced_snapshot else None)
    for file in files.twice:
        what = f"The table refers to data file {file} twice: its rows are read twice."
        run = f"Run `floodmark rebuild {dataset.name}`."
        yield Problem(Finding("file-twice", what, f"{dataset.name} {file}", run))
    if not files.missing:
        yield from _commits(workshop, dataset, state, deep=deep)


def _recover(workshop: Workshop, dataset: Dataset) -> Callable[[], str]:
    def mend() -> str:
        workshop.recovery().run(dataset.name, workshop.settle)
        return "The steps of a flush that finds a store after a crash were taken."

    return mend


def _commits(workshop: Workshop, dataset: Dataset, state: TableState, *, deep: bool) -> Iterator[Problem]:
    forgotten = forgotten_commits(workshop, dataset, state)
    if forgotten is not None:
        what = f"The table has rows in {forgotten} that the control database knows nothing of."
        run = f"Was it restored from a backup? Run `floodmark flush {dataset.name}`: it records them."
        found = worth_knowing(Finding("commits-forgotten", what, dataset.name, run, forgotten))
        yield Problem(found, lambda: _caught_up(workshop, dataset, state))
        return
    lost = list(_rolled_back(workshop, dataset, state))
    if lost:
        span = SequenceRange(lost[-1].range.after, lost[0].range.through)
        rows = sum(item.rows for item in lost)
        what = f"{rows} rows of {span} were committed, and the table's history has no such commits any more."
        snapshot = next((item.snapshot for item in lost if item.snapshot is not None), None)
        run = f"Was the table rolled back? Set its current snapshot to {snapshot} again, or restore the lake."
        yield Problem(Finding("table-rolled-back", what, dataset.name, run, span))
    elif deep and state.head is not None:
        yield from map(Problem, _counted(workshop, dataset.name, state))


def forgotten_commits(workshop: Workshop, dataset: Dataset, state: TableState) -> SequenceRange | None:
    """What the table shows above everything that is on record."""
    highest = workshop.lake.highest_seq(state)
    horizon, undecided = workshop.database.read(
        lambda c: (datasets.get(c, dataset.name).horizon, blocks.undecided(c, dataset.name))
    )
    known = max(horizon, undecided.range.through if undecided else 0)
    if state.head is None or highest <= known:
        return None
    span = SequenceRange(known, highest)
    return span if workshop.lake.has_rows(state.name, snapshot=state.head, within=span) else None


def _caught_up(workshop: Workshop, dataset: Dataset, state: TableState) -> str:
    workshop.recovery().catch_up(dataset, state, workshop.settle)
    horizon = workshop.database.read(lambda c: datasets.get(c, dataset.name)).horizon
    return f"The commits of {dataset.name} up to {horizon} are on record again."


def _rolled_back(workshop: Workshop, dataset: Dataset, state: TableState) -> Iterator[BlockRecord]:
    """From the newest block back, those whose commit is not in the history and whose rows are not to be seen.

    A commit may be missing there because its snapshot has expired: then its rows are visible all the same.
    """
    known = {snapshot.id for snapshot in state.lineage}
    recorded, removed = workshop.database.read(
        lambda c: (inspection.committed_blocks(c, dataset.name), inspection.removals_of(c, dataset.name))
    )
    for block in recorded:
        if block.snapshot in known and block.generation == dataset.generation:
            return
        if not block.rows or _was_removed(block, removed):
            continue
        if state.head is not None and workshop.lake.has_rows(state.name, snapshot=state.head, within=block.range):
            return
        yield block


def _was_removed(block: BlockRecord, removed: list[Removal]) -> bool:
    return sum(item.tally.rows for item in removed if item.range.intersect(block.range)) >= block.rows


def _counted(workshop: Workshop, name: str, state: TableState) -> Iterator[Finding]:
    dataset = workshop.database.read(lambda c: datasets.get(c, name))  # the horizon before the table: I9
    state = workshop.table(dataset) or state
    if state.head is None:
        return
    figures = workshop.lake.figures(
        state.name,
        snapshot=state.head,
        within=SequenceRange(0, dataset.horizon),
        partition_by=dataset.partition_by,
    )
    recorded, removed = workshop.database.read(
        lambda c: (inspection.totals_of_blocks(c, name), inspection.removals_of(c, name))
    )
    yield from lake_differences(name, {item.partition: item.tally for item in figures}, recorded, removed)


def check_numbers(workshop: Workshop) -> Iterator[Problem]:
    """The allocator, which is the whole store's."""
    seen = 0
    for dataset in workshop.database.read(datasets.everyone):
        try:
            state = workshop.table(dataset)
        except FilesMissing:
            continue
        seen = max(seen, 0 if state is None else workshop.lake.highest_seq(state))
    has, needs = workshop.database.read(lambda c: (blocks.allocated(c), blocks.highest_number(c, seen_through=seen)))
    if has < needs:
        what = f"The next number would be {has + 1}, and number {needs} is taken."
        found = worth_knowing(Finding("allocator-behind", what, "the store", f"The next flush raises it. {REPAIR}"))

        def mend() -> str:
            workshop.database.transact(lambda c: blocks.raise_allocator(c, seen_through=seen))
            return f"The allocator is raised to {needs}."

        yield Problem(found, mend)
