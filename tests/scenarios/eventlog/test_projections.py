"""Projections: live ones never miss and never rewind, rebuilding ones follow the canonical order."""

import shutil
import sqlite3
import subprocess
import sys
import textwrap

import pytest
from replicas import merged
from sqlalchemy import create_engine, text

from floodmark import faults
from floodmark.errors import InvalidSetting, NotLeader, Permanent, ProjectionStopped, Retryable
from floodmark.eventlog import CatchUp, Event, EventLog, FileTarget, Runner, SqliteTarget, SqlTarget, projection


@pytest.fixture
def database(tmp_path):
    return tmp_path / "p.db"


def rows(database, query="SELECT text FROM seen ORDER BY rowid"):
    with sqlite3.connect(database) as connection:
        return [row[0] for row in connection.execute(query)]


class Seen:
    def setup(self, connection):
        connection.execute("CREATE TABLE IF NOT EXISTS seen (text TEXT)")

    def reset(self, connection):
        connection.execute("DELETE FROM seen")

    def apply(self, event, connection):
        connection.execute("INSERT INTO seen VALUES (?)", [event.data["text"]])


class Crash(BaseException):
    pass


def crash():
    raise Crash


live = projection("live")(Seen)
rebuild = projection("rebuild", mode="rebuild")(Seen)


def run(log, one, database, **options):
    return Runner(log, one, SqliteTarget(database), **options).run()


def test_an_event_that_a_merge_sorts_before_the_cursor_is_delivered(replica, database):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    b.append("from-B")
    a.append("from-A")
    run(a.log, live, database)
    a.pull(b)
    assert a.texts() == ["opened", "from-B", "from-A"], "it sorts before what was consumed"
    run(a.log, live, database)
    assert rows(database) == ["opened", "from-A", "from-B"]
    a.log.reconcile(merged)
    run(a.log, live, database)
    assert rows(database) == ["opened", "from-A", "from-B", "from-B+from-A"]
    assert run(a.log, live, database).applied == 0


def test_live_and_rebuilt_projections_reach_the_same_state(forked, tmp_path):
    a, b = forked

    def balance(event, connection):
        connection.execute("INSERT INTO seen VALUES (?)", [event.data["text"]])

    for step in range(4):
        for one in (a, b):
            one.append(f"{one.path.name}{step}")
        a.pull(b)
        a.log.reconcile(merged)
        b.pull(a)
        for one in (a, b):
            run(one.log, live, tmp_path / f"{one.path.name}-live.db")
            run(one.log, rebuild, tmp_path / f"{one.path.name}-rebuild.db")
    found = [sorted(rows(tmp_path / f"{name}-{mode}.db")) for name in "AB" for mode in ("live", "rebuild")]
    assert found[0] == found[1] == found[2] == found[3]
    assert rows(tmp_path / "A-rebuild.db") == a.texts() == rows(tmp_path / "B-rebuild.db")


def test_a_rebuilding_projection_goes_on_while_it_can_and_starts_anew_when_it_must(replica, database):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    b.append("from-B")
    a.append("from-A")
    assert run(a.log, rebuild, database).applied == 2
    a.append("more")
    report = run(a.log, rebuild, database)
    assert (report.applied, report.rebuilt) == (1, False)
    a.pull(b)
    report = run(a.log, rebuild, database, batch_events=2)
    assert (report.applied, report.rebuilt) == (4, True)
    assert rows(database) == a.texts()
    assert run(a.log, rebuild, database).applied == 0


def lose_index(a):
    shutil.rmtree(a.path / "index")


def lose_log(a):
    (a.path / "index" / "ingestion.log").unlink()


def replace_log(a):
    path = a.path / "index" / "ingestion.log"
    ids = [line.split('"')[3] for line in path.read_text().splitlines()]
    path.write_text("".join(f'{{"event_id":"{e}","seq":{n}}}\n' for n, e in enumerate(reversed(ids), 1)))


def truncate_log(a):
    path = a.path / "index" / "ingestion.log"
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:2]))


def damage_log(a):
    path = a.path / "index" / "ingestion.log"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"\0" * 30 + b"\n" + b"".join(lines[2:]))


