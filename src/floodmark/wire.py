"""What travels between a forwarding store and a hub: a chunk's header and its rows. Pure.

The header is one line of base64url over JSON. The body has a line of JSON for each row, in sequence order: the row's
own columns flat in one object, its number and the first 64 bits of its content id beside them:

    {"id":1,"at":"2026-01-31T12:00:00.000000Z","_origin_seq":41,"_origin_id":"a5a4c2f1d2a0b7c3"}

Every value is written so that the parser of captured rows reads the same value back. JSON alone does not tell a time
from a text, so the header names the types of those columns that a reader could not guess.

`MalformedChunk` is what a reader raises for anything that is not what it says it is. Nothing here trusts the other
side: sizes are bounded before memory is taken, and numbers are checked before they are used.
"""

from __future__ import annotations

import base64
import hashlib
import operator
import re
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import quote

import orjson

from floodmark.errors import FloodmarkError, MalformedChunk, TooLarge
from floodmark.rows.jsontext import INTEGER_MAX, INTEGER_MIN
from floodmark.schema import BINARY, BOOLEAN, JSON, LONG, STRING, ColumnType, DecimalType, ListType, Schema, StructType
from floodmark.schema.types import DATE, DOUBLE, FLOAT, TIMESTAMP, from_arrow, parse_type
from floodmark.sequence import CHECKSUM_MODULUS, SEQUENCE_MAX, SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

VERSION = 1
HEADER = "Floodmark-Chunk"
KEY_HEADER = "Idempotency-Key"
CONTENT_TYPE = "application/x-ndjson"
ORIGIN_SEQ = "_origin_seq"
ORIGIN_ID = "_origin_id"

ENCODINGS = ("identity", "zstd", "gzip")
"""How a body may be compressed on the way."""
HEADER_CHARACTERS_MAX = 256 << 10
"""Room for the numbers of some 6,000 rows that were given up."""
STORE_CHARACTERS_MAX = 1024
PARTITION_CHARACTERS_MAX = 16 << 10
"""A partition's key holds the values it stands for, and those are texts of any length."""
PATH_STORES_MAX = 64

_HEX = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")
_PIECE_BYTES = 1 << 20
_SIMPLE = frozenset({str, int, float, bool, type(None)})


