"""What waits to be committed, of all datasets in a few statements: cheap enough to be asked every second."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sqlalchemy import Connection, func, select

from floodmark.control.schema import landing, segments

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
    # By name, and not all that are open: a store remembers every landing file that ever was.
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
