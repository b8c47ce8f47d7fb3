"""Capture: rows in, durable on return.

Lists of dicts go to the landing log; Arrow tables become segments at once. Both are judged by the parser that sealing
uses, so what is acknowledged here is what will be committed:

- nothing fits → the call is refused and nothing is written; the producer still has the rows;
- some rows do not fit → they go to quarantine with their reasons, the others are taken, the receipt counts both;
- new columns and wider types → the dataset grows, *before* the first such row is written, so that of two
  producers with different ideas of a new column the second is told.
"""

from __future__ import annotations

import contextlib
import os
import threading
import uuid
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.clock import Clock
from floodmark.control import datasets, quarantine
from floodmark.control import segments as segment_records
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import Held
from floodmark.control.segments import SourceStep
from floodmark.errors import SchemaConflict, SpoolFull
from floodmark.rows import Fit, encode_envelope, fit, fit_table, reasons_by_row, rows_to_columns
from floodmark.schema import Schema
from floodmark.spool.landing import LandingWriter, landing_bytes
from floodmark.spool.payloads import keep_payload
from floodmark.spool.segments import SegmentStore

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

LINE_BYTES_MAX = 32 << 20
"""A longer envelope is stored as a segment instead: sealing would have to hold all of it at once."""
BACKLOG_CHECK_SECONDS = 1.0

_Row = tuple[list[str], list[list[Any]]]
"""The columns and values of one row, as an envelope takes them."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a capture call stored. Everything counted here is durable."""

    rows: int
    quarantined: int = 0


@dataclass(slots=True)
class _BacklogLook:
    at_seconds: float
    bytes: int


