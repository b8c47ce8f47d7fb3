"""What the sinks of a store still need of a dataset."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark.control import datasets, deliveries, inspection, sinks
from floodmark.control.datasets import Dataset
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.scope import Scope
from floodmark.removal import Need
from floodmark.sequence import SequenceRange


@dataclass(frozen=True, slots=True)
class Needs:
    """Who needs what, at one instant."""

    by_partition: dict[str, list[Need]]
    names: dict[str, str]
    """Sink instance → its name."""
    filters: frozenset[str] = frozenset()
    """The row filters of all sinks whose scope has the dataset: removed rows are counted separately for each."""

    @property
    def everyone(self) -> list[Need]:
        return [need for needs in self.by_partition.values() for need in needs]


@dataclass(frozen=True, slots=True)
class Position:
    """What a sink has been given of one partition."""

    name: str
    partition: str
    delivered: SequenceRange
    where: str | None = None
    """Only rows of which this is true."""


def positions_of(connection: Connection, declared: Dataset) -> list[Position]:
    """How far every sink got in every partition: from its start to its watermark, and under which filters."""
    found = []
    for item in datasets.partition_totals(connection, declared.name):
        for sink in sinks.everyone(connection):
            channel = Channel(sink.instance, declared.name, item.partition)
            mark = deliveries.watermark(connection, channel)
            start = Scope.of(sink.settings).start(channel)
            if mark is not None and mark.seq > start:
                whole = SequenceRange(start, mark.seq)
                found += [
                    Position(sink.name, item.partition, span, where)
                    for span, where in _filtered(connection, channel, whole, sink.settings.get("where"))
                ]
    return found


def _filtered(
    connection: Connection, channel: Channel, whole: SequenceRange, today: str | None
) -> Iterator[tuple[SequenceRange, str | None]]:
    """A delivered range, cut where the sink's filter changed: each intent had its own."""
    begin, where = whole.after, today
    for after, own in inspection.filters_of(connection, channel):
        if own != where and begin < after < whole.through:
            yield SequenceRange(begin, after), where
            begin = after
        where = own if after < whole.through else where
    if begin < whole.through:
        yield SequenceRange(begin, whole.through), where


def needs_of(connection: Connection, declared: Dataset) -> Needs:
    """U10: every sink that is not removed, active or blocked, whose scope has a partition.

    A sink without a watermark there needs everything from its start. One that has passed the partition's last row
    needs nothing of it.
    """
    totals = datasets.partition_totals(connection, declared.name)
    everyone = sinks.everyone(connection)
    found: dict[str, list[Need]] = {}
    filters: set[str] = set()
    for item in totals:
        for sink in everyone:
            need = _need(connection, declared, sink, item.partition, last_seq=item.last_seq)
            if need is not None:
                found.setdefault(item.partition, []).append(need)
            condition = sink.settings.get("where")
            if condition is not None and Scope.of(sink.settings).takes(declared, item.partition):
                filters.add(condition)
            channel = Channel(sink.instance, declared.name, item.partition)
            filters |= {earlier for _, earlier in inspection.filters_of(connection, channel) if earlier is not None}
    return Needs(found, {sink.instance: sink.name for sink in everyone}, frozenset(filters))


def _need(connection: Connection, declared: Dataset, sink: Sink, partition: str, *, last_seq: int) -> Need | None:
    scope = Scope.of(sink.settings)
    if not scope.takes(declared, partition):
        return None
    channel = Channel(sink.instance, declared.name, partition)
    mark = deliveries.watermark(connection, channel)
    after = scope.start(channel) if mark is None else mark.seq
    opened = deliveries.open_intent(connection, channel)
    if after >= last_seq and opened is None:
        return None
    return Need(sink.instance, after, None if opened is None else opened.range)


def lag_rows(connection: Connection, declared: Dataset, needs: Needs, sink: str) -> int:
    """About how many rows a sink has still to get, by the blocks' figures."""
    total = 0
    for partition, here in needs.by_partition.items():
        for need in here:
            if need.sink == sink and need.after < declared.horizon:
                channel = Channel(sink, declared.name, partition)
                whole = SequenceRange(need.after, declared.horizon)
                total += sum(item.rows for item in deliveries.stretches(connection, channel, whole))
    return total


@dataclass(frozen=True, slots=True)
class Needed:
    """A sink, and about how many rows of a dataset it has still to get."""

    sink: str
    rows: int


def needed_rows(connection: Connection, dataset: str) -> list[Needed]:
    """The sinks that have not received everything of a dataset."""
    declared = datasets.get(connection, dataset)
    needs = needs_of(connection, declared)
    asked = sorted({need.sink for need in needs.everyone}, key=lambda instance: needs.names[instance])
    return [Needed(needs.names[one], lag_rows(connection, declared, needs, one)) for one in asked]
