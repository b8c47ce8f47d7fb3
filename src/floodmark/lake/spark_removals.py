"""Removing rows from a table on Iceberg: counted, deleted, and their files gone.

Rows are deleted copy-on-write: a data file that holds a selected row is replaced by one without it, so that nothing of
the row is left once the old snapshots expire. A delete file beside the data would leave it there.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from floodmark.commit.protocol import PartitionStats
from floodmark.errors import Retryable, reason_of
from floodmark.lake.catalog import MAX_SEQ_PROPERTY
from floodmark.lake.durable import sync_metadata
from floodmark.lake.files import local_path
from floodmark.lake.filters import check_filter
from floodmark.lake.types import quoted, spark_type
from floodmark.schema import SEQ, Schema, parse_partition_key, partition_key
from floodmark.schema.types import DATE
from floodmark.sequence import CHECKSUM_MODULUS, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import Column, DataFrame

    from floodmark.lake.reading import SparkReader
    from floodmark.removal import Selection, Spared

PLACE = "_ingest_place"
DAY_MICROSECONDS = 86_400_000_000
RAISES_MAX = 5


def stats_of_selected(
    lake: SparkReader,
    table: str,
    *,
    snapshot: int,
    selection: Selection,
    schema: Schema,
    partition_by: tuple[str, ...],
    cuts: Sequence[int],
) -> list[tuple[SequenceRange, PartitionStats]]:
    """One job, however many partitions and cuts there are."""
    from pyspark.sql import functions as F

    from floodmark.lake import transforms

    frame = lake.frame(table, snapshot=snapshot)
    missing = [column for column in schema if column.name not in frame.columns]
    whole = frame.withColumns({c.name: F.lit(None).cast(spark_type(c.type)) for c in missing})
    # Not a bare 0 where there is none: a number there is a place in the select list to Spark.
    between = f"size(filter(array({', '.join(map(str, cuts)) or 'cast(null as bigint)'}), cut -> cut < {SEQ}))"
    grouped = (
        _chosen(lake, whole, selection, schema, partition_by)
        .groupBy(F.expr(between), *[quoted(name) for name in partition_by])
        .agg(F.count(F.lit(1)), F.sum(transforms.checksum_part()), F.min(SEQ), F.max(SEQ))
    )
    ends = [0, *cuts, selection.through]
    found = []
    for place, *key, rows, checksum, first, last in grouped.collect():
        tally = Tally(rows, int(checksum) % CHECKSUM_MODULUS)
        stats = PartitionStats(partition_key(partition_by, key), tally, first, last)
        found.append((SequenceRange(ends[place], ends[place + 1]), stats))
    return sorted(found, key=lambda item: (item[0], item[1].partition))


def _chosen(
    lake: SparkReader, frame: DataFrame, selection: Selection, schema: Schema, partition_by: tuple[str, ...]
) -> DataFrame:
    """The rows that a selection names, of a frame that has every column."""
    return frame.where(" AND ".join(_rule(lake, selection, schema))).where(
        ~is_spared(selection.spared, schema, partition_by)
    )


def is_spared(spared: Sequence[Spared], schema: Schema, partition_by: tuple[str, ...]) -> Column:
    """Whether a row stays, whatever else is said of it."""
    from pyspark.sql import functions as F

    found = F.lit(False)
    for item in spared:
        same = F.expr(_within(item))
        for name, value in zip(partition_by, parse_partition_key(partition_by, item.partition, schema), strict=True):
            same = same & F.col(quoted(name)).eqNullSafe(F.lit(value))
        found = found | same
    return found


def remove_selected(
    lake: SparkReader, table: str, *, selection: Selection, schema: Schema, partition_by: tuple[str, ...]
) -> None:
    condition, values = _condition(lake, selection, schema, partition_by)
    lake.spark.sql(f"DELETE FROM {lake.catalog.spark_name(table)} WHERE {condition}", args=values)  # noqa: S608 - it is SQL by nature


def _condition(
    lake: SparkReader, selection: Selection, schema: Schema, partition_by: tuple[str, ...]
) -> tuple[str, dict[str, Any]]:
    """The selection as one SQL condition, with the values that stand for its markers."""
    values: dict[str, Any] = {}
    spared = [_spared(item, schema, partition_by, values) for item in selection.spared]
    return " AND ".join([*_rule(lake, selection, schema), *(f"NOT {item}" for item in spared)]), values


def _rule(lake: SparkReader, selection: Selection, schema: Schema) -> list[str]:
    """What must be true of a row in any partition. The number comes first: files are pruned by it."""
    parts = [f"{SEQ} <= {selection.through}"]
    if selection.before is not None and selection.event_time is not None:
        parts.append(f"{quoted(selection.event_time)} < {_instant(selection, schema)}")
    if selection.numbers is not None:
        parts.append(f"{SEQ} IN ({', '.join(map(str, selection.numbers)) or 'NULL'})")
    if selection.where is not None:
        known = tuple((column.name, column.type) for column in schema)
        parts.append(f"({check_filter(lake.spark, selection.where, known)})")
    return parts


def _within(item: Spared) -> str:
    return "(" + " OR ".join(f"({SEQ} > {one.after} AND {SEQ} <= {one.through})" for one in item.ranges) + ")"


def _instant(selection: Selection, schema: Schema) -> str:
    if schema.column(selection.event_time or "").type == DATE:
        return f"date_from_unix_date({(selection.before or 0) // DAY_MICROSECONDS})"
    return f"timestamp_micros({selection.before})"


def _spared(item: Spared, schema: Schema, partition_by: tuple[str, ...], values: dict[str, Any]) -> str:
    same = []
    for name, value in zip(partition_by, parse_partition_key(partition_by, item.partition, schema), strict=True):
        marker = f"v{len(values)}"
        values[marker] = value
        same.append(f"{quoted(name)} <=> :{marker}" if value is not None else f"{quoted(name)} IS NULL")
        if value is None:
            del values[marker]
    return f"({' AND '.join([*same, _within(item)])})"


def raise_max_seq(lake: SparkReader, table: str, seq: int) -> None:
    """Also says how deletes are made from here on."""
    name = lake.catalog.spark_name(table)
    for _ in range(RAISES_MAX):
        state = lake.load(table)
        if state is None:
            raise Retryable(f"The table {table!r} is not there.")
        if state.max_seq >= seq:
            return
        try:
            lake.spark.sql(
                f"ALTER TABLE {name} SET TBLPROPERTIES "
                f"('{MAX_SEQ_PROPERTY}' = '{seq}', 'write.delete.mode' = 'copy-on-write')"
            )
        except Exception as error:
            raise Retryable(f"Table {table!r} could not be changed: {reason_of(error)}.") from error
        sync_metadata(lake.catalog.table(table))  # what the delete that follows can be taken back to
    raise Retryable(f"Table {table!r} is being changed by others too fast.", hint="Run it again.")


def stored_bytes(table: IcebergTable | None) -> int:
    """On this machine what the files take on the disk; elsewhere what the newest snapshot's are said to."""
    if table is None:
        return 0
    home = local_path(table.location())
    if home is not None:
        return sum(_sizes(Path(home)))
    snapshot = table.current_snapshot()
    summary = snapshot.summary.additional_properties if snapshot and snapshot.summary else {}
    return int(summary.get("total-files-size", "0"))


def _sizes(home: Path) -> Iterator[int]:
    for directory, _, names in os.walk(home):
        for name in names:
            with contextlib.suppress(FileNotFoundError):  # a commit beside us has just finished with it
                yield (Path(directory) / name).stat().st_size


def matching_places(lake: SparkReader, rows: pa.Table, condition: str, *, schema: Schema) -> list[int]:
    import pyarrow as pa

    chosen = check_filter(lake.spark, condition, tuple((column.name, column.type) for column in schema))
    wanted = schema.arrow()
    columns = {
        field.name: rows[field.name].cast(field.type)
        if field.name in rows.column_names
        else pa.nulls(rows.num_rows, field.type)
        for field in wanted
    }
    places = pa.array(range(rows.num_rows), pa.int64())
    frame = lake.spark.createDataFrame(pa.table({**columns, PLACE: places}))
    return sorted(row[PLACE] for row in frame.where(chosen).select(PLACE).collect())
