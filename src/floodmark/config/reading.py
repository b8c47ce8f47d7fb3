"""Reading settings: the file, the environment variables that replace single values of it, and the checks.

An error names the key, its line or variable, and the allowed values.
"""

from __future__ import annotations

import difflib
import json
import math
import os
import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from floodmark.config.settings import FILE_NAME, SECTIONS, VARIABLES, CatalogSettings, Settings
from floodmark.errors import InvalidSetting, StoreMissing, reason_of

CATALOGS = "catalogs"
LAKE = "lake"
CATALOG_TYPES = {"rest": "rest", "sql": "sql", "jdbc": "sql"}

_SPARK_SETTINGS = "spark.settings"
_LINES_MAX = 2000
"""In a longer file the lines of the keys after this one are not shown: finding them takes time with its square."""
_HEAP_BYTES_MIN = 512 << 20
"""Spark refuses to start with less than about 450 MB."""
_WORDS: dict[type, str] = {
    int: "a whole number above zero",
    float: "a number above zero",
    bool: "true or false",
    str: "a text",
    dict: "a table of strings",
    list: "a list of strings",
}


@dataclass(frozen=True, slots=True)
class _Form:
    """What a text must be, where not every one is allowed."""

    allowed: str
    what: str = ""
    hint: str = ""
    pattern: str = ".*"


_FORMS = {
    "control.url": _Form("postgresql://…, env:NAME or file:/path"),
    "spool.segments": _Form(
        "s3://…, gs://… or az://…",
        "a place in an object store",
        "Write s3://bucket/prefix, gs://bucket/prefix or az://container/prefix.",
        r"((s3|gs|az)://[^\s/]+(/\S*)?)?",
    ),
    "spark.master": _Form(
        "local[N], yarn, or a URL",
        "the address of a Spark master",
        'Write "local[*]", "local[4]", "yarn", or the URL of a cluster: "spark://host:7077", "k8s://…".',
        r"local(-cluster)?(\[[0-9*, ]+\])?|yarn|[a-z][a-z0-9+.-]*://\S+",
    ),
    "spark.remote": _Form(
        "sc://host:port",
        "the address of a Spark Connect server",
        'Write "sc://host:15002".',
        r"(sc://[^\s/;]+(/;\S*|/)?)?",
    ),
    "spark.driver_memory": _Form("a whole number and m or g, at least 512m"),
}


