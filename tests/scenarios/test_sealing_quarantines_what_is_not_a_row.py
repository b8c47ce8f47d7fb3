"""One bad row, one bad line, one torn line: put away with its reason; its neighbours are stored once; nobody waits."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from spooling import EVENTS, ids_of, landing_of, numbered, rows_of

from floodmark import faults
from floodmark.errors import Permanent, Retryable, SchemaConflict, UnknownQuarantineEntry
from floodmark.spool import quarantine, sealing
from floodmark.store import Store
from floodmark.testing import crash_at, kill_store


@pytest.fixture(autouse=True)
def _events(store: Store) -> None:
    store.add_dataset(EVENTS, schema={"id": "long"})


def add_to(store: Store, content: bytes) -> None:
    """Bytes at the end of the one landing file, as a writer's disk might have them."""
    [file] = landing_of(store)
    with file.open("ab") as lines:
        lines.write(content)


# ── torn lines ───────────────────────────────────────────────────────────────────────────────────────────────────

WHOLE = b'{"version":1,"columns":["id"],"rows":[[2]]}\n'


@pytest.mark.parametrize("cut", [1, 10, len(WHOLE) - 1])
def test_a_live_writers_torn_line_waits_until_it_is_whole(store: Store, cut: int) -> None:
    """L4: it may still be completed; what stands before it does not wait for it."""
    store.capture(EVENTS, numbered(1))
    add_to(store, WHOLE[:cut])
    for _ in range(2):
        store.flush(EVENTS)
    assert ids_of(store) == [1]
    assert store.quarantine.entries() == []
    add_to(store, WHOLE[cut:])
    store.flush(EVENTS)
    assert ids_of(store) == [1, 2]


@pytest.mark.parametrize("cut", [1, 10, len(WHOLE) - 1])
def test_a_dead_writers_torn_line_is_not_a_row(store: Store, reopen: Callable[[], Store], cut: int) -> None:
    """L4: it was never acknowledged, even where only its line feed is missing; the next capture is unharmed."""
    store.capture(EVENTS, numbered(1))
    add_to(store, WHOLE[:cut])
    kill_store(store)
    other = reopen()
    other.capture(EVENTS, numbered(3))
    report = other.flush(EVENTS)
    assert (report.rows, report.quarantined) == (2, 1)
    assert ids_of(other) == [1, 3]
    [entry] = other.quarantine.entries(EVENTS)
    assert "never acknowledged" in entry.reason
    assert other.quarantine.show(entry.id)[1] == WHOLE[:cut]
    assert len(landing_of(other)) == 1, "the torn file is gone"
    assert other.flush(EVENTS).quarantined == 0


def test_a_file_of_nothing_but_a_torn_line_goes_as_well(store: Store, reopen: Callable[[], Store]) -> None:
    """L4, L5."""
    store.capture(EVENTS, numbered(1))
    [file] = landing_of(store)
    kill_store(store)
    file.write_bytes(WHOLE[:20])
    other = reopen()
    assert other.flush(EVENTS).quarantined == 1
    assert landing_of(other) == []


def test_an_empty_file_of_a_dead_writer_goes(store: Store, reopen: Callable[[], Store]) -> None:
    """L5: its writer died between the name and the first line."""
    store.capture(EVENTS, numbered(1))
    [file] = landing_of(store)
    kill_store(store)
    file.write_bytes(b"")
    other = reopen()
    assert other.seal(EVENTS).files_removed == 1


# ── lines that are no envelopes ──────────────────────────────────────────────────────────────────────────────────

