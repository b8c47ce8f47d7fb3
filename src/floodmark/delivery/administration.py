"""Adding, changing and removing sinks: everything that can be refused is refused now, not at the first delivery."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from sqlalchemy import Connection

from floodmark import faults
from floodmark.config import CatalogSettings
from floodmark.control import chunks, datasets, deliveries, quarantine, sinks
from floodmark.control.chunks import Chunk, ParcelStart, parcel_start, sent_range
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel, Intent
from floodmark.control.quarantine import Entry
from floodmark.control.sinks import Sink
from floodmark.delivery.credentials import check_reference, is_literal
from floodmark.delivery.destination import (
    Destination,
    LedgerDestination,
    Parcel,
    TransactionalDestination,
)
from floodmark.delivery.kinds import checked, kind_of, new_sink
from floodmark.delivery.outcomes import Ahead, Oversized, Refused
from floodmark.delivery.scope import Scope
from floodmark.delivery.source import RowSource
from floodmark.delivery.tick import Exporter
from floodmark.engine import Engine
from floodmark.errors import InvalidSetting, Permanent
from floodmark.lake import queries
from floodmark.read import cursor_position, view_of
from floodmark.schema import check_sink_name
from floodmark.sequence import Cursor, SequenceRange, Tally
from floodmark.wire import GivenUpRange

# ── Whether two sinks overlap at one place, and whether a place is inside the store ──────────────────────────────────
# | kind    | its place                                         | two overlap if                                |
# |---------|---------------------------------------------------|-----------------------------------------------|
# | blob    | everything below its prefix                       | one prefix is the other, or is inside it      |
# | table   | one table, or one for each dataset of a namespace | a table is the same, for the same partitions  |
# | forward | one channel at the hub per dataset and partition  | url, origin and a partition are the same      |
#
# The place of a projection is unknown. Pure, except for symbolic links on this machine.


Settings = Mapping[str, Any]


def meet(one: Sink, other: Sink, *, store_id: str) -> bool:
    """Whether two sinks would deliver to the same place."""
    if one.kind != other.kind:
        return False
    a, b = one.settings, other.settings
    if one.kind == "blob":
        return inside(a, b) or inside(b, a)
    if one.kind == "forward":
        same = (a["url"], a["origin"] or store_id) == (b["url"], b["origin"] or store_id)
        return same and _both_take(a["datasets"], b["datasets"]) and _slices_meet(a, b)
    if one.kind == "table":
        return _tables_meet(a, b)
    return False


def inside(inner: Settings, outer: Settings) -> bool:
    """Whether one prefix is another, or is inside it."""
    where, way = _prefix(inner)
    whole, start = _prefix(outer)
    return where == whole and way[: len(start)] == start


def inside_the_store(
    sink: Sink, *, root: Path, store_id: str, datasets: Iterable[Dataset], catalogs: Mapping[str, CatalogSettings]
) -> bool:
    """Whether a place is among the store's own files: its directory, or where its tables were moved to."""
    own = [root.as_uri(), *(item.layout.warehouse for item in datasets if item.layout.warehouse)]
    if sink.kind == "blob":
        return any(inside(sink.settings, {"url": url, "endpoint": sink.settings.get("endpoint")}) for url in own)
    if sink.kind != "table":
        return False
    catalog = sink.settings["table"].split(".")[0]
    described = catalogs.get(catalog)
    if catalog == f"floodmark_{store_id.replace('-', '')[:12]}":
        return True
    places = () if described is None else (described.warehouse, described.uri)
    return any(inside({"url": _url(place)}, {"url": root.as_uri()}) for place in places if place)


def _url(place: str) -> str:
    """A warehouse, or the database of a catalog, as a URL: a file's where it is one."""
    text = place.removeprefix("jdbc:")
    scheme, _, rest = text.partition(":")
    if scheme.startswith("sqlite"):
        return Path("/" + rest.partition("?")[0].lstrip("/")).as_uri() if "/" in rest else ""
    return Path(text).as_uri() if text.startswith("/") else text


