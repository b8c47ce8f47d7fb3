"""Whatever stands in the spool: what was acknowledged there is delivered, and the rest is told."""

from __future__ import annotations

import os
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from noise import HALVES, JSON, altered, dumped, mutated
from trying import Stand, fresh, ids_of, inputs, refusal, rows_of

from floodmark.rows.envelope import encode_envelope
from floodmark.store import Store

GOOD = b'{"version":1,"columns":["id","text"],"rows":[[%d,"good"]]}\n'
ENVELOPE = {"version": 1, "columns": ["id", "text", "more"], "rows": [[7, "x", None], [8, "y", [1, {"a": 2}]]]}


def landing_of(store: Store, dataset: str) -> Path:
    made = store.path / "spool" / dataset / "landing"
    made.mkdir(parents=True, exist_ok=True)
    return made


def left_by_a_dead_writer(store: Store, dataset: str, content: bytes) -> None:
    (landing_of(store, dataset) / f"{uuid.uuid4().hex}.jsonl").write_bytes(content)


def flushed(store: Store, dataset: str, kind: str) -> Any:
    """A flush that must not fail: one bad line would hold up every row behind it, for ever."""
    report, error = refusal(kind, lambda: store.flush(dataset))
    assert error is None, error
    return report


LINES = st.one_of(
    mutated(GOOD % 7),
    mutated(dumped(ENVELOPE)),
    altered(ENVELOPE).map(dumped),
    altered(ENVELOPE, replacements=JSON | HALVES).map(dumped),
    st.sampled_from([97, 99, 120, 250, 300, 900, 1100, 5000]).map(
        lambda levels: b'{"version":1,"columns":["id"],"rows":[[%b]]}' % (b"[" * levels + b"]" * levels)
    ),
    st.sampled_from([90, 120, 250, 300, 900]).map(
        lambda levels: b'{"version":1,"columns":["id"],"rows":[[1],[%b]]}' % (b'{"a":' * levels + b"1" + b"}" * levels)
    ),
)


@given(lines=st.lists(LINES, min_size=1, max_size=4))
@inputs(10)
def test_a_landing_line_is_rows_or_held_and_never_in_the_way(stands: Stand, lines: list[bytes]) -> None:
    stand = stands.again()
    dataset = fresh("lines")
    stand.add_dataset(dataset)
    bad = [line.replace(b"\n", b" ") for line in lines]
    content = GOOD % 1
    for number, line in enumerate(bad, 2):
        content += line + b"\n" + GOOD % number
    left_by_a_dead_writer(stand, dataset, content)
    flushed(stand, dataset, "landing lines")
    stored = rows_of(stand, dataset)
    assert [row for row in stored if row.get("text") == "good" and row.get("id") in range(1, len(bad) + 2)]
    good = [row["id"] for row in stored if row.get("text") == "good"]
    assert set(range(1, len(bad) + 2)) <= set(good)
    held = stand.quarantine.entries(dataset)
    assert all(entry.reason for entry in held)


@given(data=st.data())
@inputs(10)
def test_the_lines_of_a_damaged_landing_file_that_are_whole_are_kept(stands: Stand, data: st.DataObject) -> None:
    stand = stands.again()
    dataset = fresh("files")
    stand.add_dataset(dataset, schema={"id": "long", "text": "string"})
    lines = [GOOD % number for number in range(1, 6)]
    content = data.draw(mutated(b"".join(lines)))
    left_by_a_dead_writer(stand, dataset, content)
    flushed(stand, dataset, "landing files")
    whole = [number for number, line in enumerate(lines, 1) if line in _lines(content)]
    stored = [row["id"] for row in rows_of(stand, dataset)]
    assert [number for number in whole if number not in stored] == []
    assert not list(landing_of(stand, dataset).glob("*.jsonl"))


def _lines(content: bytes) -> list[bytes]:
    return [line + b"\n" for line in content.split(b"\n")[:-1]]


# ── strangers in the spool ────────────────────────────────────────────────────────────────────────────────────────────

