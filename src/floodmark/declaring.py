"""Declaring datasets: what is fixed for a dataset's life, and what may still come."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.errors import DatasetExists, SchemaConflict
from floodmark.providers import Declaration
from floodmark.schema import Column, Schema, check_dataset_name, check_partition_columns, parse_identity
from floodmark.schema.types import DATE, STRING, TIMESTAMP


def declaration(
    name: str,
    *,
    identity: Any = None,
    event_time: str | None = None,
    partition_by: Sequence[str] = (),
    schema: Any = None,
    settle: str | None = None,
) -> Dataset:
    """A dataset as its maker describes it, checked; columns that the description implies are added."""
    declared = Schema.declare(schema)
    slices = (partition_by,) if isinstance(partition_by, str) else tuple(partition_by)
    implied = []
    if event_time is not None and event_time not in declared:
        implied.append(Column(event_time, TIMESTAMP))
    implied += [Column(column, STRING) for column in slices if column not in declared]
    whole = declared.merge(implied)
    if event_time is not None and whole.column(event_time).type not in (TIMESTAMP, DATE):
        raise SchemaConflict(
            f"The event time {event_time!r} is a {whole.column(event_time).type}.",
            hint="It must be a timestamp or a date.",
        )
    check_partition_columns(slices, whole)
    return Dataset(
        name=check_dataset_name(name),
        identity=parse_identity(identity),
        event_time=event_time,
        partition_by=slices,
        schema=whole,
        settle=settle,
    )


def provided(name: str, asked: Declaration) -> Dataset:
    """A dataset as a provider describes it."""
    return declaration(
        name,
        identity=[list(names) for names in asked.identity] or None,
        event_time=asked.event_time,
        partition_by=tuple(asked.partition_by),
        schema=dict(asked.schema) or None,
    )


def declare(connection: Connection, new: Dataset, *, now: datetime, only_if_absent: bool = False) -> None:
    """Record a dataset. One that exists may get columns and nothing else."""
    old = datasets.find(connection, new.name)
    if old is None:
        datasets.insert(connection, new, now=now)
    elif not only_if_absent:
        _check_same(old, new)
        datasets.evolve(connection, new.name, new.schema.columns)


def _check_same(old: Dataset, new: Dataset) -> None:
    """What is fixed for a dataset's life must be the same; columns may come."""
    fixed = ("identity", "event_time", "partition_by", "settle")
    different = [item for item in fixed if getattr(old, item) != getattr(new, item)]
    try:
        old.schema.merge(new.schema.columns)
    except SchemaConflict as error:
        different.append(error.message)
    if different:
        raise DatasetExists(
            f"Dataset {new.name!r} exists and is declared differently: {', '.join(different)}.",
            hint="Identity, event time, partitions and types are fixed for a dataset's life; use another name.",
        )
