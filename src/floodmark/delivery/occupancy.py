"""Whether two sinks would meet at one place, and whether a place is inside the store itself.

| kind    | its place                                         | two meet if                                   |
|---------|---------------------------------------------------|-----------------------------------------------|
| blob    | everything below its prefix                       | one prefix is the other, or lies in it        |
| table   | one table, or one for each dataset of a namespace | a table is the same, and not for other slices |
| forward | one channel at the hub for each dataset and slice | url and origin are the same, and a slice is   |

A projection has none that could be known. Pure, but for symbolic links on this machine.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from floodmark.config import CatalogSettings
from floodmark.control.datasets import Dataset
from floodmark.control.sinks import Sink

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
    """Whether one prefix is another, or lies in it."""
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
    """Where a prefix is: the machine or bucket, and the way from there."""
    parts = urlsplit(settings["url"])
    if parts.scheme == "file":
        return ("file",), Path(os.path.realpath(unquote(parts.path))).parts
    server = tuple(str(settings.get(name) or "").rstrip("/").lower() for name in ("endpoint", "account"))
    return (parts.scheme, parts.netloc, *server), tuple(part for part in parts.path.split("/") if part)


def _tables_meet(one: Settings, other: Settings) -> bool:
    a, b = _tables(one), _tables(other)
    if a[0] != b[0] or not _both_take(a[1], b[1]):
        return False
    # Of one dataset a table may take several slices; rows of two datasets never go to one table.
    whole = one["table"].count(".") == 1 and other["table"].count(".") == 1
    same = whole or one["datasets"] == other["datasets"]
    return _slices_meet(one, other) if same else True


def _tables(settings: Settings) -> tuple[str, list[str] | None]:
    """The namespace, and the tables in it; None: one for each dataset that there is or will be."""
    catalog, namespace, *table = settings["table"].split(".")
    return f"{catalog}.{namespace}", table or settings["datasets"]


def _both_take(one: list[str] | None, other: list[str] | None) -> bool:
    return one is None or other is None or bool(set(one) & set(other))


def _slices_meet(one: Settings, other: Settings) -> bool:
    """Not if they ask for different values of one column."""
    a, b = one["partitions"] or {}, other["partitions"] or {}
    return all(set(a[name]) & set(b[name]) for name in set(a) & set(b))