def lose_identity(a):
    (a.path / "index" / "ingestion.identity").unlink()


@pytest.mark.parametrize("loss", [lose_index, lose_log, replace_log, truncate_log, damage_log, lose_identity])
@pytest.mark.parametrize("batch", [1, 500])
def test_whatever_becomes_of_the_numbering_no_event_is_skipped_or_repeated(replica, database, loss, batch):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    for n in range(3):
        b.append(f"B{n}")
        a.append(f"A{n}", f"A{n}'")
    run(a.log, live, database, batch_events=batch)
    a.pull(b)
    a.append("last")
    a.log.close()
    loss(a)
    a.reopen()
    run(a.log, live, database, batch_events=batch)
    run(a.log, live, database, batch_events=batch)
    assert sorted(rows(database)) == sorted(a.texts())
    b.append("B3")
    a.pull(b)
    a.log.close()
    loss(a)
    a.reopen()
    run(a.log, live, database, batch_events=batch)
    assert sorted(rows(database)) == sorted(a.texts())


def test_a_replay_that_is_cut_short_goes_on_where_it_was(replica, database):
    a, b = replica("A"), replica("B")
    a.append("opened")
    b.pull(a)
    for n in range(5):
        b.append(f"B{n}")
        a.append(f"A{n}")
    run(a.log, live, database)
    a.pull(b)
    poison = {"on": True}

    @projection("live")
    class Stumbling(Seen):
        def apply(self, event, connection):
            if event.data["text"] == "B3" and poison["on"]:
                raise ValueError("not this one")
            super().apply(event, connection)

    for _ in range(2):
        a.log.close()
        lose_index(a)
        a.reopen()
        with pytest.raises(ProjectionStopped, match="not this one"):
            run(a.log, Stumbling, database, batch_events=2)
    poison["on"] = False
    run(a.log, Stumbling, database, batch_events=2)
    assert sorted(rows(database)) == sorted(a.texts())


def test_an_event_whose_file_was_gone_when_the_reader_passed_is_delivered_when_it_is_back(replica, database):
    a = replica()
    made = [a.append(f"e{n}").transaction_id for n in range(4)]
    away = a.file(made[1]).read_bytes()
    seen_before = a.file(made[2]).read_bytes()
    a.file(made[1]).unlink()
    a.log.refresh()
    run(a.log, live, database)
    assert rows(database) == ["e0", "e2", "e3"]
    a.file(made[2]).unlink()
    a.reopen()
    run(a.log, live, database)
    a.file(made[1]).write_bytes(away)
    a.file(made[2]).write_bytes(seen_before)
    a.reopen()
    run(a.log, live, database)
    assert rows(database) == ["e0", "e2", "e3", "e1"], "the one that was missed comes, the one that was seen does not"
    run(a.log, live, database)
    assert len(rows(database)) == 4


@pytest.mark.parametrize("back", ["at once", "later"])
@pytest.mark.parametrize("damage", [b"", b'["', b"{}", b"\xff\x00"])
def test_absences_that_cannot_be_read_cost_the_numbering_its_identity_and_no_reader_an_event(
    replica, database, damage, back
):
    """E8: which events the reader passed over is unknown then, so it goes by what it has applied."""
    a = replica()
    made = [a.append(f"e{n}").transaction_id for n in range(4)]
    away = a.file(made[1]).read_bytes()
    a.file(made[1]).unlink()
    a.log.refresh()
    run(a.log, live, database)
    identity = a.log.identity
    a.log.close()
    (a.path / "index" / "absent.json").write_bytes(damage)
    if back == "later":
        run(a.reopen(), live, database)
        a.log.close()
    a.file(made[1]).write_bytes(away)
    run(a.reopen(), live, database)
    assert rows(database) == ["e0", "e2", "e3", "e1"]
    renewed = a.log.identity
    assert renewed != identity
    assert a.reopen().identity == renewed, "the damage is repaired, and costs one identity only"
    assert run(a.log, live, database).applied == 0


