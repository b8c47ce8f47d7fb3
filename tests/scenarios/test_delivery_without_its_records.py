"""Watermarks are lost or old: what the destination holds says how far delivery got, and nothing is stored twice."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import InvalidSetting
from floodmark.store import Store
from floodmark.testing import MemoryLake
from scenarios.destinations import Files


@pytest.fixture
def place(store: Store, tmp_path: Path, lake: MemoryLake) -> Files:
    store.add_dataset("m", schema={"n": "long"}, partition_by=["source"])
    made = Files(tmp_path, lake)
    made.add(store)
    return made


def capture(store: Store, *numbers: int, source: str = "a") -> None:
    store.capture("m", [{"n": n, "source": source} for n in numbers])
    store.flush("m")


def forget(store: Store, *tables: str) -> None:
    for table in tables or ("chunks", "intents", "watermarks"):
        store.engine.database.transact(lambda c, table=table: c.exec_driver_sql(f"DELETE FROM {table}"))


def names(place: Files) -> list[str]:
    return sorted(path.name for path in place.directory.rglob("*.parquet"))


def test_a_lost_watermark_is_read_back_from_the_names_of_the_objects(store: Store, place: Files, reopen) -> None:
    capture(store, *range(8))
    store.export("out")
    before = names(place)
    forget(store)
    again = reopen()
    again.change_sink("out", chunk_rows=5)
    capture(again, 8, 9)

    again.export("out")

    assert place.rows() == {"source=a": list(range(10))}
    assert set(before) < set(names(place))
    assert again.watermark("out", "m") == 10
    assert again.export("out").rows == 0


def test_a_control_database_of_last_week_finds_what_was_delivered_since(store: Store, place: Files, reopen) -> None:
    """The restored record knows of fewer deliveries than there were; other chunk sizes must not cut them anew."""
    capture(store, *range(4))
    store.export("out")
    marks = store.engine.database.read(
        lambda c: c.exec_driver_sql("SELECT seq, row_count, checksum FROM watermarks").one()
    )
    capture(store, *range(4, 12))
    store.export("out")
    forget(store)
    sink = store.sinks()[0].instance
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("INSERT INTO watermarks VALUES (?, 'm', 'source=a', ?, ?, ?, NULL)", (sink, *marks))
    )
    again = reopen()
    again.change_sink("out", chunk_rows=100)

    again.export("out")

    assert place.rows() == {"source=a": list(range(12))}
    assert again.watermark("out", "m") == 12


def test_objects_with_holes_between_them_are_filled_up_and_not_cut_anew(store: Store, place: Files, reopen) -> None:
    capture(store, *range(12))
    store.export("out")
    (place.directory / "m" / "source=a" / "3-6.parquet").unlink()
    forget(store)
    again = reopen()
    again.change_sink("out", chunk_rows=2)

    again.export("out")

    assert place.rows() == {"source=a": list(range(12))}


def test_a_destination_that_has_more_than_the_store_has_another_history(store: Store, place: Files, reopen) -> None:
    capture(store, *range(4))
    store.export("out")
    (place.directory / "m" / "source=a" / "2-4.parquet").rename(place.directory / "m" / "source=a" / "2-400.parquet")
    forget(store)

    report = reopen().export("out")

    assert "histories diverged" in (report.blocked or "")
    assert "new place" in (report.blocked or "")


def test_an_object_with_other_rows_under_the_same_name_is_a_parted_history(store: Store, place: Files, reopen) -> None:
    capture(store, *range(3))
    store.export("out")
    forget(store)
    lake_rows = place.directory / "m" / "source=a" / "0-3.parquet"
    content = lake_rows.read_bytes()
    other = Store(store.path, store.settings, lake=store.engine.lake)
    lake_rows.unlink()
    other.close()
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"n": [7, 8, 9], "source": ["a"] * 3}), lake_rows)
    assert lake_rows.read_bytes() != content

    report = reopen().export("out")

    assert report.blocked is not None
    assert "other rows" in report.blocked
    assert store.watermark("out", "m") == 0


def test_two_stores_cannot_share_a_prefix(store: Store, place: Files, tmp_path: Path, lake: MemoryLake, clock) -> None:
    from floodmark.store import init

    capture(store, 1)
    store.export("out")
    with init(tmp_path / "second", lake=MemoryLake(), clock=clock) as second:
        second.add_dataset("m", schema={"n": "long"}, partition_by=["source"])
        place.add(second)
        capture(second, 2)

        assert "belongs to another sink or store" in (second.export("out").blocked or "")
    assert place.rows() == {"source=a": [1]}


def test_two_sinks_of_one_store_cannot_share_a_prefix(store: Store, place: Files) -> None:
    """Not at the same time, and not one after the other: what the first delivered is not the second's."""
    capture(store, 1)
    store.export("out")
    with pytest.raises(InvalidSetting, match="already delivers to this place"):
        store.add_sink("second", "blob", **place.settings)
    store.remove_sink("out")
    store.add_sink("second", "blob", **place.settings)

    assert "belongs to another sink" in (store.export("second").blocked or "")
    assert place.rows() == {"source=a": [1]}


def test_a_late_exporter_overwrites_nothing(store: Store, place: Files, reopen, lake: MemoryLake) -> None:
    """It stood still with a chunk in its hands; meanwhile that was delivered, and its rows pruned."""
    from floodmark import faults
    from floodmark.sequence import SequenceRange

    capture(store, *range(3))
    content: list[bytes] = []

    def meanwhile() -> None:
        other = reopen()
        other.export("out")
        content.append((place.directory / "m" / "source=a" / "0-3.parquet").read_bytes())
        lake.delete("m_g1", SequenceRange(0, 3))

    faults.arm("delivery.planned", faults.nth_time(1, meanwhile))
    store.export("out")

    assert (place.directory / "m" / "source=a" / "0-3.parquet").read_bytes() == content[0]
    assert place.rows() == {"source=a": [0, 1, 2]}
    assert store.watermark("out", "m") == 3
