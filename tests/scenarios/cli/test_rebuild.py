"""`rebuild` as its users meet it."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def filled(shop):
    rows = b'{"id": 1, "total": 5}\n{"id": 2, "total": 6}\n{"id": 3, "total": 7}\n'
    assert shop("capture", "orders", "-", stdin=rows).code == 0
    assert shop("flush").code == 0
    return shop


def test_a_rebuild_says_where_the_table_is_now_and_reads_go_on(filled, tmp_path: Path):
    before = filled("read", "orders").rows
    done = filled("rebuild", "orders", "--warehouse", str(tmp_path / "else where"), "--bucket-width", "4096")
    assert done.code == 0
    assert "generation 2" in done.out
    assert f"{tmp_path}/else where" in done.out
    assert "3 rows copied" in done.err
    assert filled("read", "orders").rows == before


def test_a_rebuild_for_programs(filled):
    found = filled("rebuild", "orders", "--sort", "total", "--format-version", "3", "--json").json
    assert (found["rows"], found["epochs"], found["generation"]) == (3, 1, 2)
    assert found["layout"] == {"bucket_width": 1 << 20, "format_version": 3, "warehouse": None, "sort": ["total"]}


def test_what_cannot_be_is_refused_with_a_way_out(filled):
    assert filled("rebuild", "orders", "--format-version", "4").code == 2
    done = filled("rebuild", "orders", "--sort", "colour")
    assert done.code == 1
    assert "It has" in done.err
    assert "total" in done.err
    assert filled("rebuild", "nothing").code == 1
