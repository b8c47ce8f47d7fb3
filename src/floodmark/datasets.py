"""Declaring datasets: what is fixed for a dataset's life, and what may still come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection

from floodmark.control import datasets
from floodmark.control.datasets import ALL, CONTENT, EVENT_TIME, KEEP, QUARANTINE, Dataset
from floodmark.control.topology import check_unmoved
from floodmark.engine import Engine
from floodmark.errors import DatasetExists, InvalidSetting, SchemaConflict
from floodmark.providers import Declaration
from floodmark.schema import (
    Column,
    Schema,
    check_column_name,
    check_dataset_name,
    check_partition_columns,
    parse_identity,
)
from floodmark.schema.types import DATE, STRING, TIMESTAMP


def declaration(
    name: str,
    *,
    identity: Any = None,
    event_time: str | None = None,
    partition_by: Sequence[str] = (),
    schema: Any = None,
    settle: str | None = None,
    identity_null: str | None = None,
    identity_scope: str | None = None,
) -> Dataset:
    """A dataset as its maker describes it, checked; columns that the description implies are added."""
    _check_one_of("identity_null", identity_null, (CONTENT, KEEP, QUARANTINE))
    _check_one_of("identity_scope", identity_scope, (EVENT_TIME, ALL))
    declared = Schema.declare(schema)
    slices = _column_names(partition_by)
    for item in (*slices, *(() if event_time is None else (event_time,))):
        check_column_name(item)
    if settle is not None and not isinstance(settle, str):
        raise InvalidSetting(f"settle is of type {type(settle).__name__}.", hint="It must be a text, module:function.")
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
        identity_null=identity_null or CONTENT,
        identity_scope=identity_scope or EVENT_TIME,
    )


def _check_one_of(name: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise InvalidSetting(f"{name} is {value!r}.", hint=f"It must be one of {', '.join(allowed)}.")


def _column_names(given: Any) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if not isinstance(given, list | tuple):
        raise InvalidSetting(
            f"partition_by is of type {type(given).__name__}.", hint="It must be a list of column names."
        )
    return tuple(given)


def provided(name: str, asked: Declaration) -> Dataset:
    """A dataset as a provider describes it."""
    return declaration(
        name,
        identity=[list(names) for names in asked.identity] or None,
        event_time=asked.event_time,
        partition_by=tuple(asked.partition_by),
        schema=dict(asked.schema) or None,
    )


def declare(engine: Engine, new: Dataset, *, only_if_absent: bool = False, asked: Sequence[str] = ()) -> None:
    """Record a dataset. One that exists may get columns and nothing else.

    `asked`: what was asked for of those properties that have a default. A dataset of before may have another one.
    """

    def work(connection: Connection) -> None:
        old = datasets.find(connection, new.name)
        if old is None:
            check_unmoved(connection, engine.settings)  # U43: its table would be made where nobody looks
            datasets.insert(connection, new, now=engine.clock.now())
        elif not only_if_absent:
            _check_same(old, new, asked)
            datasets.evolve(connection, new.name, new.schema.columns)

    engine.database.transact(work)


def change_settle(engine: Engine, name: str, settle: str | None) -> None:
    """Another settle function, or none. One that cannot be called is refused now, not at the next flush."""
    from floodmark.lake.settling import settle_function

    engine.settings.functions.check(settle)
    if settle is not None:
        settle_function(settle)
    engine.database.transact(lambda c: datasets.set_settle(c, name, settle))


def _check_same(old: Dataset, new: Dataset, asked: Sequence[str]) -> None:
    """What is fixed for a dataset's life must be the same; columns may come."""
    fixed = ("identity", "event_time", "partition_by", "settle", *asked)
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
