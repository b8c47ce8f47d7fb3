"""Changes of committed rows as the control database knows them: what retention and purge took out and what was settled
again, and what sinks forfeited by it.

    (none) ──plan──▶ planned ──finish──▶ removed ──end──▶ done
                 the rows go            their bytes go

    settle:   planned ──finish, end──▶ done            its commit has landed
                      ──drop──▶ (none)                 it never will

- U12 A removal is recorded, with ranges, rows and checksums, before its first row goes: whatever dies in between, the
  same operation is continued, and the totals that a hub and this store compare still add up.
- U13 What flush leaves out (the event-time cut-off, purged identities) changes only while no block is undecided: a
  block that is sent again must hold the same rows.
- U17 One operation at a time, planned against the table state in which its rows were counted: if another began or ended
  since, they are counted again. What is recorded in the end are the figures of the change that landed.
- U19 Which operations a sink has met is decided by the numbers of events (`control.database`).
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, TypeVar

from sqlalchemy import Connection, bindparam, func, select, update

from floodmark.control import blocks as block_records
from floodmark.control.blocks import BlockUndecided
from floodmark.control.database import next_event
from floodmark.control.schema import (
    Record,
    datasets,
    filtered_removals,
    forfeits,
    operations,
    partitions,
    purged,
    rebuilds,
    removals,
    sinks,
    touched,
)
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
_CHANGED = select(datasets.c.changed).where(datasets.c.name == bindparam("of"))
_UNDER_WAY = (
    select(func.count())
    .select_from(touched)
    .join(operations, operations.c.id == touched.c.operation)
    .where(
        touched.c.dataset == bindparam("of"),
        touched.c.partition_key == bindparam("key"),
        touched.c.through_seq > bindparam("after"),
        operations.c.state == "planned",
    )
)


class RowsMoved(Retryable):
    """Rows were removed or changed since they were counted: count them again."""


@dataclass(frozen=True, slots=True)
class Operation:
    """A change of committed rows that was planned."""

    id: str
    dataset: str
    kind: str
    state: str
    selection: Selection
    table_uuid: str | None = None
    """The table in which its rows were counted …"""
    base: int | None = None
    """… and the snapshot. Operations of earlier versions do not say."""


def unfinished(connection: Connection, dataset: str) -> Operation | None:
    """The unfinished operation. There is at most one."""
    row = connection.execute(_UNFINISHED, {"of": dataset}).one_or_none()
    return None if row is None else _operation(row)


def get(connection: Connection, id: str) -> Operation | None:
    row = connection.execute(select(operations).where(operations.c.id == id)).one_or_none()
    return None if row is None else _operation(row)


def plan(
    connection: Connection,
    operation: Operation,
    *,
    seen: int,
    parts: Sequence[Part],
    given_up: Sequence[Forfeit],
    reason: str,
    now: datetime,
    touching: Mapping[str, SequenceRange] | None = None,
) -> None:
    """U12: enter an operation with everything that it will remove.

    `seen` is `moment` as it was before the rows were counted (U17). `touching` says, for each partition, where the rows
    lie that it removes or changes; without it, those that it removes.
    """
    dataset = operation.dataset
    if connection.execute(select(datasets.c.fenced).where(datasets.c.name == dataset)).scalar_one():  # U24
        raise Retryable(f"Dataset {dataset!r} is being rebuilt.", hint="Run it again when the rebuild has finished.")
    if unfinished(connection, dataset) is not None:
        raise Retryable(f"Rows of {dataset!r} are being removed by another process.", hint="Run it again.")
    if moment(connection, dataset) != seen:
        raise RowsMoved(f"Rows of {dataset!r} were just removed or changed.", hint="Run it again.")
    connection.execute(
        operations.insert().values(
            id=operation.id,
            dataset=dataset,
            kind=operation.kind,
            state="planned",
            selection=operation.selection.to_json(),
            begun_at=now.isoformat(),
            number=_changes(connection, dataset),
            table_uuid=operation.table_uuid,
            base_snapshot=operation.base,
        )
    )
    _enter(connection, operation, parts, given_up, reason=reason, state="planned", now=now)
    for partition, span in (_hulls(parts) if touching is None else touching).items():
        connection.execute(
            touched.insert().values(
                operation=operation.id,
                dataset=dataset,
                partition_key=partition,
                after_seq=span.after,
                through_seq=span.through,
            )
        )


def finish(
    connection: Connection,
    operation: Operation,
    *,
    synced_snapshot: int | None,
    now: datetime,
    parts: Sequence[Part] | None = None,
) -> bool:
    """The rows are gone, durably: the records say so, and the partitions' totals no longer count them.

    `parts` are the figures of the change that landed, where they are others than those that were planned (U17).
    """
    if not _is_planned(connection, operation):
        return False
    ended = _changes(connection, operation.dataset)
    connection.execute(update(operations).where(operations.c.id == operation.id).values(state="removed", ended=ended))
    if parts is not None:
        _correct(connection, operation, parts, now=now)
    for part in parts_of(connection, operation):
        here = (partitions.c.dataset == operation.dataset) & (partitions.c.partition_key == part.partition)
        row = connection.execute(select(partitions).where(here)).one()
        left = Tally.of(row.row_count, row.checksum) - part.tally
        connection.execute(update(partitions).where(here).values(row_count=left.rows, checksum=left.checksum_text))
    connection.execute(
        update(removals).where(_parts(removals, operation)).values(state="done", removed_at=now.isoformat())
    )
    if synced_snapshot is not None:
        connection.execute(
            update(datasets).where(datasets.c.name == operation.dataset).values(synced_snapshot=synced_snapshot)
        )
    return True


def drop(connection: Connection, operation: Operation) -> bool:
    """U18: its commit can never succeed. No row was removed, and none is counted."""
    if not _is_planned(connection, operation):
        return False
    _forget(connection, operation)
    connection.execute(touched.delete().where(touched.c.operation == operation.id))
    connection.execute(operations.delete().where(operations.c.id == operation.id))
    _changes(connection, operation.dataset)
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
        select(removals).where(_parts(removals, operation)).order_by(removals.c.partition_key, removals.c.after_seq)
    )
    return [Part(row.partition_key, *_stats(row)) for row in found]


def filters_of(connection: Connection, operation: Operation) -> list[str]:
    """The filters by which its rows were counted."""
    found = connection.execute(
        select(filtered_removals.c.filter).where(_parts(filtered_removals, operation)).distinct()
    )
    return sorted(found.scalars())


def forfeits_of(connection: Connection, operation: Operation) -> list[Forfeit]:
    found = connection.execute(
        select(forfeits).where(_parts(forfeits, operation)).order_by(forfeits.c.partition_key, forfeits.c.after_seq)
    )
    return [Forfeit(row.sink, row.partition_key, *_stats(row)) for row in found]


def _is_planned(connection: Connection, operation: Operation) -> bool:
    found = get(connection, operation.id)
    return found is not None and found.state == "planned"


def _changes(connection: Connection, dataset: str) -> int:
    """U17: the number of the event by which an operation on the dataset begins or ends now."""
    number = next_event(connection)
    connection.execute(update(datasets).where(datasets.c.name == dataset).values(changed=number))
    return number


def _enter(
    connection: Connection,
    operation: Operation,
    parts: Sequence[Part],
    given_up: Sequence[Forfeit],
    *,
    reason: str,
    state: str,
    now: datetime,
) -> None:
    for number, part in _numbered(parts):
        own = {"operation": _part_id(operation.id, number), "dataset": operation.dataset}
        connection.execute(
            removals.insert().values(
                **own, **_range_values(part), reason=reason, removed_at=now.isoformat(), state=state
            )
        )
        for condition, kept in part.filtered:
            tally = Tally() if kept is None else kept.tally
            connection.execute(
                filtered_removals.insert().values(
                    **own,
                    partition_key=part.partition,
                    filter=condition,
                    after_seq=None if kept is None else kept.range.after,
                    through_seq=None if kept is None else kept.range.through,
                    row_count=tally.rows,
                    checksum=tally.checksum_text,
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


def _correct(connection: Connection, operation: Operation, parts: Sequence[Part], *, now: datetime) -> None:
    """U17: what landed takes the place of what was planned. A sink forfeits what it was to forfeit, and did go."""
    reason = connection.execute(select(removals.c.reason).where(_parts(removals, operation)).limit(1)).scalar()
    planned = forfeits_of(connection, operation)
    lost = [
        Forfeit(sink, part.partition, part.range, part.tally)
        for part in parts
        for sink in sorted({item.sink for item in planned})
        if any(
            item.sink == sink and item.partition == part.partition and item.range.intersect(part.range)
            for item in planned
        )
    ]
    _forget(connection, operation)
    _enter(connection, operation, parts, lost, reason=reason or operation.kind, state="planned", now=now)


def _forget(connection: Connection, operation: Operation) -> None:
    for table in (removals, filtered_removals, forfeits):
        connection.execute(table.delete().where(_parts(table, operation)))


# ── what delivery asks ───────────────────────────────────────────────────────────────────────────────────────────────


def moment(connection: Connection, dataset: str) -> int:
    """A counter that changes when an operation on rows of the dataset begins or ends."""
    return int(connection.execute(_CHANGED, {"of": dataset}).scalar_one())


def under_way(connection: Connection, channel: Channel, *, after: int) -> bool:
    """Whether an operation will remove or change rows of a partition above a number, or may have done so."""
    asked = {"of": channel.dataset, "key": channel.partition, "after": after}
    return bool(connection.execute(_UNDER_WAY, asked).scalar_one())


def touched_since(connection: Connection, channel: Channel, within: SequenceRange, *, seen: int) -> bool:
    """Whether rows of a range were removed or changed since a given counter value."""
    found = connection.execute(
        select(func.count())
        .select_from(touched)
        .join(operations, operations.c.id == touched.c.operation)
        .where(
            touched.c.dataset == channel.dataset,
            touched.c.partition_key == channel.partition,
            touched.c.through_seq > within.after,
            touched.c.after_seq < within.through,
            operations.c.ended > seen,
        )
    )
    return bool(found.scalar_one())


def proved_delivered(connection: Connection, channel: Channel) -> int:
    """Up to which number a sink has certainly been given everything, because rows up to there went when it had them.

    U10: they would have stayed for it. Not where it was given up, and not what went before there was such a sink (U19).
    """
    here = (removals.c.dataset == channel.dataset) & (removals.c.partition_key == channel.partition)
    begun = _numbers(connection, channel.dataset)
    since = connection.execute(select(sinks.c.number).where(sinks.c.instance == channel.sink)).scalar_one()
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
            if (own := _operation_of(row.operation)) not in given_up and begun.get(own, 0) > since
        ),
        default=0,
    )


def removed_within(
    connection: Connection,
    channel: Channel,
    within: SequenceRange,
    *,
    condition: str | None = None,
    added: int | None = None,
) -> Tally:
    """What was removed from a range after a sink had it: still part of the totals that both sides compare.

    What went before this sink had it is not: it never arrived there. Neither is what went before there was a sink
    (`added`: its number; U19), nor what its filter (`condition`) kept back.
    """
    begun = _numbers(connection, channel.dataset)
    lost = connection.execute(
        select(forfeits).where(
            forfeits.c.sink == channel.sink,
            forfeits.c.dataset == channel.dataset,
            forfeits.c.partition_key == channel.partition,
        )
    )
    forfeited = {(_operation_of(row.operation), row.after_seq, row.through_seq) for row in lost}
    counted = _counted_by(connection, channel, condition)
    gone = connection.execute(
        select(removals).where(removals.c.dataset == channel.dataset, removals.c.partition_key == channel.partition)
    )
    total = Tally()
    for row in gone:
        own = _operation_of(row.operation)
        if (own, row.after_seq, row.through_seq) in forfeited:
            continue
        if added is not None and begun.get(own, added + 1) <= added:
            continue
        # Removals of earlier versions were not counted by filter.
        stats = counted.get(row.operation, row)
        if stats.row_count and within.after <= stats.after_seq and stats.through_seq <= within.through:
            total += Tally.of(stats.row_count, stats.checksum)
    return total


def _counted_by(connection: Connection, channel: Channel, condition: str | None) -> dict[str, Any]:
    """Part of a removal → its rows for which a filter is true."""
    if condition is None:
        return {}
    found = connection.execute(
        select(filtered_removals).where(
            filtered_removals.c.dataset == channel.dataset,
            filtered_removals.c.partition_key == channel.partition,
            filtered_removals.c.filter == condition,
        )
    )
    return {row.operation: row for row in found}


def _numbers(connection: Connection, dataset: str) -> dict[str, int]:
    """Operation → the event by which it began."""
    found = connection.execute(select(operations.c.id, operations.c.number).where(operations.c.dataset == dataset))
    return {row.id: row.number for row in found}


def is_rebuilding(connection: Connection, dataset: str) -> bool:
    """Whether a rebuild is copying the dataset: removed rows could be in the copy."""
    found = connection.execute(select(func.count()).where(rebuilds.c.dataset == dataset, rebuilds.c.state == "open"))
    return bool(found.scalar_one())


# ── what flush leaves out ────────────────────────────────────────────────────────────────────────────────────────────


def check_decided(connection: Connection, dataset: str) -> None:
    """U13: `BlockUndecided` while a block is."""
    if block_records.undecided(connection, dataset) is not None:
        raise BlockUndecided(f"A flush of {dataset!r} is in progress.", hint="Run it again.")


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


def _parts(table: Any, operation: Operation) -> Any:
    return (table.c.operation == operation.id) | table.c.operation.startswith(f"{operation.id}.")


def _hulls(parts: Sequence[Part]) -> dict[str, SequenceRange]:
    """Partition → from before the first to the last of its rows."""
    found: dict[str, SequenceRange] = {}
    for part in parts:
        old = found.get(part.partition, part.range)
        found[part.partition] = SequenceRange(min(old.after, part.range.after), max(old.through, part.range.through))
    return found


def _range_values(item: Part | Forfeit) -> dict[str, str | int]:
    return {
        "partition_key": item.partition,
        "after_seq": item.range.after,
        "through_seq": item.range.through,
        "row_count": item.tally.rows,
        "checksum": item.tally.checksum_text,
    }


def _stats(row: Record) -> tuple[SequenceRange, Tally]:
    return SequenceRange(row.after_seq, row.through_seq), Tally.of(row.row_count, row.checksum)


def _operation(row: Record) -> Operation:
    selection = Selection.from_json(row.selection)
    return Operation(row.id, row.dataset, row.kind, row.state, selection, row.table_uuid, row.base_snapshot)