NAMES = st.one_of(
    st.sampled_from(
        [
            b".jsonl",
            b"x.jsonl",
            b"a b.jsonl",
            b"\xff\xfe.jsonl",
            b"..jsonl",
            b"\n.jsonl",
            b"x" * 240 + b".jsonl",
            b"core",
            b".DS_Store",
            b"1.parquet",
            b"1-a.parquet",
            b"\xc2\xb2-a.parquet",
            b"9999999999999999999999-a.parquet",
            b"\xff-a.parquet",
            b"-1-a.parquet",
            b"007-x.parquet",
            b"0-\xff.parquet",
        ]
    ),
    st.tuples(st.binary(min_size=1, max_size=12), st.sampled_from([b".jsonl", b".parquet", b"-1.parquet", b""])).map(
        b"".join
    ),
).filter(lambda name: name not in {b".", b".."} and b"/" not in name and b"\0" not in name)


def _put(path: bytes, kind: str, content: bytes) -> None:
    if kind == "file":
        Path(os.fsdecode(path)).write_bytes(content)
    elif kind == "directory":
        Path(os.fsdecode(path)).mkdir()
    elif kind == "pipe":
        os.mkfifo(path)
    elif kind == "loop":
        Path(os.fsdecode(path)).symlink_to(os.fsdecode(path))
    else:
        Path(os.fsdecode(path)).symlink_to("/nowhere/at/all")


@given(
    names=st.lists(NAMES, min_size=1, max_size=3, unique=True),
    kind=st.sampled_from(["file", "file", "directory", "link", "loop", "pipe"]),
    where=st.sampled_from(["landing", "segments"]),
    content=st.sampled_from([b"", b"noise", GOOD % 5, b"PAR1", b"\0" * 100]),
)
@inputs(7)
def test_files_of_strangers_in_the_spool_hold_nothing_up(
    stands: Stand, names: list[bytes], kind: str, where: str, content: bytes
) -> None:
    stand = stands.again()
    dataset = fresh("strangers")
    stand.add_dataset(dataset)
    assert stand.capture(dataset, [{"id": 1, "text": "good"}]).rows == 1
    folder = stand.path / "spool" / dataset / where
    folder.mkdir(parents=True, exist_ok=True)
    for name in names:
        with suppress(FileExistsError):
            _put(os.fsencode(folder) + b"/" + name, kind, content)
    flushed(stand, dataset, "strangers in the spool")
    assert stand.capture(dataset, [{"id": 2, "text": "good"}]).rows == 1
    flushed(stand, dataset, "strangers in the spool")
    assert {1, 2} <= set(ids_of(stand, dataset))
    report, _ = refusal("strangers in the spool", stand.fsck)
    assert report is not None


# ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(data=st.data())
@inputs(10)
def test_a_damaged_segment_is_told_and_nothing_else_waits_for_it(stands: Stand, data: st.DataObject) -> None:
    stand = stands.again()
    dataset, other = fresh("segments"), fresh("others")
    for name in (dataset, other):
        stand.add_dataset(name)
        stand.capture(name, [{"id": number, "text": f"row {number}"} for number in range(20)])
        stand.seal(name)
    (path,) = (stand.path / "spool" / dataset / "segments").glob("*.parquet")
    whole = path.read_bytes()
    elsewhere = next((stand.path / "spool" / other / "segments").glob("*.parquet")).read_bytes()
    content = data.draw(
        st.one_of(mutated(whole), st.just(elsewhere), st.just(whole[: len(whole) // 2] + elsewhere), st.none())
    )
    if content is None:
        path.unlink()
    else:
        path.write_bytes(content)
    report, error = refusal("segments", lambda: stand.flush(dataset))
    if error is None and report is not None and not report.problems:
        assert [row["text"] for row in rows_of(stand, dataset)] == [f"row {number}" for number in range(20)]
    else:
        assert rows_of(stand, dataset) == []
    flushed(stand, other, "segments")
    assert len(rows_of(stand, other)) == 20
    assert refusal("segments", stand.fsck)[0] is not None
    path.write_bytes(whole)  # as from a backup
    flushed(stand, dataset, "segments")
    assert [row["text"] for row in rows_of(stand, dataset)] == [f"row {number}" for number in range(20)]


def test_the_envelopes_here_are_those_of_the_product() -> None:
    assert encode_envelope(["id", "text"], [[1], ["good"]], rows=1) == GOOD % 1
