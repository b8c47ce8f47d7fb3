"""Bugs on the way from a capture to a segment."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sqlalchemy import update

from floodmark import faults
from floodmark.control import segments as segment_records
from floodmark.control.schema import landing
from floodmark.files import make_directory, sync_directory
from floodmark.spool import landing as landing_log
from floodmark.spool import sealing
from floodmark.spool.landing import LandingWriter

from .replacing import replaced
from .seeding import DISK, GOES_ON, POWER, bug, does, stops


@bug("acknowledged before it is synced", invariant="L1", short=[does(0, "capture"), POWER])
def _() -> Iterator[None]:
    def write(descriptor: int, content: bytes) -> None:
        os.write(descriptor, content)
        faults.reach("capture.written")

    with replaced(landing_log, "write_durably", write):
        yield


@bug("a landing file whose name is not synced", invariant="L1", short=[does(0, "capture"), POWER])
def _() -> Iterator[None]:
    with replaced(landing_log, "sync_directory", lambda _path: None):
        yield


@bug("a live writer's file is removed", invariant="L5", short=[does(0, "capture"), does(1, "seal"), does(0, "capture")])
def _() -> Iterator[None]:
    with replaced(sealing, "is_writer_gone", lambda _descriptor: True):
        yield


@bug(
    "lines are sealed by whoever comes",
    invariant="I6",
    short=[does(1, "capture"), stops(0, "seal", "segment.announced"), does(2, "seal"), GOES_ON],
)
def _() -> Iterator[None]:
    def advance(connection: Any, lines: Any) -> bool:
        connection.execute(update(landing).where(landing.c.file == lines.file).values(sealed=lines.end))
        return True

    ids = iter(range(1, 1 << 40))
    with (
        replaced(segment_records, "advance_landing", advance),
        # Segments of the same lines have the same id, which alone would already keep them single.
        replaced(segment_records, "landing_segment_id", lambda _lines: next(ids)),
    ):
        yield


@bug(
    "a landing file has its name before its lock",
    invariant="L2",
    short=[stops(0, "capture", "capture.named"), does(1, "seal"), GOES_ON],
)
def _() -> Iterator[None]:
    def create(directory: Path) -> tuple[int, str]:
        make_directory(directory)
        name = landing_log.uuid.uuid4().hex
        descriptor = os.open(directory / f"{name}.jsonl", os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o644)
        sync_directory(directory)
        faults.reach("capture.named")
        landing_log.try_lock(descriptor)
        return descriptor, name

    with replaced(landing_log, "create_file", create):
        yield


@bug(
    "a file is written to behind a failed sync",
    invariant="L3",
    short=[does(0, "capture"), DISK, does(0, "capture"), does(0, "capture"), POWER],
)
def _() -> Iterator[None]:
    with replaced(LandingWriter, "abandon", lambda _self: None):
        yield


@bug(
    "a live writer's torn line is taken for all of it",
    invariant="L4",
    short=[stops(0, "capture", "capture.half"), does(1, "seal"), GOES_ON],
)
def _() -> Iterator[None]:
    real_write, real_lines = landing_log.write_durably, sealing.next_lines

    def write(descriptor: int, content: bytes) -> None:
        # A disk may take a line in two pieces.
        half = len(content) // 2
        os.write(descriptor, content[:half])
        faults.reach("capture.half")
        real_write(descriptor, content[half:])

    def torn_too(descriptor: int, *, start: int, size: int, writer_gone: bool) -> bytes:
        return real_lines(descriptor, start=start, size=size, writer_gone=True)

    with replaced(landing_log, "write_durably", write), replaced(sealing, "next_lines", torn_too):
        yield
