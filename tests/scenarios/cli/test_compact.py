"""`compact` as its users meet it: what it prints, and the exit codes."""

from __future__ import annotations

import pytest

from floodmark.errors import Retryable


@pytest.fixture
def busy(shop):
    """A store with ten small commits."""
    for id in range(10):
        assert shop("capture", "orders", "-", stdin=b'{"id": %d, "total": 5}\n' % id).code == 0
        assert shop("flush").code == 0
    return shop


def test_it_says_what_it_joined_and_the_second_time_that_there_is_nothing_to_do(busy):
    assert "10 files would be compacted" in busy("compact", "orders", "--dry-run").out
    done = busy("compact")
    assert done.code == 0
    assert "orders: 10 files compacted to 1" in done.out
    again = busy("compact", "orders")
    assert again.code == 0
    assert "orders: nothing to do." in again.out
    assert "1 bucket not changed: still being written to" in again.out


def test_programs_get_every_bucket_with_its_reason(busy):
    (dataset,) = busy("compact", "--json").json["datasets"]
    assert [(item["files_before"], item["files_after"]) for item in dataset["compacted"]] == [(10, 1)]
    (dataset,) = busy("compact", "--json").json["datasets"]
    assert [item["files"] for item in dataset["skipped"]] == [1]


def test_what_fails_is_named_and_ends_with_one(busy, lake):
    def fail(_: object) -> None:
        raise Retryable("the disk is broken")

    lake.on_rewrite = fail
    done = busy("compact", "orders")
    assert done.code == 1
    assert "could not be compacted: the disk is broken" in done.err


def test_an_unknown_dataset_is_a_failure(busy):
    assert busy("compact", "nothing").code == 1
