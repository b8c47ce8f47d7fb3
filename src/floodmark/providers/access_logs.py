"""Web access logs in the combined format, plain or compressed, one row per request.

A log is rotated while it is loaded: `access.log` becomes `access.log.1`, then `access.log.2.gz`. So a line is not
identified by its file's name but by the log that it belongs to and by everything that stands before it in its file:
`line_id` is a digest chained from line to line, and begins with the log's path without its rotation. Two equal requests
in one second are two lines; one line in three files of a rotation is one; equal beginnings of two logs (the same health
check at midnight on two machines) stay apart. It cannot distinguish equal first lines of two files of one log; this
needs a log that is rotated twice within a second.
"""

from __future__ import annotations

import glob
import re
from collections.abc import Iterator
from datetime import datetime, timedelta, timezone
from hashlib import blake2b
from pathlib import Path
from typing import Any

from floodmark.providers import Declaration, Item, Unit, provider
from floodmark.providers.lines import FileUnit, absolute, file_unit, lines, shown, text_of

DECLARATION = Declaration(
    identity=[["line_id"]],
    event_time="time",
    schema={
        "line_id": "string not null",
        "time": "timestamp",
        "client": "string",
        "user": "string",
        "method": "string",
        "path": "string",
        "protocol": "string",
        "request": "string",
        "status": "int",
        "bytes": "long",
        "referrer": "string",
        "user_agent": "string",
        "log": "string",
        "source": "string",
    },
)

_QUOTED = r'"((?:[^"\\]|\\.)*)"'
_LINE = re.compile(
    rf"(?P<client>\S+) \S+ (?P<user>.+?) \[(?P<time>[^\]]+)\] {_QUOTED.replace('(', '(?P<request>', 1)}"
    rf" (?P<status>[0-9]{{3}}) (?P<bytes>[0-9]{{1,18}}|-)"
    rf"(?: {_QUOTED.replace('(', '(?P<referrer>', 1)} {_QUOTED.replace('(', '(?P<user_agent>', 1)})?(?: .*)?"
)
_TIME = re.compile(r"(\d{2})/([A-Z][a-z]{2})/(\d{4}):(\d{2}):(\d{2}):(\d{2}) ([+-])(\d{2})(\d{2})")
_MONTHS = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_ESCAPE = re.compile(r"(?P<bytes>(?:\\x[0-9A-Fa-f]{2})+)|\\(?P<character>.)")
_ROTATION = re.compile(r"(?:\.(?P<number>[0-9]{1,5})|-(?P<date>[0-9]{8}(?:-?[0-9]{1,10})?))?(?:\.gz)?")


def plan(location: str | None) -> Iterator[Unit]:
    """The files of each log, the oldest rotation first. A location is a file, a directory or a pattern."""
    if location is None:
        raise ValueError("it needs a location: a log file, a directory, or a pattern such as '/var/log/nginx/*.log*'")
    planned = set()
    for path in sorted(_files(location), key=_age):
        unit = file_unit(path, name=_log_of(path))
        # Just after a rotation the same content may have two names.
        if unit is not None and unit.id not in planned:
            planned.add(unit.id)
            yield unit


@provider("access-logs", plan=plan, declaration=DECLARATION, overlapping=True)
def access_logs(unit: FileUnit) -> Iterator[Item]:
    """One row per line."""
    log = _log_of(unit.path)
    chain = blake2b(log.encode(), digest_size=16).digest()
    for entry in lines(unit):
        if isinstance(entry, Item):
            yield entry
            continue
        number, line = entry
        chain = blake2b(line, key=chain, digest_size=16).digest()
        place = f"{unit.place}:{number}"
        text = line.decode("utf-8", "backslashreplace")
        try:
            row = _row(text)
        except ValueError as error:
            yield Item.broken(place, str(error), text_of(line))
            continue
        yield Item({"line_id": chain.hex(), **row, "log": log, "source": place}, place)


def _row(text: str) -> dict[str, Any]:
    found = _LINE.fullmatch(text)
    if found is None:
        raise ValueError("the line is not in the combined log format")
    request = _unescaped(found["request"])
    words = request.split(" ")
    method, path, protocol = words if len(words) == 3 else (None, None, None)
    return {
        "time": _time(found["time"]),
        "client": found["client"],
        "user": _given(found["user"]),
        "method": method,
        "path": path,
        "protocol": protocol,
        "request": request,
        "status": int(found["status"]),
        "bytes": None if found["bytes"] == "-" else int(found["bytes"]),
        "referrer": _given(found["referrer"]),
        "user_agent": _given(found["user_agent"]),
    }


def _time(text: str) -> datetime:
    found = _TIME.fullmatch(text)
    if found is None or found[2] not in _MONTHS:
        raise ValueError(f"{text!r} is not a time such as 10/Oct/2026:13:55:36 +0000")
    day, month, year, hour, minute, second, sign, ahead_hours, ahead_minutes = found.groups()
    ahead = timedelta(hours=int(ahead_hours), minutes=int(ahead_minutes)) * (1 if sign == "+" else -1)
    try:
        zone = timezone(ahead)
        return datetime(int(year), _MONTHS.index(month) + 1, int(day), int(hour), int(minute), int(second), 0, zone)
    except ValueError as error:
        raise ValueError(f"{text!r} is not a time: {error}") from error


def _given(text: str | None) -> str | None:
    return None if text is None or text == "-" else _unescaped(text)


def _unescaped(text: str) -> str:
    """Servers escape quotes, backslashes and unprintable characters with a backslash."""
    if "\\" not in text:
        return text
    return _ESCAPE.sub(_meant, text)


def _meant(escape: re.Match[str]) -> str:
    if escape["bytes"] is not None:
        return bytes.fromhex(escape["bytes"].replace("\\x", "")).decode("utf-8", "backslashreplace")
    return {"n": "\n", "t": "\t", "r": "\r"}.get(escape["character"], escape["character"])


# ---- rotations ----


def _files(location: str) -> set[Path]:
    given = Path(location).expanduser()
    if given.is_dir():
        found = list(given.rglob("*access*log*"))
    elif given.exists():
        found = [given]
    else:
        # Patterns come from the command line, with folders: `Path.glob` takes none that begin at the root.
        found = [Path(name) for name in glob.glob(str(given), recursive=True)]  # noqa: PTH207 - see above
        if not found:
            raise FileNotFoundError(f"no file at {location}")
    return {absolute(path) for path in found if path.is_file()}


def _rotation(path: Path) -> re.Match[str]:
    """The rotation suffix of a file name."""
    for start in range(1, len(path.name) + 1):
        found = _ROTATION.fullmatch(path.name, start)
        if found is not None:
            return found
    raise AssertionError("the end of a name always matches")


def _log_of(path: Path) -> str:
    return shown(path.with_name(path.name[: _rotation(path).start()]))


def _age(path: Path) -> tuple[str, int, int, str, str]:
    """Sorts the files of one log, the oldest first and the live one last."""
    found = _rotation(path)
    if found["number"] is not None:
        return _log_of(path), 0, -int(found["number"]), "", path.name
    if found["date"] is not None:
        return _log_of(path), 0, 0, found["date"], path.name
    return _log_of(path), 1, 0, "", path.name
