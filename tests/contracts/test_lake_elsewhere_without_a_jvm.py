"""What a lake in a bucket does without a JVM: reading, checking, repairing and listing its tables.

The rows are written by PyIceberg here, as another engine would.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.schema import Schema as IcebergSchema
from pyiceberg.types import LongType, NestedField, StringType

from floodmark.commit.protocol import Barrier, Base
from floodmark.config import CatalogSettings
from floodmark.errors import FilesMissing, InvalidSetting, Retryable
from floodmark.lake.catalogs import configured, prepare
from floodmark.lake.spark import SparkLake
from floodmark.schema import CONTENT_ID, SEGMENT, SEQ
from floodmark.sequence import SequenceRange
from postgres import PostgresServer, postgres_server  # noqa: F401 - a fixture
from rest import RestCatalog, rest_catalog  # noqa: F401 - a fixture
from s3 import SECRET, Reply, Request, S3Server, scripted

pytestmark = pytest.mark.postgres
TABLE, WIDTH = "rows_g1", 1 << 20
LATER = datetime.now(UTC) + timedelta(days=2)
SHAPE = IcebergSchema(
    NestedField(1, "id", LongType()),
    NestedField(2, SEQ, LongType(), required=True),
    NestedField(3, CONTENT_ID, StringType()),
    NestedField(4, SEGMENT, LongType()),
)
ROWS = pa.schema(
    [
        pa.field("id", pa.int64()),
        pa.field(SEQ, pa.int64(), nullable=False),
        pa.field(CONTENT_ID, pa.string()),
        pa.field(SEGMENT, pa.int64()),
    ]
)


@dataclass
class Place:
    """A lake, and who serves it."""

    lake: SparkLake
    server: S3Server
    bucket: str
    rest: RestCatalog | None

    def commit(self, *numbers: int) -> None:
        table = self.lake.catalog.python.load_table((self.lake.catalog.namespace, TABLE))
        columns: dict[str, list[Any]] = {
            "id": list(numbers),
            SEQ: list(numbers),
            CONTENT_ID: [f"{number:032x}" for number in numbers],
            SEGMENT: [1] * len(numbers),
        }
        table.append(pa.table(columns, ROWS))

    def numbers(self) -> list[int]:
        state = self.lake.load(TABLE)
        assert state is not None
        assert state.head is not None
        parts = self.lake.scan(TABLE, snapshot=state.head, within=SequenceRange(0, 1 << 40))
        return [number for part in parts for number in part[SEQ].to_pylist()]


def no_spark() -> Any:
    raise AssertionError("a JVM is not needed for this")


def properties(endpoint: str) -> dict[str, str]:
    return {
        "s3.endpoint": endpoint,
        "s3.region": "us-east-1",
        "s3.path-style-access": "true",
        "s3.access-key-id": "AKIDEXAMPLE",
        "s3.secret-access-key": SECRET,
    }


@pytest.fixture(params=["sql", "rest"])
def place(request: pytest.FixtureRequest, s3_server: S3Server) -> Place:
    rest: RestCatalog | None = None
    if request.param == "sql":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        bucket = s3_server.create_bucket()
        settings = CatalogSettings("sql", server.create_schema(), f"s3://{bucket}/lake", properties(s3_server.endpoint))
    else:
        found: RestCatalog = request.getfixturevalue("rest_catalog")
        rest, bucket = found, found.bucket
        settings = CatalogSettings("rest", found.uri, None, properties(s3_server.endpoint))
    name = uuid.uuid4().hex[:12]
    catalog = configured(f"lake_{name}", settings, namespace=f"datasets_{name}", section="lake")
    prepare(catalog)
    prepare(catalog)  # another process may have done it just now
    catalog.python.create_table((catalog.namespace, TABLE), SHAPE)
    return Place(SparkLake(catalog, no_spark), s3_server, bucket, rest)


def state_of(place: Place) -> Any:
    state = place.lake.load(TABLE)
    assert state is not None
    return state


def test_what_another_process_commits_is_seen_at_once(place: Place) -> None:
    assert state_of(place).head is None
    place.commit(1, 2)
    assert place.numbers() == [1, 2]
    place.commit(3)
    assert place.numbers() == [1, 2, 3]
    assert len(state_of(place).lineage) == 2
    assert place.lake.table_names() == [TABLE]


def test_every_file_is_checked_and_one_that_is_gone_is_named(place: Place) -> None:
    place.commit(1, 2)
    first = state_of(place).head
    place.commit(3)
    state = state_of(place)
    place.lake.sync(state, since=None)
    files = place.lake.files(state, check=True)
    assert (len(files.files), files.missing) == (2, ())
    lost = next(file.location for file in files.files if file.last == 3)
    place.server.remove(lost)
    with pytest.raises(FilesMissing, match="is missing"):
        place.lake.sync(state, since=first)
    assert place.lake.files(state, check=True).missing == (lost,)


def test_a_bucket_that_does_not_answer_is_no_damage(place: Place) -> None:
    place.commit(1)
    state = state_of(place)
    with scripted(lambda _: Reply(503)) as silent:
        settings = {**place.lake.catalog.python_settings, "s3.endpoint": silent.endpoint}
        settings["s3.connect-timeout"] = settings["s3.request-timeout"] = "1"
        table = place.lake.catalog.python.load_table((place.lake.catalog.namespace, TABLE))
        table.io.properties.update(settings)
        from pyiceberg.io import load_file_io

        from floodmark.lake.durable import sync_commits

        table.io = load_file_io(settings, state.location)
        with pytest.raises(Retryable, match="did not answer"):
            sync_commits(table, state, since=None)
    place.lake.sync(state, since=None)


def test_a_commit_whose_files_were_deleted_is_gone_back_over(place: Place) -> None:
    place.commit(1, 2)
    durable = state_of(place).head
    place.commit(3)
    state = state_of(place)
    place.server.remove(next(f.location for f in place.lake.files(state).files if f.last == 3))
    assert not place.lake.rollback(TABLE, durable=durable, droppable=lambda _: False)
    assert place.lake.rollback(TABLE, durable=durable, droppable=lambda _: True)
    assert place.numbers() == [1, 2]
    assert place.lake.rollback(TABLE, durable=durable, droppable=lambda _: True)  # another mends it as well
    place.commit(4)
    assert place.numbers() == [1, 2, 4]


def test_a_first_commit_whose_files_were_deleted_leaves_an_empty_table(place: Place) -> None:
    place.commit(1)
    place.server.remove(place.lake.files(state_of(place)).files[0].location)
    assert place.lake.rollback(TABLE, durable=None, droppable=lambda _: True)
    assert state_of(place).head is None
    place.commit(2)
    assert place.numbers() == [2]


def test_a_table_without_its_newest_metadata_is_found_again(place: Place) -> None:
    if place.rest is not None:
        pytest.skip("a REST server keeps its metadata itself")
    place.commit(1)
    durable = state_of(place).head
    place.commit(2)
    pointer = place.lake.catalog.pointer(TABLE)
    assert pointer is not None
    place.server.put(f"{state_of(place).location}/data/{SEQ}_trunc={WIDTH}/of-spark.parquet", b"x")
    place.server.remove(pointer)
    with pytest.raises(FilesMissing):
        place.lake.load(TABLE)
    assert place.lake.numbers_bound(TABLE, width=WIDTH) == 2 * WIDTH
    assert place.lake.rollback(TABLE, durable=durable, droppable=lambda _: True)
    assert place.numbers() == [1]


def test_objects_that_nothing_refers_to_are_found_and_removed(place: Place) -> None:
    place.commit(1)
    assert place.lake.orphans(TABLE, before=LATER) == []
    stranger = f"{state_of(place).location}/data/stranger.parquet"
    place.server.put(stranger, b"x")
    assert place.lake.orphans(TABLE, before=datetime(2020, 1, 1, tzinfo=UTC)) == []
    assert [item.location for item in place.lake.orphans(TABLE, before=LATER, remove=True)] == [stranger]
    assert place.lake.orphans(TABLE, before=LATER) == []
    assert place.numbers() == [1]


def test_an_append_without_rows_and_a_new_name(place: Place) -> None:
    place.commit(1)
    state = state_of(place)
    assert place.lake.append(Barrier(TABLE, "b1", Base(state.uuid, 1, state.head), 5))
    assert len(state_of(place).lineage) == 2
    assert place.numbers() == [1]
    assert place.lake.rename(TABLE, "rows_g2")
    assert not place.lake.rename(TABLE, "rows_g3")
    assert place.lake.load(TABLE) is None
    assert place.lake.load("rows_g2") is not None


def test_a_catalog_that_shows_only_the_newest_snapshot_is_refused() -> None:
    def answer(_: Request) -> Reply:
        body = b'{"defaults": {}, "overrides": {"nessie.is-nessie-catalog": "true"}}'
        return Reply(200, body, {"Content-Type": "application/json"})

    with scripted(answer) as nessie:
        catalog = configured("n", CatalogSettings("rest", nessie.endpoint), namespace="n", section="lake")
        with pytest.raises(InvalidSetting, match="shows only the newest snapshot"):
            prepare(catalog)
