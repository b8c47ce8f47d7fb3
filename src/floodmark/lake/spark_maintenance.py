"""Upkeep of a table on Iceberg: its files listed and joined, rows deleted, snapshots expired, tables renamed or gone.

What only needs metadata is read without a JVM.

Files are rewritten by Iceberg's own procedure: its commit is a `replace`, which says of itself that it changed no row,
so that neither an append nor the verdict on one takes it for an append of rows.

Rows are deleted copy-on-write: a data file that holds a selected row is replaced by one without it, so that nothing of
the row is left once the old snapshots expire. A delete file beside the data would leave it there.
"""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import TableState
from floodmark.errors import FilesMissing, Retryable, reason_of
from floodmark.lake.catalog import MAX_SEQ_PROPERTY, Catalog, table_state
from floodmark.lake.durable import sync_metadata
from floodmark.lake.files import local_path
from floodmark.lake.inventory import Orphan, TableFile, TableFiles, bucket_range, highest_known, kept_snapshots
from floodmark.lake.manifests import ListedFile, Manifests, listed_file
from floodmark.lake.places import check_answered, files_below
from floodmark.lake.session import beside_commits
from floodmark.lake.spark_reading import conditions, in_ranges
from floodmark.lake.types import quoted
from floodmark.removal import Selection, Spared
from floodmark.schema import SEQ, Schema, parse_partition_key
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

if TYPE_CHECKING:
    from pyiceberg.io import FileIO
    from pyiceberg.manifest import ManifestFile
    from pyiceberg.table import Table as IcebergTable

    from floodmark.lake.spark_reading import SparkReader

MANIFEST_BYTES = 8 << 20
"""The size that Iceberg gives lists of files."""
METADATA_VERSIONS = 20
"""How many versions of its metadata a table keeps, to go back over those that a loss of power has taken."""
METADATA_VERSIONS_MIN = 1
RAISES_MAX = 5


# ── the files of a table, without a JVM ──────────────────────────────────────────────────────────────────────────────


def files_of(table: IcebergTable, state: TableState, known: Manifests) -> TableFiles:
    """From the head's manifests; those that were read before are not read again."""
    snapshot = None if state.head is None else table.snapshot_by_id(state.head)
    if snapshot is None:
        if state.head is None:
            return TableFiles()
        raise Retryable(f"A snapshot of {state.name!r} expired while it was read.", hint="Run it again.")
    manifests = snapshot.manifests(table.io)
    files = [file for one in manifests for file in _listed(table, one, known.listed(table, one))]
    return TableFiles(tuple(files), _small(manifests))


def checked_files(table: IcebergTable, state: TableState) -> TableFiles:
    """The same, and whether each of them is there as it was written."""
    snapshot = None if state.head is None else table.snapshot_by_id(state.head)
    if snapshot is None:
        return TableFiles()
    missing: set[str] = set()
    found: list[TableFile] = []
    manifests: list[ManifestFile] = []
    try:
        manifests = snapshot.manifests(table.io)
        for manifest in manifests:
            if not _is_whole(table.io, manifest.manifest_path, manifest.manifest_length):
                missing.add(manifest.manifest_path)
                continue
            read = [listed_file(entry.data_file) for entry in manifest.fetch_manifest_entry(table.io)]
            listed = list(_listed(table, manifest, read))
            missing.update(file.location for file in listed if not _is_whole(table.io, file.location, file.bytes))
            found += listed
    except (OSError, ValueError, EOFError):
        missing.add(snapshot.manifest_list)
    return TableFiles(tuple(found), _small(manifests), tuple(sorted(missing)))


def _listed(table: IcebergTable, manifest: ManifestFile, files: Iterable[ListedFile]) -> Iterator[TableFile]:
    from pyiceberg.manifest import ManifestContent

    number = table.schema().find_field(SEQ).field_id
    width = bucket_width(table)
    deletes = manifest.content == ManifestContent.DELETES
    for file in files:
        bucket = SequenceRange(0, SEQUENCE_MAX) if width is None else bucket_range(int(file.partition[0]), width)
        yield TableFile(file.location, *file.numbers(number), file.rows, file.size, bucket, deletes)


def bucket_width(table: IcebergTable) -> int | None:
    """How many numbers share files; None where files are not kept apart by them."""
    from pyiceberg.transforms import TruncateTransform

    fields = table.spec().fields
    number = table.schema().find_field(SEQ).field_id
    if len(fields) != 1 or fields[0].source_id != number or not isinstance(fields[0].transform, TruncateTransform):
        return None
    return int(fields[0].transform.width)


