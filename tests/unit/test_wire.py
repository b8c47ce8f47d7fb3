"""Rows and headers on the wire: what is read is what was written, and anything else is refused."""

from __future__ import annotations

import base64
import datetime as dt
import json
import re
from dataclasses import replace
from decimal import Decimal

import orjson
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from floodmark import wire
from floodmark.errors import MalformedChunk, TooLarge
from floodmark.rows.content import content_ids
from floodmark.rows.fit import fit, rows_to_columns
from floodmark.schema import Column, Schema, parse_type
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally
from floodmark.wire import ChunkHeader, GivenUpRange, LedgerState
from floodmark.wire.lines import columns_alike

SCHEMA = Schema.declare(
    {
        "id": "long not null",
        "small": "int",
        "flag": "boolean",
        "ratio": "double",
        "narrow": "float",
        "name": "string",
        "raw": "binary",
        "day": "date",
        "at": "timestamp",
        "price": "decimal(38,4)",
        "doc": "json",
        "tags": "list<string>",
        "times": "list<timestamp>",
        "shape": "struct<a:long,b:list<json>,c:binary,d:decimal(9,2)>",
        'odd "name\\': "string",
    }
)
UTC = dt.UTC
unhurried = settings(deadline=None)

rows_of_any_kind = st.lists(
    st.fixed_dictionaries(
        {"id": st.integers(-(2**63), 2**63 - 1)},
        optional={
            "small": st.integers(-(2**31), 2**31 - 1),
            "flag": st.booleans(),
            "ratio": st.floats(),
            "narrow": st.floats(width=32),
            "name": st.text(st.characters(exclude_categories=["Cs"])),
            "raw": st.binary(),
            "day": st.dates(),
            "at": st.datetimes(timezones=st.just(UTC)),
            "price": st.decimals(-(10**30), 10**30, places=4),
            "doc": st.recursive(
                st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.text(st.characters(exclude_categories=["Cs"])),
                lambda inner: st.lists(inner) | st.dictionaries(st.text('abc\n"\\', max_size=3), inner),
                max_leaves=5,
            ),
            "tags": st.lists(st.none() | st.text('ab"\n', max_size=3), max_size=3),
            "times": st.lists(st.datetimes(timezones=st.just(UTC)), max_size=2),
            "shape": st.fixed_dictionaries(
                {
                    "a": st.none() | st.integers(0, 9),
                    "b": st.none() | st.lists(st.integers(0, 9) | st.text('x"', max_size=2), max_size=2),
                    "c": st.none() | st.binary(max_size=3),
                    "d": st.none() | st.decimals(0, 999, places=2),
                }
            ),
            'odd "name\\': st.text("ab"),
        },
    ),
    min_size=1,
    max_size=8,
)


def table_of(rows: list[dict], schema: Schema = SCHEMA) -> pa.Table:
    names = list(schema.names)
    fitted = fit(schema, names, [[row.get(name) for row in rows] for name in names], rows=len(rows))
    assert fitted.misfits == []
    return fitted.table


def chunk(table: pa.Table, *, first: int = 1, schema: Schema = SCHEMA, **changes) -> tuple[bytes, ChunkHeader]:
    ids, prefixes = content_ids(table)
    sequence = pa.chunked_array([list(range(first, first + table.num_rows))], pa.int64())
    content = wire.encode_lines(table, sequence, pa.chunked_array([ids]), schema=schema)
    values = {
        "origin": "store-a",
        "partition": "-",
        "range": SequenceRange(first - 1, first - 1 + table.num_rows),
        "tally": Tally(table.num_rows, sum(prefixes) % 2**64),
        "before": Tally(),
        "digest": wire.digest_of(content),
        "path": ("store-a",),
        "types": wire.types_lost_in_json(schema, table),
    }
    return content, ChunkHeader(**{**values, **changes})


def read_back(content: bytes, header: ChunkHeader, schema: Schema) -> pa.Table:
    lines = wire.decode_lines(content, header)
    told = [Column(name, parse_type(text)) for name, text in header.types.items() if name not in schema]
    fitted = fit(schema.merge(told), lines.columns, lines.values, rows=len(lines.sequence))
    assert fitted.misfits == []
    return fitted.table