def _prefix(settings: Settings) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The machine or bucket of a prefix, and the path below it."""
    parts = urlsplit(settings["url"])
    if parts.scheme == "file":
        return ("file",), Path(os.path.realpath(unquote(parts.path))).parts
    server = tuple(str(settings.get(name) or "").rstrip("/").lower() for name in ("endpoint", "account"))
    return (parts.scheme, parts.netloc, *server), tuple(part for part in parts.path.split("/") if part)


def _tables_meet(one: Settings, other: Settings) -> bool:
    a, b = _tables(one), _tables(other)
    if a[0] != b[0] or not _both_take(a[1], b[1]):
        return False
    # One table may receive several partitions of one dataset, but never rows of two datasets.
    whole = one["table"].count(".") == 1 and other["table"].count(".") == 1
    same = whole or one["datasets"] == other["datasets"]
    return _slices_meet(one, other) if same else True


def _tables(settings: Settings) -> tuple[str, list[str] | None]:
    """The namespace, and the tables in it; None: one for each present or future dataset."""
    catalog, namespace, *table = settings["table"].split(".")
    return f"{catalog}.{namespace}", table or settings["datasets"]


def _both_take(one: list[str] | None, other: list[str] | None) -> bool:
    return one is None or other is None or bool(set(one) & set(other))


def _slices_meet(one: Settings, other: Settings) -> bool:
    """False if they select different values of one column."""
    a, b = one["partitions"] or {}, other["partitions"] or {}
    return all(set(a[name]) & set(b[name]) for name in set(a) & set(b))


# ── Administration ───────────────────────────────────────────────────────────────────────────────────────────────────


def add_sink(engine: Engine, name: str, kind: str, settings: Mapping[str, Any]) -> None:
    """Add a destination under a name that no other has."""
    engine.settings.functions.check(settings.get("function"))  # before it is imported
    sink = new_sink(check_sink_name(name), kind, settings, starts=partial(_starts, engine))
    check_reference("token", sink.settings.get("token"))
    _check_filter(engine, sink)
    now = engine.clock.now()

    def work(connection: Connection) -> None:
        sinks.insert(connection, sink, now=now)
        _check_scope(connection, sink)
        _check_place(engine, connection, sink)

    engine.database.transact(work)


def change_sink(engine: Engine, name: str, settings: Mapping[str, Any]) -> None:
    """Change settings, from the next range on."""
    sink = _named(engine, name)
    fixed = {"start"} | ({"where", "url", "origin"} if sink.kind == "forward" else set())
    refused = sorted(fixed & set(settings))
    if refused:
        raise InvalidSetting(
            f"{refused[0]!r} of sink {name!r} cannot be changed.", hint="Add another sink, and remove this one."
        )
    engine.settings.functions.check(settings.get("function"))
    whole = checked(sink.kind, {**sink.settings, **settings, "start": "beginning"}) | {"start": sink.settings["start"]}
    check_reference("token", whole.get("token"))
    changed = replace(sink, settings=whole)
    _check_filter(engine, changed)

    def work(connection: Connection) -> None:
        if {"datasets", "partitions"} & set(settings):
            _check_scope(connection, changed)
        _check_place(engine, connection, changed)
        sinks.change(connection, sink.instance, whole)

    engine.database.transact(work)


def remove_sink(engine: Engine, name: str) -> None:
    """Forget a destination; its name is free again."""
    sink = _named(engine, name)

    def work(connection: Connection) -> None:
        sinks.set_state(connection, sink.instance, state="removed", reason=None)
        if is_literal(sink.settings.get("token")):  # added by a version that allowed it
            sinks.change(connection, sink.instance, {**sink.settings, "token": None})

    engine.database.transact(work)
    if is_literal(sink.settings.get("token")):
        engine.database.forget_freed()


def pause_sink(engine: Engine, name: str) -> None:
    """Nothing more is pinned for it. What is pinned already is finished by the exporter that sends it."""
    sink, now = _named(engine, name), engine.clock.now()
    engine.database.transact(lambda c: sinks.set_paused(c, sink.instance, at=now))


def resume_sink(engine: Engine, name: str) -> None:
    sink = _named(engine, name)
    engine.database.transact(lambda c: sinks.set_paused(c, sink.instance, at=None))


def _named(engine: Engine, name: str) -> Sink:
    return engine.database.read(lambda c: sinks.get(c, name))


def _starts(engine: Engine, settings: Mapping[str, Any]) -> list[list[Any]]:
    """Where a new sink begins, as sequence numbers: earlier rows are not delivered."""
    start = settings["start"]
    if start == "beginning":
        return []
    if start == "now":
        return [[item.name, None, item.horizon] for item in _taken(engine, settings)]
    cursors = [start] if isinstance(start, str | Cursor) else list(start)
    parsed = [Cursor.parse(item) if isinstance(item, str) else item for item in cursors]
    views = {one.dataset: view_of(engine, one.dataset) for one in parsed}
    return [
        [one.dataset, one.partition, cursor_position(engine, views[one.dataset], one, partition=one.partition)]
        for one in parsed
    ]


def _check_scope(connection: Connection, sink: Sink) -> None:
    """An unknown name is refused: the sink would deliver nothing without an error."""
    declared = datasets.everyone(connection)
    missing = Scope.of(sink.settings).missing(declared)
    if missing and not sink.settings["later"]:
        known = ", ".join(
            f"{item.name} (by {', '.join(item.partition_by)})" if item.partition_by else item.name for item in declared
        )
        raise InvalidSetting(
            missing[0],
            hint=f"Existing: {known or 'none yet'}. Correct the name, or add it first, or pass --later (in Python, "
            "later=True) if it will be added later.",
        )


def _check_place(engine: Engine, connection: Connection, sink: Sink) -> None:
    """Two sinks at one place block each other; a sink inside the store's files would destroy its own source."""
    for other in sinks.everyone(connection):
        if other.instance != sink.instance and meet(sink, other, store_id=engine.store_id):
            raise InvalidSetting(
                f"Sink {other.name!r} already delivers to this place, or to a place above or below it.",
                hint="Give every sink its own place: another prefix, table or namespace, or hub.",
            )
    if inside_the_store(
        sink,
        root=engine.root,
        store_id=engine.store_id,
        datasets=datasets.everyone(connection),
        catalogs=engine.settings.catalogs,
    ):
        raise InvalidSetting(
            "This place is inside the store.", hint="Deliver to a directory, bucket or table outside it."
        )


