"""Files of each format, rows in Python, and what is asked of them on the way."""

from __future__ import annotations

import gzip
import shutil
from collections.abc import Callable
from datetime import UTC, date, datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark.errors import InvalidSetting, Permanent, SchemaConflict, UnserialisableValue
from floodmark.providers import Declaration, Provider
from floodmark.providers import Unit as ProviderUnit
from floodmark.sources import files, iterables, load
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store
from scenarios.sources.histories import adds_up, csv, jsonl, parquet, rows, stored


def gzipped(path: Path) -> Path:
    packed = path.with_name(path.name + ".gz")
    with path.open("rb") as plain, gzip.open(packed, "wb") as out:
        shutil.copyfileobj(plain, out)
    path.unlink()
    return packed


@pytest.fixture(autouse=True, params=["here", "by workers"])
def readers(request: pytest.FixtureRequest) -> None:
    """Whoever reads the text, it is the same."""
    if request.param == "by workers":
        request.getfixturevalue("spread")


@pytest.fixture(params=[files.BATCH_ROWS, 7])
def batches(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """In one piece, and in pieces that end in the middle of everything."""
    monkeypatch.setattr(files, "BATCH_ROWS", request.param)
    monkeypatch.setattr(files, "BLOCK_BYTES", request.param * 40)
    monkeypatch.setattr(iterables, "BATCH_ROWS", request.param)
    monkeypatch.setattr(iterables, "TABLE_ROWS", request.param)
    monkeypatch.setattr(load, "STEP_ROWS", request.param * 2)
    return request.param


@pytest.mark.parametrize("write", [jsonl, csv, parquet])
@pytest.mark.parametrize("packed", [False, True])
def test_each_format_plain_and_packed(messages: Store, tmp_path: Path, batches: int, write, packed: bool) -> None:
    path = write(tmp_path / f"history.{write.__name__}", rows(0, 50))
    report = messages.backfill("messages", gzipped(path) if packed else path)
    assert (report.read, report.new, report.units) == (50, 50, 1)
    assert stored(messages) == list(range(50))
    text = {row["text"] for batch in messages.read_since("messages") for row in batch.table.to_pylist()}
    assert text == {f"message {id}" for id in range(50)}


def test_a_whole_directory_in_order_of_names(messages: Store, tmp_path: Path, batches: int) -> None:
    root = tmp_path / "history"
    jsonl(root / "a" / "1.jsonl", rows(0, 20))
    jsonl(root / "b" / "2.ndjson.gz", rows(20, 40))
    parquet(root / "c.parquet", rows(40, 60))
    csv(root / "d.csv", rows(60, 80))
    (root / "_SUCCESS").write_text("")
    (root / ".hidden.jsonl").write_text("no\n")
    (root / "notes.txt").write_text("no\n")
    report = messages.backfill("messages", root)
    assert (report.new, report.units, report.quarantined) == (80, 4, 0)
    assert report.bytes == pytest.approx(report.bytes_total, rel=0.01)


def test_a_pattern(messages: Store, tmp_path: Path) -> None:
    for number in range(3):
        jsonl(tmp_path / f"dump-{number}.jsonl", rows(number * 10, number * 10 + 10))
    jsonl(tmp_path / "other.jsonl", rows(500, 510))
    assert messages.backfill("messages", str(tmp_path / "dump-*.jsonl")).new == 30


def test_directories_that_name_values_become_columns(store: Store, tmp_path: Path) -> None:
    store.add_dataset("messages", ["id"], schema={"id": "long", "year": "int"})
    jsonl(tmp_path / "h" / "year=2025" / "kind=a" / "1.jsonl", [{"id": 1}])
    parquet(tmp_path / "h" / "year=2026" / "kind=b" / "2.parquet", [{"id": 2}])
    csv(tmp_path / "h" / "3.csv", [{"id": 3}])
    report = store.backfill("messages", tmp_path / "h")
    found = {
        row["id"]: (row.get("year"), row.get("kind"))
        for batch in store.read_since("messages")
        for row in batch.table.to_pylist()
    }
    assert adds_up(report)
    assert found[2] == (2026, "b")
    assert found[1] == (2025, "a")
    assert found[3] == (None, None)


def test_rows_in_python(messages: Store, batches: int) -> None:
    table = pa.Table.from_pylist(rows(0, 30))
    assert messages.backfill("messages", rows(0, 30)).new == 30
    assert messages.backfill("messages", table).already_stored == 30
    assert messages.backfill("messages", table.to_batches()[0]).already_stored == 30
    assert messages.backfill("messages", table.to_reader()).already_stored == 30
    assert messages.backfill("messages", (row for row in rows(20, 50))).new == 20
    mixed = iter([rows(50, 51)[0], pa.Table.from_pylist(rows(51, 60)), rows(60, 61)[0]])
    assert messages.backfill("messages", mixed).new == 11
    assert stored(messages) == list(range(61))


@pytest.mark.parametrize("nonsense", [5, {"id": 1}, None, b"rows"])
def test_what_is_no_source_is_refused(messages: Store, nonsense) -> None:
    with pytest.raises((UnserialisableValue, InvalidSetting)):
        messages.backfill("messages", nonsense)


def test_a_path_without_anything_is_refused(messages: Store, tmp_path: Path) -> None:
    with pytest.raises(InvalidSetting, match="nothing to load"):
        messages.backfill("messages", tmp_path / "missing.jsonl")
    (tmp_path / "thing.dat").write_text("x")
    with pytest.raises(InvalidSetting, match="cannot be detected"):
        messages.backfill("messages", tmp_path / "thing.dat")
    with pytest.raises(InvalidSetting, match="format"):
        messages.backfill("messages", tmp_path / "thing.dat", format="avro")


def test_a_file_that_is_not_what_it_says_is_named(messages: Store, tmp_path: Path) -> None:
    (tmp_path / "history.parquet").write_text("not parquet")
    with pytest.raises(Permanent, match=r"history\.parquet cannot be read as parquet"):
        messages.backfill("messages", tmp_path / "history.parquet")


# ── on the way ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_window_of_event_time_begins_with_since_and_ends_before_until(messages: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "h.jsonl", [*rows(0, 28), {"id": 100}])
    report = messages.backfill("messages", path, since="2026-01-05", until=datetime(2026, 1, 8, tzinfo=UTC))
    assert stored(messages) == [4, 5, 6]
    assert report.outside == 26
    assert adds_up(report)
    assert messages.backfill("messages", path, since=date(2026, 1, 8)).new == 21, (
        "another window is another thing to load"
    )


def test_a_window_needs_an_event_time(plain: Store) -> None:
    with pytest.raises(InvalidSetting, match="no event time"):
        plain.backfill("plain", [{"id": 1}], since="2026-01-01", source_id="x")
    with pytest.raises(InvalidSetting, match="is not a time"):
        plain.backfill("plain", [{"id": 1}], since="yesterday", source_id="x")


def from_provider(old: list[dict]) -> dict:
    unit = ProviderUnit("all")
    reader = Provider("old", lambda _: old, lambda _: [unit], Declaration())
    return {"provider": reader}


KINDS = {
    "jsonl": lambda home, old: {"source": jsonl(home / "old.jsonl", old)},
    "csv": lambda home, old: {"source": csv(home / "old.csv", old)},
    "parquet": lambda home, old: {"source": parquet(home / "old.parquet", old)},
    "packed": lambda home, old: {"source": gzipped(csv(home / "old.csv", old))},
    "directory": lambda home, old: {"source": jsonl(home / "old" / "a" / "1.jsonl", old).parent.parent},
    "list": lambda _, old: {"source": old},
    "iterator": lambda _, old: {"source": iter(old)},
    "table": lambda _, old: {"source": pa.Table.from_pylist(old)},
    "provider": lambda _, old: from_provider(old),
}


@pytest.mark.parametrize("kind", KINDS)
def test_columns_are_renamed_and_a_window_is_taken_of_every_kind(messages: Store, tmp_path: Path, kind: str) -> None:
    old = [{"key": row["id"], "when": row["at"], "body": row["text"]} for row in rows(0, 28)]
    report = messages.backfill(
        "messages",
        **KINDS[kind](tmp_path, old),
        map={"key": "id", "when": "at", "body": "text"},
        since="2026-01-05",
        until="2026-01-08",
    )
    assert stored(messages) == [4, 5, 6]
    assert (report.read, report.new, report.outside) == (28, 3, 25)
    [table] = [batch.table for batch in messages.read_since("messages")]
    assert sorted(table["text"].to_pylist()) == ["message 4", "message 5", "message 6"]


def test_a_provider_is_not_asked_by_a_query(messages: Store) -> None:
    with pytest.raises(InvalidSetting, match="A query over a provider"):
        messages.backfill("messages", **from_provider(rows(0, 5)), select="SELECT * FROM source")


# ── what does not fit ────────────────────────────────────────────────────────────────────────────────────────────────


def test_lines_that_are_no_rows_go_to_quarantine_with_their_places(messages: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "h.jsonl", rows(0, 3), "{torn", "[1, 2]", "", '{"id": "x"}', '{"id": 7}')
    report = messages.backfill("messages", path)
    assert (report.read, report.new, report.quarantined) == (7, 4, 3)
    reasons = sorted(entry.reason for entry in messages.quarantine.entries("messages"))
    assert [reason.partition(": ")[0] for reason in reasons] == [f"{path}:{line}" for line in (4, 5, 7)]


def test_one_bad_value_in_a_typed_file_costs_its_row_only(messages: Store, tmp_path: Path) -> None:
    content = [{"id": "5", "at": "2026-01-01"}, {"id": "six", "at": "2026-01-01"}, {"id": "7", "at": "sometime"}]
    report = messages.backfill("messages", csv(tmp_path / "h.csv", content))
    assert (report.new, report.quarantined) == (1, 2)
    report = messages.backfill(
        "messages", parquet(tmp_path / "h.parquet", [{"id": 8, "at": "2026-01-01"}, {"id": 9, "at": "?"}])
    )
    assert (report.new, report.quarantined) == (1, 1)


def test_lines_of_a_csv_that_are_no_rows_go_to_quarantine_once(
    messages: Store, tmp_path: Path, batches: int, reopen: Callable[[], Store]
) -> None:
    """… also if the backfill is interrupted behind them."""
    whole = csv(tmp_path / "h.csv", rows(0, 60)).read_text().splitlines()
    whole[10:10] = ["10", "10,2026-01-11T00:00:00Z,a,b"]
    whole[40:40] = ["what?"]
    (tmp_path / "h.csv").write_text("\n".join(whole) + "\n")
    with crash_at("backfill.stored"):
        messages.backfill("messages", tmp_path / "h.csv")
    kill_store(messages)
    again = reopen()
    report = again.backfill("messages", tmp_path / "h.csv")
    assert adds_up(report)
    assert stored(again) == list(range(60))
    held = [(entry.reason.rpartition("h.csv ")[2], entry.payload) for entry in again.quarantine.entries("messages")]
    assert sorted(held) == [
        ("row 10: it has 1 column instead of 3", "10"),
        ("row 11: it has 4 columns instead of 3", "10,2026-01-11T00:00:00Z,a,b"),
        ("row 40: it has 1 column instead of 3", "what?"),
    ]


@pytest.mark.parametrize(("name", "suffix"), [("", "csv"), ("id", "csv"), ("id", "parquet")])
def test_two_columns_of_one_name_are_refused_in_words(messages: Store, tmp_path: Path, name: str, suffix: str) -> None:
    file = tmp_path / f"h.{suffix}"
    if suffix == "csv":
        file.write_text(f"{name},{name},text\n1,2,a\n")
    else:
        pq.write_table(pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=[name, name]), file)
    with pytest.raises(Permanent, match=rf"h\.{suffix} has several columns that are called '{name}'"):
        messages.backfill("messages", file)
    assert stored(messages) == []


