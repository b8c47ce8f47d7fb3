"""Correcting a column's type, which the first value of the column fixed.

    seal ─▶ no value committed, none waiting ─▶ change the records (one transaction) ─▶ drop the table's column

Committed values are never converted: readers and sinks have them as they are. The rows that have them are purged
first, or the values go to another column.

- U42 The records change only if the table has no value of the column at the horizon that they have, no block is
  undecided and no waiting segment has the column. A segment that was fitted to the old type is not registered any more.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

from sqlalchemy import Connection

from floodmark import faults
from floodmark.commit.flush import drop_corrected_columns, values_in
from floodmark.commit.recovery import decide
from floodmark.control import blocks, datasets, generations, removals
from floodmark.control import segments as segment_records
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.errors import Permanent, Retryable, SchemaConflict
from floodmark.lake.generations import find_table
from floodmark.schema import Column, Schema
from floodmark.schema.types import WIDER
from floodmark.spool.sealing import seal
from floodmark.spool.segments import stored_columns

TRIES_MAX = 20
"""How often the correction is tried beside flushes that have just begun."""


@dataclass(frozen=True, slots=True)
class _Seen:
    """What the decision rests on."""

    horizon: int
    generation: int
    moment: int
    segments: frozenset[int]


def change_types(engine: Engine, dataset: str, types: Mapping[str, str]) -> Dataset:
    """Give columns other types; `SchemaConflict` says why one cannot have it, and nothing is changed."""
    for _ in range(TRIES_MAX):
        declared = engine.database.read(lambda c: datasets.get(c, dataset))
        new = _changed(declared, types)
        if new.schema == declared.schema:
            _complete(engine, declared)
            return declared
        seal(engine, dataset)
        decide(engine, dataset)
        seen = _look(engine, declared, new)
        if engine.database.transact(partial(_record, schema=new.schema, dataset=dataset, seen=seen)):
            faults.reach("column.changed")
            _complete(engine, new)
            return new
    raise Retryable(f"Dataset {dataset!r} is flushed too often to correct a type.", hint="Run it again.")


def _changed(declared: Dataset, types: Mapping[str, str]) -> Dataset:
    columns = {column.name: column for column in declared.schema}
    fixed = {name: "the identity" for names in declared.identity for name in names}
    fixed |= dict.fromkeys(declared.partition_by, "the partition columns")
    fixed |= dict.fromkeys(declared.layout.sort, "the sort order of the table")
    fixed |= {} if declared.event_time is None else {declared.event_time: "the event time"}
    for name, text in types.items():
        have = declared.schema.column(name)
        wanted = Column.parse(name, text)
        if wanted.required and not have.required:
            raise SchemaConflict(
                f"Column {name!r} cannot become not null: stored rows may have no value for it.",
                hint=f'Declare it "{wanted.type}".',
            )
        if wanted.type != have.type and name in fixed:
            raise SchemaConflict(
                f"The type of column {name!r} of {declared.name!r} cannot be changed: it is part of {fixed[name]}.",
                hint="Declare a new dataset.",
            )
        columns[name] = replace(have, type=wanted.type)
    return replace(declared, schema=Schema(tuple(columns.values())))


def _look(engine: Engine, declared: Dataset, new: Dataset) -> _Seen:
    """`SchemaConflict` if a value of the columns is committed or waits."""
    seen, waiting = engine.database.read(lambda c: _seen(c, declared.name))
    _, state = find_table(engine.database, engine.lake, declared)
    for was, now in zip(declared.schema, new.schema, strict=True):
        if was == now or WIDER.get(was.type) == now.type:  # what `ensure` widens keeps its values
            continue
        rows = 0 if state is None else values_in(engine, declared, state, was.name)
        if rows:
            raise SchemaConflict(
                f"{rows:,} committed rows of {declared.name!r} have a value in column {was.name!r}, as {was.type}. "
                f"They are not converted to {now.type}.",
                hint=f"Use another column name for {now.type} values. Or remove these rows with `floodmark purge "
                f"{declared.name} --where '{was.name} IS NOT NULL'`, and change the type then.",
            )
        if any(was.name in stored_columns(engine, path) for path in waiting):
            raise SchemaConflict(
                f"Rows of {declared.name!r} with column {was.name!r} wait for their commit, as {was.type}.",
                hint=f"Run `floodmark flush {declared.name}`, and change the type then.",
            )
    return seen


def _seen(connection: Connection, dataset: str) -> tuple[_Seen, list[str]]:
    if generations.unfinished(connection, dataset) is not None or removals.unfinished(connection, dataset) is not None:
        raise Permanent(
            f"Dataset {dataset!r} is being rebuilt, or rows of it are being removed.",
            hint="Complete that first: `floodmark status` shows it.",
        )
    declared = datasets.get(connection, dataset)
    waiting = segment_records.sealed_paths(connection, dataset)
    moment = removals.moment(connection, dataset)
    return _Seen(declared.horizon, declared.generation, moment, frozenset(waiting)), list(waiting.values())


def _record(connection: Connection, schema: Schema, dataset: str, seen: _Seen) -> bool:
    return nothing_since(connection, dataset, seen) and datasets.replace_types(connection, dataset, schema)


def nothing_since(connection: Connection, dataset: str, seen: _Seen) -> bool:
    """U42: whether no row came or went since the look, and none is about to."""
    return blocks.undecided(connection, dataset) is None and _seen(connection, dataset)[0] == seen


def _complete(engine: Engine, declared: Dataset) -> None:
    """Drop what the table has of the old types. A crash before this leaves it to the next flush."""
    declared, state = find_table(engine.database, engine.lake, declared)
    if state is not None and drop_corrected_columns(engine, declared, state):
        engine.lake.ensure(state.name, declared.schema, create=False, declaration=declared.declaration)
