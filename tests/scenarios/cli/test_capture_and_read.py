"""Rows in by `capture`, out by `read`: nothing lost on the way, nothing twice, bad lines told and left out."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cli_input import lines

from floodmark.errors import SpoolFull
from floodmark.sequence import Cursor
from floodmark.store import Store, open_store
from floodmark.testing import MemoryLake


def held(shop) -> list[tuple[str, str]]:
    """What is in quarantine: the reasons and the payloads."""
    with open_store(shop("status", "--json").json["store"], lake=MemoryLake()) as store:
        return [(entry.reason, store.quarantine.show(entry.id)[1].decode()) for entry in store.quarantine.entries()]


def order(number: int, **more: object) -> dict[str, object]:
    return {"id": f"o{number}", "total": number, **more}


def test_what_is_captured_from_standard_input_is_read_back_line_by_line(shop):
    sent = [order(n, note="déjà ✓", meta={"k": [1, None, {"x": 2.5}]}) for n in range(3)]
    done = shop("capture", "orders", "-", stdin=lines(*sent))
    assert (done.code, done.out) == (0, "Stored 3 rows of orders. Read to line 3.\n")
    assert shop("flush").code == 0
    assert shop("read", "orders", "--columns", "id,total,note,meta").rows == sent


def test_a_malformed_line_is_told_with_its_number_and_the_others_are_stored(shop):
    content = lines(order(1)) + b"not json\n\n[1, 2]\n" + lines(order(2)) + b'{"id": "torn'
    done = shop("capture", "orders", stdin=content)
    assert done.code == 1
    assert "standard input, line 2: not JSON" in done.err
    assert "standard input, line 4: not a JSON object: an array" in done.err
    assert "standard input, line 6: not JSON" in done.err
    assert done.out == "Stored 2 rows of orders. Quarantined: 3. Read to line 6.\n"
    assert done.err.splitlines()[3:] == ["`floodmark quarantine list orders` shows what was quarantined."]
    assert "Quarantined" not in done.err, "the count is part of the report, once"
    assert sorted(payload for _, payload in held(shop)) == ["[1, 2]", "not json", '{"id": "torn']


def test_a_row_with_an_impossible_column_goes_to_quarantine_alone(shop):
    rows = [order(n) for n in range(1, 8)] + [order(8, _ingest_seq=1)] + [order(n) for n in range(9, 12)]
    done = shop("capture", "orders", "--json", stdin=lines(*rows))
    assert done.code == 1
    assert (done.json["rows"], done.json["quarantined"], done.json["lines"]) == (10, 1, 11)
    reason, way = done.err.splitlines()
    assert "line 8: The column name '_ingest_seq'" in reason
    assert way == "`floodmark quarantine list orders` shows what was quarantined."
    assert shop("status", "--json").json["datasets"][0]["quarantined"] == 1


def test_a_row_that_does_not_fit_goes_to_quarantine_also_where_it_is_alone_in_its_batch(shop):
    """A stream is read once, so nothing of it is refused."""
    rows = [order(1, total="x"), order(2, total="y"), order(3), order(4)]
    for size in ("1", "2", "3"):
        done = shop("capture", "orders", "--batch-rows", size, "--json", stdin=lines(*rows))
        assert done.code == 1
        assert (done.json["rows"], done.json["quarantined"]) == (2, 2)
        assert done.json["problems"][0].startswith("standard input, line 1: column 'total' is long")
    assert len(held(shop)) == 6, "a line of a stream is another one each time"


def test_a_thousand_bad_lines_are_counted_and_only_the_first_printed(shop):
    done = shop("capture", "orders", stdin=b"x\n" * 1000)
    assert done.code == 1
    assert done.err.count("not JSON") == 20
    assert "Quarantined: 1,000." in done.out


def test_when_the_spool_is_full_the_command_says_how_far_it_got(shop, monkeypatch):
    real, calls = Store.capture_texts, []

    def fills_up(self, dataset, texts):
        calls.append(texts)
        if len(calls) == 3:
            raise SpoolFull("The spool is full.", hint="Flush.")
        return real(self, dataset, texts)

    monkeypatch.setattr(Store, "capture_texts", fills_up)
    done = shop("capture", "orders", "--batch-rows", "2", stdin=lines(*[order(n) for n in range(10)]))
    assert done.code == 1
    assert done.err == "Stopped: Stored 4 rows of orders. Read to line 4.\nError: The spool is full.\nTry:   Flush.\n"


@pytest.mark.parametrize("kind", ["csv", "parquet", "arrow"])
def test_typed_files_are_taken_by_their_ending(shop, tmp_path: Path, kind: str):
    table = pa.table({"id": ["007", "008"], "total": pa.array([7, None], pa.int64())})
    path = tmp_path / f"rows.{kind}"
    if kind == "csv":
        path.write_text("id,total\n007,7\n008,\n")
        shop("dataset", "add", "orders", "--identity", "id", "--column", "total:long")
        shop("capture", "orders", stdin=lines({"id": "first"}))  # id is a text from now on: 007 keeps its zeros
    elif kind == "parquet":
        pq.write_table(table, path)
    else:
        with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
            writer.write_table(table)
    done = shop("capture", "orders", str(path))
    assert (done.code, done.out) == (0, "Stored 2 rows of orders.\n")
    shop("flush")
    assert [row for row in shop("read", "orders", "--columns", "id,total").rows if row["id"] != "first"] == [
        {"id": "007", "total": 7},
        {"id": "008", "total": None},
    ]


def test_a_file_of_another_kind_is_an_error_and_not_a_traceback(shop, tmp_path: Path):
    path = tmp_path / "rows.parquet"
    path.write_text("not parquet")
    done = shop("capture", "orders", str(path))
    assert done.code == 1
    assert "cannot be read as parquet" in done.err
    assert "Traceback" not in done.err


@pytest.mark.parametrize("views", [False, True])
def test_an_arrow_file_whose_offsets_point_outside_of_it_is_refused(shop, tmp_path: Path, views: bool):
    """Arrow follows offsets without a look: such a file ended the process (SIGBUS)."""
    path = tmp_path / "rows.arrow"
    kind = pa.string_view() if views else pa.string()
    batch = pa.record_batch({"id": pa.array(["a" * 50, "b", "c"], kind)})
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, batch.schema) as writer:
        writer.write_batch(batch)
    if not views:
        content = path.read_bytes()
        path.write_bytes(
            content.replace(struct.pack("<iiii", 0, 50, 51, 52), struct.pack("<iiii", 0, 50, 2**31 - 10, 52))
        )
    done = shop("capture", "orders", str(path))
    assert done.code == 1
    assert "cannot be read as arrow" in done.err


def test_an_arrow_file_with_two_columns_of_one_name_is_refused(shop, tmp_path: Path):
    """One of them would be lost without a word."""
    path = tmp_path / "rows.arrow"
    table = pa.Table.from_arrays([pa.array(["a"]), pa.array(["b"])], names=["id", "id"])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    done = shop("capture", "orders", str(path))
    assert done.code == 1
    assert "several columns are called 'id'" in done.err


def test_a_file_that_is_not_there_and_a_dataset_that_is_not_there_are_told(shop, tmp_path: Path):
    assert shop("capture", "orders", str(tmp_path / "none.jsonl")).code == 2
    unknown = shop("capture", "nope", stdin=lines(order(1)))
    assert unknown.code == 1
    assert "There is no dataset 'nope'" in unknown.err


# ── read ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def ids(outcome) -> list[str]:
    return [row["id"] for row in outcome.rows]


def test_reading_since_the_printed_cursor_gives_exactly_what_came_later(shop):
    shop("capture", "orders", stdin=lines(order(1), order(2)))
    shop("flush")
    first = shop("read", "orders")
    assert ids(first) == ["o1", "o2"]
    shop("capture", "orders", stdin=lines(order(2), order(3)))
    shop("flush")
    later = shop("read", "orders", "--since", first.cursor)
    assert ids(later) == ["o3"]
    assert ids(shop("read", "orders", "--since", later.cursor)) == []
    assert ids(shop("read", "orders", "--until", first.cursor)) == ["o1", "o2"]


def test_a_cursor_file_moves_on_by_itself_and_only_after_the_rows_were_written(shop, tmp_path: Path, monkeypatch):
    file = tmp_path / "orders.cursor"
    shop("capture", "orders", stdin=lines(order(1)))
    shop("flush")
    assert ids(shop("read", "orders", "--cursor-file", str(file))) == ["o1"]
    stored = file.read_text()
    shop("capture", "orders", stdin=lines(order(2)))
    shop("flush")
    with monkeypatch.context() as patch:
        patch.setattr("floodmark.cli.rowtext.JsonLines.finish", lambda _: (_ for _ in ()).throw(OSError("disk full")))
        failed = shop("read", "orders", "--cursor-file", str(file))
    assert failed.code == 1
    assert file.read_text() == stored
    assert ids(shop("read", "orders", "--cursor-file", str(file))) == ["o2"]
    assert ids(shop("read", "orders", "--cursor-file", str(file))) == []


def test_a_limited_read_resumes_where_it_stopped(shop):
    shop("capture", "orders", stdin=lines(*[order(n) for n in range(7)]))
    shop("flush")
    seen: list[str] = []
    options: list[str] = []
    for _ in range(4):
        part = shop("read", "orders", "--limit", "2", *options)
        seen += ids(part)
        options = ["--since", part.cursor]
    assert seen == [f"o{n}" for n in range(7)]


def test_limit_and_until_together_end_at_the_nearer(shop):
    shop("capture", "orders", stdin=lines(*[order(n) for n in range(4)]))
    shop("flush")
    middle = shop("read", "orders", "--limit", "2").cursor
    assert ids(shop("read", "orders", "--until", middle, "--limit", "3")) == ["o0", "o1"]
    assert ids(shop("read", "orders", "--until", middle, "--limit", "1")) == ["o0"]
    assert ids(shop("read", "orders", "--since", middle, "--until", middle)) == []


def test_an_empty_dataset_hands_out_a_cursor_from_which_everything_comes(shop):
    empty = shop("read", "orders")
    assert empty.rows == []
    shop("capture", "orders", stdin=lines(order(1)))
    shop("flush")
    assert ids(shop("read", "orders", "--since", empty.cursor)) == ["o1"]


def test_cursors_that_are_not_for_this_reading_are_refused(shop):
    shop("capture", "orders", stdin=lines(order(1)))
    shop("flush")
    cursor = Cursor.parse(shop("read", "orders").cursor)
    foreign = Cursor("another", cursor.dataset, cursor.partition, cursor.seq)
    future = Cursor(cursor.store_id, cursor.dataset, cursor.partition, cursor.seq + 1)
    for bad in ("nonsense", str(foreign), str(future)):
        for option in ("--since", "--until"):
            done = shop("read", "orders", option, bad)
            assert (done.code, done.out) == (1, ""), (option, bad)
            assert done.err.startswith("Error: ")


def test_csv_and_table_show_the_same_rows(shop):
    shop("capture", "orders", stdin=lines(order(1, tags=["a", "b"]), {"id": 'say "hi"', "total": None}))
    shop("flush")
    columns = ("--columns", "id,total,tags")
    assert shop("read", "orders", *columns, "--format", "csv").out == (
        'id,total,tags\no1,1,"[""a"",""b""]"\n"say ""hi""",,\n'
    )
    table = shop("read", "orders", *columns, "--format", "table").out.splitlines()
    assert [line.split() for line in table] == [["id", "total", "tags"], ["o1", "1", '["a","b"]'], ["say", '"hi"']]


