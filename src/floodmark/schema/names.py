"""Valid names of datasets and columns, and reserved names. Pure."""

from __future__ import annotations

import re
import unicodedata
from functools import lru_cache
from typing import Any

from floodmark.errors import InvalidName, InvalidSetting

SEQ = "_ingest_seq"
"""The row's sequence number, given at its stamping commit."""
CONTENT_ID = "_ingest_id"
"""The content hash of the captured row."""
SEGMENT = "_ingest_segment"
"""The segment that contained the row."""

SYSTEM_PREFIXES = ("_ingest_", "_origin_")

COLUMN_NAME_CHARACTERS_MAX = 255

# Names that Iceberg or Spark give to metadata columns of every table. A user's column of that name would
# be shadowed by (or break) reads of files, positions, row lineage and change logs.
RESERVED_NAMES = frozenset(
    {
        "_file",
        "_pos",
        "_deleted",
        "_spec_id",
        "_partition",
        "_row_id",
        "_last_updated_sequence_number",
        "_metadata",
        "_change_type",
        "_change_ordinal",
        "_commit_snapshot_id",
    }
)

_NAME = re.compile(r"[a-z][a-z0-9_]{0,62}")


def name_key(name: str) -> str:
    """The key by which Spark, which ignores case, compares two names."""
    return name.upper().lower()


def is_system_column(name: str) -> bool:
    """Whether the column is a system column: never a user's, and not returned to users."""
    return name.lower().startswith(SYSTEM_PREFIXES)


def check_column_name(name: Any) -> str:
    """The name, if it is a valid column name; else `InvalidName`."""
    check_field_name(name, what="column")
    if is_system_column(name):
        raise InvalidName(
            f"The column name {name!r} starts with a prefix that is reserved for Floodmark's own columns.",
            hint="Use a name that does not start with `_ingest_` or `_origin_`.",
        )
    if name_key(name) in RESERVED_NAMES:
        raise InvalidName(
            f"The column name {name!r} is one of Iceberg's own metadata columns.",
            hint=f"Use another name, for example {name.lstrip('_') + '_'!r}.",
        )
    return str(name)


def check_field_name(name: Any, *, what: str = "field") -> str:
    """The name, if it is a valid name of a struct's field, by the rules for every name in a table."""
    reason = _field_name_problem(name)
    if reason is not None:
        raise InvalidName(f"{_shown(name)} is not a valid {what} name: {reason}.", hint="Use another name.")
    return str(name)


def _field_name_problem(name: Any) -> str | None:
    if not isinstance(name, str):
        return f"a name is text, not {type(name).__name__}"
    return _text_problem(name)


@lru_cache(maxsize=4096)  # every call names the same few columns
def _text_problem(name: str) -> str | None:
    problems = {
        "it is empty": not name,
        f"it has {len(name)} characters; the limit is {COLUMN_NAME_CHARACTERS_MAX}": (
            len(name) > COLUMN_NAME_CHARACTERS_MAX
        ),
        "it contains a control character or an unpaired surrogate": any(
            unicodedata.category(char) in {"Cc", "Cs"} for char in name
        ),
        "it starts or ends with a space": name != name.strip(),
        "it contains a backtick": "`" in name,
    }
    return next((reason for reason, applies in problems.items() if applies), None)


def check_dataset_name(name: Any) -> str:
    """The name, if it is a valid dataset name; else `InvalidName`."""
    return _checked_name(name, "a dataset")


def check_sink_name(name: Any) -> str:
    """The name, if it is a valid sink name; else `InvalidName`."""
    return _checked_name(name, "a sink")


def _checked_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{_shown(name)} cannot name {what}.",
            hint="Start with a lower-case letter, then use lower-case letters, digits and underscores: at most 63 "
            "characters.",
        )
    return name


def parse_identity(value: Any) -> tuple[tuple[str, ...], ...]:
    """The columns that identify a row, first choice first, each followed by what is used where it is null.

    `["a", "b"]` is one identity of two columns; `[["part_id"], ["message_id", "part_index"]]` is an
    identity and its fallback.
    """
    if value is None:
        return ()
    if not isinstance(value, list | tuple):
        raise _bad_identity(f"it is of type {type(value).__name__}")
    if not value:
        return ()
    if all(isinstance(item, str) for item in value):
        return (_identity_columns(value),)
    if all(isinstance(item, list | tuple) for item in value):
        choices = tuple(_identity_columns(item) for item in value)
        if len(set(choices)) != len(choices):
            raise _bad_identity("it lists the same columns twice")
        return choices
    raise _bad_identity("it mixes names with other values")


def _identity_columns(names: Any) -> tuple[str, ...]:
    if not names:
        raise _bad_identity("one of its alternatives is empty")
    if not all(isinstance(name, str) for name in names):
        raise _bad_identity("it contains a value that is not a name")
    if len({name_key(name) for name in names}) != len(names):
        raise _bad_identity("it names a column twice")
    return tuple(check_column_name(name) for name in names)


def _bad_identity(reason: str) -> InvalidSetting:
    return InvalidSetting(
        f"The identity cannot be used: {reason}.",
        hint='Give a list of column names, ["id"], or a list of such lists, [["id"], ["source", "line"]].',
    )


def _shown(name: Any) -> str:
    if not isinstance(name, str):
        return f"A {type(name).__name__}"
    return repr(name if len(name) <= 60 else name[:57] + "…")
