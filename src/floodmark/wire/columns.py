"""Rows as a stream of Arrow's: what a hub reads that says so, at a fraction of the work of lines. Pure.

The columns are the rows' own, then `_origin_seq` and `_origin_id`, the latter as 8 bytes. Only plain record batches are
read: a buffer that is compressed in itself could become anything, and the body's limit would not see it.
"""

from __future__ import annotations

import struct
from binascii import unhexlify
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from floodmark.sequence import CHECKSUM_MODULUS, Tally
from floodmark.wire.agreement import (
    ORIGIN_ID,
    ORIGIN_SEQ,
    check_count,
    check_digest,
    check_sequence,
    checked_tally,
)
from floodmark.wire.header import ChunkHeader, malformed
from floodmark.wire.lines import columns_with_values

if TYPE_CHECKING:
    import pyarrow as pa

_ID_BYTES = 8
_COMPRESSION = 3
"""The place of `compression` among the fields of a record batch, and of `header` among those of a message, in Arrow's
format of metadata (a FlatBuffer)."""
_HEADER = 2


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


def decode_columns(content: bytes, header: ChunkHeader) -> Columns:
    """The rows of a body, checked against its header; `MalformedChunk` where the two do not agree."""
    check_digest(content, header)
    table = _read(content)
    check_count(table.num_rows, header)
    names = table.column_names
    if len(set(names)) != len(names):
        raise malformed("a column stands in it twice")
    own = table.select([name for name in names if name not in {ORIGIN_SEQ, ORIGIN_ID}])
    if not table.num_rows:
        return Columns(own, (), checked_tally(Tally(), header))
    sequence = _sequence(table)
    check_sequence(sequence, header)
    return Columns(own, sequence, checked_tally(Tally(table.num_rows, _checksum(table)), header))


def _read(content: bytes) -> pa.Table:
    import pyarrow as pa

    try:
        messages = pa.ipc.MessageReader.open_stream(pa.py_buffer(content))
        schema = _schema(messages.read_next_message())
        table = pa.Table.from_batches([_batch(message, schema) for message in messages], schema)
        table.validate(full=True)
        _ = table.column_names  # Arrow takes any bytes for a name, and tells here that they are no text
    except (pa.ArrowException, OSError, ValueError, KeyError, StopIteration, struct.error):
        raise malformed("its body is not a whole stream of Arrow's") from None
    return table.combine_chunks()


def _schema(message: Any) -> pa.Schema:
    """Arrow itself would take any message for a schema, and read what is not there."""
    import pyarrow as pa

    if message.type != "schema":
        raise ValueError("not a schema")
    return pa.ipc.read_schema(message)


def _batch(message: Any, schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    if message.type != "record batch" or _field(bytes(message.metadata), _HEADER, _COMPRESSION):
        raise ValueError("not a plain record batch")
    return pa.ipc.read_record_batch(message, schema)


def _field(metadata: bytes, *places: int) -> int:
    """Where a field of a FlatBuffer's root stands, or a field of that, and so on; 0 if it is not there."""
    at = 0
    for place in (None, *places):
        if place is not None:
            vtable = at - struct.unpack_from("<i", metadata, at)[0]
            size = struct.unpack_from("<H", metadata, vtable)[0]
            slot = 4 + 2 * place
            offset = struct.unpack_from("<H", metadata, vtable + slot)[0] if slot < size else 0
            if not offset:
                return 0
            at += offset
        at += struct.unpack_from("<I", metadata, at)[0]
    return at


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
