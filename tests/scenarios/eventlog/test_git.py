"""The classic scenarios on real git repositories, with real merges."""

import shutil
import subprocess

import pytest
from replicas import SteppedClock, merged

from floodmark.errors import EnvironmentProblem, ReplicaIdentityConflict
from floodmark.eventlog import Event, EventLog, Runner, SqliteTarget, git, projection
from floodmark.eventlog.replica import fingerprint

CLOCK = SteppedClock()


class Clone:
    """A working tree with a log in it; every method goes through git."""

    def __init__(self, path, *, source=None, options=()):
        self.path = path
        if source is None:
            path.mkdir()
            self.git("init", "-q", "-b", "main")
        else:
            subprocess.run(["git", "clone", "-q", *options, f"file://{source.path}", str(path)], check=True)
        self.git("config", "user.email", "test@example.org")
        self.git("config", "user.name", "Test")
        self.git("config", "commit.gpgsign", "false")
        self.log = None
        self.reopen()

    def git(self, *arguments, check=True):
        done = subprocess.run(["git", *arguments], cwd=self.path, capture_output=True, text=True, check=False)
        assert not check or done.returncode == 0, done.stdout + done.stderr
        return done.stdout.strip()

    def reopen(self):
        if self.log is not None:
            self.log.close()
        self.log = EventLog.open(self.path, sync=False, clock=CLOCK)
        return self.log

    def append(self, text, stream="s"):
        made = self.log.append([Event(stream, {"text": text})])
        self.commit(text)
        return made.transaction_id

    def commit(self, message="more"):
        self.git("add", "-A")
        self.git("commit", "-q", "--allow-empty", "-m", message)

    def merge(self, other):
        self.git("fetch", "-q", str(other.path), "main")
        self.git("merge", "-q", "--no-edit", "FETCH_HEAD")
        self.log.refresh()

    def texts(self, stream="s"):
        return [event.data["text"] for event in self.log.read_stream(stream)]

    def order(self):
        return [event.event_id for event in self.log.canonical_events()]


@pytest.fixture
def clone(tmp_path):
    made = []

    def make(name, **options):
        made.append(Clone(tmp_path / name, **options))
        return made[-1]

    yield make
    for one in made:
        one.log.close()


@pytest.fixture
def pair(clone):
    a = clone("A")
    a.append("opened")
    return a, clone("B", source=a)


def test_only_the_events_and_the_rules_for_git_are_committed(pair):
    a, _ = pair
    tracked = a.git("ls-files").splitlines()
    assert tracked == [".gitattributes", ".gitignore", *[f"events/{t}.jsonl" for t in a.log.history.order]]
    assert a.git("status", "--porcelain") == ""


def test_a_fork_on_one_stream_converges_on_both_clones(pair):
    a, b = pair
    a.append("from-A")
    b.append("from-B")
    a.merge(b)
    b.merge(a)
    assert a.order() == b.order()
    assert a.texts() == b.texts() == ["opened", "from-A", "from-B"]
    assert a.log.forks()[0].transactions == b.log.forks()[0].transactions
    a.log.reconcile(merged)
    a.commit("reconcile")
    b.merge(a)
    assert a.order() == b.order()
    assert a.log.heads == b.log.heads
    assert len(a.log.heads) == 1
    assert a.log.status().is_clean
    assert b.log.status().is_clean
    assert b.texts()[-1] == "from-A+from-B"


def test_a_fork_over_several_streams_converges_as_one_unit(pair):
    a, b = pair
    for one in (a, b):
        name = one.path.name
        one.log.append([Event("x", {"text": name}), Event("y", {"text": name})])
        one.append(f"more-{name}", stream="x")
    a.merge(b)
    (fork,) = a.log.forks()
    assert fork.streams == ("x", "y")
    assert len(a.log.reconcile(merged).resolved) == 1
    a.commit()
    b.merge(a)
    assert a.order() == b.order()
    assert b.log.status().is_clean
    assert (b.texts("x")[-1], b.texts("y")[-1]) == ("A+more-A+B+more-B", "A+B")


def test_a_merge_of_merges_terminates(pair):
    a, b = pair
    a.append("from-A")
    b.append("from-B")
    a.merge(b)
    b.merge(a)
    for one in (a, b):
        one.log.reconcile(merged)
        one.commit("reconcile")
    a.merge(b)
    b.merge(a)
    assert len(a.log.forks()) == 1
    for _ in range(3):
        for one, other in ((a, b), (b, a)):
            one.log.reconcile(merged)
            one.commit("reconcile")
            other.merge(one)
    assert a.order() == b.order()
    assert len(a.log.heads) == 1
    assert a.log.status().is_clean
    assert b.log.status().is_clean
    assert a.log.reconcile(merged).resolved == ()
    assert a.log.topology_generation == 3


