"""A segment that is damaged or missing is given up on purpose, on record, and everything goes on."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import Permanent
from floodmark.lake import queries
from floodmark.sequence import SequenceRange
from floodmark.testing import crash_at
from scenarios.maintenance.delivered import DATASET, SINK, Shop
from scenarios.maintenance.test_checking_a_store import TABLE, capture, committed, segment_files


def damaged(shop: Shop, *numbers: int) -> Path:
    """Rows in a segment of their own, whose file is then cut off."""
    before = set(segment_files(shop))
    capture(shop, *numbers, arrow=True)
    (path,) = set(segment_files(shop)) - before
    path.write_bytes(path.read_bytes()[:-30])
    return path


def segment_of(path: Path) -> int:
    return int(path.name.partition("-")[0])


def test_a_damaged_segment_is_named_and_holds_nobody_up(shop: Shop):
    """U34"""
    path = damaged(shop, 1, 2)
    capture(shop, 3, arrow=True)
    report = shop.again().flush(DATASET)
    assert report.rows == 1
    assert f"Segment {segment_of(path)}" in report.problems[0]
    assert committed(shop) == [3]
    assert shop.store.status().datasets[0].problem is not None
    (offer,) = shop.store.fsck().offers
    assert (offer.segment, offer.dataset, offer.rows, offer.range) == (segment_of(path), DATASET, 2, None)


def test_given_up_it_is_on_record_and_everything_goes_on(shop: Shop):
    """U33: audit and trace tell of it, and what is left of the file is kept."""
    shop.add_files()
    path = damaged(shop, 1, 2)
    rest = path.read_bytes()
    shop.commit(2)
    report = shop.again().fsck(repair=True, give_up=[segment_of(path)])
    assert report.sound, report.findings
    assert "2 acknowledged rows are lost" in report.repaired[0]
    assert not path.exists()
    kept = shop.store.path / "quarantine" / DATASET / "segments" / path.name
    assert kept.read_bytes() == rest
    again = shop.again()
    assert again.flush(DATASET).problems == ()
    status = again.status().datasets[0]
    assert (status.lost_rows, status.problem) == (2, None)
    again.export(SINK)
    (told,) = again.audit(SINK).findings
    assert (told.kind, told.wrong) == ("segment-given-up", False)
    assert str(segment_of(path)) in told.what
    assert any(str(segment_of(path)) in note for note in again.trace(DATASET, {"n": 1, "source": "a"}).notes)
    (noted,) = again.fsck(deep=True).findings
    assert noted.kind == "segment-given-up"


def test_without_somebodys_word_nothing_is_given_up(shop: Shop):
    """U33"""
    path = damaged(shop, 1)
    report = shop.again().fsck(repair=True)
    assert not report.sound
    assert report.repaired == ()
    assert path.exists()


@pytest.mark.parametrize("point", ["flush.reserved", "flush.appended"])
def test_its_block_gets_its_verdict_first(shop: Shop, point: str):
    """U33: rows that are committed are not given up, and of a block that cannot be sent nothing lands any more."""
    shop.commit(2)
    capture(shop, 10, arrow=True)
    capture(shop, 11, arrow=True)
    first = min(segment_files(shop), key=lambda path: path.stat().st_mtime_ns)
    with crash_at(point):
        shop.store.flush(DATASET)
    first.write_bytes(b"torn")
    shop.again()
    (offer,) = shop.store.fsck().offers
    assert len(offer.range) == 1
    assert offer.range.after in (2, 3)
    if point == "flush.appended":
        with pytest.raises(Permanent, match="are committed"):
            shop.store.fsck(repair=True, give_up=[offer.segment])
        assert committed(shop) == [1, 2, 10, 11]
    else:
        report = shop.store.fsck(repair=True, give_up=[offer.segment])
        assert f"Sequence numbers {offer.range} are not used" in report.repaired[0]
        shop.again().flush(DATASET)
        assert len(committed(shop)) == 3
        assert shop.store.fsck(deep=True).sound


def test_a_late_request_of_its_block_does_not_land(shop: Shop):
    """U33, U34: what was under way when the segment was given up."""
    shop.commit(2)
    capture(shop, 10, arrow=True)
    (path,) = segment_files(shop)
    shop.lake.on_append = lambda _: "hold"
    with crash_at("flush.appended"):
        shop.store.flush(DATASET)
    shop.lake.on_append = None
    path.write_bytes(b"torn")
    assert shop.again().fsck(repair=True, give_up=[segment_of(path)]).sound
    assert shop.lake.deliver_held() == [False]
    capture(shop, 11)
    shop.again().flush(DATASET)
    assert committed(shop) == [1, 2, 11]


@pytest.mark.parametrize("point", ["giving_up.moved", "barrier.sending", "barrier.sent", "flush.released"])
def test_a_crash_in_the_middle_is_finished_by_the_next_attempt(shop: Shop, point: str):
    """U33: the file is where it went, and the loss is recorded once."""
    shop.commit(2)
    path = damaged(shop, 10)
    good = path.read_bytes()
    with crash_at("flush.reserved"):
        shop.store.flush(DATASET)
    capture(shop, 11, arrow=True)
    shop.again()
    if point.startswith(("barrier", "flush")):
        _reserve_it(shop, path)
    with crash_at(point):
        shop.store.fsck(repair=True, give_up=[segment_of(path)])
    report = shop.again().fsck(repair=True, give_up=[segment_of(path)])
    assert report.sound, report.findings
    shop.again().flush(DATASET)
    assert committed(shop) == [1, 2, 11]
    assert (shop.store.path / "quarantine" / DATASET / "segments" / path.name).read_bytes() == good
    assert shop.store.status().datasets[0].lost_rows == 1


def _reserve_it(shop: Shop, path: Path) -> None:
    """Let a block have the damaged segment, as if the damage had come later."""
    size = path.stat().st_size
    shop.sql(f"UPDATE segments SET byte_count = {size} WHERE id = {segment_of(path)}")
    with crash_at("flush.reserved"):
        shop.store.flush(DATASET)
    shop.again()


def test_a_segment_that_nobody_has_is_not_given_up(shop: Shop):
    with pytest.raises(Permanent, match="There is no segment 7 that waits"):
        shop.store.fsck(repair=True, give_up=[7])


def test_one_that_was_restored_from_a_backup_is_committed_after_all(shop: Shop):
    capture(shop, 1, arrow=True)
    (path,) = segment_files(shop)
    whole = path.read_bytes()
    path.unlink()
    assert shop.again().flush(DATASET).rows == 0
    path.write_bytes(whole)
    report = shop.store.flush(DATASET)
    assert (report.rows, report.problems) == (1, ())
    assert queries.has_rows(shop.lake, TABLE, snapshot=shop.lake.load(TABLE).head, within=SequenceRange(0, 10))
