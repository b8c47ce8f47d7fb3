"""Trace: where one row is, and how it got there.

    landing file ─▶ segment ─▶ block, snapshot, data file ─▶ each sink's chunk
                └──────────────── quarantine ────────────────┘

The spool is read as far as it is not committed, which is bounded. The lake is queried once, for rows with these values:
Iceberg prunes by the bounds of the columns, so identity and event time make it cheap. Nothing is changed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from floodmark.control import blocks, deliveries, inspection, losses, quarantine, sinks
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.inspection import ChunkRecord, GivenUpRow, Removal
from floodmark.control.quarantine import Entry
from floodmark.control.sinks import Sink
from floodmark.delivery.scope import Scope
from floodmark.engine import Engine
from floodmark.errors import Corrupt, FloodmarkError, SchemaConflict
from floodmark.lake import queries
from floodmark.lake.queries import StoredRow
from floodmark.read import View, view_of
from floodmark.rows.envelope import MalformedEnvelope, decode_envelope
from floodmark.rows.fit import fit
from floodmark.schema import CONTENT_ID, Column, ListType, Schema, StructType, parse_partition_key, partition_key
from floodmark.sequence import SequenceRange
from floodmark.spool.landing import landing_files
from floodmark.spool.quarantine import kept_payload

if TYPE_CHECKING:
    import pyarrow as pa


# ── The row that a trace is after: by its content id, or by values of its columns ────────────────────────────────────


_ID = re.compile(r"[0-9a-f]{32}")


@dataclass(frozen=True, slots=True)
class RowSelector:
    """What a row must have to be the one: these values, or this content id."""

    values: Mapping[str, Any]

    @classmethod
    def of(cls, asked: Mapping[str, Any] | str, schema: Schema) -> RowSelector:
        """`SchemaConflict` for a column that the dataset does not have, or a value that its type cannot hold."""
        if isinstance(asked, str):
            if not _ID.fullmatch(asked):
                raise SchemaConflict(f"{asked!r} is not a content id.", hint="It is 32 hexadecimal digits.")
            return cls({CONTENT_ID: asked})
        if not asked:
            raise SchemaConflict("No column is named.", hint="Name the columns that identify the row.")
        for name in asked:
            if name not in schema:
                known = ", ".join(schema.names)
                raise SchemaConflict(f"The dataset has no column {name!r}.", hint=f"It has {known}.")
        if any(isinstance(schema.column(name).type, ListType | StructType) for name in asked):
            return cls({CONTENT_ID: _id_of(asked, schema)})
        return cls({name: _fitted(name, value, schema) for name, value in asked.items()})

    def places(self, rows: pa.Table) -> list[int]:
        """Which rows of a table it is. A table without content ids is given them."""
        import pyarrow as pa
        import pyarrow.compute as pc

        from floodmark.rows.content import content_ids

        if not rows.num_rows:
            return []
        kept = pa.array([True] * rows.num_rows)
        for name, value in self.values.items():
            if name in rows.column_names:
                column = rows[name]
            elif name == CONTENT_ID:
                column = content_ids(rows)[0]
            else:
                column = pa.nulls(rows.num_rows)
            same = pc.is_null(column) if value is None else _equal(column, value)
            kept = pc.and_(kept, pc.fill_null(same, fill_value=False))
        return [place for place, mine in enumerate(kept.to_pylist()) if mine]


def _equal(column: Any, value: Any) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_null(column.type):
        return pa.array([False] * len(column))
    return pc.equal(column, pa.scalar(value, column.type))


def _fitted(name: str, value: Any, schema: Schema) -> Any:
    from floodmark.rows.columns import fit_values

    array, faults = fit_values(schema.column(name).type, [value])
    if faults:
        raise SchemaConflict(
            f"{value!r} does not fit column {name!r} ({schema.column(name).text}): {faults[0]}.",
            hint="Write the value in the form that capture accepts.",
        )
    return array[0].as_py()


def _id_of(row: Mapping[str, Any], schema: Schema) -> str:
    """Lists and structs are compared as a part of the whole row: its content id."""
    from floodmark.rows.content import content_ids
    from floodmark.rows.fit import fit

    fitted = fit(schema, list(row), [[value] for value in row.values()], rows=1)
    if fitted.misfits:
        raise SchemaConflict(
            f"The row does not fit: {fitted.misfits[0].reason}.", hint="Give the whole row, as it was captured."
        )
    return str(content_ids(fitted.table)[0][0].as_py())


# ── Trace ────────────────────────────────────────────────────────────────────────────────────────────────────────────


ROWS_MAX = 100
"""How many rows that match are followed; an identity has one."""


@dataclass(frozen=True, slots=True)
class SpooledRow:
    """The row in the spool: captured, and not committed."""

    file: str
    """The landing file or the segment's file."""
    at: int
    """In a landing file the byte at which its line begins, in a segment the row's place."""
    segment: int | None
    why: str
    """What it waits for."""