def test_a_child_that_arrives_before_its_parent_and_then_a_lost_numbering_repeat_nothing(replica, database):
    a, b = replica("A"), replica("B")
    made = [b.append(f"e{n}").transaction_id for n in range(5)]
    for n in (0, 2, 4):
        shutil.copy(b.file(made[n]), a.path / "events")
    a.log.refresh()
    assert len(a.log.status().dangling) == 2
    run(a.log, live, database)
    assert sorted(rows(database)) == ["e0", "e2", "e4"]
    a.pull(b)
    a.log.close()
    lose_index(a)
    a.reopen()
    run(a.log, live, database)
    assert sorted(rows(database)) == ["e0", "e1", "e2", "e3", "e4"]


def test_applied_files_that_are_gone_while_the_numbering_is_lost_stop_the_projection_loudly(replica, database):
    a = replica()
    made = [a.append(f"e{n}").transaction_id for n in range(3)]
    run(a.log, live, database)
    away = a.file(made[1]).read_bytes()
    a.file(made[1]).unlink()
    a.log.close()
    lose_index(a)
    a.reopen()
    with pytest.raises(Permanent, match=made[1]):
        run(a.log, live, database)
    a.file(made[1]).write_bytes(away)
    run(a.log, live, database)
    assert rows(database) == ["e0", "e1", "e2"]


def test_a_copied_tree_with_its_checkpoints_applies_nothing_twice(replica, tmp_path, clock):
    a = replica()
    a.append("one", "two")
    Runner(a.log, live, SqliteTarget(a.path / "checkpoints.db")).run()
    a.log.close()
    shutil.copytree(a.path, tmp_path / "copy")
    a.reopen()
    a.append("original")
    copy = EventLog.open(tmp_path / "copy", sync=False, clock=clock)
    assert copy.replica_id != a.log.replica_id
    assert copy.identity != a.log.identity
    copy.append([Event("s", {"text": "copy"})])
    Runner(copy, live, SqliteTarget(tmp_path / "copy" / "checkpoints.db")).run()
    assert rows(tmp_path / "copy" / "checkpoints.db") == ["one", "two", "copy"]


def test_poison_stops_at_the_event_and_keeps_what_came_before(replica, database):
    a = replica()
    a.append("one", "two", "three")

    @projection("p")
    class Stopping(Seen):
        def apply(self, event, connection):
            super().apply(event, connection)
            if event.data["text"] == "two":
                raise KeyError("amount")

    for _ in range(2):
        with pytest.raises(ProjectionStopped, match=r"seq 2.*KeyError"):
            run(a.log, Stopping, database)
        assert rows(database) == ["one"], "nothing of the refused event remains"


@pytest.mark.parametrize("target", ["sqlite3", "sqlalchemy", "files"])
def test_poison_is_set_aside_and_can_be_offered_again(replica, tmp_path, target):
    a = replica()
    a.append("one", "two", "three")
    seen, refuse = [], {"two"}
    make = {
        "sqlite3": lambda: SqliteTarget(tmp_path / "p.db"),
        "sqlalchemy": lambda: SqlTarget(f"sqlite:///{tmp_path / 'p.db'}"),
        "files": lambda: FileTarget(a.path),
    }[target]

    @projection("p", on_poison="quarantine")
    def follow(event, _connection):
        if event.data["text"] in refuse:
            raise ValueError("no amount")
        seen.append(event.data["text"])

    report = Runner(a.log, follow, make()).run()
    assert (report.applied, report.quarantined, seen) == (2, 1, ["one", "three"])
    session = make().begin()
    (entry,) = session.quarantined("p")
    session.rollback()
    assert (entry.seq, entry.data, entry.reason) == (2, {"text": "two"}, "ValueError: no amount")
    assert Runner(a.log, follow, make()).retry_quarantined().quarantined == 1
    refuse.clear()
    assert Runner(a.log, follow, make()).retry_quarantined().applied == 1
    assert seen == ["one", "three", "two"]
    assert Runner(a.log, follow, make()).retry_quarantined().applied == 0
    assert Runner(a.log, follow, make()).run().applied == 0


def test_a_broken_target_is_not_taken_for_a_poison_event(replica, database):
    a = replica()
    a.append("one")

    @projection("p", on_poison="quarantine")
    def follow(event, connection):
        connection.execute("INSERT INTO nowhere VALUES (1)")

    with pytest.raises(sqlite3.OperationalError, match="nowhere"):
        run(a.log, follow, database)
    assert rows(database, "SELECT count(*) FROM sqlite_master WHERE name = 'floodmark_quarantine'") == [0]


