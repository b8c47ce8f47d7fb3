"""What becomes of rows whose identity is null, and of one identity at several event times."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from histories import jsonl, parquet

from floodmark.control.database import Database
from floodmark.control.datasets import from_declaration
from floodmark.datasets import declaration
from floodmark.errors import DatasetExists, InvalidSetting, SchemaConflict
from floodmark.lake.overlap import DISTINCT, NAMED
from floodmark.sources import load
from floodmark.sources.units import Batch, Unit
from floodmark.spool import segments
from floodmark.store import Store

AT = "2026-01-01T00:00:00Z"
LATER = "2026-02-01T00:00:00Z"
NAMELESS = [{"id": None, "at": AT, "text": "one"}, {"id": None, "at": None, "text": "two"}]
ROWS = [{"id": 1, "at": AT, "text": "named"}, *NAMELESS]


def texts(store: Store) -> list[str]:
    store.flush("messages")
    return sorted(row["text"] for batch in store.read_since("messages") for row in batch.table.to_pylist())


def grown(path: Path, rows: list[dict[str, object]]) -> Path:
    """The file with other content: a unit that is not known yet."""
    return jsonl(path, rows, "")


def test_a_file_that_is_loaded_again_brings_no_row_twice_also_where_the_identity_is_null(
    store: Store, tmp_path: Path
) -> None:
    """B10."""
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"})
    first = store.backfill("messages", jsonl(tmp_path / "rows.jsonl", ROWS))
    assert (first.new, first.already_stored, first.without_identity) == (3, 0, 2)
    again = store.backfill("messages", grown(tmp_path / "rows.jsonl", ROWS))
    assert (again.new, again.already_stored, again.without_identity) == (0, 3, 2)
    store.capture("messages", [*ROWS, ROWS[1] | {"text": "another"}])
    assert texts(store) == ["another", "named", "one", "two"]


def test_rows_that_are_to_be_kept_are_kept_each_time(store: Store, tmp_path: Path) -> None:
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"}, identity_null="keep")
    store.backfill("messages", jsonl(tmp_path / "rows.jsonl", ROWS))
    store.backfill("messages", grown(tmp_path / "rows.jsonl", ROWS))
    assert texts(store) == ["named", "one", "one", "two", "two"]


def test_rows_without_an_identity_can_be_kept_out(store: Store, tmp_path: Path) -> None:
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"}, identity_null="quarantine")
    done = store.backfill("messages", jsonl(tmp_path / "rows.jsonl", ROWS))
    assert (done.new, done.quarantined) == (1, 2)
    assert store.capture("messages", [*ROWS, {"at": AT}]).quarantined == 3
    with pytest.raises(SchemaConflict, match=r"its identity \(id\) is null"):
        store.capture("messages", NAMELESS)
    assert texts(store) == ["named"]
    assert all("its identity (id) is null" in entry.reason for entry in store.quarantine.entries("messages"))


def test_a_fallback_identity_is_enough(store: Store) -> None:
    store.add_dataset("messages", [["id"], ["text"]], identity_null="quarantine", schema={"id": "long"})
    assert store.capture("messages", [{"text": "by text"}, {"id": 1}, {"other": 1}]).quarantined == 1


def test_the_forecast_for_large_files_is_not_certain_of_rows_without_an_identity(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B2, B10: it looks for identities. Flush must still look for the rows that have none."""
    monkeypatch.setattr(load, "STORED_ROWS_MIN", 1)
    store.add_dataset("messages", ["id"], schema={"id": "long"})
    rows = [{"id": n, "text": f"row {n}"} for n in range(5)] + [{"id": None, "text": "nameless"}] * 2
    assert store.backfill("messages", parquet(tmp_path / "one.parquet", rows)).new == 6
    again = store.backfill("messages", parquet(tmp_path / "two.parquet", rows))
    assert (again.new, again.already_stored) == (0, 7)
    assert len(texts(store)) == 6


@pytest.mark.parametrize(("policy", "is_certain"), [("content", False), ("keep", True)])
def test_a_file_is_certain_to_bring_nothing_twice_only_if_all_of_its_rows_were_looked_for(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, policy: str, is_certain: bool
) -> None:
    """B2, B10: what is certain, flush does not look for again."""
    monkeypatch.setattr(load, "STORED_ROWS_MIN", 1)
    store.add_dataset("messages", ["id"], schema={"id": "long"}, identity_null=policy)
    store.backfill("messages", parquet(tmp_path / "one.parquet", [{"id": 1}, {"id": None}]))
    for rows, certain in ([{"id": 2}], True), ([{"id": 2}, {"id": None}], is_certain):
        path = parquet(tmp_path / "two.parquet", rows)
        unit = Unit("two", lambda _: iter(()), file=path)
        looked = load.stored_rows(store.engine.lake, store.datasets()[0], [unit], {})
        assert (looked.notes(Batch(pq.read_table(path), None, str), path) != {}) is certain


