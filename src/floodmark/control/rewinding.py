"""The records of a sink that begins anew: a new instance takes the place of the old one, in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

from sqlalchemy import Connection, func, select, update

from floodmark.control.deliveries import Channel
from floodmark.control.schema import chunks, forfeits, intents, quarantine, sinks, watermarks
from floodmark.control.sinks import Sink


def chunk_beginning(connection: Connection, channel: Channel, position: int) -> int:
    """The position, or the beginning of the chunk that it is inside of."""
    found = connection.execute(
        select(func.min(chunks.c.after_seq))
        .join(intents, intents.c.id == chunks.c.intent)
        .where(
            intents.c.sink == channel.sink,
            intents.c.dataset == channel.dataset,
            intents.c.partition_key == channel.partition,
            chunks.c.after_seq < position,
            chunks.c.through_seq > position,
            chunks.c.state != "split",
        )
    ).scalar_one_or_none()
    return position if found is None else int(found)


def held_after(connection: Connection, channel: Channel, position: int) -> int:
    """How many rows of a channel are in quarantine behind a position."""
    return int(
        connection.execute(
            select(func.count()).where(
                quarantine.c.sink == channel.sink,
                quarantine.c.dataset == channel.dataset,
                quarantine.c.partition_key == channel.partition,
                quarantine.c.state == "held",
                quarantine.c.seq > position,
            )
        ).scalar_one()
    )


def begin_anew(
    connection: Connection,
    old: Sink,
    *,
    instance: str,
    settings: str,
    positions: Mapping[tuple[str, str], int],
    discard: bool,
    now: datetime,
) -> None:
    """Put a new instance in the place of a sink. Channels with a position begin anew; the others go on as they are.

    The new one has the number of the old one: what was removed from the lake since then concerned it, too (U19).
    """
    row = connection.execute(select(sinks).where(sinks.c.instance == old.instance)).one()
    connection.execute(update(sinks).where(sinks.c.instance == old.instance).values(state="removed", reason=None))
    connection.execute(
        sinks.insert().values(
            instance=instance,
            name=row.name,
            kind=row.kind,
            settings=settings,
            state="active",
            created_at=row.created_at,
            number=row.number,
            hub=row.hub,
            paused_at=row.paused_at,
            known_as=old.claimant,
        )
    )
    for dataset, partition in _channels(connection, old.instance):
        if (dataset, partition) not in positions:
            for table in (watermarks, intents):
                same = (table.c.sink == old.instance, table.c.dataset == dataset, table.c.partition_key == partition)
                connection.execute(update(table).where(*same).values(sink=instance))
    # An acknowledgement counts only while its intent is open: what is still sent for the old one counts for nobody.
    connection.execute(update(intents).where(intents.c.sink == old.instance).values(state="closed"))
    connection.execute(update(forfeits).where(forfeits.c.sink == old.instance).values(sink=instance))
    for (dataset, partition), position in positions.items():
        if discard:
            connection.execute(
                update(quarantine)
                .where(
                    quarantine.c.sink == old.instance,
                    quarantine.c.dataset == dataset,
                    quarantine.c.partition_key == partition,
                    quarantine.c.state == "held",
                    quarantine.c.seq > position,
                )
                .values(state="discarded", decided_at=now.isoformat())
            )
    connection.execute(
        update(quarantine).where(quarantine.c.sink == old.instance, quarantine.c.state == "held").values(sink=instance)
    )


def _channels(connection: Connection, instance: str) -> list[tuple[str, str]]:
    found = set()
    for table in (watermarks, intents):
        rows = connection.execute(select(table.c.dataset, table.c.partition_key).where(table.c.sink == instance))
        found |= {(row.dataset, row.partition_key) for row in rows}
    return sorted(found)