@dataclass(frozen=True, slots=True)
class SinkStep:
    """The state of the row's delivery to one sink."""

    sink: str
    kind: str
    state: str
    """`delivered`, `waiting`, `filtered`, `out of scope`, `before start`, `quarantined`, `discarded`, `given up`."""
    why: str
    chunk: SequenceRange | None = None
    at: str | None = None


@dataclass(frozen=True, slots=True)
class CommittedRow:
    """The row in the lake."""

    seq: int
    content_id: str
    partition: str
    segment: int | None
    landing: str | None
    """Its landing file, and its bytes there; None if it came without one."""
    source: str | None
    block: SequenceRange | None
    committed_at: str | None
    snapshot: int | None
    file: str
    sinks: tuple[SinkStep, ...]
    folded: int = 1
    """How many blocks the record of its block stands for: the landing file and the segment of an old one are forgotten
    (U35)."""


@dataclass(frozen=True, slots=True)
class QuarantinedRow:
    """The row among those that did not fit, or that a sink could not deliver."""

    id: str
    state: str
    reason: str
    sink: str | None
    seq: int | None
    at: str


@dataclass(frozen=True, slots=True)
class Trace:
    """Everything that the store knows of a row."""

    dataset: str
    spooled: tuple[SpooledRow, ...]
    committed: tuple[CommittedRow, ...]
    quarantined: tuple[QuarantinedRow, ...]
    notes: tuple[str, ...] = ()

    @property
    def known(self) -> bool:
        return bool(self.spooled or self.committed or self.quarantined)


def trace(engine: Engine, dataset: str, asked: Mapping[str, Any] | str) -> Trace:
    # The spool before the lake: a row that is committed in between is then found twice, and never missed.
    view = view_of(engine, dataset)
    selector = RowSelector.of(asked, view.dataset.schema)
    spooled = (*_landing(engine, view.dataset, selector), *_segments(engine, view.dataset, selector))
    quarantined = [*_quarantined(engine, view.dataset, selector)]
    committed = _committed(engine, view_of(engine, dataset), selector)
    numbers = {row.seq for row in committed}
    quarantined += [item for item in _undelivered(engine, dataset) if item.seq in numbers]
    gone = {row.segment for row in committed}
    spooled = tuple(row for row in spooled if row.segment is None or row.segment not in gone)
    notes = _notes(engine, dataset, found=bool(committed))
    return Trace(dataset, spooled, tuple(committed), tuple(quarantined), tuple(notes))


# ── the spool ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _landing(engine: Engine, dataset: Dataset, selector: RowSelector) -> Iterator[SpooledRow]:
    """What was captured and not yet sealed."""
    states = engine.database.read(lambda c: inspection.landing_states(c, dataset.name))
    for path in landing_files(engine.root / "spool" / dataset.name / "landing"):
        state, offset = states.get(path.stem, ("open", 0))
        if state != "open":
            continue
        try:
            with path.open("rb") as file:
                file.seek(offset)
                for line in file:
                    for _ in _places(dataset, selector, line):
                        why = f"It is captured and not yet sealed: run `floodmark flush {dataset.name}`."
                        yield SpooledRow(str(path.relative_to(engine.root)), offset, None, why)
                    offset += len(line)
        except FileNotFoundError:
            continue  # sealed and removed since


def _places(dataset: Dataset, selector: RowSelector, line: bytes) -> list[int]:
    try:
        envelope = decode_envelope(line)
        fitted = fit(dataset.schema, envelope.columns, envelope.values, rows=envelope.rows)
    except (MalformedEnvelope, FloodmarkError):
        return []
    return selector.places(fitted.table)


