"""Streams of Arrow's that are whole in form and false in what they say: lengths, offsets, counts and types.

Bytes changed at random seldom come past the first check. Here the numbers that Arrow goes by are changed, each where it
stands; whatever is taken is then fitted and written, as a hub does it. What fails here ends the process.
"""

from __future__ import annotations

import struct
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import given
from hypothesis import strategies as st
from trying import inputs, refusal

from arrowmetadata import first_batch
from floodmark import wire
from floodmark.rows.content import content_ids
from floodmark.rows.fit import fit_table
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally

ROWS = 3
PLAIN = [
    pa.bool_(),
    pa.int32(),
    pa.int64(),
    pa.float64(),
    pa.string(),
    pa.large_string(),
    pa.binary(),
    pa.date32(),
    pa.timestamp("us", tz="UTC"),
    pa.decimal128(9, 2),
]
ODD = [pa.string_view(), pa.binary_view(), pa.null(), pa.duration("s"), pa.binary(3), pa.float16(), pa.date64()]
TYPES = st.recursive(
    st.sampled_from(PLAIN * 3 + ODD),
    lambda inner: st.one_of(
        inner.map(pa.list_),
        inner.map(pa.large_list),
        inner.map(pa.list_view),
        inner.map(lambda kind: pa.list_(kind, 2)),
        st.lists(inner, min_size=1, max_size=3).map(
            lambda kinds: pa.struct([(f"f{index}", kind) for index, kind in enumerate(kinds)])
        ),
    ),
    max_leaves=4,
)
NUMBERS = st.one_of(
    st.integers(-4, 40), st.sampled_from([2**31 - 1, -(2**31), 2**32, 2**40, 2**62, 2**63 - 1, -(2**63)])
)


def value_of(kind: pa.DataType, depth: int = 0) -> Any:
    types = pa.types
    if types.is_struct(kind):
        return {field.name: value_of(field.type, depth + 1) for field in kind}
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind) or types.is_list_view(kind):
        return [value_of(kind.value_type, depth + 1)] * 2
    if types.is_null(kind):
        return None
    if types.is_fixed_size_binary(kind):
        return b"xyz"
    if types.is_binary(kind) or types.is_binary_view(kind):
        return b"some bytes that are not short"
    if types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind):
        return "a text that is longer than twelve"
    return 1 if not types.is_boolean(kind) else True


def body(kinds: list[pa.DataType]) -> bytes:
    made = {f"c{at}": pa.array([value_of(kind), None, value_of(kind)], kind) for at, kind in enumerate(kinds)}
    made["_origin_seq"] = pa.array(range(1, ROWS + 1), pa.int64())
    made["_origin_id"] = pa.array([bytes(8)] * ROWS, pa.binary(8))
    table = pa.table(made)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def places(content: bytes) -> list[tuple[int, str]]:
    """Where the numbers of the batch stand: its length, its nodes, its buffers, and offsets in the body."""
    batch = first_batch(content)
    numbers = [at for pair in (*batch.nodes, *batch.buffers) for at in (pair, pair + 8)]
    found = [(at, "<q") for at in (batch.length, *numbers)]
    return found + [(batch.body + at, "<i") for at in range(0, batch.body_bytes - 4, 4)]


@given(data=st.data())
@inputs(30)
def test_a_stream_that_lies_about_itself_is_refused_or_read_whole(data: st.DataObject) -> None:
    """Whatever the numbers say."""
    content = bytearray(body(data.draw(st.lists(TYPES, min_size=1, max_size=3))))
    for at, form in data.draw(st.lists(st.sampled_from(places(bytes(content))), max_size=4)):
        number = data.draw(NUMBERS)
        size = struct.calcsize(form) * 8
        content[at : at + size // 8] = struct.pack(form, (number + 2 ** (size - 1)) % 2**size - 2 ** (size - 1))
    changed = bytes(content)
    header = wire.ChunkHeader("edge", "all", SequenceRange(0, ROWS), Tally(ROWS, 0), Tally(), wire.digest_of(changed))

    def taken() -> pa.Table:
        table = fit_table(Schema(), wire.decode_columns(changed, header).table).table
        content_ids(table)
        pq.write_table(table, pa.BufferOutputStream())
        wire.read_as_lines(table, schema=Schema())
        return table

    table, _ = refusal("streams of Arrow's", taken)
    assert table is None or table.num_rows == ROWS