def test_a_copied_tree_gets_an_identity_of_its_own(pair, clone, tmp_path):
    a, _ = pair
    a.append("before")
    a.log.close()
    shutil.copytree(a.path, tmp_path / "copy", symlinks=True)
    copy = Clone.__new__(Clone)
    copy.path, copy.log = tmp_path / "copy", None
    copy.reopen()
    a.reopen()
    assert copy.log.replica_id != a.log.replica_id
    a.append("from the original")
    copy.append("from the copy")
    a.merge(copy)
    assert a.log.status().identity_conflicts == ()
    assert len(a.log.forks()) == 1
    copy.log.close()


def test_two_writers_under_one_identity_are_a_loud_conflict_and_nothing_else_stops(pair, tmp_path):
    a, b = pair
    a.append("before")
    b.merge(a)
    # A cloned machine at the same path: the fingerprint cannot tell.
    shutil.copy(a.path / ".eventcore" / "replica_id", b.path / ".eventcore" / "replica_id")
    (b.path / ".eventcore" / "replica_fingerprint").write_text(fingerprint(b.path))
    b.reopen()
    assert b.log.replica_id == a.log.replica_id
    one = a.append("from-A")
    other = b.append("from-B")
    a.merge(b)
    (conflict,) = a.log.status().identity_conflicts
    assert set(conflict.transactions) == {one, other}
    with pytest.raises(ReplicaIdentityConflict) as raised:
        a.append("more")
    assert set(raised.value.transactions) == {one, other}
    assert one in str(raised.value)
    assert other in str(raised.value)
    assert a.texts() == ["opened", "before", "from-A", "from-B"]
    assert len(a.log.forks()) == 1
    assert not a.log.fsck().ok
    with pytest.raises(ReplicaIdentityConflict):
        a.log.reconcile(merged)
    a.log.take_new_identity()
    a.append("more")
    assert len(a.log.reconcile(merged).resolved) == 1
    assert a.reopen().append([Event("s", {"text": "and on"})])


def test_a_partial_merge_dangles_is_readable_and_heals(pair):
    a, b = pair
    b.append("one")
    made = b.append("two")
    a.git("fetch", "-q", str(b.path), "main")
    a.git("checkout", "-q", "FETCH_HEAD", "--", f"events/{made}.jsonl")
    a.log.refresh()
    (dangling,) = a.log.status().dangling
    assert dangling.transaction == made
    assert a.texts() == ["opened", "two"] or a.texts() == ["two", "opened"]
    assert a.log.fsck().ok
    a.append("from-A", stream="t")
    a.merge(b)
    assert a.log.status().dangling == ()
    assert a.texts() == ["opened", "one", "two"]
    assert sorted(e.seq for e in a.log.read_events()) == [1, 2, 3, 4]
    b.merge(a)
    assert a.order() == b.order()


def test_live_and_rebuilt_projections_agree(pair, tmp_path):
    import sqlite3

    a, b = pair

    class Total:
        def setup(self, connection):
            connection.execute("CREATE TABLE IF NOT EXISTS texts (stream TEXT, text TEXT)")

        def reset(self, connection):
            connection.execute("DELETE FROM texts")

        def apply(self, event, connection):
            connection.execute("INSERT INTO texts VALUES (?, ?)", [event.stream, event.data["text"]])

    def state(one, mode):
        database = tmp_path / f"{one.path.name}-{mode}.db"
        Runner(one.log, projection("total", mode=mode)(Total), SqliteTarget(database)).run()
        with sqlite3.connect(database) as connection:
            return sorted(connection.execute("SELECT * FROM texts"))

    for step in range(3):
        for one in (a, b):
            one.append(f"{one.path.name}{step}", stream=f"s{step % 2}")
            state(one, "live"), state(one, "rebuild")
        a.merge(b)
        a.log.reconcile(merged)
        a.commit()
        b.merge(a)
    found = [state(one, mode) for one in (a, b) for mode in ("live", "rebuild")]
    assert found[0] == found[1] == found[2] == found[3]
    assert len(found[0]) == len(a.order())


def test_a_checkout_with_autocrlf_changes_no_byte(clone, tmp_path):
    a = clone("A")
    a.append("opened")
    b = clone("B", source=a, options=["-c", "core.autocrlf=true", "-c", "core.eol=crlf"])
    assert b.git("config", "core.autocrlf") == "true"
    for file in (a.path / "events").iterdir():
        assert (b.path / "events" / file.name).read_bytes() == file.read_bytes()
    b.append("from-B")
    a.merge(b)
    assert a.texts() == ["opened", "from-B"]
    assert a.log.fsck().ok


