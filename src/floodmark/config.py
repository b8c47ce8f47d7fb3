"""A store's settings: `floodmark.toml`, and the environment variables that replace single values of it.

Every key has a default. An error names the key, its line or variable, and the allowed values.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from floodmark.errors import InvalidSetting, StoreMissing, reason_of

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


_HEAP_BYTES_MIN = 512 << 20
"""Spark refuses to start with less than about 450 MB."""
_MASTER = re.compile(r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|[a-z][a-z0-9+.-]*://\S+")
_LINES_MAX = 2000
"""In a longer file the lines of the keys after this one are not shown: finding them takes time with its square."""
_HIDDEN = "•••"
_SECRET = re.compile(r"secret|pass|pwd|token|credential|key|auth|signature|sas\b|header", re.IGNORECASE)
_REMOTE = re.compile(r"sc://[^\s/;]+(/;\S*|/)?")
_PLACE = re.compile(r"(s3|gs|az)://[^\s/]+(/\S*)?")
_CATALOGS = "catalogs"
_LAKE = "lake"
_SPARK_SETTINGS = "spark.settings"
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


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a value comes from: `default`, `file` with its line, or `environment` with the variable."""

    kind: str
    line: int | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Problem:
    """One mistake in the settings."""

    key: str
    what: str
    hint: str
    line: int | None = None
    variable: str | None = None


@dataclass(frozen=True, slots=True)
class Value:
    """One setting as it may be shown: without secrets."""

    key: str
    value: Any
    origin: Origin
    allowed: str


@dataclass(frozen=True, slots=True)
class Examined:
    """A settings file and the environment: the settings, or every problem of them."""

    path: Path
    settings: Settings | None
    problems: list[Problem]
    values: list[Value]


def settings_file(path: str | Path) -> Path:
    """The settings file of a store that is given by its directory, or by the file itself."""
    given = Path(path).expanduser().absolute()
    return given if given.suffix == ".toml" else given / FILE_NAME


def load(path: Path, environment: Mapping[str, str] | None = None) -> Settings:
    """Read and check a settings file. Variables of the environment replace single values; see `Reading.override`."""
    reading = Reading(path)
    reading.override(os.environ if environment is None else environment)
    settings = reading.settings()
    if settings is None:
        first, *others = reading.problems
        more = f" `floodmark config check` lists {len(others)} more." if others else ""
        raise InvalidSetting(first.what, hint=first.hint + more)
    return settings


def parsed(text: str) -> Settings:
    """The settings of a file that is still to be written."""
    settings = (reading := Reading(Path(FILE_NAME), text)).settings()
    if settings is None:
        raise InvalidSetting(reading.problems[0].what, hint=reading.problems[0].hint)
    return settings


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


def examine(path: Path, environment: Mapping[str, str] | None = None) -> Examined:
    """Everything that can be said about the settings; only a file that cannot be read as TOML raises."""
    reading = Reading(path)
    reading.override(os.environ if environment is None else environment)
    settings = reading.settings()
    problems = reading.problems if settings is None else list(_missing_references(reading, settings))
    return Examined(path, settings, problems, [] if settings is None else _values(reading, settings))


