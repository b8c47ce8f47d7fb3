"""The content hash of a row, and the counts and checksums made of it. Pure.

A row's `_ingest_id` is the 128-bit BLAKE2b hash, in hex, of this text of its bytes:

    for each column that is not null and not Floodmark's own, in order of the name's UTF-8 bytes:
        length of the name (4 bytes), name, family (1 byte), value

| family | types                  | value                                                               |
|--------|------------------------|---------------------------------------------------------------------|
| `t`    | boolean                | 1 byte, 0 or 1                                                      |
| `i`    | int, long              | 8 bytes, two's complement                                           |
| `f`    | float, double          | 8 bytes, IEEE 754 double; every NaN is the same one                  |
| `d`    | decimal                | length (4 bytes), shortest decimal text                             |
| `s`    | string, json           | length (4 bytes), UTF-8                                             |
| `b`    | binary                 | length (4 bytes), the bytes                                         |
| `D`    | date                   | 8 bytes, days since 1970                                            |
| `T`    | timestamp              | 8 bytes, microseconds since 1970, UTC                               |
| `n`    | list, struct           | length (4 bytes), JSON: keys sorted, nulls of structs left out, each |
|        |                        | simple value a text of its family and itself                        |

All numbers are little-endian. Every part says its own length, so different rows are different bytes; the
order of columns, nullable columns that came later, and int → long and float → double change nothing. The
hash names a row for good: a change here makes every stored checksum wrong, and the golden tests fail.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Iterator, Sequence
from decimal import Context
from hashlib import blake2b
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.compute as pc

from floodmark.commit.protocol import PartitionRows
from floodmark.errors import SchemaConflict
from floodmark.schema.names import is_system_column
from floodmark.schema.partitions import WHOLE, partition_key
from floodmark.sequence import CHECKSUM_MODULUS, Tally

_DIGEST_BYTES = 16
SLICE_ROWS = 8192
SLICE_BYTES = 1 << 28  # joined bytes must stay below Arrow's 2 GiB for one array
_BINARY = pa.binary()
THREADS_ROWS_MIN = 100_000
"""From so many rows on it is worth waking Arrow's threads to count them."""
_EXACT = Context(prec=76)
_NAN = float("nan")


def content_ids(table: pa.Table) -> tuple[pa.Array, list[int]]:
    """Each row's `_ingest_id`, and its first 64 bits as a number, of which checksums are made."""
    digests = b"".join(
        blake2b(row, digest_size=_DIGEST_BYTES).digest()
        for part in _slices(table, SLICE_ROWS)
        for row in row_bytes(part)
    )
    prefixes = list(struct.unpack(f">{len(digests) // 8}Q", digests)[::2])
    texts = pa.py_buffer(digests.hex().encode())
    fixed = pa.Array.from_buffers(pa.binary(2 * _DIGEST_BYTES), table.num_rows, [None, texts])
    return fixed.cast(_BINARY).cast(pa.string()), prefixes


def _slices(table: pa.Table, rows_max: int) -> Iterator[pa.Table]:
    for start in range(0, table.num_rows, rows_max):
        part = table.slice(start, rows_max)
        if part.num_rows > 1 and part.nbytes > SLICE_BYTES:
            yield from _slices(part, (part.num_rows + 1) // 2)
        else:
            yield part


def row_bytes(table: pa.Table) -> list[bytes]:
    names = sorted((name for name in table.column_names if not is_system_column(name)), key=str.encode)
    pieces: list[Any] = []
    for name in names:
        array = table.column(name).combine_chunks()
        if array.null_count == len(array):
            continue
        family, parts = _encoded(name, array)
        raw = name.encode()
        tag = pa.scalar(struct.pack("<I", len(raw)) + raw + family, _BINARY)
        if array.null_count:
            # The tag of a null goes with it: null and absent are one.
            pieces.append(pc.binary_join_element_wise(tag, *parts, b"", null_handling="emit_null"))
        else:
            pieces.extend((tag, *parts))
    if not pieces:
        return [b""] * table.num_rows
    joined = pc.binary_join_element_wise(*pieces, b"", null_handling="replace", null_replacement=b"")
    return list(joined.to_pylist())


def _encoded(name: str, array: Any) -> tuple[bytes, list[Any]]:
    """The family of a column, and its values as arrays of bytes whose concatenation is the value."""
    family = _family(name, array.type)
    match family:
        case b"t" | b"i" | b"f" | b"D" | b"T":
            bits = _bits(family, array)
            if family == b"t":
                return family, [bits.cast(pa.uint8()).view(pa.binary(1)).cast(_BINARY)]
            return family, [bits.view(pa.binary(8)).cast(_BINARY)]
        case b"d":
            value = pa.array([_decimal_text(item) for item in array.to_pylist()], _BINARY)
        case b"n":
            readable = _nested_text(name, array)
            value = pa.array([_nested_json(item) for item in readable.to_pylist()], _BINARY)
        case _:
            value = array.cast(_BINARY)
    lengths = pc.binary_length(value).cast(pa.uint32()).view(pa.binary(4)).cast(_BINARY)
    return family, [lengths, value]


def _family(name: str, kind: pa.DataType) -> bytes:
    types = pa.types
    tests: tuple[tuple[Any, bytes], ...] = (
        (types.is_boolean, b"t"),
        (types.is_signed_integer, b"i"),
        (types.is_floating, b"f"),
        (types.is_decimal, b"d"),
        (lambda t: types.is_string(t) or types.is_large_string(t), b"s"),
        (lambda t: types.is_binary(t) or types.is_large_binary(t), b"b"),
        (types.is_date32, b"D"),
        (lambda t: types.is_timestamp(t) and t.unit == "us", b"T"),
        (lambda t: types.is_list(t) or types.is_large_list(t) or types.is_struct(t), b"n"),
    )
    for test, family in tests:
        if test(kind):
            return family
    raise SchemaConflict(
        f"Column {name!r} is of Arrow type {kind}, which has no content hash.",
        hint="Fit the table to the dataset's schema first.",
    )


def _bits(family: bytes, array: Any) -> Any:
    """A fixed-size value as the integer that stands for it."""
    if family == b"f":
        doubles = array.cast(pa.float64())
        nan = pc.is_nan(doubles)
        if pc.any(nan).as_py():
            doubles = pc.if_else(nan, _NAN, doubles)
        return doubles.view(pa.int64())
    if family == b"T":
        return array.view(pa.int64())
    if family == b"D":
        return array.view(pa.int32()).cast(pa.int64())
    return array if family == b"t" else array.cast(pa.int64())


def _decimal_text(value: Any) -> bytes | None:
    return None if value is None else str(_EXACT.normalize(value)).encode()


# ---- lists and structs ----


def _nested_text(name: str, array: Any) -> Any:
    """The array with every simple value made a text: its family, then itself."""
    kind = array.type
    if pa.types.is_struct(kind):
        children = [_nested_text(name, child) for child in array.flatten()]
        names = [field.name for field in kind]
        return pa.StructArray.from_arrays(children, names=names, mask=pc.is_null(array))
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths).cast(pa.int32())
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        child = _nested_text(name, array.flatten())
        return pa.ListArray.from_arrays(offsets, child, mask=pc.is_null(array))
    return _leaf_text(_family(name, kind), array)