def _check_filter(engine: Engine, sink: Sink) -> None:
    """Evaluate the row filter once against every dataset that the sink delivers."""
    if sink.settings["where"] is None:
        return
    for item in _taken(engine, sink.settings):
        queries.check_filter(engine.lake, view_of(engine, item.name).table, sink.settings["where"])


def _taken(engine: Engine, settings: Mapping[str, Any]) -> list[datasets.Dataset]:
    declared = engine.database.read(datasets.everyone)
    return [item for item in declared if settings["datasets"] is None or item.name in settings["datasets"]]


# ── Remedies ─────────────────────────────────────────────────────────────────────────────────────────────────────────
# What a user can do about a blocked sink: skip a chunk, or replay rows that were given up.
#
# A skipped chunk counts as passed, and each of its rows is quarantined under the sink's name: nothing is lost, and
# `replay` sends it later. A replayed row is sent as a parcel of its own, with a stable key: replayed twice, it arrives
# once.


@dataclass(frozen=True, slots=True)
class Skipped:
    """A chunk that was given up."""

    dataset: str
    partition: str
    range: SequenceRange
    rows: int


@dataclass(frozen=True, slots=True)
class Replayed:
    """The result of a replay."""

    rows: int
    refused: int
    """Refused again: they stay in quarantine."""


def skip(exporter: Exporter, name: str, *, dataset: str | None = None, partition: str | None = None) -> list[Skipped]:
    """Give up the first undelivered chunk of each channel that matches."""
    sink, lags = exporter.lags(name)
    skipped = []
    for lag in lags:
        channel = lag.channel
        if not lag.open or dataset not in (None, channel.dataset) or partition not in (None, channel.partition):
            continue
        found = _skip(exporter, channel, exporter.sources([lag])[channel.dataset])
        skipped += [] if found is None else [found]
    if not skipped:
        raise Permanent(
            f"Sink {name!r} has no pending chunk there.",
            hint="Only a chunk whose delivery was tried and failed can be skipped.",
        )
    exporter.database.transact(lambda c: sinks.set_state(c, sink.instance, state="active", reason=None))
    return skipped