def test_only_one_runner_leads(replica, database):
    a = replica()
    a.append("one")
    outcome = []

    @projection("p")
    def follow(event, _connection):
        with pytest.raises(NotLeader, match="'p'"):
            run(a.log, follow, database)
        outcome.append("kept out")

    run(a.log, follow, database)
    assert outcome == ["kept out"]


def test_a_runner_that_another_machine_has_overtaken_takes_its_batch_back(replica, database):
    a, b = replica("A"), replica("B")
    a.append("one")
    a.append("two")
    b.pull(a)
    session = SqlTarget(f"sqlite:///{database}").begin()
    session.save("live", "theirs", expected=None)
    session.commit()
    late = SqlTarget(f"sqlite:///{database}").begin()
    with pytest.raises(Retryable, match="Another process has advanced"):
        late.save("live", "ours", expected="what it was before")
    late.rollback()
    with sqlite3.connect(database) as connection:
        connection.execute("DELETE FROM floodmark_checkpoints")
    # Two replicas that take turns on one database: the checkpoint says what is applied, whoever applied it.
    run(a.log, live, database)
    b.append("three")
    run(b.log, live, database)
    a.append("four")
    a.pull(b)
    run(a.log, live, database)
    assert sorted(rows(database)) == ["four", "one", "three", "two"]


