"""The control database's tables, as SQLAlchemy sees them.

The DDL is in `migrations/`, and is not changed after a release; a test compares the two.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Boolean, Column, MetaData, Row, Table, Text

from floodmark.errors import Corrupt, Permanent

Record = Row[*tuple[Any, ...]]
"""A row of one of these tables."""

metadata = MetaData()

meta = Table("meta", metadata, Column("name", Text, primary_key=True), Column("value", Text, nullable=False))

counters = Table(
    "counters", metadata, Column("name", Text, primary_key=True), Column("value", BigInteger, nullable=False)
)

datasets = Table(
    "datasets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("identity_columns", Text, nullable=False),
    Column("event_time", Text),
    Column("partition_by", Text, nullable=False),
    Column("columns", Text, nullable=False),
    Column("settle", Text),
    Column("generation", BigInteger, nullable=False),
    Column("fenced", Boolean, nullable=False),
    Column("horizon", BigInteger, nullable=False),
    Column("synced_snapshot", BigInteger),
    Column("created_at", Text, nullable=False),
    Column("event_cutoff", BigInteger),
    Column("layout", Text, nullable=False, default="{}"),
    Column("changed", BigInteger, nullable=False, default=0),
    Column("identity_null", Text, nullable=False, default="keep"),
    Column("identity_scope", Text, nullable=False, default="event_time"),
    Column("paused_at", Text),
)

landing = Table(
    "landing",
    metadata,
    Column("file", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("sealed", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("removed_at", Text),
)

blocks = Table(
    "blocks",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("after_seq", BigInteger, nullable=False),
    Column("through_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("generation", BigInteger, nullable=False),
    Column("table_uuid", Text, nullable=False),
    Column("base_snapshot", BigInteger),
    Column("snapshot", BigInteger),
    Column("row_count", BigInteger, nullable=False, default=0),
    Column("duplicates", BigInteger, nullable=False, default=0),
    Column("reserved_at", Text, nullable=False),
    Column("decided_at", Text),
    Column("reason", Text),
    Column("expired", BigInteger, nullable=False, default=0),
    Column("dropped", BigInteger, nullable=False, default=0),
    Column("folded", BigInteger, nullable=False, default=1),
    Column("unsettled", BigInteger, nullable=False, default=0),
)

block_partitions = Table(
    "block_partitions",
    metadata,
    Column("block", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("first_seq", BigInteger, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

partitions = Table(
    "partitions",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("last_seq", BigInteger, nullable=False),
)

segments = Table(
    "segments",
    metadata,
    Column("id", BigInteger, primary_key=True, autoincrement=False),
    Column("dataset", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("registered", BigInteger),
    Column("path", Text, nullable=False),
    Column("owner", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False, default=0),
    Column("byte_count", BigInteger, nullable=False, default=0),
    Column("event_min", BigInteger),
    Column("event_max", BigInteger),
    Column("block", Text),
    Column("block_offset", BigInteger),
    Column("landing_file", Text),
    Column("landing_from", BigInteger),
    Column("landing_through", BigInteger),
    Column("source", Text),
    Column("ordinal", BigInteger),
    Column("created_at", Text, nullable=False),
    Column("unfolded_bytes", BigInteger),
    Column("set_aside", Text),
    Column("part_of", BigInteger),
)

problems = Table(
    "problems",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("message", Text, nullable=False),
    Column("gist", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("segments_max", BigInteger),
    Column("first_at", Text, nullable=False),
    Column("last_at", Text, nullable=False),
)

losses = Table(
    "losses",
    metadata,
    Column("segment", BigInteger, primary_key=True, autoincrement=False),
    Column("dataset", Text, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("after_seq", BigInteger),
    Column("through_seq", BigInteger),
    Column("kept_at", Text),
    Column("reason", Text, nullable=False),
    Column("recorded_at", Text, nullable=False),
)

segment_partitions = Table(
    "segment_partitions",
    metadata,
    Column("segment", BigInteger, primary_key=True, autoincrement=False),
    Column("partition_key", Text, primary_key=True),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("first_row", BigInteger, nullable=False),
    Column("last_row", BigInteger, nullable=False),
)

sinks = Table(
    "sinks",
    metadata,
    Column("instance", Text, primary_key=True),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text),
    Column("created_at", Text, nullable=False),
    Column("ticked_at", Text),
    Column("number", BigInteger, nullable=False, default=0),
    Column("hub", Text),
    Column("problem", Text),
    Column("next_attempt_at", Text),
    Column("paused_at", Text),
    Column("known_as", Text),
)

removed_datasets = Table(
    "removed_datasets",
    metadata,
    Column("name", Text, primary_key=True),
    Column("removed_at", Text, nullable=False),
    Column("leftovers", Text),
)

watermarks = Table(
    "watermarks",
    metadata,
    Column("sink", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False, default=0),
    Column("checksum", Text, nullable=False, default="0000000000000000"),
    Column("moved_at", Text),
)

intents = Table(
    "intents",
    metadata,
    Column("id", Text, primary_key=True),
    Column("sink", Text, nullable=False),
    Column("dataset", Text, nullable=False),
    Column("partition_key", Text, nullable=False),
    Column("after_seq", BigInteger, nullable=False),
    Column("through_seq", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("pinned_at", Text, nullable=False),
)

chunks = Table(
    "chunks",
    metadata,
    Column("intent", Text, primary_key=True),
    Column("after_seq", BigInteger, primary_key=True),
    Column("through_seq", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
    Column("row_count", BigInteger),
    Column("checksum", Text),
    Column("acknowledged_at", Text),
    Column("root_after", BigInteger),
    Column("root_rows", BigInteger),
    Column("base", Text),
    Column("folded", BigInteger, nullable=False, default=1),
)

ledger = Table(
    "ledger",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("through_seq", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("given_up", Text, nullable=False),
    Column("version", BigInteger, nullable=False),
    Column("path", Text, nullable=False, default="[]"),
    Column("updated_at", Text),
    Column("given_up_rows", BigInteger, nullable=False, default=0),
)

ledger_given_up = Table(
    "ledger_given_up",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("after_seq", BigInteger, primary_key=True, autoincrement=False),
    Column("through_seq", BigInteger, nullable=False),
)

provenance = Table(
    "provenance",
    metadata,
    Column("origin", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("store", Text, primary_key=True),
)

tokens = Table(
    "tokens",
    metadata,
    Column("name", Text, primary_key=True),
    Column("hash", Text, nullable=False),
    Column("origins", Text),
    Column("datasets", Text),
    Column("created_at", Text, nullable=False),
    Column("revoked_at", Text),
    Column("relay", BigInteger, nullable=False, default=1),
    Column("rights", Text, nullable=False, default="[]"),
    Column("expires_at", Text),
)

requests = Table(
    "keyed_requests",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("token", Text, primary_key=True),
    Column("key", Text, primary_key=True),
    Column("digest", Text, nullable=False),
    Column("receipt", Text, nullable=False),
    Column("created_at", Text, nullable=False),
)

quarantine = Table(
    "quarantine",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("payload", Text),
    Column("payload_path", Text),
    Column("sink", Text),
    Column("seq", BigInteger),
    Column("landing_file", Text),
    Column("landing_offset", BigInteger),
    Column("landing_row", BigInteger),
    Column("created_at", Text, nullable=False),
    Column("decided_at", Text),
    Column("partition_key", Text),
    Column("checksum", Text),
    Column("row_count", BigInteger, nullable=False, default=1),
    Column("token", Text),
    Column("source_key", Text),
)

rebuilds = Table(
    "rebuilds",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("epoch", BigInteger, nullable=False),
    Column("settings", Text, nullable=False),
    Column("generation", BigInteger),
    Column("started_at", Text),
)

sources = Table(
    "sources",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("position", Text, nullable=False),
    Column("next_ordinal", BigInteger, nullable=False),
    Column("state", Text, nullable=False),
)

removals = Table(
    "removals",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("after_seq", BigInteger, nullable=False),
    Column("through_seq", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("reason", Text, nullable=False),
    Column("removed_at", Text, nullable=False),
    Column("state", Text, nullable=False, default="done"),
)

operations = Table(
    "operations",
    metadata,
    Column("id", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("selection", Text, nullable=False),
    Column("begun_at", Text, nullable=False),
    Column("ended_at", Text),
    Column("number", BigInteger, nullable=False, default=0),
    Column("ended", BigInteger),
    Column("table_uuid", Text),
    Column("base_snapshot", BigInteger),
)

touched = Table(
    "touched",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("dataset", Text, nullable=False),
    Column("partition_key", Text, primary_key=True),
    Column("after_seq", BigInteger, nullable=False),
    Column("through_seq", BigInteger, nullable=False),
)

filtered_removals = Table(
    "filtered_removals",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("filter", Text, primary_key=True),
    Column("after_seq", BigInteger),
    Column("through_seq", BigInteger),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
)

forfeits = Table(
    "forfeits",
    metadata,
    Column("operation", Text, primary_key=True),
    Column("sink", Text, primary_key=True),
    Column("dataset", Text, primary_key=True),
    Column("partition_key", Text, primary_key=True),
    Column("after_seq", BigInteger, nullable=False),
    Column("through_seq", BigInteger, nullable=False),
    Column("row_count", BigInteger, nullable=False),
    Column("checksum", Text, nullable=False),
    Column("recorded_at", Text, nullable=False),
)

purged = Table(
    "purged",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("identity_hash", Text, primary_key=True),
    Column("operation", Text, nullable=False),
)

generations = Table(
    "generations",
    metadata,
    Column("dataset", Text, primary_key=True),
    Column("generation", BigInteger, primary_key=True, autoincrement=False),
    Column("state", Text, nullable=False),
    Column("location", Text),
    Column("retired_at", Text),
)

reports = Table(
    "reports",
    metadata,
    Column("task", Text, primary_key=True),
    Column("subject", Text, primary_key=True),
    Column("ended_at", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("details", Text, nullable=False),
    Column("failures", BigInteger, nullable=False),
    Column("failing_since", Text),
)


# ── values that are stored as text ───────────────────────────────────────────────────────────────────────────────────
# Only Floodmark writes them, so an unreadable one is damage.


T = TypeVar("T")


def read_back(what: str, read: Callable[[], T]) -> T:
    """What `read` makes of a record; `Corrupt` if it is not what was written there."""
    try:
        return read()
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError, Permanent) as error:
        raise Corrupt(
            f"The record of {what} in the control database cannot be read ({type(error).__name__}).",
            hint="Do not change the store. Restore the control database from a backup, and run `floodmark fsck`.",
        ) from error


def texts(stored: str) -> tuple[str, ...]:
    """A list of texts."""
    found = json.loads(stored)
    if not isinstance(found, list) or not all(isinstance(item, str) for item in found):
        raise TypeError("not a list of strings")
    return tuple(found)


def mapping(stored: str) -> dict[str, Any]:
    """An object."""
    found = json.loads(stored)
    if not isinstance(found, dict):
        raise TypeError("not an object")
    return found
