"""Ranges read from data files, and dealt to tasks: the same rows as a look at every row would give."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import Corrupt, Permanent, Retryable
from floodmark.lake.files import Odd, RangeReader, StoredColumn, StoredFile, cut_all, in_order
from floodmark.lake.tasks import RangeOutcome, RangeWork, packed, unpacked
from floodmark.schema import CONTENT_ID, SEQ, Schema
from floodmark.schema.types import LONG, STRING, ListType, parse_type
from floodmark.sequence import SequenceRange, Tally

SCHEMA = Schema.declare({"id": "long", "site": "string"})
COLUMNS = (
    StoredColumn("id", LONG, (1,)),
    StoredColumn("site", STRING, (2,)),
    StoredColumn(SEQ, LONG, (3,)),
    StoredColumn(CONTENT_ID, STRING, (4,)),
)


def stored(directory: Path, numbers: list[int], *, group_rows: int, name: str = "a") -> StoredFile:
    """A data file as Iceberg writes it: columns carry field ids, names may be anything."""
    fields = [
        pa.field(f"c{id}", kind, metadata={"PARQUET:field_id": str(id)})
        for id, kind in ((1, pa.int64()), (2, pa.string()), (3, pa.int64()), (4, pa.string()))
    ]
    sites = [None if number % 3 == 0 else f"s{number % 3}" for number in numbers]
    rows = pa.table([numbers, sites, numbers, [f"{number:032x}" for number in numbers]], schema=pa.schema(fields))
    path = directory / f"{name}.parquet"
    pq.write_table(rows, path, row_group_size=group_rows)
    return StoredFile(str(path), min(numbers), max(numbers), len(numbers), path.stat().st_size)


def ranges_of(*ends: int) -> tuple[SequenceRange, ...]:
    return tuple(SequenceRange(a, b) for a, b in zip(ends, ends[1:], strict=False))  # noqa: RUF007 - pairs of ends


numbers_of_files = st.lists(st.lists(st.integers(1, 200), min_size=1, unique=True, max_size=60), min_size=1, max_size=4)


@given(files=numbers_of_files, ends=st.sets(st.integers(0, 210), min_size=2, max_size=8), group=st.integers(1, 30))
def test_each_range_has_exactly_its_rows_in_order(files: list[list[int]], ends: set[int], group: int) -> None:
    """Whatever order the rows have in their files, and however files and row groups overlap."""
    seen: set[int] = set()
    parts = []
    for numbers in files:
        parts.append([number for number in numbers if number not in seen])
        seen.update(numbers)
    with tempfile.TemporaryDirectory() as directory:
        held = [
            stored(Path(directory), part, group_rows=group, name=str(index)) for index, part in enumerate(parts) if part
        ]
        for partition_values in ({}, {"site": "s1"}, {"site": None}):
            reader = RangeReader(held, COLUMNS, partition_values, {})
            for within in ranges_of(*sorted(ends)):
                wanted = [number for number in sorted(seen) if number in within and _matches(number, partition_values)]
                rows = reader.rows(within)
                assert rows[SEQ].to_pylist() == wanted
                assert rows["id"].to_pylist() == wanted
            reader.close()


def _matches(number: int, partition_values: dict[str, Any]) -> bool:
    return all((None if number % 3 == 0 else f"s{number % 3}") == value for value in partition_values.values())


def test_a_row_group_that_two_ranges_share_is_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = stored(tmp_path, list(range(1, 101)), group_rows=20)
    read: list[int] = []
    real = pq.ParquetFile.read_row_group
    monkeypatch.setattr(
        pq.ParquetFile,
        "read_row_group",
        lambda file, group, **options: read.append(group) or real(file, group, **options),
    )
    reader = RangeReader([file], COLUMNS, {}, {})
    for within in ranges_of(25, 30, 35, 45, 61):
        reader.rows(within)
    assert read == [1, 2, 3]
    assert reader.rows(SequenceRange(99, 300)).num_rows == 1
    assert read == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("column", "why"),
    [
        (StoredColumn("id", parse_type("int"), (1,)), "a wider file"),
        (StoredColumn("id", parse_type("string"), (1,)), "another type"),
        (StoredColumn("id", ListType(LONG), (1, 9)), "another shape"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_file_that_does_not_fit_is_odd(tmp_path: Path, column: StoredColumn, why: str) -> None:
    file = stored(tmp_path, [1, 2], group_rows=10)
    with pytest.raises(Odd):
        RangeReader([file], (column, *COLUMNS[1:]), {}, {}).rows(SequenceRange(0, 2))


def test_a_file_without_field_ids_is_odd(tmp_path: Path) -> None:
    path = tmp_path / "plain.parquet"
    pq.write_table(pa.table({"id": [1], "site": ["a"], SEQ: [1], CONTENT_ID: ["0" * 32]}), path)
    with pytest.raises(Odd):
        RangeReader([StoredFile(str(path), 1, 1, 1, 1)], COLUMNS, {}, {}).rows(SequenceRange(0, 2))


def test_a_file_that_is_not_there_is_odd(tmp_path: Path) -> None:
    with pytest.raises(Odd):
        RangeReader([StoredFile(str(tmp_path / "gone"), 1, 1, 1, 1)], COLUMNS, {}, {}).rows(SequenceRange(0, 2))


def test_a_file_that_is_damaged_is_odd(tmp_path: Path) -> None:
    file = stored(tmp_path, list(range(1, 2000)), group_rows=500)
    path = Path(file.location)
    raw = bytearray(path.read_bytes())
    raw[4:4000] = bytes(3996)
    path.write_bytes(raw)
    with pytest.raises(Odd):
        RangeReader([file], COLUMNS, {}, {}).rows(SequenceRange(0, 200))


@given(numbers=st.lists(st.integers(1, 50), unique=True), ends=st.sets(st.integers(0, 60), min_size=2))
def test_a_batch_is_cut_into_its_ranges(numbers: list[int], ends: set[int]) -> None:
    ranges = ranges_of(*sorted(ends))
    found = {
        index: rows[SEQ].to_pylist() for index, rows in cut_all(pa.table({SEQ: pa.array(numbers, pa.int64())}), ranges)
    }
    wanted = {index: [number for number in numbers if number in within] for index, within in enumerate(ranges)}
    assert found == {index: inside for index, inside in wanted.items() if inside}


def test_parts_are_put_in_order() -> None:
    parts = [pa.table({SEQ: part}) for part in ([5, 6], [1, 2], [9, 3])]
    assert in_order(parts)[SEQ].to_pylist() == [1, 2, 3, 5, 6, 9]


def test_the_runs_of_a_file_are_put_in_order_without_a_copy() -> None:
    """A commit writes the segments of a block one after the other, in any order."""
    rows = pa.table({SEQ: [7, 8, 9, 1, 2, 3, 4, 5, 6], "text": list("ghiabcdef")})
    found = in_order([rows])
    assert found["text"].to_pylist() == list("abcdefghi")
    held = rows["text"].chunk(0).buffers()[2].address
    assert {chunk.buffers()[2].address for chunk in found["text"].chunks} == {held}


def test_rows_in_very_many_runs_are_sorted() -> None:
    rows = pa.table({SEQ: [*range(1000, 0, -1)]})
    assert in_order([rows])[SEQ].to_pylist() == [*range(1, 1001)]
    assert in_order([rows])[SEQ].num_chunks == 1


# ── tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def job(*ends: int, work: Any = None) -> RangeWork:
    return RangeWork(ranges_of(*ends), ("id",), SCHEMA, work or (lambda within, rows: {"rows": rows.num_rows}))


@given(weights=st.lists(st.floats(0, 1e9), max_size=40), tasks=st.integers(1, 12))
def test_ranges_are_dealt_whole_in_order_and_evenly(weights: list[float], tasks: int) -> None:
    groups = job().dealt(weights, tasks=tasks)
    assert [index for group in groups for index in group] == list(range(len(weights)))
    assert len(groups) <= tasks
    assert all(groups)
    fair = sum(weights) / tasks
    assert all(sum(weights[index] for index in group) <= 2 * fair + max(weights) + 1e-3 for group in groups)


def test_a_failing_range_stops_its_task_and_is_told_last() -> None:
    def fails(within: SequenceRange, rows: Any) -> dict[str, Any]:
        if within.after == 1:
            raise Permanent("no", hint="stop")
        return {}

    work = job(0, 1, 2, 3, work=fails)

    def read(within: SequenceRange) -> pa.Table:
        return pa.table({"id": [within.through], SEQ: [within.through], CONTENT_ID: [f"{within.through:032x}"]})

    outcomes = unpacked(packed(work.each(range(3), read)))
    assert [(item.answer, item.error is not None) for item in outcomes] == [({}, False), (None, True), (None, False)]
    results = work.results(outcomes)
    assert next(results)[0] == SequenceRange(0, 1)
    with pytest.raises(Permanent, match="no") as raised:
        next(results)
    assert raised.value.hint == "stop"


def test_a_range_without_an_answer_is_not_passed_over() -> None:
    with pytest.raises(Retryable, match=r"\(1, 2\]"):
        list(job(0, 1, 2).results([RangeOutcome(0, answer={})]))


def test_a_range_with_two_answers_is_noticed() -> None:
    with pytest.raises(Corrupt, match="two results"):
        list(job(0, 1).results([RangeOutcome(0, answer={}), RangeOutcome(0, Tally(1, 1), {})]))


class Unpicklable(Exception):
    def __init__(self, first: str, second: str) -> None:
        super().__init__(f"{first} and {second}")


def test_an_error_that_cannot_travel_is_told_in_words() -> None:
    (outcome,) = unpacked(packed([RangeOutcome(0, error=Unpicklable("this", "that"))]))
    assert isinstance(outcome.error, Retryable)
    assert "Unpicklable: this and that" in str(outcome.error)
