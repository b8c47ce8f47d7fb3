"""Settings as they are shown, without secrets, and as `init` writes them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from floodmark.config.reading import (
    CATALOG_TYPES,
    CATALOGS,
    LAKE,
    Origin,
    Problem,
    Reading,
    allowed_values,
    kinds,
    toml_value,
)
from floodmark.config.settings import SECTIONS, CatalogSettings, Settings

_HIDDEN = "•••"
_SECRET = re.compile(r"secret|pass|pwd|token|credential|key|auth|signature|sas\b|header", re.IGNORECASE)


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


def examine(path: Path, environment: Mapping[str, str] | None = None) -> Examined:
    """Everything that can be said about the settings; only a file that cannot be read as TOML raises."""
    reading = Reading(path)
    reading.override(os.environ if environment is None else environment)
    settings = reading.settings()
    problems = reading.problems if settings is None else list(_missing_references(reading, settings))
    return Examined(path, settings, problems, [] if settings is None else _values(reading, settings))


def _missing_references(reading: Reading, settings: Settings) -> Iterator[Problem]:
    """Values that are kept elsewhere, and are not there."""
    texts = {"control.url": settings.control.url}
    if settings.lake is not None:
        texts |= {f"{LAKE}.{key}": value for key, value in catalog_values(settings.lake).items()}
    for name, catalog in settings.catalogs.items():
        texts |= {f"{CATALOGS}.{name}.{key}": value for key, value in catalog_values(catalog).items()}
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


def catalog_values(catalog: CatalogSettings) -> dict[str, str]:
    """A catalog's settings as they stand in the file."""
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
                    Value(
                        f"{key}.{one}",
                        without_secrets(one, text),
                        reading.origin(f"{key}.{one}"),
                        allowed_values(f"{key}.{one}", str),
                    )
                    for one, text in value.items()
                ]
            if value == {} or not isinstance(value, dict):
                shown = value if item.repr else without_secrets(key, value)
                found.append(Value(key, shown, reading.origin(key), allowed_values(key, kinds(name)[item.name])))
    described = {f"{CATALOGS}.{name}": catalog for name, catalog in settings.catalogs.items()}
    for section, catalog in (({} if settings.lake is None else {LAKE: settings.lake}) | described).items():
        for one, text in catalog_values(catalog).items():
            key = f"{section}.{one}"
            allowed = " or ".join(CATALOG_TYPES) if one == "type" else allowed_values(key, str)
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
    """The file that `init` writes: the store id, what was chosen, and every other setting with its default, commented
    out.
    """
    chosen: dict[str, dict[str, Any]] = {
        "control": {"url": control} if control else {},
        "spool": {"segments": segments} if segments else {},
        "spark": dict(spark or {}),
    }
    tables: dict[str, Mapping[str, Any]] = {}
    lines = ["# A Floodmark store. The identity below is permanent: never copy it to another store.", ""]
    lines += [f'store_id = "{store_id}"', ""]
    for name, kind in SECTIONS.items():
        given, defaults = chosen.get(name, {}), kind()
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
        tables[LAKE] = lake
    return "\n".join([*lines, *(section_text(name, values) for name, values in tables.items())])


def section_text(name: str, values: Mapping[str, Any]) -> str:
    """A section as it stands in the file."""
    return "\n".join([f"[{name}]", *(f"{_key(key)} = {toml_value(value)}" for key, value in values.items()), ""])


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else toml_value(name)
