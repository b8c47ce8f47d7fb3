"""A store whose records, tables and segments are elsewhere is created once, and used from any host."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import select

import floodmark
from floodmark import config
from floodmark.control.schema import meta
from floodmark.errors import InvalidSetting, Permanent, StoreExists, StoreMissing
from floodmark.store import Store, attach, init, open_store
from floodmark.testing import MemoryLake, SimulatedCrash, crash_at, kill_store
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from s3 import SECRET, S3Server

pytestmark = pytest.mark.postgres


@pytest.fixture
def new_url(postgres_server: PostgresServer) -> Callable[[], str]:  # noqa: F811
    return postgres_server.create_schema


@pytest.fixture
def url(postgres_server: PostgresServer) -> str:  # noqa: F811
    return postgres_server.create_schema()


def lake_settings(s3_server: S3Server, bucket: str) -> dict[str, str]:
    return {
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": s3_server.endpoint,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "env:TEST_S3_KEY",
        "s3.secret-access-key": "env:TEST_S3_SECRET",
    }


@pytest.fixture
def bucket(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TEST_S3_KEY", "AKIDEXAMPLE")
    monkeypatch.setenv("TEST_S3_SECRET", SECRET)
    return s3_server.create_bucket()


@pytest.fixture
def first(url: str, bucket: str, s3_server: S3Server, tmp_path: Path) -> Store:
    lake = lake_settings(s3_server, bucket)
    store = floodmark.init(tmp_path / "first", control=url, lake=lake, segments=f"s3://{bucket}/segments")
    store.close()
    return store


def test_another_host_gets_its_settings_from_the_control_database(first: Store, url: str, tmp_path: Path) -> None:
    with floodmark.attach(tmp_path / "second", control=url) as second:
        assert second.store_id == first.store_id
        assert second.engine.settings.lake == first.engine.settings.lake
        assert second.engine.settings.spool.segments == first.engine.settings.spool.segments
    with open_store(tmp_path / "second", lake=MemoryLake()) as second:
        second.add_dataset("rows", schema={"id": "long"})
    with open_store(tmp_path / "first", lake=MemoryLake()) as store:
        assert [item.name for item in store.datasets()] == ["rows"]


def test_the_catalog_of_the_tables_is_in_the_control_database_unless_it_is_named(first: Store, url: str) -> None:
    lake = first.engine.settings.lake
    assert lake is not None
    assert (lake.type, lake.uri) == ("sql", url)
    assert first.engine.lake.table_names() == []


def test_stores_can_share_a_database_a_warehouse_and_a_bucket(
    url: str,
    new_url: Callable[[], str],
    bucket: str,
    s3_server: S3Server,
    tmp_path: Path,
) -> None:
    lake = {**lake_settings(s3_server, bucket), "uri": url}
    names = set()
    for name in ("one", "two"):
        with init(tmp_path / name, control=new_url(), lake=lake) as store:
            names.add((store.engine.lake.catalog.name, store.engine.lake.catalog.namespace))  # type: ignore[attr-defined]
    assert len(names) == 2


def test_no_secret_is_in_the_control_database_and_attach_asks_for_it(
    url: str, bucket: str, s3_server: S3Server, tmp_path: Path
) -> None:
    lake = {**lake_settings(s3_server, bucket), "s3.secret-access-key": SECRET}
    with init(tmp_path / "first", control=url, lake=lake, segments=f"s3://{bucket}/segments") as store:
        held = store.engine.database.read(lambda c: [str(tuple(row)) for row in c.execute(select(meta))])
        assert "env:TEST_S3_KEY" in " ".join(held)
        assert SECRET not in " ".join(held)
    with pytest.raises(InvalidSetting, match=r"does not hold secrets of the lake: s3\.secret-access-key"):
        attach(tmp_path / "second", control=url)
    assert not (tmp_path / "second").exists()
    with attach(tmp_path / "second", control=url, lake={"s3.secret-access-key": "env:TEST_S3_SECRET"}) as second:
        assert second.store_id == store.store_id
    assert SECRET not in (tmp_path / "second" / config.FILE_NAME).read_text()


def test_a_password_in_the_address_of_the_catalog_is_not_recorded(
    new_url: Callable[[], str],
    bucket: str,
    s3_server: S3Server,
    tmp_path: Path,
) -> None:
    url = new_url()
    uri = new_url().replace("postgres@", "postgres:hushhush@")
    lake = {**lake_settings(s3_server, bucket), "uri": uri}
    with init(tmp_path / "first", control=url, lake=lake, segments=f"s3://{bucket}/segments") as store:
        held = store.engine.database.read(lambda c: [str(tuple(row)) for row in c.execute(select(meta))])
        assert "hushhush" not in " ".join(held)
    with pytest.raises(InvalidSetting, match="secrets of the lake: uri"):
        attach(tmp_path / "second", control=url)


def test_a_host_with_another_lake_or_other_segments_is_refused(first: Store, tmp_path: Path, bucket: str) -> None:
    file = tmp_path / "first" / config.FILE_NAME
    whole = file.read_text()
    for old, new, name in (
        (f"s3://{bucket}/lake", f"s3://{bucket}/other", r"lake\.warehouse"),
        (f"s3://{bucket}/segments", f"s3://{bucket}/others", r"spool\.segments"),
        ("[lake]", '[lake]\ntype = "rest"', r"lake\.type"),
    ):
        file.write_text(whole.replace(old, new))
        with pytest.raises(InvalidSetting, match=f"{name} is not what this store was created with"):
            open_store(tmp_path / "first")
    file.write_text(whole)
    open_store(tmp_path / "first").close()
    assert first.store_id


def test_a_store_in_a_directory_cannot_be_attached(url: str, bucket: str, s3_server: S3Server, tmp_path: Path) -> None:
    init(tmp_path / "first", control=url, lake=MemoryLake()).close()
    with pytest.raises(Permanent, match=r"The tables of the store .* are in the directory of its host"):
        attach(tmp_path / "second", control=url)


def test_attach_refuses_a_database_without_a_store_and_a_directory_with_one(
    first: Store,
    url: str,
    new_url: Callable[[], str],
    tmp_path: Path,
) -> None:
    with pytest.raises(StoreExists):
        attach(tmp_path / "first", control=url)
    with pytest.raises((StoreMissing, Permanent)):
        attach(tmp_path / "second", control=new_url())
    with pytest.raises(InvalidSetting):
        attach(tmp_path / "second", control="")
    assert not (tmp_path / "second").exists()
    assert first.store_id


def test_a_lake_that_cannot_be_used_is_noticed_before_there_is_a_store(url: str, tmp_path: Path) -> None:
    for lake in (
        {"uri": "postgresql://nobody@127.0.0.1:1/none", "warehouse": "s3://b/w"},
        {"type": "rest", "uri": "http://127.0.0.1:1"},
        {"type": "rest"},
        {"type": "hive"},
        {"warehouse": "somewhere"},
        {"warehouse": "s3://b/w", "namespace": "a b"},
    ):
        with pytest.raises(InvalidSetting):
            init(tmp_path / "store", control=url, lake=lake)
        assert not (tmp_path / "store" / config.FILE_NAME).exists()
    for other in ({"segments": "/tmp/here"}, {"spark": {"remote": "http://x"}}, {"spark": {"more": "x"}}):
        with pytest.raises(InvalidSetting):
            init(tmp_path / "store", control=url, **other)  # type: ignore[arg-type]
    init(tmp_path / "store", control=url, lake=MemoryLake()).close()


# ── segments in a bucket ─────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def hosts(url: str, bucket: str, s3_server: S3Server, tmp_path: Path) -> Iterator[tuple[Store, Store]]:
    """Two hosts of one store, whose tables are in memory."""
    lake = MemoryLake()
    init(
        tmp_path / "one", control=url, lake=lake_settings(s3_server, bucket), segments=f"s3://{bucket}/segments"
    ).close()
    attach(tmp_path / "two", control=url).close()
    with open_store(tmp_path / "one", lake=lake) as one, open_store(tmp_path / "two", lake=lake) as two:
        one.add_dataset("rows", ["id"], schema={"id": "long"})
        yield one, two


def test_one_host_commits_what_another_has_sealed(
    hosts: tuple[Store, Store], s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    one, two = hosts
    one.capture("rows", pa.table({"id": [1, 2]}))
    assert len(s3_server.keys(bucket)) == 1
    two.capture("rows", [{"id": 3}])
    assert two.flush("rows").rows == 3
    assert s3_server.keys(bucket) == []
    assert sorted(row["id"] for batch in one.read_since("rows") for row in batch.table.to_pylist()) == [1, 2, 3]
    one.capture("rows", [{"id": 3}, {"id": 4}])
    assert two.flush("rows").rows == 0  # landing files are their host's own
    assert one.flush("rows").rows == 1
    for host in ("one", "two"):  # what is committed leaves no copy behind on any host
        assert not list((tmp_path / host / "spool").rglob("*.parquet"))


def test_a_host_that_dies_between_the_object_and_its_record_loses_and_doubles_nothing(
    hosts: tuple[Store, Store], s3_server: S3Server, bucket: str, tmp_path: Path
) -> None:
    one, two = hosts
    one.capture("rows", [{"id": 1}])
    with crash_at("segment.written"), pytest.raises(SimulatedCrash):
        one.flush("rows")
    kill_store(one)
    assert len(s3_server.keys(bucket)) == 1
    two.capture("rows", [{"id": 2}])
    assert two.flush("rows").rows == 1  # the other's file is left alone: its writer may live
    assert len(s3_server.keys(bucket)) == 1
    with open_store(tmp_path / "one", lake=one.engine.lake) as again:
        assert again.flush("rows").rows == 1
        assert again.flush("rows").rows == 0
    assert sorted(row["id"] for batch in two.read_since("rows") for row in batch.table.to_pylist()) == [1, 2]


def test_pending_rows_purge_and_fsck_find_segments_in_the_bucket(hosts: tuple[Store, Store]) -> None:
    one, two = hosts
    one.capture("rows", pa.table({"id": [1, 2, 3]}))
    seen = [row["id"] for part in two.read_with_pending("rows") for row in part.table.to_pylist()]
    assert sorted(seen) == [1, 2, 3]
    assert two.fsck().sound
    two.purge("rows", where="id = 2")
    assert one.flush("rows").rows == 2


def test_a_segment_that_is_gone_from_the_bucket_is_told(
    hosts: tuple[Store, Store], s3_server: S3Server, bucket: str
) -> None:
    one, two = hosts
    one.capture("rows", pa.table({"id": [1]}))
    two.capture("rows", pa.table({"id": [2]}))
    key = next(item for item in s3_server.keys(bucket))
    s3_server.remove(f"{bucket}/{key}")
    assert two.flush("rows").rows == 1
    assert any("segment-missing" in item.kind for item in two.fsck().findings)


def test_a_landing_file_of_another_host_is_not_missing(hosts: tuple[Store, Store]) -> None:
    one, two = hosts
    one.capture("rows", [{"id": 1}])
    one.flush("rows")
    one.capture("rows", [{"id": 2}])
    assert two.fsck(repair=True).sound
    assert one.flush("rows").rows == 1
    assert sorted(row["id"] for batch in two.read_since("rows") for row in batch.table.to_pylist()) == [1, 2]