# ── the header ───────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """What a chunk says of itself, beside its rows."""

    origin: str
    """The store that the rows come from."""
    partition: str
    range: SequenceRange
    tally: Tally
    """Of the rows in the body."""
    before: Tally
    """Of everything the sender has settled up to `range.after`, delivered or given up."""
    digest: str
    """SHA-256 of the body before compression, in hex."""
    given_up: Mapping[int, Tally] = field(default_factory=dict)
    """Rows inside the range that stay behind: number and tally of each."""
    replay: bool = False
    path: tuple[str, ...] = ()
    """The stores that the rows passed before, the origin last."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of columns that JSON does not tell; see `types_to_tell`."""

    @property
    def total(self) -> Tally:
        """Of everything up to `range.through`."""
        return sum(self.given_up.values(), self.before + self.tally)

    def encode(self) -> str:
        """The header's text, as it stands in `Floodmark-Chunk`."""
        content: dict[str, Any] = {
            "version": VERSION,
            "origin": self.origin,
            "partition": self.partition,
            "after": self.range.after,
            "through": self.range.through,
            "rows": self.tally.rows,
            "checksum": self.tally.checksum_text,
            "before": {"rows": self.before.rows, "checksum": self.before.checksum_text},
            "given_up": [[seq, tally.checksum_text] for seq, tally in sorted(self.given_up.items())],
            "replay": self.replay,
            "path": list(self.path),
            "digest": self.digest,
        }
        if self.types:
            content["types"] = dict(self.types)
        return base64.urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a header; `MalformedChunk` says what is wrong with one."""
        content = _header_content(text)
        span = _range(content.get("after"), content.get("through"))
        before = content.get("before")
        if type(before) is not dict:
            raise _malformed("`before` is not an object")
        header = cls(
            origin=_name(content, "origin", characters_max=STORE_CHARACTERS_MAX),
            partition=_name(content, "partition", characters_max=PARTITION_CHARACTERS_MAX),
            range=span,
            tally=_tally(content.get("rows"), content.get("checksum")),
            before=_tally(before.get("rows"), before.get("checksum")),
            digest=_matching(_DIGEST, content.get("digest"), "digest"),
            given_up=_given_up(content.get("given_up", []), span),
            replay=_flag(content.get("replay", False)),
            path=_path(content.get("path", [])),
            types=_types(content.get("types", {})),
        )
        if header.replay and (header.tally.rows != 1 or header.given_up):
            raise _malformed("a replay is exactly one row")
        return header


def idempotency_key(origin: str, dataset: str, partition: str, within: SequenceRange, *, replay: bool = False) -> str:
    """The key of a chunk: made of its range, so that a retry has the same one."""
    parts = [*(quote(part, safe="") for part in (origin, dataset, partition)), f"{within.after}-{within.through}"]
    return "/".join([*parts, "replay"] if replay else parts)


def _header_content(text: str) -> dict[str, Any]:
    if len(text) > HEADER_CHARACTERS_MAX:
        raise _malformed(f"its header has {len(text):,} characters, and {HEADER_CHARACTERS_MAX:,} are the most")
    try:
        content = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise _malformed("its header is not base64url of JSON") from None
    if type(content) is not dict:
        raise _malformed("its header is not a JSON object")
    if content.get("version") != VERSION:
        raise MalformedChunk(
            f"The chunk is of version {str(content.get('version'))[:20]!r}, and this hub reads version {VERSION}.",
            hint="Use the same version of Floodmark on both sides.",
        )
    return content


def _name(content: Mapping[str, Any], key: str, *, characters_max: int) -> str:
    value = content.get(key)
    if type(value) is not str or not 0 < len(value) <= characters_max:
        raise _malformed(f"`{key}` is not a text of 1 to {characters_max:,} characters")
    return value


def _matching(pattern: re.Pattern[str], value: Any, key: str) -> str:
    if type(value) is not str or pattern.fullmatch(value) is None:
        raise _malformed(f"`{key}` is not what it must be, {pattern.pattern}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise _malformed("`replay` is not true or false")
    return value


def _range(after: Any, through: Any) -> SequenceRange:
    # A number above the end of int64 would be stored as something else, or not at all.
    if type(after) is not int or type(through) is not int or not 0 <= after < through <= SEQUENCE_MAX:
        raise _malformed("`after` and `through` are no range of sequence numbers")
    return SequenceRange(after, through)


def _tally(rows: Any, checksum: Any) -> Tally:
    if type(rows) is not int or not 0 <= rows <= SEQUENCE_MAX:
        raise _malformed("`rows` is not a count")
    return Tally.of(rows, _matching(_HEX, checksum, "checksum"))


def _given_up(items: Any, within: SequenceRange) -> dict[int, Tally]:
    result: dict[int, Tally] = {}
    if type(items) is not list:
        raise _malformed("`given_up` is not a list")
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not int or item[0] not in within:
            raise _malformed("`given_up` holds something that is not a number in the range with its checksum")
        result[item[0]] = _tally(1, item[1])
    if len(result) != len(items):
        raise _malformed("`given_up` names a number twice")
    return result


def _path(items: Any) -> tuple[str, ...]:
    if type(items) is not list or len(items) > PATH_STORES_MAX:
        raise _malformed(f"`path` is not a list of at most {PATH_STORES_MAX} stores")
    if not all(type(item) is str and 0 < len(item) <= STORE_CHARACTERS_MAX for item in items):
        raise _malformed("`path` holds something that is not a store's id")
    return tuple(items)


def _types(items: Any) -> dict[str, str]:
    if type(items) is not dict or not all(type(text) is str for text in items.values()):
        raise _malformed("`types` is not an object of texts")
    try:
        for text in items.values():
            parse_type(text)
    except FloodmarkError as error:
        raise _malformed(f"`types` names a type that there is not ({error.message.rstrip('.')})") from error
    return dict(items)


def _malformed(reason: str) -> MalformedChunk:
    return MalformedChunk(
        f"The chunk is malformed: {reason}.", hint="Nothing was stored. Send it as Floodmark's forward sink does."
    )


# ── what a hub says about a channel ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A hub's ledger of one channel: everything up to `through` has arrived or was given up."""

    through: int
    tally: Tally
    given_up: tuple[int, ...] = ()

    def content(self) -> dict[str, Any]:
        """As it stands in an answer's JSON."""
        return {
            "through": self.through,
            "rows": self.tally.rows,
            "checksum": self.tally.checksum_text,
            "given_up": list(self.given_up),
        }

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read it from an answer's JSON; `MalformedChunk` if it is not one."""
        if type(content) is not dict:
            raise _malformed("the ledger in the answer is not an object")
        through, given_up = content.get("through"), content.get("given_up", [])
        if type(through) is not int or not 0 <= through <= SEQUENCE_MAX:
            raise _malformed("the ledger in the answer has no end")
        if type(given_up) is not list or not all(type(seq) is int for seq in given_up):
            raise _malformed("the ledger in the answer gives up something that is not a number")
        return cls(through, _tally(content.get("rows"), content.get("checksum")), tuple(given_up))


