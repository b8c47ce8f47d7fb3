"""Capture: rows in, durable on return.

Lists of dicts go to the landing log; Arrow tables become segments at once. Both are checked by the parser that sealing
uses, so what is acknowledged here is what will be committed:

- nothing of a call from Python fits → it is refused and nothing is written; the producer still has the rows;
- some rows do not fit → they go to quarantine with their reasons, the others are taken, the receipt counts both;
- rows of a text (a file, a stream, a request) are never refused: what is no row of the dataset goes to quarantine with
  the place it came from;
- new columns and wider types → the dataset grows, *before* the first such row is written, so that of two
  producers with different types for a new column the second gets an error.
"""

from __future__ import annotations

import os
import threading
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.control import datasets, quarantine
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.engine import Engine
from floodmark.errors import InvalidName, QuarantineFull, SchemaConflict, SpoolFull
from floodmark.rows.envelope import encode_envelope, row_payload
from floodmark.rows.plain import PlainRows
from floodmark.rows.textlines import Problem
from floodmark.spool.ingest import fit_and_evolve, store
from floodmark.spool.landing import LandingWriter, Place, landing_bytes
from floodmark.spool.quarantine import Misfit, Sender, grouped, keep_payload

if TYPE_CHECKING:
    import pyarrow as pa
    from sqlalchemy import Connection

    from floodmark.rows.fit import Fit, FittedRows

