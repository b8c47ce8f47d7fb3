"""An audit of a blob sink finds every kind of damage among its objects, and none where there is none."""

from __future__ import annotations

import gzip
import shutil

import pyarrow.parquet as pq
import pytest

from floodmark.delivery.sinks.formats import FORMATS
from floodmark.testing import crash_at
from scenarios.maintenance.delivered import (
    DATASET,
    SINK,
    Shop,
    first_twice,
    objects,
    rewrite,
    with_other_note,
    without_first,
)


@pytest.mark.parametrize("format", FORMATS)
def test_a_sound_sink_has_nothing_to_find_in_any_format(shop: Shop, format: str):
    shop.add_files(format=format)
    shop.deliver()
    report = shop.audit(deep=True)
    assert report.sound
    assert report.findings == ()
    assert [(c.partition, c.committed, c.settled, c.there) for c in report.channels] == [
        ("source=s0", 8, 8, 8),
        ("source=s1", 8, 8, 8),
    ]


def test_without_deep_no_object_and_no_row_is_read(shop: Shop, monkeypatch):
    shop.add_files()
    shop.deliver()
    read = shop.lake.rows_read
    monkeypatch.setattr("floodmark.delivery.sinks.blob.decoded", None)
    assert shop.audit().sound
    assert shop.lake.rows_read == read


