"""A sink takes what it was told to take, from where it was told to begin; everything else counts as passed."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import FloodmarkError, InvalidCursor, InvalidSetting
from floodmark.store import Store
from floodmark.testing import MemoryLake, SimulatedCrash, crash_at
from scenarios.destinations import Files


@pytest.fixture
def place(store: Store, tmp_path: Path, lake: MemoryLake) -> Files:
    store.add_dataset("m", schema={"n": "long", "kind": "string"}, partition_by=["source"])
    store.add_dataset("other", schema={"n": "long"})
    return Files(tmp_path, lake)


def capture(store: Store, *numbers: int, source: str = "a", dataset: str = "m") -> None:
    row = {"source": source} if dataset == "m" else {}
    store.capture(dataset, [{"n": n, **row} for n in numbers])
    store.flush(dataset)


def test_only_the_named_datasets_are_taken(store: Store, place: Files) -> None:
    place.add(store, datasets=["m"])
    capture(store, 1)
    capture(store, 2, dataset="other")

    assert store.export("out").rows == 1
    assert not (place.directory / "other").exists()


def test_only_the_named_slices_are_taken(store: Store, place: Files) -> None:
    place.add(store, partitions={"source": ["b", "c"]})
    for source in "abc":
        capture(store, ord(source), source=source)
    capture(store, 9, dataset="other")

    store.export("out")

    assert place.rows() == {"source=b": [98], "source=c": [99]}
    assert not (place.directory / "other").exists()
    assert store.export("out").spark_jobs == 0


def test_rows_that_the_filter_leaves_out_count_as_passed(store: Store, place: Files) -> None:
    place.add(store, where="n % 2 = 0")
    capture(store, *range(10))

    report = store.export("out")

    assert place.rows() == {"source=a": [0, 2, 4, 6, 8]}
    assert report.rows == 5
    assert store.watermark("out", "m", partition={"source": "a"}) == 10
    assert store.export("out").rows == 0


def test_a_chunk_that_the_filter_leaves_empty_has_no_object(store: Store, place: Files) -> None:
    place.add(store, where="n > 5")
    capture(store, *range(10))
    store.export("out")
    assert sorted(path.name for path in place.directory.glob("m/*/*.parquet")) == ["6-9.parquet", "9-10.parquet"]


def test_a_filter_that_cannot_be_evaluated_is_refused_when_the_sink_is_added(store: Store, place: Files) -> None:
    capture(store, 1)
    for wrong in ("no_such_column > 1", "n >", "n > (select max(n) from m)", "_ingest_seq > 1"):
        with pytest.raises(FloodmarkError):
            place.add(store, where=wrong)
    assert store.sinks() == []


def test_a_sink_may_begin_now(store: Store, place: Files) -> None:
    capture(store, 1, 2)
    place.add(store, start="now")
    assert store.export("out").rows == 0
    capture(store, 3)
    capture(store, 4, source="new")

    store.export("out")

    assert place.rows() == {"source=a": [3], "source=new": [4]}


def test_a_sink_may_begin_at_a_cursor(store: Store, place: Files) -> None:
    capture(store, 1, 2)
    cursor = store.cursor("m")
    capture(store, 3)
    place.add(store, start=str(cursor))

    store.export("out")

    assert place.rows() == {"source=a": [3]}


def test_a_cursor_above_the_horizon_is_refused(store: Store, place: Files, tmp_path: Path) -> None:
    """Taking it would skip the rows in between when they come."""
    capture(store, 1, 2)
    ahead = str(type(store.cursor("m"))(store.store_id, "m", None, 99))
    with pytest.raises(InvalidCursor, match="ends at 2"):
        place.add(store, start=ahead)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"datasets": 7}, "datasets is 7"),
        ({"where": "  "}, "where is"),
        ({"partitions": ["a"]}, "partitions is"),
        ({"every": "soon"}, "is not a duration"),
        ({"every": "5m", "cron": "* * * * *"}, "Both"),
        ({"cron": "whenever"}, "cron expression"),
        ({"url": None}, "needs 'url'"),
    ],
)
def test_settings_that_make_no_sense_are_refused(store: Store, place: Files, settings, said: str) -> None:
    given = {**place.settings, **settings}
    with pytest.raises(InvalidSetting, match=said) as refused:
        store.add_sink("out", "blob", **given)
    assert refused.value.hint


def test_a_forecast_says_exactly_what_then_leaves(store: Store, place: Files) -> None:
    place.add(store, where="n <> 4")
    capture(store, *range(8))
    capture(store, 20, source="b")

    forecast = store.forecast_export("out")
    store.export("out")

    said = {f"{item.range.after}-{item.range.through}.parquet": item.rows for item in forecast if item.rows}
    assert sum(said.values()) == 8
    assert set(said) == {path.name for path in place.directory.rglob("*.parquet")}
    assert store.forecast_export("out") == []


def test_a_partition_first_seen_far_out_makes_one_chunk_not_thousands(store: Store, place: Files) -> None:
    place.add(store)
    capture(store, 1)
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("UPDATE counters SET value = 1000000000 WHERE name = 'sequence'")
    )
    capture(store, 2, source="late")

    store.export("out")

    assert [path.name for path in place.directory.glob("m/source=late/*")] == ["0-1000000001.parquet"]


def test_partitions_with_little_to_send_share_one_look_into_the_lake(
    store: Store, lake: MemoryLake, place: Files
) -> None:
    place.add(store, chunk_rows=1000)
    store.capture("m", [{"n": n, "source": f"s{n % 50}"} for n in range(500)])
    store.flush("m")
    before = lake.files_read

    store.export("out")

    assert lake.files_read - before == 1
    assert sum(len(rows) for rows in place.rows().values()) == 500


def test_a_failing_partition_holds_up_no_other(store: Store, place: Files) -> None:
    place.add(store)
    capture(store, 1, source="a")
    store.export("out")
    (place.directory / "m" / "source=b").mkdir(parents=True)
    (place.directory / "m" / "source=b" / "0-2.parquet").write_bytes(b"something else")
    capture(store, 2, source="b")
    capture(store, 3, source="c")

    report = store.export("out")

    assert list(report.errors) == [("m", "source=b")]
    assert report.blocked is not None
    assert sorted((place.directory / "m").glob("source=c/*"))
    assert store.watermark("out", "m", partition={"source": "c"}) == 3


@pytest.mark.parametrize("where", [None, "n <> 4"])
def test_a_forecast_of_many_chunks_takes_one_look_at_the_rows_or_none(
    store: Store, place: Files, monkeypatch, where: str | None
) -> None:
    place.add(store, where=where)
    capture(store, *range(300))
    looks: list[int] = []
    for name in ("aggregate", "scan", "each_range"):
        real = getattr(MemoryLake, name)

        def counted(self, *arguments, real=real, **options):
            looks.append(1)
            return real(self, *arguments, **options)

        monkeypatch.setattr(MemoryLake, name, counted)

    forecast = store.forecast_export("out")

    assert len(forecast) == 100
    assert len(looks) == (0 if where is None else 1)
    assert sum(item.rows for item in forecast) == (300 if where is None else 299)


def test_a_forecast_counts_what_is_left_where_duplicates_and_removals_have_left_gaps(
    store: Store, place: Files
) -> None:
    store.add_dataset("d", identity=["n"])
    place.add(store, datasets=["d"])
    store.capture("d", [{"n": n % 7} for n in range(20)])
    store.flush()
    store.capture("d", [{"n": n} for n in range(3, 12)])
    store.flush()
    assert sum(item.rows for item in store.forecast_export("out")) == 12
    store.purge("d", "n = 11")

    forecast = store.forecast_export("out")

    assert sum(item.rows for item in forecast) == 11
    assert store.export("out").rows == 11
    said = {f"{item.range.after}-{item.range.through}.parquet" for item in forecast if item.rows}
    assert said == {path.name for path in place.directory.rglob("*.parquet")}


def test_a_forecast_of_what_is_under_way_counts_by_the_filter_that_was_pinned(store: Store, place: Files) -> None:
    place.add(store, where="n <> 1")
    capture(store, 0, 1, 2)
    with crash_at("delivery.planned"), pytest.raises(SimulatedCrash):
        store.export("out")
    store.change_sink("out", where="n > 99")
    (chunk,) = store.forecast_export("out")
    assert (chunk.rows, chunk.under_way) == (2, True)
