"""Which rows of a file are committed: what every lake says about it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from lakes import TABLE, Blocks

from floodmark.lake.stored import FileKeys
from floodmark.schema import Schema

SCHEMA = Schema.declare({"part": "string", "message": "string", "place": "long", "at": "timestamp"})
IDENTITY = (("part",), ("message", "place"))
START = datetime(2026, 1, 1, tzinfo=UTC)


def row(part: str | None, message: str | None = None, place: int | None = None, *, hour: int | None = 0) -> dict:
    at = None if hour is None else START + timedelta(hours=hour)
    return {"part": part, "message": message, "place": place, "at": at}


def file(path: Path, rows: list[dict], **renamed: str) -> Path:
    table = pa.Table.from_pylist(rows, SCHEMA.arrow(SCHEMA.names))
    pq.write_table(table.rename_columns([renamed.get(name, name) for name in table.column_names]), path)
    return path


def places(bitmap: bytes) -> list[int]:
    return [8 * at + bit for at, byte in enumerate(bitmap) for bit in range(8) if byte >> bit & 1]


@pytest.fixture
def committed(blocks: Blocks) -> Blocks:
    blocks.schema, blocks.identity, blocks.event_time = SCHEMA, IDENTITY, "at"
    blocks.commit([row("a"), row("b", hour=5), row(None, "m", 1), row("c", hour=None), row(None, "n", None)])
    return blocks


def test_the_rows_whose_identity_and_event_time_are_committed(committed: Blocks, tmp_path: Path) -> None:
    one = file(
        tmp_path / "one file.parquet",
        [
            row("x"),
            row("a"),
            row("b"),  # at another time
            row("b", hour=5),
            row(None, "m", 1),
            row(None, "n", None),  # no identity is complete: never the same
            row("c", hour=None),
            *[row(f"y{number}", hour=1) for number in range(40_000)],
            row("a"),
        ],
    )
    two = file(tmp_path / "two.parquet", [row("z"), row("a")])
    none = file(tmp_path / "none.parquet", [row("q")])
    keys = FileKeys((one, two, none), IDENTITY, "at", SCHEMA)
    found = committed.lake.stored_rows(TABLE, snapshot=committed.state().head, keys=keys)
    assert {path: places(bits) for path, bits in found.items()} == {one: [1, 3, 4, 6, 40_007], two: [1]}


@pytest.mark.parametrize("event_time", ["at", None])
def test_by_one_identity(blocks: Blocks, tmp_path: Path, event_time: str | None) -> None:
    blocks.schema, blocks.identity, blocks.event_time = SCHEMA, (("part", "place"),), event_time
    blocks.commit([row("a", place=1), row("b", place=1, hour=5), row("c", place=None)])
    blocks.commit([row("d", place=2, hour=7)])
    rows = [
        row("a", place=2),
        row("a", place=1),
        row("b", place=1),
        row("b", place=1, hour=5),
        row("c", place=None),
        *[row("y", place=number, hour=1) for number in range(20_000)],
        row("d", place=2, hour=7),
    ]
    path = file(tmp_path / "one.parquet", rows)
    keys = FileKeys((path,), (("part", "place"),), event_time, SCHEMA)
    found = blocks.lake.stored_rows(TABLE, snapshot=blocks.state().head, keys=keys)
    assert places(found[path]) == ([1, 3, 20_005] if event_time else [1, 2, 3, 20_005])


def test_columns_may_have_other_names_in_the_file(committed: Blocks, tmp_path: Path) -> None:
    path = file(tmp_path / "renamed.parquet", [row("x"), row("a")], part="key", at="time")
    keys = FileKeys((path,), IDENTITY, "at", SCHEMA, {"key": "part", "time": "at"})
    found = committed.lake.stored_rows(TABLE, snapshot=committed.state().head, keys=keys)
    assert places(found[path]) == [1]


def test_a_file_in_other_types_is_not_compared(tmp_path: Path) -> None:
    keys = FileKeys((), IDENTITY, "at", SCHEMA)
    assert keys.fits(SCHEMA.arrow(SCHEMA.names))
    assert not keys.fits(pa.schema([("part", pa.string())]))
    assert not keys.fits(pa.schema([*SCHEMA.arrow(("part", "message", "at")), ("place", pa.string())]))
