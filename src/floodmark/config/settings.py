"""The settings of a store: every key with its type, its default and its meaning."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from floodmark.errors import InvalidSetting, reason_of

FILE_NAME = "floodmark.toml"
VARIABLES = "FLOODMARK_"
LAKE_NAMESPACE = "datasets"
"""Where the tables of a lake in a store's directory are in its catalog."""


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
    segments: str = ""
    """Where segments are kept: `s3://bucket/prefix`, `gs://…` or `az://…`, which every host of the store can reach.
    Default: the store's directory. Landing files are always there."""


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
    remote: str = ""
    """A Spark Connect server, `sc://host:port`, instead of a master."""


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
    expire: bool = True
    """Whether it expires snapshots that `[upkeep]` does not keep …"""
    expire_seconds: int = 120
    """… this often."""
    retain: dict[str, str] = field(default_factory=dict)
    """Rows that it removes, by dataset: `orders = "30d"`, `"30d ingest"` or `"1000000 rows"`. Never a row that a sink
    still needs …"""
    retain_seconds: int = 3600
    """… this often."""
    fold: bool = True
    """Whether it folds old records of the control database …"""
    fold_seconds: int = 600
    """… this often."""
    orphans: bool = True
    """Whether it removes files that no snapshot refers to …"""
    orphans_seconds: int = 86_400
    """… this often."""
    stop_seconds_max: int = 60
    """Timeout for finishing the work in progress when it is stopped."""
    listen: str = ""
    """Where it serves dashboard, metrics and health, such as `127.0.0.1:8765`. Empty: nowhere."""


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
    manifests_max: int = 25
    """Compaction merges manifests when there are more small ones than this. Commits merge every 20 automatically."""
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

    A value `env:NAME` is read from the environment, and `file:/path` from a file.
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
    lake: CatalogSettings | None = None
    """[lake]: the catalog and the warehouse of the store's own tables; None: both in the store's directory."""
    catalogs: dict[str, CatalogSettings] = field(default_factory=dict)

    @property
    def catalog_name(self) -> str:
        """The name of the store's own catalog. A SQL catalog has it beside every table."""
        given = {} if self.lake is None else self.lake.properties
        return given.get("name") or f"floodmark_{self.store_id.replace('-', '')[:12]}"


SECTIONS: dict[str, type] = {
    "control": ControlSettings,
    "spool": SpoolSettings,
    "flush": FlushSettings,
    "run": RunSettings,
    "spark": SparkSettings,
    "upkeep": UpkeepSettings,
    "functions": FunctionSettings,
}


def settings_file(path: str | Path) -> Path:
    """The settings file of a store that is given by its directory, or by the file itself."""
    given = Path(path).expanduser().absolute()
    return given if given.suffix == ".toml" else given / FILE_NAME


def secret(source: str, *, key: str) -> str:
    """A setting that may be kept elsewhere: `env:NAME`, `file:/path`, or the value itself."""
    kind, _, name = source.partition(":")
    try:
        if kind == "env":
            return os.environ[name]
        if kind == "file" and not name.startswith("//"):  # two slashes: it is the URL of a file, and meant as such
            return Path(name).read_text(encoding="utf-8").strip()
    except KeyError:
        problem = f"the environment variable {name}, which is not set"
    except (OSError, ValueError) as error:
        problem = f"a file that cannot be read ({reason_of(error)})"
    else:
        return source
    raise InvalidSetting(f"{FILE_NAME}: {key} names {problem}.", hint="Provide it, or correct the setting.")
