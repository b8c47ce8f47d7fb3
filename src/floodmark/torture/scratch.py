"""The scratch store of one run, with copies of the user's sinks that deliver to other locations.

| kind       | its own place                                                                                       |
|------------|-----------------------------------------------------------------------------------------------------|
| blob       | a fresh prefix below the sink's url                                                                 |
| table      | a fresh table in the same catalog and namespace                                                     |
| forward    | the same hub, with a dataset that is there for this                                                 |
| projection | left out: it would call the user's function                                                         |

A sink's scope and schedule stay behind: every row goes to every sink, as soon as it is there. Chunks are small, so that
there are many of them to be killed between.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from floodmark.config import CatalogSettings, Settings
from floodmark.control.sinks import Sink
from floodmark.delivery.kinds import COMMON
from floodmark.errors import UnknownSink
from floodmark.store import Store, init, open_store
from floodmark.torture.reading import Denied, Ledger

CHUNK_ROWS = 40
TABLE_CHUNK_ROWS = 400
"""A chunk is a commit there, and a commit takes a second."""
PARTITION = "site"
SCHEMA = {"id": "string", "site": "string", "text": "string", "proof": "string", "size": "long"}


@dataclass(frozen=True, slots=True)
class HubAccess:
    """How a run accesses the hub of a forward sink."""

    store: Path | None = None
    """The hub's own store, if it is here: its rows can be read then."""
    dataset: str | None = None
    """A dataset that the hub has declared for this."""


@dataclass(frozen=True, slots=True)
class Planned:
    """A sink of the scratch store."""

    name: str
    kind: str
    settings: dict[str, Any] = field(repr=False)
    """With the sink's credentials."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What the scratch store is to have."""

    dataset: str
    sinks: tuple[Planned, ...]
    left_out: tuple[str, ...]


def plan(user: Store, names: Sequence[str], hub: HubAccess, folder: Path) -> Plan:
    """The sinks of a run, from the user's. Touches nothing, but asks a hub what it would let us do."""
    known = {sink.name: sink for sink in user.sinks()}
    unknown = [name for name in names if name not in known]
    if unknown:
        there = ", ".join(known) or "none yet"
        raise UnknownSink(f"There is no sink {unknown[0]!r} in this store (existing sinks: {there}).")
    mark = f"torture_{secrets.token_hex(4)}"
    chosen = [sink for name, sink in known.items() if not names or name in names]
    forwards = [sink.name for sink in chosen if sink.kind == "forward"]
    dataset = hub.dataset or mark if forwards else mark
    sinks: list[Planned] = []
    left_out: list[str] = []
    for sink in chosen:
        found = _planned(user, sink, mark, dataset, hub, first_hub=forwards[:1] == [sink.name])
        if isinstance(found, str):
            left_out.append(f"{sink.name}: {found}")
        else:
            sinks.append(found)
    if not known:
        sinks.append(Planned("files", "blob", {"url": (folder / "files").as_uri(), "chunk_rows": CHUNK_ROWS}))
    return Plan(dataset, tuple(sinks), tuple(left_out))


def _planned(user: Store, sink: Sink, mark: str, dataset: str, hub: HubAccess, *, first_hub: bool) -> Planned | str:
    """The sink as the scratch store has it, or why it has not."""
    settings = {key: value for key, value in sink.settings.items() if key not in COMMON and value is not None}
    rows = TABLE_CHUNK_ROWS if sink.kind == "table" else CHUNK_ROWS
    settings["chunk_rows"] = min(rows, settings.get("chunk_rows", rows))
    if sink.kind == "blob":
        return Planned(sink.name, "blob", {**settings, "url": f"{settings['url'].rstrip('/')}/{mark}"})
    if sink.kind == "table":
        catalog, namespace = settings["table"].split(".")[:2]
        table = f"{catalog}.{namespace}.{mark}_{_word(sink.name)}"
        return Planned(sink.name, "table", {**settings, "table": table, "datasets": [dataset]})
    if sink.kind == "projection":
        return "skipped, because it would call your function with generated rows."
    if not first_hub:
        return "skipped, because a run tests only one hub. Select it with --sink."
    if hub.store is None and hub.dataset is None:
        return (
            "a hub accepts only rows of declared datasets. Give --hub-store with the path of the hub's "
            "store, or declare a dataset at the hub for this test and give it with --hub-dataset."
        )
    return Planned(sink.name, "forward", {**settings, "origin": _origin(user, settings, mark, dataset)})


def _origin(user: Store, settings: dict[str, Any], mark: str, dataset: str) -> str:
    """The name under which the hub gets the rows: one of its own, or if the token is not for that, the store's."""
    own = settings.get("origin") or user.store_id
    try:
        Ledger(settings["url"], settings.get("token"), mark).channels(dataset)
    except Denied:
        if Ledger(settings["url"], settings.get("token"), own).channels(dataset):
            raise Denied(
                f"The hub already has rows of this store in {dataset!r}.",
                hint="Declare another dataset at the hub, and give it with --hub-dataset.",
            ) from None
        return str(own)
    return mark


def _word(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_store(
    root: Path, like: Settings | None, datasets: dict[str, bool], sinks: Sequence[Planned], *, control: str = ""
) -> Store:
    """A fresh store with Spark and catalogs as in the user's settings; datasets by name, and whether by identity."""
    with init(root, control=control) as made:
        settings = made.settings
    if like is not None:
        settings = replace(settings, spark=like.spark, catalogs=like.catalogs)
    (root / "floodmark.toml").write_text(settings_text(settings), encoding="utf-8")
    store = open_store(root)
    for name, identity in datasets.items():
        store.add_dataset(name, identity=["id"] if identity else None, partition_by=[PARTITION], schema=SCHEMA)
    for sink in sinks:
        store.add_sink(sink.name, sink.kind, **sink.settings)
    return store


def settings_text(settings: Settings) -> str:
    """The settings file of a scratch store: everything at once and as often as possible."""
    lines = [f"store_id = {_toml(settings.store_id)}", ""]
    if settings.control.url:
        lines += ["[control]", f"url = {_toml(settings.control.url)}", ""]
    lines += ["[flush]", "patience_seconds = 1", ""]
    lines += ["[run]", "flush_seconds = 1", "export_seconds = 1", "stop_seconds_max = 100", ""]
    spark = settings.spark
    lines += ["[spark]", f"master = {_toml(spark.master)}", f"driver_memory = {_toml(spark.driver_memory)}"]
    lines += [f"remote = {_toml(spark.remote)}"] if spark.remote else []
    lines += ["[spark.settings]", *_pairs(spark.settings), ""]
    for name, catalog in settings.catalogs.items():
        lines += [f"[catalogs.{name}]", *_pairs(_catalog(catalog)), ""]
    return "\n".join(lines)


def _catalog(catalog: CatalogSettings) -> dict[str, str]:
    place = {} if catalog.warehouse is None else {"warehouse": catalog.warehouse}
    return {"type": catalog.type, "uri": catalog.uri, **place, **catalog.properties}


def _pairs(values: dict[str, str]) -> list[str]:
    return [f"{_toml(key)} = {_toml(value)}" for key, value in values.items()]


def _toml(text: str) -> str:
    """JSON's texts are TOML's as well, as long as nothing beyond ASCII is escaped."""
    return json.dumps(text, ensure_ascii=False)
