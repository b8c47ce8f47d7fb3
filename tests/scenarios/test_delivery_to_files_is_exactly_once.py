"""A file sink receives every row exactly once, in order, whatever dies, arrives, is compacted or reconfigured."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from floodmark import faults
from floodmark.control import deliveries
from floodmark.delivery import channel
from floodmark.delivery.channel import INTENT_CHUNKS_MAX, Stop
from floodmark.errors import InvalidName, InvalidSetting, UnknownSink
from floodmark.sequence import SequenceRange
from floodmark.store import Store
from floodmark.testing import ManualClock, MemoryLake, crash_at, kill_store

DELIVERY_POINTS = [name for name in faults.POINTS if name.startswith("delivery.")]


def capture(store: Store, *numbers: int, source: str = "a") -> None:
    store.capture("m", [{"n": number, "source": source} for number in numbers])
    store.flush("m")


def delivered(directory: Path) -> dict[str, list[int]]:
    """What the objects hold, partition by partition, in the order of their ranges."""
    found: dict[str, list[int]] = {}
    objects = sorted(directory.glob("m/*/*.parquet"), key=lambda path: int(path.stem.split("-")[0]))
    for path in objects:
        found.setdefault(path.parent.name, []).extend(pq.read_table(path)["n"].to_pylist())
    return found


@pytest.fixture
def sink(store: Store, tmp_path: Path) -> Path:
    store.add_dataset("m", schema={"n": "long"}, partition_by=["source"])
    store.add_sink("archive", "blob", url=(tmp_path / "out").as_uri(), chunk_rows=3)
    return tmp_path / "out"


def test_every_row_arrives_once_in_order_and_a_second_tick_is_empty(store: Store, sink: Path) -> None:
    capture(store, *range(10))
    capture(store, *range(10, 14), source="b")

    first, second = store.export("archive"), store.export("archive")

    assert delivered(sink) == {"source=a": list(range(10)), "source=b": list(range(10, 14))}
    assert (first.rows, second.rows, second.chunks, second.bytes) == (14, 0, 0, 0)
    assert store.watermark("archive", "m", partition={"source": "a"}) == 14


def test_a_tick_with_nothing_new_touches_neither_lake_nor_destination(
    store: Store, lake: MemoryLake, sink: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    capture(store, 1, 2, 3)
    store.export("archive")
    reads, written = lake.files_read, {path: path.stat().st_mtime_ns for path in sink.rglob("*")}
    monkeypatch.setattr(MemoryLake, "load", None)  # any look at the lake would now fail

    assert store.export("archive").rows == 0
    assert lake.files_read == reads
    assert {path: path.stat().st_mtime_ns for path in sink.rglob("*")} == written


@pytest.mark.parametrize(
    ("time", "between"),
    [
        *((1, what) for what in ("nothing", "new rows", "a compaction", "another exporter", "new settings")),
        (2, "nothing"),
    ],
)
@pytest.mark.parametrize("point", DELIVERY_POINTS)
def test_a_crash_at_any_point_neither_loses_nor_doubles_a_row(
    store: Store, lake: MemoryLake, sink: Path, reopen, point: str, time: int, between: str
) -> None:
    """D1, D3: the retry sends the same ranges, because they were pinned before anything left."""
    capture(store, *range(8))
    capture(store, 100, 101, source="b")
    with crash_at(point, time=time):
        store.export("archive")
    before = {path.name: path.read_bytes() for path in sink.rglob("*.parquet")}
    kill_store(store)
    again = reopen()
    expected = {"source=a": list(range(8)), "source=b": [100, 101]}
    if between == "new rows":
        capture(again, 8, 9)
        again.capture("m", [{"n": 10, "source": "a", "late": "column"}])
        again.flush("m")
        expected["source=a"] += [8, 9, 10]
    elif between == "a compaction":
        lake.compact("m_g1")
    elif between == "another exporter":
        reopen().export("archive")
    elif between == "new settings":
        again.change_sink("archive", chunk_rows=5)

    again.export("archive")

    assert delivered(sink) == expected
    after = {path.name: path.read_bytes() for path in sink.rglob("*.parquet")}
    assert before.items() <= after.items()  # what had left is what is there, byte for byte


@pytest.mark.parametrize("point", DELIVERY_POINTS)
def test_a_second_exporter_in_the_middle_of_a_tick_changes_nothing(store: Store, sink: Path, reopen, point) -> None:
    """D4: at most one open intent, and a late acknowledgement is ignored."""
    capture(store, *range(10))
    other = reopen()
    faults.arm(point, faults.nth_time(1, lambda: other.export("archive")))

    store.export("archive")

    assert delivered(sink) == {"source=a": list(range(10))}
    assert store.watermark("archive", "m") == 10


def test_the_watermark_never_passes_a_chunk_that_did_not_arrive(store: Store, sink: Path) -> None:
    """D2: a later chunk's success does not move it over an earlier failure."""
    capture(store, *range(9))
    (sink / "m" / "source=a").mkdir(parents=True)
    (sink / "m" / "source=a" / "3-6.parquet").write_bytes(b"not ours")

    report = store.export("archive")

    assert report.blocked is not None
    assert "3-6.parquet" in report.blocked
    assert store.watermark("archive", "m") == 3
    (sink / "m" / "source=a" / "3-6.parquet").unlink()
    assert store.export("archive").blocked is None
    assert delivered(sink) == {"source=a": list(range(9))}


def test_two_stores_cannot_share_a_prefix(store: Store, sink: Path, tmp_path: Path) -> None:
    from floodmark.store import init

    capture(store, 1)
    store.export("archive")
    with init(tmp_path / "other", lake=MemoryLake()) as other:
        other.add_dataset("m", schema={"n": "long"}, partition_by=["source"])
        other.add_sink("archive", "blob", url=sink.as_uri())
        capture(other, 2)
        assert "belongs to another" in (other.export("archive").blocked or "")
    assert delivered(sink) == {"source=a": [1]}