class Reading:
    """A settings file on its way to be settings: its content, what the environment changed, and what is wrong.

    Problems are collected, so that all of them can be shown at once.
    """

    def __init__(self, path: Path, text: str | None = None) -> None:
        self.path = path
        try:
            self._text = path.read_text(encoding="utf-8") if text is None else text
            self._content = tomllib.loads(self._text)
        except FileNotFoundError:
            raise StoreMissing(
                f"There is no store at {path.parent} (no {path.name} in it).",
                hint=f"Create one with `floodmark -s {path.parent} init`, or give another directory with -s.",
            ) from None
        except (ValueError, RecursionError) as error:  # not TOML, not UTF-8, or a number or nesting beyond the limits
            raise _not_toml(path, error) from error
        except OSError as error:
            raise StoreMissing(
                f"{path} cannot be read: {error.strerror or error}.",
                hint="Give a store's directory, or its settings file.",
            ) from error
        self.problems: list[Problem] = []
        self._variables: dict[str, str] = {}
        """Key → the variable that replaced its value."""
        if text is not None:
            self.lines = {}  # nobody has seen its lines
        if isinstance(lake := self._content.get(_LAKE), dict):
            self._content[_LAKE] = _flat(lake)
        catalogs = self._content.get(_CATALOGS)
        if isinstance(catalogs, dict):
            self._content[_CATALOGS] = {
                name: _flat(section) if isinstance(section, dict) else section for name, section in catalogs.items()
            }

    @cached_property
    def lines(self) -> dict[str, int]:
        """Key → its line in the file."""
        return key_lines(self._text)

    def origin(self, key: str) -> Origin:
        whole = _SPARK_SETTINGS if key.startswith(f"{_SPARK_SETTINGS}.") else key  # a variable may replace all of them
        variable = self._variables.get(key) or self._variables.get(whole)
        if variable is not None:
            return Origin("environment", variable=variable)
        return Origin("file", line=self.lines[key]) if key in self.lines else Origin("default")

    def refuse(self, key: str, what: str, hint: str, *, variable: str | None = None) -> None:
        """Record a problem, with the line or the variable that it is in."""
        origin = Origin("environment", variable=variable) if variable else self.origin(key)
        if origin.variable is not None:
            place = f"Environment variable {origin.variable}"
        else:
            place = f"{self.path}" if origin.line is None else f"{self.path}, line {origin.line}"
        self.problems.append(Problem(key, f"{place}: {what}", hint, origin.line, origin.variable))

    # ── the environment ──────────────────────────────────────────────────────────────────────────────────────────

    def override(self, environment: Mapping[str, str]) -> None:
        """Take the values of variables: `FLOODMARK_SECTION__KEY`, `FLOODMARK_CATALOGS__NAME__KEY`.

        Two underscores are a dot. A variable that names no setting is a problem: it would have no effect, and nobody
        would notice. Names without two underscores belong to the program, or to a secret that is named `env:…`.
        """
        for variable in sorted(environment):
            parts = variable.split("__")
            if not variable.startswith(VARIABLES):
                continue
            parts[0] = parts[0].removeprefix(VARIABLES)
            if len(parts) > 1:
                self._take(variable, parts, environment[variable])
            elif (meant := _without_a_dot().get(variable)) and f"env:{variable}" not in self._text:
                self.refuse(variable, "it has no effect.", f"Did you mean {meant}?", variable=variable)

    def _take(self, variable: str, parts: list[str], text: str) -> None:
        section, key = parts[0].lower(), parts[1].lower()
        if section == _CATALOGS and len(parts) > 2:
            self._take_property(variable, parts, text)
        elif section == _LAKE:
            self._put_property(variable, self._content.setdefault(_LAKE, {}), (_LAKE,), parts[1:], text)
        elif (section, key) == ("spark", "settings") and len(parts) > 2:
            name = ".".join(parts[2:])  # in its own case: Spark's keys have capital letters
            self._put(variable, ("spark", "settings", name), text)
        elif section in SECTIONS and key in _kinds(section) and len(parts) == 2:
            self._put(variable, (section, key), _from_text(text, _kinds(section)[key]))
        else:
            near = difflib.get_close_matches(variable.upper(), variables(), n=3, cutoff=0.6)
            hint = f"Did you mean {' or '.join(near)}?" if near else "`floodmark config show` lists the keys."
            self.refuse(variable, "there is no such setting.", hint, variable=variable)

    def _take_property(self, variable: str, parts: list[str], text: str) -> None:
        catalogs = self._content.setdefault(_CATALOGS, {})
        if not isinstance(catalogs, dict):
            return  # refused later, for what the file says
        name = next((one for one in catalogs if _folded(one) == _folded(parts[1])), parts[1].lower())
        self._put_property(variable, catalogs.setdefault(name, {}), (_CATALOGS, name), parts[2:], text)

    def _put_property(self, variable: str, section: Any, path: tuple[str, ...], parts: list[str], text: str) -> None:
        if isinstance(section, dict):
            # Names of properties have dashes, and a variable cannot have one.
            given = ".".join(part.lower().replace("_", "-") for part in parts)
            key = next((one for one in section if _folded(one) == _folded(given)), given)
            self._put(variable, (*path, key), text)

    def _put(self, variable: str, path: tuple[str, ...], value: Any) -> None:
        place = self._content
        for part in path[:-1]:
            place = place.setdefault(part, {})
            if not isinstance(place, dict):
                return  # refused later, for what the file says
        place[path[-1]] = value
        self._variables[".".join(path)] = variable

    # ── checks ───────────────────────────────────────────────────────────────────────────────────────────────────

    def settings(self) -> Settings | None:
        """The settings; None if something is wrong with them."""
        content = dict(self._content)
        store_id = content.pop("store_id", None)
        if not isinstance(store_id, str) or not store_id:
            self.refuse("store_id", "store_id is missing.", "`floodmark init` wrote it. Restore the line.")
        catalogs = self._catalogs(content.pop(_CATALOGS, {}))
        lake = self._lake(content.pop(_LAKE, {}))
        for key in sorted(set(content) - set(SECTIONS)):
            names = ", ".join(f"[{name}]" for name in (*SECTIONS, _LAKE, "catalogs.NAME"))
            self.refuse(key, f"unknown key {key!r}.", f"The sections are {names}.")
        sections = {name: self._section(name, content.get(name, {})) for name in SECTIONS}
        return None if self.problems else Settings(store_id=str(store_id), lake=lake, catalogs=catalogs, **sections)

    def _section(self, name: str, given: Any) -> Any:
        kind, kinds, before = SECTIONS[name], _kinds(name), len(self.problems)
        if not isinstance(given, dict):
            self.refuse(name, f"{name} is a section.", f"Write it as [{name}].")
            return None
        for key, value in given.items():
            if key in kinds:
                self._check_value(f"{name}.{key}", value, kinds[key])
                continue
            near = difflib.get_close_matches(key, kinds, n=1)
            meant = f"Did you mean {near[0]}? " if near else ""
            self.refuse(f"{name}.{key}", f"unknown key {name}.{key}.", f"{meant}Allowed here: {', '.join(kinds)}.")
        if len(self.problems) == before and name == "spark":
            self._check_spark(given)
        place = given.get("segments") if len(self.problems) == before and name == "spool" else None
        if place and _PLACE.fullmatch(place) is None:
            self.refuse(
                "spool.segments",
                "spool.segments is not a place in an object store.",
                "Write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.",
            )
        return kind(**given) if len(self.problems) == before else None

    def _check_spark(self, given: dict[str, Any]) -> None:
        """Check settings for which Spark's launcher would print only a Java stack trace."""
        settings = given.get("settings", {})
        memory = {
            "spark.driver_memory": ("spark.driver_memory", given.get("driver_memory")),
            'spark.settings."spark.driver.memory"': (
                "spark.settings.spark.driver.memory",
                settings.get("spark.driver.memory"),
            ),
        }
        for shown, (key, text) in memory.items():
            if text is not None and _heap_bytes(text) < _HEAP_BYTES_MIN:
                self.refuse(
                    key,
                    f"{shown} is not a valid JVM memory size.",
                    'Write a whole number and m or g, at least 512m: "1g".',
                )
        master = given.get("master")
        if master is not None and _MASTER.fullmatch(master) is None:
            self.refuse(
                "spark.master",
                "spark.master is not the address of a Spark master.",
                'Write "local[*]", "local[4]", "yarn", or the URL of a cluster: "spark://host:7077", "k8s://…".',
            )
        remote = given.get("remote")
        if remote and _REMOTE.fullmatch(remote) is None:
            self.refuse(
                "spark.remote",
                "spark.remote is not the address of a Spark Connect server.",
                'Write "sc://host:15002".',
            )
        for key in settings:
            variable = self._variables.get(f"spark.settings.{key}")
            if variable is not None and not key.startswith("spark."):
                self.refuse(
                    f"spark.settings.{key}",
                    "it does not end with a key of Spark.",
                    f"Write it as Spark does, two underscores for a dot: {VARIABLES}SPARK__SETTINGS__spark__ui__port.",
                )

    def _catalogs(self, given: Any) -> dict[str, CatalogSettings]:
        if not isinstance(given, dict) or not all(isinstance(section, dict) for section in given.values()):
            self.refuse(_CATALOGS, "a catalog is a section.", "Write it as [catalogs.NAME].")
            return {}
        found = {name: self._catalog(name, dict(section)) for name, section in given.items()}
        return {name: catalog for name, catalog in found.items() if catalog is not None}

    def _catalog(self, name: str, given: dict[str, Any]) -> CatalogSettings | None:
        key, before = f"{_CATALOGS}.{name}", len(self.problems)
        if re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name) is None:
            self.refuse(key, f"{name!r} is not a valid catalog name.", "Use letters, digits, _ and -.")
        for item, value in given.items():
            self._check_value(f"{key}.{item}", value, str)
        if len(self.problems) > before:
            return None
        kind = _CATALOG_TYPES.get(given.pop("type", ""))
        uri, warehouse = given.pop("uri", None), given.pop("warehouse", None)
        if kind is None:
            self.refuse(
                f"{key}.type",
                f"{key}.type is missing or unknown.",
                f"One of {', '.join(_CATALOG_TYPES)}.",
                variable=self._variable_of(key),
            )
        elif uri is None or (kind == "sql" and warehouse is None):
            missing = "uri" if uri is None else "warehouse"
            self.refuse(key, f"{key}.{missing} is missing.", "A catalog needs this setting.")
        else:
            return CatalogSettings(kind, uri, warehouse, given)
        return None

    def _lake(self, given: Any) -> CatalogSettings | None:
        """`[lake]`. A SQL catalog without `uri` and `warehouse` is in the store's directory, and so is what one of them
        does not name.
        """
        if not isinstance(given, dict):
            self.refuse(_LAKE, f"{_LAKE} is a section.", f"Write it as [{_LAKE}].")
            return None
        values, before = dict(given), len(self.problems)
        for item, value in values.items():
            self._check_value(f"{_LAKE}.{item}", value, str)
        if not values or len(self.problems) > before:
            return None
        kind = _CATALOG_TYPES.get(values.pop("type", "sql"))
        uri, warehouse, namespace = values.pop("uri", ""), values.pop("warehouse", None), values.get("namespace")
        if kind is None:
            self.refuse(f"{_LAKE}.type", f"{_LAKE}.type is unknown.", f"One of {', '.join(_CATALOG_TYPES)}.")
        elif kind == "rest" and not uri:
            self.refuse(f"{_LAKE}.uri", f"{_LAKE}.uri is missing.", "A REST catalog needs its URL.")
        elif warehouse and kind == "sql" and re.fullmatch(r"[a-z][a-z0-9+.-]*://\S.*", warehouse) is None:
            self.refuse(
                f"{_LAKE}.warehouse",
                f"{_LAKE}.warehouse is not a URL.",
                "Write s3://bucket/prefix, gs://bucket/prefix, abfss://container@account/prefix or file:///directory.",
            )
        elif namespace is not None and re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,127}", namespace) is None:
            self.refuse(
                f"{_LAKE}.namespace", f"{_LAKE}.namespace is not a name.", "Use letters, digits and underscores."
            )
        else:
            return CatalogSettings(kind, uri, warehouse or None, values)
        return None

    def _variable_of(self, section: str) -> str | None:
        """A variable that made this section, if the file does not have it."""
        if section in self.lines:
            return None
        return next((variable for key, variable in self._variables.items() if key.startswith(f"{section}.")), None)

    def _check_value(self, key: str, value: Any, wanted: type) -> None:
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
            self.refuse(key, f"{key} is {shown}.", f"It must be {_WORDS[wanted]}.")


