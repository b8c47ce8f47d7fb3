"""What a table is, is asked of its catalog every time; the file that the catalog names is read once. Needs no Spark."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyiceberg.serializers import FromInputFile

from floodmark.errors import FilesMissing
from floodmark.lake.catalog import Catalog
from floodmark.lake.files import local_path

ROWS = pa.table({"n": pa.array([1, 2, 3], pa.int64())})
TABLE = "events_g1"


@pytest.fixture
def catalog(tmp_path: Path) -> Catalog:
    made = opened(tmp_path)
    made.python.create_namespace(made.namespace)
    made.python.create_table((made.namespace, TABLE), ROWS.schema).append(ROWS)
    return made


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The metadata files that were read."""
    found: list[str] = []
    read = FromInputFile.table_metadata
    monkeypatch.setattr(
        FromInputFile, "table_metadata", staticmethod(lambda file, *a: found.append(file.location) or read(file, *a))
    )
    return found


def opened(home: Path) -> Catalog:
    return Catalog.embedded(name="lake", lake=home)


def metadata_file(catalog: Catalog) -> Path:
    return Path(local_path(catalog.load(TABLE).metadata_location) or "")


def test_a_metadata_file_is_read_once(catalog: Catalog, reads: list[str]) -> None:
    states = [catalog.state(TABLE) for _ in range(5)]
    assert len(reads) == 1
    assert all(state == states[0] for state in states)
    assert [catalog.table(TABLE).scan().to_arrow().num_rows for _ in range(2)] == [3, 3]
    assert len(reads) == 1


def test_another_processs_commit_is_seen_at_once(catalog: Catalog, tmp_path: Path) -> None:
    before = catalog.state(TABLE)
    held = catalog.table(TABLE)
    opened(tmp_path).load(TABLE).append(ROWS)
    after = catalog.state(TABLE)
    assert after.head != before.head
    assert [snapshot.id for snapshot in after.lineage[1:]] == [snapshot.id for snapshot in before.lineage]
    assert held.current_snapshot().snapshot_id == before.head
    held.refresh()  # whoever refreshes a table of theirs changes nobody else's
    assert catalog.state(TABLE) == after


def test_a_table_that_is_renamed_or_gone_is_not_remembered(catalog: Catalog) -> None:
    state = catalog.state(TABLE)
    catalog.python.rename_table((catalog.namespace, TABLE), (catalog.namespace, "other"))
    assert catalog.state(TABLE) is None
    assert catalog.state("other").head == state.head
    catalog.python.create_table((catalog.namespace, TABLE), ROWS.schema)
    assert catalog.state(TABLE).head is None


@pytest.mark.parametrize("size", [None, 0, 40])
def test_a_file_that_is_lost_or_cut_off_is_told_although_it_was_read_before(catalog: Catalog, size: int | None) -> None:
    """I7: what a table refers to must be there."""
    file = metadata_file(catalog)
    if size is None:
        file.unlink()
    else:
        file.write_bytes(file.read_bytes()[:size])
    with pytest.raises(FilesMissing):
        catalog.state(TABLE)
