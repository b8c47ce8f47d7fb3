"""A request body: its media type, its compression, its digest, and how much it may contain. Pure."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from floodmark.errors import MalformedChunk, TooLarge

LINES = "application/x-ndjson"
"""A line of JSON for each row: what every server reads."""
COLUMNS = "application/vnd.apache.arrow.stream"
"""A stream of Arrow's: what a hub reads that says so, at a fraction of the work."""
MEDIA = (LINES, COLUMNS)
ENCODINGS = ("identity", "zstd", "gzip")
"""Supported content encodings."""

_PIECE_BYTES = 1 << 20


def compress(content: bytes) -> bytes:
    """The body as it travels (`Content-Encoding: zstd`)."""
    import pyarrow as pa

    packed: bytes = pa.Codec("zstd", compression_level=1).compress(content, asbytes=True)
    return packed


def digest_of(content: bytes) -> str:
    """What `ChunkHeader.digest` holds of a body."""
    return hashlib.sha256(content).hexdigest()


def decompress(body: bytes, encoding: str, *, bytes_max: int) -> bytes:
    """The body before compression; `TooLarge` as soon as it exceeds the limit."""
    import pyarrow as pa

    if encoding == "identity":
        if len(body) > bytes_max:
            raise _too_large(bytes_max)
        return body
    pieces: list[bytes] = []
    room = bytes_max
    try:
        with pa.CompressedInputStream(pa.BufferReader(body), encoding) as stream:
            # In pieces, so that a decompression bomb is never expanded completely.
            while piece := stream.read(min(_PIECE_BYTES, room + 1)):
                room -= len(piece)
                if room < 0:
                    raise _too_large(bytes_max)
                pieces.append(piece)
    except (OSError, pa.ArrowException):
        raise MalformedChunk(
            f"The body is not complete {encoding} data.", hint="Nothing was stored. Send the complete body again."
        ) from None
    return b"".join(pieces)


def _too_large(bytes_max: int) -> TooLarge:
    return TooLarge(
        f"The body is larger than {bytes_max:,} bytes after decompression.",
        hint="Nothing was stored. Send fewer rows at a time.",
    )


# ── how much a body may contain ──────────────────────────────────────────────────────────────────────────────────────
# Compression and padding make much of little: a row that lacks a column has a null there, and 20,000 rows of one column
# each, every one another, are 400 million values. So values are counted in what the body says of itself, before
# anything is made of them.


_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of one body. Every field is an option of `floodmark hub` with the same name."""

    rows_max: int = 200_000
    columns_max: int = 2_000
    values_max: int = 1_000_000
    """Values of all rows and columns, nulls and the elements of lists included."""
    nesting_max: int = 64
    """How deep a value's lists and objects nest."""

    def check_rows(self, rows: int) -> None:
        self._check(rows, self.rows_max, "rows", "rows")

    def check_columns(self, columns: int) -> None:
        self._check(columns, self.columns_max, "columns", "columns")

    def check_values(self, values: int) -> None:
        self._check(values, self.values_max, "values", "values (rows times columns, plus the elements of lists)")

    def check_shape(self, rows: int, columns: int) -> None:
        """Of rows side by side: where a row lacks a column, there is a null."""
        self.check_rows(rows)
        self.check_columns(columns)
        self.check_values(rows * columns)

    def check_text(self, content: bytes) -> None:
        """Of JSON that is not parsed yet: a parsed value takes up to fifty times the bytes that it is written with."""
        if _signs(content) > self.values_max:  # signs inside of texts count too, so it is an upper bound
            self.check_values(_signs(_TEXT.sub(b"", content)))

    def check_nesting(self, depth: int) -> None:
        if depth > self.nesting_max:
            raise _limit_exceeded(f"A value is nested more than {self.nesting_max:,} levels deep", "nesting")

    def check_depths(self, values: Iterable[Any]) -> None:
        """Of values that are parsed."""
        level = [value for value in values if type(value) is dict or type(value) is list]
        depth = 0
        while level:
            depth += 1
            self.check_nesting(depth)
            level = [
                inner
                for value in level
                for inner in (value.values() if type(value) is dict else value)
                if type(inner) is dict or type(inner) is list
            ]

    def _check(self, found: int, most: int, name: str, words: str) -> None:
        if found > most:
            raise _limit_exceeded(f"The body has {found:,} {words}; the limit is {most:,}", name)


def _signs(content: bytes) -> int:
    return content.count(b",") + content.count(b"{") + content.count(b"[")


def _limit_exceeded(message: str, name: str) -> TooLarge:
    return TooLarge(
        f"{message}.",
        hint=f"Nothing was stored. Send less per request, or increase `--{name}-max` of the hub.",
    )
