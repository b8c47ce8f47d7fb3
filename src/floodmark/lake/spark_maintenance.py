"""Compaction and expiry of a table on Iceberg. What only needs metadata is read without a JVM.

Files are rewritten by Iceberg's own procedure: its commit is a `replace`, which says of itself that it changed no row,
so that neither an append nor the verdict on one takes it for somebody's rows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import TableState
from floodmark.compaction import Bucket, DataFile
from floodmark.errors import Retryable, reason_of
from floodmark.lake.catalog import table_state
from floodmark.lake.durable import sync_metadata
from floodmark.lake.maintenance import highest_known, kept_snapshots
from floodmark.lake.plan import number_span
from floodmark.lake.spark_removals import raise_max_seq
from floodmark.schema import SEQ
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    from pyiceberg.manifest import ManifestEntry
    from pyiceberg.table import Table as IcebergTable

    from floodmark.lake.reading import SparkReader

MANIFEST_BYTES = 8 << 20
"""The size that Iceberg gives lists of files."""
METADATA_VERSIONS = 20
"""How many versions of its metadata a table keeps, to go back over those that a loss of power has taken."""
METADATA_VERSIONS_MIN = 1


# ── looking, without a JVM ───────────────────────────────────────────────────────────────────────────────────────────


def buckets_of(table: IcebergTable, state: TableState) -> list[Bucket]:
    """The head's files, bucket by bucket."""
    width = _bucket_width(table)
    number = table.schema().find_field(SEQ).field_id
    files: dict[SequenceRange, list[DataFile]] = {}
    deletes: dict[SequenceRange, int] = {}
    for entry, is_delete in _entries(table, state):
        held = entry.data_file
        bucket = _bucket_range(held.partition, width)
        if is_delete:
            deletes[bucket] = deletes.get(bucket, 0) + 1
        else:
            first, last = number_span(held, number)
            found = DataFile(first, last, held.record_count, held.file_size_in_bytes)
            files.setdefault(bucket, []).append(found)
    return [
        Bucket(bucket, tuple(sorted(files[bucket], key=lambda file: file.first)), deletes.get(bucket, 0))
        for bucket in sorted(files)
    ]


def _bucket_width(table: IcebergTable) -> int | None:
    """How many numbers share files; None where files are not kept apart by them."""
    from pyiceberg.transforms import TruncateTransform

    fields = table.spec().fields
    number = table.schema().find_field(SEQ).field_id
    if len(fields) != 1 or fields[0].source_id != number or not isinstance(fields[0].transform, TruncateTransform):
        return None
    return int(fields[0].transform.width)


def _bucket_range(partition: Any, width: int | None) -> SequenceRange:
    if width is None:
        return SequenceRange(0, SEQUENCE_MAX)
    start = int(partition[0])
    return SequenceRange(max(start - 1, 0), min(start + width - 1, SEQUENCE_MAX))


def _entries(table: IcebergTable, state: TableState) -> Iterator[tuple[ManifestEntry, bool]]:
    from pyiceberg.manifest import ManifestContent

    for manifest in _manifests(table, state.head):
        for entry in manifest.fetch_manifest_entry(table.io):
            yield entry, manifest.content == ManifestContent.DELETES


def _manifests(table: IcebergTable, snapshot: int | None) -> list[Any]:
    if snapshot is None:
        return []
    found = table.snapshot_by_id(snapshot)
    if found is None:
        raise Retryable(f"A snapshot of {table.name()[-1]!r} expired while it was looked at.", hint="Do it again.")
    return list(found.manifests(table.io))


def small_manifests(table: IcebergTable, state: TableState) -> int:
    from pyiceberg.manifest import ManifestContent

    lists = [one for one in _manifests(table, state.head) if one.content == ManifestContent.DATA]
    return sum(1 for one in lists if one.manifest_length < MANIFEST_BYTES // 2)


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def rewrite_files(lake: SparkReader, table: str, *, within: SequenceRange, file_bytes: int, one_file: bool) -> None:
    """In the table's own order: by number, unless its layout says otherwise.

    What goes into one file is put in order by the task that writes it. Several files are told apart by ranges of that
    order, which takes a shuffle.
    """
    options = {
        "rewrite-all": "true",
        "target-file-size-bytes": str(file_bytes),
        # A delete file that speaks of no file any more would make the bucket look as if it had still to be rewritten.
        "remove-dangling-deletes": "true",
    }
    shown = ", ".join(f"'{name}', '{value}'" for name, value in options.items())
    strategy = "binpack" if one_file else "sort"
    where = f"{SEQ} > {within.after} AND {SEQ} <= {within.through}"
    _call(
        lake,
        table,
        "rewrite_data_files",
        f"strategy => '{strategy}', where => '{where}', options => map({shown})",
    )


def rewrite_manifests(lake: SparkReader, table: str) -> None:
    _call(lake, table, "rewrite_manifests", "use_caching => false")


def expire_snapshots(lake: SparkReader, table: str, *, keep_snapshots: int, since: int | None) -> int:
    """By name, never by age: what an undecided block still needs is known, and no clock is asked."""
    loaded = lake.catalog.table(table)
    if loaded is None:
        return 0
    state = table_state(table, loaded)
    kept = kept_snapshots(state, keep_snapshots=keep_snapshots, since=since)
    gone = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots if snapshot.snapshot_id not in kept]
    if not gone:
        return 0
    raise_max_seq(lake, table, highest_known(state))
    ids = ", ".join(f"{id}L" for id in gone)
    _call(
        lake,
        table,
        "expire_snapshots",
        f"older_than => TIMESTAMP '1971-01-01 00:00:00', snapshot_ids => array({ids})",
    )
    sync_metadata(lake.catalog.table(table))
    if len(gone) > METADATA_VERSIONS:
        _forget_old_metadata(lake, table)
    return len(gone)


def _forget_old_metadata(lake: SparkReader, table: str) -> None:
    """The versions before this one list every snapshot that has just gone: a table with many is mostly those."""
    for versions in (METADATA_VERSIONS_MIN, METADATA_VERSIONS):
        try:
            lake.spark.sql(
                f"ALTER TABLE {lake.catalog.spark_name(table)} SET TBLPROPERTIES "
                f"('write.metadata.previous-versions-max' = '{versions}')"
            )
        except Exception as error:
            raise Retryable(f"Table {table!r} could not be changed: {reason_of(error)}.") from error
        sync_metadata(lake.catalog.table(table))


def _call(lake: SparkReader, table: str, procedure: str, arguments: str) -> None:
    name = f"{lake.catalog.namespace}.{table}"
    with lake._action():  # noqa: SLF001 - the lake's other half
        try:
            lake.spark.sql(f"CALL `{lake.catalog.name}`.system.{procedure}(table => '{name}', {arguments})").collect()
        except Exception as error:
            raise Retryable(
                f"Iceberg's {procedure} failed on table {table!r}: {reason_of(error)}.",
                hint="No row was changed. Run it again; if it fails again, run `floodmark fsck`.",
            ) from error
