"""A number of a JSON text is stored as it is written, or the row is quarantined with the reason; by every door."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path

import orjson
import pytest

from floodmark.errors import SchemaConflict
from floodmark.hub.captures import Captures
from floodmark.rows.textlines import parse_lines
from floodmark.spool.capture import Texts
from floodmark.store import Store

TYPES = {
    "id": "long",
    "big": "decimal(38,0)",
    "price": "decimal(12,2)",
    "j": "json",
    "d": "double",
    "n": "long",
    "s": "string",
}
TAKEN = [
    b'{"id":1,"big":18446744073709551617,"price":1.1,"d":0.1,"u":0.5}',
    b'{"id":2,"big":12345678901234567890123456789012345678,"price":12.30,"d":100000000000000000000}',
    b'{"id":3,"j":{"a":18446744073709551617,"b":0.1234567890123456789,"c":1e-400},"d":0.1234567890123456789}',
    b'{"id":4,"big":1e20,"price":-0.07,"j":18446744073709551617,"d":12345678}',
]
STORED = [
    {"id": 1, "big": Decimal(18446744073709551617), "price": Decimal("1.10"), "d": 0.1, "u": 0.5},
    {"id": 2, "big": Decimal(12345678901234567890123456789012345678), "price": Decimal("12.30"), "d": 1e20},
    {"id": 3, "j": '{"a":18446744073709551617,"b":0.1234567890123456789,"c":1e-400}', "d": 0.12345678901234568},
    {"id": 4, "big": Decimal(10**20), "price": Decimal("-0.07"), "j": "18446744073709551617", "d": 12345678.0},
]
REFUSED = {
    b'{"id":11,"n":18446744073709551617}': "does not fit in 64 bits",
    b'{"id":12,"d":9007199254740993}': "cannot be stored exactly as a double",
    b'{"id":13,"d":9007199254740993.0}': "cannot be stored exactly as a double",
    b'{"id":14,"d":18446744073709551617}': "cannot be stored exactly as a double",
    b'{"id":15,"s":18446744073709551617}': "is not text",
    b'{"id":16,"price":1.105}': "does not fit without rounding",
    b'{"id":17,"big":0.12345678901234567890123}': "does not fit without rounding",
    b'{"id":18,"v":18446744073709551617}': "does not fit in 64 bits",
}
Door = Callable[[Store, list[bytes]], None]


def by_capture(store: Store, lines: list[bytes]) -> None:
    parsed = parse_lines(b"\n".join(lines), before=0, place="line {}".format, line_bytes_max=1 << 20)
    store.capture_texts("numbers", Texts(parsed.rows, lambda row: f"line {row + 1}", parsed.problems))


def by_http(store: Store, lines: list[bytes]) -> None:
    hub = Captures(store.engine, store.spool, content_bytes_max=1 << 20)
    half = len(lines) // 2
    array = b"[" + b",".join(lines[:half]) + b"]"
    hub.accept("numbers", array, encoding="identity", media="application/json", key=None)
    hub.accept("numbers", b"\n".join(lines[half:]), encoding="identity", media="application/x-ndjson", key="k")


def by_backfill(store: Store, lines: list[bytes]) -> None:
    path = store.path.parent / "numbers.jsonl"
    path.write_bytes(b"\n".join(lines) + b"\n")
    store.backfill("numbers", path)


def by_the_landing_log(store: Store, lines: list[bytes]) -> None:
    """Lines that another program wrote there."""
    directory = store.path / "spool" / "numbers" / "landing"
    directory.mkdir(parents=True, exist_ok=True)
    rows = []
    for line in lines:
        columns = list(orjson.loads(line))
        values = line[1:-1]
        for name in columns:
            values = values.replace(b'"%s":' % name.encode(), b"", 1)
        rows.append(b'{"version":1,"columns":%s,"rows":[[%s]]}\n' % (orjson.dumps(columns), values))
    (directory / f"{uuid.uuid4().hex}.jsonl").write_bytes(b"".join(rows))


def stored(store: Store) -> list[dict[str, object]]:
    store.flush("numbers")
    rows = [row for batch in store.read_since("numbers") for row in batch.table.to_pylist()]
    return sorted(
        ({name: value for name, value in row.items() if value is not None} for row in rows), key=lambda row: row["id"]
    )


@pytest.mark.parametrize("door", [by_capture, by_http, by_backfill, by_the_landing_log])
def test_numbers_are_stored_as_they_are_written_or_quarantined(store: Store, door: Door) -> None:
    store.add_dataset("numbers", schema=TYPES)
    door(store, [*TAKEN, *REFUSED])
    assert stored(store) == STORED
    held = [entry.reason for entry in store.quarantine.entries("numbers")]
    assert len(held) == len(REFUSED)
    for reason in REFUSED.values():
        assert any(reason in entry for entry in held), (reason, held)


def test_numbers_that_workers_read_are_those_that_are_written(store: Store, spread: None) -> None:
    store.add_dataset("numbers", schema=TYPES)
    by_backfill(store, [*TAKEN, *REFUSED])
    assert stored(store) == STORED
    assert store.status().datasets[0].quarantined == len(REFUSED)


def test_a_replayed_number_is_the_one_that_was_written(store: Store) -> None:
    store.add_dataset("numbers", schema={"id": "long"})
    by_capture(store, [b'{"id":1,"late":18446744073709551617}'])
    (entry,) = store.quarantine.entries("numbers")
    with pytest.raises(SchemaConflict):
        store.quarantine.replay(entry.id)
    store.add_dataset("numbers", schema={"id": "long", "late": "decimal(38,0)"})
    assert store.quarantine.replay(entry.id) == 1
    assert stored(store) == [{"id": 1, "late": Decimal(18446744073709551617)}]


@pytest.mark.parametrize("line", [*TAKEN, *REFUSED])
def test_python_takes_and_refuses_what_a_text_takes_and_refuses(store: Store, line: bytes, tmp_path: Path) -> None:
    """The same number as a Python value: an int, or a float that is written like it, or a Decimal for a decimal."""
    store.add_dataset("numbers", schema=TYPES)
    parsed = parse_lines(line, before=0, place=str, line_bytes_max=1 << 20)
    if line in REFUSED:
        with pytest.raises(SchemaConflict, match=REFUSED[line]):
            store.capture("numbers", parsed.rows)
    else:
        store.capture("numbers", parsed.rows)
        assert stored(store) == [STORED[TAKEN.index(line)]]
