"""How far the sinks of a store are, and what keeps one back. From the control database alone: no Spark, no request."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection

from floodmark.control import datasets, deliveries, sinks
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.kinds import place_of, seconds
from floodmark.delivery.scope import Scope
from floodmark.schedule import Cron, Every
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class ChannelStatus:
    """One partition on its way to a sink."""

    dataset: str
    partition: str
    watermark: int
    lag: int
    """About how many committed rows it has still to get, before its filter."""


@dataclass(frozen=True, slots=True)
class SinkStatus:
    name: str
    kind: str
    place: str
    state: str
    """`active`, or `blocked` until somebody does something about it."""
    reason: str | None
    """Why it is blocked, or what its last export met."""
    next_attempt: datetime | None
    """When `floodmark run` tries again after a failure, else when its own `every` or `cron` is due next; perhaps in the
    past, where nothing runs. `floodmark export` tries at once."""
    lag: int
    """About how many committed rows it has still to get, before its filter."""
    warnings: tuple[str, ...]
    """What its scope names that is not there."""
    channels: tuple[ChannelStatus, ...]


def standings(connection: Connection) -> tuple[SinkStatus, ...]:
    """Every sink, by name."""
    declared = datasets.everyone(connection)
    keys = {item.name: [one.partition for one in datasets.partition_totals(connection, item.name)] for item in declared}
    return tuple(_standing(connection, sink, declared, keys) for sink in sinks.everyone(connection))


def _due(connection: Connection, sink: Sink) -> datetime | None:
    ticked_at, created_at = sinks.schedules(connection)[sink.instance]
    if sink.settings.get("cron"):
        return Cron(sink.settings["cron"]).following(ticked_at or created_at)
    if sink.settings.get("every") and ticked_at is not None:
        return Every(seconds(sink.settings["every"])).following(ticked_at)
    return None


def _standing(
    connection: Connection, sink: Sink, declared: list[datasets.Dataset], keys: dict[str, list[str]]
) -> SinkStatus:
    scope = Scope.of(sink.settings)
    behind = {lag.channel: lag for lag in deliveries.lagging(connection, sink.instance)}
    channels = []
    for item in declared:
        for key in keys[item.name]:
            if not scope.takes(item, key):
                continue
            channel = Channel(sink.instance, item.name, key)
            lag = behind.get(channel)
            mark = deliveries.watermark(connection, channel) if lag is None else lag.mark
            after = scope.start(channel) if mark is None else mark.seq
            rows = 0
            if lag is not None and lag.horizon > after:
                found = deliveries.stretches(connection, channel, SequenceRange(after, lag.horizon))
                rows = sum(stretch.rows for stretch in found)
            channels.append(ChannelStatus(item.name, key, after, rows))
    return SinkStatus(
        sink.name,
        sink.kind,
        place_of(sink),
        sink.state,
        sink.reason or sink.problem,
        sink.next_attempt_at or _due(connection, sink),
        sum(one.lag for one in channels),
        tuple(scope.warnings(declared, keys)),
        tuple(channels),
    )