def _skip(exporter: Exporter, channel: Channel, source: RowSource) -> Skipped | None:
    database, clock = exporter.database, exporter.clock

    def first(connection: Connection) -> tuple[Intent, SequenceRange] | None:
        intent = deliveries.open_intent(connection, channel)
        pending = [] if intent is None else chunks.of_intent(connection, intent)
        spans = [chunk.range for chunk in pending if chunk.state == "pending"]
        return (intent, spans[0]) if intent is not None and spans else None

    found = database.read(first)
    if found is None:
        return None
    intent, span = found
    rows = source.rows(intent, span).one_by_one()
    ours = database.transact(
        lambda c: chunks.give_up(c, intent, span, rows, reason="Skipped on demand.", now=clock.now())
    )
    return Skipped(channel.dataset, channel.partition, span, len(rows)) if ours else None


def replay(exporter: Exporter, name: str, *, id: str | None = None) -> Replayed:
    """Replay rows that were given up, in sequence order: all rows of the sink, or one."""
    database = exporter.database
    sink = database.read(lambda c: sinks.get(c, name))
    entries = database.read(lambda c: quarantine.of_sink(c, sink.instance))
    if id is not None:
        wanted = database.read(lambda c: quarantine.get(c, id))
        entries = [entry for entry in entries if entry.id == wanted.id]
        if not entries:
            raise Permanent(f"Entry {id!r} is not a quarantined row of sink {name!r}.")
    done = 0
    _update_ledgers(exporter, sink, entries)
    for group in _by_chunk(exporter, sink, entries):
        done += _replay_chunk(exporter, sink, group) if group.whole else 0
        if not group.whole or not _is_replayed(exporter, group.entries[0]):
            done += sum(_replay_row(exporter, sink, entry) for entry in group.entries)
    return Replayed(done, len(entries) - done)


def _update_ledgers(exporter: Exporter, sink: sinks.Sink, entries: Sequence[Entry]) -> None:
    """A ledger accepts a replayed row only if it knows that the row was given up.

    The next chunk with rows reports it. If none was sent since, a chunk without rows reports it now.
    """
    if not kind_of(sink).contiguous:
        return
    for channel in {Channel(sink.instance, entry.dataset, entry.partition or "") for entry in entries}:
        _, destination = _way(exporter, sink, channel, {})
        if not _keeps_ledger(destination):
            continue
        begin = exporter.database.read(partial(parcel_start, channel=channel))
        if not begin.given_up.rows:
            continue
        with contextlib.suppress(Ahead):  # it has this, and more
            destination.deliver(_without_rows(channel, SequenceRange(begin.after, begin.watermark), begin))


def _by_chunk(exporter: Exporter, sink: sinks.Sink, entries: Sequence[Entry]) -> list[_Group]:
    """Rows that were given up together, with the chunk they were given up with."""
    groups: dict[tuple[str, SequenceRange], _Group] = {}
    last: dict[Channel, tuple[Intent, Chunk] | None] = {}  # the next row is usually in the same chunk
    for entry in entries:
        channel = Channel(sink.instance, entry.dataset, entry.partition or "")
        found = last.get(channel)
        if found is None or (entry.seq or 0) not in found[1].range:
            found = last[channel] = exporter.database.read(
                partial(chunks.given_up_chunk, channel=channel, seq=entry.seq or 0)
            )
        alone = SequenceRange((entry.seq or 1) - 1, entry.seq or 1)
        key = (entry.dataset, alone if found is None else found[1].range)
        groups.setdefault(key, _Group(channel, found)).entries.append(entry)
    return list(groups.values())


