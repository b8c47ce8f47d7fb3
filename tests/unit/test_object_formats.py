"""Rows as objects: the same rows are the same bytes, and other bytes are recognised by their rows."""

from __future__ import annotations

import gzip
import io
import json
import math
from collections.abc import Callable
from datetime import UTC, date, datetime
from decimal import Decimal
from itertools import pairwise

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.delivery.sinks import formats
from floodmark.delivery.sinks.formats import FORMATS, check_format, encoded, holds_rows
from floodmark.errors import InvalidSetting
from floodmark.rows.fit import fit, rows_to_columns
from floodmark.schema import Schema
from floodmark.schema.types import to_arrow

SCHEMA = Schema.declare(
    {
        "id": "long",
        "small": "int",
        "yes": "boolean",
        "ratio": "double",
        "single": "float",
        "price": "decimal(12,2)",
        "text": "string",
        "raw": "binary",
        "day": "date",
        "at": "timestamp",
        "more": "json",
        "tags": "list<string>",
        "nested": "struct<a:long,b:list<struct<raw:binary,more:json,price:decimal(20,0),ratio:double>>>",
    }
)
LINES = [name for name in FORMATS if name != "parquet"]


def table(rows: list[dict], schema: Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist(rows, schema=schema.arrow())


FULL = {
    "id": 2**63 - 1,
    "small": -(2**31),
    "yes": True,
    "ratio": math.nan,
    "single": math.inf,
    "price": Decimal("-12345.60"),
    "text": 'é\n"\u2028\x00',
    "raw": bytes(range(256)),
    "day": date(1, 1, 1),
    "at": datetime(1, 1, 1, 0, 0, 0, 1, tzinfo=UTC),
    "more": '{"a":[1,"x",null,1e+300]}',
    "tags": ["a", None, ""],
    "nested": {"a": None, "b": [None, {"raw": b"\xff", "more": '"text"', "price": Decimal(2**64), "ratio": -math.inf}]},
}
PLAIN = {
    "id": 0,
    "ratio": -0.0,
    "single": 0.5,
    "price": Decimal("0.00"),
    "text": "",
    "raw": b"",
    "day": date(9999, 12, 31),
    "at": datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    "more": "1",
    "tags": [],
    "nested": {"a": 1, "b": []},
}
ROWS = table([FULL, PLAIN, dict.fromkeys(SCHEMA.names), {**PLAIN, "at": datetime(2026, 1, 31, 12, tzinfo=UTC)}])


@pytest.mark.parametrize("format", FORMATS)
def test_an_object_is_recognised_by_its_bytes_and_by_its_rows(format: str) -> None:
    content = encoded(ROWS, format, SCHEMA)

    assert content == encoded(ROWS, format, SCHEMA)
    assert holds_rows(bytes(content), ROWS, format, SCHEMA)


# ── the same rows are the same bytes ─────────────────────────────────────────────────────────────────────────────────

LAYOUT = Schema.declare({"n": "long", "text": "string", "list": "list<long>", "flag": "boolean", "at": "timestamp"})
row = st.fixed_dictionaries(
    {
        "n": st.none() | st.integers(-(2**63), 2**63 - 1),
        "text": st.none() | st.text(max_size=5) | st.sampled_from(["a", "b"]),
        "list": st.none() | st.lists(st.none() | st.integers(0, 3), max_size=3),
        "flag": st.none() | st.booleans(),
        "at": st.none() | st.datetimes(timezones=st.just(UTC)),
    }
)


@given(rows=st.lists(row, min_size=1, max_size=40), cuts=st.lists(st.integers(0, 40), max_size=4), data=st.data())
def test_however_arrow_holds_the_rows_the_bytes_are_the_same(rows: list[dict], cuts: list[int], data) -> None:
    """Pieces, offsets, wide offsets, dictionaries and metadata are nothing that a reader asked for."""
    whole = table(rows, LAYOUT)
    edges = [0, *sorted(min(cut, len(rows)) for cut in cuts), len(rows)]
    pieces = [whole.slice(start, end - start) for start, end in pairwise(edges)]
    padded = pa.concat_tables([whole.slice(0, 1), *pieces]).combine_chunks().slice(1)
    wide = whole.cast(
        pa.schema(
            [
                pa.field("n", pa.int64(), metadata={"PARQUET:field_id": "7"}),
                pa.field("text", pa.large_string()),
                pa.field("list", pa.large_list(pa.field("element", pa.int64()))),
                pa.field("flag", pa.bool_()),
                pa.field("at", pa.timestamp("us", tz="UTC")),
            ],
            metadata={"who": "wrote it"},
        )
    )
    coded = whole.set_column(1, "text", whole["text"].combine_chunks().dictionary_encode())
    format = data.draw(st.sampled_from(FORMATS))

    expected = encoded(whole, format, LAYOUT)

    for other in (pa.concat_tables(pieces), padded, wide, coded):
        assert encoded(other, format, LAYOUT) == expected


def test_large_objects_do_not_depend_on_pieces_either() -> None:
    """Pages end where a column's pieces do, so pieces are joined first."""
    whole = pa.table({"n": pa.array(range(300_000), pa.int64()), "text": [f"text {n}" for n in range(300_000)]})
    pieces = pa.concat_tables([whole.slice(start, 7_001) for start in range(0, 300_000, 7_001)])

    content = encoded(whole, "parquet", Schema())

    assert encoded(pieces, "parquet", Schema()) == content
    assert pq.read_table(pa.BufferReader(content)).equals(whole)


def test_gzip_carries_no_time_of_day() -> None:
    assert bytes(encoded(ROWS, "jsonl.gz", SCHEMA)[4:8]) == b"\0\0\0\0"


# ── other bytes, same rows ───────────────────────────────────────────────────────────────────────────────────────────


def parquet(rows: pa.Table, **settings) -> bytes:
    buffer = io.BytesIO()
    pq.write_table(rows, buffer, **settings)
    return buffer.getvalue()


@pytest.mark.parametrize(
    "settings",
    [{}, {"compression": "snappy", "row_group_size": 2}, {"data_page_version": "2.0", "use_dictionary": False}],
)
def test_parquet_that_was_written_otherwise_is_recognised(settings) -> None:
    content = parquet(ROWS, **settings)

    assert content != encoded(ROWS, "parquet", SCHEMA)
    assert holds_rows(content, ROWS, "parquet", SCHEMA)


def test_json_that_was_written_otherwise_is_recognised() -> None:
    lines = bytes(encoded(ROWS, "jsonl", SCHEMA)).splitlines()
    spaced = "".join(json.dumps(dict(reversed(json.loads(line).items()))) + "\r\n" for line in lines).encode()

    assert holds_rows(spaced, ROWS, "jsonl", SCHEMA)
    assert holds_rows(gzip.compress(spaced, compresslevel=1), ROWS, "jsonl.gz", SCHEMA)
    assert holds_rows(pa.compress(spaced, "zstd", asbytes=True), ROWS, "jsonl.zst", SCHEMA)


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_that_was_widened_since_is_the_same_column(format: str) -> None:
    narrow = pa.table({"n": pa.array([1, None], pa.int32()), "x": pa.array([0.1, math.nan], pa.float32())})
    wide = narrow.cast(pa.schema([("n", pa.int64()), ("x", pa.float64())]))
    before, now = Schema.declare(narrow.schema), Schema.declare(wide.schema)

    assert holds_rows(bytes(encoded(narrow, format, before)), wide, format, now)


@pytest.mark.parametrize("format", FORMATS)
def test_a_column_without_values_is_as_good_as_none(format: str) -> None:
    without = pa.table({"n": pa.array([1, 2], pa.int64())})
    empty = without.append_column("late", pa.nulls(2, pa.string()))
    schema = Schema.declare({"n": "long", "late": "string"})

    assert holds_rows(bytes(encoded(without, format, schema)), empty, format, schema)
    assert holds_rows(bytes(encoded(empty, format, schema)), without, format, schema)


# ── other rows ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize("change", ["a value", "the order", "one more", "one less", "a column", "null to empty"])
def test_other_rows_are_told_from_these(format: str, change: str) -> None:
    schema = Schema.declare({"n": "long", "text": "string"})
    rows = [{"n": 1, "text": "a"}, {"n": 2, "text": None}]
    other = {
        "a value": [{"n": 1, "text": "b"}, rows[1]],
        "the order": rows[::-1],
        "one more": [*rows, rows[1]],
        "one less": rows[:1],
        "a column": [{**rows[0], "more": 1}, rows[1]],
        "null to empty": [rows[0], {"n": 2, "text": ""}],
    }[change]
    found = pa.Table.from_pylist(other, schema=None if change == "a column" else schema.arrow())

    assert not holds_rows(bytes(encoded(found, format, schema)), table(rows, schema), format, schema)


@pytest.mark.parametrize("format", FORMATS)
@pytest.mark.parametrize(
    "content", [b"", b"not ours", b"PAR1", b"\x1f\x8b\x08rubbish", b"\x28\xb5\x2f\xfdrubbish", b"[1]\n"]
)
def test_what_is_no_such_object_at_all_is_told(format: str, content: bytes) -> None:
    try:
        assert not holds_rows(content, ROWS, format, SCHEMA)
    except ValueError as error:
        assert str(error)  # noqa: PT017 - either is right: nothing, or nothing that can be read


@pytest.mark.parametrize("format", ["jsonl.gz", "jsonl.zst"])
def test_a_bomb_is_not_unpacked(format: str) -> None:
    zeros = b"\0" * (50 << 20)
    bomb = gzip.compress(zeros) if format == "jsonl.gz" else pa.compress(zeros, "zstd", asbytes=True)

    with pytest.raises(ValueError, match="far longer"):
        holds_rows(bomb, ROWS, format, SCHEMA)


# ── what readers find ────────────────────────────────────────────────────────────────────────────────────────────────


def test_parquet_keeps_every_type() -> None:
    found = pq.read_table(pa.BufferReader(encoded(ROWS, "parquet", SCHEMA)))

    for column in SCHEMA:
        assert found.schema.field(column.name).type == to_arrow(column.type)
    without_nan = found.drop_columns(["ratio", "single"]).to_pylist()
    assert without_nan == ROWS.drop_columns(["ratio", "single"]).to_pylist()
    assert math.isnan(found["ratio"][0].as_py())


def test_lines_are_what_capture_takes() -> None:
    """What was delivered can be captured again, and is then the same rows."""
    lines = bytes(encoded(ROWS, "jsonl", SCHEMA))

    parsed = [json.loads(line) for line in lines.splitlines()]
    again = fit(SCHEMA, *rows_to_columns(parsed), len(parsed))

    assert again.misfits == []
    assert bytes(encoded(again.table.select(SCHEMA.names), "jsonl", SCHEMA)) == lines
    first = json.loads(lines.splitlines()[0])
    assert (first["at"], first["day"], first["price"]) == (
        "0001-01-01T00:00:00.000001+00:00",
        "0001-01-01",
        "-12345.60",
    )
    assert (first["ratio"], first["single"], first["more"]) == ("NaN", "Infinity", {"a": [1, "x", None, 1e300]})
    assert json.loads(lines.splitlines()[3])["at"] == "2026-01-31T12:00:00+00:00"


@given(st.lists(st.none() | st.datetimes(timezones=st.just(UTC)), min_size=1))
def test_instants_are_written_as_python_writes_them(instants: list[datetime | None]) -> None:
    schema = Schema.declare({"at": "timestamp"})

    lines = bytes(encoded(table([{"at": at} for at in instants], schema), "jsonl", schema)).splitlines()

    assert [json.loads(line)["at"] for line in lines] == [at and at.isoformat() for at in instants]


def test_an_unknown_format_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="xml") as refused:
        check_format("xml")
    assert "jsonl.zst" in (refused.value.hint or "")


@pytest.mark.parametrize("format", ["jsonl.gz", "jsonl.zst"])
def test_what_is_unpacked_takes_room_by_what_it_is_and_not_by_what_it_may_be(
    format: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing says how long an object of an audit should be: as much as it may be would be gigabytes for each."""
    asked: list[int] = []
    beginning = formats.read_at_most

    def watched(read: Callable[[int], bytes], bytes_max: int) -> bytes:
        return beginning(lambda size: asked.append(size) or read(size), bytes_max)

    monkeypatch.setattr(formats, "read_at_most", watched)
    found = formats.decoded(bytes(encoded(ROWS, format, SCHEMA)), format, SCHEMA)

    assert found.num_rows == ROWS.num_rows
    assert max(asked) <= 4 << 20
