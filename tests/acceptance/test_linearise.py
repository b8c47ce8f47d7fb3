"""The order that Spark computes for many logs is the order that each log computes for itself."""

import random
import shutil

import pytest

from floodmark.eventlog import Event, EventLog, RecordedEvent

SCHEMA = (
    "log string, transaction_id string, parent_transaction_ids array<string>, created_at string, replica_id string, "
    "ordinal int, stream string, event_id string"
)


def random_logs(root, seed):
    """Three replicas that append, exchange files in part, and reconcile."""
    chance = random.Random(seed)
    logs = [EventLog.open(root / f"{seed}-{n}", sync=False) for n in range(3)]
    for step in range(60):
        log = chance.choice(logs)
        if chance.random() < 0.6:
            log.append([Event(f"s{chance.randrange(4)}", {"step": step}) for _ in range(chance.randint(1, 3))])
        elif chance.random() < 0.5:
            for file in (chance.choice(logs).root / "events").iterdir():
                if not (log.root / "events" / file.name).exists() and chance.random() < 0.8:
                    shutil.copy(file, log.root / "events")
            log.refresh()
        else:
            # Decisions without events count in the graph, though they are no rows of their own.
            log.reconcile(lambda _: [])
    return logs


def rows_of(log, name):
    rows = []
    for transaction in log.history:
        head = (name, transaction.id, list(transaction.parents), transaction.created_at, transaction.replica)
        rows += [(*head, n, e.stream, e.event_id) for n, e in enumerate(transaction.events)] or [
            (*head, None, None, None)
        ]
    return rows


def coordinates(event: RecordedEvent, number: int):
    return (event.event_id, event.depth, number, event.version)


@pytest.mark.spark
def test_spark_and_python_agree_on_canonical_order_and_stream_versions(spark, tmp_path):
    from floodmark.lake.linearise import linearise

    logs = {f"log-{n}": log for n, log in enumerate([*random_logs(tmp_path, 1), *random_logs(tmp_path, 2)])}
    rows = [row for name, log in logs.items() for row in rows_of(log, name)]
    random.Random(3).shuffle(rows)
    assert any(row[5] is None for row in rows), "some transaction has no events"
    result = spark.createDataFrame(rows, SCHEMA).transform(linearise)
    assert result.columns == [
        *(c.split()[0] for c in SCHEMA.split(", ")),
        "depth",
        "canonical_number",
        "stream_version",
    ]
    found = {}
    for row in result.orderBy("canonical_number").collect():
        found.setdefault(row.log, []).append((row.event_id, row.depth, row.canonical_number, row.stream_version))
    for name, log in logs.items():
        assert found[name] == [coordinates(event, number) for number, event in enumerate(log.canonical_events(), 1)]
        log.close()


@pytest.mark.spark
def test_a_fed_dataset_has_all_that_canonical_order_is_made_of(spark, tmp_path):
    """Two clones write apart and are joined; the dataset's rows, linearised on Spark, are in the log's own order."""
    from floodmark.lake.linearise import linearise
    from floodmark.store import init

    with EventLog.open(tmp_path / "here") as here, EventLog.open(tmp_path / "there") as there:
        here.append([Event("a", 1), Event("b", 1)])
        shutil.copytree(here.root / "events", there.root / "events", dirs_exist_ok=True)
        there.refresh()
        here.append([Event("a", "here")])
        there.append([Event("a", "there"), Event("c", "there")])
        with init(tmp_path / "store") as store:
            store.feed("events", here)
            shutil.copytree(there.root / "events", here.root / "events", dirs_exist_ok=True)
            here.refresh()
            here.append([Event("b", "joined")])
            store.feed("events", here)
            store.flush("events")
            rows = store.read("events").transform(linearise).orderBy("canonical_number").collect()
        expected = [coordinates(event, number) for number, event in enumerate(here.canonical_events(), start=1)]
    assert [(r.event_id, r.depth, r.canonical_number, r.stream_version) for r in rows] == expected


@pytest.mark.spark
def test_a_fed_history_with_decisions_that_have_no_events_is_in_the_order_of_its_log(spark, tmp_path):
    """Such a decision is a row without an ordinal: what hangs below it is deeper by one, on Spark as in the log."""
    from floodmark.lake.linearise import linearise
    from floodmark.store import init

    with init(tmp_path / "store") as store:
        for seed in (4, 5):
            log, *others = random_logs(tmp_path, seed)
            for other in others:
                shutil.copytree(other.root / "events", log.root / "events", dirs_exist_ok=True)
            log.refresh()
            log.append([Event("s0", "below everything")])
            report = store.feed(f"events{seed}", log)
            assert report.markers > 0, "some transaction has no events"
            store.flush(f"events{seed}")
            rows = store.read(f"events{seed}").transform(linearise).orderBy("canonical_number").collect()
            expected = [coordinates(event, number) for number, event in enumerate(log.canonical_events(), start=1)]
            assert [(r.event_id, r.depth, r.canonical_number, r.stream_version) for r in rows] == expected
            for opened in (log, *others):
                opened.close()
