"""One tick of a sink: pin → chunk → ship → acknowledge → advance.

For each channel that lags, until it has caught up with the horizon or met an error. An error stops its own
channel only; a `Permanent` one blocks the sink with its reason, for the same delivery would be refused again.

The order of every step is the point (D1 to D4 in `control.deliveries`): whatever dies in between, the next tick,
by this process or another, finds an open intent and sends exactly the same ranges.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlparse

from floodmark import faults
from floodmark.clock import Clock
from floodmark.control import deliveries
from floodmark.control.database import Database
from floodmark.control.deliveries import Channel, Chunk, Intent, Sink
from floodmark.delivery.destination import Destination, Parcel
from floodmark.delivery.sinks.files import FileSink, check_format
from floodmark.errors import InvalidSetting, Permanent, Retryable
from floodmark.lake.table import Lake
from floodmark.read import Reader
from floodmark.rows.content import tally_of_ids
from floodmark.schema import CONTENT_ID, SEQ, parse_partition_key
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

CHUNK_ROWS = 100_000
SCAN_ROWS_MAX = 500_000
"""How many rows one look into the lake brings: several chunks share it."""
DEFAULTS: dict[str, Any] = {"datasets": None, "format": "parquet", "chunk_rows": CHUNK_ROWS}


@dataclass(slots=True)
class ExportReport:
    """What one export of a sink did."""

    sink: str
    rows: int = 0
    chunks: int = 0
    bytes: int = 0
    watermarks: dict[tuple[str, str], int] = field(default_factory=dict)
    blocked: str | None = None
    errors: dict[tuple[str, str], str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Exporter:
    """Delivers one store's rows. Any number of processes may run one on the same store."""

    store_id: str
    database: Database
    lake: Lake
    reader: Reader
    clock: Clock

    def export(self, name: str) -> ExportReport:
        """Deliver everything up to the horizon to one sink."""
        sink = self.database.read(lambda c: deliveries.get_sink(c, name))
        report = ExportReport(name)
        wanted = sink.settings["datasets"]
        lagging = self.database.read(lambda c: deliveries.lagging(c, sink.instance))
        channels = [lag.channel for lag in lagging if wanted is None or lag.channel.dataset in wanted]
        if not channels:
            return report  # no Spark job, no lake byte
        try:
            for channel in channels:
                self._deliver(sink, channel, report)
        except Permanent as error:
            reason = str(error)
            self.database.transact(
                lambda c: deliveries.set_sink_state(c, sink.instance, state="blocked", reason=reason)
            )
            report.blocked = reason
        else:
            self.database.transact(lambda c: deliveries.set_sink_state(c, sink.instance, state="active", reason=None))
        return report

    def _deliver(self, sink: Sink, channel: Channel, report: ExportReport) -> None:
        key = (channel.dataset, channel.partition)
        try:
            while (intent := self._pin(sink, channel)) is not None:
                destination = self._destination(intent)
                destination.open()
                self._fulfil(intent, destination, report)
        except Retryable as error:
            report.errors[key] = str(error)  # the others go on
        mark = self.database.read(lambda c: deliveries.watermark(c, channel))
        report.watermarks[key] = mark.seq if mark else 0

    def _pin(self, sink: Sink, channel: Channel) -> Intent | None:
        """D1: what leaves, and how, is settled before anything does."""
        lagging = self.database.read(lambda c: deliveries.lagging(c, sink.instance))
        if channel not in [lag.channel for lag in lagging]:
            return None
        view = self.reader.view(channel.dataset)
        horizon = view.horizon
        pinned = ("url", "format", "chunk_rows")
        settings = {**{key: sink.settings[key] for key in pinned}, "columns": list(view.dataset.schema.names)}
        intent_id = uuid.uuid4().hex
        intent = self.database.transact(
            lambda c: deliveries.pin(
                c, channel, id=intent_id, horizon=horizon, settings=settings, start=0, now=self.clock.now()
            ),
            landed=lambda c: deliveries.open_intent(c, channel) is not None,
        )
        faults.reach("delivery.pinned")
        return intent

    def _fulfil(self, intent: Intent, destination: Destination, report: ExportReport) -> None:
        """Ship the intent's pending chunks in order."""
        chunks = self.database.transact(lambda c: self._planned(c, intent))
        faults.reach("delivery.planned")
        pending = [chunk for chunk in chunks if chunk.state == "pending"]
        if not pending:
            self.database.transact(lambda c: deliveries.advance(c, intent))
        for parcel in self._parcels(intent, pending):
            size = 0 if parcel.rows.num_rows == 0 else destination.deliver(parcel).bytes
            faults.reach("delivery.shipped")
            ours = self.database.transact(
                lambda c, parcel=parcel: deliveries.acknowledge(  # type: ignore[misc]
                    c, intent, parcel.range, parcel.tally, now=self.clock.now()
                )
            )
            faults.reach("delivery.acknowledged")
            if ours and size:
                report.rows += parcel.tally.rows
                report.chunks += 1
                report.bytes += size

    def _planned(self, connection: Any, intent: Intent) -> list[Chunk]:
        recorded = deliveries.chunks_of(connection, intent)
        if recorded:
            return recorded
        found = deliveries.stretches(connection, intent.channel, intent.range)
        ranges = deliveries.chunk_ranges(intent.range, found, rows_max=intent.settings["chunk_rows"])
        return deliveries.plan(connection, intent, ranges)

    def _parcels(self, intent: Intent, pending: Sequence[Chunk]) -> Iterator[Parcel]:
        """The chunks with their rows. Horizon first, then fresh metadata, then that snapshot by its id (I9)."""
        view = self.reader.view(intent.channel.dataset)
        if view.snapshot is None:
            raise Retryable(f"The table of {view.dataset.name!r} is not there yet.")
        by = view.dataset.partition_by
        where = dict(zip(by, parse_partition_key(by, intent.channel.partition, view.dataset.schema), strict=True))
        for together in _scans(pending, rows_max=SCAN_ROWS_MAX, chunk_rows=intent.settings["chunk_rows"]):
            within = SequenceRange(together[0].range.after, together[-1].range.through)
            tables = list(
                self.lake.scan(view.dataset.table_name, snapshot=view.snapshot, within=within, where=where or None)
            )
            for chunk in together:
                yield _parcel(intent, chunk.range, tables)

    def _destination(self, intent: Intent) -> Destination:
        location = urlparse(intent.settings["url"])
        return FileSink(
            Path(unquote(location.path)), intent.settings["format"], self.store_id, sink=intent.channel.sink
        )


