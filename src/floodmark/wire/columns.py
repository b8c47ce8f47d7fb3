"""Rows as a stream of Arrow's: what a hub reads that says so, at a fraction of the work of lines. Pure.

The columns are the rows' own, then `_origin_seq` and `_origin_id`, the latter as 8 bytes.

Arrow trusts much of what a stream says of itself, and a stream comes from anybody. So the schema is read first, and
only the types that a forward sink sends are taken: no views, dictionaries, unions, run ends or extensions, whose values
may lie anywhere or become anything. Then the lengths that a record batch declares are compared with the bytes that are
there, and only then does Arrow read it. A buffer that is compressed in itself is refused: the limit on the body would
not see what it becomes.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.sequence import CHECKSUM_MODULUS, Tally
from floodmark.wire.bodies import Limits
from floodmark.wire.header import (
    ORIGIN_ID,
    ORIGIN_SEQ,
    ChunkHeader,
    check_count,
    check_digest,
    check_sequence,
    checked_tally,
    malformed,
)
from floodmark.wire.lines import columns_with_values

if TYPE_CHECKING:
    import pyarrow as pa

_ID_BYTES = 8
# The places of fields in Arrow's format of metadata (a FlatBuffer): of a message, and of a record batch.
_HEADER = 2
_LENGTH, _NODES, _BUFFERS, _COMPRESSION, _VARIADIC = range(5)


@dataclass(frozen=True, slots=True)
class Columns:
    """The rows of a chunk as they came, with their numbers."""

    table: pa.Table
    """The rows' own columns."""
    sequence: Sequence[int]
    tally: Tally


