"""Planning reads each manifest once, and none that cannot have what is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyiceberg.expressions import AlwaysTrue
from pyiceberg.manifest import ManifestFile

from floodmark.lake.catalog import table_state
from floodmark.lake.manifests import Manifests
from floodmark.lake.spark_maintenance import files_of
from floodmark.schema import SEQ
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

ALL = SequenceRange(0, SEQUENCE_MAX)
WIDTH = 10


class Counted(list[str]):
    """The manifests that were read."""


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> Counted:
    found = Counted()
    real = ManifestFile.fetch_manifest_entry

    def fetch(manifest: ManifestFile, *arguments: Any, **options: Any) -> Any:
        found.append(manifest.manifest_path)
        return real(manifest, *arguments, **options)

    monkeypatch.setattr(ManifestFile, "fetch_manifest_entry", fetch)
    return found


@pytest.fixture
def table(tmp_path: Path) -> Any:
    from pyiceberg.catalog.sql import SqlCatalog
    from pyiceberg.partitioning import PartitionField, PartitionSpec
    from pyiceberg.schema import Schema
    from pyiceberg.transforms import TruncateTransform
    from pyiceberg.types import LongType, NestedField, StringType

    catalog = SqlCatalog("c", uri=f"sqlite:///{tmp_path}/c.db", warehouse=f"file://{tmp_path}/w")
    catalog.create_namespace("n")
    schema = Schema(
        NestedField(1, SEQ, LongType(), required=False), NestedField(2, "text", StringType(), required=False)
    )
    spec = PartitionSpec(PartitionField(1, 1000, TruncateTransform(WIDTH), "bucket"))
    return catalog.create_table("n.t", schema=schema, partition_spec=spec)


def append(table: Any, *numbers: int) -> None:
    """Commit the entry of a file: what planning reads. The file itself is not there."""
    from pyiceberg.manifest import DataFile, DataFileContent, FileFormat
    from pyiceberg.typedef import Record

    bounds = {1: numbers} if numbers else {}
    file = DataFile.from_args(
        content=DataFileContent.DATA,
        file_path=f"{table.location()}/data/{'-'.join(map(str, numbers))}.parquet",
        file_format=FileFormat.PARQUET,
        partition=Record((numbers[0] if numbers else 0) // WIDTH * WIDTH),
        record_count=len(numbers),
        file_size_in_bytes=100,
        column_sizes={},
        value_counts={},
        null_value_counts={2: 1},
        nan_value_counts={},
        lower_bounds={key: min(value).to_bytes(8, "little") for key, value in bounds.items()} | {2: b"a long text"},
        upper_bounds={key: max(value).to_bytes(8, "little") for key, value in bounds.items()},
        key_metadata=None,
        split_offsets=None,
        equality_ids=None,
        sort_order_id=None,
    )
    file.spec_id = table.spec().spec_id
    with table.transaction() as transaction, transaction.update_snapshot().fast_append() as one:
        one.append_data_file(file)


def spans(table: Any, manifests: Manifests, within: SequenceRange = ALL) -> list[tuple[int, int]]:
    head = table.current_snapshot().snapshot_id
    found = manifests.files(table, head, within=within, row_filter=AlwaysTrue())
    return sorted(file.numbers(1) for file in found)


def test_a_manifest_is_read_once(table: Any, read: Counted) -> None:
    append(table, 1, 2, 3)
    manifests = Manifests()
    assert spans(table, manifests) == [(1, 3)]
    append(table, 4, 5)
    assert spans(table, manifests) == [(1, 3), (4, 5)]
    read.clear()
    assert spans(table, manifests) == [(1, 3), (4, 5)]
    assert read == []


def test_the_files_of_a_table_are_listed_from_the_same_memory(table: Any, read: Counted) -> None:
    append(table, 1, 2, 3)
    append(table)
    append(table, 14, 15)
    manifests = Manifests()
    spans(table, manifests)
    read.clear()
    found = files_of(table, table_state("numbers", table), manifests)
    assert read == []
    assert [(file.first, file.last, file.rows, file.bucket) for file in found.files if file.rows] == [
        (14, 15, 2, SequenceRange(9, 19)),
        (1, 3, 3, SequenceRange(0, 9)),
    ]
    assert len(found.files) == 3  # what has no rows is a file, too


def test_manifests_of_other_numbers_are_not_read(table: Any, read: Counted) -> None:
    for first in (1, 11, 21):
        append(table, first, first + 1)
    read.clear()
    assert spans(table, Manifests(), SequenceRange(20, 30)) == [(21, 22)]
    assert len(read) == 1
    assert spans(table, Manifests(), SequenceRange(15, 21)) == [(11, 12), (21, 22)]  # 15 may be in the bucket of 10


def test_what_is_known_of_a_file(table: Any) -> None:
    append(table, 1, 2, 3)
    head = table.current_snapshot().snapshot_id
    (file,) = Manifests().files(table, head, within=ALL, row_filter=AlwaysTrue())
    assert (file.rows, file.size, file.is_plain, file.span(1), file.nulls) == (3, 100, True, (1, 3), {2: 1})
    assert file.span(2) is None  # a text's bounds are no numbers
    assert file.numbers(99) == (1, SEQUENCE_MAX)


def test_a_file_without_rows_is_not_listed(table: Any) -> None:
    append(table, 1)
    append(table)
    assert spans(table, Manifests()) == [(1, 1)]


def test_what_is_kept_is_bounded(table: Any, read: Counted) -> None:
    manifests = Manifests(files_max=1)
    append(table, 1)
    append(table, 2)
    spans(table, manifests)
    read.clear()
    assert spans(table, manifests) == [(1, 1), (2, 2)]
    assert len(read) == 2


def test_a_snapshot_that_has_expired_is_no_empty_one(table: Any) -> None:
    append(table, 1)
    with pytest.raises(LookupError, match="expired"):
        list(Manifests().files(table, 77, within=ALL, row_filter=AlwaysTrue()))
