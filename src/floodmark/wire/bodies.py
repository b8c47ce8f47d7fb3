"""A request body: its media type, its compression and its digest. Pure."""

from __future__ import annotations

import hashlib

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
