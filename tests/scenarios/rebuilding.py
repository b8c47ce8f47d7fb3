"""A world whose dataset is rebuilt: rows from before, a sink that has some of them, and processes that come and go."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pyarrow.parquet as pq
from worlds import DATASET, World

from floodmark.control import datasets, generations
from floodmark.errors import Retryable
from floodmark.sequence import SequenceRange, Tally
from floodmark.store import Store

POINTS = [
    "rebuild.taken_over",
    "rebuild.named",
    "rebuild.copying",
    "rebuild.copied",
    "rebuild.caught_up",
    "rebuild.fenced",
    "rebuild.renamed",
    "rebuild.settled",
    "rebuild.equal",
    "rebuild.switched",
]
"""Every rebuild passes these, in this order."""
SOME_POINTS = ["rebuild.copied", "rebuild.caught_up", "rebuild.fenced", "rebuild.renamed"]
"""Those between which a flush that is under way fares differently."""


class Rebuilding(World):
    """A world with committed rows and a blob sink."""

    def begun(self) -> Store:
        store = self.open()
        store.add_sink("out", "blob", url=(self.root.parent / "out").as_uri(), chunk_rows=2)
        for count in (4, 3):
            self.capture(store, count)
            store.flush(DATASET)
        store.export("out")
        return store

    def rebuild(self, **options: Any) -> Any:
        """By a process of its own."""
        return self.open().rebuild(DATASET, **options)

    def flush(self, count: int = 2) -> bool:
        """Rows captured and flushed by a process of its own; whether the flush got through."""
        store = self.open()
        self.capture(store, count)
        return patiently(lambda: store.flush(DATASET), times=1)

    def any_process(self) -> Store:
        return self.opened[-1] if self.opened else self.open()

    def declared(self) -> Any:
        return self.any_process().engine.database.read(lambda c: datasets.get(c, DATASET))

    def generations(self) -> dict[int, str]:
        found = self.any_process().engine.database.read(lambda c: generations.everyone(c, DATASET))
        return {item.generation: item.state for item in found}

    def delivered(self) -> list[int]:
        paths = (self.root.parent / "out").glob("events/*/*.parquet")
        return sorted(id for path in paths for id in pq.read_table(path)["id"].to_pylist())

    def check_all(self, *, gone: tuple[int, ...] = ()) -> None:
        """Every row once, in the table and at the sink; the records' totals are the table's; nothing is fenced."""
        self.check(gone=gone)
        store = self.any_process()
        store.export("out")
        assert self.delivered() == sorted(self.acknowledged)
        assert store.export("out").rows == 0
        assert not self.declared().fenced
        state = self.lake.load(self.current())
        assert state is not None
        counted = self.lake.figures(
            state.name, snapshot=state.head, within=SequenceRange(0, 2**62), partition_by=("site",)
        )
        totals = store.engine.database.read(lambda c: datasets.partition_totals(c, DATASET))
        assert {item.partition: item.tally for item in counted} == {
            item.partition: item.tally for item in totals if item.tally != Tally()
        }


def patiently(work: Callable[[], Any], *, times: int = 20) -> bool:
    """Try again where that is what we are told."""
    for _ in range(times):
        try:
            work()
        except Retryable:
            continue
        return True
    return False
