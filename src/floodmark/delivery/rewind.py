"""Rewinding a sink: it begins again at a cursor, or at its first row. What the destination has decides what is sent.

A rewound sink is a new instance under the old name. What an exporter still does for the old one counts for nobody:
nothing more is pinned for it, and nothing that it has pinned is acknowledged.

| kind              | what it means                                                         | rows twice            |
|-------------------|-----------------------------------------------------------------------|-----------------------|
| blob              | objects after the position are compared; missing ones are written     | none                  |
| forward, to a hub | the hub is asked, and delivery continues where its ledger ends        | none                  |
| table             | the table is asked, and delivery continues after its highest number   | none                  |
| forward, `status` | everything after the position is sent, perhaps under other keys       | only with `resend`    |
| projection        | the function is called with everything after the position             | only with `resend`    |

A position inside an object's range is moved to the beginning of that range: an object is there as a whole, or not.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import Connection

from floodmark import faults
from floodmark.control import datasets, deliveries, sinks
from floodmark.control.deliveries import Channel
from floodmark.control.sinks import Sink
from floodmark.delivery.scope import Scope
from floodmark.engine import Engine
from floodmark.errors import Permanent
from floodmark.read import cursor_position, view_of
from floodmark.sequence import Cursor


@dataclass(frozen=True, slots=True)
class RewoundChannel:
    """Where one partition was, and where it begins again."""

    dataset: str
    partition: str
    watermark: int
    position: int


@dataclass(frozen=True, slots=True)
class Rewound:
    """What a rewinding did, or would do."""

    sink: str
    destination_decides: bool
    """Whether the destination is asked where to continue; the positions are then the earliest possible."""
    channels: tuple[RewoundChannel, ...]
    discarded: int
    """Quarantined rows of the sink that are sent again with all others, and so are not replayed."""


def rewind(
    engine: Engine, name: str, *, to: Sequence[Cursor | str] = (), resend: bool = False, dry_run: bool = False
) -> Rewound:
    """Let a sink begin again after some cursors, or after none: at its first row."""
    sink = engine.database.read(lambda c: sinks.get(c, name))
    _check_doubles(sink, resend=resend)
    cursors = [Cursor.parse(item) if isinstance(item, str) else item for item in to]
    views = {one.dataset: view_of(engine, one.dataset) for one in cursors}
    wanted = [
        (one.dataset, one.partition, cursor_position(engine, views[one.dataset], one, partition=one.partition))
        for one in cursors
    ]
    new = uuid.uuid4().hex

    def work(connection: Connection) -> Rewound:
        plan = _planned(connection, sinks.get(connection, name), wanted)
        return plan if dry_run else _carried_out(engine, connection, plan, sinks.get(connection, name), new)

    if dry_run:
        return engine.database.read(work)
    done = engine.database.transact(work, landed=lambda c: sinks.get(c, name).instance == new)
    faults.reach("rewind.recorded")
    return done


def _asks(sink: Sink) -> bool:
    """Whether the destination keeps a record of its own by which delivery continues."""
    return sink.kind == "table" or (sink.kind == "forward" and sink.settings.get("accept", "hub") == "hub")


def _check_doubles(sink: Sink, *, resend: bool) -> None:
    if sink.kind == "blob" or _asks(sink) or resend:
        return
    what = "function would be called with" if sink.kind == "projection" else "server would receive"
    raise Permanent(
        f"The {what} rows of sink {sink.name!r} a second time: it keeps no record by which they are recognised.",
        hint="If its effect was undone, or is the same when repeated, pass --resend (in Python, resend=True). "
        "Otherwise leave this sink, and add another one with --start.",
    )


def _planned(connection: Connection, sink: Sink, wanted: Sequence[tuple[str, str | None, int]]) -> Rewound:
    scope = Scope.of(sink.settings)
    named = {dataset for dataset, _, _ in wanted}
    found = []
    for declared in datasets.everyone(connection):
        if wanted and declared.name not in named:
            continue
        for totals in datasets.partition_totals(connection, declared.name):
            channel = Channel(sink.instance, declared.name, totals.partition)
            positions = [
                seq for dataset, key, seq in wanted if dataset == declared.name and key in (None, totals.partition)
            ]
            if not scope.takes(declared, totals.partition) or (wanted and not positions):
                continue
            mark = deliveries.watermark(connection, channel)
            here = scope.start(channel) if mark is None else mark.seq
            at = max(positions, default=0)
            if at > here:
                raise Permanent(
                    f"The cursor of {declared.name!r} is after what sink {sink.name!r} has received: {at} > {here}.",
                    hint="A sink is rewound, never advanced: rows in between would not be delivered.",
                )
            if sink.kind == "blob":
                at = deliveries.chunk_beginning(connection, channel, at)
            _check_nothing_on_its_way(connection, sink, channel)
            found.append(RewoundChannel(declared.name, totals.partition, here, at))
    if wanted and not found:
        raise Permanent(f"Sink {sink.name!r} delivers no dataset that a cursor names.", hint="Give other cursors.")
    again = [] if _asks(sink) else [Channel(sink.instance, one.dataset, one.partition) for one in found]
    held = sum(
        deliveries.held_after(connection, channel, one.position)
        for channel, one in zip(again, found, strict=bool(again))
    )
    return Rewound(sink.name, _asks(sink), tuple(found), held)


def _check_nothing_on_its_way(connection: Connection, sink: Sink, channel: Channel) -> None:
    """An object that is written late would overlap those that are cut anew: what is pinned is delivered first."""
    if sink.kind == "blob" and deliveries.open_intent(connection, channel) is not None:
        raise Permanent(
            f"Sink {sink.name!r} has a range of {channel.dataset!r} ({channel.partition}) in progress.",
            hint=f"Run `floodmark export {sink.name}` first; if it is blocked, `floodmark sink skip {sink.name}`.",
        )


def _carried_out(engine: Engine, connection: Connection, plan: Rewound, sink: Sink, new: str) -> Rewound:
    settings = dict(sink.settings)
    if not plan.destination_decides:
        rewound = {(one.dataset, one.partition) for one in plan.channels}
        names = {one.dataset for one in plan.channels}
        scope = Scope.of(sink.settings)
        others = [
            [dataset, totals.partition, scope.start(Channel(sink.instance, dataset, totals.partition))]
            for dataset in sorted(names)
            for totals in datasets.partition_totals(connection, dataset)
            if (dataset, totals.partition) not in rewound
        ]
        settings["start"] = [
            *(entry for entry in sink.settings["start"] or () if entry[0] not in names),
            *(entry for entry in others if entry[2]),
            *([one.dataset, one.partition, one.position] for one in plan.channels if one.position),
        ]
    deliveries.begin_anew(
        connection,
        sink,
        instance=new,
        settings=json.dumps(settings, sort_keys=True),
        positions={(one.dataset, one.partition): one.position for one in plan.channels},
        discard=not plan.destination_decides,
        now=engine.clock.now(),
    )
    return plan
