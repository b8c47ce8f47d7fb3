"""The lake in a bucket, with its catalog in PostgreSQL or behind REST: what the contract says holds there as well.

One proof per method. What a method promises in detail is tried on a lake in a directory.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from contracts.lakes import EVERYTHING, SIMPLE, TABLE, Blocks, SparkDriver, numbers, some
from floodmark.commit.protocol import Base, Verdict
from floodmark.config import CatalogSettings
from floodmark.errors import FilesMissing, FloodmarkError, Retryable
from floodmark.lake import queries
from floodmark.lake.catalogs import configured, prepare
from floodmark.layout import Layout
from floodmark.removal import Selection
from floodmark.schema import SEQ
from floodmark.sequence import SequenceRange
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from proxy import Proxy
from rest import LOST, UNSENT, RestCatalog, rest_catalog  # noqa: F401 - a fixture
from s3 import SECRET, S3Server

pytestmark = pytest.mark.spark
LATER = datetime.now(UTC) + timedelta(days=2)


class BucketDriver(SparkDriver):
    """A lake in a bucket, and hands on its objects."""

    server: S3Server

    def lose_data_files(self, table: str, within: SequenceRange) -> int:
        files = self.lake.files(self.lake.load(table)).files
        lost = [file.location for file in files if file.first <= within.through and file.last > within.after]
        for location in lost:
            self.server.remove(location)
        return len(lost)


@dataclass
class Elsewhere:
    """Where a lake's tables and their catalog are."""

    server: S3Server
    postgres: PostgresServer
    rest: RestCatalog | None

    def lake(self) -> dict[str, str]:
        """The settings of a new lake."""
        reached = {
            "s3.endpoint": self.server.endpoint,
            "s3.region": "us-east-1",
            "s3.path-style-access": "true",
            "s3.access-key-id": "AKIDEXAMPLE",
            "s3.secret-access-key": SECRET,
        }
        if self.rest is not None:
            return {"type": "rest", "uri": self.rest.uri, **reached}
        bucket = self.server.create_bucket()
        return {"type": "sql", "uri": self.postgres.create_schema(), "warehouse": f"s3://{bucket}/lake", **reached}


@pytest.fixture(params=["sql", "rest"])
def elsewhere(request: pytest.FixtureRequest, s3_server: S3Server) -> Elsewhere:
    rest = request.getfixturevalue("rest_catalog") if request.param == "rest" else None
    return Elsewhere(s3_server, request.getfixturevalue("postgres_server"), rest)


@pytest.fixture
def driver(request: pytest.FixtureRequest, elsewhere: Elsewhere) -> BucketDriver:
    from floodmark.lake.spark import SparkLake

    spark = request.getfixturevalue("spark")
    lake = elsewhere.lake()
    kind, uri, warehouse = (lake.pop(key, None) for key in ("type", "uri", "warehouse"))
    settings = CatalogSettings(kind or "", uri or "", warehouse, lake)
    name = f"lake_{uuid.uuid4().hex[:12]}"
    catalog = configured(name, settings, namespace=f"datasets_{name}", section="lake")
    prepare(catalog)
    made = BucketDriver(SparkLake(catalog, lambda: spark), spark)
    made.server = elsewhere.server
    return made


@pytest.fixture
def blocks(driver: BucketDriver, tmp_path: Path) -> Blocks:
    return Blocks(driver, tmp_path, identity=(("id",),))