def test_a_segment_says_that_its_rows_are_distinct_only_if_none_goes_by_its_content() -> None:
    """B10."""
    by_content = declaration("messages", identity=["id"], schema={"id": "long"})
    kept = declaration("messages", identity=["id"], schema={"id": "long"}, identity_null="keep")
    named, nameless = pa.table({"id": [1, 2]}), pa.table({"id": [1, None, None]})
    assert {NAMED, DISTINCT} <= segments.certain_notes(by_content, named).keys()
    assert not {NAMED, DISTINCT} & segments.certain_notes(by_content, nameless).keys()
    assert segments.certain_notes(kept, nameless).keys() == {DISTINCT}


def test_one_identity_at_two_times_is_two_rows_or_one_as_it_was_declared(store: Store, tmp_path: Path) -> None:
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"}, identity_scope="all")
    store.add_dataset("bounded", ["id"], event_time="at", schema={"id": "long"})
    rows = [{"id": 1, "at": AT, "text": "first"}, {"id": 1, "at": LATER, "text": "second"}]
    for dataset, new in (("messages", 1), ("bounded", 2)):
        done = store.backfill(dataset, jsonl(tmp_path / f"{dataset}.jsonl", rows))
        assert (done.new, done.already_stored) == (new, 2 - new)
    store.capture("messages", [{"id": 1, "at": "1999-01-01T00:00:00Z", "text": "third"}])
    assert texts(store) == ["first"]
    waits = store.capture("messages", [{"id": 2, "at": AT, "text": "waits"}])
    assert waits.rows == 1
    late = store.backfill("messages", jsonl(tmp_path / "late.jsonl", [{"id": 2, "at": LATER, "text": "same"}]))
    assert (late.new, late.already_spooled) == (0, 1)
    assert texts(store) == ["first", "waits"]


def test_what_was_purged_does_not_come_back_also_without_an_identity(store: Store, tmp_path: Path) -> None:
    store.add_dataset("messages", ["id"], event_time="at", schema={"id": "long"})
    store.backfill("messages", jsonl(tmp_path / "rows.jsonl", ROWS))
    store.purge("messages", "text = 'one'")
    store.capture("messages", [{"id": None, "at": AT, "text": "waits"}])
    store.seal("messages")
    store.purge("messages", "text = 'waits'")
    again = store.backfill("messages", grown(tmp_path / "rows.jsonl", [*ROWS, {"at": AT, "text": "waits"}]))
    assert again.expired == 2
    assert texts(store) == ["named", "two"]


def test_a_dataset_of_before_keeps_what_it_did(store: Store) -> None:
    """Its record says nothing of null identities: they stay, and it may be declared again without a word about it."""
    store.add_dataset("messages", ["id"], schema={"id": "long"})
    database: Database = store.engine.database
    database.transact(lambda c: c.exec_driver_sql("UPDATE datasets SET identity_null = 'keep'"))
    store.add_dataset("messages", ["id"], schema={"id": "long"})
    store.capture("messages", [{"text": "one"}, {"text": "one"}])
    assert texts(store) == ["one", "one"]
    with pytest.raises(DatasetExists, match="identity_null"):
        store.add_dataset("messages", ["id"], schema={"id": "long"}, identity_null="content")


def test_a_table_keeps_how_its_identities_are_compared() -> None:
    """For a control database that is lost; a table of before says nothing of it, and keeps what it did."""
    declared = declaration("messages", identity=["id"], identity_null="quarantine", identity_scope="all")
    again = from_declaration("messages", 1, declared.declaration)
    assert (again.identity_null, again.identity_scope) == ("quarantine", "all")
    held = json.loads(declared.declaration)
    before = {name: value for name, value in held.items() if not name.startswith("identity_")}
    old = from_declaration("messages", 1, json.dumps(before))
    assert (old.identity_null, old.identity_scope) == ("keep", "event_time")


def test_what_is_not_offered_is_refused(store: Store) -> None:
    with pytest.raises(InvalidSetting, match="identity_null"):
        store.add_dataset("messages", ["id"], identity_null="drop")
    with pytest.raises(InvalidSetting, match="identity_scope"):
        store.add_dataset("messages", ["id"], identity_scope="never")
