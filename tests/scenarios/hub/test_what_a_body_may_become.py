"""Small bodies that would become much: what they hold is counted before it is unfolded, and refused by name."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import orjson
import pyarrow as pa
import pytest
from answers import problem

from arrowmetadata import first_batch
from floodmark import wire
from floodmark.sequence import Tally
from sending import Sender, entry, segment_states, spooled

MB = 1 << 20


def stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue().to_pybytes()


def numbered(rows: int, **columns) -> pa.Table:
    own = {
        "_origin_seq": pa.array(range(1, rows + 1), pa.int64()),
        "_origin_id": pa.array([bytes(8)] * rows, pa.binary(8)),
    }
    return pa.table({**columns, **own})


def send(hub, content: bytes, *, rows: int, media: str = wire.COLUMNS):
    chunk = Sender(media=media).chunk(0, max(rows, 1))
    chunk.content = content
    chunk.header = replace(chunk.header, digest=wire.digest_of(content), tally=Tally(rows, 0))
    return hub.send(chunk)


@pytest.fixture(autouse=True)
def _nothing_is_stored(store):
    yield
    assert entry(store) is None
    assert segment_states(store) == []
    assert spooled(store) == []


# ── layouts ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def crafted_view() -> bytes:
    """A null text of a negative length, which Arrow's own validation passes over, and its cast does not survive."""
    views = struct.pack("<i12s", 3, b"abc") + struct.pack("<iiii", -(2**31), 0, 0, 0) + struct.pack("<i12s", 1, b"x")
    buffers = [pa.py_buffer(b"\x05"), pa.py_buffer(views)]
    text = pa.Array.from_buffers(pa.string_view(), 3, buffers, null_count=1)
    text.validate(full=True)
    return stream(numbered(3, text=text))


def test_a_view_with_a_negative_length_is_refused_and_the_worker_lives(hub):
    """Tried in a process of its own: without the check it is the process that ends."""
    tried = subprocess.run(
        [sys.executable, "-c", TRY_IN_A_PROCESS], input=crafted_view(), capture_output=True, timeout=60, check=False
    )
    assert tried.returncode == 0, tried.stderr.decode()[-500:]
    content = problem(send(hub, crafted_view(), rows=3), 400, "MalformedChunk")
    assert "column 'text' has an Arrow type that is not supported" in content["detail"]


TRY_IN_A_PROCESS = """
import sys
from floodmark import wire
from floodmark.errors import MalformedChunk
from floodmark.rows.fit import fit_table
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange, Tally
content = sys.stdin.buffer.read()
header = wire.ChunkHeader("edge", "all", SequenceRange(0, 3), Tally(3, 0), Tally(), wire.digest_of(content))
try:
    fit_table(Schema(), wire.decode_columns(content, header).table)
except MalformedChunk:
    pass
"""


ODD = {
    "text view": pa.array(["x"], pa.string_view()),
    "binary view": pa.array([b"x"], pa.binary_view()),
    "list view": pa.array([[1]], pa.list_view(pa.int64())),
    "dictionary": pa.array(["x"]).dictionary_encode(),
    "run ends": pa.RunEndEncodedArray.from_arrays(pa.array([1], pa.int32()), pa.array(["x"])),
    "union": pa.UnionArray.from_sparse(pa.array([0], pa.int8()), [pa.array([1])]),
    "extension": pa.ExtensionArray.from_storage(pa.json_(), pa.array(["{}"])),
    "null": pa.nulls(1),
    "map": pa.array([{"a": 1}], pa.map_(pa.string(), pa.int64())),
    "list of a fixed size": pa.array([[1]], pa.list_(pa.int64(), 1)),
    "bytes of no size": pa.array([b""], pa.binary(0)),
    "struct of nothing": pa.array([{}], pa.struct([])),
    "duration": pa.array([1], pa.duration("s")),
}


@pytest.mark.parametrize("name", ODD)
@pytest.mark.parametrize("nested", [False, True], ids=["a column", "in a list"])
def test_only_plain_types_are_read(hub, name, nested):
    """At any depth: what no forward sink sends is refused before Arrow copies or casts a value of it."""
    array = ODD[name]
    if nested:
        array = pa.ListArray.from_arrays(pa.array([0, 1], pa.int32()), array)
    content = problem(send(hub, stream(numbered(1, odd=array)), rows=1), 400, "MalformedChunk")
    assert "not supported" in content["detail"] or "not a complete Arrow stream" in content["detail"]


@pytest.mark.parametrize("kind", [pa.struct([("naam", pa.int64())]), pa.int64()], ids=["inside", "outside"])
def test_a_name_that_is_not_utf_8_is_refused(hub, kind):
    array = pa.array([{"naam": 1}] if pa.types.is_struct(kind) else [1], kind)
    content = stream(numbered(1, naam=array)).replace(b"naam", b"na\xffm")
    problem(send(hub, content, rows=1), 400, "MalformedChunk")


# ── lengths that are only declared ───────────────────────────────────────────────────────────────────────────────────


