"""Segments and landing files in the control database.

A segment exists exactly when it is registered. Its row goes

    writing ──register──▶ sealed ──record──▶ consumed ◀──retire, split (guarded)── sealed
       └────drop (guarded)──▶ dropped ◀──give_up (guarded)── sealed

and while it is `sealed` it may join a block and be released from it again. The id of a segment that was
sealed from a landing file is a function of the lines it holds, so that even a control database restored
from an old backup can tell which lines have been committed already.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Connection, bindparam, func, select, update

from floodmark.control.schema import Record, counters, landing, segment_partitions, segments
from floodmark.errors import Retryable
from floodmark.sequence import Tally

if TYPE_CHECKING:
    from floodmark.commit.protocol import PartitionRows

# Asked all the time. Built once: to put a statement together takes longer than to run it.
_OWN = segments.c.dataset == bindparam("of")
_PLACE = func.coalesce(segments.c.part_of, segments.c.registered)  # the parts of a segment wait in its place
_ORDER = (_PLACE, segments.c.registered)
_ANNOUNCE = segments.insert()
_REGISTER = update(segments).where(segments.c.id == bindparam("segment"))
_STATE = select(segments.c.state).where(segments.c.id == bindparam("segment"))
_PARTITION = segment_partitions.insert()
_PARTITIONS = select(segment_partitions).where(segment_partitions.c.segment.in_(bindparam("ids", expanding=True)))
_UNFINISHED = select(segments.c.id, segments.c.path, segments.c.owner).where(_OWN, segments.c.state == "writing")
_WAITING = (
    select(segments)
    .where(_OWN, segments.c.state == "sealed", segments.c.block.is_(None), segments.c.set_aside.is_(None))
    .order_by(*_ORDER)
    .limit(bindparam("most"))
)
_SEALED = select(segments).where(_OWN, segments.c.state == "sealed").order_by(*_ORDER)
_OLDEST = select(func.min(_PLACE)).where(_OWN, segments.c.state == "sealed", segments.c.set_aside.is_(None))
_OF_BLOCK = select(segments).where(segments.c.block == bindparam("joined")).order_by(segments.c.block_offset)
_COUNT_ON = (
    update(counters)
    .where(counters.c.name == bindparam("counter"))
    .values(value=counters.c.value + 1)
    .returning(counters.c.value)
)
_COUNTED = select(counters.c.value).where(counters.c.name == bindparam("counter"))
_LANDING = select(landing).where(landing.c.file == bindparam("landed"))
_OFFSETS = select(landing.c.file, landing.c.sealed).where(
    landing.c.dataset == bindparam("of"), landing.c.state == "open"
)
_ADVANCE = (
    update(landing)
    .where(landing.c.file == bindparam("landed"), landing.c.sealed == bindparam("start"), landing.c.state == "open")
    .values(sealed=bindparam("end"))
)
_BACKLOG = select(
    func.count(),
    func.coalesce(func.sum(segments.c.row_count), 0),
    func.coalesce(func.sum(segments.c.byte_count), 0),
).where(_OWN, segments.c.state == "sealed")


@dataclass(frozen=True, slots=True)
class LandingRange:
    """The bytes `[start, end)` of a landing file: whole lines."""

    file: str
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class SourceStep:
    """One numbered step of a source that is loaded once."""

    source: str
    ordinal: int


@dataclass(frozen=True, slots=True)
class Segment:
    """One sealed, immutable, registered Parquet file of arrivals."""

    id: int
    dataset: str
    path: str
    rows: int
    bytes: int
    registered: int
    """Its place in the order; of a part, that of the segment that it was made of."""
    event_min: int | None = None
    event_max: int | None = None
    block_offset: int | None = None
    block: str | None = None
    unfolded_bytes: int | None = None
    """How large its rows are when they are read; None for a segment of before this was measured."""
    set_aside: str | None = None
    """Why flush leaves it out; None if it does not."""

    @property
    def size(self) -> int:
        """What it counts towards the size of a commit."""
        return self.bytes if self.unfolded_bytes is None else self.unfolded_bytes


@dataclass(frozen=True, slots=True)
class SegmentContent:
    """The counts of the finished file, recorded when it is registered."""

    path: str
    rows: int
    bytes: int
    event_min: int | None
    event_max: int | None
    partitions: tuple[PartitionRows, ...]
    unfolded_bytes: int | None = None


def landing_segment_id(lines: LandingRange) -> int:
    """The id of the segment with exactly these lines."""
    text = f"{lines.file}:{lines.start}:{lines.end}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "big") >> 1


def fresh_segment_id() -> int:
    """A new segment id, also different from ids that are not in a restored backup."""
    return secrets.randbits(63)


def announce(connection: Connection, *, id: int, dataset: str, path: str, owner: str, now: datetime) -> None:
    """Say `writing` before the file exists, so that a crash leaves a trace of what to clean up."""
    said = {"state": "writing", "path": path, "owner": owner, "created_at": now.isoformat()}
    if _exists(connection, id):
        connection.execute(
            update(segments).where(segments.c.id == id, segments.c.state.in_(["writing", "dropped"])).values(**said)
        )
    else:
        connection.execute(_ANNOUNCE, {"id": id, "dataset": dataset, **said})


def register(
    connection: Connection,
    *,
    id: int,
    content: SegmentContent,
    lines: LandingRange | None = None,
    step: SourceStep | None = None,
) -> bool:
    """Turn `writing` into `sealed`; false if somebody else did, or dropped it. The caller discards its file.

    I6: for lines of a landing file the offset moves in the same transaction, and only from where these lines begin.
    False means that nothing was changed: an offset that moved without its segment would lose the lines.
    """
    state = _state(connection, id)
    if state != "writing" or (lines is not None and not advance_landing(connection, lines)):
        return False
    connection.execute(
        _REGISTER,
        {
            "segment": id,
            "state": "sealed",
            "registered": _next(connection, "registration"),
            "path": content.path,
            "row_count": content.rows,
            "byte_count": content.bytes,
            "unfolded_bytes": content.unfolded_bytes,
            "event_min": content.event_min,
            "event_max": content.event_max,
            "landing_file": lines.file if lines else None,
            "landing_from": lines.start if lines else None,
            "landing_through": lines.end if lines else None,
            "source": step.source if step else None,
            "ordinal": step.ordinal if step else None,
        },
    )
    if content.partitions:
        connection.execute(
            _PARTITION,
            [
                {
                    "segment": id,
                    "partition_key": part.partition,
                    "row_count": part.tally.rows,
                    "checksum": part.tally.checksum_text,
                    "first_row": part.first_row,
                    "last_row": part.last_row,
                }
                for part in content.partitions
            ],
        )
    return True


def drop(connection: Connection, id: int, *, path: str) -> bool:
    """Drop a segment that is still `writing` to this path; false if it was registered, or announced again."""
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == id, segments.c.path == path, segments.c.state == "writing")
        .values(state="dropped")
    )
    return changed.rowcount == 1


def unfinished(connection: Connection, dataset: str) -> list[tuple[int, str, str]]:
    """(id, path, owner) of the segments that are being written, or were when their writer died."""
    return [(row.id, row.path, row.owner) for row in connection.execute(_UNFINISHED, {"of": dataset})]


def waiting(
    connection: Connection,
    dataset: str,
    *,
    rows_max: int,
    bytes_max: int,
    count_max: int,
    without: Collection[int] = (),
) -> list[Segment]:
    """The oldest sealed segments that fit the bounds together; always at least one, if there is one.

    Bytes are those of the rows as they are read. Segments that are set aside, and those `without`, are left out.
    """
    found = connection.execute(_WAITING, {"of": dataset, "most": count_max + len(without)})
    taken: list[Segment] = []
    rows = size = 0
    for row in found:
        segment = _segment(row)
        if segment.id in without:
            continue
        full = len(taken) == count_max or rows + segment.rows > rows_max or size + segment.size > bytes_max
        if taken and full:
            break
        taken.append(segment)
        rows, size = rows + segment.rows, size + segment.size
    return taken


def sealed(connection: Connection, dataset: str) -> list[Segment]:
    """Every segment that is not committed, oldest first: those in a block and those set aside too."""
    return [_segment(row) for row in connection.execute(_SEALED, {"of": dataset})]


def find(connection: Connection, id: int) -> Segment | None:
    """A segment that is not committed; None if there is none of that id."""
    row = connection.execute(select(segments).where(segments.c.id == id, segments.c.state == "sealed")).one_or_none()
    return None if row is None else _segment(row)


def set_aside(connection: Connection, id: int, reason: str | None) -> bool:
    """Let flush leave a segment out, or (None) take it again; false if it is not waiting, or in a block."""
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == id, segments.c.state == "sealed", segments.c.block.is_(None))
        .values(set_aside=reason)
    )
    return changed.rowcount == 1


def give_up(connection: Connection, id: int) -> bool:
    """U33: end a segment that will never be committed; false if it is in a block, or not waiting."""
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == id, segments.c.state == "sealed", segments.c.block.is_(None))
        .values(state="dropped")
    )
    return changed.rowcount == 1


def of_block(connection: Connection, block: str) -> list[Segment]:
    return [_segment(row) for row in connection.execute(_OF_BLOCK, {"joined": block})]


def blocks_of_steps(connection: Connection, steps: Sequence[SourceStep]) -> dict[str, list[tuple[int, int]]]:
    """(id, rows) of the segments that these steps of sources became, by the block that each is in; "" for none."""
    wanted = {(step.source, step.ordinal) for step in steps}
    names = sorted({step.source for step in steps})
    result: dict[str, list[tuple[int, int]]] = {}
    for start in range(0, len(names), 500):
        found = connection.execute(select(segments).where(segments.c.source.in_(names[start : start + 500])))
        for row in found:
            if (row.source, row.ordinal) in wanted:
                for one in _parts(connection, row) or [row]:
                    result.setdefault(one.block or "", []).append((one.id, one.row_count))
    return result


def _parts(connection: Connection, row: Record) -> list[Record]:
    """What a segment was split into, without what was split again."""
    if row.state != "consumed" or row.block is not None:
        return []
    found = connection.execute(select(segments).where(segments.c.part_of == row.registered))
    return [one for one in found if one.state == "sealed" or one.block is not None]


def partitions_of(connection: Connection, ids: Sequence[int]) -> dict[int, list[PartitionRows]]:
    from floodmark.commit.protocol import PartitionRows  # which a command that only reads the records does not need

    result: dict[int, list[PartitionRows]] = {}
    found = connection.execute(_PARTITIONS, {"ids": list(ids)})
    for row in found:
        result.setdefault(row.segment, []).append(
            PartitionRows(row.partition_key, Tally.of(row.row_count, row.checksum), row.first_row, row.last_row)
        )
    return result


def sealed_paths(connection: Connection, dataset: str) -> dict[int, str]:
    """The segments that wait, and where their files should be."""
    found = connection.execute(
        select(segments.c.id, segments.c.path).where(segments.c.dataset == dataset, segments.c.state == "sealed")
    )
    return {row.id: row.path for row in found}


def sealed_so_far(connection: Connection, dataset: str, registered: int) -> list[tuple[int, str, str | None]]:
    """(id, path, block) of the segments that wait and were registered up to a number, oldest first."""
    found = connection.execute(
        select(segments.c.id, segments.c.path, segments.c.block)
        .where(segments.c.dataset == dataset, segments.c.state == "sealed", registered >= _PLACE)
        .order_by(*_ORDER)
    )
    return [(row.id, row.path, row.block) for row in found]


def retire(connection: Connection, id: int) -> bool:
    """End a segment that waits, because a copy takes its place; false if it is in a block or done with (U16)."""
    changed = connection.execute(
        update(segments)
        .where(segments.c.id == id, segments.c.state == "sealed", segments.c.block.is_(None))
        .values(state="consumed")
    )
    return changed.rowcount == 1


def landing_file_of(connection: Connection, id: int) -> str | None:
    """The landing file that a segment, or the one that it is a part of, was sealed from."""
    own = connection.execute(select(segments).where(segments.c.id == id)).one()
    if own.part_of is None:
        found: str | None = own.landing_file
        return found
    whole = select(segments.c.landing_file).where(segments.c.registered == own.part_of)
    return connection.execute(whole).scalar_one_or_none()


def split(connection: Connection, id: int, parts: Sequence[tuple[int, SegmentContent]]) -> bool:
    """U34: end a segment that waits, and register its parts in its place; false if it is in a block or done with."""
    old = connection.execute(select(segments).where(segments.c.id == id)).one()
    if not retire(connection, id):
        return False
    for part, content in parts:
        if not register(connection, id=part, content=content):
            raise Retryable(f"A part of segment {id} was dropped while it was written.", hint="Flush again.")
    place = old.registered if old.part_of is None else old.part_of
    connection.execute(update(segments).where(segments.c.id.in_([part for part, _ in parts])).values(part_of=place))
    # Of an earlier split: what came after the segment still does.
    later = connection.execute(
        select(segments.c.id)
        .where(segments.c.part_of == place, segments.c.state == "sealed", segments.c.registered > old.registered)
        .where(segments.c.id.not_in([part for part, _ in parts]))
        .order_by(segments.c.registered)
    ).scalars()
    for other in list(later):
        number = _next(connection, "registration")
        connection.execute(update(segments).where(segments.c.id == other).values(registered=number))
    return True


def is_waiting(connection: Connection, id: int) -> bool:
    return _state(connection, id) == "sealed"


def is_consumed(connection: Connection, id: int) -> bool:
    return _state(connection, id) == "consumed"


def _state(connection: Connection, id: int) -> str | None:
    found: str | None = connection.execute(_STATE, {"segment": id}).scalar_one_or_none()
    return found


def consume(connection: Connection, ids: Iterable[int]) -> None:
    """Mark segments whose rows are already in the table (found there, not committed by a block of ours)."""
    connection.execute(
        update(segments)
        .where(segments.c.id.in_(list(ids)), segments.c.state.in_(["sealed", "writing"]))
        .values(state="consumed")
    )


def oldest_waiting(connection: Connection, dataset: str) -> int | None:
    """The registration number of the segment that has waited longest; None if none waits."""
    found: int | None = connection.execute(_OLDEST, {"of": dataset}).scalar_one()
    return found


def registered_so_far(connection: Connection) -> int:
    """The newest registration number in the store."""
    return int(connection.execute(_COUNTED, {"counter": "registration"}).scalar_one())


def backlog(connection: Connection, dataset: str) -> tuple[int, int, int]:
    """(segments, rows, bytes) that are sealed and not yet committed."""
    row = connection.execute(_BACKLOG, {"of": dataset}).one()
    return int(row[0]), int(row[1]), int(row[2])


def landing_offset(connection: Connection, *, file: str, dataset: str) -> int | None:
    """How far a landing file is sealed; None once it was removed. First sight of a file records it."""
    row = connection.execute(_LANDING, {"landed": file}).one_or_none()
    if row is None:
        connection.execute(landing.insert().values(file=file, dataset=dataset, sealed=0, state="open"))
        return 0
    return None if row.state == "removed" else int(row.sealed)


def landing_offsets(connection: Connection, dataset: str) -> dict[str, int]:
    return {row.file: row.sealed for row in connection.execute(_OFFSETS, {"of": dataset})}


def advance_landing(connection: Connection, lines: LandingRange) -> bool:
    """I6: the sealed offset moves only from where these lines begin; false if another sealer was first."""
    changed = connection.execute(_ADVANCE, {"landed": lines.file, "start": lines.start, "end": lines.end})
    return changed.rowcount == 1


def close_landing(connection: Connection, file: str, *, now: datetime | None = None) -> None:
    """Record that a landing file was removed: its name must never be used for a new file."""
    at = None if now is None else now.isoformat()
    connection.execute(update(landing).where(landing.c.file == file).values(state="removed", removed_at=at))


def forget_landing(connection: Connection, dataset: str, *, before: datetime, there: Iterable[str]) -> int:
    """Forget files that were removed long ago, but those that are `there`, and never the one that went last.

    A file that a loss of power brings back is recognised by its row. That happens at the next start of the machine,
    and not after weeks.
    """
    gone = connection.execute(
        select(landing.c.file)
        .where(landing.c.dataset == dataset, landing.c.state == "removed", landing.c.removed_at.is_not(None))
        .order_by(landing.c.removed_at.desc(), landing.c.file)
    ).scalars()
    old = set(list(gone)[1:]) - set(there)
    removed = connection.execute(
        landing.delete().where(landing.c.file.in_(old), landing.c.removed_at < before.isoformat())
    )
    return int(removed.rowcount)


def _exists(connection: Connection, id: int) -> bool:
    return _state(connection, id) is not None


def _next(connection: Connection, counter: str) -> int:
    return int(connection.execute(_COUNT_ON, {"counter": counter}).scalar_one())


def _segment(row: Record) -> Segment:
    return Segment(
        id=row.id,
        dataset=row.dataset,
        path=row.path,
        rows=row.row_count,
        bytes=row.byte_count,
        registered=row.registered if row.part_of is None else row.part_of,
        event_min=row.event_min,
        event_max=row.event_max,
        block_offset=row.block_offset,
        block=row.block,
        unfolded_bytes=row.unfolded_bytes,
        set_aside=row.set_aside,
    )


# ── Waiting ──────────────────────────────────────────────────────────────────────────────────────────────────────────
# What waits to be committed, of all datasets in a few statements: cheap enough to be asked every second.


NAMES_MAX = 500
"""How many landing files one statement asks for: a statement takes only so many parameters."""


def segment_bytes(connection: Connection) -> dict[str, int]:
    """Bytes of the segments that wait, those of an undecided block among them, by dataset. What is set aside does not
    wait for a flush.
    """
    found = connection.execute(
        select(segments.c.dataset, func.sum(segments.c.byte_count))
        .where(segments.c.state == "sealed", segments.c.set_aside.is_(None))
        .group_by(segments.c.dataset)
    )
    return {dataset: int(size) for dataset, size in found}


def sealed_offsets(connection: Connection, files: Sequence[str]) -> dict[str, int | None]:
    """How far each of these landing files is sealed; None for one that is removed, nothing for one never seen."""
    # By name, and not all that are open: the records include every landing file of the past.
    found: dict[str, int | None] = {}
    for names in _slices(files):
        rows = connection.execute(
            select(landing.c.file, landing.c.sealed, landing.c.state).where(landing.c.file.in_(names))
        )
        found.update({row.file: None if row.state == "removed" else int(row.sealed) for row in rows})
    return found


def _slices(names: Sequence[str]) -> Iterator[Sequence[str]]:
    for start in range(0, len(names), NAMES_MAX):
        yield names[start : start + NAMES_MAX]
