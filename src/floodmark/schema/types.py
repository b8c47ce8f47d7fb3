"""The types a column can have, their text, and what they are in Arrow. Pure; imports pyarrow only when asked.

The text is a small grammar, and `str(parse_type(text))` is its canonical spelling:

    type   = "boolean" | "int" | "long" | "float" | "double" | "string" | "binary" | "date" | "timestamp"
           | "json" | "decimal(" precision "," scale ")" | "list<" type ">" | "struct<" field {"," field} ">"
    field  = (word | "`" any characters but a backtick "`") ":" type
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from floodmark.errors import InvalidName, SchemaConflict
from floodmark.schema.names import check_field_name, name_key

if TYPE_CHECKING:
    import pyarrow as pa

DEPTH_MAX = 32
"""Deepest nesting of types; deeper text is refused before it overflows the stack."""
DECIMAL_DIGITS_MAX = 38


@dataclass(frozen=True, slots=True)
class Primitive:
    """A type that is one word."""

    name: str

    def __str__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class DecimalType:
    """A decimal number with `precision` digits, `scale` of them after the decimal point."""

    precision: int
    scale: int

    def __post_init__(self) -> None:
        if not (1 <= self.precision <= DECIMAL_DIGITS_MAX and 0 <= self.scale <= self.precision):
            raise SchemaConflict(
                f"decimal({self.precision},{self.scale}) is not a type.",
                hint=f"A decimal has 1 to {DECIMAL_DIGITS_MAX} digits, and not more than these after the decimal "
                "point.",
            )

    def __str__(self) -> str:
        return f"decimal({self.precision},{self.scale})"


@dataclass(frozen=True, slots=True)
class ListType:
    element: ColumnType

    def __str__(self) -> str:
        return f"list<{self.element}>"


@dataclass(frozen=True, slots=True)
class StructType:
    fields: tuple[tuple[str, ColumnType], ...]

    def __post_init__(self) -> None:
        if not self.fields:
            raise SchemaConflict("A struct needs at least one field.", hint="Use json for objects of any shape.")
        seen: dict[str, str] = {}
        for name, _ in self.fields:
            check_field_name(name)
            if name_key(name) in seen:
                raise SchemaConflict(
                    f"A struct has the fields {seen[name_key(name)]!r} and {name!r}, which Spark does not distinguish.",
                    hint="Rename one of them.",
                )
            seen[name_key(name)] = name

    def __str__(self) -> str:
        return f"struct<{','.join(f'{_quoted(name)}:{kind}' for name, kind in self.fields)}>"


ColumnType = Primitive | DecimalType | ListType | StructType

BOOLEAN = Primitive("boolean")
INT = Primitive("int")
LONG = Primitive("long")
FLOAT = Primitive("float")
DOUBLE = Primitive("double")
STRING = Primitive("string")
BINARY = Primitive("binary")
DATE = Primitive("date")
TIMESTAMP = Primitive("timestamp")
JSON = Primitive("json")

PRIMITIVES = {kind.name: kind for kind in (BOOLEAN, INT, LONG, FLOAT, DOUBLE, STRING, BINARY, DATE, TIMESTAMP, JSON)}

WIDER: dict[ColumnType, ColumnType] = {INT: LONG, FLOAT: DOUBLE}
"""The wider type of a column type."""


def holds(wide: ColumnType, narrow: ColumnType) -> bool:
    """Whether every value of `narrow` is, unchanged, a value of `wide`."""
    if wide == narrow or WIDER.get(narrow) == wide:
        return True
    if isinstance(wide, DecimalType) and isinstance(narrow, DecimalType):
        return narrow.scale <= wide.scale and narrow.precision - narrow.scale <= wide.precision - wide.scale
    if isinstance(wide, ListType) and isinstance(narrow, ListType):
        return holds(wide.element, narrow.element)
    if isinstance(wide, StructType) and isinstance(narrow, StructType):
        room = dict(wide.fields)
        return all(name in room and holds(room[name], kind) for name, kind in narrow.fields)
    return False


def _quoted(name: str) -> str:
    return name if _WORD.fullmatch(name) else f"`{name}`"


# ---- text ----

_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_TOKEN = re.compile(
    r"\s*(?:(?P<word>[A-Za-z_][A-Za-z0-9_]*)|`(?P<quoted>[^`]*)`|(?P<digits>[0-9]{1,9})|(?P<sign>[<>(),:]))"
)
_TEXT_CHARACTERS_MAX = 100_000


@lru_cache(maxsize=1024)
def parse_type(text: str) -> ColumnType:
    """Parse a type's text; `SchemaConflict` gives the position of the error."""
    if len(text) > _TEXT_CHARACTERS_MAX:
        raise SchemaConflict(f"A type's text of {len(text)} characters is too long.", hint="Use json.")
    reader = _Reader(text)
    kind = reader.type(depth=1)
    reader.end()
    return kind