def test_a_checkout_that_did_convert_line_ends_is_read_and_told_how_to_mend(clone, tmp_path):
    a = clone("A")
    (a.path / ".gitattributes").write_text("events/** merge=union\n")  # as other tools write it
    a.append("opened")
    b = clone("B", source=a, options=["-c", "core.autocrlf=true"])
    assert b"\r\n" in next((b.path / "events").iterdir()).read_bytes()
    assert b.texts() == ["opened"]
    b.append("from-B")
    assert any("CRLF" in notice for notice in b.log.status().notices)
    a.merge(b)
    assert a.texts() == ["opened", "from-B"]
    assert a.log.fsck().ok
    assert git.complete(b.path) == [f".gitattributes: {git.ATTRIBUTE}"]
    assert b.log.restore_line_ends() == 1
    assert b.reopen().status().notices == ()
    assert b.texts() == ["opened", "from-B"]
    b.commit("attributes")
    assert b.git("show", "--name-only", "--format=").splitlines() == [".gitattributes"]


def test_a_shallow_clone_has_the_whole_log(clone):
    a = clone("A")
    for n in range(5):
        a.append(f"e{n}")
    b = clone("B", source=a, options=["--depth", "1"])
    assert b.git("rev-list", "--count", "HEAD") == "1"
    assert b.order() == a.order()
    assert b.log.status().is_clean
    b.append("from the shallow one")
    b.git("push", "-q", "origin", "HEAD:refs/heads/shallow")
    a.git("merge", "-q", "--no-edit", "shallow")
    a.log.refresh()
    assert a.texts()[-1] == "from the shallow one"


def test_rebased_event_commits_are_the_same_events(pair):
    a, b = pair
    a.append("from-A")
    b.append("from-B1")
    b.append("from-B2")
    before = set(b.order())
    b.git("fetch", "-q", str(a.path), "main")
    b.git("rebase", "-q", "FETCH_HEAD")
    b.log.refresh()
    assert before < set(b.order())
    assert b.texts() == ["opened", "from-A", "from-B1", "from-B2"]
    assert len(b.log.forks()) == 1, "a rebase moves commits, not what their writers had seen"
    assert sorted(e.seq for e in b.log.read_events()) == [1, 2, 3, 4]
    a.merge(b)
    assert a.order() == b.order()


def test_a_cherry_picked_event_commit_dangles_until_the_rest_comes(pair):
    a, b = pair
    b.append("one")
    made = b.append("two")
    a.git("fetch", "-q", str(b.path), "main")
    a.git("cherry-pick", "FETCH_HEAD")
    a.log.refresh()
    assert [d.transaction for d in a.log.status().dangling] == [made]
    assert "two" in a.texts()
    a.merge(b)
    assert a.log.status().is_clean
    assert a.texts() == ["opened", "one", "two"]
    assert sorted(e.data["text"] for e in a.log.read_events()) == ["one", "opened", "two"]


def test_switching_branches_and_back_neither_loses_nor_repeats(pair, tmp_path):
    a, b = pair
    seen = []
    follow = projection("p")(lambda event, _: seen.append(event.data["text"]))

    def run():
        Runner(a.log, follow, SqliteTarget(tmp_path / "p.db")).run()

    a.git("branch", "old")
    a.append("one")
    run()
    b.append("from-B")
    a.merge(b)
    a.git("checkout", "-q", "old")
    a.log.refresh()
    run()
    assert a.texts() == ["opened"]
    a.git("checkout", "-q", "main")
    a.reopen()
    run()
    assert sorted(seen) == ["from-B", "one", "opened"]


def test_cleaning_the_working_tree_while_the_log_is_open_loses_no_event_and_lets_one_writer_in(pair):
    a, _ = pair
    a.append("one")
    a.git("clean", "-fdxq")
    assert not (a.path / "index").exists()
    other = EventLog.open(a.path, sync=False, clock=CLOCK)
    a.append("two")
    other.append([Event("s", {"text": "three"})], {"s": 3})
    a.append("four")
    assert a.texts() == ["opened", "one", "two", "three", "four"]
    assert [e.seq for e in a.log.read_events()] == [1, 2, 3, 4, 5]
    assert len(a.log.heads) == 1
    other.close()


def test_the_hook_refuses_a_commit_with_a_damaged_transaction(pair):
    a, _ = pair
    hook = git.install_hook(a.path)
    assert git.install_hook(a.path) == hook
    assert hook.read_text().count("fsck") == 1
    a.append("fine")
    file = next((a.path / "events").iterdir())
    whole = file.read_bytes()
    file.write_bytes(whole.replace(b"opened", b"forged").replace(b"fine", b"evil"))
    a.git("add", "-A")
    assert subprocess.run(["git", "commit", "-qm", "bad"], cwd=a.path, check=False, capture_output=True).returncode != 0
    file.write_bytes(whole)
    a.commit("good")


def test_a_hook_needs_a_repository(tmp_path):
    EventLog.open(tmp_path / "log").close()
    with pytest.raises(EnvironmentProblem, match="not inside a git repository"):
        git.install_hook(tmp_path / "log")
