"""A row is found wherever it is, and for every sink that does not have it there is a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from floodmark.errors import SchemaConflict, UnknownDataset
from floodmark.maintenance.trace import SinkStep, Trace
from floodmark.testing import crash_at
from scenarios.destinations import Keys
from scenarios.maintenance.delivered import DATASET, SINK, Shop


def trace(shop: Shop, row: Any) -> Trace:
    return shop.again().trace(DATASET, row)


def step(shop: Shop, row: Any, sink: str = SINK) -> SinkStep:
    found = trace(shop, row)
    assert len(found.committed) == 1
    return next(item for item in found.committed[0].sinks if item.sink == sink)


def test_a_captured_row_is_in_a_line_of_its_landing_file(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}])
    shop.store.capture(DATASET, [{"n": 2, "source": "a"}, {"n": 3, "source": "a"}])
    found = trace(shop, {"n": 3})
    assert found.committed == ()
    row = found.spooled[0]
    line = (shop.store.path / row.file).read_bytes()[row.at :].splitlines()[0]
    assert b"[3," in line
    assert "flush" in row.why


def test_a_sealed_row_is_in_a_segment(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}, {"n": 2, "source": "a"}])
    shop.store.seal(DATASET)
    row = trace(shop, {"n": 2}).spooled[0]
    assert (row.at, row.file.endswith(".parquet")) == (1, True)
    assert "not yet committed" in row.why


def test_a_row_in_a_block_without_a_verdict_says_so(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}])
    with crash_at("flush.reserved"):
        shop.store.flush(DATASET)
    assert "undecided" in trace(shop, {"n": 1}).spooled[0].why


def test_a_row_that_is_committed_and_not_yet_recorded_is_told_once(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}])
    with crash_at("flush.appended"):
        shop.store.flush(DATASET)
    found = trace(shop, {"n": 1})
    assert (len(found.committed), found.spooled) == (1, ())


def test_a_committed_row_has_a_landing_file_a_segment_a_block_a_snapshot_and_a_file(shop: Shop):
    shop.commit()
    row = trace(shop, {"n": 5}).committed[0]
    assert row.seq == 5
    assert row.partition == "source=s1"
    assert ".jsonl, bytes 0-" in row.landing
    assert row.segment is not None
    assert (row.block.after, row.block.through) == (0, 8)
    assert row.committed_at.startswith("2026-01-01")
    assert row.snapshot == shop.lake.load(f"{DATASET}_g1").head
    assert row.file.startswith("memory:")


def test_a_row_is_found_by_its_content_id_and_by_the_whole_of_it(shop: Shop):
    shop.commit()
    first = trace(shop, {"n": 5}).committed[0]
    assert trace(shop, first.content_id).committed == (first,)
    assert trace(shop, {"n": 5, "source": "s1", "note": "row 5"}).committed == (first,)


def test_a_row_with_lists_is_found_by_the_whole_of_it(shop: Shop):
    row = {"n": 1, "source": "a", "tags": ["x", "y"]}
    shop.store.capture(DATASET, [row, {**row, "tags": ["x"]}])
    shop.store.flush(DATASET)
    assert [item.seq for item in trace(shop, row).committed] == [1]


def test_a_delivered_row_names_its_chunk_and_the_time(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    found = step(shop, {"n": 2})
    assert found.state == "delivered"
    assert 2 in found.chunk
    assert found.at == shop.clock.now().isoformat()


def test_a_row_that_waits_says_for_what(shop: Shop):
    shop.add_files()
    shop.commit()
    assert step(shop, {"n": 3}).state == "waiting"
    assert "by about 2 rows" in step(shop, {"n": 3}).why
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    assert "being delivered" in step(shop, {"n": 2}).why


def test_a_row_behind_a_blocked_sink_says_why_it_is_blocked(shop: Shop):
    directory = shop.add_files()
    directory.write_text("not a directory")
    shop.commit()
    shop.store.export(SINK)
    found = step(shop, {"n": 3})
    assert found.state == "waiting"
    assert found.why.startswith("The sink is blocked: ")


def test_a_row_that_a_sink_never_takes_says_why(shop: Shop):
    shop.store.add_dataset("other")
    shop.store.add_sink("elsewhere", "blob", url=(shop.root / "a").as_uri(), datasets=["other"])
    shop.store.add_sink("slice", "blob", url=(shop.root / "b").as_uri(), partitions={"source": ["s1"]})
    shop.store.add_sink("large", "blob", url=(shop.root / "c").as_uri(), where="n > 5")
    shop.commit()
    shop.store.add_sink("late", "blob", url=(shop.root / "d").as_uri(), start="now")
    shop.store.export()
    found = {item.sink: item.state for item in trace(shop, {"n": 2}).committed[0].sinks}
    assert found == {
        "elsewhere": "out of scope",
        "slice": "out of scope",
        "large": "filtered",
        "late": "before start",
    }


def test_a_row_that_was_skipped_is_in_quarantine_and_one_that_was_replayed_is_delivered(shop: Shop):
    shop.add_files()
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.store.skip(SINK, partition="source=s0")
    assert step(shop, {"n": 2}).state == "quarantined"
    entry = trace(shop, {"n": 2}).quarantined[0]
    assert (entry.sink, entry.seq, entry.reason) == (SINK, 2, "Skipped on demand.")
    shop.store.replay(SINK)
    assert step(shop, {"n": 2}).state == "delivered"
    assert "replayed" in step(shop, {"n": 2}).why


def test_a_row_whose_delivery_was_forgotten_and_found_again_is_delivered(shop: Shop):
    shop.add_table()
    shop.deliver(rounds=1)
    for table in ("chunks", "intents", "watermarks"):
        shop.sql(f"DELETE FROM {table}")
    shop.again().export(SINK)
    assert step(shop, {"n": 2}).state == "delivered"
    assert "no chunk" in step(shop, {"n": 2}).why


def test_a_row_that_did_not_fit_is_found_in_quarantine(shop: Shop):
    shop.store.capture(DATASET, [{"n": 1, "source": "a"}, {"n": "no number", "source": "b", "note": "bad"}])
    found = trace(shop, {"note": "bad"})
    assert (found.spooled, found.committed) == ((), ())
    assert "n" in found.quarantined[0].reason


def test_a_row_that_nobody_knows_is_not_known(shop: Shop):
    shop.commit()
    found = trace(shop, {"n": 12345})
    assert not found.known


def test_a_question_that_makes_no_sense_is_refused(shop: Shop):
    with pytest.raises(SchemaConflict, match="no column"):
        trace(shop, {"nope": 1})
    with pytest.raises(SchemaConflict, match="does not fit"):
        trace(shop, {"n": "text"})
    with pytest.raises(SchemaConflict, match="content id"):
        trace(shop, "xyz")
    with pytest.raises(SchemaConflict, match="No column"):
        trace(shop, {})
    with pytest.raises(UnknownDataset):
        shop.store.trace("nope", {"n": 1})


def test_a_trace_changes_nothing(shop: Shop, tmp_path: Path):
    place = Keys(tmp_path, shop.lake)
    shop.store.add_sink(SINK, "forward", **place.settings)
    shop.deliver(rounds=1)
    shop.store.capture(DATASET, [{"n": 99, "source": "a"}])
    sent = len(place.server.chunks())
    trace(shop, {"n": 2})
    trace(shop, {"n": 99})
    assert shop.store.status().datasets[0].horizon == 8
    assert len(place.server.chunks()) == sent
    place.close()