def test_numbers_that_json_has_no_form_for_come_out_as_the_text_that_goes_in(shop):
    shop("dataset", "add", "readings", "--column", "value:double")
    sent = [{"value": "NaN"}, {"value": "-Infinity"}, {"value": 1.5}]
    shop("capture", "readings", stdin=lines(*sent))
    shop("flush")
    assert shop("read", "readings").rows == sent


def test_an_unknown_column_is_told(shop):
    done = shop("read", "orders", "--columns", "id,nope")
    assert done.code == 1
    assert "no column" in done.err


@pytest.mark.parametrize("instant", ["before the table is looked at", "after the table was looked at"])
def test_a_commit_in_the_middle_of_a_read_is_read_whole_now_or_whole_next_time(shop, lake, monkeypatch, instant: str):
    """I9: horizon first, then snapshot; so the cursor never stands behind a row that was not in the snapshot."""
    shop("capture", "orders", stdin=lines(order(1)))
    shop("flush")
    shop("capture", "orders", stdin=lines(order(2), order(3)))
    real, path, interrupted = type(lake).load, shop("status", "--json").json["store"], []

    def load(self, table):
        seen = real(self, table)
        if not interrupted:
            interrupted.append(table)
            with open_store(path, lake=lake) as another:
                another.flush("orders")
        return real(self, table) if instant.startswith("before") else seen

    with monkeypatch.context() as patch:
        patch.setattr(type(lake), "load", load)
        first = shop("read", "orders")
    assert interrupted
    later = shop("read", "orders", "--since", first.cursor)
    assert ids(first) + ids(later) == ["o1", "o2", "o3"]


