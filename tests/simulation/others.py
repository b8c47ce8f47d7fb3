"""What users bring along: a projection, a settle function, data without numbers or an order, the owner of a table."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from sqlalchemy import text

from floodmark.lake.adoptable import Part
from floodmark.lake.targets import ORIGIN_PARTITION, ORIGIN_SEQ, ORIGIN_STORE

PROJECTION = f"{__name__}:keep"
SETTLE = f"{__name__}:settle"

COLUMNS = ("id", "site", "text", "proof")
AMOUNT = "amount"
"""A column whose type its owner corrects, where the schedules are about that."""
REFERENCE = "reference"
"""The identity of rows, where they have one. Every other row has none: it is known by its content."""


def as_captured(row: Mapping[str, Any], *, identified: bool, settles: bool) -> dict[str, Any]:
    """A row as its producer has it: with what it is known by again, where it is."""
    if settles:
        return {**row, "key": row["id"]}
    return {**row, REFERENCE: row["id"] if int(row["id"][-1]) % 2 else None} if identified else dict(row)


known: dict[str, str] = {}
"""What a provisional key turns out to be. One world at a time."""
mischief: list[str] = []
"""If it is not empty, the settle function puts rows into another partition, which it must not."""


def keep(batch: pa.Table, delivery: Any) -> None:
    """A transactional projection: the rows, in a table beside the store's own."""
    names = ", ".join(COLUMNS)
    delivery.connection.execute(text(f"CREATE TABLE IF NOT EXISTS projected ({names})"))
    rows = batch.select(COLUMNS).to_pylist()
    if rows:
        delivery.connection.execute(text(f"INSERT INTO projected VALUES (:{', :'.join(COLUMNS)})"), rows)


def settle(rows: pa.Table) -> pa.Table:
    """A settle function that learns later which rows are one."""
    keys = [known.get(key, key) for key in rows["key"].to_pylist()]
    settled = rows.set_column(rows.column_names.index("key"), "key", pa.array(keys, pa.string()))
    if not mischief:
        return settled
    elsewhere = pa.repeat(pa.scalar("elsewhere"), rows.num_rows)
    return settled.set_column(rows.column_names.index("site"), "site", elsewhere)


def stranger() -> pa.Table:
    """A row that the owner of a table has of his own."""
    origin = {ORIGIN_STORE: pa.nulls(1, pa.string()), ORIGIN_SEQ: pa.nulls(1, pa.int64())}
    return pa.table({"id": ["the owner's"], **origin, ORIGIN_PARTITION: pa.nulls(1, pa.string())})


class Unsteady:
    """History that need not come in the same order again: another row is its first each time it is read."""

    def __init__(self, rows: list[dict[str, Any]], *, turn: int) -> None:
        self._rows, self._turn = rows, turn % len(rows)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        turned = self._rows[self._turn :] + self._rows[: self._turn]
        self._turn = (self._turn + 1) % len(self._rows)
        return iter(turned)


@dataclass
class Legacy:
    """Data without sequence numbers, in two parts."""

    rows: list[dict[str, Any]]
    name: str = "table:legacy"
    version: str = "1"
    half: int = field(init=False)

    def __post_init__(self) -> None:
        self.half = len(self.rows) // 2

    def parts(self) -> Iterator[Part]:
        yield Part("a", -1, self.half - 1)
        yield Part("b", self.half - 1, len(self.rows) - 1)

    def read(self, part: Part) -> pa.Table:
        return pa.Table.from_pylist(self.rows[part.after + 1 : part.through + 1])
