"""The format of requests from a forwarding store to a hub: a chunk's header and its rows. Pure.

The header is one line of base64url over JSON. The body has the rows, in sequence order, each with its number and the
first 64 bits of its content id: as lines of JSON (`lines`), which every server reads, or as Arrow's columns
(`columns`), which a hub reads that says so.

A reader raises `MalformedChunk` for anything that does not match its header. The other side is not trusted: sizes are
limited before memory is allocated, and numbers are checked before they are used.
"""

from floodmark.wire.bodies import COLUMNS, ENCODINGS, LINES, MEDIA, Limits, compress, decompress, digest_of
from floodmark.wire.columns import Columns, decode_columns, encode_columns
from floodmark.wire.header import (
    GIVEN_UP_RANGES_MAX,
    HEADER,
    HEADER_CHARACTERS_MAX,
    KEY_HEADER,
    PATH_STORES_MAX,
    PATH_STORES_MAX_OF_OLD,
    VERSION,
    VERSIONS,
    Acknowledgement,
    ChunkHeader,
    GivenUpRange,
    LedgerState,
    idempotency_key,
)
from floodmark.wire.lines import (
    Lines,
    check_objects,
    decode_lines,
    encode_lines,
    parse_lines,
    read_as_lines,
    types_lost_in_json,
)

__all__ = [
    "COLUMNS",
    "ENCODINGS",
    "GIVEN_UP_RANGES_MAX",
    "HEADER",
    "HEADER_CHARACTERS_MAX",
    "KEY_HEADER",
    "LINES",
    "MEDIA",
    "PATH_STORES_MAX",
    "PATH_STORES_MAX_OF_OLD",
    "VERSION",
    "VERSIONS",
    "Acknowledgement",
    "ChunkHeader",
    "Columns",
    "GivenUpRange",
    "LedgerState",
    "Limits",
    "Lines",
    "check_objects",
    "compress",
    "decode_columns",
    "decode_lines",
    "decompress",
    "digest_of",
    "encode_columns",
    "encode_lines",
    "idempotency_key",
    "parse_lines",
    "read_as_lines",
    "types_lost_in_json",
]