def test_a_store_with_everything_elsewhere_delivers_each_row_once(
    request: pytest.FixtureRequest, elsewhere: Elsewhere, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Segments are read from the bucket by tasks, and so are the tables. Two hosts share them."""
    from floodmark.cli.entry import run
    from floodmark.store import open_store

    spark = request.getfixturevalue("spark")
    bucket = elsewhere.server.create_bucket()
    lake = {**elsewhere.lake(), "s3.secret-access-key": "env:TEST_SECRET"}
    monkeypatch.setenv("TEST_SECRET", SECRET)
    monkeypatch.setenv("TEST_CONTROL", elsewhere.postgres.create_schema())
    options = [option for key, value in lake.items() if "." in key for option in ("--lake", f"{key}={value}")]
    options += [f"--lake-type={lake['type']}", f"--lake-uri={lake['uri']}", f"--segments=s3://{bucket}/segments"]
    options += [f"--warehouse={lake['warehouse']}"] if "warehouse" in lake else []
    assert run(["init", str(tmp_path / "one"), "--control", "env:TEST_CONTROL", *options]) == 0
    key = "s3.access-key-id=AKIDEXAMPLE"  # given as text, so it is not in the control database
    assert run(["attach", str(tmp_path / "two"), "--control", "env:TEST_CONTROL", "--lake", key]) == 0
    with open_store(tmp_path / "one", spark=spark) as store, open_store(tmp_path / "two", spark=spark) as other:
        for one in (store, other):
            one.engine.lake.rows_here_max = 0  # type: ignore[attr-defined]
        store.add_dataset("rows", ["id"], schema={"id": "long", "name": "string"})
        place = elsewhere.server.settings(f"s3://{bucket}/files")
        store.add_sink("files", "blob", format="jsonl", chunk_rows=4, **place)
        store.capture("rows", some(6))
        assert store.flush("rows").rows == 6
        other.capture("rows", some(6, start=3))
        assert other.flush("rows").rows == 3
        assert store.export("files").rows == 9
        other.compact("rows")
        assert store.export("files").rows == 0
        assert store.audit("files", deep=True).sound
        assert sorted(row["id"] for row in other.read("rows").collect()) == list(range(9))
        assert store.fsck().sound
    assert not [key for key in elsewhere.server.keys(bucket) if key.startswith("segments/")]


def test_rows_are_committed_once_and_read_in_every_way(blocks: Blocks) -> None:
    lake = blocks.lake
    blocks.commit(some(6))
    blocks.commit(some(6, start=3))
    assert sorted(numbers(blocks.rows())) == list(range(9))
    state = blocks.state()
    lake.sync(state, since=None)
    assert lake.files(state, check=True).missing == ()
    assert lake.table_names() == [TABLE]
    assert queries.has_rows(lake, TABLE, snapshot=state.head, within=SequenceRange(0, 1))
    asked: dict[str, Any] = {"snapshot": state.head, "columns": SIMPLE.names, "schema": SIMPLE}
    ranges = [SequenceRange(0, 4), SequenceRange(4, 12)]
    found = []
    for rows_here_max, direct in ((20_000, True), (0, True), (0, False)):  # in this process, in tasks, by Iceberg
        lake.rows_here_max, lake.direct = rows_here_max, direct  # type: ignore[attr-defined]
        work = lambda within, rows: {"rows": rows.num_rows}  # noqa: E731
        found.append(
            [(tally, answer) for _, tally, answer in lake.each_range(TABLE, ranges=ranges, work=work, **asked)]
        )
        assert sorted(numbers(blocks.rows(EVERYTHING))) == list(range(9))
    assert found[0] == found[1] == found[2]
    assert [answer["rows"] for _, answer in found[0]] == [4, 5]
    counted = lake.aggregate(TABLE, snapshot=state.head, selection=Selection(EVERYTHING.through), schema=SIMPLE)
    assert counted[0].tally.rows == 9


def test_of_two_appends_on_one_base_one_lands(blocks: Blocks) -> None:
    blocks.commit(some(2))
    base = blocks.base()
    first = blocks.request(blocks.segment(some(2, start=10)), base=base)
    second = blocks.request(blocks.segment(some(2, start=20)), base=base)
    assert blocks.lake.append(first)
    with pytest.raises(Exception):
        blocks.lake.append(second)
    assert blocks.verdict(first) is Verdict.LANDED
    assert blocks.verdict(second) is Verdict.VOID
    assert sorted(numbers(blocks.rows())) == [0, 1, 10, 11]


def test_upkeep_changes_no_row_that_it_is_not_to_change(blocks: Blocks, driver: BucketDriver) -> None:
    lake = blocks.lake
    for start in range(0, 12, 4):
        blocks.commit(some(4, start=start))
    lake.rewrite(TABLE, within=SequenceRange(0, 12), file_bytes=1 << 20, one_file=True)
    lake.rewrite(TABLE)
    assert len(lake.files(blocks.state()).files) == 1
    lake.ensure(TABLE, create=False, max_seq=12)
    lake.remove(TABLE, selection=Selection(4), schema=SIMPLE, partition_by=())
    assert sorted(numbers(blocks.rows())) == list(range(4, 12))
    lake.sync(blocks.state(), since=None)
    assert lake.expire(TABLE, keep_snapshots=1) > 0
    assert len(blocks.state().lineage) == 1
    assert lake.orphans(TABLE, before=LATER) == []
    place = blocks.state().location
    driver.server.put(f"{place}/data/stranger.parquet", b"x")
    assert [item.location for item in lake.orphans(TABLE, before=LATER, remove=True)] == [
        f"{place}/data/stranger.parquet"
    ]
    assert lake.orphans(TABLE, before=LATER) == []
    assert sorted(numbers(blocks.rows())) == list(range(4, 12))


def test_an_object_that_is_gone_is_noticed_and_one_that_is_not_reached_is_not_damage(
    blocks: Blocks, driver: BucketDriver, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks.commit(some(2))
    durable = blocks.state().head
    blocks.commit(some(2, start=2))
    state = blocks.state()
    blocks.lake.sync(state, since=None)
    io = type(blocks.lake.catalog.table(TABLE).io)  # type: ignore[attr-defined]
    new_input = io.new_input

    def silent(*_: Any) -> None:
        raise OSError("no answer")

    with monkeypatch.context() as patch:
        patch.setattr(io, "new_input", silent)
        with pytest.raises(Retryable, match="did not answer"):
            blocks.lake.sync(state, since=None)
    assert io.new_input is new_input
    assert driver.lose_data_files(TABLE, SequenceRange(2, 4)) == 1
    with pytest.raises(FilesMissing):
        blocks.lake.sync(state, since=durable)
    assert len(blocks.lake.files(state, check=True).missing) == 1
    assert blocks.lake.rollback(TABLE, durable=durable, droppable=lambda _: True)
    assert sorted(numbers(blocks.rows())) == [0, 1]
    blocks.commit(some(2, start=5))
    assert sorted(numbers(blocks.rows())) == [0, 1, 5, 6]


def test_what_the_bucket_says_of_numbers_when_metadata_is_lost(blocks: Blocks, elsewhere: Elsewhere) -> None:
    blocks.commit(some(3))
    width = Layout().bucket_width
    # A REST catalog keeps the metadata itself: no one else knows where the table is.
    assert blocks.lake.numbers_bound(TABLE, width=width) == (width if elsewhere.rest is None else None)


def test_a_table_is_copied_renamed_and_dropped_with_its_objects(blocks: Blocks, s3_server: S3Server) -> None:
    from floodmark.lake.table import Copy

    lake = blocks.lake
    blocks.commit(some(3))
    head = blocks.state().head
    lake.ensure("events_g2", SIMPLE)
    new = lake.load("events_g2")
    assert new is not None
    assert head is not None
    copy = Copy(TABLE, head, "events_g2", Base(new.uuid, 2, new.head), SequenceRange(0, 3), 3, SIMPLE)
    assert lake.append(copy)
    assert lake.rename("events_g2", "events_g3")
    assert not lake.rename("events_g2", "events_g4")
    assert set(lake.table_names()) == {TABLE, "events_g3"}
    copied = lake.load("events_g3")
    assert copied is not None
    assert copied.head is not None
    rows = [row for part in lake.scan("events_g3", snapshot=copied.head, within=EVERYTHING) for row in part.to_pylist()]
    assert [row[SEQ] for row in rows] == [1, 2, 3]
    bucket, _, place = copied.location.removeprefix("s3://").partition("/")
    assert [key for key in s3_server.keys(bucket) if key.startswith(f"{place}/data")]
    lake.drop("events_g3")
    assert lake.load("events_g3") is None
    assert [key for key in s3_server.keys(bucket) if key.startswith(f"{place}/data")] == []


# ── answers that are lost ────────────────────────────────────────────────────────────────────────────────────────────


class Ticking:
    """A store that flushes one row after the other, while answers of its catalog are lost."""

    def __init__(self, spark: Any, home: Path, lake: dict[str, str]) -> None:
        from floodmark.store import init, open_store

        init(home / "store", lake=lake).close()
        self.store = open_store(home / "store", spark=spark)
        self.store.add_dataset("rows", schema={"id": "long"})
        self.store.add_sink("out", "blob", url=(home / "out").as_uri(), format="jsonl")
        self.captured = 0
        self.flush()

    def flush(self) -> None:
        self.store.capture("rows", [{"id": self.captured}])
        self.captured += 1
        self.store.flush("rows")

    def flush_in_trouble(self) -> str:
        """Flush a row, and again after an error; what the error was."""
        try:
            self.flush()
        except FloodmarkError as error:
            self.store.flush("rows")
            return type(error).__name__
        return ""

    def check(self) -> None:
        with self.store as store:
            found = [row["id"] for batch in store.read_since("rows") for row in batch.table.to_pylist()]
            assert found == list(range(self.captured))  # each once, and in order
            assert store.export("out").rows == self.captured
            assert store.audit("out", deep=True).sound
            assert store.fsck().sound


def test_a_rest_catalog_whose_answer_is_lost_neither_loses_nor_doubles_a_row(
    request: pytest.FixtureRequest,
    rest_catalog: RestCatalog,  # noqa: F811
    s3_server: S3Server,
    tmp_path: Path,
) -> None:
    """I7: what became of a commit is read from the table. A 503 is repeated by Iceberg's client, which then meets its
    own commit, and a 409 tells it that another won: after both it deletes the files of what it committed.
    """
    lake = Elsewhere(s3_server, request.getfixturevalue("postgres_server"), rest_catalog).lake()
    world = Ticking(request.getfixturevalue("spark"), tmp_path, lake)
    for fate in (LOST, UNSENT, 500, 502, 503, 504, 409):
        rest_catalog.fates = [fate]
        world.flush_in_trouble()
        assert rest_catalog.fates == [], "no commit was sent"
    world.check()


def test_a_catalog_in_postgresql_whose_answer_is_lost_neither_loses_nor_doubles_a_row(
    request: pytest.FixtureRequest, s3_server: S3Server, tmp_path: Path
) -> None:
    """I7: Iceberg's client repeats the update, takes its own commit for another's, and deletes the files of it."""
    server: PostgresServer = request.getfixturevalue("postgres_server")
    lake = Elsewhere(s3_server, server, None).lake()
    proxy = Proxy(server.port).start()
    try:
        lake["uri"] = lake["uri"].replace(f":{server.port}/", f":{proxy.port}/")
        world = Ticking(request.getfixturevalue("spark"), tmp_path, lake)
        for fate in ("after", "before"):
            proxy.arm(1, fate, only=b"UPDATE iceberg_tables")
            world.flush_in_trouble()
            assert proxy.tripped, "no commit was sent"
        world.check()
    finally:
        proxy.stop()
