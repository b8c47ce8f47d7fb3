"""`floodmark.toml`: a store's settings.

Every key has a default, and every problem is told with its key and what is allowed there.
"""

from __future__ import annotations

import re
import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from floodmark.errors import InvalidSetting, StoreMissing, reason_of

FILE_NAME = "floodmark.toml"


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """[spool]"""

    backlog_bytes_max: int = 4 << 30
    """Past this many waiting bytes in a dataset's spool, capture is refused with `SpoolFull`."""
    columns_max: int = 2000
    """Columns of one dataset, fields of structs included. Rows that would add more are quarantined or refused."""
    new_columns_max: int = 200
    """Columns that one call, or one batch of a file or stream, may add to a dataset."""
    line_bytes_max: int = 64 << 20
    """A longer line of a file or stream is quarantined, with its number and its beginning."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """[flush]"""

    rows_max: int = 2_000_000
    """Rows in one commit."""
    bytes_max: int = 1 << 30
    """Bytes in one commit, as the rows are when they are read."""
    segments_max: int = 512
    """Segments in one commit."""
    patience_seconds: int = 60
    """How long to wait for another flush of the same dataset on this machine before working beside it."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """[spark]"""

    master: str = "local[*]"
    """Where a session runs, if the application has not started one."""
    driver_memory: str = "1g"
    """The JVM's heap for a local session: a whole number and m or g, at least 512m."""
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    """Any further Spark settings, as texts."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """[run]"""

    flush_seconds: int = 30
    """How long `floodmark run` lets captured rows wait before it flushes them."""
    flush_bytes: int = 64 << 20
    """… and how many waiting bytes (landing files and segments) it takes to flush earlier."""
    export_seconds: int = 30
    """How often it delivers to a sink that has neither `every` nor `cron`."""
    stop_seconds_max: int = 60
    """How long it may take to finish what is under way when it is asked to stop."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """[upkeep]"""

    file_bytes: int = 128 << 20
    """The size that compaction gives data files."""
    files_min: int = 8
    """How many small files the newest stretch of a dataset must have before compaction touches it."""
    bytes_max: int = 4 << 30
    """How much one compaction rewrites of a dataset; the next one goes on."""
    buckets_at_once: int = 4
    """How many stretches it rewrites at the same time."""
    manifests_max: int = 5
    """Past this many small lists of files, compaction joins them."""
    snapshots_keep: int = 5
    """Compaction never leaves fewer snapshots than this."""
    snapshots_age_seconds: int = 3600
    """Younger snapshots stay, for readers that are under way …"""
    snapshots_max: int = 200
    """… but never more than this many."""
    orphan_age_seconds: int = 259_200
    """How old a file that nothing refers to must be before it goes; a day at least, whatever is set here."""


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """[functions]"""

    allow: list[str] = field(default_factory=list)
    """Modules, or packages, whose functions may be named as projections and settle functions. While none is named
    here, a Python program may name any, and the command line none."""

    def check(self, path: Any, *, by_command: bool = False) -> None:
        """`InvalidSetting` for a function of a module that is not on the list: naming it would run its code."""
        if not isinstance(path, str) or not (self.allow or by_command):
            return
        module = path.partition(":")[0]
        if not any(module == allowed or module.startswith(f"{allowed}.") for allowed in self.allow):
            wanted = ", ".join(f'"{name}"' for name in (*self.allow, module))
            raise InvalidSetting(
                f"The settings of this store do not allow functions of the module {module!r}.",
                hint=f"Add this to [functions] in {FILE_NAME}: allow = [{wanted}]",
            )


@dataclass(frozen=True, slots=True)
class CatalogSettings:
    """[catalogs.NAME]: an Iceberg catalog with tables that rows are delivered to.

    A value may be `env:NAME`: then it stands in the environment, and nowhere else.
    """

    type: str
    """`rest`, or `sql` (also written `jdbc`): Iceberg's JDBC catalog on SQLite or PostgreSQL."""
    uri: str = field(repr=False)
    """Where it answers; for `sql` the URL of the database."""
    warehouse: str | None = None
    """Where its files are."""
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    """Any further properties; `spark.…` are for Spark only, `python.…` for PyIceberg only."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a store."""

    store_id: str
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    run: RunSettings = field(default_factory=RunSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)
    upkeep: UpkeepSettings = field(default_factory=UpkeepSettings)
    functions: FunctionSettings = field(default_factory=FunctionSettings)
    catalogs: dict[str, CatalogSettings] = field(default_factory=dict)