def test_a_cursor_file_that_is_no_text_is_refused_and_left_alone(shop, tmp_path):
    file = tmp_path / "cursor"
    file.write_bytes(b"\xff\xfe")
    done = shop("read", "orders", "--cursor-file", str(file))
    assert (done.code, done.out) == (1, "")
    assert "The cursor file" in done.err
    assert file.read_bytes() == b"\xff\xfe"


def test_a_csv_file_whose_header_is_not_utf_8_is_refused(shop, tmp_path):
    file = tmp_path / "rows.csv"
    file.write_bytes(b"id,\xaf\n1,2\n")
    done = shop("capture", "orders", str(file))
    assert done.code == 1
    assert "not UTF-8" in done.err


def test_an_argument_that_is_not_utf_8_is_told_as_such(shop):
    for command in (["read", "\udcff"], ["capture", "\udcff"], ["flush", "a\udcff"], ["sink", "remove", "\udcff"]):
        done = shop(*command)
        assert done.code == 1
        assert "unpaired surrogate" in done.err


# ── files, read as a backfill reads them ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def days(shop):
    """A dataset with an event time, and rows whose types are declared."""
    shop("dataset", "add", "days", "--column", "n:long", "--column", "price:decimal(12,2)", "--event-time", "at")
    return shop


CSV = (
    "n,at,price\n1,2026-01-31T12:00:00,1.10\ntwo,2026-01-31T12:00:00,2\n3,2026-01-31T13:00:00Z,3.5\n"
    "4,,4,too many\n5,,5\n"
)


