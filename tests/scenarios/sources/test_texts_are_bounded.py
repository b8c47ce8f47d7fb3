"""Too many columns, and lines that are too long: quarantined with their place, and nothing else waits for them."""

from __future__ import annotations

import gzip
import io
import time
import tracemalloc
import uuid
from pathlib import Path

import orjson
import pytest
from histories import jsonl, rows, stored

from engines import set_spool
from floodmark.cli.capture import CaptureReport, capture_stream
from floodmark.errors import SchemaConflict
from floodmark.rows.textlines import Overlong, parse_lines, whole_lines
from floodmark.spool.capture import Texts
from floodmark.store import Store

WIDE = {"id": 1000} | {f"k{n}": n for n in range(10_000)}
LONG = 5_000


@pytest.fixture
def small(messages: Store) -> Store:
    """The store of messages, with limits that a test reaches fast."""
    set_spool(messages, line_bytes_max=LONG, columns_max=12, new_columns_max=4)
    return messages


def reasons(store: Store) -> list[str]:
    return [entry.reason for entry in store.quarantine.entries("messages")]


# ── columns ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_line_of_ten_thousand_keys_goes_to_quarantine_and_the_others_are_stored(
    messages: Store, tmp_path: Path
) -> None:
    done = messages.backfill("messages", jsonl(tmp_path / "a.jsonl", [*rows(0, 19), WIDE]))
    assert (done.new, done.quarantined) == (19, 1)
    content = b"\n".join(orjson.dumps(row) for row in [*rows(20, 39), WIDE])
    report = CaptureReport("messages")
    capture_stream(messages, io.BytesIO(content), 1000, report)
    assert (report.rows, report.quarantined) == (19, 1)
    messages.flush("messages")
    assert stored(messages) == [*range(19), *range(20, 39)]
    assert len(messages.datasets()[0].schema) == 3
    assert len(reasons(messages)) == 2
    assert all("new columns in one call; new_columns_max is 200" in text for text in reasons(messages))


def test_a_call_of_python_is_refused_with_the_setting_to_change(messages: Store) -> None:
    with pytest.raises(SchemaConflict, match="10,000 new columns in one call; new_columns_max is 200") as told:
        messages.capture("messages", [{"id": 1}, WIDE])
    assert "[spool]" in str(told.value.hint)
    assert messages.flush("messages").rows == 0


def test_many_rows_of_one_column_each_take_no_more_memory_than_they_are(messages: Store) -> None:
    content = b"\n".join(b'{"c%d":1}' % n for n in range(4_000))
    tracemalloc.start()
    parsed = parse_lines(content, before=0, place=str, line_bytes_max=1 << 20)
    receipt = messages.capture_texts("messages", Texts(parsed.rows, str, parsed.problems))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (receipt.rows, receipt.quarantined) == (200, 3_800)
    assert peak < 64 << 20


def test_a_dataset_never_has_more_columns_than_it_may(small: Store) -> None:
    for first in range(0, 40, 4):
        parsed = [{"id": first, **{f"c{n}": 1 for n in range(first, first + 4)}}]
        small.capture_texts("messages", Texts(parsed, str))
    assert len(small.datasets()[0].schema) == 10
    assert "would have 14 columns; columns_max is 12" in reasons(small)[0]
    assert len(reasons(small)) == 8


def test_the_landing_log_brings_no_more_columns_than_a_capture_may(small: Store) -> None:
    directory = small.path / "spool" / "messages" / "landing"
    directory.mkdir(parents=True)
    names = [f"c{n}" for n in range(9)]
    line = orjson.dumps({"version": 1, "columns": names, "rows": [list(range(9))]}) + b"\n"
    good = orjson.dumps({"version": 1, "columns": ["id"], "rows": [[7]]}) + b"\n"
    (directory / f"{uuid.uuid4().hex}.jsonl").write_bytes(line + good)
    assert (small.seal("messages").rows, len(reasons(small))) == (1, 1)
    assert "9 new columns in one call; new_columns_max is 4" in reasons(small)[0]


def test_a_value_that_nests_too_deep_goes_to_quarantine(messages: Store, tmp_path: Path) -> None:
    deep = '{"id":5,"j":' + "[" * 200 + "]" * 200 + "}"
    done = messages.backfill("messages", jsonl(tmp_path / "deep.jsonl", rows(0, 3), deep))
    assert (done.new, done.quarantined) == (3, 1)
    assert "it is nested deeper than 100 levels" in reasons(messages)[0]


# ── lines ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("how", ["backfill", "gzipped", "workers", "stream"])
def test_a_line_that_is_too_long_is_quarantined_with_its_number_and_its_beginning(
    small: Store, tmp_path: Path, how: str, request: pytest.FixtureRequest
) -> None:
    if how == "workers":
        request.getfixturevalue("spread")
    long = '{"id":77,"text":"' + "x" * LONG + '"}'
    name = "a.jsonl.gz" if how == "gzipped" else "a.jsonl"
    path = jsonl(tmp_path / name, rows(0, 3), long, *(orjson.dumps(row).decode() for row in rows(3, 6)))
    if how == "stream":
        content = path.read_bytes()
        set_spool(small, columns_max=2000, new_columns_max=200)
        capture_stream(small, io.BytesIO(content), 2, CaptureReport("messages"))
        small.flush("messages")
    else:
        small.backfill("messages", path)
    assert stored(small) == [0, 1, 2, 3, 4, 5]
    (entry,) = small.quarantine.entries("messages")
    place = "standard input, line 4" if how == "stream" else f"{path}:4"
    assert entry.reason.startswith(f"{place}: the line has {len(long):,} bytes; line_bytes_max")
    assert small.quarantine.show(entry.id)[1] == long[:2000].encode()


def test_a_long_line_costs_its_bytes_and_not_their_square() -> None:
    """A line of 64 MB, as a pipe brings it. Put together anew with every piece, it takes a hundred times as long."""

    def seconds(*lengths: int) -> float:
        content = io.BytesIO(b"".join(b"x" * (length - 1) + b"\n" for length in lengths))
        begun = time.process_time()
        found = [len(item) for item in whole_lines(lambda: content.read1(1 << 15), line_bytes_max=1 << 30) if item]
        assert sum(found) == sum(lengths)
        return time.process_time() - begun

    short = seconds(*[1 << 20] * 64)
    assert seconds(1 << 26) < 10 * short + 0.5


def test_a_line_without_an_end_is_not_held_in_memory() -> None:
    blocks = iter([b"x" * 100_000] * 500 + [b""])
    tracemalloc.start()
    (found,) = [item for item in whole_lines(lambda: next(blocks), line_bytes_max=1 << 20) if item]
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(found, Overlong)
    assert (found.size, found.taken, len(found.head)) == (50_000_000, 50_000_000, 2000)
    assert peak < 8 << 20


def test_a_file_with_a_byte_order_mark_is_read_from_its_first_row(messages: Store, tmp_path: Path) -> None:
    plain = tmp_path / "a.jsonl"
    plain.write_bytes(b"\xef\xbb\xbf" + b"".join(orjson.dumps(row) + b"\n" for row in rows(0, 3)))
    packed = tmp_path / "b.jsonl.gz"
    packed.write_bytes(gzip.compress(b"\xef\xbb\xbf" + b"".join(orjson.dumps(row) + b"\n" for row in rows(3, 6))))
    for path in (plain, packed):
        assert messages.backfill("messages", path).quarantined == 0
    assert stored(messages) == [0, 1, 2, 3, 4, 5]
