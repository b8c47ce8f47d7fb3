"""What `floodmark torture` concludes: from journals, from what it read, and from what happened."""

from __future__ import annotations

import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from floodmark import config
from floodmark.errors import Permanent
from floodmark.testing.oracle import proof
from floodmark.torture import processes, reading
from floodmark.torture.daemons import DaemonReports
from floodmark.torture.journal import Entries, Journal
from floodmark.torture.members import ASTRAY_MAX, Kill, Records
from floodmark.torture.scratch import settings_text
from floodmark.torture.verdict import Exercised, Verdict, compared, compared_by_ledger, oracle_of, unexercised


def row(id: str, site: str = "north", text: str = "some") -> dict:
    return {"id": id, "site": site, "text": text, "proof": proof(id, site, text)}


def entries(*ids: str, acknowledged: bool = True) -> Entries:
    return Entries({1: [row(id) for id in ids]}, {1} if acknowledged else set())


# ── journals ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_book_says_what_was_acknowledged_and_what_nobody_knows(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal")
    journal.attempt(1, [row("a"), row("b")], again=False)
    journal.acknowledge(1)
    journal.attempt(2, [row("c")], again=False)
    journal.close()
    read = Entries.read(tmp_path / "journal")
    assert read.rows_acknowledged == 2
    assert list(read.unanswered) == [2]

    again = Journal(tmp_path / "journal")
    again.attempt(2, again.entries.unanswered[2], again=True)
    again.acknowledge(2)
    again.close()
    read = Entries.read(tmp_path / "journal")
    assert (read.rows_acknowledged, read.rows_again, read.unanswered) == (3, 1, {})