@pytest.mark.parametrize("how", ["file", "gzipped", "with a mark", "stream"])
def test_csv_rows_that_do_not_fit_go_to_quarantine_with_their_row_and_the_others_are_stored(days, tmp_path: Path, how):
    path = tmp_path / ("rows.csv.gz" if how == "gzipped" else "rows.csv")
    content = ("\ufeff" if how == "with a mark" else "") + CSV
    path.write_bytes(gzip.compress(content.encode()) if how == "gzipped" else content.encode())
    if how == "stream":
        done = days("capture", "days", "-", "--format", "csv", stdin=content.encode())
    else:
        done = days("capture", "days", str(path))
    assert (done.code, done.out) == (1, "Stored 3 rows of days. Quarantined: 2.\n")
    place = "standard input" if how == "stream" else str(path)
    assert f"{place} row 2: column 'n' is long: text 'two' is not an integer" in done.err
    assert f"{place} row 4: it has 4 columns instead of 3" in done.err
    days("flush")
    assert days("read", "days", "--columns", "n,at,price").rows == [
        {"n": 1, "at": "2026-01-31T12:00:00+00:00", "price": "1.10"},
        {"n": 3, "at": "2026-01-31T13:00:00+00:00", "price": "3.50"},
        {"n": 5, "at": None, "price": "5.00"},
    ]


def test_what_capture_stores_of_a_csv_file_is_what_a_backfill_stores_of_it(days, tmp_path: Path):
    days("dataset", "add", "other", "--column", "n:long", "--column", "price:decimal(12,2)", "--event-time", "at")
    path = tmp_path / "rows.csv"
    path.write_text(CSV)
    days("capture", "days", str(path))
    days("flush")
    days("backfill", "other", "--from", str(path))
    columns = ("--columns", "n,at,price")
    assert days("read", "days", *columns).rows == days("read", "other", *columns).rows
    reasons = {entry[0] for entry in held(days)}
    assert len(reasons) == 2, "the same words for the same rows"


@pytest.mark.parametrize("name", ["rows.jsonl", "rows.jsonl.gz", "rows.ndjson"])
def test_json_lines_of_a_file_are_taken_gzipped_and_with_a_byte_order_mark(shop, tmp_path: Path, name: str):
    path = tmp_path / name
    content = b"\xef\xbb\xbf" + lines(order(1), order(2)) + b"nonsense\n" + lines(order(3))
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    done = shop("capture", "orders", str(path))
    assert (done.code, done.out) == (1, "Stored 3 rows of orders. Quarantined: 1. Read to line 4.\n")
    assert f"{path}:3: not JSON" in done.err
    again = shop("capture", "orders", str(path), "--batch-rows", "1")
    assert again.code == 1
    assert len(held(shop)) == 1, "a line of a file is quarantined once"
    shop("flush")
    assert ids(shop("read", "orders")) == ["o1", "o2", "o3"]


def test_a_stream_with_a_byte_order_mark_is_read_from_its_first_row(shop):
    assert shop("capture", "orders", stdin=b"\xef\xbb\xbf" + lines(order(1))).out.startswith("Stored 1 row of orders.")


def test_a_large_number_of_a_line_is_read_back_as_it_was(shop):
    shop("dataset", "add", "big", "--column", "j:json", "--column", "d:decimal(38,0)")
    line = b'{"j":{"n":18446744073709551617},"d":18446744073709551617}\n{"new":18446744073709551617}\n'
    done = shop("capture", "big", stdin=line)
    assert done.code == 1
    assert (
        "standard input, line 2: column 'new' is long: number 18446744073709551617 does not fit in 64 bits" in done.err
    )
    shop("flush")
    assert (
        shop("read", "big", "--columns", "j,d").out == '{"j":{"n":18446744073709551617},"d":"18446744073709551617"}\n'
    )


def test_declaring_an_identity_says_what_it_is_compared_with(shop):
    told = shop("dataset", "add", "visits", "--identity", "id", "--event-time", "at").out
    assert "Two rows are duplicates if id and at (the event time) are the same." in told
    told = shop("dataset", "add", "people", "--identity", "id", "--event-time", "at", "--identity-scope", "all").out
    assert "Two rows are duplicates if id is the same, with any at." in told
    people = shop("status", "--json").json["datasets"][1]
    assert (people["identity_scope"], people["identity_null"]) == ("all", "content")