def with_buffers(content: bytes, change) -> bytes:
    """The stream with the list of its first batch's buffers changed: (offset, length) of each."""
    places = first_batch(content).buffers
    pairs = change([struct.unpack_from("<qq", content, at) for at in places])
    packed = b"".join(struct.pack("<qq", *pair) for pair in pairs)
    begin = places[0]
    return content[:begin] + packed + content[begin + len(packed) :]


def test_columns_that_share_their_bytes_are_refused_before_they_are_unfolded(hub):
    """A thousand columns that all lie on the same megabyte would be a gigabyte."""
    text = pa.array(["x" * MB])
    table = numbered(1, **{f"c{index}": pa.array([""]) for index in range(1000)}, real=text)
    content = stream(table)

    def share(pairs):
        largest = max(pairs, key=lambda pair: pair[1])
        offsets = next(pairs[at - 1] for at, pair in enumerate(pairs) if pair == largest)
        return [
            offsets if at % 3 == 1 else largest if at % 3 == 2 else pair for at, pair in enumerate(pairs[:3000])
        ] + pairs[3000:]

    problem(send(hub, with_buffers(content, share), rows=1), 400, "MalformedChunk")


@pytest.mark.parametrize("length", [-1, 2**40, 2**62])
def test_a_buffer_outside_of_the_body_is_refused(hub, length):
    content = with_buffers(
        stream(numbered(2, id=pa.array([1, 2]))), lambda pairs: [*pairs[:1], (0, length), *pairs[2:]]
    )
    problem(send(hub, content, rows=2), 400, "MalformedChunk")


# ── limits, by name ──────────────────────────────────────────────────────────────────────────────────────────────────


LIMITS = {
    "rows": ({"rows_max": 3}, [{"id": 1}] * 4, "4 rows; the limit is 3"),
    "columns": ({"columns_max": 5}, [{f"c{index}": 1 for index in range(6)}], "columns; the limit is 5"),
    "values": ({"values_max": 100}, [{f"c{index}": 1} for index in range(30)], "values"),
    "nesting": ({"nesting_max": 3}, [{"doc": [[[[1]]]]}], "nested more than 3 levels deep"),
}


@pytest.mark.parametrize("name", LIMITS)
@pytest.mark.parametrize("route", ["array", "json lines", "chunk lines", "chunk columns"])
def test_what_is_too_much_for_a_request_is_refused_with_the_limit_and_its_option(store, start_hub, name, route):
    """The hint names what to change."""
    store.add_dataset("events")
    limits, rows, words = LIMITS[name]
    hub = start_hub(store, **limits)
    lines = b"\n".join(map(orjson.dumps, rows))
    if route == "array":
        response = hub.capture(orjson.dumps(rows))
    elif route == "json lines":
        response = hub.capture(lines, Content_Type=wire.LINES)
    elif route == "chunk lines":
        response = send(hub, lines, rows=len(rows), media=wire.LINES)
    else:
        names = dict.fromkeys(key for row in rows for key in row)
        table = numbered(len(rows), **{key: pa.array([row.get(key) for row in rows]) for key in names})
        response = send(hub, stream(table), rows=len(rows))
    content = problem(response, 413, "TooLarge")
    assert words in content["detail"]
    assert f"`--{name}-max`" in content["hint"]


def test_the_elements_of_lists_count_as_values(store, start_hub):
    store.add_dataset("events")
    hub = start_hub(store, values_max=1000)
    array = pa.array([list(range(2000))])
    problem(send(hub, stream(numbered(1, tags=array)), rows=1), 413, "TooLarge")
    problem(hub.capture(orjson.dumps([{"tags": list(range(2000))}])), 413, "TooLarge")


# ── memory ───────────────────────────────────────────────────────────────────────────────────────────────────────────

BOMBS = {
    "rows of one column each, every one another": orjson.dumps([{f"c{index}": 1} for index in range(20_000)]),
    "objects of nothing": b"[" + b"{}," * (8 * MB) + b"{}]",
    "lists in lists": b"[" + b"[]," * (8 * MB) + b"[]]",
    "numbers": b'[{"a":[' + b"1.5," * (6 * MB) + b"1]}]",
    "wide first line": orjson.dumps({f"c{index}": 1 for index in range(1900)}) + b"\n{}" * (4 * MB),
    "blank lines": b'{"a":1}' + b"\n" * (30 * MB) + b"x",
}


@pytest.mark.parametrize("name", BOMBS)
@pytest.mark.parametrize("route", ["capture", "chunks"])
def test_no_body_takes_more_memory_than_a_request_may(hub, name, route):
    """256 MiB, whatever is in it: the process has other requests too."""
    media = "application/x-ndjson" if name in {"wide first line", "blank lines"} else "application/json"
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_bytes()
    if route == "capture":
        body = wire.compress(BOMBS[name])
        response = hub.capture(body, Content_Type=media, Content_Encoding="zstd")
    else:
        response = send(hub, BOMBS[name], rows=1, media=wire.LINES)
    assert response.status_code in {400, 413}
    assert peak_bytes() - before < 256 * MB


def peak_bytes() -> int:
    status = Path("/proc/self/status").read_text()
    return int(re.search(r"VmHWM:\s+(\d+) kB", status)[1]) * 1024