def test_a_deleted_object_is_missed(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    gone = objects(directory)[1]
    gone.unlink()
    assert shop.kinds() == ["object-missing"]
    found = shop.audit().findings[0]
    after, through = map(int, gone.stem.split("-"))
    assert (found.range.after, found.range.through) == (after, through)
    assert "new prefix" in found.run


def test_a_truncated_object_is_found_by_reading_it(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    victim = objects(directory)[0]
    content = victim.read_bytes()
    victim.write_bytes(content[: len(content) // 2])
    assert shop.kinds() == []
    assert shop.kinds(deep=True) == ["object-damaged"]


def test_a_truncated_object_of_lines_is_found_too(shop: Shop):
    directory = shop.add_files(format="jsonl.gz")
    shop.deliver()
    torn, short, _ = (*objects(directory), None)[:3]
    torn.write_bytes(torn.read_bytes()[:-9])
    lines = gzip.decompress(short.read_bytes()).splitlines(keepends=True)
    short.write_bytes(gzip.compress(b"".join(lines[:-1])))
    assert shop.kinds(deep=True) == ["object-damaged", "rows-missing"]


def test_an_extra_object_is_found_under_any_name(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    first = objects(directory)[0]
    shutil.copy(first, first.with_name("1-2.parquet"))
    shutil.copy(first, first.with_name("copy of it.parquet"))
    (first.parent / "README.txt").write_text("not rows")
    assert shop.kinds() == ["object-extra", "object-extra"]


def test_the_same_range_in_a_second_format_is_an_extra_object(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    first = objects(directory)[0]
    first.with_suffix(".jsonl").write_text("")
    assert shop.kinds() == ["object-extra"]


@pytest.mark.parametrize(
    ("damage", "found"),
    [(without_first, "rows-missing"), (first_twice, "rows-doubled"), (with_other_note, "rows-altered")],
)
def test_a_row_removed_doubled_or_altered_in_an_object_is_found_by_reading_it(shop: Shop, damage, found: str):
    directory = shop.add_files()
    shop.deliver()
    victim = objects(directory)[1]
    rewrite(victim, damage(pq.read_table(victim)))
    assert shop.kinds() == []
    assert shop.kinds(deep=True) == [found]


def test_an_altered_row_in_lines_is_found_by_reading_it(shop: Shop):
    directory = shop.add_files(format="jsonl")
    shop.deliver()
    victim = objects(directory)[0]
    victim.write_text(victim.read_text().replace("row 2", "row 7"))
    assert shop.kinds(deep=True) == ["rows-altered"]


def test_an_object_that_another_library_wrote_anew_with_the_same_rows_is_sound(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    victim = objects(directory)[0]
    rewrite(victim, pq.read_table(victim))
    assert shop.kinds(deep=True) == []


def test_a_chunk_that_was_never_sent_is_found_below_the_watermark(shop: Shop):
    """U31: only the watermark says that these rows were delivered."""
    directory = shop.add_files()
    shop.deliver(rounds=1)
    shop.commit()
    last = shop.store.horizon(DATASET)
    shop.sql(f"UPDATE watermarks SET seq = {last}")
    assert shop.kinds() == ["never-sent", "never-sent"]
    assert len(objects(directory)) == 2


def test_a_pending_chunk_that_the_watermark_has_passed_is_found(shop: Shop):
    shop.add_files()
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.sql("UPDATE watermarks SET seq = 8")
    assert "never-sent" in shop.kinds()


def test_rows_that_wait_are_no_damage(shop: Shop):
    shop.add_files()
    shop.deliver()
    shop.commit()
    report = shop.audit(deep=True)
    assert report.sound
    assert [channel.waiting for channel in report.channels] == [4, 4]


def test_a_delivery_that_died_half_way_is_no_damage(shop: Shop):
    """U30: its object is there and not acknowledged."""
    shop.add_files()
    shop.deliver(rounds=1)
    shop.commit()
    with crash_at("delivery.shipped"):
        shop.store.export(SINK)
    assert shop.kinds(deep=True) == []


def test_what_is_delivered_while_the_audit_looks_is_no_damage(shop: Shop, monkeypatch):
    """U30: records and objects are read one after the other."""
    shop.add_files()
    shop.deliver(rounds=1)
    from floodmark.maintenance import audit

    real, rounds = audit.read_records, iter(range(1))

    def meanwhile(connection, sink, channel):
        found = real(connection, sink, channel)
        for _ in rounds:
            shop.deliver(rounds=1)
        return found

    monkeypatch.setattr(audit, "read_records", meanwhile)
    assert shop.audit().findings == ()


def test_objects_of_a_forgotten_delivery_are_a_note_until_the_next_export(shop: Shop):
    shop.add_files()
    shop.deliver()
    for table in ("chunks", "intents", "watermarks"):
        shop.sql(f"DELETE FROM {table}")
    shop.again()
    report = shop.audit()
    assert report.sound
    assert {item.kind for item in report.findings} == {"object-unrecorded"}
    shop.store.export(SINK)
    assert shop.audit(deep=True).findings == ()


def test_a_lost_signature_is_found(shop: Shop):
    directory = shop.add_files()
    shop.deliver()
    (directory / "_floodmark_claim.json").unlink()
    assert set(shop.kinds()) == {"claim-lost"}
    assert not (directory / "_floodmark_claim.json").exists(), "an audit writes nothing"


def test_an_acknowledgement_that_was_changed_in_the_records_is_found(shop: Shop):
    shop.add_files()
    shop.deliver()
    shop.sql("UPDATE chunks SET row_count = row_count - 1 WHERE after_seq = 0")
    assert {"records-differ", "watermark-differs"} <= set(shop.kinds())


def test_a_filtered_sink_is_sound(shop: Shop):
    shop.add_files(where="n > 4")
    shop.deliver()
    report = shop.audit(deep=True)
    assert report.findings == ()
    assert sum(channel.settled for channel in report.channels) == 12


def test_rows_that_were_skipped_and_replayed_are_counted_where_they_are(shop: Shop):
    directory = shop.add_files()
    shop.deliver(rounds=1)
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.store.skip(SINK, partition="source=s0")
    shop.store.export(SINK)
    assert shop.kinds(deep=True) == []
    assert sum(channel.given_up for channel in shop.audit().channels) == 2
    before = set(objects(directory))
    shop.store.replay(SINK)
    assert shop.kinds(deep=True) == []
    replayed = set(objects(directory)) - before
    assert replayed
    for path in replayed:
        path.unlink()
    assert shop.kinds() == ["object-missing"]


def test_rows_that_were_replayed_one_by_one_are_counted_too(shop: Shop):
    directory = shop.add_files()
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.store.skip(SINK, partition="source=s0")
    shop.store.export(SINK)
    first, second = (entry.id for entry in shop.store.quarantine.entries() if entry.sink is not None)
    before = set(objects(directory))
    shop.store.replay(SINK, id=first)
    assert shop.kinds(deep=True) == []
    shop.store.replay(SINK, id=second)
    assert shop.kinds(deep=True) == []
    min(set(objects(directory)) - before).unlink()
    assert shop.kinds() == ["object-missing"]


def test_a_row_that_was_given_up_and_is_in_no_quarantine_is_found(shop: Shop):
    shop.add_files()
    shop.commit()
    with crash_at("delivery.planned"):
        shop.store.export(SINK)
    shop.store.skip(SINK, partition="source=s0")
    shop.store.export(SINK)
    shop.sql("DELETE FROM quarantine")
    assert shop.kinds() == ["quarantine-differs"]


def test_a_sink_that_moved_is_audited_at_both_places(shop: Shop):
    old = shop.add_files()
    shop.deliver(rounds=1)
    new = shop.root / "new"
    shop.store.change_sink(SINK, url=new.as_uri(), format="jsonl")
    shop.deliver(rounds=1)
    assert shop.kinds(deep=True) == []
    objects(old)[0].unlink()
    objects(new, "source=s1")[0].unlink()
    assert shop.kinds() == ["object-missing", "object-missing"]


def test_a_sink_that_began_later_is_sound(shop: Shop):
    shop.commit()
    shop.add_files(start="now")
    shop.deliver()
    assert shop.audit(deep=True).findings == ()


def test_a_column_that_came_later_changes_no_checksum(shop: Shop):
    shop.add_files()
    shop.deliver(rounds=1)
    shop.store.capture(DATASET, [{"n": 1000, "source": "s0", "weight": 2}])
    shop.store.flush(DATASET)
    shop.store.export(SINK)
    assert shop.audit(deep=True).findings == ()