def test_two_sinks_have_watermarks_of_their_own(store: Store, sink: Path, tmp_path: Path) -> None:
    capture(store, 1, 2)
    store.export("archive")
    store.add_sink("second", "blob", url=(tmp_path / "second").as_uri(), format="jsonl")
    capture(store, 3)

    store.export("second")

    assert store.watermark("archive", "m") == 2
    lines = [path.read_text() for path in sorted((tmp_path / "second").glob("m/*/*.jsonl"))]
    assert [json.loads(line)["n"] for text in lines for line in text.splitlines()] == [1, 2, 3]


def test_an_export_of_every_sink_goes_on_past_one_that_is_blocked(store: Store, sink: Path, tmp_path: Path) -> None:
    capture(store, 1, 2)
    store.add_sink("second", "blob", url=(tmp_path / "second").as_uri())
    (sink / "m" / "source=a").mkdir(parents=True)
    (sink / "m" / "source=a" / "0-2.parquet").write_bytes(b"not ours")

    report = store.export()

    assert (report.rows, report.chunks) == (2, 1)
    assert (report.blocked or "").startswith("archive: ")
    assert (store.watermark("archive", "m"), store.watermark("second", "m")) == (0, 2)


def test_gaps_cost_nothing(store: Store, sink: Path) -> None:
    """A partition first seen at number 10^9 has as many chunks as its rows need."""
    store.engine.database.transact(lambda c: c.exec_driver_sql("UPDATE counters SET value = 1000000000"))
    capture(store, *range(4))

    assert store.export("archive").chunks == 2
    assert delivered(sink) == {"source=a": [0, 1, 2, 3]}


def test_a_block_of_more_rows_than_one_intent_takes_is_still_cut_into_whole_chunks(store: Store, sink: Path) -> None:
    """What is left of a block is cut as it stands: counted from the block's beginning, each intent would be one row."""
    rows = 3 * (2 * INTENT_CHUNKS_MAX + 7)
    capture(store, *range(rows))

    report = store.export("archive")

    assert delivered(sink) == {"source=a": list(range(rows))}
    assert (report.rows, report.chunks) == (rows, rows // 3)


def test_rows_are_looked_up_ahead_by_one_group_and_no_more_once_it_is_to_stop(
    store: Store, clock: ManualClock, sink: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("floodmark.delivery.channel.SCAN_ROWS_MAX", 3)
    capture(store, *range(30))
    looks: list[object] = []
    scan = MemoryLake.scan
    monkeypatch.setattr(MemoryLake, "scan", lambda *args, **more: looks.append(more) or scan(*args, **more))
    stop = Stop(clock)

    report = store.export("archive", stop=stop, progress=lambda _: stop.set())

    assert report.rows == 3
    assert len(looks) == 2
    assert store.export("archive").rows == 27
    assert delivered(sink) == {"source=a": list(range(30))}


def test_a_stretch_counts_with_its_share_inside_a_range() -> None:
    stretch = deliveries.Stretch(10, 101, 200)
    assert stretch.within(SequenceRange(0, 500)) == stretch
    assert stretch.within(SequenceRange(150, 500)) == deliveries.Stretch(5, 151, 200)
    assert stretch.within(SequenceRange(0, 101)) == deliveries.Stretch(1, 101, 101)


def test_chunks_tile_their_range_without_holes() -> None:
    whole = SequenceRange(10, 1_000)
    found = [deliveries.Stretch(5, 20, 24), deliveries.Stretch(1, 100, 100), deliveries.Stretch(40, 500, 900)]

    ranges = deliveries.chunk_ranges(whole, found, rows_max=7)

    assert (ranges[0].after, ranges[-1].through) == (10, 1_000)
    assert all(left.through == right.after for left, right in pairwise(ranges))
    assert len(ranges) == 7


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"url": "ftp://x/y"}, "cannot be delivered to"),
        ({"url": "file:///x", "format": "xml"}, "format 'xml' is unknown"),
        ({"url": "file:///x", "chunk_rows": 0}, "chunk_rows is 0"),
        ({"url": "file:///x", "colour": "red"}, "Unknown setting 'colour'"),
    ],
)
def test_settings_that_make_no_sense_are_refused_with_the_way_out(store: Store, settings, said) -> None:
    with pytest.raises(InvalidSetting, match=said) as refused:
        store.add_sink("archive", "blob", **settings)
    assert refused.value.hint
    assert store.sinks() == []


def test_an_unknown_or_doubled_sink_is_refused(store: Store, sink: Path) -> None:
    with pytest.raises(UnknownSink, match="archive"):
        store.export("elsewhere")
    with pytest.raises(InvalidName, match="already"):
        store.add_sink("archive", "blob", url=sink.as_uri())


def test_a_name_that_no_sink_may_have_is_refused_as_a_sinks(store: Store, sink: Path) -> None:
    with pytest.raises(InvalidName, match="cannot name a sink"):
        store.add_sink("my archive", "blob", url=sink.as_uri())


def test_a_directory_of_this_machine_is_never_written_by_tasks_of_other_machines(
    store: Store, lake: MemoryLake, sink: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their objects would be on their own disks, and recorded as delivered."""
    monkeypatch.setattr(channel, "PARALLEL_ROWS_MIN", 1)
    monkeypatch.setattr(MemoryLake, "each_range", lambda *_, **__: pytest.fail("the work went to tasks"))
    lake.tasks_here = False
    capture(store, *range(10))

    assert store.export("archive").rows == 10
    assert delivered(sink) == {"source=a": list(range(10))}
