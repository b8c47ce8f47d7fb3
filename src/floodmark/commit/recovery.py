"""Recovery: what a process does before its first commit to a dataset, after any crash.

    raise: the allocator above everything that carries a number, in every dataset (once per process)
    roll back: changes of a table whose files were lost in a power loss → to the snapshot before them
    catch up: commits that the table shows and a restored control database has forgotten → recorded, and on each host
        the lines of its landing logs that are in them → passed over
    register: segment files without a record in a restored control database → registered
    clean up: segments of dead writers dropped, files of committed segments removed

The undecided block itself is decided by the flush that finds it (`commit.block.decide_block`).

Invariants
- I10 One dataset's damage is its own. All but the allocator is done for one dataset alone, when something is done with
  it, and is tried again the next time if it fails. The allocator is the store's: of a table that cannot be read its
  directory still gives a number above all of its rows, and the numbers are raised above that.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from functools import partial

from sqlalchemy import Connection

from floodmark.commit.block import Decided, decide_block
from floodmark.commit.protocol import Base, Snapshot, TableState
from floodmark.control import blocks, datasets, losses, problems, quarantine, removals
from floodmark.control import segments as segment_records
from floodmark.control.blocks import Block
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.removals import Operation
from floodmark.control.segments import LandingRange
from floodmark.engine import Engine
from floodmark.errors import Corrupt, FilesMissing, FloodmarkError, UnknownDataset, reason_of
from floodmark.files import make_directory
from floodmark.lake import inventory, queries
from floodmark.lake.generations import find_table
from floodmark.sequence import SequenceRange
from floodmark.spool.sealing import landing_lines
from floodmark.spool.segments import drop_dead_writers, remove_leftovers, segment_files
from floodmark.spool.unregistered import register_files

CAUGHT_UP = "caught-up"
"""A file in a dataset's spool: which commits, found by any host, this host has looked for its own lines in."""


def recover(engine: Engine, dataset: str) -> None:
    """Recover a dataset, once per process. A failure is recorded as the dataset's problem (I10)."""
    try:
        recover_dataset(engine, dataset)
    except FloodmarkError as error:
        remember_problem(engine, dataset, error)
        raise


def decide(engine: Engine, dataset: str) -> list[Decided]:
    """I8: decide the undecided block that any process left, of a dataset that is recovered first (I10)."""
    recover(engine, dataset)
    return decide_block(engine, dataset)


def remember_problem(engine: Engine, dataset: str, error: Exception, *, segments_max: int | None = None) -> None:
    """I10. A failure to record it must not hide the error itself."""
    if isinstance(error, UnknownDataset):
        return
    if isinstance(error, FilesMissing):
        # A catalog's client that did not hear of its own commit deletes the files of it, while we live: the next
        # attempt looks again whether it may go back.
        engine.recovered.datasets.discard(dataset)
    message = str(error) if isinstance(error, FloodmarkError) else reason_of(error)
    with contextlib.suppress(FloodmarkError):
        engine.database.transact(
            lambda c: problems.record(c, dataset, message, now=engine.clock.now(), segments_max=segments_max)
        )


def recover_dataset(engine: Engine, dataset: str) -> None:
    """Before the first commit of this process to a dataset: numbers above everything, debris of others away."""
    raise_numbers(engine)
    if dataset in engine.recovered.datasets:
        return
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    gone = _roll_back(engine, declared)
    if gone:
        engine.database.transact(lambda c: blocks.raise_allocator(c, seen_through=gone))
    declared, state = find_table(engine.database, engine.lake, declared)
    if state is not None:
        catch_up(engine, declared, state)
        _pass_over_own_lines(engine, declared, state)
    drop_dead_writers(engine, dataset)
    remove_leftovers(engine, dataset)
    register_files(engine, declared)
    engine.recovered.datasets.add(dataset)