# ── rows to lines ────────────────────────────────────────────────────────────────────────────────────────────────────


def types_to_tell(schema: Schema, rows: pa.Table) -> dict[str, str]:
    """The types of those columns in the table that a reader of the lines could not guess."""
    kinds = {name: _kind(schema, rows, name) for name in _columns_with_values(rows)}
    return {name: str(kind) for name, kind in kinds.items() if kind not in {BOOLEAN, LONG, STRING}}


def encode_rows(rows: pa.Table, sequence: pa.ChunkedArray, ids: pa.ChunkedArray, *, schema: Schema) -> bytes:
    """The rows as lines of JSON, each with its number and the first 64 bits of its content id.

    The schema tells a json column from one of texts, which look the same in Arrow.
    """
    import msgspec
    import pyarrow.compute as pc

    names = [*_columns_with_values(rows), ORIGIN_SEQ, ORIGIN_ID]
    columns = [_json_values(_kind(schema, rows, name), rows.column(name)) for name in names[:-2]]
    columns += [sequence.to_pylist(), pc.utf8_slice_codeunits(ids, 0, 16).to_pylist()]
    if not len(columns[-1]) == len(columns[-2]) == rows.num_rows:
        raise ValueError(f"{rows.num_rows} rows, {len(columns[-2])} numbers and {len(columns[-1])} ids")
    # One call for all lines, on objects whose fields are known: several times faster than a call for each dict.
    lines: bytes = msgspec.json.Encoder().encode_lines(list(map(_line_type(tuple(names)), *columns)))
    return lines


def compress(content: bytes) -> bytes:
    """The body as it travels (`Content-Encoding: zstd`)."""
    import pyarrow as pa

    packed: bytes = pa.Codec("zstd", compression_level=1).compress(content, asbytes=True)
    return packed


def digest_of(content: bytes) -> str:
    """What `ChunkHeader.digest` holds of a body."""
    return hashlib.sha256(content).hexdigest()


def _columns_with_values(rows: pa.Table) -> list[str]:
    # Null is the absence of a value, and a column without any would only be guessed at.
    return [name for name in rows.column_names if rows.column(name).null_count < rows.num_rows]


def _kind(schema: Schema, rows: pa.Table, name: str) -> ColumnType:
    column = schema.get(name)
    kind = column.type if column is not None else from_arrow(rows.schema.field(name).type, column=name)
    if kind is None:
        raise ValueError(f"column {name!r} has values of Arrow's null type")
    return kind


@lru_cache(maxsize=256)
def _line_type(names: tuple[str, ...]) -> Callable[..., Any]:
    """What makes of one value for each name something that is written as an object with those keys."""
    try:
        return _line_struct(names)
    except ValueError:  # a key that would need escapes
        return lambda *values: dict(zip(names, values, strict=True))


def _line_struct(names: tuple[str, ...]) -> type[Any]:
    """A class whose instances are lines with those keys; a key that is not there is null."""
    import msgspec

    fields: list[Any] = [(f"field{index}", Any, None) for index in range(len(names))]
    renamed = {field[0]: name for field, name in zip(fields, names, strict=True)}
    made: type[Any] = msgspec.defstruct("Line", fields, rename=renamed, gc=False, forbid_unknown_fields=True)
    return made