TWO_AT_ONCE = """
    import sys
    from sqlalchemy import text
    from floodmark.errors import Retryable
    from floodmark.eventlog import EventLog, Runner, SqliteTarget, SqlTarget, projection

    path, place = sys.argv[1:]
    target = SqlTarget(place) if "://" in place else SqliteTarget(place)

    @projection("shared")
    def follow(event, connection):
        if "://" in place:
            connection.execute(text("INSERT INTO seen VALUES (:text)"), {"text": event.data["text"]})
        else:
            connection.execute("INSERT INTO seen VALUES (?)", [event.data["text"]])

    with EventLog.open(path, sync=False) as log:
        print("ready", flush=True)
        sys.stdin.readline()
        taken_back = 0
        while True:
            try:
                Runner(log, follow, target, batch_events=1).run()
                break
            except Retryable:
                taken_back += 1
        print(taken_back)
"""
SQL_TARGETS = ["sqlite3", "sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)]


@pytest.fixture
def sql_place(request, tmp_path):
    """Where a projection's rows go: a file for the standard library, or a URL for SQLAlchemy; with the table `seen`."""
    kind = request.param
    if kind == "postgresql":
        place = request.getfixturevalue("postgres_server").create_schema().replace("://", "+psycopg://")
    else:
        place = f"sqlite:///{tmp_path / 'p.db'}" if kind == "sqlite" else str(tmp_path / "p.db")
    engine = create_engine(place if "://" in place else f"sqlite:///{place}")
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE seen (text TEXT)"))
    yield place, engine
    engine.dispose()


def seen_in(engine):
    with engine.connect() as connection:
        return [row[0] for row in connection.execute(text("SELECT text FROM seen"))]


@pytest.mark.parametrize("sql_place", SQL_TARGETS, indirect=True)
def test_two_runners_at_once_on_two_clones_apply_each_event_once(replica, sql_place):
    """E13: neither has the other's lock, since each has a log of its own; only the database stands between them."""
    place, engine = sql_place
    a, b = replica("A"), replica("B")
    texts = [a.append(f"e{n:02}") and f"e{n:02}" for n in range(40)]
    b.pull(a)
    a.log.close()
    b.log.close()
    command = [sys.executable, "-c", textwrap.dedent(TWO_AT_ONCE)]
    runners = [
        subprocess.Popen([*command, str(one.path), place], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for one in (a, b)
    ]
    try:
        for runner in runners:
            assert runner.stdout.readline() == "ready\n"
        for runner in runners:
            runner.stdin.write("go\n")
            runner.stdin.flush()
        for runner in runners:
            runner.communicate(timeout=60)
    finally:
        for runner in runners:
            runner.kill()
    assert [runner.returncode for runner in runners] == [0, 0]
    assert sorted(seen_in(engine)) == texts


@pytest.mark.parametrize("sql_place", SQL_TARGETS[2:], indirect=True)
def test_of_two_runners_that_begin_with_nothing_one_takes_its_batch_back(replica, sql_place):
    """E13, in the order that a race would have it: both have read that there is no checkpoint before either writes one.

    Only on a server: SQLite lets the second begin when the first has ended.
    """
    place, engine = sql_place
    a, b = replica("A"), replica("B")
    a.append("one", "two")
    b.pull(a)

    def apply(event, connection):
        connection.execute(text("INSERT INTO seen VALUES (:text)"), {"text": event.data["text"]})

    # The tables first: who makes them keeps the other waiting until it has committed, and here that is one thread.
    SqlTarget(place).begin().commit()

    def apply_beside(event, connection):
        if event.data["text"] == "one":
            Runner(b.log, projection("shared")(apply), SqlTarget(place)).run()
        apply(event, connection)

    with pytest.raises(Retryable, match="Another process has advanced"):
        Runner(a.log, projection("shared")(apply_beside), SqlTarget(place)).run()
    assert seen_in(engine) == ["one", "two"]
    assert Runner(a.log, projection("shared")(apply), SqlTarget(place)).run().applied == 0


@pytest.mark.parametrize("sql_place", SQL_TARGETS[1:], indirect=True)
def test_any_database_takes_effects_checkpoints_and_quarantine_in_one_transaction(replica, sql_place):
    """E12, on a server as on a file: a batch that fails leaves nothing, an event that is refused costs only itself."""
    place, engine = sql_place
    a = replica()
    a.append("one", "bad", "three")
    refuse = {"bad"}

    @projection("p", on_poison="quarantine")
    def follow(event, connection):
        connection.execute(text("INSERT INTO seen VALUES (:text)"), {"text": event.data["text"]})
        if event.data["text"] in refuse:
            raise ValueError("no amount")

    faults.arm("eventlog.applied", crash)
    with pytest.raises(Crash):
        Runner(a.log, follow, SqlTarget(place)).run()
    faults.disarm_all()
    assert seen_in(engine) == []
    report = Runner(a.log, follow, SqlTarget(place)).run()
    assert (report.applied, report.quarantined, seen_in(engine)) == (2, 1, ["one", "three"])
    refuse.clear()
    assert Runner(a.log, follow, SqlTarget(place)).retry_quarantined().applied == 1
    assert seen_in(engine) == ["one", "three", "bad"]
    a.append("four")
    assert Runner(a.log, follow, SqlTarget(place)).run().applied == 1


def test_catching_up_reports_its_progress(replica, database):
    a = replica()
    for n in range(7):
        a.append(f"e{n}")
    steps = []
    run(a.log, live, database, batch_events=3, on_progress=steps.append)
    assert steps == [CatchUp(3, 7), CatchUp(6, 7), CatchUp(7, 7)]


def test_a_bare_position_of_another_tool_is_taken_over_only_with_the_log_it_counted_in(replica):
    a = replica()
    a.append("one", "two", "three")
    a.log.close()
    lose_identity(a)
    (a.path / "checkpoints").mkdir()
    checkpoint = a.path / "checkpoints" / f"{b'p'.hex()}.json"
    checkpoint.write_text("00000000-0000-0002-0000-000000000000")
    a.reopen()
    seen = []
    follow = projection("p")(lambda event, _: seen.append(event.data["text"]))
    Runner(a.log, follow, FileTarget(a.path)).run()
    assert seen == ["three"]
    checkpoint.write_text("00000000-0000-0002-0000-000000000000")
    a.log.close()
    lose_index(a)
    a.reopen()
    with pytest.raises(Permanent, match="position without a log identity"):
        Runner(a.log, follow, FileTarget(a.path)).run()


def test_a_rebuilding_projection_must_say_how_to_start_from_nothing():
    with pytest.raises(InvalidSetting, match="no reset function"):
        projection("p", mode="rebuild")(lambda event, connection: None)
    with pytest.raises(InvalidSetting, match="on_poison"):
        projection("p", on_poison="ignore")(lambda event, connection: None)
