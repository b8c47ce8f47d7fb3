"""Sinks as the control database knows them."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, bindparam, select, update

from floodmark.control.database import next_event
from floodmark.control.schema import Record, mapping, read_back, sinks
from floodmark.errors import InvalidName, Paused, UnknownSink

_BY_NAME = select(sinks).where(sinks.c.name == bindparam("called"), sinks.c.state != "removed")


@dataclass(frozen=True, slots=True)
class Sink:
    """One configured destination. The instance is its identity: a sink that is removed and added again is a new one."""

    instance: str
    name: str
    kind: str
    settings: dict[str, Any] = field(repr=False)
    """Never shown directly: they may contain a credential (`delivery.kinds.shown`)."""
    state: str = "active"
    reason: str | None = None
    """Why it is blocked."""
    number: int = 0
    """U19: the event by which it was added. Removals of before have never concerned it."""
    problem: str | None = None
    """What its last tick met, blocked or not; None if that got through."""
    next_attempt_at: datetime | None = None
    """When it is retried after a problem."""
    paused_at: str | None = None
    """Since when nothing is delivered to it."""
    known_as: str | None = None
    """The instance that its destination knows it as, if it is another: that of the sink which was rewound."""

    @property
    def claimant(self) -> str:
        """The name in its claim at the destination."""
        return self.known_as or self.instance

    def check_running(self) -> None:
        """`Paused` while nothing may be delivered to it."""
        if self.paused_at is not None:
            raise Paused(
                f"Sink {self.name!r} is paused since {self.paused_at[:19]}.",
                hint=f"Nothing is lost. `floodmark sink resume {self.name}` continues where it stopped.",
            )


def insert(connection: Connection, sink: Sink, *, now: datetime) -> None:
    if find(connection, sink.name) is not None:
        raise InvalidName(f"A sink {sink.name!r} already exists.", hint="Remove it first, or choose another name.")
    connection.execute(
        sinks.insert().values(
            instance=sink.instance,
            name=sink.name,
            kind=sink.kind,
            settings=json.dumps(sink.settings, sort_keys=True),
            state=sink.state,
            created_at=now.isoformat(),
            number=next_event(connection),
        )
    )


def find(connection: Connection, name: str) -> Sink | None:
    row = connection.execute(_BY_NAME, {"called": name}).one_or_none()
    return None if row is None else _sink(row)


def get(connection: Connection, name: str) -> Sink:
    found = find(connection, name)
    if found is None:
        known = ", ".join(sink.name for sink in everyone(connection)) or "none yet"
        raise UnknownSink(
            f"There is no sink {name!r} in this store (existing sinks: {known}).",
            hint="Correct the name, or add the sink with `floodmark sink add` or store.add_sink.",
        )
    return found


def everyone(connection: Connection) -> list[Sink]:
    found = connection.execute(select(sinks).where(sinks.c.state != "removed").order_by(sinks.c.name))
    return [_sink(row) for row in found]


def same_destination(connection: Connection, instance: str) -> list[Sink]:
    """A sink, and those of before it, removed by now, that delivered to the same place; the newest first."""
    found = [_sink(row) for row in connection.execute(select(sinks).order_by(sinks.c.number.desc()))]
    own = next(sink for sink in found if sink.instance == instance)
    place = (own.kind, own.settings.get("url"), own.settings.get("origin"), own.settings.get("table"))
    earlier = [
        sink
        for sink in found
        if sink.state == "removed"
        and sink.number < own.number
        and (sink.kind, sink.settings.get("url"), sink.settings.get("origin"), sink.settings.get("table")) == place
    ]
    return [own, *earlier]


def set_state(
    connection: Connection,
    instance: str,
    *,
    state: str,
    reason: str | None,
    problem: str | None = None,
    next_attempt_at: datetime | None = None,
) -> None:
    again = None if next_attempt_at is None else next_attempt_at.isoformat()
    values = {"state": state, "reason": reason, "problem": problem, "next_attempt_at": again}
    connection.execute(update(sinks).where(sinks.c.instance == instance, sinks.c.state != "removed").values(**values))


def _sink(row: Record) -> Sink:
    settings = read_back(f"sink {row.name!r}", lambda: mapping(row.settings))
    again = None if row.next_attempt_at is None else datetime.fromisoformat(row.next_attempt_at)
    return Sink(
        row.instance,
        row.name,
        row.kind,
        settings,
        row.state,
        row.reason,
        row.number,
        row.problem,
        again,
        row.paused_at,
        row.known_as,
    )


def set_paused(connection: Connection, instance: str, *, at: datetime | None) -> None:
    """Pause a sink, or resume it; one that is paused already keeps its time."""
    same = (sinks.c.instance == instance, sinks.c.state != "removed")
    if at is None:
        connection.execute(update(sinks).where(*same).values(paused_at=None))
    else:
        connection.execute(update(sinks).where(*same, sinks.c.paused_at.is_(None)).values(paused_at=at.isoformat()))


_TAKES = select(sinks.c.state, sinks.c.paused_at).where(sinks.c.instance == bindparam("sink"))


def takes_more(connection: Connection, instance: str) -> bool:
    """Whether another range may be pinned for it: not for one that is paused, removed or rewound."""
    row = connection.execute(_TAKES, {"sink": instance}).one_or_none()
    return row is not None and row.state != "removed" and row.paused_at is None


def claimant(connection: Connection, instance: str) -> str:
    """The name in the claim of a sink at its destination."""
    found = connection.execute(select(sinks.c.known_as).where(sinks.c.instance == instance)).scalar_one_or_none()
    return found or instance


def change(connection: Connection, instance: str, settings: dict[str, Any]) -> None:
    """New settings apply to the next intent; an open one keeps its own. What was wrong was so under the old ones."""
    values = {"settings": json.dumps(settings, sort_keys=True)}
    connection.execute(update(sinks).where(sinks.c.instance == instance).values(**values))
    set_state(connection, instance, state="active", reason=None)


def hub_of(connection: Connection, instance: str) -> str | None:
    """The id of the hub that a forward sink delivers to, once it is known."""
    return connection.execute(select(sinks.c.hub).where(sinks.c.instance == instance)).scalar_one_or_none()


def pin_hub(connection: Connection, instance: str, hub: str) -> str:
    """D8: the first hub that answers is the one; returns which that is."""
    connection.execute(update(sinks).where(sinks.c.instance == instance, sinks.c.hub.is_(None)).values(hub=hub))
    return hub_of(connection, instance) or hub


def schedules(connection: Connection) -> dict[str, tuple[datetime | None, datetime]]:
    """For every sink, by its instance: when its last scheduled delivery was due, and when it was added."""
    found = connection.execute(
        select(sinks.c.instance, sinks.c.ticked_at, sinks.c.created_at).where(sinks.c.state != "removed")
    )
    return {
        row.instance: (
            None if row.ticked_at is None else datetime.fromisoformat(row.ticked_at),
            datetime.fromisoformat(row.created_at),
        )
        for row in found
    }


def set_ticked(connection: Connection, instance: str, *, at: datetime) -> None:
    connection.execute(update(sinks).where(sinks.c.instance == instance).values(ticked_at=at.isoformat()))
