"""A chunk's header, and a hub's ledger of a channel. Pure."""

from __future__ import annotations

import base64
import bisect
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import quote

import orjson

from floodmark.errors import FloodmarkError, MalformedChunk
from floodmark.schema.types import parse_type
from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally
from floodmark.wire.bodies import digest_of

VERSION = 2
VERSIONS = (1, VERSION)
"""What a hub reads. In version 1 each given-up row was named by its number, and a path had at most 64 stores."""
HEADER = "Floodmark-Chunk"
KEY_HEADER = "Idempotency-Key"

HEADER_CHARACTERS_MAX = 256 << 10
"""Room for the ids of some 4,000 stores that rows passed before."""
STORE_CHARACTERS_MAX = 1024
PARTITION_CHARACTERS_MAX = 16 << 10
"""A partition's key holds the values it stands for, and those are texts of any length."""
PATH_STORES_MAX = 8192
PATH_STORES_MAX_OF_OLD = 64
"""A sender of version 1 omitted further stores."""
GIVEN_UP_RANGES_MAX = 1000
"""How many ranges of given-up rows one header, or one answer, names."""

_HEX = re.compile(r"[0-9a-f]{16}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class GivenUpRange:
    """A range of which no row is sent: all of them are in the sender's quarantine."""

    range: SequenceRange
    tally: Tally


@dataclass(frozen=True, slots=True)
class ChunkHeader:
    """The header of a chunk."""

    origin: str
    """The store that the rows come from."""
    partition: str
    range: SequenceRange
    tally: Tally
    """Of the rows in the body."""
    before: Tally
    """Of all rows that the sender delivered or gave up, up to `range.after`."""
    digest: str
    """SHA-256 of the body before compression, in hex."""
    given_up: tuple[GivenUpRange, ...] = ()
    """Parts of the range whose rows are not sent, in order."""
    replay: bool = False
    """The rows were given up before, and are every row of the range."""
    path: tuple[str, ...] = ()
    """All stores that the rows have passed through, the origin last. An incomplete list would allow loops."""
    types: Mapping[str, str] = field(default_factory=dict)
    """The types of columns that JSON loses; see `types_lost_in_json`."""
    version: int = VERSION

    @property
    def given_up_tally(self) -> Tally:
        return sum((item.tally for item in self.given_up), Tally())

    @property
    def total(self) -> Tally:
        """Of everything up to `range.through`."""
        return self.before + self.tally + self.given_up_tally

    def encode(self) -> str:
        """The header's text, as it stands in `Floodmark-Chunk`."""
        content: dict[str, Any] = {
            "version": self.version,
            "origin": self.origin,
            "partition": self.partition,
            "after": self.range.after,
            "through": self.range.through,
            "rows": self.tally.rows,
            "checksum": self.tally.checksum_text,
            "before": {"rows": self.before.rows, "checksum": self.before.checksum_text},
            "given_up": [self._encoded(item) for item in self.given_up],
            "replay": self.replay,
            "path": list(self.path),
            "digest": self.digest,
        }
        if self.types:
            content["types"] = dict(self.types)
        return base64.urlsafe_b64encode(orjson.dumps(content)).decode().rstrip("=")

    def _encoded(self, item: GivenUpRange) -> list[Any]:
        if self.version == 1:
            return [item.range.through, item.tally.checksum_text]
        return [item.range.after, item.range.through, item.tally.rows, item.tally.checksum_text]

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a header; `MalformedChunk` says what is wrong with one."""
        content = _header_content(text)
        version: int = content["version"]
        span = _range(content.get("after"), content.get("through"))
        before = content.get("before")
        if type(before) is not dict:
            raise malformed("`before` is not an object")
        header = cls(
            origin=_name(content, "origin", characters_max=STORE_CHARACTERS_MAX),
            partition=_name(content, "partition", characters_max=PARTITION_CHARACTERS_MAX),
            range=span,
            tally=_tally(content.get("rows"), content.get("checksum")),
            before=_tally(before.get("rows"), before.get("checksum")),
            digest=_matching(_DIGEST, content.get("digest"), "digest"),
            given_up=_given_up(content.get("given_up", []), span, version),
            replay=_flag(content.get("replay", False)),
            path=_path(content.get("path", []), PATH_STORES_MAX_OF_OLD if version == 1 else PATH_STORES_MAX),
            types=_types(content.get("types", {})),
            version=version,
        )
        if header.replay and (header.tally.rows < 1 or header.given_up):
            raise malformed("a replay must have rows, and no given-up ranges")
        if header.replay and version == 1 and header.tally.rows != 1:
            raise malformed("a replay must have exactly one row")
        return header


def idempotency_key(origin: str, dataset: str, partition: str, within: SequenceRange, *, replay: bool = False) -> str:
    """The key of a chunk: made of its range, so that a retry has the same one."""
    parts = [*(quote(part, safe="") for part in (origin, dataset, partition)), f"{within.after}-{within.through}"]
    return "/".join([*parts, "replay"] if replay else parts)


def _header_content(text: str) -> dict[str, Any]:
    if len(text) > HEADER_CHARACTERS_MAX:
        raise malformed(f"its header has {len(text):,} characters; the limit is {HEADER_CHARACTERS_MAX:,}")
    try:
        content = orjson.loads(base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True))
    except ValueError:
        raise malformed("its header is not base64url of JSON") from None
    if type(content) is not dict:
        raise malformed("its header is not a JSON object")
    if type(content.get("version")) is not int or content["version"] not in VERSIONS:
        raise MalformedChunk(
            f"The chunk has version {str(content.get('version'))[:20]!r}; this hub reads version {VERSION}.",
            hint="Use the same version of Floodmark on both sides.",
        )
    return content


def _name(content: Mapping[str, Any], key: str, *, characters_max: int) -> str:
    value = content.get(key)
    if type(value) is not str or not 0 < len(value) <= characters_max:
        raise malformed(f"`{key}` is not a text of 1 to {characters_max:,} characters")
    return value


def _matching(pattern: re.Pattern[str], value: Any, key: str) -> str:
    if type(value) is not str or pattern.fullmatch(value) is None:
        raise malformed(f"`{key}` does not match {pattern.pattern}")
    return value


def _flag(value: Any) -> bool:
    if type(value) is not bool:
        raise malformed("a value is neither true nor false")
    return value


def _range(after: Any, through: Any) -> SequenceRange:
    # A number above the end of int64 would be stored as something else, or not at all.
    if type(after) is not int or type(through) is not int or not 0 <= after < through <= SEQUENCE_MAX:
        raise malformed("`after` and `through` are not a range of sequence numbers")
    return SequenceRange(after, through)


def _tally(rows: Any, checksum: Any) -> Tally:
    if type(rows) is not int or not 0 <= rows <= SEQUENCE_MAX:
        raise malformed("`rows` is not a count")
    return Tally.of(rows, _matching(_HEX, checksum, "checksum"))


def _given_up(items: Any, within: SequenceRange, version: int) -> tuple[GivenUpRange, ...]:
    if type(items) is not list:
        raise malformed("`given_up` is not a list")
    if version == 1:
        return _given_up_by_number(items, within)
    if len(items) > GIVEN_UP_RANGES_MAX:
        raise malformed(f"`given_up` has more than {GIVEN_UP_RANGES_MAX:,} ranges")
    found: list[GivenUpRange] = []
    end = within.after
    for item in items:
        if type(item) is not list or len(item) != 4:
            raise malformed("`given_up` contains an item that is not after, through, rows and checksum")
        span = _range(item[0], item[1])
        if span.after < end or span.through > within.through:
            raise malformed("a range in `given_up` is outside the chunk's range, or not after the previous one")
        found.append(GivenUpRange(span, _tally(item[2], item[3])))
        if found[-1].tally.rows > span.through - span.after:
            raise malformed("a range in `given_up` has more rows than sequence numbers")
        end = span.through
    return tuple(found)


def _given_up_by_number(items: list[Any], within: SequenceRange) -> tuple[GivenUpRange, ...]:
    """Version 1: a number and a checksum for each row."""
    result: dict[int, Tally] = {}
    for item in items:
        if type(item) is not list or len(item) != 2 or type(item[0]) is not int or item[0] not in within:
            raise malformed("`given_up` contains an item that is not a sequence number of the range with its checksum")
        result[item[0]] = _tally(1, item[1])
    if len(result) != len(items):
        raise malformed("`given_up` contains a sequence number twice")
    return tuple(GivenUpRange(SequenceRange(seq - 1, seq), tally) for seq, tally in sorted(result.items()))


def _path(items: Any, stores_max: int) -> tuple[str, ...]:
    if type(items) is not list or len(items) > stores_max:
        raise malformed(f"`path` is not a list of at most {stores_max} stores")
    if not all(type(item) is str and 0 < len(item) <= STORE_CHARACTERS_MAX for item in items):
        raise malformed("`path` contains an item that is not a store id")
    return tuple(items)


def _types(items: Any) -> dict[str, str]:
    if type(items) is not dict or not all(type(text) is str for text in items.values()):
        raise malformed("`types` is not an object with text values")
    try:
        for text in items.values():
            parse_type(text)
    except FloodmarkError as error:
        raise malformed(f"`types` contains an unknown type ({error.message.rstrip('.')})") from error
    return dict(items)


def malformed(reason: str) -> MalformedChunk:
    return MalformedChunk(
        f"The chunk is malformed: {reason}.", hint="Nothing was stored. Send it as Floodmark's forward sink does."
    )


# ── what a hub says about a channel ──────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class LedgerState:
    """A hub's ledger of one channel: everything up to `through` has arrived or was given up."""

    through: int
    tally: Tally
    given_up_rows: int = 0
    """How many rows up to there were given up, and have not come since."""
    given_up: tuple[SequenceRange, ...] = ()
    """Where those are, in order: as far as was asked for, and at most `GIVEN_UP_RANGES_MAX` ranges."""
    more: bool = False
    """Whether further ranges were left out."""

    def content(self, version: int = VERSION) -> dict[str, Any]:
        """As it stands in an answer's JSON."""
        found: dict[str, Any] = {
            "through": self.through,
            "rows": self.tally.rows,
            "checksum": self.tally.checksum_text,
        }
        if version == 1:  # such a sender gave up rows by number, so each range is one row
            return {**found, "given_up": [span.through for span in self.given_up]}
        found["given_up"] = {
            "rows": self.given_up_rows,
            "ranges": [[span.after, span.through] for span in self.given_up],
            "more": self.more,
        }
        return found

    @classmethod
    def parse(cls, content: Any) -> Self:
        """Read it from an answer's JSON; `MalformedChunk` if it is not one."""
        if type(content) is not dict:
            raise malformed("the ledger in the response is not an object")
        through, given_up = content.get("through"), content.get("given_up")
        if type(through) is not int or not 0 <= through <= SEQUENCE_MAX:
            raise malformed("the ledger in the response has no end")
        if type(given_up) is not dict or type(given_up.get("ranges")) is not list:
            raise malformed("the ledger in the response has no given-up ranges")
        ranges = given_up["ranges"]
        if not all(type(item) is list and len(item) == 2 for item in ranges):
            raise malformed("the ledger in the response has a given-up item that is not a range")
        return cls(
            through,
            _tally(content.get("rows"), content.get("checksum")),
            _tally(given_up.get("rows"), "0" * 16).rows,
            tuple(_range(after, end) for after, end in ranges),
            _flag(given_up.get("more")),
        )


@dataclass(frozen=True, slots=True)
class Acknowledgement:
    """What a hub says that it has stored, or had stored before: which hub, and which chunk of which channel."""

    hub: str
    """The id of the hub's store."""
    origin: str
    dataset: str
    partition: str
    range: SequenceRange
    tally: Tally
    replay: bool = False

    @classmethod
    def of(cls, header: ChunkHeader, *, hub: str, dataset: str) -> Self:
        return cls(hub, header.origin, dataset, header.partition, header.range, header.tally, header.replay)

    def content(self) -> dict[str, Any]:
        """As it stands in an answer's JSON."""
        return {
            "hub": self.hub,
            "origin": self.origin,
            "dataset": self.dataset,
            "partition": self.partition,
            "after": self.range.after,
            "through": self.range.through,
            "rows": self.tally.rows,
            "checksum": self.tally.checksum_text,
            "replay": self.replay,
        }


# ── rows that match their header ─────────────────────────────────────────────────────────────────────────────────────
# The checks are the same for every body format.


ORIGIN_SEQ = "_origin_seq"
"""Beside a row's own columns: its number at the origin."""
ORIGIN_ID = "_origin_id"
"""The first 64 bits of its content id."""


def check_digest(content: bytes, header: ChunkHeader) -> None:
    if digest_of(content) != header.digest:
        raise malformed("its body does not match the digest")


def check_count(rows: int, header: ChunkHeader) -> None:
    if rows != header.tally.rows:
        raise malformed(f"it has {rows:,} rows; its header says {header.tally.rows:,}")


def check_sequence(sequence: Sequence[int], header: ChunkHeader) -> None:
    if sequence[0] not in header.range or sequence[-1] not in header.range:
        raise malformed(f"a row's `{ORIGIN_SEQ}` is outside the range {header.range}")
    if not all(map(operator.lt, sequence, sequence[1:])):
        raise malformed(f"`{ORIGIN_SEQ}` does not increase from row to row")
    for item in header.given_up:
        first = bisect.bisect_right(sequence, item.range.after)
        if first < len(sequence) and sequence[first] <= item.range.through:
            raise malformed("a row is both sent and given up")


def checked_tally(tally: Tally, header: ChunkHeader) -> Tally:
    if tally != header.tally:
        raise malformed("the checksum of its rows does not match the header")
    return tally
