"""What every host of a store must agree on: where its tables and its segments are.

`init` records it in the control database, `attach` writes another host's settings from it, and opening a store
compares: a host with another lake would commit rows where nobody looks, and take the segments of the others for lost.

A secret is never recorded. A setting that names where its value is kept (`env:NAME`, `file:/path`) is; of one that has
the value itself only the name is recorded, and `attach` asks for it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from sqlalchemy import Connection, delete, insert, select

from floodmark.config import FILE_NAME, Settings, catalog_values
from floodmark.control.schema import meta
from floodmark.errors import InvalidSetting, Permanent, Retryable

_NAME, _MOVING = "topology", "moving"
_PLACES = ("type", "warehouse", "namespace", "name")
_CONTROL = "control"
"""Stands for a catalog in the control database itself, which each host names in its own way."""
_SECRET = re.compile(r"secret|password|token|credential|access[.-]?key|sas|account[.-]?key", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Topology:
    """Where the tables and the segments of a store are."""

    lake: Mapping[str, str] = field(default_factory=dict)
    """The settings of the lake that may be recorded; none: it is in the directory of the store's one host."""
    withheld: tuple[str, ...] = ()
    """The names of those that may not."""
    segments: str = ""
    spark: Mapping[str, str] = field(default_factory=dict)

    @property
    def has_shared_lake(self) -> bool:
        """Whether other hosts can reach the tables."""
        return self.lake.get("type") == "rest" or "warehouse" in self.lake

    @property
    def places(self) -> tuple[str | None, ...]:
        """What must be equal on every host. How a place is reached may differ."""
        return (*map(self.lake.get, _PLACES), self.segments)


def topology_of(settings: Settings) -> Topology:
    """The part of a host's settings that its store's other hosts need."""
    lake = {} if settings.lake is None else catalog_values(settings.lake)
    if lake.get("uri") and lake["uri"] == settings.control.url:
        lake["uri"] = _CONTROL
    withheld = tuple(sorted(key for key, value in lake.items() if _is_secret(key, value)))
    named = {"master": settings.spark.master, "remote": settings.spark.remote}
    return Topology(
        {key: value for key, value in lake.items() if key not in withheld},
        withheld,
        settings.spool.segments,
        {key: value for key, value in named.items() if value},
    )


def _is_secret(key: str, value: str) -> bool:
    if value.startswith("env:") or (value.startswith("file:") and not value.startswith("file://")):
        return False
    if key == "uri":
        parts = urlsplit(value)
        return parts.password is not None or "password=" in parts.query
    return _SECRET.search(key) is not None


def record_topology(connection: Connection, settings: Settings) -> None:
    """Record what other hosts need; also after the store has moved."""
    found = topology_of(settings)
    value = json.dumps(
        {
            "lake": dict(found.lake),
            "withheld": list(found.withheld),
            "segments": found.segments,
            "spark": dict(found.spark),
        }
    )
    connection.execute(delete(meta).where(meta.c.name == _NAME))
    connection.execute(insert(meta).values(name=_NAME, value=value))


def begin_move(connection: Connection, settings: Settings) -> None:
    """Record where tables and segments are moving to; `Permanent` if a move to another place has not ended."""
    wanted = json.dumps(topology_of(settings).places)
    found = connection.execute(select(meta.c.value).where(meta.c.name == _MOVING)).scalar_one_or_none()
    if found is None:
        connection.execute(insert(meta).values(name=_MOVING, value=wanted))
    elif found != wanted:
        place = next((text for text in json.loads(found) if text and "://" in text), "another place")
        raise Permanent(
            f"A move of the tables and segments to {place} was started and not completed.",
            hint="Run it again, with the options that it was started with.",
        )


def end_move(connection: Connection, settings: Settings) -> None:
    """From here on, the store's tables and segments are where these settings say."""
    record_topology(connection, settings)
    connection.execute(delete(meta).where(meta.c.name == _MOVING))


def recorded_topology(connection: Connection) -> Topology:
    """What was recorded; of a store from before that was done: everything is in its directory."""
    text = connection.execute(select(meta.c.value).where(meta.c.name == _NAME)).scalar_one_or_none()
    if text is None:
        return Topology()
    content = json.loads(text)
    return Topology(content["lake"], tuple(content["withheld"]), content["segments"], content["spark"])


def check_topology(connection: Connection, settings: Settings) -> None:
    """`InvalidSetting` if a host's settings name another lake or another place of segments than the store's."""
    wanted, found = recorded_topology(connection), topology_of(settings)
    if wanted.places != found.places:
        names = (*(f"lake.{name}" for name in _PLACES), "spool.segments")
        other = next(name for name, one, two in zip(names, wanted.places, found.places, strict=True) if one != two)
        raise InvalidSetting(
            f"{FILE_NAME}: {other} is not what this store was created with, or was moved to.",
            hint="Every host of a store uses the same lake and segments. Restore the setting; if `floodmark move` was "
            "interrupted, run it again; after a move, restart this process.",
        )


def check_unmoved(connection: Connection, settings: Settings) -> None:
    """U43, U44: `Retryable` if tables or segments have moved since this process opened the store."""
    if recorded_topology(connection).places != topology_of(settings).places:
        raise Retryable(
            "The tables or the segments of this store were moved, and this process has the settings of before.",
            hint="Nothing is lost. Restart it, with the new settings.",
        )


def lake_for(topology: Topology, *, control: str, given: Mapping[str, str]) -> dict[str, str]:
    """The lake's settings for another host, with what it was given; `InvalidSetting` if a secret is missing."""
    lake = {**topology.lake, **given}
    if lake.get("uri") == _CONTROL:
        lake["uri"] = control
    missing = [name for name in topology.withheld if name not in lake]
    if missing:
        raise InvalidSetting(
            f"The control database does not hold secrets of the lake: {', '.join(missing)}.",
            hint="Give them on this host, best as env:NAME or file:/path: "
            + " ".join(f"--lake {name}=env:…" for name in missing),
        )
    return lake
