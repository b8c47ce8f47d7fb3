"""`floodmark.toml`: a store's settings.

Every key has a default, and every problem is told with its key and what is allowed there.
"""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from floodmark.errors import InvalidSetting, StoreMissing

FILE_NAME = "floodmark.toml"


@dataclass(frozen=True, slots=True)
class SpoolSettings:
    """[spool]"""

    backlog_bytes_max: int = 4 << 30
    """Past this many waiting bytes in a dataset's spool, capture is refused with `SpoolFull`."""


@dataclass(frozen=True, slots=True)
class FlushSettings:
    """[flush]"""

    rows_max: int = 2_000_000
    """Rows in one commit."""
    bytes_max: int = 1 << 30
    """Segment bytes in one commit."""
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
    """The JVM's heap for a local session."""
    settings: dict[str, str] = field(default_factory=dict)
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
class Settings:
    """All settings of a store."""

    store_id: str
    spool: SpoolSettings = field(default_factory=SpoolSettings)
    flush: FlushSettings = field(default_factory=FlushSettings)
    run: RunSettings = field(default_factory=RunSettings)
    spark: SparkSettings = field(default_factory=SparkSettings)


_SECTIONS: dict[str, type] = {
    "spool": SpoolSettings,
    "flush": FlushSettings,
    "run": RunSettings,
    "spark": SparkSettings,
}


def load(path: Path) -> Settings:
    """Read and check a settings file."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise StoreMissing(
            f"There is no store at {path.parent} (no {path.name} in it).",
            hint=f"Make one with `floodmark -s {path.parent} init`, or name another with -s.",
        ) from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidSetting(f"{path} is not valid TOML: {error}.", hint="Correct that line.") from error
    store_id = content.pop("store_id", None)
    if not isinstance(store_id, str) or not store_id:
        raise InvalidSetting(f"{path}: store_id is missing.", hint="It was written by `floodmark init`; restore it.")
    unknown = sorted(set(content) - set(_SECTIONS))
    if unknown:
        raise InvalidSetting(
            f"{path}: unknown key {unknown[0]!r}.", hint=f"The sections are {', '.join(f'[{s}]' for s in _SECTIONS)}."
        )
    sections = {name: _section(path, name, content.get(name, {})) for name in _SECTIONS}
    return Settings(store_id=store_id, **sections)


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
    return kind(**given)


def _check_value(path: Path, key: str, value: Any, wanted: type) -> None:
    words = {int: "a whole number above zero", str: "a text", dict: "a table of texts"}
    good = type(value) is wanted
    if wanted is int:
        good = good and value > 0
    if wanted is dict:
        good = good and all(isinstance(item, str) for item in value.values())
    if not good:
        raise InvalidSetting(f"{path}: {key} is {value!r}.", hint=f"It must be {words[wanted]}.")


def _toml(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) else str(value)
