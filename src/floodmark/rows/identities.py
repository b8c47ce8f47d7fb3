"""When two rows are one: the same identity and, unless the dataset says otherwise, the same event time. Pure.

Flush, backfill and reads of pending rows look for duplicates with what is here; they differ in where the rows come
from. The *key* of a row is its first identity of which no column is null, with the event time. Where engines agree on
what equal values are, keys are compared as they are; elsewhere by hash.

The hash is the content hash of the key's columns alone, so it does not depend on the engine, on the order of columns,
or on int → long and float → double. It is also kept of purged rows, so that they cannot be loaded again.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.schema import CONTENT_ID, Schema
from floodmark.schema.types import to_arrow

if TYPE_CHECKING:
    import pyarrow as pa


FOUND_ROWS_MAX = 500_000
"""Of rows that could be duplicates, how many are compared at once."""


class Keyed(Protocol):
    """What says when rows are one: a dataset, a block to append, files to load."""

    @property
    def identity(self) -> tuple[tuple[str, ...], ...]: ...

    @property
    def key_time(self) -> str | None: ...

    @property
    def schema(self) -> Schema: ...


# ── duplicates ───────────────────────────────────────────────────────────────────────────────────────────────────────


def key_columns(keyed: Keyed) -> tuple[str, ...]:
    """The columns of the key, as far as the schema has them."""
    names = [name for identity in keyed.identity for name in identity]
    names += [keyed.key_time] if keyed.key_time else []
    return tuple(dict.fromkeys(name for name in names if name in keyed.schema))


def is_exact(keyed: Keyed) -> bool:
    """Whether keys are compared as they are: there is one identity, of columns on whose equality engines agree."""
    names = {*(name for identity in keyed.identity for name in identity), keyed.key_time} - {None}
    columns = key_columns(keyed)
    plain = all(is_plain(to_arrow(keyed.schema.column(name).type)) for name in columns)
    return len(keyed.identity) == 1 and len(columns) == len(names) and plain


def key_rows(rows: pa.Table, keyed: Keyed, *, by_content: bool = False) -> pa.Table:
    """The key's columns in the types of today; one that is newer than the rows is null. `by_content`: also the hash by
    which rows without an identity are compared.
    """
    import pyarrow as pa

    keys = keyed.schema.typed(rows, key_columns(keyed))
    return keys.append_column(CONTENT_ID, rows[CONTENT_ID].cast(pa.string())) if by_content else keys


def found_among(ours: pa.Table, theirs: Iterable[pa.Table], keyed: Keyed, *, by_content: bool = False) -> pa.Array:
    """For each of our rows, whether one of theirs has the same key. All tables are of `key_rows`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    found = pa.repeat(False, ours.num_rows)
    first = [names[0] for names in keyed.identity if names[0] in ours.column_names]
    first += [CONTENT_ID] if by_content else []
    # A row that has no value of ours in any of these columns equals none. Most have none, and this is a quick look.
    values = {name: ours[name].combine_chunks() for name in dict.fromkeys(first)}
    if not all(is_plain(column.type) for column in values.values()):
        values = {}
    # … but not where most of the work is to prepare that look.
    dear = ours.num_rows if not by_content and is_exact(keyed) else 0
    waiting: list[pa.Table] = []
    for part in theirs if by_content else near_in_time(ours, theirs, keyed.key_time):
        look = values if part.num_rows > dear else {}
        hits = [pc.is_in(part[name], value_set=column, skip_nulls=True) for name, column in look.items()]
        waiting.append(part.filter(functools.reduce(pc.or_, hits)) if hits else part)
        if sum(one.num_rows for one in waiting) > FOUND_ROWS_MAX:
            found = pc.or_(found, _found(ours, waiting, keyed, by_content=by_content))
            waiting = []
    return pc.or_(found, _found(ours, waiting, keyed, by_content=by_content))


def near_in_time(ours: pa.Table, theirs: Iterable[pa.Table], key_time: str | None) -> Iterator[pa.Table]:
    """Their rows without those whose event time is before or after all of ours, where these are most: to compare times
    takes a fraction of looking for identities.
    """
    import pyarrow.compute as pc

    if key_time is None or key_time not in ours.column_names or not ours.num_rows:
        yield from theirs
        return
    times = ours[key_time]
    span = pc.min_max(times)
    for part in theirs:
        held = part[key_time]
        inside = pc.and_(pc.greater_equal(held, span["min"]), pc.less_equal(held, span["max"]))
        inside = pc.fill_null(inside, fill_value=False)
        if times.null_count:  # two rows without an event time may be one
            inside = pc.or_(inside, pc.is_null(held))
        few = 2 * (pc.sum(inside).as_py() or 0) < part.num_rows
        yield part.filter(inside) if few else part


