"""The commands that need Spark, on the run's own session."""

from __future__ import annotations

from pathlib import Path

import orjson
import pytest

from floodmark.cli.entry import run
from read_only import read_only

pytestmark = pytest.mark.spark


@pytest.fixture
def call(spark, tmp_path: Path, capfd):
    def call(*arguments: str) -> tuple[int, str, str]:
        capfd.readouterr()
        code = run(["-s", str(tmp_path / "store"), *arguments])
        return code, *capfd.readouterr()

    return call


def test_the_demo_holds_what_it_claims(call):
    code, out, _ = call("demo", "--rows", "2000", "--json")
    report = orjson.loads(out)
    assert (code, report["holds"]) == (0, True)
    assert {claim["text"]: claim["found"] for claim in report["claims"]}["rows committed"] == 1958


def test_captured_rows_come_back_by_read_and_by_sql(call, tmp_path: Path):
    (tmp_path / "orders.jsonl").write_text(
        '{"id": "a", "at": "2026-01-01T00:00:00Z", "total": 3}\n{"id": "b", "total": 4}\n{"id": "a", '
        '"at": "2026-01-01T00:00:00Z", "total": 3}\n'
    )
    assert call("init")[0] == 0
    assert call("dataset", "add", "orders", "--identity", "id", "--event-time", "at")[0] == 0
    assert call("capture", "orders", str(tmp_path / "orders.jsonl"))[0] == 0
    assert call("flush")[0] == 0
    code, out, err = call("read", "orders", "--columns", "id,at,total")
    assert code == 0
    assert out == '{"id":"a","at":"2026-01-01T00:00:00+00:00","total":3}\n{"id":"b","at":null,"total":4}\n'
    assert "cursor: fm1." in err
    assert call("sql", "SELECT sum(total) AS total FROM orders")[1].split() == ["total", "7"]
    assert call("sql", "SELECT id, at FROM orders ORDER BY id", "--format", "csv", "--limit", "1")[1] == (
        "id,at\na,2026-01-01T00:00:00+00:00\n"
    )
    assert call("capture", "orders", str(tmp_path / "orders.jsonl"))[0] == 0
    (tmp_path / "more.jsonl").write_text('{"id": "c", "total": 5}\n')
    assert call("capture", "orders", str(tmp_path / "more.jsonl"))[0] == 0
    assert call("sql", "SELECT sum(total) AS total FROM orders")[1].split() == ["total", "7"]
    assert call("sql", "SELECT sum(total) AS total FROM orders", "--pending")[1].split() == ["total", "12"]
    code, out, err = call("sql", "SELECT nope FROM orders")
    assert (code, out) == (1, "")
    assert err.startswith("Error: The query failed: ")
    assert "Traceback" not in err


def test_a_store_that_can_only_be_read_answers_queries(call, tmp_path: Path):
    (tmp_path / "rows.jsonl").write_text('{"id": 1}\n{"id": 2}\n')
    capture = ("capture", "orders", str(tmp_path / "rows.jsonl"))
    for arguments in (("init",), ("dataset", "add", "orders"), capture, ("flush",)):
        assert call(*arguments)[0] == 0
    with read_only(tmp_path / "store"):
        assert call("sql", "SELECT sum(id) AS total FROM orders")[1].split() == ["total", "3"]
        assert call("read", "orders")[1] == '{"id":1}\n{"id":2}\n'
        assert call("status")[0] == 0