def _segments(engine: Engine, dataset: Dataset, selector: RowSelector) -> Iterator[SpooledRow]:
    """What is sealed and not yet committed."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    found = engine.database.read(lambda c: inspection.segments_in(c, dataset.name, state="sealed"))
    block = engine.database.read(lambda c: blocks.undecided(c, dataset.name))
    for item in found:
        try:
            file = pq.ParquetFile(engine.segments.path(item.path))
            names = [name for name in (*selector.values, CONTENT_ID) if name in file.schema_arrow.names]
            rows = file.read(columns=list(dict.fromkeys(names)))
        except (OSError, pa.ArrowException):
            continue  # committed and removed since; fsck reports it if it was not
        for place in selector.places(rows):
            if item.block is None:
                why = f"It is sealed and not yet committed: run `floodmark flush {dataset.name}`."
            else:
                span = block.range if block is not None and block.id == item.block else ""
                why = f"It is in block {span}, which is undecided: run `floodmark flush {dataset.name}`."
            yield SpooledRow(item.path, place, item.id, why)


# ── quarantine ───────────────────────────────────────────────────────────────────────────────────────────────────────


def _quarantined(engine: Engine, dataset: Dataset, selector: RowSelector) -> Iterator[QuarantinedRow]:
    """What could not become a row, as far as it is made of columns that can be compared."""
    entries = engine.database.read(lambda c: quarantine.entries(c, dataset=dataset.name, state=None))
    for entry in entries:
        if entry.sink is None and _is_in(engine, dataset, selector, entry):
            yield QuarantinedRow(entry.id, entry.state, entry.reason, None, None, entry.created_at)


def _is_in(engine: Engine, dataset: Dataset, selector: RowSelector, entry: Entry) -> bool:
    try:
        envelope = decode_envelope(kept_payload(engine.root, entry))
    except (Corrupt, MalformedEnvelope):
        return False
    # Only the requested columns: the value that does not fit is in another one.
    asked = [name for name in envelope.columns if name in selector.values]
    if set(asked) != set(selector.values):
        return False
    values = [envelope.values[envelope.columns.index(name)] for name in asked]
    try:
        return bool(selector.places(fit(_only(dataset, asked), asked, values, rows=envelope.rows).table))
    except FloodmarkError:
        return False


def _undelivered(engine: Engine, dataset: str) -> list[QuarantinedRow]:
    names = {item.instance: item.name for item in engine.database.read(sinks.everyone)}
    entries = engine.database.read(lambda c: quarantine.entries(c, dataset=dataset, state=None))
    return [
        QuarantinedRow(item.id, item.state, item.reason, names.get(item.sink, item.sink), item.seq, item.created_at)
        for item in entries
        if item.sink is not None
    ]


# ── the lake, and on ─────────────────────────────────────────────────────────────────────────────────────────────────


def _committed(engine: Engine, view: View, selector: RowSelector) -> list[CommittedRow]:
    if view.snapshot is None:
        return []
    dataset = view.dataset
    rows = queries.find_rows(
        engine.lake,
        view.table,
        snapshot=view.snapshot,
        values=selector.values,
        columns=dataset.partition_by,
        rows_max=ROWS_MAX,
    )
    everyone = engine.database.read(sinks.everyone)
    return [_followed(engine, view, row, everyone) for row in rows]


def _followed(engine: Engine, view: View, row: StoredRow, everyone: list[Sink]) -> CommittedRow:
    by = view.dataset.partition_by
    partition = partition_key(by, [row.values.get(name) for name in by])
    block, segment = engine.database.read(
        lambda c: (
            inspection.block_with(c, view.dataset.name, row.seq),
            None if row.segment is None else inspection.segment(c, row.segment),
        )
    )
    landing = None
    if segment is not None and segment.landing_file is not None:
        landing = f"{segment.landing_file}.jsonl, bytes {segment.landing_from}-{segment.landing_through}"
    return CommittedRow(
        row.seq,
        row.content_id,
        partition,
        row.segment,
        landing,
        None if segment is None else segment.source,
        None if block is None else block.range,
        None if block is None else block.decided_at,
        None if block is None else block.snapshot,
        row.file,
        tuple(_step(engine, view, partition, row.seq, sink) for sink in everyone),
        1 if block is None else block.folded,
    )


def _step(engine: Engine, view: View, partition: str, seq: int, sink: Sink) -> SinkStep:
    scope = Scope.of(sink.settings)
    channel = Channel(sink.instance, view.dataset.name, partition)
    if not scope.takes(view.dataset, partition):
        why = "The sink does not receive this dataset or partition."
        return SinkStep(sink.name, sink.kind, "out of scope", why)
    if seq <= scope.start(channel):
        why = f"The sink started after number {scope.start(channel)}."
        return SinkStep(sink.name, sink.kind, "before start", why)
    records = engine.database.read(lambda c: _deliveries(c, channel, seq))
    state, why = (
        _undisturbed(engine, sink, channel, records) if records.given_up is None else _after_all(records.given_up)
    )
    row_filter = records.settings.get("where") if records.settings is not None else sink.settings.get("where")
    if records.given_up is None and row_filter is not None and not _passes(engine, view, partition, seq, row_filter):
        state, why = "filtered", f"The sink's filter excludes it: {row_filter}"
    chunk = records.chunk
    return SinkStep(
        sink.name,
        sink.kind,
        state,
        why,
        None if chunk is None else chunk.range,
        None if chunk is None else chunk.acknowledged_at,
    )


def _undisturbed(engine: Engine, sink: Sink, channel: Channel, records: _Deliveries) -> tuple[str, str]:
    """Of a row that no destination has refused."""
    if records.chunk is not None and records.chunk.state == "acknowledged":
        folded = "" if records.chunk.folded == 1 else f" The records of {records.chunk.folded} chunks are folded."
        return "delivered", f"Its chunk was acknowledged.{folded}"
    if records.seq <= records.mark:
        return "delivered", "The destination had it when it was queried; no chunk of it is recorded."
    if any(records.seq in item.range for item in records.forfeits):
        return "given up", "A user decided that the sink does not receive it."
    if sink.state == "blocked":
        return "waiting", f"The sink is blocked: {sink.reason}"
    run = f"run `floodmark export {sink.name}`."
    if records.chunk is not None:
        return "waiting", f"Its chunk is being delivered, or was when an export stopped: {run}"
    ahead = SequenceRange(records.mark, records.seq)
    lag = sum(item.rows for item in engine.database.read(lambda c: deliveries.stretches(c, channel, ahead)))
    return "waiting", f"The sink lags, by about {lag} rows up to this one: {run}"


def _passes(engine: Engine, view: View, partition: str, seq: int, row_filter: str) -> bool:
    by = view.dataset.partition_by
    if view.snapshot is None:
        return False
    stats = queries.stats(
        engine.lake,
        view.table,
        snapshot=view.snapshot,
        within=SequenceRange(seq - 1, seq),
        partition_by=by,
        partition_values=dict(zip(by, parse_partition_key(by, partition, view.dataset.schema), strict=True)) or None,
        row_filter=row_filter,
    )
    return bool(stats)


def _notes(engine: Engine, dataset: str, *, found: bool) -> Iterator[str]:
    if found:
        return
    for loss in engine.database.read(lambda c: losses.of_dataset(c, dataset)):  # U33
        kept = f"; what is left of it is at {loss.kept_at}" if loss.kept_at else ""
        yield f"{loss.rows} rows were given up with segment {loss.segment} on {loss.at[:19]} ({loss.reason}){kept}."
    removed = engine.database.read(lambda c: inspection.removals_of(c, dataset))
    rows = sum(item.tally.rows for item in removed)
    if rows:
        yield f"{rows} rows were removed by retention or purge: no record is kept by which to find them."


@dataclass(frozen=True, slots=True)
class _Deliveries:
    """What is on record about one number in one channel."""

    seq: int
    mark: int
    chunk: ChunkRecord | None
    settings: Mapping[str, Any] | None
    """Those that its chunk was pinned with."""
    given_up: GivenUpRow | None
    forfeits: list[Removal]


def _deliveries(connection: Connection, channel: Channel, seq: int) -> _Deliveries:
    mark = deliveries.watermark(connection, channel)
    found = inspection.chunk_with(connection, channel, seq)
    return _Deliveries(
        seq,
        0 if mark is None else mark.seq,
        None if found is None else found[0],
        None if found is None else found[1].settings,
        next((item for item in inspection.given_up_of(connection, channel) if item.seq == seq), None),
        inspection.forfeits_of(connection, channel),
    )


def _after_all(row: GivenUpRow) -> tuple[str, str]:
    """Of a row that a destination refused, or that was skipped."""
    if row.state == "replayed":
        return "delivered", f"It was first given up, and replayed at {row.decided_at}."
    return ("quarantined" if row.state == "held" else row.state), f"{row.reason} (entry {row.id[:12]})"


def _only(dataset: Dataset, names: list[str]) -> Schema:
    return Schema(tuple(Column(item.name, item.type) for item in dataset.schema.columns if item.name in names))
