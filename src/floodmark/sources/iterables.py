"""Rows that are handed over in Python as a source: lists, Arrow tables, whatever can be iterated; and providers."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from floodmark.errors import InvalidSetting, UnserialisableValue
from floodmark.sources.units import Batch, Problem, Source, Unit

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.providers import Item, Provider
    from floodmark.providers import Unit as ProviderUnit

BATCH_ROWS = 20_000
TABLE_ROWS = 1 << 16


def rows_source(rows: Any, *, name: str | None) -> Source:
    """Rows in memory, or from an iterator. Without a name they cannot be recognised."""
    if isinstance(rows, str | bytes | Mapping) or not (isinstance(rows, Iterable) or hasattr(rows, "num_rows")):
        raise UnserialisableValue(
            f"A {type(rows).__name__} cannot be loaded.",
            hint="Give a path, an Arrow table, a Spark DataFrame, or an iterable of dicts or Arrow tables.",
        )
    steady = isinstance(rows, list | tuple) or hasattr(rows, "num_rows")
    unit = Unit("rows", lambda mark: _rows_from(rows, mark or 0, name), steady=steady)
    return Source(name or f"rows-{uuid.uuid4().hex}", (unit,), anonymous=name is None)


def _rows_from(rows: Any, mark: int, name: str | None) -> Iterator[Batch]:
    """The mark is a number of rows."""
    done = 0
    for part in _parts(rows):
        size = len(part) if isinstance(part, list) else part.num_rows
        start, done = done, done + size
        if done <= mark:
            continue
        skipped = max(mark - start, 0)
        rest = part[skipped:] if isinstance(part, list) else part.slice(skipped)
        yield Batch(
            rest,
            done,
            partial(_place, name or "", start + skipped),
            lasting=name is not None,
        )


def _place(name: str, first: int, row: int) -> str:
    return f"{name} row {first + row}".lstrip()


def _parts(rows: Any) -> Iterator[list[dict[str, Any]] | pa.Table]:
    import pyarrow as pa

    if isinstance(rows, pa.Table | pa.RecordBatch):
        for start in range(0, rows.num_rows, TABLE_ROWS):
            part = rows.slice(start, TABLE_ROWS)
            yield pa.Table.from_batches([part]) if isinstance(part, pa.RecordBatch) else part
        return
    dicts: list[dict[str, Any]] = []
    for item in rows:
        if isinstance(item, pa.Table | pa.RecordBatch):
            if dicts:
                yield dicts
                dicts = []
            yield from _parts(item)
            continue
        dicts.append(item)
        if len(dicts) >= BATCH_ROWS:
            yield dicts
            dicts = []
    if dicts:
        yield dicts


# ── providers ────────────────────────────────────────────────────────────────────────────────────────────────────────


def provider_source(provider: Provider, location: str | None, *, has_identity: bool, name: str | None) -> Source:
    """The rows of a provider. One without a plan may return other rows at each call."""
    if provider.overlapping and not has_identity:
        raise InvalidSetting(
            f"Provider {provider.name!r} may return the same rows again, and the dataset has no identity.",
            hint="Load it into a dataset that declares one: without it, repeated rows are not recognised.",
        )
    planned = provider.planning is not None
    units = tuple(_provider_unit(provider, unit, steady=planned) for unit in provider.plan(location))
    if not planned and name is None:
        return Source(f"provider {provider.name} {uuid.uuid4().hex}", units, anonymous=True)
    return Source(name or f"provider {provider.name}", units)


def _provider_unit(provider: Provider, unit: ProviderUnit, *, steady: bool) -> Unit:
    return Unit(unit.id, lambda mark: _items(provider, unit, mark or 0), bytes=unit.bytes, steady=steady)


def _items(provider: Provider, unit: ProviderUnit, mark: int) -> Iterator[Batch]:
    """The mark is a number of items."""
    items = itertools.islice(provider.read(unit), mark, None)
    done = mark
    while some := list(itertools.islice(items, BATCH_ROWS)):
        done += len(some)
        rows = [item for item in some if item.row is not None]
        problems = tuple(_problem(item) for item in some if item.row is None)
        places = [item.provenance for item in rows]
        yield Batch([dict(item.row or {}) for item in rows], done, places.__getitem__, problems)
    yield Batch([], done, lambda _: unit.id, bytes=unit.bytes or 0)  # how much a unit was is known at its end only


def _problem(item: Item) -> Problem:
    return Problem(item.provenance, item.problem or "no row", (item.content or "").encode(errors="surrogateescape"))
