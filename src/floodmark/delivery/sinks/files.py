"""The blob sink on local files, by its former name."""

from __future__ import annotations

from pathlib import Path

from floodmark.delivery.sinks.blob import CHUNK_BYTES_MAX, BlobSink
from floodmark.delivery.sinks.formats import check_format
from floodmark.delivery.sinks.objects import LocalObjects
from floodmark.schema import Schema

__all__ = ["FileSink", "check_format"]


def FileSink(directory: Path, format: str, store_id: str, *, sink: str) -> BlobSink:  # noqa: N802 - as it was called
    return BlobSink(
        LocalObjects(directory), format, Schema(), store_id=store_id, sink=sink, chunk_bytes=CHUNK_BYTES_MAX
    )
