"""What a segment proves about its keys, so that nothing need be shuffled to find it out."""

from __future__ import annotations

import pyarrow as pa
import pytest

from floodmark.commit.protocol import Append, Base, BlockSegment, Snapshot, TableState
from floodmark.lake.overlap import ABSENT, DISTINCT, TIMED, is_absent, is_distinct, looked_through
from floodmark.rows.identities import are_distinct
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange

BOTH = {DISTINCT: b"1", TIMED: b"1"}


def segment(*span: int) -> BlockSegment:
    return BlockSegment(1, "path", 1, 0, (span[0], span[1]) if span else None)


@pytest.mark.parametrize(
    ("rows", "identity", "distinct"),
    [
        ({"a": ["x", "y"]}, [["a"]], True),
        ({"a": ["x", "x"]}, [["a"]], False),
        ({"a": ["x", None, None]}, [["a"]], True),  # a row without an identity has no twin
        ({"a": [1, 1], "b": [1, 2]}, [["a", "b"]], True),
        ({"a": [1, 1], "b": [2, 2]}, [["a", "b"]], False),
        ({"a": [1, 1], "b": [None, 2]}, [["a", "b"]], True),
        ({"a": [1, 2]}, [["a"], ["b"]], False),  # a fallback: not even tried
        ({"a": [1, 2]}, [["b"]], False),
        ({"a": [0.0, -0.0]}, [["a"]], False),  # one number, two bit patterns
        ({"a": [1.5, 2.5]}, [["a"]], False),
    ],
)
def test_whether_rows_are_known_to_be_distinct(rows: dict, identity: list[list[str]], distinct: bool) -> None:
    assert are_distinct(pa.table(rows), identity) is distinct


@pytest.mark.parametrize(
    ("segments", "notes", "distinct"),
    [
        ([segment()], [{DISTINCT: b"1"}], True),
        ([segment(1, 5)], [{TIMED: b"1"}], False),
        ([segment(6, 9), segment(1, 5)], [BOTH, BOTH], True),
        ([segment(5, 9), segment(1, 5)], [BOTH, BOTH], False),  # one instant in both
        ([segment(6, 9), segment(1, 5)], [BOTH, {DISTINCT: b"1"}], False),  # rows without a time in one of them
        ([segment(6, 9), segment()], [BOTH, BOTH], False),
        ([segment(6, 9), segment(1, 5)], [BOTH, {}], False),
    ],
)
def test_whether_a_batch_is(segments: list[BlockSegment], notes: list[dict], distinct: bool) -> None:
    assert is_distinct(segments, notes) is distinct


@pytest.mark.parametrize(
    ("base", "notes", "absent"),
    [
        (7, [{ABSENT: b"7"}, {ABSENT: b"7"}], True),
        (8, [{ABSENT: b"7"}], False),  # somebody has appended since
        (7, [{ABSENT: b"7"}, {}], False),  # live rows are in the same batch
        (None, [{ABSENT: b"None"}], False),
    ],
)
def test_whether_a_batch_was_looked_for_in_its_base(base: int | None, notes: list[dict], absent: bool) -> None:
    request = Append("t", "b", SequenceRange(0, 1), Base("uuid", 1, base), (), Schema.declare({"a": "string"}))
    assert is_absent(request, notes) is absent


@pytest.mark.parametrize(
    ("notes", "settle", "through"),
    [
        ([{ABSENT: b"2"}, {ABSENT: b"2"}], None, 20),
        ([{ABSENT: b"3"}, {ABSENT: b"1"}], None, 10),  # the one that looked first
        ([{ABSENT: b"3"}], None, 20),  # a rewrite holds what was there before it
        ([{ABSENT: b"2"}, {}], None, 0),  # nobody has looked for live rows
        ([{ABSENT: b"77"}], None, 0),  # it has expired, or is another table's
        ([{ABSENT: b"2"}], "module:settle", 0),  # what was looked at may be something else by now
    ],
)
def test_up_to_which_number_a_batch_was_looked_for(notes: list[dict], settle: str | None, through: int) -> None:
    lineage = [
        Snapshot(1, None, "append", 1, 10, through=10),
        Snapshot(2, 1, "append", 1, 10, through=20),
        Snapshot(3, 2, "replace", 1, 0),
        Snapshot(4, 3, "append", 1, 10, through=30),
    ]
    state = TableState("t", "uuid", tuple(reversed(lineage)), ())
    request = Append(
        "t", "b", SequenceRange(30, 31), Base("uuid", 1, 4), (), Schema.declare({"a": "string"}), settle=settle
    )
    assert looked_through(request, notes, state) == through