# ── rows ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@unhurried
@given(rows_of_any_kind)
def test_every_row_is_read_back_as_the_same_row(rows):
    table = table_of(rows)
    content, header = chunk(table)
    again = read_back(content, header, SCHEMA)
    assert content_ids(again)[0].equals(content_ids(table)[0])
    assert content.count(b"\n") == len(rows)


@unhurried
@given(rows_of_any_kind)
def test_a_reader_without_a_schema_gives_each_column_the_type_that_the_sender_has(rows):
    table = table_of(rows)
    content, header = chunk(table)
    again = read_back(content, header, Schema())
    assert content_ids(again)[0].equals(content_ids(table)[0])


def test_times_are_iso_8601_in_utc_with_microseconds():
    content, _ = chunk(table_of([{"id": 1, "at": dt.datetime(1, 1, 1, tzinfo=UTC)}]))
    assert orjson.loads(content)["at"] == "0001-01-01T00:00:00.000000Z"


def test_a_row_carries_its_number_and_sixteen_digits_of_its_id():
    table = table_of([{"id": 7, "price": Decimal("1.5")}])
    content, _ = chunk(table, first=41)
    ids, _ = content_ids(table)
    assert orjson.loads(content) == {"id": 7, "price": "1.5000", "_origin_seq": 41, "_origin_id": ids[0].as_py()[:16]}


def test_ids_and_numbers_must_be_as_many_as_rows():
    table = table_of([{"id": 1}, {"id": 2}])
    one = pa.chunked_array([[1]], pa.int64())
    with pytest.raises(ValueError, match="2 rows, 1 numbers"):
        wire.encode_lines(table, one, pa.chunked_array([["a" * 32, "b" * 32]]), schema=SCHEMA)


def test_a_chunk_of_no_rows_has_no_lines():
    content, header = chunk(table_of([{"id": 1}]).slice(0, 0), range=SequenceRange(0, 9))
    assert content == b""
    assert wire.decode_lines(content, header).tally == Tally()


values_of_json = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.integers(2**63 - 2, 2**64 + 2)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text("ab"), inner, max_size=2),
    max_leaves=3,
)


@unhurried
@given(
    rows=st.lists(st.dictionaries(st.sampled_from(["a", "b", "c", 'q"', ""]), values_of_json), min_size=1, max_size=5),
    separator=st.sampled_from([b"\n", b"\n", b"\n", b" ", b"\n\n", b"\r\n", b""]),
    end=st.sampled_from([b"\n", b"", b" \n", b"\n\n", b"x"]),
)
def test_the_fast_way_to_read_lines_reads_what_the_other_reads_or_nothing(rows, separator, end):
    content = separator.join(json.dumps(row).encode() for row in rows) + end
    fast = columns_alike(content)
    try:
        objects = wire.parse_lines(content)
    except MalformedChunk:
        objects = None
    if fast is not None and objects is not None:
        columns, values = rows_to_columns(objects)
        kept = {name: list(column) for name, column in zip(*fast[:2], strict=True)}
        assert fast[2] == len(objects)
        assert repr({name: list(column) for name, column in zip(columns, values, strict=True)}) == repr(kept)
    # Objects beside each other with blank lines to make up for it: the rows are the same, and the digest holds them.
    assert objects is not None or fast is None or fast[2] == len(rows)


@pytest.mark.parametrize(
    "content",
    [b'{"a":18446744073709551616}\n', b'{"a":[1]}\n', b'{"a":{}}\n', b'{"a":1}\n{"b":1}\n', b'{"a":1} {"a":2}\n',
     b"1\n",
     b'{"a":1}\n\n', b'{"a\\"":1}\n', b"", b"[]\n", b'"ab"\n', b"[" * 3000],
)  # fmt: skip
def test_the_fast_way_leaves_everything_unusual_to_the_other(content):
    assert columns_alike(content) is None


def test_the_fast_way_is_taken_where_a_key_is_missing_or_null():
    found = columns_alike(b'{"a":1,"b":"x"}\n{"a":null}\n{"b":"y"}')
    assert found == (["a", "b"], [(1, None, None), ("x", None, "y")], 3)


# ── bodies that are not what they say ────────────────────────────────────────────────────────────────────────────────


