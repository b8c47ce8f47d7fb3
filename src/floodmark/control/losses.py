"""Given-up segments: acknowledged rows that will never be committed (U33)."""

from __future__ import annotations

from dataclasses import dataclass

from sqlalchemy import Connection, select

from floodmark.control.schema import Record, losses
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Loss:
    """One segment that was given up."""

    segment: int
    dataset: str
    rows: int
    range: SequenceRange | None
    """The numbers that its rows had in the last block it was in; None if it was in none."""
    kept_at: str | None
    """Where what is left of its file is, below the store's directory; None if nothing was left."""
    reason: str
    at: str


def record(connection: Connection, loss: Loss) -> None:
    connection.execute(
        losses.insert().values(
            segment=loss.segment,
            dataset=loss.dataset,
            row_count=loss.rows,
            after_seq=None if loss.range is None else loss.range.after,
            through_seq=None if loss.range is None else loss.range.through,
            kept_at=loss.kept_at,
            reason=loss.reason,
            recorded_at=loss.at,
        )
    )


def of_dataset(connection: Connection, dataset: str) -> list[Loss]:
    """In the order in which they were given up."""
    found = connection.execute(
        select(losses).where(losses.c.dataset == dataset).order_by(losses.c.recorded_at, losses.c.segment)
    )
    return [_loss(row) for row in found]


def forget(connection: Connection, segment: int) -> None:
    """Its rows are in the table after all."""
    connection.execute(losses.delete().where(losses.c.segment == segment))


def _loss(row: Record) -> Loss:
    span = None if row.after_seq is None else SequenceRange(row.after_seq, row.through_seq)
    return Loss(row.segment, row.dataset, row.row_count, span, row.kept_at, row.reason, row.recorded_at)