def encode_columns(rows: pa.Table, sequence: pa.ChunkedArray, ids: pa.ChunkedArray) -> bytes:
    """The rows, each with its number and the first 64 bits of its content id."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not len(sequence) == len(ids) == rows.num_rows:
        raise ValueError(f"{rows.num_rows} rows, {len(sequence)} numbers and {len(ids)} ids")
    prefixes = unhexlify("".join(pc.utf8_slice_codeunits(ids, 0, 2 * _ID_BYTES).to_pylist()))
    buffers: list[Any] = [None, pa.py_buffer(prefixes)]
    table = rows.select(columns_with_values(rows)).combine_chunks()
    table = table.append_column(ORIGIN_SEQ, sequence)
    table = table.append_column(
        ORIGIN_ID, pa.FixedSizeBinaryArray.from_buffers(pa.binary(_ID_BYTES), rows.num_rows, buffers)
    )
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table.combine_chunks())
    content: bytes = sink.getvalue().to_pybytes()
    return content


def decode_columns(content: bytes, header: ChunkHeader, limits: Limits | None = None) -> Columns:
    """The rows of a body, checked against its header; `MalformedChunk` where the two do not agree."""
    check_digest(content, header)
    table = _read(content, limits or Limits())
    check_count(table.num_rows, header)
    names = table.column_names
    if len(set(names)) != len(names):
        raise malformed("a column appears twice")
    own = table.select([name for name in names if name not in {ORIGIN_SEQ, ORIGIN_ID}])
    if not table.num_rows:
        return Columns(own, (), checked_tally(Tally(), header))
    sequence = _sequence(table)
    check_sequence(sequence, header)
    return Columns(own, sequence, checked_tally(Tally(table.num_rows, _checksum(table)), header))


def _read(content: bytes, limits: Limits) -> pa.Table:
    import pyarrow as pa

    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content))
        schema = _schema(messages.read_next_message(), limits)
        batches = list(messages)
        _check_lengths(batches, schema, limits)
        table = pa.Table.from_batches([pa.ipc.read_record_batch(message, schema) for message in batches], schema)
        table.validate(full=True)
    except (pa.ArrowException, OSError, ValueError, KeyError, StopIteration, struct.error):
        raise malformed("its body is not a complete Arrow stream") from None
    return table.combine_chunks()


def _schema(message: Any, limits: Limits) -> pa.Schema:
    """The names and types of the stream, if they are such as a forward sink sends."""
    import pyarrow as pa

    # Arrow itself would take any message for a schema, and read what is not there.
    if message.type != "schema":
        raise ValueError("not a schema")
    schema = pa.ipc.read_schema(message)
    limits.check_columns(len(schema))
    for field in schema:
        _check_type(field.type, limits, depth=0, column=field.name)
    return schema.remove_metadata()


def _check_type(kind: pa.DataType, limits: Limits, *, depth: int, column: str) -> None:
    """Only plain types are read. Names are read here too: Arrow takes any bytes for one."""
    import pyarrow as pa

    limits.check_nesting(depth)
    for field in _children(kind):
        _ = field.name
        _check_type(field.type, limits, depth=depth + 1, column=column)
    if not (_is_list(kind) or (pa.types.is_struct(kind) and kind.num_fields) or _value_bits(kind) is not None):
        raise malformed(f"column {column!r} has an Arrow type that is not supported")


def _children(kind: pa.DataType) -> list[pa.Field]:
    import pyarrow as pa

    if _is_list(kind):
        return [kind.value_field]
    return list(kind) if pa.types.is_struct(kind) else []


def _is_list(kind: pa.DataType) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind))


def _has_long_offsets(kind: pa.DataType) -> bool:
    import pyarrow as pa

    types = pa.types
    return bool(types.is_large_list(kind) or types.is_large_string(kind) or types.is_large_binary(kind))


def _value_bits(kind: pa.DataType) -> int | None:
    """How many bits one value of a type takes; 0 if values say their lengths; None for types that are not read."""
    import pyarrow as pa

    types = pa.types
    if types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        return 0
    plain = (
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_float32(kind)
        or types.is_float64(kind)
        or types.is_date32(kind)
        or types.is_timestamp(kind)
        or types.is_decimal128(kind)
        or kind == pa.binary(_ID_BYTES)
    )
    return kind.bit_width if plain else None


def _check_lengths(batches: Sequence[Any], schema: pa.Schema, limits: Limits) -> None:
    """What the batches say of their rows, values and bytes, before Arrow believes it."""
    rows = values = 0
    for message in batches:
        length, nodes = _batch_lengths(message, schema)
        rows += length
        values += nodes
    limits.check_rows(rows)
    limits.check_values(values)


def _batch_lengths(message: Any, schema: pa.Schema) -> tuple[int, int]:
    """The rows of a batch and the values of all its columns, if every buffer is there and as long as it must be."""
    metadata = bytes(message.metadata)
    batch = _followed(metadata, _slot(metadata, _followed(metadata, 0), _HEADER))
    if message.type != "record batch" or _slot(metadata, batch, _COMPRESSION) or _slot(metadata, batch, _VARIADIC):
        raise ValueError("not a plain record batch")
    length_at = _slot(metadata, batch, _LENGTH)
    rows: int = struct.unpack_from("<q", metadata, length_at)[0] if length_at else 0
    size = 0 if message.body is None else message.body.size
    nodes, buffers = _pairs(metadata, batch, _NODES), _pairs(metadata, batch, _BUFFERS)
    if rows < 0 or not all(start >= 0 and 0 <= length <= size - start for start, length in buffers):
        raise ValueError("a buffer is outside the body")
    # Buffers that lie on each other are each a value more for no byte more.
    if sum(length for _, length in buffers) > size:
        raise ValueError("the buffers are larger than the body")
    left_nodes, left_buffers = iter(nodes), (length for _, length in buffers)
    values = sum(_count(field.type, left_nodes, left_buffers, rows=rows) for field in schema)
    if next(left_nodes, None) is not None or next(left_buffers, None) is not None:
        raise ValueError("more columns than in the schema")
    return rows, values


def _count(kind: pa.DataType, nodes: Iterator[tuple[int, int]], buffers: Iterator[int], *, rows: int | None) -> int:
    """The values of a column and all inside of it; `ValueError` where a buffer is shorter than so many take."""
    length, nulls = next(nodes, (-1, 0))
    if not 0 <= nulls <= length or (rows is not None and length != rows):
        raise ValueError("a column with another length")
    _check_buffer(next(buffers, -1), bits=length if nulls else 0)
    width = _value_bits(kind)
    if _is_list(kind) or width == 0:
        offset_bits = 64 if _has_long_offsets(kind) else 32
        _check_buffer(next(buffers, -1), bits=(length + 1) * offset_bits if length else 0)
    if width is not None:
        _check_buffer(next(buffers, -1), bits=length * width)
    inside = None if _is_list(kind) else length
    return length + sum(_count(field.type, nodes, buffers, rows=inside) for field in _children(kind))


def _check_buffer(size: int, *, bits: int) -> None:
    if size * 8 < bits:
        raise ValueError("a buffer is too short")


def _pairs(metadata: bytes, table: int, place: int) -> list[tuple[int, int]]:
    """A list of two numbers each: the nodes of a batch, or its buffers."""
    slot = _slot(metadata, table, place)
    if not slot:
        return []
    at = _followed(metadata, slot)
    count = struct.unpack_from("<I", metadata, at)[0]
    if at + 4 + 16 * count > len(metadata):
        raise ValueError("a list longer than its message")
    return list(struct.iter_unpack("<qq", metadata[at + 4 : at + 4 + 16 * count]))


def _slot(metadata: bytes, table: int, place: int) -> int:
    """Where a field of a FlatBuffer's table stands; 0 if it is not there."""
    vtable = table - struct.unpack_from("<i", metadata, table)[0]
    size = struct.unpack_from("<H", metadata, vtable)[0]
    slot = 4 + 2 * place
    offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < size else 0
    return table + offset if offset else 0


def _followed(metadata: bytes, at: int) -> int:
    """Where an offset leads to."""
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _sequence(table: pa.Table) -> Sequence[int]:
    import pyarrow as pa

    found = table.column(ORIGIN_SEQ) if ORIGIN_SEQ in table.column_names else None
    if found is None or found.type != pa.int64() or found.null_count:
        raise malformed(f"a row has no `{ORIGIN_SEQ}` that is a number")
    numbers: list[int] = found.to_pylist()
    return numbers


def _checksum(table: pa.Table) -> int:
    import pyarrow as pa

    found = table.column(ORIGIN_ID) if ORIGIN_ID in table.column_names else None
    if found is None or found.type != pa.binary(_ID_BYTES) or found.null_count:
        raise malformed(f"a row has no `{ORIGIN_ID}` of {_ID_BYTES} bytes")
    ids = found.combine_chunks()
    prefixes = ids.buffers()[1].slice(_ID_BYTES * ids.offset, _ID_BYTES * len(ids))
    numbers: tuple[int, ...] = struct.unpack(f">{len(ids)}Q", prefixes)
    return sum(numbers) % CHECKSUM_MODULUS