def _json_values(kind: ColumnType, column: pa.ChunkedArray) -> list[Any]:
    """A column as values that are written as the JSON which stands for them. Arrow does the work where it can."""
    import pyarrow as pa
    import pyarrow.compute as pc

    values: list[Any]
    if kind == TIMESTAMP:
        # Without its zone, which is UTC: Arrow looks one up for every value otherwise, twenty times slower.
        texts = column.cast(pa.int64()).cast(pa.timestamp("us")).cast(pa.string())
        values = pc.binary_replace_slice(pc.binary_join_element_wise(texts, "Z", ""), 10, 11, "T").to_pylist()
    elif kind == DATE or isinstance(kind, DecimalType):
        values = column.cast(pa.string()).to_pylist()
    else:
        values = column.to_pylist()
        nested = kind == JSON or isinstance(kind, ListType | StructType)
        if nested or (kind in {FLOAT, DOUBLE} and not pc.all(pc.is_finite(column), min_count=0).as_py()):
            values = list(map(_plain(kind), values))
    return values


def _plain(kind: ColumnType) -> Callable[[Any], Any]:
    """What makes JSON of a single value of the type, at any depth."""
    import msgspec

    from floodmark.rows.jsontext import plain_json

    if kind == JSON:
        return lambda text: None if text is None else msgspec.Raw(text.encode())
    if isinstance(kind, ListType):
        element = _plain(kind.element)
        return lambda items: None if items is None else list(map(element, items))
    if isinstance(kind, StructType):
        fields = {name: _plain(field) for name, field in kind.fields}
        return lambda item: None if item is None else {name: one(item[name]) for name, one in fields.items()}
    if kind == BINARY:
        return lambda value: value  # msgspec writes base64, as captured bytes are
    return lambda value: plain_json(value, big_integers=True)


# ── lines to rows ────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Lines:
    """The rows of a chunk, column by column, as the parser of captured rows takes them."""

    columns: list[str]
    values: list[Sequence[Any]]
    sequence: Sequence[int]
    tally: Tally


def decompress(body: bytes, encoding: str, *, bytes_max: int) -> bytes:
    """The body as it was before compression; `TooLarge` as soon as it turns out to be more than allowed."""
    import pyarrow as pa

    if encoding == "identity":
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    pieces: list[bytes] = []
    room = bytes_max
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            # Piece by piece: what a bomb would become is never asked for.
            while piece := stream.read(min(_PIECE_BYTES, room + 1)):
                room -= len(piece)
                if room < 0:
                    raise _too_large(bytes_max)
                pieces.append(piece)
    except (OSError, pa.ArrowException):
        raise MalformedChunk(
            f"The body is not whole {encoding} data.", hint="Nothing was stored. Send it again, in full."
        ) from None
    return b"".join(pieces)


def decode_rows(content: bytes, header: ChunkHeader) -> Lines:
    """The rows of a body, checked against its header; `MalformedChunk` where the two do not agree."""
    if digest_of(content) != header.digest:
        raise _malformed("its body is not the one that the digest was made of")
    columns, values, rows = _columns(content)
    if rows != header.tally.rows:
        raise _malformed(f"it has {rows:,} rows and says {header.tally.rows:,}")
    if not rows:
        return Lines([], [], (), _checked_tally(Tally(), header))
    came = dict(zip(columns, values, strict=True))
    sequence, ids = came.pop(ORIGIN_SEQ, ()), came.pop(ORIGIN_ID, ())
    _check_sequence(sequence, header)
    tally = Tally(len(ids), _checksum(ids))
    return Lines(list(came), list(came.values()), sequence, _checked_tally(tally, header))


def _columns(content: bytes) -> tuple[list[str], list[Sequence[Any]], int]:
    """The lines column by column, and how many they are."""
    found = _columns_alike(content)
    if found is not None:
        return found
    from floodmark.rows import rows_to_columns

    objects = parse_lines(content)
    return *rows_to_columns(objects), len(objects)