LINE_BYTES_MAX = 32 << 20
"""A longer envelope is stored as a segment instead: sealing would have to hold all of it at once."""
BACKLOG_CHECK_SECONDS = 1.0
REASONS_MAX = 20
"""How many reasons a receipt has: the first ones show the cause."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """What a capture call stored. Everything counted here is durable."""

    rows: int
    quarantined: int = 0
    reasons: tuple[str, ...] = field(default=(), compare=False)
    """Why the first of those are in quarantine."""


@dataclass(frozen=True, slots=True)
class Texts:
    """Rows that were read from a text, where each of them stood, and what there was beside them."""

    rows: list[dict[str, Any]] | pa.Table
    place: Callable[[int], str]
    """Where a row came from, for people: `path:line`."""
    problems: Sequence[Problem] = ()
    lasting: bool = False
    """The places name the same lines when they are read again."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """Rows that are fitted and not yet stored."""

    dataset: Dataset
    """With the columns that the rows add."""
    table: pa.Table
    quarantined: list[QuarantineInput]
    receipt: Receipt
    line: bytes | None = None
    """The rows as the landing log takes them, if they were read from a text and are not typed."""


@dataclass(slots=True)
class _BacklogSize:
    at_seconds: float
    bytes: int


@dataclass(slots=True)
class Capture:
    """One process's way into the spool. Threads may share it."""

    engine: Engine
    _writers: dict[str, LandingWriter] = field(default_factory=dict)
    _known: dict[str, Dataset] = field(default_factory=dict)
    _plain: dict[str, PlainRows] = field(default_factory=dict)
    _backlogs: dict[str, _BacklogSize] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _parsing: threading.Lock = field(default_factory=threading.Lock)
    _process: int = field(default_factory=os.getpid)

    def capture(self, dataset: str, rows: Any) -> Receipt:
        """Store a list of dicts or an Arrow table; durable on return."""
        self._forget_after_fork()
        self.engine.database.check_writable()
        declared = self._dataset(dataset)
        self.check_room(dataset)
        stored = self._capture_plain(declared, rows)
        if stored is not None:
            return stored
        if hasattr(rows, "schema") or hasattr(rows, "column_names"):
            return self._capture_table(dataset, rows)
        # Parsing takes the interpreter's lock and gives it back twenty times a call. Threads that take turns as a whole
        # are several times faster than threads that hand it to each other in the middle.
        with self._parsing:
            grown, found, line = self._parsed(declared, rows)
        if not rows:
            return Receipt(rows=0)
        fitted = found.fit
        quarantined = self._quarantined(
            dataset, [Problem("", reason, _envelope(rows[row]), misfit=True) for row, reason in _reasons(fitted)]
        )
        place = self._store(grown, fitted.table, line, quarantined)
        if place is not None and self.engine.line_cache.caches(dataset):
            demands = grown.demands(self.engine.settings.spool)
            self.engine.line_cache.keep(place.file, place.offset, line, found, grown.schema, demands)
        return _receipt(fitted, quarantined)

    def _capture_plain(self, declared: Dataset, rows: Any) -> Receipt | None:
        """Store a few rows that certainly fit; None if that has to be found out, and nothing was stored.

        Arrow is imported where it is found out: a command that captures a few rows is done sooner without it.
        """
        line = self._plain_line(declared, rows)
        if line is None:
            return None
        self._writer(declared.name).append(line)
        self.count(declared.name, len(line))
        return Receipt(rows=len(rows))

    def _plain_line(self, declared: Dataset, rows: Any) -> bytes | None:
        plain = self._plain.get(declared.name)
        if plain is None or plain.schema is not declared.schema:
            demands = declared.demands(self.engine.settings.spool)
            plain = self._plain[declared.name] = PlainRows(declared.schema, demands.identity)
        found = plain.columns(rows)
        line = None if found is None else encode_envelope(*found, rows=len(rows))
        return line if line is not None and len(line) <= LINE_BYTES_MAX else None

    def _store(self, grown: Dataset, table: pa.Table, line: bytes, quarantined: list[QuarantineInput]) -> Place | None:
        """Where the line is in the landing log; None if the rows became a segment."""
        place = None
        if len(line) > LINE_BYTES_MAX:
            store(self.engine, grown, table, quarantined=quarantined)
        else:
            # What does not fit is put away first: a crash in between leaves a call that was never acknowledged.
            self._hold(grown.name, quarantined)
            place = self._writer(grown.name).append(line)
        self.count(grown.name, len(line))
        return place

    def capture_texts(self, dataset: str, texts: Texts, *, sender: Sender | None = None) -> Receipt:
        """Store what was read from a text; durable on return.

        Nothing of it is refused. What is no row of the dataset goes to quarantine with its place.
        """
        self._forget_after_fork()
        self.engine.database.check_writable()
        declared = self._dataset(dataset)
        self.check_room(dataset)
        stored = None if texts.problems else self._capture_plain(declared, texts.rows)
        if stored is not None:
            return stored
        found = self.prepare(dataset, texts, sender=sender, as_line=True)
        if not found.receipt.rows:
            self._hold(dataset, found.quarantined)
        elif found.line is not None:
            self._store(found.dataset, found.table, found.line, found.quarantined)
        else:
            store(self.engine, found.dataset, found.table, quarantined=found.quarantined)
            self.count(dataset, found.table.nbytes)
        return found.receipt

    def prepare(self, dataset: str, texts: Texts, *, sender: Sender | None = None, as_line: bool = False) -> Prepared:
        """Fit what was read from a text, to be stored by `store`."""
        self._forget_after_fork()
        self.engine.database.check_writable()
        declared = self._dataset(dataset)
        self.check_room(dataset)
        with self._parsing:
            grown, fitted, line = self._parsed_texts(declared, texts, as_line=as_line)
        wrong = [
            Problem(texts.place(row), why, _payload(texts.rows, row), misfit=True) for row, why in _reasons(fitted)
        ]
        quarantined = self._quarantined(dataset, [*wrong, *texts.problems], texts=texts, sender=sender)
        return Prepared(grown, fitted.table, quarantined, _receipt(fitted, quarantined), line)

    def store(self, prepared: Sequence[Prepared], *, also: Callable[[Connection], bool]) -> bool:
        """Store what was prepared of one dataset, by however many calls, if `also` agrees; else nothing of it.

        `also` runs in the transaction that registers the rows: all of them are one segment.
        """
        import pyarrow as pa

        quarantined = [item for one in prepared for item in one.quarantined]
        tables = [one.table for one in prepared if one.receipt.rows]
        # Schemas only grow: the one that has most columns is the newest.
        grown = max((one.dataset for one in prepared), key=lambda dataset: len(dataset.schema))

        table = pa.concat_tables(tables, promote_options="permissive") if tables else None
        if not store(self.engine, grown, table, quarantined=quarantined, also=also):
            return False
        self.count(grown.name, sum(one.table.nbytes for one in prepared))
        return True

    def _parsed_texts(self, declared: Dataset, texts: Texts, *, as_line: bool) -> tuple[Dataset, Fit, bytes | None]:
        """The dataset with the columns that the rows add, the fit, and the line to store, unless they are typed."""
        from floodmark.rows.fit import fit_each, fit_table

        fitted_rows: list[FittedRows] = []

        def fitting(declared: Dataset) -> Fit:
            schema, demands = declared.schema, declared.demands(self.engine.settings.spool)
            rows = texts.rows
            if not isinstance(rows, list):
                try:
                    return fit_table(schema, rows, demands=demands)
                except (SchemaConflict, InvalidName):
                    rows = rows.to_pylist()
            fitted_rows.append(fit_each(schema, rows, demands))
            return fitted_rows[-1].fit

        grown, fitted = self._fitted(declared, fitting)
        line = None
        if as_line and fitted_rows and fitted_rows[-1].fit is fitted:
            line = encode_envelope(fitted_rows[-1].columns, fitted_rows[-1].values, rows=fitted.table.num_rows)
        return grown, fitted, line

    def prepare_table(self, dataset: str, table: pa.Table | pa.RecordBatch) -> Prepared:
        """Fit typed rows, to be stored by the caller; `SchemaConflict` if none fits."""
        from floodmark.rows.fit import fit_table

        self._forget_after_fork()
        limits = self.engine.settings.spool
        grown, fitted = self._fitted(
            self._dataset(dataset),
            lambda current: fit_table(current.schema, table, demands=current.demands(limits)),
        )
        _refuse_if_nothing_fits(fitted, rows=table.num_rows)
        quarantined = self._quarantined(
            dataset, [Problem("", why, _payload(table, row), misfit=True) for row, why in _reasons(fitted)]
        )
        return Prepared(grown, fitted.table, quarantined, _receipt(fitted, quarantined))

    def _forget_after_fork(self) -> None:
        if self._process != os.getpid():  # a lock that another thread held at the fork would stay held for ever
            self._lock, self._parsing, self._process = threading.Lock(), threading.Lock(), os.getpid()

    def _parsed(self, declared: Dataset, rows: Any) -> tuple[Dataset, FittedRows, bytes]:
        """The dataset with the columns that the rows add, the fit, and the line to store."""
        from floodmark.rows.fit import fit_rows

        made: list[FittedRows] = []

        def fitting(declared: Dataset) -> Fit:
            made.append(fit_rows(declared.schema, rows, declared.demands(self.engine.settings.spool)))
            return made[-1].fit

        grown, fitted = self._fitted(declared, fitting)
        _refuse_if_nothing_fits(fitted, rows=len(rows))
        return grown, made[-1], encode_envelope(made[-1].columns, made[-1].values, rows=fitted.table.num_rows)

    def _quarantined(
        self, dataset: str, problems: Sequence[Problem], *, texts: Texts | None = None, sender: Sender | None = None
    ) -> list[QuarantineInput]:
        """What does not fit, in a few entries; each line of a file or a stream in one of its own, under a key of its
        place if that lasts.
        """
        misfits = [Misfit(item.reason, item.payload, place=item.place, is_row=item.misfit) for item in problems]
        entries = misfits if texts is not None and sender is None else grouped(misfits)
        lasting = texts is not None and texts.lasting
        if entries and sender is not None and len(entries) > sender.room():
            raise _quarantine_full(dataset, problems)
        quarantined = []
        for item in entries:
            key = quarantine.source_key(item.place, item.payload) if lasting else None
            text, path = keep_payload(self.engine.root, dataset, name=key or uuid.uuid4().hex, payload=item.payload)
            reason = f"{item.place}: {item.reason}" if item.place else item.reason
            token = None if sender is None else sender.token
            quarantined.append(QuarantineInput(reason, text, path, source_key=key, rows=item.rows, token=token))
        return quarantined

    def _hold(self, dataset: str, quarantined: list[QuarantineInput]) -> None:
        if quarantined:
            self.engine.database.transact(
                lambda c: quarantine.hold(c, dataset, quarantined, now=self.engine.clock.now())
            )

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

    def _capture_table(self, dataset: str, table: pa.Table | pa.RecordBatch) -> Receipt:
        fitted = self.prepare_table(dataset, table)
        if table.num_rows:
            store(self.engine, fitted.dataset, fitted.table, quarantined=fitted.quarantined)
            self.count(dataset, table.nbytes)
        return fitted.receipt

    def _fitted(self, declared: Dataset, fitting: Callable[[Dataset], Fit]) -> tuple[Dataset, Fit]:
        grown, fitted = fit_and_evolve(self.engine, declared, fitting)
        self._known[declared.name] = grown
        return grown, fitted

    def _dataset(self, name: str) -> Dataset:
        """The dataset as this process last saw it."""
        if name not in self._known or name in self.engine.corrected:
            self.engine.corrected.discard(name)
            self._known[name] = self.engine.database.read(lambda c: datasets.get(c, name))
        return self._known[name]

    def _writer(self, dataset: str) -> LandingWriter:
        with self._lock:
            if dataset not in self._writers:
                # Again: a dataset that was removed since has no spool, and nobody would seal what is written there.
                self.engine.database.read(lambda c: datasets.get(c, dataset))
                self._writers[dataset] = LandingWriter(self.engine.root / "spool" / dataset / "landing")
            return self._writers[dataset]

    # ── back-pressure ────────────────────────────────────────────────────────────────────────────────────────────

    def check_room(self, dataset: str) -> None:
        """`SpoolFull` if the dataset's backlog is at its limit."""
        waiting, most = self.room(dataset)
        if waiting >= most:
            raise SpoolFull(
                f"The spool of {dataset!r} has {waiting:,} bytes, and its limit is {most:,}.",
                hint="Nothing of this call was stored. Flush (is `floodmark flush` running?), then capture again.",
            )

    def room(self, dataset: str) -> tuple[int, int]:
        """How many bytes wait, as of a moment ago, and how many may."""
        backlog = self._backlogs.get(dataset)
        now = self.engine.clock.monotonic_seconds()
        most = self.engine.settings.spool.backlog_bytes_max
        full = backlog is not None and backlog.bytes >= most
        if backlog is None or full or now - backlog.at_seconds > BACKLOG_CHECK_SECONDS:
            backlog = self._backlogs[dataset] = _BacklogSize(now, self.backlog_bytes(dataset))
        return backlog.bytes, most

    def backlog_bytes(self, dataset: str) -> int:
        """Bytes that wait: landing lines that are not sealed and segments that are not committed."""
        _, _, sealed = self.engine.database.read(lambda c: segment_records.backlog(c, dataset))
        offsets = self.engine.database.read(lambda c: segment_records.landing_offsets(c, dataset))
        return sealed + landing_bytes(self.engine.root / "spool" / dataset / "landing", sealed=offsets)

    def count(self, dataset: str, size: int) -> None:
        """Add what was just stored to the backlog, until it is measured again."""
        backlog = self._backlogs.get(dataset)
        if backlog is not None:
            backlog.bytes += size