_WORDS: dict[type, str] = {
    int: "a whole number above zero",
    float: "a number above zero",
    bool: "true or false",
    str: "a text",
    dict: "a table of strings",
    list: "a list of strings",
}
_ALLOWED = {
    "control.url": "postgresql://…, env:NAME or file:/path",
    "spool.segments": "s3://…, gs://… or az://…",
    "spark.master": "local[N], yarn, or a URL",
    "spark.remote": "sc://host:port",
    "spark.driver_memory": "a whole number and m or g, at least 512m",
}
"""For texts of which not every one is allowed."""


def _not_toml(path: Path, error: Exception) -> InvalidSetting:
    twice = re.search(r"Cannot declare \((.*?),?\) twice \(at line (\d+)", str(error))
    if twice is None:
        return InvalidSetting(f"{path} is not valid TOML: {reason_of(error)}.", hint="Correct that line.")
    section = ".".join(part.strip(" '\"") for part in twice[1].split(","))
    return InvalidSetting(
        f"{path}, line {twice[2]}: the section [{section}] is in the file twice.",
        hint="Move its keys into the first one: a new store's file already has every section.",
    )


def _kinds(section: str) -> dict[str, type]:
    """The keys of a section with the types of their values."""
    defaults = SECTIONS[section]()
    return {item.name: type(getattr(defaults, item.name)) for item in fields(SECTIONS[section])}