def new_sink(name: str, kind: str, settings: Mapping[str, Any]) -> Sink:
    """Check a sink's settings as they are given, and fill in the rest."""
    if kind != "blob":
        raise InvalidSetting(f"The sink kind {kind!r} is unknown.", hint="It is: blob.")
    unknown = sorted(set(settings) - {"url", *DEFAULTS})
    if unknown:
        raise InvalidSetting(
            f"Unknown setting {unknown[0]!r} of a blob sink.", hint=f"Allowed: url, {', '.join(DEFAULTS)}."
        )
    whole = {**DEFAULTS, **{key: value for key, value in settings.items() if value is not None}}
    location = urlparse(str(whole.get("url", "")))
    if location.scheme != "file" or not location.path.startswith("/"):
        raise InvalidSetting(f"The url {whole.get('url')!r} cannot be delivered to.", hint="Use file:///absolute/path.")
    check_format(whole["format"])
    if type(whole["chunk_rows"]) is not int or whole["chunk_rows"] < 1:
        raise InvalidSetting(f"chunk_rows is {whole['chunk_rows']!r}.", hint="It is a whole number above zero.")
    return Sink(uuid.uuid4().hex, name, kind, whole)


def together(reports: Sequence[ExportReport]) -> ExportReport:
    """Several sinks' reports as one: sums, the least watermark of each partition, and every problem by its sink."""
    whole = ExportReport("*")
    for report in reports:
        whole.rows += report.rows
        whole.chunks += report.chunks
        whole.bytes += report.bytes
        for key, seq in report.watermarks.items():
            whole.watermarks[key] = min(seq, whole.watermarks.get(key, seq))
        for (dataset, partition), error in report.errors.items():
            whole.errors[f"{report.sink}: {dataset}", partition] = error
    blocked = [f"{report.sink}: {report.blocked}" for report in reports if report.blocked]
    whole.blocked = "; ".join(blocked) or None
    return whole


def _scans(pending: Sequence[Chunk], *, rows_max: int, chunk_rows: int) -> Iterator[list[Chunk]]:
    """Neighbouring chunks that share one look into the lake."""
    count = max(1, rows_max // chunk_rows)
    group: list[Chunk] = []
    for chunk in pending:
        if group and (len(group) == count or group[-1].range.through != chunk.range.after):
            yield group
            group = []
        group.append(chunk)
    if group:
        yield group


def _parcel(intent: Intent, span: SequenceRange, tables: Sequence[pa.Table]) -> Parcel:
    """The rows of one chunk, with the columns that were pinned: a column that came since does not change it."""
    import pyarrow as pa
    import pyarrow.compute as pc

    parts = [
        table.filter(pc.and_(pc.greater(table[SEQ], span.after), pc.less_equal(table[SEQ], span.through)))
        for table in tables
    ]
    if not parts:
        nothing = pa.chunked_array([], pa.int64())
        return Parcel(intent.channel, span, pa.table({}), nothing, nothing.cast(pa.string()), Tally())
    rows = pa.concat_tables(parts)
    present = [name for name in intent.settings["columns"] if name in rows.column_names]
    return Parcel(
        intent.channel, span, rows.select(present), rows[SEQ], rows[CONTENT_ID], tally_of_ids(rows[CONTENT_ID])
    )
