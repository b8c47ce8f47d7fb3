"""The resumable loader: a source's rows go into the spool step by step, each with the positions behind it.

    read the positions → read and fit a step → write its segment → register segment and positions (one transaction) → …

Backfill, adopt and the event log come through here. Each says where its steps begin and what is in them; how a step is
stored, repeated and raced for is the same for all. Earlier steps are written while later ones are read; each is
registered only after the one before it.

Invariants
- B1, U40 Rows and positions move together: a step's segment is registered in the transaction that moves the position of
  every source it has rows of, and only from where the step began. A crash leaves a step stored or not begun, and two
  runs at once store it once: the slower one reads the positions again.
"""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, TypeVar

from sqlalchemy import Connection

from floodmark.commit.flush import flush
from floodmark.control import sources
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.segments import SourceStep
from floodmark.control.sources import Source
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, Retryable, SpoolFull
from floodmark.spool.capture import Capture
from floodmark.spool.ingest import store
from floodmark.spool.sealing import joined
from floodmark.spool.segments import ORIGIN, SOURCE, WrittenSegment, drop_segment, register_segment, write_segment

if TYPE_CHECKING:
    import pyarrow as pa

STEPS_AT_ONCE = 2
"""How many steps are written at the same time. More would only wait for each other."""
FLUSH_ROWS = 2_000_000
"""So many rows may wait in the spool before they are committed."""
RACES_MAX = 100


@dataclass(slots=True, kw_only=True)
class Step:
    """What becomes one segment, and the positions behind it."""

    dataset: Dataset
    """As its rows have grown it."""
    tables: list[pa.Table] = field(default_factory=list)
    quarantined: list[QuarantineInput] = field(default_factory=list)
    moves: dict[str, tuple[Source | None, str]] = field(default_factory=dict)
    """For each source its record as the step was prepared, if it has one, and its position behind the step."""
    notes: dict[bytes, bytes] = field(default_factory=dict)
    """What is certain of all of its rows."""

    @property
    def rows(self) -> int:
        return sum(table.num_rows for table in self.tables)

    @property
    def bytes(self) -> int:
        return sum(table.nbytes for table in self.tables)

    @property
    def number(self) -> SourceStep:
        """Its place among the steps of the source that it ends with."""
        id, (seen, _) = next(reversed(self.moves.items()))
        return SourceStep(id, seen.next_ordinal if seen else 0)


S = TypeVar("S", bound=Step)


@dataclass(slots=True)
class StepLoader(Generic[S]):
    """Stores the steps of one run."""

    engine: Engine
    dataset: str
    source: str
    """What is loaded, for people."""
    stored: Callable[[S], None]
    """Called after a step is registered."""
    spool: Capture | None = None
    """Whose limits hold: the rows are committed before they fill the spool. None: only what is stored is counted."""
    _under_way: deque[tuple[S, Future[WrittenSegment | None]]] = field(default_factory=deque)
    """The steps that are being written, while the next one is read."""
    _unflushed: int = 0

    def load(self, steps: Callable[[], Iterator[S]]) -> None:
        """Store every step. `steps` reads the recorded positions and continues behind them: it is called again when
        another process was faster.
        """
        with ThreadPoolExecutor(STEPS_AT_ONCE, thread_name_prefix="load") as writing:
            try:
                for _ in range(RACES_MAX):
                    if self._load_once(steps(), writing):
                        return
            except FloodmarkError:
                self._give_up()
                raise
        raise Retryable(
            f"Other processes load {self.source} into {self.dataset!r} faster than this one can follow.",
            hint="Run it again: stored rows stay stored.",
        )

    def _load_once(self, steps: Iterator[S], writing: ThreadPoolExecutor) -> bool:
        """False if another process had done a step."""
        try:
            for step in steps:
                while len(self._under_way) >= STEPS_AT_ONCE:
                    if not self._store_next():
                        return False
                if step.rows:
                    self._make_room()
                self._under_way.append((step, writing.submit(self._written, step)))
        except FloodmarkError:
            self._store_rest()  # what was read before a source broke off is stored: the next run continues there
            raise
        return self._store_rest()

    def _store_rest(self) -> bool:
        while self._under_way:
            if not self._store_next():
                return False
        return True

    def _store_next(self) -> bool:
        """B1: in their order, so that each position follows the one before it."""
        step, writing = self._under_way.popleft()
        written = writing.result()
        if not (self._pass_over(step) if written is None else self.register(step, written)):
            self._give_up()
            return False
        self.stored(step)
        self._unflushed += step.rows
        if self.spool is not None and self._unflushed >= FLUSH_ROWS:
            self._flush()
        return True

    def _written(self, step: S) -> WrittenSegment | None:
        if not step.rows:
            return None
        rows = joined(step.tables, step.dataset.schema)
        return write_segment(self.engine, step.dataset, rows, notes={ORIGIN: SOURCE, **step.notes})

    def register(self, step: S, written: WrittenSegment) -> bool:
        if not register_segment(
            self.engine, step.dataset, written, step=step.number, quarantined=step.quarantined, also=self.mover(step)
        ):
            return False
        if self.spool is not None:
            self.spool.count(self.dataset, step.bytes)
        return True

    def _pass_over(self, step: S) -> bool:
        """Nothing of the step is a row to store."""
        return store(self.engine, step.dataset, None, quarantined=step.quarantined, also=self.mover(step))

    def mover(self, step: S) -> Callable[[Connection], bool]:
        return lambda connection: sources.advance_all(connection, self.dataset, step.moves)

    def _give_up(self) -> None:
        """Drop what is written and cannot be registered any more: the next run, or another process, reads it again."""
        while self._under_way:
            _, writing = self._under_way.popleft()
            with contextlib.suppress(FloodmarkError):  # one that could not be written left nothing
                written = writing.result()
                if written is not None:
                    drop_segment(self.engine, written)

    def _make_room(self) -> None:
        """History would fill the spool and push live rows back: it is committed before it does."""
        if self.spool is None:
            return
        try:
            self.spool.check_room(self.dataset)
        except SpoolFull:
            self._flush()
            self.spool.check_room(self.dataset)

    def _flush(self) -> None:
        flush(self.engine, self.dataset)
        self._unflushed = 0