def _replay_chunk(exporter: Exporter, sink: sinks.Sink, group: _Group) -> int:
    """Send a chunk with the same range as before: a destination that already has it recognises it by the range.

    A row sent alone with another key could be stored twice by a server that knows only keys.
    """
    if group.found is None:
        return 0
    intent, chunk = group.found
    source, destination = _way(exporter, sink, group.channel, intent.settings)
    if isinstance(destination, TransactionalDestination):
        return 0  # row by row: effect and record are one transaction there
    piece = source.rows(intent, chunk.range)
    span, replay = chunk.range, _keeps_ledger(destination)
    if replay and piece.tally != chunk.tally:
        return 0  # some of its rows are no longer in the lake: row by row
    if kind_of(sink).contiguous and not replay:
        span = exporter.database.read(lambda c: sent_range(c, group.channel, chunk))
    parcel = Parcel(group.channel, span, piece.table, piece.sequence, piece.ids, piece.tally, replay=replay)
    try:
        destination.deliver(parcel)
    except (Refused, Ahead, Oversized):
        return 0  # the ledger ends after it, or it is still refused: row by row
    faults.reach("delivery.replayed")
    return _decide(exporter, *group.entries)


def _replay_row(exporter: Exporter, sink: sinks.Sink, entry: Entry) -> bool:
    channel = Channel(sink.instance, entry.dataset, entry.partition or "")
    source, destination = _way(exporter, sink, channel, {})
    parcel = _parcel(source, channel, entry.seq or 0)
    if isinstance(destination, TransactionalDestination):
        return _replay_within(exporter, destination, parcel, entry)
    try:
        destination.deliver(parcel)
    except Refused as error:
        words = error.words
        exporter.database.transact(lambda c: quarantine.set_reason(c, entry.id, words))
        return False
    faults.reach("delivery.replayed")
    return bool(_decide(exporter, entry))


def _replay_within(exporter: Exporter, destination: TransactionalDestination, parcel: Parcel, entry: Entry) -> bool:
    def work(connection: Connection) -> bool:
        mine = quarantine.decide(connection, entry.id, state="replayed", now=exporter.clock.now())
        if mine:
            destination.deliver_within(connection, parcel)
        return mine

    return exporter.database.transact(work)


def _way(
    exporter: Exporter, sink: sinks.Sink, channel: Channel, settings: dict[str, Any]
) -> tuple[RowSource, Destination]:
    source = RowSource(exporter.lake, view_of(exporter.engine, channel.dataset))
    return source, exporter.destination(sink, source.view.dataset, channel, settings)


def _decide(exporter: Exporter, *entries: Entry) -> int:
    now = exporter.clock.now()
    return exporter.database.transact(
        lambda c: sum(quarantine.decide(c, entry.id, state="replayed", now=now) for entry in entries)
    )


def _is_replayed(exporter: Exporter, entry: Entry) -> bool:
    return exporter.database.read(lambda c: quarantine.get(c, entry.id)).state == "replayed"


@dataclass(frozen=True, slots=True)
class _Group:
    """Quarantined rows that were given up with one chunk."""

    channel: Channel
    found: tuple[Intent, Chunk] | None
    entries: list[Entry] = field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether all rows of the chunk are still quarantined: a replayed row must not be sent again."""
        return (
            self.found is not None and self.found[1].tally is not None and self.found[1].tally.rows == len(self.entries)
        )


def _keeps_ledger(destination: Destination) -> bool:
    return isinstance(destination, LedgerDestination) and destination.keeps_ledger


def _without_rows(channel: Channel, span: SequenceRange, begin: ParcelStart) -> Parcel:
    import pyarrow as pa

    numbers, ids = pa.chunked_array([], pa.int64()), pa.chunked_array([], pa.string())
    given_up = GivenUpRange(span, begin.given_up)
    return Parcel(channel, span, pa.table({}), numbers, ids, Tally(), before=begin.before, given_up=given_up)


def _parcel(source: RowSource, channel: Channel, seq: int) -> Parcel:
    span = SequenceRange(seq - 1, seq)
    settings: dict[str, Any] = {"columns": list(source.view.dataset.schema.names)}
    piece = source.rows(Intent("", channel, span, settings), span)
    if piece.rows != 1:
        raise Permanent(
            f"Row {seq} of {channel.dataset!r} is no longer in the lake.",
            hint="`floodmark quarantine show` still shows the row; discard the entry.",
        )
    return Parcel(channel, span, piece.table, piece.sequence, piece.ids, piece.tally, replay=True)
