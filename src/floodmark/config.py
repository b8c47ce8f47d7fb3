"""`floodmark.toml`: a store's settings.

Every key has a default. An error names the key and the allowed values.
"""

from __future__ import annotations

import math
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
    """When more bytes are waiting in a dataset's spool, capture raises `SpoolFull`."""
    columns_max: int = 2000
    """Most columns of one dataset, including fields of structs. Rows that would add more are quarantined or refused."""
    new_columns_max: int = 200
    """Most columns that one call, or one batch of a file or stream, can add to a dataset."""
    line_bytes_max: int = 64 << 20
    """A longer line of a file or stream is quarantined, with its number and its beginning."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """[flush]"""

    rows_max: int = 2_000_000
    """Most rows in one commit."""
    bytes_max: int = 1 << 30
    """Most bytes in one commit, uncompressed."""
    segments_max: int = 512
    """Most segments in one commit."""
    patience_seconds: int = 60
    """How long to wait for another flush of the same dataset on this machine before starting anyway."""


@dataclass(frozen=True, slots=True)
class SparkSettings:
    """[spark]"""

    master: str = "local[*]"
    """The Spark master, if the application has not started a session."""
    driver_memory: str = "1g"
    """The JVM heap size of a local session: a whole number and m or g, at least 512m."""
    settings: dict[str, str] = field(default_factory=dict, repr=False)
    """Other Spark settings, as strings."""


@dataclass(frozen=True, slots=True)
class RunSettings:
    """[run]"""

    flush_seconds: float = 30.0
    """`floodmark run` flushes rows that have waited this long …"""
    flush_bytes: int = 64 << 20
    """… or when this many bytes (landing files and segments) are waiting."""
    export_seconds: int = 30
    """How often it delivers to a sink that has neither `every` nor `cron`."""
    compact: bool = True
    """Whether it also compacts datasets."""
    compact_seconds: int = 600
    """It compacts a dataset with new commits this often …"""
    compact_commits: int = 60
    """… or after this many commits."""
    stop_seconds_max: int = 60
    """Timeout for finishing the work in progress when it is stopped."""


@dataclass(frozen=True, slots=True)
class UpkeepSettings:
    """[upkeep]"""

    file_bytes: int = 128 << 20
    """Target size of data files for compaction."""
    files_min: int = 8
    """The newest bucket of a dataset is compacted when it has this many small files."""
    bytes_max: int = 4 << 30
    """Most bytes of a dataset that one compaction rewrites; the next run continues."""
    buckets_at_once: int = 4
    """Number of buckets rewritten at the same time."""
    manifests_max: int = 5
    """Manifests are merged when there are more small ones than this."""
    snapshots_keep: int = 5
    """Compaction keeps at least this many snapshots."""
    snapshots_age_seconds: int = 3600
    """Snapshots younger than this are kept, for running readers …"""
    snapshots_max: int = 200
    """… but at most this many snapshots."""
    orphan_age_seconds: int = 259_200
    """Age at which an unreferenced file is removed; always at least one day."""


@dataclass(frozen=True, slots=True)
class FunctionSettings:
    """[functions]"""

    allow: list[str] = field(default_factory=list)
    """Modules or packages whose functions can be used as projections and settle functions. If it is empty, a Python
    program can use any function, and the command line none.
    """

    def check(self, path: Any, *, by_command: bool = False) -> None:
        """Raises `InvalidSetting` for a function of a module that is not listed: using it would execute its code."""
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

    A value `env:NAME` is read from the environment.
    """

    type: str
    """`rest`, or `sql` (also written `jdbc`): Iceberg's JDBC catalog on SQLite or PostgreSQL."""
    uri: str = field(repr=False)
    """The URL of the catalog; for `sql` the URL of the database."""
    warehouse: str | None = None
    """The location of its files."""
    properties: dict[str, str] = field(default_factory=dict, repr=False)
    """Other properties; `spark.…` are for Spark only, `python.…` for PyIceberg only."""


@dataclass(frozen=True, slots=True)
class ControlSettings:
    """[control]"""

    url: str = field(default="", repr=False)
    """The control database: `postgresql://…`, or `env:NAME` or `file:/path` where the URL is kept. Default: SQLite in
    the store's directory."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All settings of a store."""

    store_id: str
    control: ControlSettings = field(default_factory=ControlSettings)
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
SECTIONS: dict[str, type] = {
    "control": ControlSettings,
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
    except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or a number or nesting beyond the limits
        raise InvalidSetting(f"{path} is not valid TOML: {reason_of(error)}.", hint="Correct that line.") from error
    except OSError as error:
        raise StoreMissing(
            f"{path} cannot be read: {error.strerror or error}.", hint="Give a store's directory, or its settings file."
        ) from error
    store_id = content.pop("store_id", None)
    if not isinstance(store_id, str) or not store_id:
        raise InvalidSetting(f"{path}: store_id is missing.", hint="`floodmark init` wrote it. Restore the line.")
    catalogs = _catalogs(path, content.pop(_CATALOGS, {}))
    unknown = sorted(set(content) - set(SECTIONS))
    if unknown:
        names = ", ".join(f"[{name}]" for name in (*SECTIONS, "catalogs.NAME"))
        raise InvalidSetting(f"{path}: unknown key {unknown[0]!r}.", hint=f"The sections are {names}.")
    sections = {name: _section(path, name, content.get(name, {})) for name in SECTIONS}
    return Settings(store_id=store_id, catalogs=catalogs, **sections)


def initial_text(store_id: str, *, control: str = "") -> str:
    """The file that `init` writes: the store id, and every setting with its default, commented out."""
    given = {"control.url": control} if control else {}
    lines = ["# A Floodmark store. The identity below is permanent: never copy it to another store.", ""]
    lines += [f'store_id = "{store_id}"', ""]
    for name, kind in SECTIONS.items():
        lines.append(f"[{name}]")
        for item in fields(kind):
            default = getattr(kind(), item.name)
            value = given.get(f"{name}.{item.name}")
            if value is not None:
                lines.append(f"{item.name} = {toml_value(value)}")
            elif not isinstance(default, dict):
                lines.append(f"# {item.name} = {toml_value(default)}")
        lines.append("")
    return "\n".join(lines)


def _section(path: Path, name: str, given: Any) -> Any:
    kind = SECTIONS[name]
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
    """Check settings for which Spark's launcher would print only a Java stack trace."""
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
    """`s3.endpoint = "…"` is a nested table in TOML, and one key for Iceberg."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _check_value(path: Path, key: str, value: Any, wanted: type) -> None:
    words = {
        int: "a whole number above zero",
        float: "a number above zero",
        bool: "true or false",
        str: "a text",
        dict: "a table of strings",
        list: "a list of strings",
    }
    good = type(value) is wanted or (wanted is float and type(value) is int)
    if wanted in {int, float}:
        good = good and 0 < value < math.inf
    if wanted is dict:
        good = good and all(isinstance(item, str) for item in value.values())
    if wanted is list:
        good = good and all(isinstance(item, str) and item for item in value)
    if not good:
        # Only numbers are shown: strings and tables of Spark and catalogs may contain passwords and keys.
        plain = wanted in {int, float, bool} and type(value) in {int, float, bool}
        shown = toml_value(value) if plain else f"of type {type(value).__name__}"
        raise InvalidSetting(f"{path}: {key} is {shown}.", hint=f"It must be {words[wanted]}.")


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return f'"{value}"' if isinstance(value, str) else str(value)