def raise_numbers(engine: Engine) -> None:
    """I1, once per process: every table is read, those of damaged datasets too."""
    if engine.recovered.numbers_raised:
        return
    seen = max((_highest(engine, item) for item in engine.database.read(datasets.everyone)), default=0)
    engine.database.transact(lambda c: blocks.raise_allocator(c, seen_through=seen))
    engine.recovered.numbers_raised = True


def _highest(engine: Engine, declared: Dataset) -> int:
    """A number that no row of the dataset is above. A missing table has none: the records have the rest."""
    highest = 0
    for name in (declared.table_name, declared.fenced_name):
        try:
            state = engine.lake.load(name)
            highest = max(highest, 0 if state is None else inventory.highest_seq(engine.lake, state))
        except FilesMissing as error:
            bound = engine.lake.numbers_bound(name, width=declared.layout.bucket_width)  # I10
            if bound is None:
                raise Corrupt(
                    f"New rows cannot get sequence numbers: {error.message} It is not known which numbers it has used.",
                    hint=f"Restore the table of dataset {declared.name!r}. Captured rows are safe in the spool.",
                ) from error
            highest = max(highest, bound)
    return highest


def _roll_back(engine: Engine, declared: Dataset) -> int:
    """Undo changes of a table whose files never reached the disk before a power loss (I7, U4).

    Only what loses nothing: see `is_droppable`. Files missing from any other commit are damage that no repetition
    repairs, and stay an error. Returns the highest number that the records did not have and that was removed now.
    """
    forgotten = [0]
    block, removing = engine.database.read(
        lambda c: (blocks.undecided(c, declared.name), removals.unfinished(c, declared.name))
    )
    own = declared if block is None else declared.of_generation(block.base.generation)

    def droppable(snapshot: Snapshot) -> bool:
        if is_droppable(snapshot, block=block, removing=removing):
            return True
        if not _is_forgotten(engine, declared, snapshot):
            return False
        forgotten.append(snapshot.through or 0)
        return True

    for table in (own.table_name, own.fenced_name):
        try:
            _make_durable(engine, own, table)
        except FilesMissing:
            if not engine.lake.rollback(table, durable=own.synced_snapshot, droppable=droppable):
                raise
            _make_durable(engine, own, table)
    return max(forgotten)


def _is_forgotten(engine: Engine, declared: Dataset, snapshot: Snapshot) -> bool:
    """Whether an append is of a block that a restored control database does not have, and all of its segments
    are still there (I7): it was not complete at the power loss. They are flushed again.
    """
    id = snapshot.block
    if snapshot.operation != "append" or id is None or not snapshot.segments:
        return False
    if engine.database.read(lambda c: blocks.get(c, id)) is not None:
        return False
    there = segment_files(engine, declared.name).values()
    return snapshot.segments <= set(there)


def _make_durable(engine: Engine, declared: Dataset, table: str) -> None:
    state = engine.lake.load(table)
    if state is None or state.head in (None, declared.synced_snapshot):
        return
    engine.lake.sync(state, since=declared.synced_snapshot)
    engine.database.transact(lambda c: datasets.record_synced(c, declared, snapshot=state.head))


