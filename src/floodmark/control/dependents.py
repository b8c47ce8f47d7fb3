"""What depends on a dataset, all of its records, and the datasets that were removed."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from datetime import datetime

from sqlalchemy import Connection, Table, select, update

from floodmark.control import sinks as sink_records
from floodmark.control.schema import (
    block_partitions,
    blocks,
    chunks,
    datasets,
    filtered_removals,
    forfeits,
    generations,
    intents,
    landing,
    ledger,
    ledger_given_up,
    losses,
    operations,
    partitions,
    problems,
    provenance,
    purged,
    quarantine,
    rebuilds,
    removals,
    removed_datasets,
    reports,
    requests,
    segment_partitions,
    segments,
    sinks,
    sources,
    touched,
    watermarks,
)

_PARTS: tuple[tuple[Table, str, Table, str], ...] = (
    (chunks, "intent", intents, "id"),
    (block_partitions, "block", blocks, "id"),
    (segment_partitions, "segment", segments, "id"),
)
"""Tables without a dataset of their own: which column names a record of one, and where."""
_RECORDS: tuple[Table, ...] = (
    intents,
    watermarks,
    touched,
    forfeits,
    filtered_removals,
    removals,
    operations,
    purged,
    losses,
    problems,
    segments,
    blocks,
    partitions,
    landing,
    quarantine,
    sources,
    rebuilds,
    generations,
    requests,
    ledger_given_up,
    ledger,
    provenance,
)
"""In an order in which no record refers to one that is gone."""


@dataclass(frozen=True, slots=True)
class Leftovers:
    """What is left of a removed dataset beside its records."""

    tables: tuple[str, ...] = ()
    directories: tuple[str, ...] = ()

    @property
    def empty(self) -> bool:
        return not self.tables and not self.directories


def sinks_of(connection: Connection, dataset: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The sinks whose settings name a dataset, and those of them that name no other."""
    naming = [sink for sink in sink_records.everyone(connection) if dataset in (sink.settings.get("datasets") or ())]
    only = [sink.name for sink in naming if len(sink.settings["datasets"]) == 1]
    return tuple(sink.name for sink in naming), tuple(only)


def origins_of(connection: Connection, dataset: str) -> list[str]:
    """The stores that have forwarded rows to a dataset."""
    found = connection.execute(select(ledger.c.origin).where(ledger.c.dataset == dataset).distinct())
    return sorted(found.scalars())


def sources_of(connection: Connection, dataset: str) -> list[str]:
    """The sources of a dataset's rows that have a position."""
    return sorted(connection.execute(select(sources.c.id).where(sources.c.dataset == dataset)).scalars())


def leave_out(connection: Connection, dataset: str) -> None:
    """Take a dataset out of the settings of the sinks that name it and others."""
    for sink in sink_records.everyone(connection):
        names = sink.settings.get("datasets") or []
        starts = sink.settings.get("start") or []
        if dataset in names or any(entry[0] == dataset for entry in starts):
            settings = dict(sink.settings)
            if dataset in names:
                settings["datasets"] = [name for name in names if name != dataset]
            settings["start"] = [entry for entry in starts if entry[0] != dataset]
            text = json.dumps(settings, sort_keys=True)
            connection.execute(update(sinks).where(sinks.c.instance == sink.instance).values(settings=text))


def forget(connection: Connection, dataset: str) -> None:
    """Delete every record of a dataset."""
    for part, column, of, key in _PARTS:
        own = select(of.c[key]).where(of.c.dataset == dataset)
        connection.execute(part.delete().where(part.c[column].in_(own)))
    for table in _RECORDS:
        connection.execute(table.delete().where(table.c.dataset == dataset))
    connection.execute(reports.delete().where(reports.c.subject == dataset))
    connection.execute(datasets.delete().where(datasets.c.name == dataset))


# ── removed datasets ─────────────────────────────────────────────────────────────────────────────────────────────────


def remember(connection: Connection, name: str, left: Leftovers, *, now: datetime) -> None:
    connection.execute(
        removed_datasets.insert().values(name=name, removed_at=now.isoformat(), leftovers=json.dumps(asdict(left)))
    )


def leftovers(connection: Connection, name: str) -> Leftovers | None:
    """What is left of a dataset that was removed; None if none of that name was."""
    row = connection.execute(select(removed_datasets).where(removed_datasets.c.name == name)).one_or_none()
    return None if row is None else _leftovers(row.leftovers)


def unfinished(connection: Connection) -> dict[str, Leftovers]:
    """The removed datasets of which something is left."""
    found = connection.execute(select(removed_datasets).where(removed_datasets.c.leftovers.is_not(None)))
    return {row.name: _leftovers(row.leftovers) for row in found}


def nothing_left(connection: Connection, name: str) -> None:
    connection.execute(update(removed_datasets).where(removed_datasets.c.name == name).values(leftovers=None))


def _leftovers(text: str | None) -> Leftovers:
    content = {} if text is None else json.loads(text)
    return Leftovers(tuple(content.get("tables", ())), tuple(content.get("directories", ())))