def allowed_values(key: str, kind: type) -> str:
    """What a setting may be, in words."""
    return _FORMS[key].allowed if key in _FORMS else _WORDS[kind]


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
        if isinstance(lake := self._content.get(LAKE), dict):
            self._content[LAKE] = _flat(lake)
        catalogs = self._content.get(CATALOGS)
        if isinstance(catalogs, dict):
            self._content[CATALOGS] = {
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
        misspelt = {name.replace("__", "_"): name for name in variables()}
        for variable in sorted(environment):
            parts = variable.split("__")
            if not variable.startswith(VARIABLES):
                continue
            parts[0] = parts[0].removeprefix(VARIABLES)
            if len(parts) > 1:
                self._take(variable, parts, environment[variable])
            elif (meant := misspelt.get(variable)) and f"env:{variable}" not in self._text:
                self.refuse(variable, "it has no effect.", f"Did you mean {meant}?", variable=variable)

    def _take(self, variable: str, parts: list[str], text: str) -> None:
        section, key = parts[0].lower(), parts[1].lower()
        if section == CATALOGS and len(parts) > 2:
            self._take_property(variable, parts, text)
        elif section == LAKE:
            self._put_property(variable, self._content.setdefault(LAKE, {}), (LAKE,), parts[1:], text)
        elif (section, key) == ("spark", "settings") and len(parts) > 2:
            name = ".".join(parts[2:])  # in its own case: Spark's keys have capital letters
            self._put(variable, ("spark", "settings", name), text)
        elif section in SECTIONS and key in kinds(section) and len(parts) == 2:
            self._put(variable, (section, key), _from_text(text, kinds(section)[key]))
        else:
            near = difflib.get_close_matches(variable.upper(), variables(), n=3, cutoff=0.6)
            hint = f"Did you mean {' or '.join(near)}?" if near else "`floodmark config show` lists the keys."
            self.refuse(variable, "there is no such setting.", hint, variable=variable)

    def _take_property(self, variable: str, parts: list[str], text: str) -> None:
        catalogs = self._content.setdefault(CATALOGS, {})
        if not isinstance(catalogs, dict):
            return  # refused later, for what the file says
        name = next((one for one in catalogs if _folded(one) == _folded(parts[1])), parts[1].lower())
        self._put_property(variable, catalogs.setdefault(name, {}), (CATALOGS, name), parts[2:], text)

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
        catalogs = self._catalogs(content.pop(CATALOGS, {}))
        lake = self._lake(content.pop(LAKE, {}))
        for key in sorted(set(content) - set(SECTIONS)):
            names = ", ".join(f"[{name}]" for name in (*SECTIONS, LAKE, "catalogs.NAME"))
            self.refuse(key, f"unknown key {key!r}.", f"The sections are {names}.")
        sections = {name: self._section(name, content.get(name, {})) for name in SECTIONS}
        return None if self.problems else Settings(store_id=str(store_id), lake=lake, catalogs=catalogs, **sections)

    def _section(self, name: str, given: Any) -> Any:
        kind, known, before = SECTIONS[name], kinds(name), len(self.problems)
        if not isinstance(given, dict):
            self.refuse(name, f"{name} is a section.", f"Write it as [{name}].")
            return None
        for key, value in given.items():
            if key in known:
                self._check_value(f"{name}.{key}", value, known[key])
                continue
            near = difflib.get_close_matches(key, known, n=1)
            meant = f"Did you mean {near[0]}? " if near else ""
            self.refuse(f"{name}.{key}", f"unknown key {name}.{key}.", f"{meant}Allowed here: {', '.join(known)}.")
        if len(self.problems) == before:
            self._check_forms(name, given)
        return kind(**given) if len(self.problems) == before else None

    def _check_forms(self, section: str, given: dict[str, Any]) -> None:
        """Check texts for which a library would raise something else: Spark's launcher prints a Java stack trace."""
        for name, text in given.items():
            form = _FORMS.get(key := f"{section}.{name}")
            if form is not None and re.fullmatch(form.pattern, text, re.DOTALL) is None:
                self.refuse(key, f"{key} is not {form.what}.", form.hint)
        if section != "spark":
            return
        settings = given.get("settings", {})
        self._check_heap("spark.driver_memory", given.get("driver_memory"))
        self._check_heap('spark.settings."spark.driver.memory"', settings.get("spark.driver.memory"))
        for name in settings:
            if f"{_SPARK_SETTINGS}.{name}" in self._variables and not name.startswith("spark."):
                self.refuse(
                    f"{_SPARK_SETTINGS}.{name}",
                    "it does not end with a key of Spark.",
                    f"Write it as Spark does, two underscores for a dot: {VARIABLES}SPARK__SETTINGS__spark__ui__port.",
                )

    def _check_heap(self, key: str, text: str | None) -> None:
        if text is not None and _heap_bytes(text) < _HEAP_BYTES_MIN:
            hint = 'Write a whole number and m or g, at least 512m: "1g".'
            self.refuse(key.replace('"', ""), f"{key} is not a valid JVM memory size.", hint)

    def _catalogs(self, given: Any) -> dict[str, CatalogSettings]:
        if not isinstance(given, dict) or not all(isinstance(section, dict) for section in given.values()):
            self.refuse(CATALOGS, "a catalog is a section.", "Write it as [catalogs.NAME].")
            return {}
        found = {name: self._catalog(name, dict(section)) for name, section in given.items()}
        return {name: catalog for name, catalog in found.items() if catalog is not None}

    def _catalog(self, name: str, given: dict[str, Any]) -> CatalogSettings | None:
        key, before = f"{CATALOGS}.{name}", len(self.problems)
        if re.fullmatch(r"[A-Za-z0-9_-]{1,128}", name) is None:
            self.refuse(key, f"{name!r} is not a valid catalog name.", "Use letters, digits, _ and -.")
        for item, value in given.items():
            self._check_value(f"{key}.{item}", value, str)
        if len(self.problems) > before:
            return None
        kind = CATALOG_TYPES.get(given.pop("type", ""))
        uri, warehouse = given.pop("uri", None), given.pop("warehouse", None)
        if kind is None:
            self.refuse(
                f"{key}.type",
                f"{key}.type is missing or unknown.",
                f"One of {', '.join(CATALOG_TYPES)}.",
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
            self.refuse(LAKE, f"{LAKE} is a section.", f"Write it as [{LAKE}].")
            return None
        values, before = dict(given), len(self.problems)
        for item, value in values.items():
            self._check_value(f"{LAKE}.{item}", value, str)
        if not values or len(self.problems) > before:
            return None
        kind = CATALOG_TYPES.get(values.pop("type", "sql"))
        uri, warehouse = values.pop("uri", ""), values.pop("warehouse", None)
        if kind is None:
            self.refuse(f"{LAKE}.type", f"{LAKE}.type is unknown.", f"One of {', '.join(CATALOG_TYPES)}.")
        elif kind == "rest" and not uri:
            self.refuse(f"{LAKE}.uri", f"{LAKE}.uri is missing.", "A REST catalog needs its URL.")
        elif warehouse and kind == "sql" and re.fullmatch(r"[a-z][a-z0-9+.-]*://\S.*", warehouse) is None:
            self.refuse(
                f"{LAKE}.warehouse",
                f"{LAKE}.warehouse is not a URL.",
                "Write s3://bucket/prefix, gs://bucket/prefix, abfss://container@account/prefix or file:///directory.",
            )
        elif other := next((key for key in ("name", "namespace") if not _is_name(values.get(key, "lake"))), None):
            self.refuse(f"{LAKE}.{other}", f"{LAKE}.{other} is not a name.", "Use letters, digits and underscores.")
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


def _not_toml(path: Path, error: Exception) -> InvalidSetting:
    if isinstance(error, UnicodeDecodeError):
        line = error.object[: error.start].count(b"\n") + 1
        return InvalidSetting(f"{path}, line {line}: it is not UTF-8.", hint="Save the file as UTF-8.")
    twice = re.search(r"Cannot declare \((.*?),?\) twice \(at line (\d+)", str(error))
    if twice is None:
        return InvalidSetting(f"{path} is not valid TOML: {reason_of(error)}.", hint="Correct that line.")
    section = ".".join(part.strip(" '\"") for part in twice[1].split(","))
    return InvalidSetting(
        f"{path}, line {twice[2]}: the section [{section}] is in the file twice.",
        hint="Move its keys into the first one: a new store's file already has every section.",
    )


def kinds(section: str) -> dict[str, type]:
    """The keys of a section with the types of their values."""
    defaults = SECTIONS[section]()
    return {item.name: type(getattr(defaults, item.name)) for item in fields(SECTIONS[section])}


def variables() -> list[str]:
    """The environment variables that replace a setting."""
    return [f"{VARIABLES}{section}__{key}".upper() for section in SECTIONS for key in kinds(section)]


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


def _heap_bytes(text: str) -> int:
    found = re.fullmatch(r"([0-9]{1,12})([kmgt])", text.strip().lower())
    return 0 if found is None else int(found[1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[found[2]]


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """`s3.endpoint = "…"` is a nested table in TOML, and one key for Iceberg."""
    found: dict[str, Any] = {}
    for key, value in section.items():
        found |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
    return found


def _is_name(text: str) -> bool:
    return re.fullmatch(r"[A-Za-z][A-Za-z0-9_]{0,127}", text) is not None


def toml_value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(toml_value, value))}]"
    # What JSON escapes in a string, TOML escapes in the same way.
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f") if isinstance(value, str) else str(value)
