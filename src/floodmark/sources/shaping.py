"""Rows of a source as rows of a dataset: renamed, fitted to its schema (which may grow), of the requested time."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any

from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput, source_key
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, SchemaConflict
from floodmark.rows.envelope import row_payload
from floodmark.rows.fit import Fit, fit_each, fit_table, reasons_by_row
from floodmark.rows.plain import Demands
from floodmark.schema import Schema
from floodmark.schema.types import ColumnType
from floodmark.sources.files import KindOf
from floodmark.sources.units import Batch, Problem
from floodmark.spool.ingest import fit_and_evolve
from floodmark.spool.quarantine import keep_payload

if TYPE_CHECKING:
    import pyarrow as pa


# ── A batch of a source, fitted to a dataset's schema ────────────────────────────────────────────────────────────────
# Fitting is what capture and sealing do, by the same functions. A table whose types do not fit as a whole is fitted row
# by row, so that only the rows that are wrong go to quarantine.


def kinds(schema: Schema, renamed: Mapping[str, str]) -> KindOf:
    """The type that each column of a source is to become."""

    def kind_of(name: str) -> ColumnType | None:
        column = schema.get(renamed.get(name, name))
        return None if column is None else column.type

    return kind_of


def fit_batch(schema: Schema, batch: Batch, renamed: Mapping[str, str], demands: Demands) -> Fit:
    """The rows of a batch under the names they are to have."""
    if isinstance(batch.rows, list):
        rows = [_renamed(row, renamed) for row in batch.rows] if renamed else batch.rows
        return fit_each(schema, rows, demands).fit
    table = batch.rows.rename_columns([renamed.get(name, name) for name in batch.rows.column_names])
    try:
        return fit_table(schema, table, demands=demands)
    except SchemaConflict:
        if len(set(table.column_names)) != table.num_columns:
            raise  # as rows, one of two columns would be lost
        return fit_each(schema, table.to_pylist(), demands).fit


def _renamed(row: Mapping[str, Any], renamed: Mapping[str, str]) -> dict[str, Any]:
    named = {renamed.get(name, name): value for name, value in row.items()}
    if len(named) != len(row):
        twice = next(new for old, new in renamed.items() if old in row and new in row)
        raise SchemaConflict(f"Two columns are named {twice!r}.", hint="Rename the other one too.")
    return named


def misfits(fitted: Fit, batch: Batch, renamed: Mapping[str, str]) -> list[Problem]:
    """The rows that do not fit, each with its place, what is wrong with it, and as what it can be replayed."""
    found = reasons_by_row(fitted.misfits)
    return [
        Problem(batch.place(row), reason, _payload(batch.rows, row, renamed), misfit=True)
        for row, reason in found.items()
    ]


def _payload(rows: list[dict[str, Any]] | pa.Table, row: int, renamed: Mapping[str, str]) -> bytes:
    found = rows[row] if isinstance(rows, list) else rows.slice(row, 1).to_pylist()[0]
    return row_payload({renamed.get(name, name): value for name, value in found.items()})


# ── Shaping ──────────────────────────────────────────────────────────────────────────────────────────────────────────


ALIKE_ROWS = 100
"""So many rows of which none fits are a wrong mapping, and not rows for the quarantine."""


@dataclass(frozen=True, slots=True)
class Shape:
    """The requested changes to a source's rows."""

    renamed: Mapping[str, str] = field(default_factory=dict)
    since: int | None = None
    """The earliest event time, in microseconds."""
    until: int | None = None
    """The event time before which a row must be."""
    select: str | None = None
    """A SQL query over the source, which Spark evaluates before anything here."""
    applied: bool = False
    """Spark has renamed the columns already."""

    @property
    def is_windowed(self) -> bool:
        return self.since is not None or self.until is not None


@dataclass(frozen=True, slots=True)
class Shaped:
    """What became of a batch."""

    declared: Dataset
    """The dataset as the rows have grown it."""
    rows: pa.Table
    quarantined: list[QuarantineInput]
    outside: int


