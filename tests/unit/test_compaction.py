"""Which files a compaction joins: those that gain from it, a bounded amount at a time, and never for ever."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.compaction import Bucket, DataFile, Limits, choose
from floodmark.sequence import SequenceRange

WIDTH = 1000
LIMITS = Limits(file_bytes=100, files_min=4, bytes_max=10_000)


def bucket(place: int, *sizes: int, deletes: int = 0) -> Bucket:
    """A bucket of files that follow one another, ten numbers each."""
    start = place * WIDTH
    files = tuple(
        DataFile(start + 10 * index + 1, start + 10 * index + 10, 10, size) for index, size in enumerate(sizes)
    )
    return Bucket(SequenceRange(start, start + WIDTH), files, deletes)


def chosen(*buckets: Bucket, limits: Limits = LIMITS) -> list[tuple[int, int]]:
    """Place of each bucket that is rewritten, and how many of its files."""
    found = [item for item in choose(buckets, limits) if item.rewrite]
    return [(item.bucket.range.after // WIDTH, len(item.files)) for item in found]


def reasons(*buckets: Bucket, limits: Limits = LIMITS) -> dict[int, str]:
    return {item.bucket.range.after // WIDTH: item.reason for item in choose(buckets, limits) if not item.rewrite}


def test_a_full_bucket_is_joined_as_soon_as_that_halves_its_files():
    assert chosen(bucket(0, 5, 5), bucket(1, 50, 20, 10), bucket(9)) == [(1, 3), (0, 2)]


def test_large_files_stay_as_they_are():
    assert chosen(bucket(0, 100, 90, 80), bucket(9)) == []
    assert "large enough" in reasons(bucket(0, 100, 90, 80), bucket(9))[0]


def test_small_files_behind_large_ones_are_joined_and_the_large_ones_are_not_touched():
    assert chosen(bucket(0, 100, 100, 5, 5, 5), bucket(9)) == [(0, 3)]


def test_the_newest_bucket_waits_for_enough_small_files():
    assert "still being written to" in reasons(bucket(0, 5, 5, 5))[0]
    assert chosen(bucket(0, 5, 5, 5, 5)) == [(0, 4)]


def test_in_the_newest_bucket_a_file_is_joined_only_with_as_much_behind_it():
    """Else every run would write the whole bucket again for a few new rows."""
    assert chosen(bucket(0, 70, 5, 5, 5, 5)) == [(0, 4)]
    assert chosen(bucket(0, 70, 20, 20, 20, 10)) == [(0, 5)]
    assert chosen(bucket(0, 70, 30, 5, 5, 5)) == []


def test_deleted_rows_are_reason_enough():
    assert chosen(bucket(0, 100, deletes=1), bucket(1, 3)) == [(0, 1)]
    assert chosen(bucket(0, 3, deletes=2)) == [(0, 1)]


def test_one_run_does_a_bounded_amount_and_says_what_it_left():
    limits = Limits(file_bytes=100, files_min=4, bytes_max=60)
    buckets = [bucket(place, 10, 10, 10) for place in range(5)] + [bucket(9)]
    assert chosen(*buckets, limits=limits) == [(0, 3), (1, 3)]
    assert {
        reason.split(":")[0] for place, reason in reasons(*buckets, limits=limits).items() if place in (2, 3, 4)
    } == {"left for the next run"}


def test_a_single_bucket_is_done_whatever_its_size():
    assert chosen(bucket(0, 40, 40), bucket(9), limits=Limits(100, 4, bytes_max=1)) == [(0, 2)]


def test_nothing_is_chosen_of_nothing():
    assert choose([], LIMITS) == []


@given(
    sizes=st.lists(st.lists(st.integers(1, 150), max_size=12), min_size=1, max_size=5),
    bytes_max=st.integers(1, 500),
    growth=st.floats(0.8, 1.15),
)
def test_runs_come_to_an_end_whatever_the_files_and_however_well_they_compress(sizes, bytes_max, growth):
    """U6: what a rewrite leaves does not qualify again by itself."""
    limits = Limits(file_bytes=100, files_min=4, bytes_max=bytes_max)
    buckets = [bucket(place, *item) for place, item in enumerate(sizes)]
    for _ in range(40):
        work = [item for item in choose(buckets, limits) if item.rewrite]
        if not work:
            return
        for item in work:
            buckets[buckets.index(item.bucket)] = _rewritten(item.bucket, item.files, limits, growth)
    pytest.fail("it never ends")


def _rewritten(old: Bucket, files: tuple[DataFile, ...], limits: Limits, growth: float) -> Bucket:
    """As a writer would: full files, and one with the rest."""
    size = max(1, round(sum(file.bytes for file in files) * growth))
    count = ceil(size / limits.file_bytes)
    sizes = [limits.file_bytes] * (count - 1) + [size - limits.file_bytes * (count - 1)]
    first, last = files[0].first, files[-1].last
    step = max(1, (last - first + 1) // count)
    new = [DataFile(first + place * step, first + place * step + step - 1, 1, one) for place, one in enumerate(sizes)]
    rest = [file for file in old.files if file not in files]
    return Bucket(old.range, tuple(sorted([*rest, *new], key=lambda file: file.first)))