class _Reader:
    def __init__(self, text: str) -> None:
        self.text = text
        self.position = 0

    def type(self, depth: int) -> ColumnType:
        if depth > DEPTH_MAX:
            raise self.wrong(f"types can be nested at most {DEPTH_MAX} levels deep")
        word = self.take("word")
        if word is None:
            raise self.wrong("a type is expected")
        kind = PRIMITIVES.get(word.lower())
        if kind is not None:
            return kind
        match word.lower():
            case "decimal":
                return self.decimal()
            case "list":
                self.expect("<")
                element = self.type(depth + 1)
                self.expect(">")
                return ListType(element)
            case "struct":
                return self.struct(depth)
        if word == self.text.strip():
            raise SchemaConflict(f"{word!r} is not a column type.", hint=_hint_for(word))
        raise self.wrong(f"{word!r} is not a type", hint=_hint_for(word))

    def decimal(self) -> DecimalType:
        self.expect("(")
        precision = self.number()
        self.expect(",")
        scale = self.number()
        self.expect(")")
        return DecimalType(precision, scale)

    def struct(self, depth: int) -> StructType:
        self.expect("<")
        fields = [self.field(depth)]
        while self.take_sign(","):
            fields.append(self.field(depth))
        self.expect(">")
        return StructType(tuple(fields))

    def field(self, depth: int) -> tuple[str, ColumnType]:
        name = self.take("word", "quoted")
        if name is None:
            raise self.wrong("a field's name is expected")
        self.expect(":")
        return name, self.type(depth + 1)

    def number(self) -> int:
        digits = self.take("digits")
        if digits is None:
            raise self.wrong("a number is expected")
        return int(digits)

    def take(self, *groups: str) -> str | None:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match.lastgroup not in groups:
            return None
        self.position = match.end()
        return match[match.lastgroup]

    def take_sign(self, sign: str) -> bool:
        match = _TOKEN.match(self.text, self.position)
        if match is None or match["sign"] != sign:
            return False
        self.position = match.end()
        return True

    def expect(self, sign: str) -> None:
        if not self.take_sign(sign):
            raise self.wrong(f"{sign!r} is expected")

    def end(self) -> None:
        if self.text[self.position :].strip():
            raise self.wrong("nothing more is expected")

    def wrong(self, reason: str, *, hint: str | None = None) -> SchemaConflict:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "…"
        return SchemaConflict(
            f"{shown!r} is not a column type: {reason}, at character {self.position + 1}.",
            hint=hint or "Types look like long, decimal(12,2), list<string> or struct<id:long,name:string>.",
        )


_OTHER_WORDS = {
    "bool": "boolean",
    "integer": "int",
    "smallint": "int",
    "tinyint": "int",
    "bigint": "long",
    "int32": "int",
    "int64": "long",
    "real": "float",
    "str": "string",
    "text": "string",
    "varchar": "string",
    "bytes": "binary",
    "datetime": "timestamp",
    "timestamptz": "timestamp",
    "array": "list",
    "dict": "json",
    "map": "json",
    "object": "json",
    "numeric": "decimal(p,s)",
}


def _hint_for(word: str) -> str:
    known = _OTHER_WORDS.get(word.lower())
    if known is not None:
        return f"Use {known} instead."
    return f"The types are {', '.join(PRIMITIVES)}, decimal(p,s), list<…> and struct<…>."


# ---- Arrow ----