def test_a_csv_with_other_bytes_than_text_is_refused_in_words(messages: Store, tmp_path: Path) -> None:
    """Also in a row of too many columns, which the parser hands over as text."""
    file = csv(tmp_path / "h.csv", rows(0, 3))
    file.write_bytes(file.read_bytes() + b"4,2026-01-05T00:00:00Z,a,\xff\n")
    with pytest.raises(Permanent, match=r"h\.csv cannot be read as csv: it is not UTF-8"):
        messages.backfill("messages", file)
    assert stored(messages) == []


def test_a_source_of_which_nothing_fits_is_refused_and_leaves_no_trace(messages: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "h.jsonl", [{"id": f"x{number}"} for number in range(200)])
    with pytest.raises(SchemaConflict, match=r"none of \d+ rows fits"):
        messages.backfill("messages", path)
    assert messages.quarantine.entries("messages") == []
    jsonl(path, rows(0, 10))
    assert messages.backfill("messages", path).new == 10


def test_a_packed_file_with_damage_inside_is_told_and_can_be_corrected(messages: Store, tmp_path: Path) -> None:
    path = jsonl(tmp_path / "rows.jsonl", rows(0, 200))
    packed = gzipped(path)
    whole = packed.read_bytes()
    packed.write_bytes(whole[:40] + bytes(20) + whole[60:])
    with pytest.raises(Permanent, match="cannot be read as jsonl"):
        messages.backfill("messages", packed)
    packed.write_bytes(whole)
    assert messages.backfill("messages", packed).new > 0