def variables() -> list[str]:
    """The environment variables that replace a setting."""
    return [f"{VARIABLES}{section}__{key}".upper() for section in SECTIONS for key in _kinds(section)]


def _without_a_dot() -> dict[str, str]:
    """Variables as they are misspelt most easily, with the right ones."""
    return {name.replace("__", "_"): name for name in variables()}


def _from_text(text: str, wanted: type) -> Any:
    """A variable's text as a value; the text itself if it cannot be one, for the check to refuse."""
    stripped = text.strip()
    try:
        if wanted is int:
            return int(stripped)
        if wanted is float:
            return float(stripped)
        if wanted is bool:
            return {"true": True, "false": False}.get(stripped.lower(), text)
        if wanted is list and not stripped.startswith("["):
            return [one.strip() for one in stripped.split(",") if one.strip()]
        if wanted in {dict, list}:
            return tomllib.loads(f"value = {stripped}")["value"]
    except ValueError:
        pass
    return text


def _folded(name: str) -> str:
    """A name as a variable can have it."""
    return re.sub(r"[._-]+", "_", name).lower()


def key_lines(text: str) -> dict[str, int]:
    """Key → the line where it is set.

    TOML's parser gives no lines. But the beginning of a file is a file as well: a key stands where it first appears.
    """
    found: dict[str, int] = {}
    lines = text.split("\n")
    begun = 0
    for end in range(1, min(len(lines), _LINES_MAX) + 1):
        try:
            keys = _keys(tomllib.loads("\n".join(lines[:end])))
        except ValueError:
            continue  # in the middle of a value
        first = next(
            (at for at in range(begun, end) if lines[at].strip() and not lines[at].strip().startswith("#")), begun
        )
        found |= {key: first + 1 for key in keys if key not in found}
        begun = end
    return found


