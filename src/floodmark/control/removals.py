"""Removals as the control database knows them: what retention and purge took out, and what sinks forfeited by it.

    (none) ──plan──▶ planned ──finish──▶ removed ──end──▶ done
                 the rows go            their bytes go

- U12 A removal is recorded, with ranges, rows and checksums, before its first row goes: whatever dies in between, the
  same operation is continued, and the totals that a hub and this store compare still add up.
- U13 What flush leaves out (the event-time cut-off, purged identities) changes only while no block is undecided: a
  block that is sent again must hold the same rows.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, Row, bindparam, func, select, update

from floodmark.control import blocks as block_records
from floodmark.control.blocks import BlockUndecided
from floodmark.control.schema import datasets, forfeits, operations, partitions, purged, rebuilds, removals, sinks
from floodmark.errors import Retryable
from floodmark.removal import Forfeit, Part, Selection
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    from floodmark.control.deliveries import Channel

Ranged = TypeVar("Ranged", Part, Forfeit)
HASHES_MAX = 500
"""How many identities one statement asks for."""

# Asked with every look and every pin. Built once: to put a statement together takes longer than to run it.
_UNFINISHED = select(operations).where(operations.c.dataset == bindparam("of"), operations.c.state != "done")
_ENDED = select(func.count()).where(operations.c.dataset == bindparam("of"), operations.c.state != "planned")
_UNDER_WAY = select(func.count()).where(
    removals.c.dataset == bindparam("of"),
    removals.c.partition_key == bindparam("key"),
    removals.c.through_seq > bindparam("after"),
    removals.c.state == "planned",
)


@dataclass(frozen=True, slots=True)
class Operation:
    """A removal that was planned."""

    id: str
    dataset: str
    kind: str
    state: str
    selection: Selection


def unfinished(connection: Connection, dataset: str) -> Operation | None:
    """The removal that somebody began and did not end. There is at most one."""
    row = connection.execute(_UNFINISHED, {"of": dataset}).one_or_none()
    return None if row is None else _operation(row)


def get(connection: Connection, id: str) -> Operation | None:
    row = connection.execute(select(operations).where(operations.c.id == id)).one_or_none()
    return None if row is None else _operation(row)


def plan(
    connection: Connection,
    operation: Operation,
    *,
    parts: Sequence[Part],
    given_up: Sequence[Forfeit],
    reason: str,
    now: datetime,
) -> None:
    """U12: enter an operation with everything that it will remove."""
    if connection.execute(select(datasets.c.fenced).where(datasets.c.name == operation.dataset)).scalar_one():  # U24
        raise Retryable(f"Dataset {operation.dataset!r} is being rebuilt.", hint="Run it again when that has ended.")
    if unfinished(connection, operation.dataset) is not None:
        raise Retryable(f"Rows of {operation.dataset!r} are being removed by another process.", hint="Run it again.")
    connection.execute(
        operations.insert().values(
            id=operation.id,
            dataset=operation.dataset,
            kind=operation.kind,
            state="planned",
            selection=operation.selection.to_json(),
            begun_at=now.isoformat(),
        )
    )
    for number, part in _numbered(parts):
        connection.execute(
            removals.insert().values(
                operation=_part_id(operation.id, number),
                dataset=operation.dataset,
                **_range_values(part),
                reason=reason,
                removed_at=now.isoformat(),
                state="planned",
            )
        )
    for number, item in _numbered(given_up):
        connection.execute(
            forfeits.insert().values(
                operation=_part_id(operation.id, number),
                sink=item.sink,
                dataset=operation.dataset,
                **_range_values(item),
                recorded_at=now.isoformat(),
            )
        )


def finish(connection: Connection, operation: Operation, *, synced_snapshot: int | None, now: datetime) -> bool:
    """The rows are gone, durably: the records say so, and the partitions' totals no longer count them."""
    changed = connection.execute(
        update(operations)
        .where(operations.c.id == operation.id, operations.c.state == "planned")
        .values(state="removed")
    )
    if changed.rowcount == 0:
        return False
    for part in parts_of(connection, operation):
        here = (partitions.c.dataset == operation.dataset) & (partitions.c.partition_key == part.partition)
        row = connection.execute(select(partitions).where(here)).one()
        left = Tally.of(row.row_count, row.checksum) - part.tally
        connection.execute(update(partitions).where(here).values(row_count=left.rows, checksum=left.checksum_text))
    connection.execute(update(removals).where(_parts(operation)).values(state="done", removed_at=now.isoformat()))
    if synced_snapshot is not None:
        connection.execute(
            update(datasets).where(datasets.c.name == operation.dataset).values(synced_snapshot=synced_snapshot)
        )
    return True


