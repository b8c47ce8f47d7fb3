"""Giving a segment up: rows that were acknowledged, and that cannot be committed any more, by a user's decision.

    its block is decided → what is left of its file moves to quarantine → the loss is recorded

Invariants
- U33 A segment is given up only by a user's decision, only while no block has it, and on record: rows, numbers, reason,
  and where its file is now. The file moves before it is recorded; a crash in between leaves a segment whose
  file is missing, as it was, and the next attempt finds the moved file.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.block import raise_barrier
from floodmark.commit.recovery import decide
from floodmark.control import blocks, losses, segments
from floodmark.control.losses import Loss
from floodmark.control.segments import Segment
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, Permanent, Retryable, reason_of
from floodmark.files import make_directory, sync_directory, sync_file
from floodmark.maintenance.findings import Offer
from floodmark.sequence import SequenceRange


def give_up(engine: Engine, id: int, *, problem: str | None = None) -> str:
    """Give one segment up; what is returned says what was lost."""
    item, span = _found(engine, id)
    reason = (problem and f"the segment {problem}") or item.set_aside or "given up by a user"
    if item.block is not None:
        item = _released(engine, item)
    kept = _moved(engine, item)
    faults.reach("giving_up.moved")
    loss = Loss(id, item.dataset, item.rows, span, kept, reason, engine.clock.now().isoformat())

    def work(connection: Connection) -> bool:
        if not segments.give_up(connection, id):
            return False
        losses.record(connection, loss)
        return True

    if not engine.database.transact(work):
        raise Retryable(f"Segment {id} was committed by a flush in the meantime.", hint="Run `floodmark fsck` again.")
    numbers = "" if span is None else f" Sequence numbers {span} are not used."
    rest = f" What is left of its file is at {kept}." if kept else " Nothing was left of its file."
    return f"Segment {id} of {item.dataset} is given up: {item.rows} acknowledged rows are lost.{numbers}{rest}"


def retry(engine: Engine, id: int) -> str:
    """Let flush take a segment again that was set aside."""
    item, _ = _found(engine, id)
    if item.set_aside is None or not engine.database.transact(lambda c: segments.set_aside(c, id, None)):
        raise Permanent(f"Segment {id} is not set aside.", hint="`floodmark fsck` lists the segments that are.")
    return f"Segment {id} of {item.dataset} waits for a flush again."


def offered(engine: Engine, dataset: str, problems: Sequence[tuple[Segment, str]]) -> list[Offer]:
    """What giving up would lose."""
    block = engine.database.read(lambda c: blocks.undecided(c, dataset))
    return [
        Offer(one.id, dataset, one.rows, _numbers(one, block.range if block is not None else None), problem)
        for one, problem in problems
    ]


def _numbers(item: Segment, block: SequenceRange | None) -> SequenceRange | None:
    if item.block is None or block is None:
        return None
    after = block.after + (item.block_offset or 0)
    return SequenceRange(after, after + item.rows)


def _found(engine: Engine, id: int) -> tuple[Segment, SequenceRange | None]:
    item = engine.database.read(lambda c: segments.find(c, id))
    if item is None:
        raise Permanent(
            f"There is no segment {id} that waits for its commit.",
            hint="`floodmark fsck` lists the segments that can be given up or tried again.",
        )
    block = None if item.block is None else engine.database.read(lambda c: blocks.get(c, item.block or ""))
    return item, _numbers(item, None if block is None else block.range)


def _released(engine: Engine, item: Segment) -> Segment:
    """U33: while its block is undecided, its rows could still land. The block gets its verdict first."""
    try:
        decide(engine, item.dataset)
    except FloodmarkError:
        raise_barrier(engine, item.dataset)  # it cannot be sent: then nothing of it may land
    now = engine.database.read(lambda c: segments.find(c, item.id))
    if now is None:
        raise Permanent(f"The rows of segment {item.id} are committed: there is nothing to give up.")
    if now.block is not None:
        raise Retryable(
            f"Segment {item.id} is in a block that is undecided: its rows could still be committed.",
            hint=f"Run `floodmark flush {item.dataset}`, then try again.",
        )
    return now


def _moved(engine: Engine, item: Segment) -> str | None:
    place = Path("quarantine") / item.dataset / "segments" / Path(item.path).name
    target = engine.root / place
    try:
        with contextlib.suppress(FileNotFoundError):
            source = engine.segments.path(item.path)
            make_directory(target.parent)
            shutil.copyfile(source, target)
            sync_file(target)
            sync_directory(target.parent)
            engine.segments.remove([item.path])
    except OSError as error:  # a disk that is failing: what is left stays where it is
        raise Retryable(
            f"What is left of segment {item.id} could not be moved: {reason_of(error)}.",
            hint=f"Move {os.fspath(item.path)} away by hand, then try again.",
        ) from error
    return str(place) if target.exists() else None
