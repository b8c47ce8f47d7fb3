"""A settle function over committed rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.lake.settling import problem_of, settled_table
from floodmark.lake.table import AppendRefused
from floodmark.schema import SEQ
from floodmark.settlement import Resettled, Resettling
from floodmark.testing.memory.removals import spared_numbers

if TYPE_CHECKING:
    from floodmark.testing.memory.lake import MemoryLake

Keys = Callable[[pa.Table], list[object]]


class SettleCommit(NamedTuple):
    """A request to commit what a settle function has said, or with no operation, rows as they are."""

    table: str
    snapshot: int
    operation: str | None


def resettle_in_memory(
    request: Resettling, rows: pa.Table, *, keys_of: Keys, put: Callable[[str, pa.Table], None]
) -> Resettled:
    """What the function says of the rows; `put` commits the table that follows from it."""
    try:
        answer = settled_table(request, rows)
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        return Resettled(problem=problem_of(request.settle, error))
    before = {row[SEQ]: row for row in rows.to_pylist()}
    after = {row[SEQ]: row for row in answer.to_pylist()}
    differing = [seq for seq in sorted(before) if after.get(seq) != before[seq]]
    stays = spared_numbers(rows, request.spared, request.partition_by)
    other = [seq for seq in differing if seq not in stays][: request.changed_max]
    dropped = [seq for seq in other if seq not in after]
    changed = {seq for seq in other if seq in after}
    while True:
        whole = _whole(rows, answer, changed, dropped)
        groups = [group for group in _alike(whole, keys_of) if changed & set(group)]
        # B9: nor does one change into what stays. Held back, it stays too, and others may turn out to be what it is.
        held = {seq for group in groups if stays & set(group) for seq in group} & changed
        if not held:
            break
        stays, changed = stays | held, changed - held
    waiting = len(stays & set(differing))
    if not changed and not dropped:
        return Resettled(waiting=waiting)
    collapsed = sorted(seq for group in groups for seq in group[1:])
    settled = whole.filter(pc.invert(pc.is_in(whole[SEQ], pa.array(collapsed, pa.int64()))))
    return Resettled(
        tuple(sorted(changed - set(collapsed))),
        tuple(collapsed),
        tuple(dropped),
        waiting,
        commit=lambda operation: put(operation, settled),
    )


def _whole(rows: pa.Table, answer: pa.Table, changed: set[int], dropped: list[int]) -> pa.Table:
    """The table with the changes, and without what was dropped."""
    taken = answer.filter(pc.is_in(answer[SEQ], pa.array(sorted(changed), pa.int64())))
    left = rows.filter(pc.invert(pc.is_in(rows[SEQ], pa.array([*changed, *dropped], pa.int64()))))
    return pa.concat_tables([left, taken.cast(rows.schema)]).sort_by(SEQ)


def _alike(whole: pa.Table, keys_of: Keys) -> list[list[int]]:
    """The numbers of rows with the same key, lowest first."""
    groups: dict[object, list[int]] = {}
    for seq, key in zip(whole[SEQ].to_pylist(), keys_of(whole), strict=True):
        if key is not None:
            groups.setdefault(key, []).append(seq)
    return list(groups.values())


def put_settled(lake: MemoryLake, request: SettleCommit, settled: pa.Table) -> None:
    """The compare-and-swap: refused if anything but a rewrite was committed since the function was asked."""
    state = lake.load(request.table)
    since = state.since(request.snapshot) if state else None
    if since is None or any(snapshot.operation != "replace" for snapshot in since):
        raise AppendRefused("found conflicting files: rows were appended or changed meanwhile")
    files = (lake.store(settled),) if settled.num_rows else ()
    lake.commit(
        lake.tables[request.table],
        operation="overwrite",
        files=files,
        added_rows=0,
        added_files=len(files),
        settled=True,
        change=request.operation,
    )
