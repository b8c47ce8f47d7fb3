"""Canonical order on Spark: the events of many logs, each log's in the order that its own replica computes.

The graph of one log is walked by one task, since depth depends on everything above; the logs are walked in parallel,
and what is carried through the walk is a transaction's id and parents, not its events. Sorting and numbering are
Spark's. Text compares as its UTF-8 bytes there, as the order demands.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from pyspark.sql import Window
from pyspark.sql import functions as F

from floodmark.eventlog.dag import Graph

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_CANONICAL = ("depth", "created_at", "replica_id", "transaction_id", "ordinal")


def linearise(arrivals: DataFrame) -> DataFrame:
    """Add `depth`, `canonical_number` and `stream_version`, each from the whole of an event's log.

    `arrivals` has the columns `log`, `transaction_id`, `parent_transaction_ids` (array of text), `created_at`,
    `replica_id`, `ordinal`, `stream`, and any others, which are kept. One row is one event; a transaction without
    events is one row whose `ordinal` is null: it counts in the graph and is not in the result.
    """
    return (
        arrivals.where(F.col("ordinal").isNotNull())
        .join(arrivals.transform(depths), ["log", "transaction_id"])
        .withColumn("canonical_number", _number_within("log"))
        .withColumn("stream_version", _number_within("log", "stream"))
        .select(*arrivals.columns, "depth", "canonical_number", "stream_version")
    )


def depths(arrivals: DataFrame) -> DataFrame:
    """The depth of each transaction of each log; cyclic ones have none."""
    # Without Arrow: it would need pandas, and here each log is one value anyway.
    walk = F.udf(_walk, "array<struct<transaction_id: string, depth: bigint>>", useArrow=False)
    return (
        arrivals.dropDuplicates(["log", "transaction_id"])
        .groupBy("log")
        .agg(F.collect_list(F.struct("transaction_id", "parent_transaction_ids")).alias("transactions"))
        .select("log", F.explode(walk("transactions")).alias("walked"))
        .select("log", "walked.transaction_id", "walked.depth")
    )


def _number_within(*columns: str) -> Column:
    return F.row_number().over(Window.partitionBy(*columns).orderBy(*_CANONICAL))


def _walk(transactions: Sequence[tuple[str, Sequence[str]]]) -> list[tuple[str, int]]:
    graph = Graph()
    graph.extend({transaction_id: tuple(parents) for transaction_id, parents in transactions})
    return list(graph.depth.items())