def body(rows: list, **changes) -> tuple[bytes, ChunkHeader]:
    content = b"".join(orjson.dumps(row) + b"\n" for row in rows)
    ids = [row.get("_origin_id") if isinstance(row, dict) else None for row in rows]
    checksum = sum(int(text, 16) for text in ids if isinstance(text, str) and re.fullmatch("[0-9a-f]+", text)) % 2**64
    values = {
        "origin": "a",
        "partition": "-",
        "range": SequenceRange(0, 10),
        "tally": Tally(len(rows), checksum),
        "before": Tally(),
        "digest": wire.digest_of(content),
    }
    return content, ChunkHeader(**{**values, **changes})


def row(seq: object, id: object = "00000000000000ff") -> dict:
    return {"_origin_seq": seq, "_origin_id": id}


@pytest.mark.parametrize(
    ("rows", "changes", "reason"),
    [
        ([row(1)], {"digest": "0" * 64}, "digest"),
        ([row(1)], {"tally": Tally(2, 255)}, "has 1 rows; its header says 2"),
        ([row(1)], {"tally": Tally(1, 254)}, "checksum"),
        ([row(0)], {}, "outside the range"),
        ([row(11)], {}, "outside the range"),
        ([row(-1)], {}, "outside the range"),
        ([row(2**63)], {}, "outside the range"),
        ([row(2), row(2)], {}, "does not increase"),
        ([row(2), row(1)], {}, "does not increase"),
        ([row(1), row(99), row(3)], {}, "does not increase"),
        ([row("1")], {}, "is a number"),
        ([row(1.0)], {}, "is a number"),
        ([row(True)], {}, "is a number"),
        ([row(None)], {}, "is a number"),
        ([{"_origin_id": "00000000000000ff"}], {}, "is a number"),
        ([row(1), {}], {}, "is a number"),
        ([{}], {}, "is a number"),
        ([{"_origin_seq": 1}], {}, "16 hex digits"),
        ([row(1, "ff")], {}, "16 hex digits"),
        ([row(1, "zz000000000000ff")], {}, "16 hex digits"),
        ([row(1, "00 0000000000ff ")], {}, "16 hex digits"),
        ([row(1, "0000000 00000ff0"), row(2, "0000000000000ff0")], {}, "16 hex digits"),
        ([row(1, 255)], {}, "16 hex digits"),
        ([row(1, None)], {}, "16 hex digits"),
        ([row(1), row(2)], {"given_up": (GivenUpRange(SequenceRange(1, 2), Tally(1, 5)),)}, "both sent and given up"),
        ([[1]], {}, "Line 1 is not a JSON object"),
        ([row(1), None], {}, "Line 2 is not a JSON object"),
    ],
)
def test_a_body_that_is_not_what_its_header_says_is_refused(rows, changes, reason):
    with pytest.raises(MalformedChunk, match=reason):
        wire.decode_lines(*body(rows, **changes))


@pytest.mark.parametrize(
    "garbage", [b"\n", b"{", b"\xff\xfe\n", b'{"a":1}\n\n{"a":2}\n', b"[" * 5000, b'{"a":NaN}', b"\0"]
)
def test_lines_that_are_not_json_are_refused(garbage):
    with pytest.raises(MalformedChunk, match="not JSON"):
        wire.parse_lines(garbage)


# ── compression ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_a_compressed_body_comes_back_whole_up_to_the_limit(encoding):
    content = bytes(range(256)) * 10_000
    packed = pa.Codec(encoding).compress(content, asbytes=True)
    assert wire.decompress(packed, encoding, bytes_max=len(content)) == content
    with pytest.raises(TooLarge):
        wire.decompress(packed, encoding, bytes_max=len(content) - 1)


def test_what_compress_packs_is_unpacked():
    assert wire.decompress(wire.compress(b"rows"), "zstd", bytes_max=4) == b"rows"
    assert wire.decompress(wire.compress(b""), "zstd", bytes_max=0) == b""


def test_a_body_that_is_not_compressed_is_bounded_too():
    assert wire.decompress(b"abc", "identity", bytes_max=3) == b"abc"
    with pytest.raises(TooLarge):
        wire.decompress(b"abcd", "identity", bytes_max=3)


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
@unhurried
@given(cut=st.integers(1, 60))
def test_a_torn_body_is_refused(encoding, cut):
    packed = pa.Codec(encoding).compress(bytes(range(256)), asbytes=True)
    with pytest.raises(MalformedChunk):
        wire.decompress(packed[:-cut], encoding, bytes_max=1 << 20)


