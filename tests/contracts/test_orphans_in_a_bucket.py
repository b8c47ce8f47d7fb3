"""U5 on an object store: what nothing refers to is found and removed, and nothing else is. Needs no Spark."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pyarrow as pa
import pytest

from floodmark.lake.catalog import Catalog
from floodmark.lake.spark_maintenance import orphans_of, remove_files
from s3 import S3Server

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
STRAYS = ["data/left behind.parquet", "data/n=1/%20.parquet", "metadata/snap-1.avro"]


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.create_bucket()


@pytest.fixture
def catalog(s3_server: S3Server, bucket: str, tmp_path: Path) -> Catalog:
    given = s3_server.settings(f"s3://{bucket}")
    settings = {
        "type": "sql",
        "uri": f"sqlite:///{tmp_path}/catalog.db",
        "warehouse": f"s3://{bucket}/lake",
        "s3.endpoint": given["endpoint"],
        "s3.region": given["region"],
        "s3.access-key-id": given["access_key_id"],
        "s3.secret-access-key": given["secret_access_key"],
    }
    made = Catalog("remote", {}, settings)
    made.python.create_namespace(made.namespace)
    for name in ("events_g1", "events_g10"):  # the one's name begins like the other's
        table = made.python.create_table((made.namespace, name), ROWS.schema)
        for _ in range(2):
            table.append(ROWS)
    return made


def test_only_what_nothing_refers_to_and_is_old_is_an_orphan(
    s3_server: S3Server, bucket: str, catalog: Catalog
) -> None:
    kept = s3_server.keys(bucket)
    home = f"lake/{catalog.namespace}/events_g1"
    assert any(key.startswith(f"{home}/") for key in kept)
    for stray in STRAYS:
        httpx.put(
            f"{s3_server.endpoint}/{bucket}/{home}/{stray.replace('%', '%25')}", content=b"stray"
        ).raise_for_status()

    def orphans(days: int) -> list[tuple[str, int]]:
        found = orphans_of(catalog.load("events_g1"), before=datetime.now(UTC) + timedelta(days=days))
        return sorted((item.location, item.bytes) for item in found)

    assert orphans(-1) == []
    assert orphans(1) == sorted((f"s3://{bucket}/{home}/{stray}", 5) for stray in STRAYS)

    found = orphans_of(catalog.load("events_g1"), before=datetime.now(UTC) + timedelta(days=1))
    for _ in range(2):  # one that is gone already is no error
        remove_files(found, catalog.python_settings)
    assert orphans(1) == []
    left = [key for key in s3_server.keys(bucket) if not key.endswith("/")]  # Arrow marks emptied directories
    assert sorted(left) == sorted(kept)
    assert catalog.load("events_g1").scan().to_arrow().num_rows == 6