def catch_up(engine: Engine, declared: Dataset, state: TableState) -> None:
    """Catch up with commits that the table shows and this control database has forgotten.

    That happens when it was restored from a backup. The segments of those commits are still `sealed` in it, and
    their landing lines unsealed: flushing them again would double every row.
    """
    highest = inventory.highest_seq(engine.lake, state)
    # Read after the table, both at one instant: every block that it shows was reserved before, so by now it is
    # undecided or below the horizon. An older horizon would take another flush's fresh commit for a forgotten one.
    declared, undecided = engine.database.read(
        lambda c: (datasets.get(c, declared.name), blocks.undecided(c, declared.name))
    )
    known = max(declared.horizon, undecided.range.through if undecided else 0)
    if state.head is None or highest <= known:
        return
    forgotten = SequenceRange(known, highest)
    if not queries.has_rows(engine.lake, state.name, snapshot=state.head, within=forgotten):
        return
    if undecided is not None:
        decide_block(engine, declared.name)
    committed = queries.segments_above(engine.lake, state.name, snapshot=state.head, after=declared.horizon)
    engine.lake.sync(state, since=None)
    stats = queries.stats(
        engine.lake, state.name, snapshot=state.head, within=forgotten, partition_by=declared.partition_by
    )
    block = Block(
        id=f"{blocks.FOUND}{state.head}",
        dataset=declared.name,
        # From its own first number: below it, another dataset's block may begin.
        range=SequenceRange(min(item.first_seq for item in stats) - 1, highest),
        base=Base(state.uuid, declared.generation, None),
        state="reserved",
        snapshot=state.head,
    )
    lines = list(landing_lines(engine, declared.name, committed))
    files = frozenset(engine.segments.names(declared.name))

    def work(connection: Connection) -> None:
        if datasets.get(connection, declared.name).horizon >= highest:
            return  # another process has caught up
        waiting = segment_records.sealed_paths(connection, declared.name)
        # A segment's file is removed only after its block is decided, so one without its file is done with too:
        # all its rows were duplicates, and none of them is in the table.
        gone = {id for id, path in waiting.items() if path.rpartition("/")[2] not in files}
        segment_records.consume(connection, (waiting.keys() & committed) | gone)
        for lost in losses.of_dataset(connection, declared.name):
            if lost.segment in committed:  # U33: its block landed after all
                losses.forget(connection, lost.segment)
        _pass_over(connection, engine=engine, declared=declared, lines=lines)
        rows = sum(item.tally.rows for item in stats)
        blocks.record_found(connection, block, rows=rows, stats=stats, now=engine.clock.now())
        blocks.raise_allocator(connection, seen_through=highest)

    engine.database.transact(work)


def _pass_over_own_lines(engine: Engine, declared: Dataset, state: TableState) -> None:
    """I7: the lines of this host's landing logs that are in commits which another host has caught up with: only
    their own host sees them. Once per host.
    """
    found = engine.database.read(lambda c: blocks.found(c, declared.name))
    noted = engine.root / "spool" / declared.name / CAUGHT_UP
    text = "".join(f"{block.id}\n" for block in found)
    if not found or state.head is None or (noted.exists() and noted.read_text() == text):
        return
    for block in found:
        own = queries.segment_rows(engine.lake, state.name, snapshot=state.head, within=block.range)
        lines = list(landing_lines(engine, declared.name, set(own)))
        engine.database.transact(partial(_pass_over, engine=engine, declared=declared, lines=lines))
    make_directory(noted.parent, private=True)
    noted.write_text(text)  # if it is lost, they are looked for again


def _pass_over(
    connection: Connection,
    *,
    engine: Engine,
    declared: Dataset,
    lines: Sequence[tuple[int, LandingRange, list[QuarantineInput]]],
) -> None:
    """Lines whose rows are committed count as sealed; what among them was no row goes to quarantine."""
    for _, item, quarantined in lines:
        segment_records.landing_offset(connection, file=item.file, dataset=declared.name)
        if segment_records.advance_landing(connection, item):
            quarantine.hold(connection, declared.name, quarantined, now=engine.clock.now())


def is_droppable(snapshot: Snapshot, *, block: Block | None, removing: Operation | None) -> bool:
    """U4: whether a commit whose files are lost can be rolled back without a loss.

    A rewrite holds the rows that the commit before it held. The undecided block's segments are still there, and it is
    sent again; what keeps it from landing added no rows. A removal that is recorded as planned is carried out again.
    A settlement that is recorded as planned has then not landed (U18), and the function runs again.
    """
    if snapshot.operation == "replace":
        return True
    if snapshot.operation == "append":
        return block is not None and block.id in (snapshot.block, snapshot.barrier)
    planned = removing if removing is not None and removing.state == "planned" else None
    if snapshot.change is not None:
        return planned is not None and planned.id == snapshot.change
    return snapshot.settled or (planned is not None and planned.kind != "settle")