def _small(manifests: list[ManifestFile]) -> int:
    from pyiceberg.manifest import ManifestContent

    lists = [one for one in manifests if one.content == ManifestContent.DATA]
    return sum(1 for one in lists if one.manifest_length < MANIFEST_BYTES // 2)


def _is_whole(io: FileIO, location: str, size: int) -> bool:
    try:
        return len(io.new_input(location)) == size
    except OSError as error:
        check_answered(location, error)
        return False


# ── rewriting ────────────────────────────────────────────────────────────────────────────────────────────────────────


def rewrite_files(lake: SparkReader, table: str, *, within: SequenceRange, file_bytes: int, one_file: bool) -> None:
    """In the table's own order: by number, unless its layout says otherwise.

    What goes into one file is put in order by the task that writes it. Several files are separated by ranges of that
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


def expire_snapshots(lake: SparkReader, table: str, *, keep_snapshots: int) -> int:
    """By name, never by age: what an undecided block still needs is known, and no clock is read."""
    loaded = lake.catalog.table(table)
    if loaded is None:
        return 0
    state = table_state(table, loaded)
    kept = kept_snapshots(state, keep_snapshots)
    gone = [snapshot.snapshot_id for snapshot in loaded.metadata.snapshots if snapshot.snapshot_id not in kept]
    if not gone:
        return 0
    raise_max_seq(lake, table, highest_known(state))
    ids = ", ".join(f"{id}L" for id in gone)
    try:
        _call(
            lake,
            table,
            "expire_snapshots",
            f"older_than => TIMESTAMP '1971-01-01 00:00:00', snapshot_ids => array({ids})",
        )
    except Retryable:
        # Iceberg cannot expire a snapshot twice, and a Spark Connect client may send the call again.
        if _are_known(lake.catalog.table(table), gone):
            raise
    sync_metadata(lake.catalog.table(table))
    if len(gone) > METADATA_VERSIONS:
        _forget_old_metadata(lake, table)
    return len(gone)


def _are_known(table: IcebergTable | None, snapshots: Collection[int]) -> bool:
    """Whether a table still has one of some snapshots."""
    return table is None or any(snapshot.snapshot_id in snapshots for snapshot in table.metadata.snapshots)


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
    with lake.action(), beside_commits(lake.spark):
        try:
            lake.spark.sql(f"CALL `{lake.catalog.name}`.system.{procedure}(table => '{name}', {arguments})").collect()
        except Exception as error:
            raise Retryable(
                f"Iceberg's {procedure} failed on table {table!r}: {reason_of(error)}.",
                hint="No row was changed. Run it again; if it fails again, run `floodmark fsck`.",
            ) from error


# ── deleting ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def remove_selected(
    lake: SparkReader, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]
) -> None:
    values: dict[str, Any] = {}
    spared = [_spared(item, schema, partition_by, values) for item in selection.spared]
    condition = " AND ".join([*conditions(lake.spark, selection, schema), *(f"NOT {item}" for item in spared)])
    with beside_commits(lake.spark):
        lake.spark.sql(f"DELETE FROM {lake.catalog.spark_name(table)} WHERE {condition}", args=values)  # noqa: S608 - it is SQL by nature


def _spared(item: Spared, schema: Schema, partition_by: tuple[str, ...], values: dict[str, Any]) -> str:
    same = []
    for name, value in zip(partition_by, parse_partition_key(partition_by, item.partition, schema), strict=True):
        marker = f"v{len(values)}"
        values[marker] = value
        same.append(f"{quoted(name)} <=> :{marker}" if value is not None else f"{quoted(name)} IS NULL")
        if value is None:
            del values[marker]
    return f"({' AND '.join([*same, in_ranges(item)])})"


def raise_max_seq(lake: SparkReader, table: str, seq: int) -> None:
    """Also sets how later deletes are written."""
    name = lake.catalog.spark_name(table)
    for _ in range(RAISES_MAX):
        state = lake.load(table)
        if state is None:
            raise Retryable(f"The table {table!r} does not exist.")
        if state.max_seq >= seq:
            return
        try:
            lake.spark.sql(
                f"ALTER TABLE {name} SET TBLPROPERTIES "
                f"('{MAX_SEQ_PROPERTY}' = '{seq}', 'write.delete.mode' = 'copy-on-write')"
            )
        except Exception as error:
            raise Retryable(f"Table {table!r} could not be changed: {reason_of(error)}.") from error
        sync_metadata(lake.catalog.table(table))  # the next delete can be rolled back to it
    raise Retryable(f"Table {table!r} is changed too often by other processes.", hint="Run it again.")


# ── names ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def rename_table(catalog: Catalog, table: str, to: str) -> bool:
    """By the catalog itself: one change there, no file is touched, no JVM needed."""
    from pyiceberg.exceptions import NoSuchTableError, TableAlreadyExistsError

    try:
        catalog.python.rename_table((catalog.namespace, table), (catalog.namespace, to))
    except TableAlreadyExistsError as error:
        raise Retryable(f"There is a table {to!r} already.") from error
    except NoSuchTableError:
        return False
    except Exception as error:
        # It may have happened anyway: the caller reads again.
        raise Retryable(f"Table {table!r} could not be renamed: {reason_of(error)}.") from error
    return True


def drop_table(lake: SparkReader, table: str) -> None:
    catalog = lake.catalog
    try:
        loaded = catalog.table(table)
    except FilesMissing:  # it is not known any more which files were its own
        catalog.python.drop_table((catalog.namespace, table))
        return
    if loaded is None:
        return
    home = local_path(loaded.location())
    try:
        if home is None:
            lake.spark.sql(f"DROP TABLE IF EXISTS {catalog.spark_name(table)} PURGE")
        else:
            _drop_with_home(catalog, table, Path(home))
    except Exception as error:
        raise Retryable(f"Table {table!r} could not be dropped: {reason_of(error)}.") from error


def _drop_with_home(catalog: Catalog, table: str, home: Path) -> None:
    """The location is this table's alone: names of generations are never used again. So nothing is searched."""
    from pyiceberg.exceptions import NoSuchTableError

    with contextlib.suppress(NoSuchTableError):
        catalog.python.drop_table((catalog.namespace, table))
    shutil.rmtree(home, ignore_errors=True)


# ── orphans ──────────────────────────────────────────────────────────────────────────────────────────────────────────
# Files in a table's own place that no snapshot refers to: in a directory, or below a prefix of a bucket.
#
# An object store is listed with the settings that the table's own files are read with.


def orphans_of(table: IcebergTable, *, before: datetime) -> list[Orphan]:
    """The files that nothing refers to. A place that can be neither walked nor listed is not searched.

    It is listed before the snapshots are read: what a commit adds in between is referred to by then, or too young.
    """
    old = [Orphan(found.location, found.size) for found in files_below(table.io, table.location()) if found.at < before]
    left = {_place(_owner(item.location)) for item in old}
    if left:
        table.refresh()
    for location in _referred_to(table) if left else ():
        left.discard(_place(location))
        if not left:  # the newest snapshots refer to nearly all of them: the others need not be read
            return []
    return [item for item in old if _place(_owner(item.location)) in left]


def remove_files(orphans: Sequence[Orphan], settings: Mapping[str, str]) -> None:
    """Settings are those of the catalog whose tables they were found beside."""
    from pyiceberg.io import load_file_io

    for item in orphans:
        path = local_path(item.location)
        with contextlib.suppress(FileNotFoundError):
            if path is not None:
                Path(path).unlink()
            else:
                load_file_io(dict(settings), item.location).delete(item.location)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def _owner(location: str) -> str:
    """Hadoop keeps a checksum beside each file: it is as needed as the file itself."""
    directory, _, name = location.rpartition("/")
    if name.startswith(".") and name.endswith(".crc"):
        return f"{directory}/{name.removeprefix('.').removesuffix('.crc')}"
    return location


def _place(location: str) -> str:
    """What two names of one file have in common: `file:/x` and `/x`, `s3://x` and `s3a://x`."""
    path = local_path(location)
    return location.partition("://")[2] if path is None else os.path.normpath(path)


def _referred_to(table: IcebergTable) -> Iterator[str]:
    metadata = table.metadata
    yield table.metadata_location
    yield from (item.metadata_file for item in metadata.metadata_log)
    yield from (item.statistics_path for item in metadata.statistics)
    yield from (item.statistics_path for item in metadata.partition_statistics)
    seen: set[str] = set()
    for snapshot in sorted(metadata.snapshots, key=lambda one: -one.timestamp_ms):
        yield snapshot.manifest_list
        for manifest in snapshot.manifests(table.io):
            if manifest.manifest_path in seen:
                continue
            seen.add(manifest.manifest_path)
            yield manifest.manifest_path
            for entry in manifest.fetch_manifest_entry(table.io):
                yield entry.data_file.file_path
