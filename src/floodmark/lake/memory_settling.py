"""A settle function over committed rows in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.compute as pc

from floodmark.errors import Retryable
from floodmark.lake.settling import problem_of, settled_table
from floodmark.schema import SEQ
from floodmark.settlement import Resettled, Resettling

if TYPE_CHECKING:
    from floodmark.lake.memory import MemoryLake


def resettle_in_memory(
    request: Resettling, rows: pa.Table, *, keys_of: Callable[[pa.Table], list[object]], put: Callable[[pa.Table], None]
) -> Resettled:
    """What the function says of the rows; `put` commits the table that follows from it."""
    try:
        answer = settled_table(request, rows)
    except Exception as error:  # noqa: BLE001 - B6: whatever it was, it has changed nothing
        return Resettled(problem=problem_of(request.settle, error))
    before = {row[SEQ]: row for row in rows.to_pylist()}
    after = {row[SEQ]: row for row in answer.to_pylist()}
    other = [seq for seq in sorted(before) if after.get(seq) != before[seq]][: request.changed_max]
    if not other:
        return Resettled()
    dropped = [seq for seq in other if seq not in after]
    changed = {seq for seq in other if seq in after}
    taken = answer.filter(pc.is_in(answer[SEQ], pa.array(sorted(changed), pa.int64())))
    left = rows.filter(pc.invert(pc.is_in(rows[SEQ], pa.array(other, pa.int64()))))
    whole = pa.concat_tables([left, taken.cast(rows.schema)]).sort_by(SEQ)
    groups: dict[object, list[int]] = {}
    for seq, key in zip(whole[SEQ].to_pylist(), keys_of(whole), strict=True):
        if key is not None:
            groups.setdefault(key, []).append(seq)
    collapsed = sorted(seq for group in groups.values() if changed & set(group) for seq in group[1:])
    settled = whole.filter(pc.invert(pc.is_in(whole[SEQ], pa.array(collapsed, pa.int64()))))
    return Resettled(len(changed - set(collapsed)), tuple(collapsed), tuple(dropped), commit=lambda: put(settled))


def put_settled(lake: MemoryLake, request: Resettling, settled: pa.Table) -> None:
    """The compare-and-swap: refused if anything was appended since the function was asked."""
    state, found = lake.load(request.table), lake.tables[request.table]
    since = state.since(request.snapshot) if state else None
    if since is None or any(snapshot.brought_rows for snapshot in since):
        raise Retryable("Rows were appended meanwhile.")
    files = (lake.store(settled),) if settled.num_rows else ()
    lake.commit(found, operation="overwrite", files=files, added_rows=0, added_files=len(files), settled=True)
