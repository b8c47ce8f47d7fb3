"""A settle function over committed rows in memory."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import NamedTuple

import pyarrow as pa

from floodmark.commit.protocol import TableState
from floodmark.lake.settling import problem_of, settled_table
from floodmark.schema import SEQ
from floodmark.settlement import Resettled, Resettling, collapse
from floodmark.testing.memory.rows import keys_of, only, spared_numbers, without


class SettleCommit(NamedTuple):
    """A request to commit what a settle function has said, or with no operation, rows as they are."""

    table: str
    snapshot: int
    operation: str | None


def only_rewritten_since(snapshot: int, state: TableState | None) -> bool:
    """Whether the rows are still those that the function got: nothing but a rewrite was committed since."""
    since = state.since(snapshot) if state else None
    return since is not None and all(one.operation == "replace" for one in since)


def resettled(request: Resettling, rows: pa.Table, put: Callable[[str | None, pa.Table], None]) -> Resettled:
    """What the function says of the rows; `put` commits the table that follows from it."""
    if request.settle is None:
        return Resettled(commit=lambda operation: put(operation, rows))
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

    def alike(own: Collection[int]) -> Iterable[list[tuple[int, bool]]]:
        groups: dict[object, list[tuple[int, bool]]] = {}
        whole = _whole(rows, answer, own, dropped)
        for seq, key in zip(whole[SEQ].to_pylist(), keys_of(request, whole), strict=True):
            if key is not None:
                groups.setdefault(key, []).append((seq, seq in stays))
        return [group for group in groups.values() if any(seq in own for seq, _ in group)]

    found = collapse(changed, alike)
    waiting = len(stays & set(differing)) + len(found.later)
    if not found.changed and not dropped:
        return Resettled(waiting=waiting)
    settled = without(_whole(rows, answer, found.changed, dropped), found.gone)
    return Resettled(
        tuple(sorted(found.changed - {*found.gone})),
        found.gone,
        tuple(dropped),
        waiting,
        commit=lambda operation: put(operation, settled),
    )


def _whole(rows: pa.Table, answer: pa.Table, changed: Collection[int], dropped: list[int]) -> pa.Table:
    """The table with the changes, and without what was dropped."""
    left, taken = without(rows, [*changed, *dropped]), only(answer, changed)
    return pa.concat_tables([left, taken.cast(rows.schema)]).sort_by(SEQ)
