"""Ingest: the one way of rows into the spool.

    fit → evolve → write → register, with the position of the source they came from

Capture, sealing, replay, the hub and every source come through here. So there is one rule for each question:

- *Two writers add a column.* The dataset grows before a row with the column is written. The writer that comes second
  fits its rows again, to the changed dataset.
- *The schema in memory is old.* Schemas only grow, so an old one is narrow, never wrong. Rows that do not fit it are
  fitted again to the current one before they are called misfits.
- *Nothing fits.* Quarantine and position still move in one transaction: the same input is not read again.
- *Another process was first.* The segment and everything else of the transaction is given up; the caller gets false.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

from sqlalchemy import Connection

from floodmark.control import datasets, quarantine
from floodmark.control import segments as records
from floodmark.control.datasets import Dataset
from floodmark.control.quarantine import QuarantineInput
from floodmark.control.segments import LandingRange
from floodmark.engine import Engine
from floodmark.errors import Retryable, SchemaConflict
from floodmark.schema import Schema

if TYPE_CHECKING:
    import pyarrow as pa

RACES_MAX = 100
"""How often rows are fitted again because other writers changed the schema."""


class Fitted(Protocol):
    """Rows that were fitted to a schema. `rows.Fit` is one."""

    @property
    def schema(self) -> Schema:
        """The schema with the columns that the fitting rows add."""
        ...

    @property
    def misfits(self) -> Sequence[object]:
        """What does not fit."""
        ...


F = TypeVar("F", bound=Fitted)


def fit_and_evolve(engine: Engine, known: Dataset, fitting: Callable[[Dataset], F]) -> tuple[Dataset, F]:
    """Fit rows to a dataset, and add their new columns: the changed dataset, and the fit.

    `known` is the dataset as the caller last read it. What `fitting` raises for the current dataset is raised here.
    """
    declared, current = known, False
    for _ in range(RACES_MAX):
        try:
            fitted = fitting(declared)
        except SchemaConflict:
            if current:
                raise
        else:
            if current or not fitted.misfits:
                changes = tuple(column for column in fitted.schema if declared.schema.get(column.name) != column)
                if not changes:
                    return declared, fitted
                try:
                    return engine.database.transact(lambda c: datasets.evolve(c, known.name, changes)), fitted  # noqa: B023 - called here
                except SchemaConflict:
                    pass  # another writer gave a new column another type a moment ago: fit again, to that
        declared, current = engine.database.read(lambda c: datasets.get(c, known.name)), True
    raise Retryable(f"The schema of {known.name!r} changed {RACES_MAX} times while rows were fitted to it.")


def store(
    engine: Engine,
    dataset: Dataset,
    table: pa.Table | None,
    *,
    lines: LandingRange | None = None,
    quarantined: Sequence[QuarantineInput] = (),
    also: Callable[[Connection], bool] | None = None,
) -> bool:
    """Register fitted rows as a segment, and quarantine what did not fit; false if another process did that first.

    `lines` of a landing file are consumed with them. `also` runs in the same transaction, and gives everything up by
    returning false.
    """
    if table is not None and table.num_rows:
        from floodmark.spool.segments import add_segment  # a row that goes to the landing log needs none of it

        return add_segment(engine, dataset, table, lines=lines, quarantined=quarantined, also=also)

    def consume(connection: Connection) -> bool:
        if lines is not None and not records.advance_landing(connection, lines):
            return False
        if also is not None and not also(connection):
            return False
        quarantine.hold(connection, dataset.name, list(quarantined), now=engine.clock.now())
        return True

    return engine.database.transact(consume)
