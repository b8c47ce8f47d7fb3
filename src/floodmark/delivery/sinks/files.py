"""A blob sink on local files: one object per chunk, named by its range.

    <prefix>/<dataset>/<partition>/<after>-<through>.<format>

The name carries the range, so a repeated delivery meets its own object: it is compared, and equal means delivered.
An object appears whole and durable or not at all (temporary file, fsync, link), and is never replaced. The prefix
belongs to one sink of one store, which has signed it.
"""

from __future__ import annotations

import base64
import contextlib
import gzip
import io
import json
import os
import secrets
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark.control.deliveries import Channel
from floodmark.delivery.destination import Delivered, Holdings, Parcel
from floodmark.errors import DivergedHistory, InvalidSetting, Permanent
from floodmark.files import make_directory, retryable_os_error, sync_directory

if TYPE_CHECKING:
    import pyarrow as pa

CLAIM = "_floodmark_claim.json"
FORMATS = ("parquet", "jsonl", "jsonl.gz")


@dataclass(frozen=True, slots=True)
class FileSink:
    """Objects under a directory."""

    directory: Path
    format: str
    store_id: str
    sink: str

    def open(self) -> None:
        """Sign the prefix, or find our own signature there."""
        make_directory(self.directory)
        claim = json.dumps({"store": self.store_id, "sink": self.sink}, sort_keys=True).encode()
        self._create(self.directory / CLAIM, claim)
        found = (self.directory / CLAIM).read_bytes()
        if found != claim:
            raise Permanent(
                f"{self.directory} belongs to another sink or store.", hint="Give every sink a prefix of its own."
            )

    def held(self, channel: Channel, *, after: int) -> Holdings:  # noqa: ARG002 - the contract's signature
        return Holdings()

    def close(self) -> None:
        pass

    def deliver(self, parcel: Parcel) -> Delivered:
        path = self._path(parcel)
        content = encoded(parcel.rows, self.format)
        try:
            make_directory(path.parent)
            if not self._create(path, content) and path.read_bytes() != content:
                self._compare(parcel, path)
        except OSError as error:
            raise retryable_os_error(error, doing=f"Writing {path}") from error
        return Delivered(len(content))

    def _path(self, parcel: Parcel) -> Path:
        channel, span = parcel.channel, parcel.range
        name = f"{span.after}-{span.through}.{self.format}"
        return self.directory / channel.dataset / channel.partition / name

    def _create(self, path: Path, content: bytes) -> bool:
        """Create a file with its whole content, durably; false if the name is taken. Never replaces."""
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            try:
                os.link(temporary, path)
            except FileExistsError:
                return False
            finally:
                with contextlib.suppress(FileNotFoundError):
                    temporary.unlink()
                sync_directory(path.parent)
        except BaseException:
            with contextlib.suppress(FileNotFoundError):
                temporary.unlink()
            raise
        return True

    def _compare(self, parcel: Parcel, path: Path) -> None:
        """Other bytes may still be the same rows: written by another version of a library, say."""
        try:
            found = decoded(path.read_bytes(), self.format)
            same = found.equals(parcel.rows.cast(found.schema))
        except (ValueError, OSError) as error:
            raise DivergedHistory(f"{path} is not what this sink wrote: {error}.") from error
        if not same:
            raise DivergedHistory(
                f"{path} holds other rows for the range {parcel.range}.",
                hint="Was the store restored from a backup, or the object changed? Deliver to a new prefix.",
            )


def check_format(format: str) -> str:
    if format not in FORMATS:
        raise InvalidSetting(f"The format {format!r} is unknown.", hint=f"It is one of {', '.join(FORMATS)}.")
    return format


def encoded(rows: pa.Table, format: str) -> bytes:
    """The rows as the bytes of one object; the same rows give the same bytes."""
    buffer = io.BytesIO()
    if format == "parquet":
        import pyarrow.parquet as pq

        pq.write_table(rows, buffer, compression="zstd", compression_level=1)
        return buffer.getvalue()
    import orjson

    lines = b"".join(orjson.dumps(row, default=_plain, option=orjson.OPT_APPEND_NEWLINE) for row in rows.to_pylist())
    return lines if format == "jsonl" else gzip.compress(lines, mtime=0)


def decoded(content: bytes, format: str) -> pa.Table:
    import pyarrow as pa
    import pyarrow.json as pj
    import pyarrow.parquet as pq

    if format == "parquet":
        return pq.read_table(pa.BufferReader(content))
    return pj.read_json(io.BytesIO(content if format == "jsonl" else gzip.decompress(content)))


def _plain(value: object) -> str:
    return base64.b64encode(value).decode() if isinstance(value, bytes) else str(value)