def _refuse_if_nothing_fits(fitted: Fit, *, rows: int) -> None:
    if rows and fitted.misfits and fitted.table.num_rows == 0:
        first = fitted.misfits[0]
        others = f" (and {rows - 1:,} more rows do not fit either)" if rows > 1 else ""
        raise SchemaConflict(
            f"Row {first.row}: {first.reason}{others}.",
            hint="Nothing was stored. Correct the rows, or declare the column with the type you need.",
        )


def _receipt(fitted: Fit, quarantined: Sequence[QuarantineInput]) -> Receipt:
    reasons = tuple(item.reason for item in quarantined[:REASONS_MAX])
    return Receipt(rows=fitted.table.num_rows, quarantined=sum(item.rows for item in quarantined), reasons=reasons)


def _quarantine_full(dataset: str, problems: Sequence[Problem]) -> QuarantineFull:
    first = problems[0]
    return QuarantineFull(
        f"{len(problems):,} rows do not fit {dataset!r}, and the quarantine has reached its limit of entries. "
        f"{first.place[:1].upper()}{first.place[1:]}: {first.reason}.",
        hint="Nothing was stored. Correct the rows; or the hub's operator decides with `floodmark quarantine`.",
    )


def _reasons(fitted: Fit) -> list[tuple[int, str]]:
    from floodmark.rows.fit import reasons_by_row

    return list(reasons_by_row(fitted.misfits).items())


def _envelope(row: Mapping[str, Any]) -> bytes:
    """The form in which quarantine keeps a Python row; a row without such a form fails the call."""
    return encode_envelope(list(row), [[value] for value in row.values()], rows=1)


def _payload(rows: list[dict[str, Any]] | pa.Table | pa.RecordBatch, row: int) -> bytes:
    return row_payload(rows[row] if isinstance(rows, list) else rows.slice(row, 1).to_pylist()[0])