@pytest.mark.parametrize("encoding", ["zstd", "gzip"])
def test_garbage_behind_a_body_is_refused(encoding):
    packed = pa.Codec(encoding).compress(bytes(range(256)), asbytes=True)
    with pytest.raises(MalformedChunk):
        wire.decompress(packed + b"garbage!", encoding, bytes_max=1 << 20)


# ── the header ───────────────────────────────────────────────────────────────────────────────────────────────────────

tallies = st.builds(Tally, st.integers(0, 2**62), st.integers(0, 2**64 - 1))


@unhurried
@given(
    after=st.integers(0, SEQUENCE_MAX - 100),
    names=st.lists(st.text(st.characters(exclude_categories=["Cs"]), min_size=1), min_size=2, max_size=5),
    tally=tallies,
    before=tallies,
    edges=st.lists(st.integers(0, 100), unique=True, max_size=8).map(sorted),
    checksum=st.integers(0, 2**64 - 1),
)
def test_a_header_is_read_as_it_was_written(after, names, tally, before, edges, checksum):
    spans = [SequenceRange(after + one, after + two) for one, two in zip(edges[::2], edges[1::2], strict=False)]
    header = ChunkHeader(
        origin=names[0],
        partition=names[1],
        range=SequenceRange(after, after + 100),
        tally=tally,
        before=before,
        digest="0" * 64,
        given_up=tuple(GivenUpRange(span, Tally(span.through - span.after, checksum)) for span in spans),
        path=tuple(names[2:]),
        types={"at": "timestamp"},
    )
    text = header.encode()
    assert ChunkHeader.parse(text) == header
    assert "=" not in text
    assert header.total.rows == before.rows + tally.rows + sum(span.through - span.after for span in spans)


def good_header() -> dict:
    text = body([row(1)])[1].encode()
    return json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))


def encoded(content: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(content).encode()).decode().rstrip("=")


def test_a_header_may_leave_out_what_is_usually_empty():
    content = good_header()
    for key in ("given_up", "replay", "path"):
        del content[key]
    assert ChunkHeader.parse(encoded(content)) == body([row(1)])[1]


@pytest.mark.parametrize(
    "change",
    [
        {"version": 3},
        {"version": None},
        {"version": True},
        {"version": "2"},
        {"origin": ""},
        {"origin": 1},
        {"origin": "x" * 2000},
        {"partition": None},
        {"after": -1},
        {"after": 10},
        {"after": 11},
        {"after": "0"},
        {"after": 0.0},
        {"after": False},
        {"through": 2**63 - 1},
        {"through": 2**63},
        {"through": 2**64},
        {"through": 1e300},
        {"rows": -1},
        {"rows": 2**63},
        {"rows": True},
        {"checksum": "ff"},
        {"checksum": 255},
        {"checksum": "FFFFFFFFFFFFFFFF"},
        {"before": None},
        {"before": {}},
        {"before": {"rows": -1, "checksum": "0" * 16}},
        {"digest": "0" * 63},
        {"digest": None},
        {"given_up": None},
        {"given_up": [1]},
        {"given_up": [[1, 2]]},
        {"given_up": [[1, 1, 0, "0" * 16]]},
        {"given_up": [[2, 1, 1, "0" * 16]]},
        {"given_up": [[1, 11, 1, "0" * 16]]},
        {"given_up": [[1, 2, 1, "0" * 15]]},
        {"given_up": [[1, 2, 2, "0" * 16]]},
        {"given_up": [[False, 2, 1, "0" * 16]]},
        {"given_up": [[1, 3, 1, "0" * 16], [2, 4, 1, "0" * 16]]},
        {"given_up": [[3, 4, 1, "0" * 16], [1, 2, 1, "0" * 16]]},
        {"given_up": [[1, 2, 1, "0" * 16]] * 1001},
        {"version": 1, "given_up": [[0, "0" * 16]]},
        {"version": 1, "given_up": [[11, "0" * 16]]},
        {"version": 1, "given_up": [[1, "0" * 15]]},
        {"version": 1, "given_up": [[True, "0" * 16]]},
        {"version": 1, "given_up": [[2, "0" * 16], [2, "0" * 16]]},
        {"version": 1, "given_up": [[1, 2, 1, "0" * 16]]},
        {"replay": 1},
        {"replay": True, "given_up": [[1, 2, 1, "0" * 16]]},
        {"replay": True, "rows": 0},
        {"version": 1, "replay": True, "rows": 2},
        {"path": "a"},
        {"path": [""]},
        {"path": [1]},
        {"path": ["a"] * 8193},
        {"version": 1, "path": ["a"] * 65},
        {"types": []},
        {"types": {"a": 1}},
        {"types": {"a": "no_such_type"}},
    ],
)
def test_a_header_that_makes_no_sense_is_refused(change):
    with pytest.raises(MalformedChunk):
        ChunkHeader.parse(encoded({**good_header(), **change}))


