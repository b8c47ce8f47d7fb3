"""Conditions as SQLite evaluates them, for the lake in memory, with Spark's meaning where the two differ.

Times are texts there (`YYYY-MM-DD HH:MM:SS.ffffff`, a day without the rest), which compare as the times do. What is
seldom needed in a lake in memory (hashes of Spark's own, lists, regular expressions with groups) it refuses by name.
"""

from __future__ import annotations

import math
import re
import sqlite3
from collections.abc import Callable, Collection
from contextlib import closing
from datetime import date, datetime, timedelta
from decimal import Decimal
from typing import Any

import pyarrow as pa

from floodmark.lake.conditions import (
    Call,
    Case,
    Cast,
    Column,
    Constant,
    Extract,
    Inadmissible,
    Item,
    Node,
    Number,
    Operation,
    Prefixed,
    Test,
    Text,
    Typed,
    columns_of,
)
from floodmark.lake.filters import bad_filter, parsed

_INTEGERS = frozenset({"byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint"})
_PARTS = {
    "year": "%Y",
    "month": "%m",
    "day": "%d",
    "dayofmonth": "%d",
    "hour": "%H",
    "minute": "%M",
    "second": "%S",
    "dayofyear": "%j",
    "doy": "%j",
}


def kept_by_sqlite(rows: pa.Table, expression: str, columns: Collection[str]) -> pa.Table:
    """The rows of which a filter is true, as SQLite sees it. A column that the rows do not have is null in all."""
    node = parsed(expression, columns)
    used = sorted(columns_of(node))
    names = ", ".join(['"_ingest_row"', *(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in used)])
    held = {name: rows[name].to_pylist() for name in used if name in rows.column_names}
    values = [[sqlite_value(value) for value in held.get(name, [None] * rows.num_rows)] for name in used]
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        add_functions(database)
        database.execute(f"CREATE TABLE rows ({names})")
        places = ", ".join("?" * (len(used) + 1))
        lines = zip(range(rows.num_rows), *values, strict=True)
        database.executemany(f"INSERT INTO rows VALUES ({places})", lines)  # noqa: S608 - question marks
        try:
            found = database.execute(f'SELECT "_ingest_row" FROM rows WHERE {sqlite_sql(node)} ORDER BY 1')  # noqa: S608 - it is SQL by nature
            kept = [row for (row,) in found]
        except (sqlite3.Error, Inadmissible) as error:
            raise bad_filter(expression, str(error)) from error
    return rows.take(pa.array(kept, pa.int64()))


def sqlite_value(value: Any) -> Any:
    """A row's value as SQLite keeps it."""
    import orjson

    if isinstance(value, datetime):
        return value.strftime("%Y-%m-%d %H:%M:%S.%f")
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, Decimal):
        return float(value)
    if isinstance(value, dict | list):
        return orjson.dumps(value, default=str).decode()
    return value


def sqlite_sql(node: Node) -> str:  # noqa: C901, PLR0911, PLR0912 - one arm for each kind of node
    """The condition as SQLite's SQL."""
    match node:
        case Number(text):
            return re.sub(r"(?i)[lsydf]$|bd$", "", text)
        case Text(value) | Typed("DATE" | "TIMESTAMP", value):
            return _text(value)
        case Typed("X", value):
            return f"X'{value}'"
        case Constant(word):
            return word
        case Column(name, ()):
            return '"' + name.replace('"', '""') + '"'
        case Column(name, fields):
            way = "".join(f'."{part}"' for part in fields)
            return f"json_extract({sqlite_sql(Column(name))}, {_text('$' + way)})"
        case Prefixed(sign, operand):
            return f"({sign} {sqlite_sql(operand)})"
        case Operation(sign, left, right):
            return _operation(sign, sqlite_sql(left), sqlite_sql(right))
        case Test():
            return _test(node)
        case Case(subject, branches, otherwise):
            middle = " ".join(f"WHEN {sqlite_sql(when)} THEN {sqlite_sql(then)}" for when, then in branches)
            start = "" if subject is None else f" {sqlite_sql(subject)}"
            end = "" if otherwise is None else f" ELSE {sqlite_sql(otherwise)}"
            return f"(CASE{start} {middle}{end} END)"
        case Cast(word, operand, kind):
            return f"spark_cast({sqlite_sql(operand)}, {_text(kind)}, {int(word == 'TRY_CAST')})"
        case Extract(unit, operand):
            return sqlite_sql(Call(unit, (operand,)))
        case Call(name, arguments):
            if name not in _FUNCTIONS and name not in _OWN:
                raise Inadmissible(f"the lake in memory has no function {name}")
            shown = ", ".join(map(sqlite_sql, arguments))
            return f"{name if name in _OWN else f'spark_{name}'}({shown})"
        case Item(operand, index):
            return f"json_extract({sqlite_sql(operand)}, '$[' || {sqlite_sql(index)} || ']')"
        case _:
            raise Inadmissible("the lake in memory has no intervals")