def moment(value: str | date | datetime | None) -> int | None:
    """A bound of event time in microseconds; without a zone it is UTC, a date is its midnight."""
    if value is None:
        return None
    try:
        found = datetime.fromisoformat(value) if isinstance(value, str) else value
    except ValueError as error:
        raise InvalidSetting(
            f"{value!r} is not a time.", hint="Write it as 2026-01-31 or 2026-01-31T12:00:00Z."
        ) from error
    if not isinstance(found, datetime):
        found = datetime(found.year, found.month, found.day, tzinfo=UTC)
    if found.tzinfo is None:
        found = found.replace(tzinfo=UTC)
    whole = found - datetime(1970, 1, 1, tzinfo=UTC)
    return (whole.days * 86_400 + whole.seconds) * 1_000_000 + whole.microseconds


@dataclass(frozen=True, slots=True)
class Shaper:
    """Shapes the batches of one backfill."""

    engine: Engine
    dataset: str
    shape: Shape

    def shaped(self, batch: Batch, *, first: bool) -> Shaped:
        """The rows that fit, and the others as they go to quarantine; `SchemaConflict` if none of many fits."""
        renamed = {} if batch.fitted or self.shape.applied else self.shape.renamed
        declared, fitted = self._fitted(batch, renamed)
        problems = [*misfits(fitted, batch, renamed), *batch.problems]
        wrong = [item for item in problems if item.misfit]
        count = len(wrong) + fitted.table.num_rows
        if wrong and fitted.table.num_rows == 0 and (first or count >= ALIKE_ROWS):
            raise SchemaConflict(
                f"{wrong[0].place}: {wrong[0].reason}; none of {count:,} rows fits.",
                hint="Rename columns with `map`, or convert them with `select`. Loaded rows stay loaded.",
            )
        rows = self._windowed(fitted.table, declared)
        quarantined = [self._quarantined(item, lasting=batch.lasting) for item in problems]
        return Shaped(declared, rows, quarantined, fitted.table.num_rows - rows.num_rows)

    def _fitted(self, batch: Batch, renamed: Mapping[str, str]) -> tuple[Dataset, Fit]:
        def fitting(current: Dataset) -> Fit:
            schema = current.schema
            with contextlib.suppress(SchemaConflict):
                # The new columns of the batch. If an earlier batch added one of them with another
                # type, the rows are fitted to that.
                schema = schema.merge(batch.columns)
            return fit_batch(schema, batch, renamed, current.demands(self.engine.settings.spool))

        known = self.engine.database.read(lambda c: datasets.get(c, self.dataset))
        return fit_and_evolve(self.engine, known, fitting)

    def _windowed(self, rows: pa.Table, declared: Dataset) -> pa.Table:
        """The rows whose event time is in the window; a row without one is not."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if not self.shape.is_windowed:
            return rows
        if declared.event_time is None or declared.event_time not in rows.column_names:
            return rows.slice(0, 0)
        times = rows[declared.event_time]
        if pa.types.is_date(times.type):
            times = times.cast(pa.timestamp("us", tz="UTC"))
        micros = times.cast(pa.int64())
        inside = pc.is_valid(micros)
        if self.shape.since is not None:
            inside = pc.and_(inside, pc.greater_equal(micros, self.shape.since))
        if self.shape.until is not None:
            inside = pc.and_(inside, pc.less(micros, self.shape.until))
        return rows.filter(pc.fill_null(inside, fill_value=False))

    def _quarantined(self, problem: Problem, *, lasting: bool) -> QuarantineInput:
        key = source_key(problem.place, problem.payload) if lasting else None
        text, path = keep_payload(self.engine.root, self.dataset, name=key or uuid.uuid4().hex, payload=problem.payload)
        return QuarantineInput(
            reason=f"{problem.place}: {problem.reason}", payload=text, payload_path=path, source_key=key
        )
