"""`read --pending`: what is captured and not committed yet, beside what is; no cursor."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_input import lines

from read_only import read_only


def order(number: int, **more: object) -> dict[str, object]:
    return {"id": f"o{number}", "total": number, **more}


@pytest.fixture
def waiting(shop):
    """Two committed orders, then one of them again and two others that wait."""
    shop("capture", "orders", stdin=lines(order(1), order(2)))
    shop("flush")
    shop("capture", "orders", stdin=lines(order(2), order(3), order(4)))
    return shop


def test_pending_rows_follow_the_committed_ones_and_there_is_no_cursor(waiting):
    done = waiting("read", "orders", "--pending")
    assert (done.code, [row["id"] for row in done.rows]) == (0, ["o1", "o2", "o3", "o4"])
    assert "Committed: 2. Pending: 2." in done.err
    assert "cursor" not in done.err
    assert [row["id"] for row in waiting("read", "orders").rows] == ["o1", "o2"]


def test_a_look_at_pending_rows_changes_nothing_for_the_next_cursor(waiting):
    cursor = waiting("read", "orders").cursor
    waiting("read", "orders", "--pending")
    waiting("flush")
    assert [row["id"] for row in waiting("read", "orders", "--since", cursor).rows] == ["o3", "o4"]
    again = waiting("read", "orders", "--pending")
    assert "Committed: 4. Pending: 0." in again.err


@pytest.mark.parametrize("limit", [1, 2, 3, 4, 9])
def test_a_limit_counts_committed_and_pending_rows(waiting, limit: int):
    done = waiting("read", "orders", "--pending", "--limit", str(limit), "--columns", "total")
    assert done.rows == [{"total": number} for number in (1, 2, 3, 4)][:limit]


def test_other_formats_have_their_header_also_without_rows(shop):
    assert shop("read", "orders", "--pending", "--format", "csv").out == "total\n"
    shop("capture", "orders", stdin=lines(order(1)))
    assert shop("read", "orders", "--pending", "--format", "csv").out == "total,id\n1,o1\n"
    assert "o1" in shop("read", "orders", "--pending", "--format", "table").out


@pytest.mark.parametrize("option", ["--since", "--until", "--cursor-file"])
def test_a_cursor_is_refused(waiting, tmp_path: Path, option: str):
    cursor = waiting("read", "orders").cursor
    given = str(tmp_path / "orders.cursor") if option == "--cursor-file" else cursor
    done = waiting("read", "orders", "--pending", option, given)
    assert (done.code, done.out) == (2, "")
    assert "--pending takes no --since, --until or --cursor-file" in done.err
    assert not (tmp_path / "orders.cursor").exists()


def test_what_does_not_exist_is_named(shop):
    assert "no dataset 'nothing'" in shop("read", "nothing", "--pending").err
    assert "no column 'colour'" in shop("read", "orders", "--pending", "--columns", "colour").err


def test_pending_rows_of_a_store_that_can_only_be_read_are_shown(waiting, tmp_path: Path):
    with read_only(tmp_path / "store"):
        done = waiting("read", "orders", "--pending")
    assert (done.code, len(done.rows)) == (0, 4), done.err