def end(connection: Connection, operation: Operation, *, now: datetime) -> None:
    """The bytes are gone too. So is the condition: whoever is purged by name must not be named here for ever."""
    said = replace(operation.selection, where=None)
    connection.execute(
        update(operations)
        .where(operations.c.id == operation.id, operations.c.state == "removed")
        .values(state="done", selection=said.to_json(), ended_at=now.isoformat())
    )


def parts_of(connection: Connection, operation: Operation) -> list[Part]:
    found = connection.execute(
        select(removals).where(_parts(operation)).order_by(removals.c.partition_key, removals.c.after_seq)
    )
    return [Part(row.partition_key, *_figures(row)) for row in found]


def forfeits_of(connection: Connection, operation: Operation) -> list[Forfeit]:
    found = connection.execute(
        select(forfeits)
        .where((forfeits.c.operation == operation.id) | forfeits.c.operation.startswith(f"{operation.id}."))
        .order_by(forfeits.c.partition_key, forfeits.c.after_seq)
    )
    return [Forfeit(row.sink, row.partition_key, *_figures(row)) for row in found]


# ── what delivery asks ───────────────────────────────────────────────────────────────────────────────────────────────


def moment(connection: Connection, dataset: str) -> int:
    """A number that changes whenever rows of the dataset have gone."""
    return int(connection.execute(_ENDED, {"of": dataset}).scalar_one())


def under_way(connection: Connection, channel: Channel, *, after: int) -> bool:
    """Whether rows of a partition above a number are about to go, or may have gone already."""
    asked = {"of": channel.dataset, "key": channel.partition, "after": after}
    return bool(connection.execute(_UNDER_WAY, asked).scalar_one())


def touched(connection: Connection, channel: Channel, within: SequenceRange) -> bool:
    """Whether rows of a range have gone."""
    found = connection.execute(
        select(func.count()).where(
            removals.c.dataset == channel.dataset,
            removals.c.partition_key == channel.partition,
            removals.c.through_seq > within.after,
            removals.c.after_seq < within.through,
        )
    )
    return bool(found.scalar_one())


def proved_delivered(connection: Connection, channel: Channel) -> int:
    """Up to which number a sink has certainly been given everything, because rows up to there went when it had them.

    U10: they would have stayed for it. Not where it was given up, and not what went before there was such a sink.
    """
    here = (removals.c.dataset == channel.dataset) & (removals.c.partition_key == channel.partition)
    begun = select(operations.c.id, operations.c.begun_at).where(operations.c.dataset == channel.dataset)
    when = {row.id: row.begun_at for row in connection.execute(begun)}
    since = connection.execute(select(sinks.c.created_at).where(sinks.c.instance == channel.sink)).scalar_one()
    lost = select(forfeits.c.operation).where(
        forfeits.c.sink == channel.sink,
        forfeits.c.dataset == channel.dataset,
        forfeits.c.partition_key == channel.partition,
    )
    given_up = {_operation_of(row.operation) for row in connection.execute(lost)}
    found = connection.execute(select(removals.c.operation, removals.c.through_seq).where(here))
    return max(
        (
            int(row.through_seq)
            for row in found
            if (own := _operation_of(row.operation)) not in given_up and when.get(own, "") > since
        ),
        default=0,
    )


def removed_within(connection: Connection, channel: Channel, within: SequenceRange) -> Tally:
    """What retention and purge took out of a range: still part of the totals that both sides compare.

    What went before this sink had it is not: it never arrived there.
    """
    gone = connection.execute(
        select(removals.c.row_count, removals.c.checksum).where(*_inside(removals, channel, within))
    )
    lost = connection.execute(
        select(forfeits.c.row_count, forfeits.c.checksum).where(
            forfeits.c.sink == channel.sink, *_inside(forfeits, channel, within)
        )
    )
    delivered = sum((Tally.of(row.row_count, row.checksum) for row in gone), Tally())
    return delivered - sum((Tally.of(row.row_count, row.checksum) for row in lost), Tally())


