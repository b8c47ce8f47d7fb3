"""The kinds of sinks, and the settings that all of them have.

| setting      | meaning                                                                                 |
|--------------|-----------------------------------------------------------------------------------------|
| `datasets`   | the datasets it delivers; none named: all                                               |
| `partitions` | only partitions with these values: `{"site": ["a", "b"]}`                               |
| `where`      | only rows for which this SQL expression is true; the others are skipped                 |
| `start`      | `"beginning"`, `"now"`, or cursors: rows before it are skipped                          |
| `every`      | how often `floodmark run` delivers: `"30s"`, `"5m"`, `"1h"`                             |
| `cron`       | … or when, as a cron expression                                                         |
| `later`      | whether `datasets` and `partitions` may name what does not exist yet                    |
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from floodmark.control.sinks import Sink
from floodmark.errors import Corrupt, InvalidSetting
from floodmark.schema.partitions import value_text
from floodmark.sequence import Cursor

if TYPE_CHECKING:
    from floodmark.delivery.destination import Kind

NAMES = ("blob", "forward", "table", "projection")
KINDS: dict[str, Kind] = {}
"""Those that were used: each has libraries of its own, and a command that only lists sinks needs few of them."""

COMMON: dict[str, Any] = {
    "datasets": None,
    "partitions": None,
    "where": None,
    "start": "beginning",
    "every": None,
    "cron": None,
    "later": False,
}

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


def find_kind(name: str) -> Kind | None:
    """A kind by its name."""
    if name not in KINDS and name in NAMES:
        KINDS[name] = import_module(f"floodmark.delivery.sinks.{name}").KIND
    return KINDS.get(name)


def kind_of(sink: Sink) -> Kind:
    """The kind of a recorded sink; `Corrupt` if the record has a kind that no version ever wrote."""
    found = find_kind(sink.kind)
    if found is None:
        raise Corrupt(
            f"Sink {sink.name!r} is recorded with the kind {sink.kind!r}, which does not exist.",
            hint="Was the control database changed by hand? Restore it, or remove the sink and add it again.",
        )
    return found


def new_sink(name: str, kind: str, settings: Mapping[str, Any], *, starts: Callable[[Any], list[Any]]) -> Sink:
    """Check a sink's settings as they are given, and fill in the rest. `starts` turns `start` into numbers."""
    whole = checked(kind, settings)
    whole["start"] = starts(whole)
    return Sink(uuid.uuid4().hex, name, kind, whole)


def checked(kind: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """All settings of a sink of a kind, or `InvalidSetting`."""
    found = find_kind(kind)
    if found is None:
        raise InvalidSetting(f"The sink kind {kind!r} is unknown.", hint=f"It must be one of {', '.join(NAMES)}.")
    allowed = {**COMMON, **found.defaults, **dict.fromkeys(found.required)}
    unknown = sorted(set(settings) - set(allowed))
    if unknown:
        raise InvalidSetting(
            f"Unknown setting {unknown[0]!r} of a {kind} sink.", hint=f"Allowed: {', '.join(sorted(allowed))}."
        )
    whole = {**COMMON, **found.defaults, **{key: value for key, value in settings.items() if value is not None}}
    missing = [key for key in found.required if key not in whole]
    if missing:
        raise InvalidSetting(
            f"A {kind} sink needs {missing[0]!r}.", hint=f"Give it with --{missing[0]}, in Python as {missing[0]}=…"
        )
    _check_common(whole)
    found.check(whole)
    return whole


def shown(sink: Sink) -> dict[str, Any]:
    """The settings of a sink for display, without credentials."""
    secret = kind_of(sink).secret
    return {
        key: "(not shown)" if key in secret and value is not None else value for key, value in sink.settings.items()
    }


def place_of(sink: Sink) -> str:
    """The place that a sink delivers to."""
    return str(next((sink.settings[key] for key in ("url", "table", "function") if sink.settings.get(key)), ""))


def seconds(text: Any) -> int:
    """`"30s"`, `"5m"`, `"1h"` as seconds."""
    found = re.fullmatch(r"([1-9][0-9]{0,5})([smhd])", text) if isinstance(text, str) else None
    if found is None:
        raise InvalidSetting(f"{text!r} is not a duration.", hint="Write 30s, 5m, 1h or 1d.")
    return int(found[1]) * _UNITS[found[2]]


def _check_common(whole: dict[str, Any]) -> None:
    names = whole["datasets"]
    if isinstance(names, str):
        whole["datasets"] = names = [names]
    elif names is not None and not (isinstance(names, list | tuple) and all(isinstance(name, str) for name in names)):
        raise InvalidSetting(f"datasets is {names!r}.", hint="It must be a list of dataset names.")
    if whole["datasets"] == []:
        raise InvalidSetting("datasets is empty.", hint="Name datasets, or leave it out for all of them.")
    if type(whole["later"]) is not bool:
        raise InvalidSetting(f"later is {whole['later']!r}.", hint="It must be true or false.")
    where = whole["where"]
    if where is not None and (not isinstance(where, str) or not where.strip()):
        raise InvalidSetting(f"where is {where!r}.", hint="It must be a SQL expression over the columns, as a text.")
    start = whole["start"]
    named = start if isinstance(start, list | tuple) else [start]
    if not all(isinstance(item, str | Cursor) for item in named):
        raise InvalidSetting(f"start is {start!r}.", hint="It must be beginning, now, a cursor or a list of cursors.")
    _check_partitions(whole)
    if whole["every"] is not None and whole["cron"] is not None:
        raise InvalidSetting("Both every and cron are given.", hint="Give one of them.")
    if whole["every"] is not None:
        seconds(whole["every"])
    if whole["cron"] is not None:
        _check_cron(whole["cron"])


def _check_partitions(whole: dict[str, Any]) -> None:
    wanted = whole["partitions"]
    if wanted is None:
        return
    if not isinstance(wanted, Mapping) or not wanted:
        raise InvalidSetting(f"partitions is {wanted!r}.", hint='Write {"column": ["value", …]}.')
    whole["partitions"] = {
        str(name): [
            None if value is None else value_text(name, value)
            for value in (values if isinstance(values, list | tuple) else [values])
        ]
        for name, values in wanted.items()
    }


def _check_cron(text: Any) -> None:
    from datetime import UTC, datetime

    from cronsim import CronSim, CronSimError

    try:
        CronSim(text, datetime(2026, 1, 1, tzinfo=UTC))
    except (CronSimError, TypeError, AttributeError) as error:
        raise InvalidSetting(
            f"The cron expression {text!r} cannot be read: {error}.", hint="It has five fields, as in */15 * * * *."
        ) from error