def _leaf_text(family: bytes, array: Any) -> Any:
    if family == b"d":
        texts = pa.array([_decimal_text(item) for item in array.to_pylist()], _BINARY).cast(pa.string())
    elif family == b"b":
        texts = pa.array([None if item is None else item.hex() for item in array.to_pylist()], pa.string())
    elif family == b"s":
        texts = array.cast(pa.string())
    else:
        texts = _bits(family, array).cast(pa.string())
    return pc.binary_join_element_wise(family.decode(), texts, "", null_handling="emit_null")


def _nested_json(value: Any) -> bytes | None:
    return None if value is None else orjson.dumps(_without_nulls(value), option=orjson.OPT_SORT_KEYS)


def _without_nulls(value: Any) -> Any:
    if type(value) is dict:
        return {name: _without_nulls(item) for name, item in value.items() if item is not None}
    if type(value) is list:
        return [_without_nulls(item) for item in value]
    return value


# ---- counts and checksums ----


def tally(prefixes: Sequence[int]) -> Tally:
    """How many rows, and the order-free checksum over them."""
    return Tally(len(prefixes), sum(prefixes) % CHECKSUM_MODULUS)


def tally_of_ids(identifiers: pa.ChunkedArray | pa.Array) -> Tally:
    """The tally of rows whose content hashes are known."""
    chunks = identifiers.chunks if isinstance(identifiers, pa.ChunkedArray) else [identifiers]
    return sum((tally(prefixes_of(chunk)) for chunk in chunks), Tally())


def prefixes_of(identifiers: pa.Array) -> Sequence[int]:
    """The first 64 bits of content hashes. Without a Python text for each row: delivery does this for all it ships."""
    count = len(identifiers)
    prefixes = pc.utf8_slice_codeunits(identifiers, 0, 16)
    if count == 0 or pc.sum(pc.binary_length(prefixes)).as_py() != 16 * count:
        return [int(identifier[:16], 16) for identifier in identifiers.to_pylist()]
    digits = prefixes.buffers()[2].slice(16 * prefixes.offset, 16 * count)
    return struct.unpack(f">{count}Q", unhexlify(digits))


def partition_stats(table: pa.Table, prefixes: Sequence[int], partition_by: Sequence[str]) -> list[PartitionRows]:
    """The figures of each partition in the table, in order of first appearance; none for a table of no rows."""
    if len(prefixes) != table.num_rows:
        raise ValueError(f"{table.num_rows} rows, but {len(prefixes)} prefixes")
    if not prefixes:
        return []
    if not partition_by:
        return [PartitionRows(WHOLE, tally(prefixes), 0, len(prefixes) - 1)]
    # Keys go by position and not by name: a user's column may be called anything.
    keys = [f"k{index}" for index in range(len(partition_by))]
    absent = pa.nulls(table.num_rows, pa.string())
    columns = [table.column(name) if name in table.column_names else absent for name in partition_by]
    stats = pa.table(
        [*columns, pa.array(prefixes, pa.uint64()), pa.array(range(len(prefixes)), pa.int64())],
        names=[*keys, "prefix", "row"],
    )
    # Arrow's sum over uint64 wraps around at 2^64, which is the checksum's modulus.
    grouped = stats.group_by(keys, use_threads=table.num_rows >= THREADS_ROWS_MIN)
    groups = grouped.aggregate([("prefix", "sum"), ("row", "count"), ("row", "min"), ("row", "max")])
    result = [
        PartitionRows(
            partition_key(partition_by, [group[key] for key in keys]),
            Tally(group["row_count"], group["prefix_sum"]),
            group["row_min"],
            group["row_max"],
        )
        for group in groups.to_pylist()
    ]
    return sorted(result, key=lambda item: item.first_row)