def is_rebuilding(connection: Connection, dataset: str) -> bool:
    """Whether a copy of the dataset is being made: rows that go now could come back with it."""
    found = connection.execute(select(func.count()).where(rebuilds.c.dataset == dataset, rebuilds.c.state == "open"))
    return bool(found.scalar_one())


# ── what flush leaves out ────────────────────────────────────────────────────────────────────────────────────────────


def check_decided(connection: Connection, dataset: str) -> None:
    """U13: `BlockUndecided` while a block is."""
    if block_records.undecided(connection, dataset) is not None:
        raise BlockUndecided(f"A flush of {dataset!r} is under way.", hint="Run it again.")


def raise_cutoff(connection: Connection, dataset: str, *, to: int) -> None:
    """Rows with an older event time do not come back. It only rises."""
    check_decided(connection, dataset)
    connection.execute(
        update(datasets)
        .where(datasets.c.name == dataset, func.coalesce(datasets.c.event_cutoff, to - 1) < to)
        .values(event_cutoff=to)
    )


def remember_purged(connection: Connection, dataset: str, hashes: Iterable[str], *, operation: str) -> int:
    """Identities that do not come back; returns how many are new."""
    check_decided(connection, dataset)
    wanted = sorted(set(hashes))
    new = sorted(set(wanted) - purged_among(connection, dataset, wanted))
    if new:
        values = [{"dataset": dataset, "identity_hash": item, "operation": operation} for item in new]
        connection.execute(purged.insert(), values)
    return len(new)


def has_purged(connection: Connection, dataset: str) -> bool:
    return connection.execute(select(purged.c.dataset).where(purged.c.dataset == dataset).limit(1)).first() is not None


def purged_among(connection: Connection, dataset: str, hashes: Collection[str]) -> set[str]:
    """Which of these identities were purged."""
    found: set[str] = set()
    wanted = list(hashes)
    for start in range(0, len(wanted), HASHES_MAX):
        some = wanted[start : start + HASHES_MAX]
        rows = connection.execute(
            select(purged.c.identity_hash).where(purged.c.dataset == dataset, purged.c.identity_hash.in_(some))
        )
        found.update(row.identity_hash for row in rows)
    return found


# ── small words ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _numbered(items: Sequence[Ranged]) -> Iterable[tuple[int, Ranged]]:
    """Each with its place among those of its partition (and sink): a record has room for one range."""
    seen: dict[tuple[str, str], int] = {}
    for item in items:
        key = (item.partition, item.sink if isinstance(item, Forfeit) else "")
        yield seen.get(key, 0), item
        seen[key] = seen.get(key, 0) + 1


def _part_id(operation: str, number: int) -> str:
    return operation if number == 0 else f"{operation}.{number}"


def _operation_of(part: str) -> str:
    return part.partition(".")[0]


def _parts(operation: Operation) -> Any:
    return (removals.c.operation == operation.id) | removals.c.operation.startswith(f"{operation.id}.")


def _inside(table: Any, channel: Channel, within: SequenceRange) -> tuple[Any, ...]:
    return (
        table.c.dataset == channel.dataset,
        table.c.partition_key == channel.partition,
        table.c.after_seq >= within.after,
        table.c.through_seq <= within.through,
    )


def _range_values(item: Part | Forfeit) -> dict[str, str | int]:
    return {
        "partition_key": item.partition,
        "after_seq": item.range.after,
        "through_seq": item.range.through,
        "row_count": item.tally.rows,
        "checksum": item.tally.checksum_text,
    }


def _figures(row: Row) -> tuple[SequenceRange, Tally]:  # type: ignore[type-arg]
    return SequenceRange(row.after_seq, row.through_seq), Tally.of(row.row_count, row.checksum)


def _operation(row: Row) -> Operation:  # type: ignore[type-arg]
    return Operation(row.id, row.dataset, row.kind, row.state, Selection.from_json(row.selection))
