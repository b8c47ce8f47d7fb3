"""The persisted index changes how long opening takes, and nothing else."""

import os
import shutil

import pytest

from floodmark.eventlog import EventLog
from floodmark.eventlog import view as persisted
from floodmark.eventlog.directory import EventsDirectory


def answers(log):
    return (
        [(e.event_id, e.version, e.data) for e in log.canonical_events()],
        log.heads,
        dict(log.streams()),
        log.topology_generation,
        [f.transactions for f in log.forks()],
        log.status().integrity_failures,
        log.status().dangling,
    )


def age(monkeypatch):
    """As if the index were written long after the files: their change times cannot be set back."""
    monkeypatch.setattr(persisted, "SETTLE_NANOSECONDS", -(10**12))


def reads_of(monkeypatch):
    reads = []
    original = EventsDirectory.read

    def spy(self, transaction_id):
        reads.append(transaction_id)
        return original(self, transaction_id)

    monkeypatch.setattr(EventsDirectory, "read", spy)
    return reads


def test_a_sound_index_spares_reading_every_file(forked, monkeypatch):
    a, b = forked
    age(monkeypatch)
    a.append("more")
    a.reopen()
    a.log.close()
    reads = reads_of(monkeypatch)
    log = EventLog.open(a.path, sync=False)
    assert reads == []
    b.append("from B, later")
    log.close()
    a.reopen()
    reads.clear()
    a.pull(b)
    assert len(reads) == 1, "a refresh reads only what is new"


def test_an_index_younger_than_the_files_granularity_is_not_trusted(replica, monkeypatch):
    a = replica()
    made = a.append("one").transaction_id
    a.log.close()
    reads = reads_of(monkeypatch)
    a.reopen()
    assert reads == [made]


def tear(path):
    os.truncate(path, path.stat().st_size // 2)


def flip(path):
    raw = bytearray(path.read_bytes())
    raw[len(raw) // 2] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    "damage",
    [tear, flip, os.unlink, lambda p: p.write_bytes(b""), lambda p: p.write_bytes(b"floodmark event log index 9\n")],
)
def test_an_index_that_is_torn_stale_or_copied_changes_no_answer(forked, tmp_path, monkeypatch, damage):
    a, b = forked
    age(monkeypatch)
    a.append("more")
    a.reopen()
    truth = answers(a.log)
    a.log.close()
    path = a.path / "index" / "transactions.index"
    stale = path.read_bytes()
    damage(path)
    assert answers(a.reopen()) == truth
    a.append("newer")
    b.append("theirs")
    a.pull(b)
    truth = answers(a.log)
    a.log.close()
    path.write_bytes(stale)
    assert answers(a.reopen()) == truth, "stale"
    a.log.close()
    shutil.copytree(a.path, tmp_path / "copy")
    with EventLog.open(tmp_path / "copy", sync=False) as copy:
        assert answers(copy) == truth, "copied with its tree"
    shutil.copy(path, b.path / "index" / "transactions.index")
    assert answers(b.reopen())[0] != truth[0], "another replica's index"
    a.reopen()
    b.pull(a)
    assert answers(b.log) == truth


def test_a_file_changed_or_removed_since_the_index_was_written_is_noticed(replica, monkeypatch):
    a = replica()
    age(monkeypatch)
    made = [a.append(f"e{n}").transaction_id for n in range(4)]
    a.reopen()
    a.log.close()
    a.file(made[3]).unlink()
    raw = a.file(made[1]).read_bytes()
    a.file(made[1]).write_bytes(raw.replace(b"e1", b"X1"))
    os.utime(a.file(made[1]), ns=(1, 1))
    log = a.reopen()
    assert sorted(a.texts()) == ["e0", "e2"]
    assert [f.file for f in log.status().integrity_failures] == [f"events/{made[1]}.jsonl"]
