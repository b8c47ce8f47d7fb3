"""An audit of tables, hubs and projections; and of what stands behind every sink: blocks, and the lake's own files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from floodmark.lake.targets import ORIGIN_SEQ
from floodmark.sequence import SequenceRange
from floodmark.testing import crash_at
from scenarios.hubs import HubPlace
from scenarios.maintenance.delivered import DATASET, SINK, Shop, with_other_note


def rows_there(shop: Shop, name: str) -> pa.Table:
    table = shop.lake.targets.tables[name]
    return pa.concat_tables([shop.lake.targets.data[file] for file in table.files[table.head or 0]])


def replace_rows(shop: Shop, name: str, rows: pa.Table) -> None:
    shop.lake.targets.delete(name)
    shop.lake.targets.add(name, rows)


# ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_sound_table_has_nothing_to_find(shop: Shop):
    shop.add_table()
    shop.deliver()
    report = shop.audit(deep=True)
    assert report.findings == ()
    assert [channel.there for channel in report.channels] == [8, 8]


def test_a_sound_table_costs_two_counts_for_each_partition_however_many_chunks_it_got(shop: Shop):
    shop.add_table()
    shop.deliver(rounds=5)
    asked = shop.lake.targets.rows_asked
    assert shop.audit().sound
    assert shop.lake.targets.rows_asked - asked == 4


def test_a_row_removed_from_a_table_is_found_with_its_chunk(shop: Shop):
    name = shop.add_table()
    shop.deliver(rounds=3)
    shop.lake.targets.delete(name, SequenceRange(9, 10))
    assert shop.kinds() == ["rows-missing"]
    found = shop.audit().findings[0]
    assert 10 in found.range
    assert len(found.range) < 10


def test_a_row_doubled_in_a_table_is_found(shop: Shop):
    name = shop.add_table()
    shop.deliver()
    shop.lake.targets.add(name, rows_there(shop, name).slice(2, 1))
    assert shop.kinds() == ["rows-doubled"]


def test_a_row_lost_while_another_is_doubled_is_found_though_the_count_is_right(shop: Shop):
    name = shop.add_table()
    shop.deliver()
    rows = rows_there(shop, name).sort_by(ORIGIN_SEQ)
    replace_rows(shop, name, pa.concat_tables([rows.slice(1), rows.slice(3, 1)]))
    assert sorted(shop.kinds()) == ["rows-doubled", "rows-missing"]


def test_an_altered_row_in_a_table_is_found_by_comparing(shop: Shop):
    name = shop.add_table()
    shop.deliver()
    replace_rows(shop, name, with_other_note(rows_there(shop, name)))
    assert shop.kinds() == []
    assert shop.kinds(deep=True) == ["rows-altered"]


def test_rows_above_all_that_has_left_are_found(shop: Shop):
    name = shop.add_table()
    shop.deliver()
    rows = rows_there(shop, name).slice(0, 1)
    forged = rows.set_column(rows.schema.get_field_index(ORIGIN_SEQ), ORIGIN_SEQ, pa.array([999], pa.int64()))
    shop.lake.targets.add(name, forged)
    assert shop.kinds() == ["rows-extra"]


def test_a_table_that_was_dropped_is_found(shop: Shop):
    name = shop.add_table()
    shop.deliver()
    shop.lake.targets.drop(name)
    assert shop.kinds() == ["rows-missing", "rows-missing"]


def test_a_chunk_never_sent_to_a_table_is_found(shop: Shop):
    """U31"""
    shop.add_table()
    shop.deliver(rounds=1)
    shop.commit()
    shop.sql(f"UPDATE watermarks SET seq = {shop.store.horizon(DATASET)}")
    assert shop.kinds() == ["never-sent", "never-sent"]


def test_a_table_whose_deliveries_were_forgotten_and_taken_over_is_sound(shop: Shop):
    """U31: no chunk is on record, and the table has the rows."""
    shop.add_table()
    shop.deliver()
    for table in ("chunks", "intents", "watermarks"):
        shop.sql(f"DELETE FROM {table}")
    shop.again().export(SINK)
    assert shop.kinds(deep=True) == []


# ── hubs ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hub(tmp_path: Path, shop: Shop) -> Iterator[HubPlace]:
    place = HubPlace(tmp_path, shop.lake)
    shop.store.add_sink(SINK, "forward", **{"chunk_rows": 3, **place.settings})
    yield place
    place.close()


def ledger(hub: HubPlace, change: str) -> None:
    hub.store.engine.database.transact(
        lambda c: c.exec_driver_sql(f"UPDATE ledger SET {change} WHERE partition_key = 'source=s0'")
    )


def test_a_hub_that_counts_the_same_is_sound(shop: Shop, hub: HubPlace):
    shop.deliver()
    report = shop.audit(deep=True)
    assert report.findings == ()
    assert [channel.there for channel in report.channels] == [8, 8]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ("row_count = row_count - 1", "rows-missing"),
        ("row_count = row_count + 1", "rows-extra"),
        ("checksum = '00000000000000aa'", "rows-altered"),
        ("through_seq = 3", "rows-missing"),
        ("through_seq = 900", "rows-extra"),
        ("given_up_rows = 1", "rows-missing"),
    ],
)
def test_a_hub_whose_ledger_says_something_else_is_found(shop: Shop, hub: HubPlace, change: str, found: str):
    shop.deliver()
    ledger(hub, change)
    assert shop.kinds() == [found]


def test_a_hub_restored_from_a_backup_is_behind(shop: Shop, hub: HubPlace, tmp_path: Path):
    shop.deliver(rounds=1)
    hub.back_up(tmp_path / "backup")
    shop.deliver(rounds=1)
    hub.restore(tmp_path / "backup")
    assert shop.kinds() == ["rows-missing", "rows-missing"]


def test_a_chunk_that_the_hub_stored_and_nobody_acknowledged_is_no_damage(shop: Shop, hub: HubPlace):
    shop.deliver(rounds=1)
    shop.commit()
    with crash_at("delivery.shipped"):
        shop.store.export(SINK)
    assert shop.kinds() == []


def test_a_hub_whose_rows_were_skipped_and_replayed_is_sound(shop: Shop, hub: HubPlace):
    shop.deliver(rounds=1)
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.store.skip(SINK, partition="source=s0")
    assert shop.kinds() == []
    shop.store.export(SINK)
    assert shop.kinds() == []
    shop.store.replay(SINK)
    assert shop.kinds() == []


def test_a_sink_that_began_later_and_has_delivered_nothing_is_sound(shop: Shop, tmp_path: Path):
    shop.commit()
    place = HubPlace(tmp_path, shop.lake)
    shop.store.add_sink(SINK, "forward", **{"start": "now", **place.settings})
    shop.store.export(SINK)
    assert shop.audit().findings == ()
    shop.deliver(rounds=1)
    assert shop.audit().findings == ()
    place.close()


def test_a_server_without_a_ledger_is_said_not_to_have_one(shop: Shop, tmp_path: Path):
    from scenarios.destinations import Keys

    place = Keys(tmp_path, shop.lake)
    shop.store.add_sink(SINK, "forward", **place.settings)
    shop.deliver()
    report = shop.audit()
    assert report.sound
    assert (report.asked, report.failed) == (False, False)
    assert all("keeps no ledger" in (channel.note or "") for channel in report.channels)
    place.close()


# ── projections, and what stands behind every sink ───────────────────────────────────────────────────────────────────


def take(batch: Any, delivery: Any) -> None:
    """A projection that keeps nothing."""


def test_of_a_projection_the_records_are_compared(shop: Shop):
    shop.store.add_sink(SINK, "projection", function=f"{__name__}:take", chunk_rows=3)
    shop.deliver()
    assert shop.audit().findings == ()
    shop.commit()
    shop.sql(f"UPDATE watermarks SET seq = {shop.store.horizon(DATASET)}")
    assert shop.kinds() == ["never-sent", "never-sent"]


def test_a_block_without_a_verdict_is_found(shop: Shop):
    shop.add_files()
    shop.deliver()
    shop.store.capture(DATASET, [{"n": 500, "source": "s0"}])
    with crash_at("flush.appended"):
        shop.store.flush(DATASET)
    assert shop.kinds() == [], "the next flush decides it by itself"
    (found,) = shop.audit().findings
    assert (found.kind, found.wrong) == ("block-undecided", False)
    assert "floodmark flush" in found.run


def test_a_data_file_that_the_table_refers_to_twice_is_found(shop: Shop):
    shop.add_files()
    shop.deliver()
    table = shop.lake.tables[f"{DATASET}_g1"]
    files = table.files[table.head or 0]
    table.files[table.head or 0] = (*files, files[0])
    assert shop.kinds() == ["file-twice"]


def test_a_data_file_that_is_missing_is_found(shop: Shop):
    shop.add_files()
    shop.deliver()
    table = shop.lake.tables[f"{DATASET}_g1"]
    del shop.lake.data[table.files[table.head or 0][0]]
    assert shop.kinds() == ["file-missing"]


def test_rows_that_the_lake_has_lost_are_found_by_counting_it(shop: Shop):
    shop.add_files()
    shop.deliver()
    shop.lake.delete(f"{DATASET}_g1", SequenceRange(2, 4))
    assert shop.kinds() == []
    assert shop.kinds(deep=True) == ["lake-differs", "lake-differs"]


def test_rows_that_were_removed_on_record_are_not_missed(shop: Shop):
    shop.add_files()
    shop.deliver()
    table = f"{DATASET}_g1"
    head = shop.lake.load(table).head
    gone = SequenceRange(2, 6)
    for item in shop.lake.figures(table, snapshot=head, within=gone, partition_by=("source",)):
        shop.sql(
            "INSERT INTO removals (operation, dataset, partition_key, after_seq, through_seq, row_count, checksum, "
            f"reason, removed_at, state) VALUES ('r', '{DATASET}', '{item.partition}', 2, 6, {item.tally.rows}, "
            f"'{item.tally.checksum_text}', 'retention', '2026-01-01', 'done')"
        )
    shop.lake.delete(table, gone)
    assert shop.kinds(deep=True) == []
