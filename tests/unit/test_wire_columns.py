"""Rows as Arrow's columns on the wire: what is read is what was written, and anything else is refused."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark import wire
from floodmark.errors import MalformedChunk
from floodmark.rows.content import content_ids
from floodmark.rows.fit import fit, rows_to_columns
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally
from floodmark.wire import ChunkHeader, GivenUpRange

SCHEMA = Schema.declare(
    {
        "id": "long not null",
        "ratio": "double",
        "name": "string",
        "raw": "binary",
        "at": "timestamp",
        "price": "decimal(9,2)",
        "doc": "json",
        "tags": "list<string>",
        "shape": "struct<a:long,b:list<json>>",
    }
)
ROWS = [
    {"id": 1, "ratio": float("nan"), "name": "é", "raw": b"\0", "at": "2026-01-31T12:00:00Z", "price": "1.50"},
    {"id": 2, "doc": {"a": [1, None]}, "tags": ["x", None], "shape": {"a": 1, "b": [1, "x"]}},
]


def table_of(rows: list[dict]) -> pa.Table:
    columns, values = rows_to_columns(rows)
    return fit(SCHEMA, columns, values, rows=len(rows)).table


def header_of(content: bytes, rows: int, checksum: int, **changes) -> ChunkHeader:
    values = {
        "origin": "store-a",
        "partition": "-",
        "range": SequenceRange(0, 10),
        "tally": Tally(rows, checksum % 2**64),
        "before": Tally(),
        "digest": wire.digest_of(content),
    }
    return ChunkHeader(**{**values, **changes})


def chunk(table: pa.Table) -> tuple[bytes, ChunkHeader]:
    ids, prefixes = content_ids(table)
    sequence = pa.chunked_array([list(range(1, table.num_rows + 1))], pa.int64())
    content = wire.encode_columns(table, sequence, pa.chunked_array([ids]))
    return content, header_of(content, table.num_rows, sum(prefixes))


def stream(table: pa.Table, **options) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema, options=pa.ipc.IpcWriteOptions(**options)) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def numbered(sequence: list, ids: list | None = None, **more) -> pa.Table:
    found = [bytes(8)] * len(sequence) if ids is None else ids
    return pa.table(
        {"_origin_seq": pa.array(sequence, more.pop("kind", pa.int64())), "_origin_id": pa.array(found, pa.binary(8))}
        | more
    )


def test_every_row_is_read_back_as_the_same_row():
    table = table_of(ROWS)
    content, header = chunk(table)
    came = wire.decode_columns(content, header)
    assert content_ids(came.table)[0].equals(content_ids(table)[0])
    assert list(came.sequence) == [1, 2]


def test_columns_without_a_value_do_not_travel():
    content, header = chunk(table_of([{"id": 1, "name": "x"}]))
    assert wire.decode_columns(content, header).table.column_names == ["id", "name"]


def test_columns_can_be_read_as_lines_of_them_would_be():
    table = table_of(ROWS)
    columns, values = wire.read_as_lines(table, schema=SCHEMA)
    again = fit(SCHEMA, columns, values, rows=2).table
    assert content_ids(again)[0].equals(content_ids(table)[0])
    assert wire.read_as_lines(table.select([]), schema=SCHEMA) == ([], [])


def test_a_chunk_of_no_rows_is_read_too():
    content, header = chunk(table_of(ROWS).slice(0, 0))
    assert wire.decode_columns(content, header).tally == Tally()


def test_ids_and_numbers_must_be_as_many_as_rows():
    one = pa.chunked_array([[1]], pa.int64())
    with pytest.raises(ValueError, match="2 rows, 1 numbers"):
        wire.encode_columns(table_of(ROWS), one, pa.chunked_array([["a" * 32, "b" * 32]]))


@pytest.mark.parametrize(
    ("table", "changes", "reason"),
    [
        (numbered([1]), {"digest": "0" * 64}, "digest"),
        (numbered([1]), {"tally": Tally(2, 0)}, "has 1 rows; its header says 2"),
        (numbered([1]), {"tally": Tally(1, 1)}, "checksum"),
        (numbered([0]), {}, "outside the range"),
        (numbered([11]), {}, "outside the range"),
        (numbered([2, 2]), {}, "does not increase"),
        (numbered([1, 99, 3]), {}, "does not increase"),
        (numbered([1, None]), {}, "is a number"),
        (numbered([1], kind=pa.int32()), {}, "is a number"),
        (numbered([1.0], kind=pa.float64()), {}, "is a number"),
        (numbered([1]).drop_columns(["_origin_seq"]), {}, "is a number"),
        (numbered([1]).drop_columns(["_origin_id"]), {}, "8 bytes"),
        (numbered([1], [None]), {}, "8 bytes"),
        (numbered([1, 2]), {"given_up": (GivenUpRange(SequenceRange(1, 2), Tally(1, 5)),)}, "both sent and given up"),
        (pa.table([[1], [2]], names=["a", "a"]), {}, "twice"),
        (numbered([1], word=pa.array(["x"]).dictionary_encode()), {}, "not supported"),
    ],
)
def test_a_body_that_is_not_what_its_header_says_is_refused(table, changes, reason):
    content = stream(table)
    with pytest.raises(MalformedChunk, match=reason):
        wire.decode_columns(content, header_of(content, table.num_rows, 0, **changes))


@pytest.mark.parametrize("codec", ["zstd", "lz4"])
def test_buffers_that_are_compressed_in_themselves_are_not_read(codec):
    """Sixteen megabytes of blanks are a few kilobytes: whatever limits the body would not see them."""
    content = stream(numbered([1], text=pa.array([" " * (16 << 20)])), compression=codec)
    with pytest.raises(MalformedChunk, match="not a complete Arrow stream"):
        wire.decode_columns(content, header_of(content, 1, 0))


def test_texts_that_are_not_utf_8_are_refused():
    text = pa.array([b"\xff\xfe"], pa.binary()).view(pa.string())
    content = stream(numbered([1], text=text))
    with pytest.raises(MalformedChunk, match="not a complete Arrow stream"):
        wire.decode_columns(content, header_of(content, 1, 0))


def test_a_message_of_no_known_kind_in_the_place_of_the_schema_is_refused():
    """Nobody checks what such a one holds. Arrow would take it for a schema all the same, and end the process."""

    def damaged(content: bytes, place: int, value: int) -> bytes:
        return content[:place] + bytes([value]) + content[place + 1 :]

    def is_unknown(content: bytes) -> bool:
        try:
            return pa.ipc.MessageReader.open_stream(content).read_next_message().type == "unknown"
        except (OSError, pa.ArrowException):
            return False

    content, header = chunk(table_of(ROWS))
    size = len(pa.ipc.MessageReader.open_stream(content).read_next_message().serialize())
    kind = next(place for place in range(size) if content[place] == 1 and is_unknown(damaged(content, place, 10)))
    for place in range(kind + 1, size):
        body = damaged(damaged(content, kind, 10), place, 255)
        with pytest.raises(MalformedChunk, match="not a complete Arrow stream"):
            wire.decode_columns(body, header_of(body, 2, 0, tally=header.tally))


@settings(max_examples=100)
@given(st.data())
def test_whatever_becomes_of_the_bytes_it_is_refused_or_read_whole(data):
    """The digest keeps such bytes out; without it they must do no harm either."""
    content = bytearray(chunk(table_of(ROWS))[0])
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    body = bytes(content[: data.draw(st.integers(0, len(content)))])
    try:
        came = wire.decode_columns(body, header_of(body, 2, 0, tally=chunk(table_of(ROWS))[1].tally))
    except MalformedChunk:
        return
    assert came.table.num_rows == 2