_HEAP_BYTES_MIN = 512 << 20
"""Spark refuses to start with less than about 450 MB."""
_MASTER = re.compile(r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|[a-z][a-z0-9+.-]*://\S+")
_CATALOGS = "catalogs"
_CATALOG_TYPES = {"rest": "rest", "sql": "sql", "jdbc": "sql"}
_SECTIONS: dict[str, type] = {
    "spool": SpoolSettings,
    "flush": FlushSettings,
    "run": RunSettings,
    "spark": SparkSettings,
    "upkeep": UpkeepSettings,
    "functions": FunctionSettings,
}


def load(path: Path) -> Settings:
    """Read and check a settings file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreMissing(
            f"There is no store at {path.parent} (no {path.name} in it).",
            hint=f"Create one with `floodmark -s {path.parent} init`, or give another directory with -s.",
        ) from None
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, a number or a nesting beyond all bounds
        raise InvalidSetting(f"{path} is not valid TOML: {reason_of(error)}.", hint="Correct that line.") from error
    except OSError as error:
        raise StoreMissing(
            f"{path} cannot be read: {error.strerror or error}.", hint="Give a store's directory, or its settings file."
        ) from error
    store_id = content.pop("store_id", None)
    if not isinstance(store_id, str) or not store_id:
        raise InvalidSetting(f"{path}: store_id is missing.", hint="`floodmark init` wrote it. Restore the line.")
    catalogs = _catalogs(path, content.pop(_CATALOGS, {}))
    unknown = sorted(set(content) - set(_SECTIONS))
    if unknown:
        names = ", ".join(f"[{name}]" for name in (*_SECTIONS, "catalogs.NAME"))
        raise InvalidSetting(f"{path}: unknown key {unknown[0]!r}.", hint=f"The sections are {names}.")
    sections = {name: _section(path, name, content.get(name, {})) for name in _SECTIONS}
    return Settings(store_id=store_id, catalogs=catalogs, **sections)


def initial_text(store_id: str) -> str:
    """What `init` writes: the identity, and every setting with its default, commented out."""
    lines = ["# A Floodmark store. The identity below is permanent: never copy it to another store.", ""]
    lines += [f'store_id = "{store_id}"', ""]
    for name, kind in _SECTIONS.items():
        lines.append(f"[{name}]")
        for item in fields(kind):
            default = getattr(kind(), item.name)
            if not isinstance(default, dict):
                lines.append(f"# {item.name} = {_toml(default)}")
        lines.append("")
    return "\n".join(lines)


def _section(path: Path, name: str, given: Any) -> Any:
    kind = _SECTIONS[name]
    if not isinstance(given, dict):
        raise InvalidSetting(f"{path}: {name} is a section.", hint=f"Write it as [{name}].")
    defaults = kind()
    known = {item.name: type(getattr(defaults, item.name)) for item in fields(kind)}
    for key, value in given.items():
        if key not in known:
            raise InvalidSetting(f"{path}: unknown key {name}.{key}.", hint=f"Allowed here: {', '.join(known)}.")
        _check_value(path, f"{name}.{key}", value, known[key])
    if name == "spark":
        _check_spark(path, given)
    return kind(**given)


def _check_spark(path: Path, given: dict[str, Any]) -> None:
    """What Spark's launcher would answer with a page of Java."""
    memory = {"spark.driver_memory": given.get("driver_memory")}
    memory['spark.settings."spark.driver.memory"'] = given.get("settings", {}).get("spark.driver.memory")
    for key, text in memory.items():
        if text is not None and _heap_bytes(text) < _HEAP_BYTES_MIN:
            raise InvalidSetting(
                f"{path}: {key} is not a valid JVM memory size.",
                hint='Write a whole number and m or g, at least 512m: "1g".',
            )
    master = given.get("master")
    if master is not None and _MASTER.fullmatch(master) is None:
        raise InvalidSetting(
            f"{path}: spark.master is not the address of a Spark master.",
            hint='Write "local[*]", "local[4]", "yarn", or the URL of a cluster: "spark://host:7077", "k8s://…".',
        )


def _heap_bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([kmgt])", text.strip().lower())
    return 0 if found is None else int(found[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def _catalogs(path: Path, given: Any) -> dict[str, CatalogSettings]:
    if not isinstance(given, dict) or not all(isinstance(section, dict) for section in given.values()):
        raise InvalidSetting(f"{path}: a catalog is a section.", hint="Write it as [catalogs.NAME].")
    return {name: _catalog(path, name, _flat(section)) for name, section in given.items()}


def _catalog(path: Path, name: str, given: dict[str, Any]) -> CatalogSettings:
    key = f"{_CATALOGS}.{name}"
    if re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name) is None:
        raise InvalidSetting(f"{path}: {name!r} is not a valid catalog name.", hint="Use letters, digits, _ and -.")
    for item, value in given.items():
        _check_value(path, f"{key}.{item}", value, str)
    kind = _CATALOG_TYPES.get(given.pop("type", ""))
    if kind is None:
        raise InvalidSetting(f"{path}: {key}.type is missing or unknown.", hint=f"One of {', '.join(_CATALOG_TYPES)}.")
    uri, warehouse = given.pop("uri", None), given.pop("warehouse", None)
    if uri is None or (kind == "sql" and warehouse is None):
        missing = "uri" if uri is None else "warehouse"
        raise InvalidSetting(f"{path}: {key}.{missing} is missing.", hint="A catalog needs this setting.")
    return CatalogSettings(kind, uri, warehouse, given)


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`s3.endpoint = "…"` is a table in a table to TOML, and one key to Iceberg."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _check_value(path: Path, key: str, value: Any, wanted: type) -> None:
    words = {int: "a whole number above zero", str: "a text", dict: "a table of strings", list: "a list of strings"}
    good = type(value) is wanted
    if wanted is int:
        good = good and value > 0
    if wanted is dict:
        good = good and all(isinstance(item, str) for item in value.values())
    if wanted is list:
        good = good and all(isinstance(item, str) and item for item in value)
    if not good:
        # Only numbers are repeated: texts and tables of Spark and of catalogs hold passwords and keys.
        shown = f"{value}" if wanted is int and type(value) in {int, float, bool} else f"of type {type(value).__name__}"
        raise InvalidSetting(f"{path}: {key} is {shown}.", hint=f"It must be {words[wanted]}.")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