@dataclass(slots=True)
class Capture:
    """One process's way into the spool. Threads may share it."""

    root: Path
    database: Database
    segments: SegmentStore
    clock: Clock
    backlog_bytes_max: int
    _writers: dict[str, LandingWriter] = field(default_factory=dict)
    _known: dict[str, Dataset] = field(default_factory=dict)
    _looks: dict[str, _BacklogLook] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parsing: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    def capture(self, dataset: str, rows: Any) -> Receipt:
        """Store a list of dicts or an Arrow table; durable on return."""
        self._forget_after_fork()
        self.database.check_writable()
        declared = self._dataset(dataset)
        self.check_room(dataset)
        if hasattr(rows, "schema") or hasattr(rows, "column_names"):
            return self._capture_table(declared, rows)
        # Parsing takes the interpreter's lock and gives it back twenty times a call. Threads that take turns as a whole
        # are several times faster than threads that hand it to each other in the middle.
        with self._parsing:
            grown, fitted, held, line = self._parsed(declared, rows)
        if not rows:
            return Receipt(rows=0)
        if len(line) > LINE_BYTES_MAX:
            self.segments.add(grown, fitted.table, held=held)
        else:
            # What does not fit is put away first: a crash in between leaves a call that was never acknowledged.
            self._hold(dataset, held)
            self._writer(dataset).append(line)
        self.count(dataset, len(line))
        return Receipt(rows=fitted.table.num_rows, quarantined=len(held))

    def capture_once(self, dataset: str, rows: Any, *, also: Callable[[Connection, Receipt], bool]) -> Receipt | None:
        """Store a list of dicts if `also`, which runs in the transaction that registers them, agrees; else nothing."""
        self._forget_after_fork()
        declared = self._dataset(dataset)
        self.check_room(dataset)
        with self._parsing:
            grown, fitted, held, line = self._parsed(declared, rows)
        receipt = Receipt(rows=fitted.table.num_rows, quarantined=len(held))
        if not rows:
            return receipt if self.database.transact(lambda connection: also(connection, receipt)) else None
        if not self.segments.add(grown, fitted.table, held=held, also=lambda connection: also(connection, receipt)):
            return None
        self.count(dataset, len(line))
        return receipt

    def capture_step(
        self, dataset: str, table: pa.Table, step: SourceStep, *, also: Callable[[Connection], bool]
    ) -> Receipt | None:
        """Store one step of a source, once: `also` moves its position in the same transaction; None if another did."""
        self._forget_after_fork()
        self.check_room(dataset)
        grown, fitted = self._fitted(
            self._dataset(dataset), lambda schema: fit_table(schema, table), rows=table.num_rows
        )
        held = self._held(dataset, fitted, lambda row: _row_of(table, row))
        if not self.segments.add(grown, fitted.table, step=step, held=held, also=also):
            return None
        self.count(dataset, table.nbytes)
        return Receipt(rows=fitted.table.num_rows, quarantined=len(held))

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():  # a lock that another thread held at the fork would stay held for ever
            self._lock, self._parsing, self._process = threading.Lock(), threading.Lock(), os.getpid()

    def _parsed(self, declared: Dataset, rows: Any) -> tuple[Dataset, Fit, list[Held], bytes]:
        """The dataset as it is grown by the rows, the rows that fit, those that do not, and the line to store."""
        columns, values = rows_to_columns(rows)
        grown, fitted = self._fitted(
            declared, lambda schema: fit(schema, columns, values, rows=len(rows)), rows=len(rows)
        )
        held = self._held(declared.name, fitted, lambda row: (columns, [[column[row]] for column in values]))
        if fitted.kept is not None:
            values = [[column[row] for row in fitted.kept] for column in values]
        return grown, fitted, held, encode_envelope(columns, values, rows=fitted.table.num_rows)

    def _held(
        self, dataset: str, fitted: Fit, row_of: Callable[[int], tuple[list[str], list[list[Any]]]]
    ) -> list[Held]:
        """The rows that do not fit, each as an envelope of its own."""
        held = []
        for row, reason in reasons_by_row(fitted.misfits).items():
            columns, values = row_of(row)
            payload = encode_envelope(columns, values, rows=1)
            text, path = keep_payload(self.root, dataset, name=uuid.uuid4().hex, payload=payload)
            held.append(Held(reason=reason, payload=text, payload_path=path))
        return held

    def _hold(self, dataset: str, held: list[Held]) -> None:
        if held:
            self.database.transact(lambda c: quarantine.hold(c, dataset, held, now=self.clock.now()))

    def close(self) -> None:
        """Give the landing files up, so that they can be sealed to their ends."""
        with self._lock:
            for writer in self._writers.values():
                writer.close()
            self._writers.clear()

    def give_file_up(self, dataset: str) -> None:
        """Let this process's landing file be sealed to its end and removed; the next row begins another."""
        with self._lock:
            writer = self._writers.get(dataset)
        if writer is not None:
            writer.close()

    def _capture_table(self, declared: Dataset, table: pa.Table | pa.RecordBatch) -> Receipt:
        grown, fitted = self._fitted(declared, lambda schema: fit_table(schema, table), rows=table.num_rows)
        if table.num_rows == 0:
            return Receipt(rows=0)
        held = self._held(declared.name, fitted, lambda row: _row_of(table, row))
        self.segments.add(grown, fitted.table, held=held)
        self.count(declared.name, table.nbytes)
        return Receipt(rows=fitted.table.num_rows, quarantined=len(held))

    def _fitted(self, declared: Dataset, fitting: Callable[[Schema], Fit], *, rows: int) -> tuple[Dataset, Fit]:
        """Fit, and grow the dataset by what the rows bring.

        The schema this process remembers may be narrower than the dataset's by now, so it is looked at afresh
        before a row is called a misfit or the call is refused.
        """
        with contextlib.suppress(SchemaConflict):
            fitted = fitting(declared.schema)
            if not fitted.misfits:
                return self._grow(declared, fitted), fitted
        declared = self._dataset(declared.name, fresh=True)
        fitted = fitting(declared.schema)
        _refuse_if_nothing_fits(fitted, rows=rows)
        return self._grow(declared, fitted), fitted

    def _grow(self, declared: Dataset, fitted: Fit) -> Dataset:
        if not fitted.evolves:
            return declared
        changes = (*fitted.new_columns, *fitted.widened)
        grown = self.database.transact(lambda c: datasets.evolve(c, declared.name, changes))
        self._known[declared.name] = grown
        return grown

    def _dataset(self, name: str, *, fresh: bool = False) -> Dataset:
        """The dataset as this process last saw it. Schemas only grow, so an old one is narrow, never wrong."""
        if fresh or name not in self._known:
            self._known[name] = self.database.read(lambda c: datasets.get(c, name))
        return self._known[name]

    def _writer(self, dataset: str) -> LandingWriter:
        with self._lock:
            if dataset not in self._writers:
                self._writers[dataset] = LandingWriter(self.root / "spool" / dataset / "landing")
            return self._writers[dataset]

    # ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────

    def check_room(self, dataset: str) -> None:
        """`SpoolFull` if the dataset's backlog is at its limit."""
        look = self._looks.get(dataset)
        now = self.clock.monotonic_seconds()
        full = look is not None and look.bytes >= self.backlog_bytes_max
        if look is None or full or now - look.at_seconds > BACKLOG_CHECK_SECONDS:
            look = self._looks[dataset] = _BacklogLook(now, self.backlog_bytes(dataset))
        if look.bytes >= self.backlog_bytes_max:
            raise SpoolFull(
                f"The spool of {dataset!r} holds {look.bytes:,} bytes, and its limit is {self.backlog_bytes_max:,}.",
                hint="Nothing of this call was stored. Flush (is `floodmark flush` running?), then capture again.",
            )

    def backlog_bytes(self, dataset: str) -> int:
        """Bytes that wait: landing lines that are not sealed and segments that are not committed."""
        _, _, sealed = self.database.read(lambda c: segment_records.backlog(c, dataset))
        offsets = self.database.read(lambda c: segment_records.landing_offsets(c, dataset))
        return sealed + landing_bytes(self.root / "spool" / dataset / "landing", sealed=offsets)

    def count(self, dataset: str, size: int) -> None:
        """Add what was just stored to the backlog, until it is looked at again."""
        look = self._looks.get(dataset)
        if look is not None:
            look.bytes += size


def _refuse_if_nothing_fits(fitted: Fit, *, rows: int) -> None:
    if rows and fitted.misfits and fitted.table.num_rows == 0:
        first = fitted.misfits[0]
        others = f" (and {rows - 1:,} more rows do not fit either)" if rows > 1 else ""
        raise SchemaConflict(
            f"Row {first.row}: {first.reason}{others}.",
            hint="Nothing was stored. Correct the rows, or declare the column with the type you need.",
        )


def _row_of(table: pa.Table | pa.RecordBatch, row: int) -> _Row:
    values = table.slice(row, 1).to_pylist()[0]
    return list(values), [[value] for value in values.values()]