@lru_cache(maxsize=1024)
def to_arrow(kind: ColumnType) -> pa.DataType:
    """The Arrow type in which values of the type are stored."""
    import pyarrow as pa

    if isinstance(kind, DecimalType):
        return pa.decimal128(kind.precision, kind.scale)
    if isinstance(kind, ListType):
        return pa.list_(to_arrow(kind.element))
    if isinstance(kind, StructType):
        return pa.struct([pa.field(name, to_arrow(field)) for name, field in kind.fields])
    return {
        BOOLEAN: pa.bool_(),
        INT: pa.int32(),
        LONG: pa.int64(),
        FLOAT: pa.float32(),
        DOUBLE: pa.float64(),
        STRING: pa.string(),
        BINARY: pa.binary(),
        DATE: pa.date32(),
        TIMESTAMP: pa.timestamp("us", tz="UTC"),
        JSON: pa.string(),
    }[kind]


def width(kind: ColumnType) -> int:
    """How many table columns a column needs: a struct's fields are columns too."""
    if isinstance(kind, ListType):
        return width(kind.element)
    return sum(width(field) for _, field in kind.fields) if isinstance(kind, StructType) else 1


def from_arrow(arrow_type: pa.DataType, *, column: str, depth: int = 1) -> ColumnType | None:
    """The column type for an Arrow type; None for Arrow's null type; `SchemaConflict` names what has none."""
    import pyarrow as pa

    types = pa.types
    if types.is_null(arrow_type):
        return None
    if types.is_dictionary(arrow_type):
        return from_arrow(arrow_type.value_type, column=column, depth=depth)
    kind = _primitive_from_arrow(arrow_type)
    if kind is not None:
        return kind
    if types.is_decimal(arrow_type) and 0 <= arrow_type.scale <= arrow_type.precision <= DECIMAL_DIGITS_MAX:
        return DecimalType(arrow_type.precision, arrow_type.scale)
    if depth < DEPTH_MAX:
        nested = _nested_from_arrow(arrow_type, column=column, depth=depth)
        if nested is not None:
            return nested
    raise SchemaConflict(
        f"Column {column!r} is of Arrow type {arrow_type}, which no column type can store.",
        hint="Cast it first, for example to string, or to a struct or list of simple types.",
    )


def _primitive_from_arrow(arrow_type: pa.DataType) -> ColumnType | None:
    import pyarrow as pa

    types = pa.types
    if isinstance(arrow_type, pa.BaseExtensionType):
        return JSON if arrow_type.extension_name == "arrow.json" else None
    tests: tuple[tuple[Any, ColumnType], ...] = (
        (types.is_boolean, BOOLEAN),
        (types.is_uint64, DecimalType(20, 0)),
        (lambda t: types.is_int64(t) or types.is_uint32(t), LONG),
        (types.is_integer, INT),
        (lambda t: types.is_float16(t) or types.is_float32(t), FLOAT),
        (types.is_float64, DOUBLE),
        (lambda t: types.is_string(t) or types.is_large_string(t) or types.is_string_view(t), STRING),
        (lambda t: types.is_binary(t) or types.is_large_binary(t) or types.is_binary_view(t), BINARY),
        (types.is_fixed_size_binary, BINARY),
        (types.is_date, DATE),
        (types.is_timestamp, TIMESTAMP),
    )
    return next((kind for test, kind in tests if test(arrow_type)), None)


def _nested_from_arrow(arrow_type: pa.DataType, *, column: str, depth: int) -> ColumnType | None:
    import pyarrow as pa

    types = pa.types
    # List views are not supported: pyarrow 26 casts them to lists with broken offsets.
    if types.is_list(arrow_type) or types.is_large_list(arrow_type) or types.is_fixed_size_list(arrow_type):
        element = from_arrow(arrow_type.value_type, column=column, depth=depth + 1)
        return None if element is None else ListType(element)
    if types.is_struct(arrow_type) and arrow_type.num_fields:
        fields = [(field.name, from_arrow(field.type, column=column, depth=depth + 1)) for field in arrow_type]
        if any(kind is None for _, kind in fields):
            return None
        try:
            return StructType(tuple((name, kind) for name, kind in fields if kind is not None))
        except (InvalidName, SchemaConflict) as error:
            raise SchemaConflict(f"Column {column!r}: {error.message}", hint=error.hint) from error
    return None


def physical(kind: ColumnType) -> ColumnType:
    """A type as the table stores it: JSON is text there."""
    match kind:
        case ListType(element):
            return ListType(physical(element))
        case StructType(fields):
            return StructType(tuple((name, physical(inner)) for name, inner in fields))
        case _:
            return STRING if kind == JSON else kind
