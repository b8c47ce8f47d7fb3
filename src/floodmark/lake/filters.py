"""Row filters: one SQL condition over a dataset's own columns, the same for the same row whenever it is asked.

A filter decides what a destination receives, so it must give one answer for good. What would let the answer depend
on anything but the row is refused before the engine sees it: system columns, other rows (subqueries), the clock,
chance, the session, and the file a row happens to lie in. The engine refuses what is no condition at all: unknown
columns, aggregates, windows.

A condition is written in Spark's SQL. The lake in memory asks SQLite instead, which understands the common part.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from floodmark.errors import InvalidSetting, reason_of
from floodmark.lake.types import quoted, spark_type
from floodmark.schema.names import is_system_column, name_key

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.schema.types import ColumnType

_TOKEN = re.compile(
    r"""
      (?P<blank>\s+)
    | (?P<comment>--|/\*)
    | (?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | `(?P<quoted>[^`]+)`
    | (?P<word>[^\W\d]\w*)
    | (?P<number>\d[\w.]*)
    | (?P<sign>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_OPENS_A_QUERY = frozenset({"values", "table", "with", "from"})
_WORDLESS_FUNCTIONS = frozenset(
    {"current_date", "current_time", "current_timestamp", "current_user", "localtimestamp", "session_user", "user"}
)
_UNSTEADY_FUNCTIONS = _WORDLESS_FUNCTIONS | {
    "curdate",
    "current_catalog",
    "current_database",
    "current_schema",
    "current_timezone",
    "input_file_block_length",
    "input_file_block_start",
    "input_file_name",
    "java_method",
    "monotonically_increasing_id",
    "now",
    "rand",
    "randn",
    "random",
    "randstr",
    "reflect",
    "shuffle",
    "spark_partition_id",
    "try_reflect",
    "uniform",
    "unix_timestamp",
    "uuid",
    "version",
}
_STEADY_WITH_ARGUMENTS = frozenset({"unix_timestamp"})


def check_text(expression: str, columns: Collection[str]) -> frozenset[str]:
    """The columns that a filter may use; `InvalidSetting` for one whose answer could change for the same row."""
    known = {name_key(name): name for name in columns}
    tokens = list(_tokens(expression))
    if not tokens:
        raise bad_filter(expression, "it is empty")
    if not _balanced(text for kind, text in tokens if kind == "sign"):
        raise bad_filter(expression, "its parentheses do not match")  # it must stay one condition inside ours
    for place, (kind, text) in enumerate(tokens):
        before = tokens[place - 1][1] if place else ""
        behind = "".join(part for _, part in tokens[place + 1 : place + 3])
        problem = _problem(kind, text, before=before, behind=behind, known=known)
        if problem is not None:
            raise bad_filter(expression, problem)
    return frozenset(known[name_key(text)] for kind, text in tokens if kind != "text" and name_key(text) in known)


def _balanced(signs: Iterable[str]) -> bool:
    depth = 0
    for sign in signs:
        depth += (sign == "(") - (sign == ")")
        if depth < 0:
            return False
    return depth == 0


def _tokens(expression: str) -> Iterator[tuple[str, str]]:
    for found in _TOKEN.finditer(expression):
        kind = str(found.lastgroup)
        if kind != "blank":
            yield kind, found[kind]


def _problem(kind: str, text: str, *, before: str, behind: str, known: Collection[str]) -> str | None:
    lower = text.lower()
    if kind in ("quoted", "word") and is_system_column(text):
        return f"{text} is a system column"
    if kind == "comment" or (kind, text) == ("sign", ";"):
        return f"it has {'a comment' if kind == 'comment' else 'a semicolon'} in it"
    if kind != "word":
        return None
    if lower in ("select", "using") or (before == "(" and lower in _OPENS_A_QUERY):
        return "it has a query in it (a column of such a name goes in backticks)"
    steady = lower in _STEADY_WITH_ARGUMENTS and not behind.startswith("()")
    called = behind.startswith("(") and lower in _UNSTEADY_FUNCTIONS and not steady
    if called or (lower in _WORDLESS_FUNCTIONS and name_key(text) not in known):
        return f"{lower} does not give the same answer for the same row every time"
    return None


def bad_filter(expression: str, problem: str) -> InvalidSetting:
    shown = expression if len(expression) <= 200 else expression[:197] + "…"
    return InvalidSetting(
        f"The filter {shown!r} cannot be used: {problem}.",
        hint="Write one SQL condition over the dataset's columns, such as: kind = 'sale' AND amount > 10.",
    )


def check_filter(spark: Any, expression: str, columns: Sequence[tuple[str, ColumnType]]) -> None:
    """Let a session look at a condition beside columns of those names and types, and nothing else. No job."""
    check_text(expression, [name for name, _ in columns])
    nulls = ", ".join(f"cast(null as {spark_type(kind)}) as {quoted(name)}" for name, kind in columns)
    try:
        spark.sql(f"SELECT {nulls}").where(expression).schema  # noqa: B018 - looked at, not run
    except Exception as error:
        raise bad_filter(expression, reason_of(error)) from error


def kept_by_sqlite(rows: pa.Table, expression: str, columns: Collection[str]) -> pa.Table:
    """The rows of which a filter is true, as SQLite sees it. A column that the rows do not have is null in all."""
    import sqlite3
    from contextlib import closing

    import pyarrow as pa

    used = sorted(check_text(expression, columns))
    names = ", ".join(['"_ingest_row"', *(f'"{name.replace(chr(34), chr(34) * 2)}"' for name in used)])
    held = {name: rows[name].to_pylist() for name in used if name in rows.column_names}
    values = [[_for_sqlite(value) for value in held.get(name, [None] * rows.num_rows)] for name in used]
    with closing(sqlite3.connect(":memory:")) as database:
        database.execute("PRAGMA case_sensitive_like = ON")
        database.execute(f"CREATE TABLE rows ({names})")
        places = ", ".join("?" * (len(used) + 1))
        lines = zip(range(rows.num_rows), *values, strict=True)
        database.executemany(f"INSERT INTO rows VALUES ({places})", lines)  # noqa: S608 - question marks
        try:
            found = database.execute(f'SELECT "_ingest_row" FROM rows WHERE ({expression}) ORDER BY 1')  # noqa: S608 - it is SQL by nature
            kept = [row for (row,) in found]
        except sqlite3.Error as error:
            raise bad_filter(expression, str(error)) from error
    return rows.take(pa.array(kept, pa.int64()))


def _for_sqlite(value: Any) -> Any:
    from datetime import date, datetime
    from decimal import Decimal

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
