"""The doctor says what is wrong, changes nothing, and leaves nothing at any destination."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import scenarios.hubs  # noqa: F401 - one more place
from floodmark import doctor
from floodmark.config import CatalogSettings
from floodmark.store import Store, init
from floodmark.testing import MemoryLake
from s3 import S3Server
from scenarios.destinations import DATASET, PLACES, SINK


@pytest.fixture
def lake() -> MemoryLake:
    return MemoryLake()


@pytest.fixture
def store(quick_path: Path, lake: MemoryLake) -> Iterator[Store]:
    with init(quick_path / "store", lake=lake) as made:
        made.add_dataset(DATASET, partition_by=["source"])
        yield made


def found(store: Store) -> dict[str, doctor.Checkup]:
    return {one.name: one for one in store.doctor(spark=False).checks}


def content(root: Path) -> dict[str, str]:
    """Every file with its content; not SQLite's shared memory, which readers write to as well."""
    files = [path for path in root.rglob("*") if path.is_file() and not path.name.endswith(("-shm", "-wal"))]
    return {str(path): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.mark.parametrize("place", sorted(PLACES))
@pytest.mark.parametrize("delivered", [False, True], ids=["before the first export", "after an export"])
def test_every_kind_of_sink_is_reached_and_left_as_it_was(
    store: Store, lake: MemoryLake, quick_path: Path, place: str, delivered: bool
) -> None:
    made = PLACES[place](quick_path, lake)
    try:
        made.add(store)
        if delivered:
            store.capture(DATASET, [{"source": "a", "n": 1}])
            store.flush()
            store.export()
        there = made.rows() if delivered else {}  # a hub commits what it has got
        before = content(quick_path)
        check = found(store)[f"sink {SINK}"]
        assert check.state == doctor.OK, check
        assert content(quick_path) == before
        assert not delivered or made.rows() == there
        assert store.export().rows == 0, "and delivery goes on as if nobody had looked"
    finally:
        made.close()


def test_a_bucket_is_tried_with_and_without_a_claim_and_nothing_stays(store: Store, s3_server: S3Server) -> None:
    bucket = s3_server.create_bucket()
    store.add_sink(SINK, "blob", **s3_server.settings(f"s3://{bucket}/p"))
    assert found(store)[f"sink {SINK}"].state == doctor.OK
    assert s3_server.keys(bucket) == []
    store.capture(DATASET, [{"source": "a", "n": 1}])
    store.flush()
    assert store.export().rows == 1
    before = s3_server.keys(bucket)
    check = found(store)[f"sink {SINK}"]
    assert "never replaces an object" in check.what
    assert s3_server.keys(bucket) == before


def blocked_directory(path: Path) -> dict[str, Any]:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("a file where a directory is to be")
    return {"url": path.as_uri()}


@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("blob", blocked_directory),
        ("blob", lambda _: {"url": "s3://nowhere/x", "endpoint": "http://127.0.0.1:9", "region": "r"}),
        ("forward", lambda _: {"url": "http://127.0.0.1:9"}),
        ("forward", lambda _: {"url": "http://127.0.0.1:9", "accept": "status"}),
        ("forward", lambda _: {"url": "http://127.0.0.1:9", "token": "env:NOT_SET_ANYWHERE"}),
    ],
    ids=["file in the way", "no bucket", "no hub", "no server", "no token"],
)
def test_a_destination_that_cannot_be_reached_is_told_with_what_to_do(
    store: Store, quick_path: Path, kind: str, settings: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setattr("floodmark.delivery.sinks.objects.RETRIES", {"max_retries": 0})
    store.add_sink(SINK, kind, **settings(quick_path / "out"))
    report = store.doctor(spark=False)
    check = next(one for one in report.checks if one.name == f"sink {SINK}")
    assert check.state == doctor.WRONG
    assert check.run
    assert not report.sound


def test_a_hub_of_another_store_is_told(store: Store, lake: MemoryLake, quick_path: Path) -> None:
    hub = PLACES["hub"](quick_path, lake)
    try:
        hub.add(store)
        store.capture(DATASET, [{"source": "a", "n": 1}])
        store.flush()
        store.export()
        store.engine.database.transact(lambda c: c.exec_driver_sql("UPDATE sinks SET hub = 'another'"))
        assert found(store)[f"sink {SINK}"].state == doctor.WRONG
    finally:
        hub.close()


def test_a_catalog_that_does_not_answer_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.engine.settings.catalogs["central"] = CatalogSettings("rest", "http://127.0.0.1:9", None, {})
    store.add_sink(SINK, "table", table="central.copies")

    def fails(*_: object) -> None:
        raise ConnectionError("refused")

    monkeypatch.setattr(MemoryLake, "target", fails)
    check = found(store)[f"sink {SINK}"]
    assert (check.state, "refused" in check.what) == (doctor.WRONG, True)


def test_a_target_that_belongs_to_another_dataset_is_told(store: Store, lake: MemoryLake) -> None:
    store.engine.settings.catalogs["central"] = CatalogSettings("rest", "http://127.0.0.1:9", None, {})
    store.add_dataset("other")
    store.add_sink(SINK, "table", table="central.copies.m", datasets=["other"])
    store.capture("other", [{"n": 1}])
    store.flush()
    assert store.export().rows == 1
    assert found(store)[f"sink {SINK}"].state == doctor.OK
    store.remove_sink(SINK)
    store.add_sink(SINK, "table", table="central.copies")
    assert found(store)[f"sink {SINK}"].state == doctor.WRONG


def test_a_blocked_sink_is_told_with_its_reason(store: Store, quick_path: Path) -> None:
    store.add_sink(SINK, "blob", url=(quick_path / "out").as_uri())
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("UPDATE sinks SET state = 'blocked', reason = 'Another sink was here.'")
    )
    check = found(store)[f"sink {SINK}"]
    assert check.state == doctor.WRONG
    assert "Another sink was here." in check.what