def repeated(rows: pa.Table, keyed: Keyed, *, by_content: bool = False) -> pa.Array:
    """For each row, whether one before it has the same key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    (keys,) = _one_value_each(keyed, rows, by_content=by_content)
    first = pc.index_in(keys, value_set=keys, skip_nulls=True)
    return pc.fill_null(pc.not_equal(first, pa.array(range(len(keys)), pa.int32())), fill_value=False)


def _found(ours: pa.Table, theirs: Sequence[pa.Table], keyed: Keyed, *, by_content: bool) -> pa.Array:
    import pyarrow as pa
    import pyarrow.compute as pc

    whole = [part for part in theirs if part.num_rows]
    if not whole or not ours.num_rows:
        return pa.repeat(False, ours.num_rows)
    others = pa.concat_tables(whole)
    if not by_content and is_exact(keyed) and (found := _found_by_identity(ours, others, keyed)) is not None:
        return found
    here, there = _one_value_each(keyed, ours, others, by_content=by_content)
    return pc.is_in(here, value_set=there, skip_nulls=True)


def _found_by_identity(ours: pa.Table, theirs: pa.Table, keyed: Keyed) -> pa.Array | None:
    """By one look for each identity: less than half the work. None where that is not the whole answer."""
    import pyarrow.compute as pc

    (names,) = keyed.identity
    if len(names) > 1 or keyed.key_time in {None, names[0]}:
        return None
    at = pc.index_in(ours[names[0]].combine_chunks(), value_set=theirs[names[0]].combine_chunks(), skip_nulls=True)
    time, other = ours[keyed.key_time].combine_chunks(), theirs[keyed.key_time].combine_chunks().take(at)
    neither = pc.and_(pc.is_valid(at), pc.and_(pc.is_null(time), pc.is_null(other)))
    same = pc.or_(pc.fill_null(pc.equal(time, other), fill_value=False), neither)
    if pc.any(pc.and_(pc.is_valid(at), pc.invert(same))).as_py():
        return None  # one identity has several event times, and the first that is found is not the one
    return same


def _one_value_each(keyed: Keyed, *tables: pa.Table, by_content: bool) -> list[pa.Array]:
    """For each row one value, equal where the keys are; null where a row has no key."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if by_content or not is_exact(keyed):
        hashes = (identity_hashes(rows, keyed.identity, keyed.key_time, by_content=by_content) for rows in tables)
        return [pa.array(one, pa.string()) for one in hashes]
    (identity,) = keyed.identity
    columns = key_columns(keyed)
    if len(columns) == 1:
        return [rows[columns[0]].combine_chunks() for rows in tables]
    whole = pa.concat_tables(tables)
    number: Any = None
    for name in columns:
        # A value's place among the different ones. Two rows without an event time are equal, without an identity not.
        encoding = "mask" if name in identity else "encode"
        encoded = whole[name].combine_chunks().dictionary_encode(null_encoding=encoding)
        places = encoded.indices.cast(pa.int64())
        if number is None:
            number = places
        else:
            pair = pc.add(pc.multiply(number, len(encoded.dictionary)), places)
            number = pair.dictionary_encode().indices.cast(pa.int64())  # small again: so the next product fits, too
    result, start = [], 0
    for rows in tables:
        result.append(number.slice(start, rows.num_rows))
        start += rows.num_rows
    return result


# ── identities ───────────────────────────────────────────────────────────────────────────────────────────────────────


def are_distinct(table: pa.Table, identity: Sequence[Sequence[str]]) -> bool:
    """Whether no two rows have one identity. Cheap, and never wrongly true: with fallbacks it is not even tried."""
    import pyarrow.compute as pc

    if len(identity) != 1 or not all(name in table.column_names for name in identity[0]):
        return False
    if not all(is_plain(table.schema.field(name).type) for name in identity[0]):
        return False  # engines disagree on what equal fractions are
    if len(identity[0]) == 1:
        column = table[identity[0][0]]
        return bool(pc.count_distinct(column, mode="only_valid").as_py() == len(column) - column.null_count)
    keys = table.select(list(identity[0])).drop_null()
    return bool(keys.group_by(list(identity[0])).aggregate([]).num_rows == keys.num_rows)


def rows_without_identity(arrays: Mapping[str, Any], identity: Sequence[Sequence[str]], rows: int) -> list[int]:
    """The places of the rows of which no identity is complete."""
    import pyarrow.compute as pc

    missing = None
    for names in identity:
        if not all(name in arrays for name in names):
            continue
        columns = [arrays[name] for name in names]
        if not any(column.null_count for column in columns):
            return []
        incomplete = functools.reduce(pc.or_, map(pc.is_null, columns))
        missing = incomplete if missing is None else pc.and_(missing, incomplete)
    if missing is None:
        return list(range(rows))
    return [int(place) for place in pc.indices_nonzero(missing).to_pylist()]


def is_plain(kind: pa.DataType) -> bool:
    """Whether every engine agrees if two values are equal."""
    from pyarrow import types

    return any(
        test(kind)
        for test in (
            types.is_string,
            types.is_integer,
            types.is_binary,
            types.is_boolean,
            types.is_date,
            types.is_timestamp,
        )
    )


def identity_hashes(
    table: pa.Table, identity: Sequence[Sequence[str]], event_time: str | None, *, by_content: bool = False
) -> list[str | None]:
    """Of each row: the first identity whose columns are all there, with the event time; None where none is.

    `by_content`: the row's content hash, if it is in the table, where none is.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    from floodmark.rows.content import content_ids

    found = pa.nulls(table.num_rows, pa.string())
    for names in identity:
        if not all(name in table.column_names for name in names):
            continue
        columns = dict.fromkeys([*names, *([event_time] if event_time in table.column_names else [])])
        hashes, _ = content_ids(table.select([name for name in columns if name is not None]))
        whole = pa.array([True] * table.num_rows, pa.bool_())
        for name in names:
            whole = pc.and_(whole, pc.is_valid(table[name].combine_chunks()))
        found = pc.coalesce(found, pc.if_else(whole, hashes, None))
    if by_content and CONTENT_ID in table.column_names:
        found = pc.coalesce(found, table[CONTENT_ID].combine_chunks())
    return list(found.to_pylist())
