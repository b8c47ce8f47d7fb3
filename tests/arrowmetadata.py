"""Where the numbers of a record batch stand in an Arrow stream, found by Arrow's published format alone.

Metadata are a FlatBuffer: a table begins with the distance back to its list of fields, and a field that is not written
in place is a distance forward. https://arrow.apache.org/docs/format/Columnar.html
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import pyarrow as pa

_HEADER_OF_MESSAGE = 2
_LENGTH, _NODES, _BUFFERS = range(3)


@dataclass(frozen=True, slots=True)
class Batch:
    """Offsets in the stream of its first record batch."""

    length: int
    nodes: tuple[int, ...]
    """Of each column's (length, null count), two numbers of 64 bits."""
    buffers: tuple[int, ...]
    """Of each buffer's (offset, length), two numbers of 64 bits."""
    body: int
    body_bytes: int


def first_batch(stream: bytes) -> Batch:
    messages = pa.ipc.MessageReader.open_stream(stream)
    messages.read_next_message()  # the schema
    message = messages.read_next_message()
    metadata, body = bytes(message.metadata), bytes(message.body)
    start = stream.index(metadata)
    batch = _followed(metadata, _field(metadata, _followed(metadata, 0), _HEADER_OF_MESSAGE))
    return Batch(
        length=start + _field(metadata, batch, _LENGTH),
        nodes=_pairs(metadata, batch, _NODES, start),
        buffers=_pairs(metadata, batch, _BUFFERS, start),
        body=stream.index(body, start + len(metadata)),
        body_bytes=len(body),
    )


def _followed(metadata: bytes, at: int) -> int:
    return at + int(struct.unpack_from("<I", metadata, at)[0])


def _field(metadata: bytes, table: int, number: int) -> int:
    fields = table - int(struct.unpack_from("<i", metadata, table)[0])
    return table + int(struct.unpack_from("<H", metadata, fields + 4 + 2 * number)[0])


def _pairs(metadata: bytes, table: int, number: int, start: int) -> tuple[int, ...]:
    vector = _followed(metadata, _field(metadata, table, number))
    count = int(struct.unpack_from("<I", metadata, vector)[0])
    return tuple(start + vector + 4 + 16 * index for index in range(count))