_OWN = frozenset({"coalesce", "ifnull", "nullif", "abs"})
"""SQLite's own mean the same."""


def _text(value: str) -> str:
    if "\0" in value:
        raise Inadmissible("the lake in memory has no texts with a zero character")
    return "'" + value.replace("'", "''") + "'"


def _operation(sign: str, left: str, right: str) -> str:
    if sign == "<=>":
        return f"({left} IS {right})"
    functions = {"/": "spark_divide", "%": "spark_mod", "DIV": "spark_div"}
    return f"{functions[sign]}({left}, {right})" if sign in functions else f"({left} {sign} {right})"


def _test(test: Test) -> str:
    operand, others = sqlite_sql(test.operand), [sqlite_sql(one) for one in test.others]
    match test.word:
        case "BETWEEN":
            text = f"({operand} BETWEEN {others[0]} AND {others[1]})"
        case "IN":
            text = f"({operand} IN ({', '.join(others)}))"
        case "LIKE":
            text = f"({operand} LIKE {others[0]} ESCAPE {_text(test.escape or chr(92))})"
        case "ILIKE":
            text = f"(spark_lower({operand}) LIKE spark_lower({others[0]}) ESCAPE {_text(test.escape or chr(92))})"
        case "RLIKE":
            text = f"spark_regexp_like({operand}, {others[0]})"
        case "IS DISTINCT FROM":
            text = f"({operand} IS NOT {others[0]})"
        case "IS UNKNOWN":
            text = f"({operand} IS NULL)"
        case word:
            text = f"({operand} {word})"
    return f"(NOT {text})" if test.negated else text


def add_functions(database: sqlite3.Connection) -> None:
    """Give a connection Spark's functions. One that is given a null answers null."""
    for name, function in _FUNCTIONS.items():
        database.create_function(f"spark_{name}", -1, function, deterministic=True)