def test_a_line_that_a_death_cut_off_is_no_line_and_harms_no_other(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    journal.attempt(1, [row("a")], again=False)
    journal.acknowledge(1)
    journal.close()
    whole = path.read_bytes()
    for length in range(len(whole)):
        path.write_bytes(whole[:length])
        later = Journal(path)
        later.attempt(7, [row("z")], again=False)
        later.acknowledge(7)
        later.close()
        read = Entries.read(path)
        assert 7 in read.acknowledged
        assert read.acknowledged <= read.attempts.keys()


# ── the verdict ──────────────────────────────────────────────────────────────────────────────────────────────────────


def kinds(found: list[dict], lake: list[dict], *journals: Entries) -> list[str]:
    return [item.kind for item in compared(oracle_of(journals), "there", found, lake, how="").findings]


def test_the_oracle_finds_what_is_missing_doubled_altered_invented_and_out_of_order() -> None:
    a, b, c = row("a"), row("b"), row("c")
    known = entries("a", "b", "c")
    lake = [a, b, c]
    assert kinds([a, b, c], lake, known) == []
    assert kinds([a, c], lake, known) == ["missing"]
    assert kinds([a, b, b, c], lake, known) == ["doubled"]
    assert kinds([a, {**b, "text": "other"}, c], lake, known) == ["altered"]
    assert kinds([a, {**b, "site": "south"}, c], lake, known) == ["altered"]
    assert kinds([a, b, c, row("x")], lake, known) == ["invented"]
    assert kinds([b, a, c], lake, known) == ["out of order"]


def test_a_row_that_nobody_was_told_of_is_everywhere_or_nowhere() -> None:
    known, unknown = entries("a"), entries("b", acknowledged=False)
    a, b = row("a"), row("b")
    assert kinds([a], [a], known, unknown) == []
    assert kinds([a, b], [a, b], known, unknown) == []
    assert kinds([a], [a, b], known, unknown) == ["missing"]


def test_a_ledger_is_held_against_ends_and_counts() -> None:
    lake = [{**row("a"), "n": 1}, {**row("b", "south"), "n": 2}, {**row("c"), "n": 5}]

    def wrong(**channels: tuple[int, int]) -> list[str]:
        told = {f"site={site}": found for site, found in channels.items()}
        return [item.kind for item in compared_by_ledger("hub", told, lake, seq="n", partition="site").findings]

    assert wrong(north=(5, 2), south=(2, 1)) == []
    assert wrong(north=(9, 2), south=(9, 1)) == [], "it may end behind the last row: a stretch without rows"
    assert wrong(north=(5, 2)) == ["missing"]
    assert wrong(north=(4, 2), south=(2, 1)) == ["missing"]
    assert wrong(north=(5, 3), south=(2, 1)) == ["doubled"]


NOTHING = Exercised((), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0)


def test_a_run_in_which_nothing_happened_proves_nothing() -> None:
    there = compared(oracle_of([entries("a")]), "files", [row("a")], [row("a")], how="")
    empty = compared(oracle_of([]), "files", [], [], how="")
    kill = Kill(1.0, "daemon", "alone", "a commit")
    done = replace(NOTHING, kills=(kill,), rows_acknowledged=1, rows_in_trouble=1)
    assert unexercised(done, kinds=["daemon"], destinations=[there]) == ()
    assert unexercised(done, kinds=["daemon", "writer"], destinations=[there]) == ("no writer was killed",)
    lacking = unexercised(NOTHING, kinds=["daemon"], destinations=[empty])
    assert lacking[:2] == ("no daemon was killed", "no row was acknowledged")
    assert lacking[2:] == ("nothing was delivered while processes were killed", "nothing arrived at files")
    verdict = Verdict(1, 1.0, True, "", (there,), done)
    assert verdict.proven
    assert not replace(verdict, unexercised=lacking).proven
    assert replace(verdict, unexercised=lacking).sound
    assert not replace(verdict, drained=False).sound


# ── reading ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_objects_of_every_format_are_read_in_the_order_of_their_ranges(tmp_path: Path) -> None:
    folder = tmp_path / "there" / "d" / "site=north"
    folder.mkdir(parents=True)
    (tmp_path / "there" / "_floodmark_claim.json").write_text("{}")
    (folder / ".90-91.jsonl.0f").write_text("half an obj")
    pq.write_table(pa.table({"id": ["nine"]}), folder / "9-10.parquet")
    (folder / "10-11.jsonl").write_text('{"id":"ten"}\n')
    for number, packed in ((11, "gzip"), (12, "zstd")):
        suffix = {"gzip": "gz", "zstd": "zst"}[packed]
        with pa.CompressedOutputStream(str(folder / f"{number}-{number + 1}.jsonl.{suffix}"), packed) as out:
            out.write(f'{{"id":"{number}"}}\n'.encode())
    objects = reading.Objects({"url": (tmp_path / "there").as_uri()})
    assert [found["id"] for found in objects.rows("d")] == ["nine", "ten", "11", "12"]
    assert objects.rows("other") == []
    objects.remove()
    assert not (tmp_path / "there").exists()


def test_what_the_daemon_tells_is_counted_over_all_its_lives(tmp_path: Path) -> None:
    told = DaemonReports(tmp_path / "said")
    told.new_life()
    said = [b'{"event":"started"}', b'{"event":"flushed","rows":3,"duplicates":1}']
    said += [b'{"event":"problem","subject":"sink s","problem":"no"}', b'{"ev']
    with told.path.open("ab") as file:
        file.write(b"\n".join(said))
    told.listen()
    assert told.problems == {"sink s": "no"}
    assert told.life_worked is not None
    told.new_life()  # it died in the middle of a line
    assert told.problems == {}
    assert told.life_worked is None
    with told.path.open("ab") as file:
        file.write(b'{"event":"started"}\n{"event":"exported","rows":2,"chunks":2}\n')
    told.listen()
    assert told.events["started"] == 2
    assert (told.rows["flushed"], told.rows["exported"], told.chunks, told.duplicates) == (3, 2, 2, 1)


# ── the scratch store's settings, and processes ──────────────────────────────────────────────────────────────────────


def test_the_settings_of_a_scratch_store_are_read_back_as_they_were(tmp_path: Path) -> None:
    catalog = config.CatalogSettings(
        "sql", 'sqlite:////a "b"/\\c', "/ware/häuser", {"s3.endpoint": "http://x", "p": "env:P"}
    )
    spark = config.SparkSettings("local[3]", "2g", {"spark.a.b": "1"})
    settings = config.Settings("some-id", spark=spark, catalogs={"prod": catalog})
    path = tmp_path / "floodmark.toml"
    path.write_text(settings_text(settings), encoding="utf-8")
    tomllib.loads(path.read_text(encoding="utf-8"))
    read = config.load(path)
    assert (read.store_id, read.spark, read.catalogs) == ("some-id", spark, {"prod": catalog})


def test_a_process_below_ours_is_found_by_name_and_killed_by_its_start(tmp_path: Path) -> None:
    script = (
        "import subprocess, sys, time; subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()']).wait()"
    )
    parent = processes.start([sys.executable, "-c", script], output=tmp_path / "log", errors=tmp_path / "log")
    try:
        kin: list[processes.Kin] = []
        while not kin:
            kin = processes.kin_of(parent.pid)
        replace(kin[0], started="another").kill()
        assert processes.kin_of(parent.pid) == kin, "the number of another process was taken for it"
        kin[0].kill()
        assert parent.wait(30) == 0
    finally:
        processes.kill_group(parent)


def test_a_process_that_keeps_ending_by_itself_ends_the_run(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("Error: no Java\n")
    records = Records()
    for _ in range(ASTRAY_MAX - 1):
        records.ended_by_itself(1, log)
    records.killed(Kill(0.0, "daemon", "alone", "idle"))
    for _ in range(ASTRAY_MAX - 1):
        records.ended_by_itself(1, log)
    with pytest.raises(Permanent, match="no Java"):
        records.ended_by_itself(1, log)