def _keys(content: dict[str, Any], prefix: str = "") -> list[str]:
    found = []
    for key, value in content.items():
        found.append(f"{prefix}{key}")
        found += _keys(value, f"{prefix}{key}.") if isinstance(value, dict) else []
    return found


def _missing_references(reading: Reading, settings: Settings) -> Iterator[Problem]:
    """Values that are kept elsewhere, and are not there."""
    texts = {"control.url": settings.control.url}
    if settings.lake is not None:
        texts |= {f"{_LAKE}.{key}": value for key, value in _properties(settings.lake).items()}
    for name, catalog in settings.catalogs.items():
        texts |= {f"{_CATALOGS}.{name}.{key}": value for key, value in _properties(catalog).items()}
    for key, text in texts.items():
        kind, _, name = text.partition(":")
        if (kind == "env" and name not in os.environ) or (
            key == "control.url" and kind == "file" and not os.access(name, os.R_OK)
        ):
            thing = "environment variable" if kind == "env" else "file"
            reading.refuse(
                key,
                f"{key} names the {thing} {name}, which {'is not set' if kind == 'env' else 'cannot be read'}.",
                "Provide it in the environment of every process that opens the store.",
            )
    yield from reading.problems


def _properties(catalog: CatalogSettings) -> dict[str, str]:
    found = {"type": catalog.type, **({"uri": catalog.uri} if catalog.uri else {}), **catalog.properties}
    return found if catalog.warehouse is None else {**found, "warehouse": catalog.warehouse}