def _unless_null(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *values: None if any(value is None for value in values) else function(*values)


def _substring(value: Any, start: int, length: int | None = None) -> str:
    text = str(value)
    first = start - 1 if start > 0 else max(len(text) + start, 0) if start else 0
    last = None if length is None else max(length + (len(text) + start if start < 0 else first), 0)
    return text[first:last]


def _whole(value: float) -> int:
    return math.trunc(value)


def _cast(value: Any, kind: str, quietly: int) -> Any:  # noqa: PLR0911 - one for each type
    if value is None:
        return None
    try:
        if kind in _INTEGERS:
            return math.trunc(float(value)) if not isinstance(value, int) else value
        if kind.startswith(("decimal", "numeric", "float", "real", "double")):
            return float(value)
        if kind == "boolean":
            return _boolean(value)
        if kind == "date":
            return _moment(value).date().isoformat()
        if kind.startswith("timestamp"):
            return sqlite_value(_moment(value))
    except (ValueError, OverflowError):
        if quietly:
            return None
        raise
    return str(value) if kind == "string" else value


def _boolean(value: Any) -> bool:
    if isinstance(value, str):
        word = value.strip().lower()
        if word not in {"t", "true", "y", "yes", "1", "f", "false", "n", "no", "0"}:
            raise ValueError(value)
        return word in {"t", "true", "y", "yes", "1"}
    return bool(value)


def _moment(value: Any) -> datetime:
    return datetime.fromisoformat(str(value).strip())


def _part(format: str) -> Callable[[Any], int]:
    return lambda value: int(_moment(value).strftime(format))


def _first(value: Any, unit: str) -> str:
    """The start of the unit that a time is in."""
    at = _moment(value)
    start = {
        "year": at.replace(month=1, day=1, hour=0, minute=0, second=0, microsecond=0),
        "month": at.replace(day=1, hour=0, minute=0, second=0, microsecond=0),
        "week": (at - timedelta(days=at.weekday())).replace(hour=0, minute=0, second=0, microsecond=0),
        "day": at.replace(hour=0, minute=0, second=0, microsecond=0),
        "hour": at.replace(minute=0, second=0, microsecond=0),
        "minute": at.replace(second=0, microsecond=0),
        "second": at.replace(microsecond=0),
    }[unit.lower()]
    return str(sqlite_value(start))


def _round(value: float, digits: int = 0) -> float:
    """Half away from zero, as Spark rounds."""
    scaled = abs(value) * 10**digits
    whole = math.floor(scaled + 0.5) / 10**digits
    return math.copysign(whole, value) if isinstance(value, float) else int(math.copysign(whole, value))


_STRICT: dict[str, Callable[..., Any]] = {
    "lower": lambda value: str(value).lower(),
    "upper": lambda value: str(value).upper(),
    "length": lambda value: len(value) if isinstance(value, bytes) else len(str(value)),
    "char_length": lambda value: len(str(value)),
    "substring": _substring,
    "substr": _substring,
    "left": lambda value, count: str(value)[: max(count, 0)],
    "right": lambda value, count: str(value)[-count:] if count > 0 else "",
    "trim": lambda value: str(value).strip(" "),
    "ltrim": lambda value: str(value).lstrip(" "),
    "rtrim": lambda value: str(value).rstrip(" "),
    "concat": lambda *values: "".join(map(str, values)),
    "replace": lambda value, old, new="": str(value).replace(old, new) if old else str(value),
    "startswith": lambda value, part: str(value).startswith(part),
    "endswith": lambda value, part: str(value).endswith(part),
    "contains": lambda value, part: part in str(value),
    "instr": lambda value, part: str(value).find(part) + 1,
    "reverse": lambda value: str(value)[::-1],
    "regexp_like": lambda value, pattern: re.search(pattern, str(value)) is not None,
    "divide": lambda left, right: left / right,
    "mod": lambda left, right: math.fmod(left, right) if isinstance(left + right, float) else _mod(left, right),
    "pmod": lambda left, right: left % right,
    "div": lambda left, right: _whole(left / right),
    "ceil": math.ceil,
    "ceiling": math.ceil,
    "floor": math.floor,
    "round": _round,
    "sign": lambda value: (value > 0) - (value < 0),
    "sqrt": math.sqrt,
    "power": lambda value, exponent: float(value) ** exponent,
    "pow": lambda value, exponent: float(value) ** exponent,
    "quarter": lambda value: (_moment(value).month + 2) // 3,
    "weekday": lambda value: _moment(value).weekday(),
    "dayofweek": lambda value: _moment(value).isoweekday() % 7 + 1,
    "weekofyear": lambda value: _moment(value).isocalendar().week,
    "date": lambda value: _moment(value).date().isoformat(),
    "to_date": lambda value: _moment(value).date().isoformat(),
    "to_timestamp": lambda value: sqlite_value(_moment(value)),
    "date_trunc": lambda unit, value: _first(value, unit),
    "date_add": lambda value, days: (_moment(value).date() + timedelta(days=days)).isoformat(),
    "date_sub": lambda value, days: (_moment(value).date() - timedelta(days=days)).isoformat(),
    "datediff": lambda end, start: (_moment(end).date() - _moment(start).date()).days,
    **{name: _part(format) for name, format in _PARTS.items()},
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {name: _unless_null(function) for name, function in _STRICT.items()} | {
    "cast": _cast,
    "isnull": lambda value: value is None,
    "isnotnull": lambda value: value is not None,
    "nvl": lambda value, other: other if value is None else value,
    "if": lambda condition, yes, no: yes if condition else no,
    "greatest": lambda *values: max((value for value in values if value is not None), default=None),
    "least": lambda *values: min((value for value in values if value is not None), default=None),
}


def _mod(left: int, right: int) -> int:
    """With the sign of what is divided, as Spark has it."""
    return int(math.copysign(abs(left) % abs(right), left))