def test_settings_that_others_can_read_are_told(store: Store) -> None:
    assert found(store)["permissions"].state == doctor.OK
    (store.path / "floodmark.toml").chmod(0o644)
    check = found(store)["permissions"]
    assert (check.state, "chmod 600" in check.run) == (doctor.WARNING, True)


def test_a_damaged_control_database_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """What SQLite says of a damaged file, as the check of the database gets it."""
    file = store.path / "control.db"
    store.engine.database.transact(lambda c: c.exec_driver_sql("CREATE TABLE padding (x TEXT)"))
    store.engine.database.transact(
        lambda c: c.exec_driver_sql("INSERT INTO padding SELECT hex(randomblob(3000)) FROM sinks, datasets")
    )
    store.engine.database.transact(lambda c: c.exec_driver_sql("INSERT INTO padding VALUES (hex(zeroblob(60000)))"))
    store.engine.database.close()
    store.engine.database.read(lambda c: c.exec_driver_sql("PRAGMA wal_checkpoint(TRUNCATE)").fetchall())
    store.engine.database.close()
    size = file.stat().st_size
    with file.open("r+b") as damaged:
        damaged.seek(size - 3 * 4096)
        damaged.write(b"\xff" * 4096 * 3)
    check = found(store)["control database"]
    assert check.state == doctor.WRONG, check


def test_little_room_is_told(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "SPACE_BYTES_MIN", 1 << 62)
    assert found(store)["disk-space"].state == doctor.WRONG
    monkeypatch.setattr(doctor, "SPACE_BYTES_MIN", 1)
    monkeypatch.setattr(doctor, "SPACE_BYTES_LOW", 1 << 62)
    assert found(store)["disk-space"].state == doctor.WARNING


def test_a_missing_java_and_missing_jars_are_told_and_the_other_checks_go_on(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    monkeypatch.setenv("FLOODMARK_JARS", str(tmp_path / "none"))
    checks = found(store)
    assert checks["java"].state == doctor.WRONG
    assert "JAVA_HOME" in checks["java"].run
    assert checks["jars"].state == doctor.WARNING
    assert checks["catalog"].state == doctor.OK


def test_a_machine_without_a_store_is_checked(tmp_path: Path) -> None:
    report = doctor.examine(None)
    names = [one.name for one in report.checks]
    assert report.store is None
    assert {"versions", "java", "jars", "memory", "disk-space", "clock", "spark"} <= set(names)
    assert "control database" not in names