MALFORMED = {
    "garbage": b"not json at all\n",
    "an empty line": b"\n",
    "bytes that are not UTF-8": b'{"version":1,"columns":["id"],"rows":[["\xff\xfe"]]}\n',
    "zeros, as after a power loss": b"\0" * 300 + b"\n",
    "another version": b'{"version":2,"columns":["id"],"rows":[[9]]}\n',
    "no version": b'{"columns":["id"],"rows":[[9]]}\n',
    "an array": b"[1,2,3]\n",
    "rows that are ragged": b'{"version":1,"columns":["id"],"rows":[[9,9]]}\n',
    "a column twice": b'{"version":1,"columns":["id","id"],"rows":[[9,9]]}\n',
    "a system column": b'{"version":1,"columns":["_ingest_seq"],"rows":[[9]]}\n',
    "names that differ in case only": b'{"version":1,"columns":["id","ID"],"rows":[[9,9]]}\n',
    "brackets without end": b"[" * 5000 + b"\n",
    "a carriage return inside": b'{"version":1,"columns":["id"],\r"rows":[["x"]]}\n',
    "longer than a segment takes": b'{"version":1,' + b" " * 5000 + b'"columns":["id"]}\n',
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_line_that_is_no_envelope_holds_nobody_up(store: Store, monkeypatch: pytest.MonkeyPatch, case: str) -> None:
    """It is kept byte for byte, with the reason; the lines around it are stored once, and later ones flow."""
    monkeypatch.setattr(sealing, "SEAL_BYTES_MAX", 1000)
    monkeypatch.setattr(quarantine, "INLINE_PAYLOAD_MAX", 2000)
    store.capture(EVENTS, numbered(1))
    add_to(store, MALFORMED[case])
    store.capture(EVENTS, numbered(2))
    assert store.flush(EVENTS).quarantined == 1
    assert ids_of(store) == [1, 2]
    [entry] = store.quarantine.entries(EVENTS)
    assert entry.reason
    shown = store.quarantine.show(entry.id[:6])[1]
    if b'"rows":[[' in MALFORMED[case] and json_columns(MALFORMED[case]) is not None:
        assert json.loads(shown)["columns"] == json_columns(MALFORMED[case])
    else:
        assert shown == MALFORMED[case]
    store.capture(EVENTS, numbered(3))
    store.flush(EVENTS)
    assert ids_of(store) == [1, 2, 3]
    assert len(store.quarantine.entries(EVENTS)) == 1
    with pytest.raises(Permanent):
        store.quarantine.replay(entry.id)


def json_columns(line: bytes) -> list[str] | None:
    try:
        content = json.loads(line)
    except ValueError:
        return None
    return content["columns"] if content.get("version") == 1 else None


def test_a_line_longer_than_a_segment_is_taken_whole(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bound on what is held at once is never a reason to stop."""
    monkeypatch.setattr(sealing, "SEAL_BYTES_MAX", 100)
    store.capture(EVENTS, numbered(*range(500)))
    store.capture(EVENTS, numbered(500))
    assert store.seal(EVENTS).rows == 501
    store.flush(EVENTS)
    assert ids_of(store) == list(range(501))


def test_a_payload_too_long_for_the_control_database_has_a_file(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """And is shown and replayed from there like any other."""
    monkeypatch.setattr(quarantine, "INLINE_PAYLOAD_MAX", 100)
    long = "x" * 500
    store.capture(EVENTS, [{"id": 1}, {"id": long}])
    store.flush(EVENTS)
    [entry] = store.quarantine.entries(EVENTS)
    assert entry.payload is None
    assert entry.payload_path is not None
    assert (store.path / entry.payload_path).exists()
    assert json.loads(store.quarantine.show(entry.id)[1])["rows"] == [[long]]
    with pytest.raises(SchemaConflict, match="still does not fit"):
        store.quarantine.replay(entry.id)


@pytest.mark.parametrize("met_at", ["capture", "sealing"])
def test_a_payload_that_cannot_be_kept_stops_everything_before_anything_moved(
    store: Store, monkeypatch: pytest.MonkeyPatch, met_at: str
) -> None:
    """No room for the bad one: then its good neighbours wait with it, and go once when there is."""
    monkeypatch.setattr(quarantine, "INLINE_PAYLOAD_MAX", 10)

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    def step() -> None:
        if met_at == "capture":
            store.capture(EVENTS, [{"id": 1}, {"id": "bad"}])
        else:
            store.seal(EVENTS)

    if met_at == "sealing":
        store.capture(EVENTS, numbered(1))
        add_to(store, b"garbage, and long\n")
    with monkeypatch.context() as patched:
        patched.setattr(quarantine, "durable_write", full)
        with pytest.raises(Retryable, match="No space left"):
            step()
    step()
    store.flush(EVENTS)
    assert ids_of(store) == [1]
    assert len(store.quarantine.entries(EVENTS)) == 1


# ── rows that do not fit, and their way back ─────────────────────────────────────────────────────────────────────


def test_one_bad_row_costs_its_neighbours_nothing(store: Store) -> None:
    """The neighbours are committed once however often flush is called, and later rows flow."""
    receipt = store.capture(EVENTS, [{"id": 1}, {"id": "bad"}, {"id": 3}])
    assert (receipt.rows, receipt.quarantined) == (2, 1)
    for _ in range(4):
        store.flush(EVENTS)
    store.capture(EVENTS, numbered(4))
    store.flush(EVENTS)
    assert ids_of(store) == [1, 3, 4]
    [entry] = store.quarantine.entries(EVENTS)
    assert "column 'id' is long" in entry.reason
    assert "bad" in (entry.payload or "")


def test_a_null_in_a_required_column_is_quarantined(store: Store) -> None:
    store.add_dataset("strict", schema={"id": "long not null", "name": "string"})
    assert store.capture("strict", [{"id": 1}, {"name": "nobody"}, {"id": None}, {"id": 4}]).quarantined == 2
    store.flush("strict")
    assert ids_of(store, "strict") == [1, 4]
    assert len(store.quarantine.entries("strict")) == 2


@pytest.fixture
def mended(store: Store) -> str:
    """The id of an entry that fits by now: its column was widened since."""
    store.add_dataset("small", schema={"id": "long", "n": "string"})
    store.capture("small", [{"id": 1, "n": "a"}, {"id": 2, "n": 7}])
    store.flush("small")
    [entry] = store.quarantine.entries("small")
    with pytest.raises(SchemaConflict, match="still does not fit"):
        store.quarantine.replay(entry.id)
    # The declaration is changed by hand here: no row could have done it.
    from sqlalchemy import update

    from floodmark.control.schema import datasets
    from floodmark.schema import Schema

    wide = Schema.declare({"id": "long", "n": "json"}).to_json()
    store.engine.database.transact(
        lambda c: c.execute(update(datasets).where(datasets.c.name == "small").values(columns=wide))
    )
    return entry.id


def replayed(store: Store) -> list[int]:
    state = store.engine.database.read
    from floodmark.control import segments

    return [state(lambda c: segments.backlog(c, "small"))[1]]


def test_a_replayed_entry_is_stored_once_however_often_it_is_called(store: Store, mended: str) -> None:
    assert store.quarantine.replay(mended) == 1
    assert store.quarantine.replay(mended) == 0
    assert replayed(store) == [1]
    assert store.quarantine.entries("small") == []
    assert not store.quarantine.discard(mended)
    assert len(list((store.path / "spool/small/segments").iterdir())) == 1


def test_two_replays_at_once_store_it_once(store: Store, reopen: Callable[[], Store], mended: str) -> None:
    """The entry leaves `held` in the transaction that registers its segment; the loser's work is rolled back."""
    other = reopen()
    second: list[int] = []
    faults.arm("segment.written", faults.nth_time(1, lambda: second.append(other.quarantine.replay(mended))))
    first = store.quarantine.replay(mended)
    assert (first, second) == (0, [1])
    assert replayed(store) == [1]
    assert len(list((store.path / "spool/small/segments").iterdir())) == 1


@pytest.mark.parametrize("point", [point for point in faults.POINTS if point.startswith("segment.")])
def test_a_replay_that_dies_is_done_or_can_be_done_again(
    store: Store, reopen: Callable[[], Store], mended: str, point: str
) -> None:
    with crash_at(point):
        store.quarantine.replay(mended)
    kill_store(store)
    other = reopen()
    done = other.quarantine.entries("small") == []
    assert done == (point == "segment.registered")
    assert other.quarantine.replay(mended) == (0 if done else 1)
    assert replayed(other) == [1]


def test_a_discarded_entry_stays_discarded(store: Store, mended: str) -> None:
    assert store.quarantine.discard(mended)
    assert not store.quarantine.discard(mended)
    assert store.quarantine.replay(mended) == 0
    assert replayed(store) == [0]
    with pytest.raises(UnknownQuarantineEntry):
        store.quarantine.replay("zz")


def test_rows_with_a_new_column_survive_bad_neighbours(store: Store) -> None:
    """A column that only a bad row had is not a column; a good row's is."""
    store.capture(EVENTS, [{"id": "bad", "ghost": 1}, {"id": 1, "real": "x"}])
    store.flush(EVENTS)
    assert rows_of(store) == [{"id": 1, "real": "x"}]
    assert len(store.quarantine.entries(EVENTS)) == 1


# ── what no writer of ours has made ──────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("levels", [120, 300, 900])
def test_a_line_that_nests_deeper_than_we_write_is_held_as_it_stands(store: Store, levels: int) -> None:
    store.capture(EVENTS, numbered(1))
    line = b'{"version":1,"columns":["id"],"rows":[[%b]]}\n' % (b"[" * levels + b"]" * levels)
    add_to(store, line)
    store.capture(EVENTS, numbered(3))
    report = store.flush(EVENTS)
    assert (report.rows, report.quarantined) == (2, 1)
    [entry] = store.quarantine.entries(EVENTS)
    assert store.quarantine.show(entry.id)[1] == line


@pytest.mark.parametrize(
    "name", [b"x.jsonl", b"\xff.jsonl", b"\n.jsonl", b"x" * 200 + b".jsonl", b"\xc2\xb2-a.parquet"]
)
@pytest.mark.parametrize("kind", ["directory", "pipe", "link to itself"])
def test_what_strangers_put_into_the_spool_holds_nothing_up(store: Store, name: bytes, kind: str) -> None:
    store.capture(EVENTS, numbered(1))
    store.flush(EVENTS)
    for folder in ("landing", "segments"):
        path = Path(os.fsdecode(os.fsencode(store.path / "spool" / EVENTS / folder) + b"/" + name))
        path.parent.mkdir(exist_ok=True)
        if kind == "directory":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        else:
            path.symlink_to(path)
    store.capture(EVENTS, numbered(2))
    store.flush(EVENTS)
    assert ids_of(store) == [1, 2]
    assert store.fsck().findings is not None


def test_a_name_that_is_no_dataset_never_becomes_a_path(store: Store) -> None:
    for name in ("../../elsewhere", "\ud800", ""):
        for work in (store.flush, store.seal):
            with pytest.raises(Permanent):
                work(name)