def _values(reading: Reading, settings: Settings) -> list[Value]:
    found = [Value("store_id", settings.store_id, reading.origin("store_id"), "permanent")]
    for name in SECTIONS:
        section = getattr(settings, name)
        for item in fields(section):
            key, value = f"{name}.{item.name}", getattr(section, item.name)
            if isinstance(value, dict):
                found += [
                    Value(f"{key}.{one}", without_secrets(one, text), reading.origin(f"{key}.{one}"), _WORDS[str])
                    for one, text in value.items()
                ]
            if value == {} or not isinstance(value, dict):
                shown = value if item.repr else without_secrets(key, value)
                found.append(Value(key, shown, reading.origin(key), _ALLOWED.get(key, _WORDS[_kinds(name)[item.name]])))
    described = {f"{_CATALOGS}.{name}": catalog for name, catalog in settings.catalogs.items()}
    for section, catalog in (({} if settings.lake is None else {_LAKE: settings.lake}) | described).items():
        for one, text in _properties(catalog).items():
            key = f"{section}.{one}"
            allowed = " or ".join(_CATALOG_TYPES) if one == "type" else _WORDS[str]
            found.append(Value(key, without_secrets(one, text), reading.origin(key), allowed))
    return found


def without_secrets(key: str, value: Any) -> Any:
    """A value of a key whose texts may contain secrets, as it may be shown."""
    if not isinstance(value, str) or value.startswith(("env:", "file:")):
        return value
    if _SECRET.search(key.rpartition(".")[2]) or _SECRET.search(key) or _SECRET.search(value):
        return _HIDDEN
    if "://" not in value:
        return value
    scheme, _, rest = value.partition("://")
    at = f"{_HIDDEN}@" if "@" in rest else ""  # up to the last one: a password may contain a slash
    address, mark, _ = rest.rpartition("@")[2].partition("?")
    return f"{scheme}://{at}{address}{mark}{_HIDDEN if mark else ''}"


def initial_text(
    store_id: str,
    *,
    control: str = "",
    lake: Mapping[str, Any] | None = None,
    segments: str = "",
    spark: Mapping[str, Any] | None = None,
) -> str:
    """The file that `init` writes: the store id, what it was told, and every other setting with its default, commented
    out.
    """
    told: dict[str, dict[str, Any]] = {
        "control": {"url": control} if control else {},
        "spool": {"segments": segments} if segments else {},
        "spark": dict(spark or {}),
    }
    tables: dict[str, Mapping[str, Any]] = {}
    lines = ["# A Floodmark store. The identity below is permanent: never copy it to another store.", ""]
    lines += [f'store_id = "{store_id}"', ""]
    for name, kind in SECTIONS.items():
        given, defaults = told.get(name, {}), kind()
        lines.append(f"[{name}]")
        for item in fields(kind):
            default = getattr(defaults, item.name)
            if not isinstance(default, dict) and item.name not in given:
                lines.append(f"# {item.name} = {toml_value(default)}")
        for key, value in given.items():
            if isinstance(value, Mapping):
                tables[f"{name}.{key}"] = value
            else:
                lines.append(f"{_key(key)} = {toml_value(value)}")
        lines.append("")
    if lake:
        tables[_LAKE] = lake
    for name, values in tables.items():
        lines += [f"[{name}]", *(f"{_key(key)} = {toml_value(value)}" for key, value in values.items()), ""]
    return "\n".join(lines)


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)


def lake_values(lake: CatalogSettings) -> dict[str, str]:
    """A lake's settings as they stand in the file."""
    return _properties(lake)


def _heap_bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([kmgt])", text.strip().lower())
    return 0 if found is None else int(found[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`s3.endpoint = "…"` is a nested table in TOML, and one key for Iceberg."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    # What JSON escapes in a string, TOML escapes in the same way.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)