@pytest.mark.parametrize("text", ["", "=", "not base64!", "é", "e30", encoded([]), encoded(None), "A" * (300 << 10)])
def test_a_header_that_is_none_is_refused(text):
    with pytest.raises(MalformedChunk):
        ChunkHeader.parse(text)


def test_a_key_is_made_of_the_range_and_names_cannot_be_confused():
    within = SequenceRange(4, 9)
    assert wire.idempotency_key("s/1", "orders", "a=b/c", within) == "s%2F1/orders/a%3Db%2Fc/4-9"
    assert wire.idempotency_key("s", "orders", "-", within, replay=True) == "s/orders/-/4-9/replay"


# ── the ledger in an answer ──────────────────────────────────────────────────────────────────────────────────────────


def test_a_ledgers_state_is_read_as_it_was_written():
    state = LedgerState(9, Tally(7, 2**64 - 1), 3, (SequenceRange(2, 3), SequenceRange(4, 9)), more=True)
    assert state.content() == {
        "through": 9,
        "rows": 7,
        "checksum": "f" * 16,
        "given_up": {"rows": 3, "ranges": [[2, 3], [4, 9]], "more": True},
    }
    assert LedgerState.parse(json.loads(json.dumps(state.content()))) == state


def test_an_older_store_is_told_of_given_up_rows_by_number():
    state = LedgerState(9, Tally(7, 1), 2, (SequenceRange(2, 3), SequenceRange(4, 5)))
    assert state.content(1)["given_up"] == [3, 5]


def test_the_header_of_an_older_store_is_read_and_its_given_up_rows_become_ranges():
    content = {**good_header(), "version": 1, "given_up": [[4, "0" * 15 + "7"], [2, "0" * 15 + "5"]]}
    header = ChunkHeader.parse(encoded(content))
    assert header.version == 1
    assert header.given_up == (
        GivenUpRange(SequenceRange(1, 2), Tally(1, 5)),
        GivenUpRange(SequenceRange(3, 4), Tally(1, 7)),
    )
    assert header.encode() == encoded_canonically(header)
    assert ChunkHeader.parse(header.encode()) == header


def encoded_canonically(header: ChunkHeader) -> str:
    assert json.loads(base64.urlsafe_b64decode(header.encode() + "=="))["given_up"] == [
        [2, "0000000000000005"],
        [4, "0000000000000007"],
    ]
    return header.encode()


def test_a_header_is_as_long_for_a_million_given_up_rows_as_for_one():
    def length(rows: int) -> int:
        given_up = GivenUpRange(SequenceRange(0, 2_000_000), Tally(rows, 1))
        base = body([row(1)])[1]
        return len(replace(base, range=SequenceRange(0, 2_000_001), given_up=(given_up,)).encode())

    assert length(1_000_000) - length(1) < 20


@pytest.mark.parametrize(
    "content",
    [None, [], {}, {"through": -1, "rows": 0, "checksum": "0" * 16}, {"through": 1, "rows": 0, "checksum": "0"},
     {"through": 1, "rows": 0, "checksum": "0" * 16, "given_up": ["a"]},
     {"through": 1, "rows": 0, "checksum": "0" * 16, "given_up": {"rows": 0, "ranges": [], "more": 1}},
     {"through": 1, "rows": 0, "checksum": "0" * 16, "given_up": {"rows": -1, "ranges": [], "more": False}},
     {"through": 1, "rows": 0, "checksum": "0" * 16, "given_up": {"rows": 1, "ranges": [[2, 1]], "more": False}},
     {"through": 1, "rows": 0, "checksum": "0" * 16, "given_up": {"rows": 1, "ranges": [[1]], "more": False}}],
)  # fmt: skip
def test_an_answer_without_a_ledger_is_not_taken_for_one(content):
    with pytest.raises(MalformedChunk):
        LedgerState.parse(content)