def _columns_alike(content: bytes) -> tuple[list[str], list[Sequence[Any]], int] | None:
    """The same for lines that all have the keys of the first, and simple values: the usual case, twice as fast.

    None for all others, and wherever this parser could read something else than the one that captured rows go through:
    integers beyond 64 bits, and several objects in a line.
    """
    import msgspec

    first = content.partition(b"\n")[0]
    try:
        names = tuple(orjson.loads(first))
        parse, as_tuple = _line_parser(names)
        lines = parse(content)
    except (ValueError, TypeError, RecursionError, msgspec.MsgspecError):
        return None  # the other parser says what is wrong, if anything is
    if len(lines) != content.count(b"\n") + (not content.endswith(b"\n")):
        return None
    values: list[Sequence[Any]] = list(zip(*map(as_tuple, lines), strict=True))
    return (list(names), values, len(lines)) if all(map(_is_read_alike, values)) else None


@lru_cache(maxsize=256)
def _line_parser(names: tuple[str, ...]) -> tuple[Callable[[bytes], list[Any]], Callable[[Any], tuple[Any, ...]]]:
    import msgspec

    line = _line_struct(names)
    return msgspec.json.Decoder(line).decode_lines, msgspec.structs.astuple


def _is_read_alike(column: Sequence[Any]) -> bool:
    kinds = set(map(type, column))
    if not kinds <= _SIMPLE:
        return False
    if int not in kinds:
        return True
    numbers = column if len(kinds) == 1 else [value for value in column if type(value) is int]
    return min(numbers) >= INTEGER_MIN and max(numbers) <= INTEGER_MAX


def parse_lines(content: bytes) -> list[dict[str, Any]]:
    """Each line's object; `MalformedChunk` names the first line that is none."""
    lines = content.split(b"\n")
    if not lines[-1]:
        lines.pop()
    try:
        objects = list(map(orjson.loads, lines))
    except ValueError:
        number = next(number for number, line in enumerate(lines, 1) if not _is_json(line))
        raise MalformedChunk(
            f"Line {number} is not JSON.", hint="Nothing was stored. Send one JSON object per line."
        ) from None
    if not set(map(type, objects)) <= {dict}:
        number = next(number for number, item in enumerate(objects, 1) if type(item) is not dict)
        raise MalformedChunk(
            f"Line {number} is not a JSON object.", hint="Nothing was stored. Send one JSON object per line."
        )
    return objects


def _is_json(line: bytes) -> bool:
    try:
        orjson.loads(line)
    except ValueError:
        return False
    return True


def _check_sequence(sequence: Sequence[Any], header: ChunkHeader) -> None:
    if not sequence or set(map(type, sequence)) != {int}:
        raise _malformed(f"a row has no `{ORIGIN_SEQ}` that is a number")
    if sequence[0] not in header.range or sequence[-1] not in header.range:
        raise _malformed(f"a row's `{ORIGIN_SEQ}` lies outside the range {header.range}")
    if not all(map(operator.lt, sequence, sequence[1:])):
        raise _malformed(f"`{ORIGIN_SEQ}` does not rise from row to row")
    if not header.given_up.keys().isdisjoint(sequence):
        raise _malformed("a row is both sent and given up")


def _checksum(ids: Sequence[Any]) -> int:
    try:
        digits = "".join(ids)
        prefixes = bytes.fromhex(digits)  # which passes over blanks: hence the lengths
        if set(map(len, ids)) != {16} or len(prefixes) * 2 != len(digits):
            raise ValueError("not 16 hex digits each")
    except (TypeError, ValueError):
        raise _malformed(f"a row has no `{ORIGIN_ID}` of 16 hex digits") from None
    numbers: tuple[int, ...] = struct.unpack(f">{len(ids)}Q", prefixes)
    return sum(numbers) % CHECKSUM_MODULUS


def _checked_tally(tally: Tally, header: ChunkHeader) -> Tally:
    if tally != header.tally:
        raise _malformed("the checksum over its rows is not the one it says")
    return tally


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(
        f"The body is larger than {bytes_max:,} bytes once it is decompressed.",
        hint="Nothing was stored. Send fewer rows at a time.",
    )
