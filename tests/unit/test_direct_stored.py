"""Committed rows are found in the data files themselves, where that is enough; and not guessed where it is not."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.lake import duplicates
from floodmark.lake.duplicates import KeyCache, stored_here
from floodmark.lake.manifests import Manifests
from floodmark.lake.stored import FileKeys
from floodmark.schema import SEQ, Schema

SCHEMA = Schema.declare({"id": "long", "at": "timestamp", "ratio": "double"})
START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(*ids: int | None) -> pa.Table:
    at = [None if id is None else START + timedelta(hours=id) for id in ids]
    return pa.table({"id": ids, "at": at, "ratio": [0.5] * len(ids)}, schema=SCHEMA.arrow(SCHEMA.names))


def numbered(rows: pa.Table, after: int = 0) -> pa.Table:
    numbers = pa.array(range(after + 1, after + 1 + rows.num_rows), pa.int64())
    return rows.append_column(pa.field(SEQ, pa.int64()), numbers)


def stored(table: Any, snapshot: int, keys: FileKeys) -> dict[Path, bytes] | None:
    return stored_here(table, snapshot, keys, Manifests(), KeyCache())


@pytest.fixture
def table(tmp_path: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    made = catalog.create_table("n.t", schema=numbered(rows()).schema)
    made.append(numbered(rows(1, 2, 3)))
    made.append(numbered(rows(100, 101), 3))
    return made


@pytest.fixture
def keys(tmp_path: Path) -> FileKeys:
    path = tmp_path / "history.parquet"
    pq.write_table(rows(0, 1, 2, None, 50, 101), path)
    return FileKeys((path,), (("id",),), "at", SCHEMA)


def head(table: Any) -> int:
    return int(table.current_snapshot().snapshot_id)


def test_rows_that_are_there_have_their_bits(table: Any, keys: FileKeys) -> None:
    found = stored(table, head(table), keys)
    assert found == {keys.files[0]: bytes([0b100110])}


def test_a_file_without_any_has_none(table: Any, keys: FileKeys) -> None:
    pq.write_table(rows(60, 61), keys.files[0])
    assert stored(table, head(table), keys) == {keys.files[0]: b""}


def test_what_needs_more_than_reading_is_left_to_spark(
    table: Any, keys: FileKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert stored(table, head(table), replace(keys, identity=(("id",), ("at",)))) is None, "fallbacks"
    assert stored(table, head(table), replace(keys, identity=(("ratio",),))) is None, "fractions"
    assert stored(table, 12345, keys) is None, "a snapshot that has expired"
    monkeypatch.setattr(duplicates, "COMMITTED_ROWS_MAX", 4)
    assert stored(table, head(table), keys) is None, "too much is near"


@pytest.mark.parametrize("identity", [("id",), ("id", "at")])
def test_one_identity_at_several_times_is_several_rows(table: Any, keys: FileKeys, identity: tuple[str, ...]) -> None:
    """The event time is part of the key: a look by the identity alone finds the wrong one of them."""
    at = [START + timedelta(hours=hour) for hour in (1, 2, 3, 4)]
    kind = rows().schema
    table.append(numbered(pa.table({"id": [1, 1], "at": at[1:3], "ratio": [0.5, 0.5]}, schema=kind), 5))
    pq.write_table(pa.table({"id": [1, 1, 1, 1], "at": at, "ratio": [0.5] * 4}, schema=kind), keys.files[0])
    found = stored(table, head(table), replace(keys, identity=(identity,)))
    assert found == {keys.files[0]: bytes([0b0111])}


def test_a_row_without_an_event_time_is_found_among_those_that_have_none(table: Any, keys: FileKeys) -> None:
    kind = rows().schema
    table.append(numbered(pa.table({"id": [7], "at": [None], "ratio": [0.5]}, schema=kind), 5))
    pq.write_table(
        pa.table({"id": [7, 7, 1], "at": [None, START, None], "ratio": [0.5] * 3}, schema=kind), keys.files[0]
    )
    assert stored(table, head(table), keys) == {keys.files[0]: bytes([0b001])}


def test_what_a_flush_or_another_file_has_read_is_not_read_again(
    table: Any, keys: FileKeys, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []
    real = duplicates.read_keys

    def counted(table: Any, file: Any, columns: Any) -> pa.Table:
        read.append(file.location)
        return real(table, file, columns)

    monkeypatch.setattr(duplicates, "read_keys", counted)
    cache, manifests = KeyCache(), Manifests()
    for _ in range(3):
        assert stored_here(table, head(table), keys, manifests, cache) == {keys.files[0]: bytes([0b100110])}
    assert len(read) == len(set(read)) == 2


def test_many_rows_have_each_their_own_bit(table: Any, keys: FileKeys) -> None:
    theirs, ours = range(200, 1200, 3), range(190, 1190)
    table.append(numbered(rows(*theirs), 5))
    pq.write_table(rows(*ours), keys.files[0], row_group_size=77)
    for asked in (keys, replace(keys, event_time=None)):
        bits = (stored(table, head(table), asked) or {})[keys.files[0]]
        assert [id for place, id in enumerate(ours) if bits[place >> 3] >> (place & 7) & 1] == [
            id for id in ours if id in theirs
        ]
