"""A store that has delivered to one destination, and the hands that do damage there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from floodmark.maintenance.audit import AuditReport
from floodmark.store import Store, init, open_store
from floodmark.testing import ManualClock, MemoryLake

DATASET = "m"
SINK = "out"
COLUMNS = {"n": "long", "source": "string", "note": "string"}


class Shop:
    """A store on the memory lake with one sink; rows come in rounds of a capture, a flush and an export."""

    def __init__(self, root: Path, **dataset: Any) -> None:
        self.root = root
        self.lake = MemoryLake()
        self.clock = ManualClock()
        self.numbers: Iterator[int] = itertools.count(1)
        self.store = init(root / "store", lake=self.lake, clock=self.clock)
        self.store.add_dataset(DATASET, **{"partition_by": ["source"], "schema": COLUMNS, **dataset})

    def again(self) -> Store:
        """As another process opens it."""
        self.store.close()
        self.store = open_store(self.root / "store", lake=self.lake, clock=self.clock)
        return self.store

    def add_files(self, **settings: Any) -> Path:
        directory = self.root / "out"
        self.store.add_sink(SINK, "blob", **{"url": directory.as_uri(), "chunk_rows": 3, **settings})
        return directory

    def add_table(self, **settings: Any) -> str:
        self.store.add_sink(SINK, "table", **{"table": "central.copies", "chunk_rows": 3, **settings})
        return f"central.copies.{DATASET}"

    def commit(self, count: int = 8) -> None:
        rows = [{"n": n, "source": f"s{n % 2}", "note": f"row {n}"} for n in itertools.islice(self.numbers, count)]
        self.store.capture(DATASET, rows)
        self.store.flush(DATASET)

    def deliver(self, count: int = 8, rounds: int = 2) -> None:
        for _ in range(rounds):
            self.commit(count)
            report = self.store.export(SINK)
            assert not report.errors

    def audit(self, *, deep: bool = False) -> AuditReport:
        return self.store.audit(SINK, deep=deep)

    def kinds(self, *, deep: bool = False) -> list[str]:
        """What an audit finds, as seen by another process."""
        self.again()
        return [item.kind for item in self.audit(deep=deep).findings if item.wrong]

    def sql(self, statement: str) -> None:
        self.store.engine.database.transact(lambda c: c.exec_driver_sql(statement))


def objects(directory: Path, partition: str = "source=s0") -> list[Path]:
    return sorted((directory / DATASET / partition).glob("*.*"), key=lambda path: int(path.name.partition("-")[0]))


def rewrite(path: Path, rows: pa.Table) -> None:
    path.unlink()
    pq.write_table(rows, path)


def without_first(rows: pa.Table) -> pa.Table:
    return rows.slice(1)


def first_twice(rows: pa.Table) -> pa.Table:
    return pa.concat_tables([rows, rows.slice(0, 1)])


def with_other_note(rows: pa.Table) -> pa.Table:
    notes = rows["note"].to_pylist()
    changed = pa.array(["changed", *notes[1:]], pa.string())
    return rows.set_column(rows.schema.get_field_index("note"), "note", changed)
