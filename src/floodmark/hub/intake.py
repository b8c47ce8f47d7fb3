"""What the hub uses of a store: the parts that rows come in by, and nothing that starts Spark."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from floodmark.clock import Clock
from floodmark.control.database import Database
from floodmark.spool.capture import Capture
from floodmark.spool.segments import SegmentStore
from floodmark.store import Store


@dataclass(frozen=True, slots=True)
class Intake:
    """A store as the hub sees it. Threads may share it; processes open their own."""

    store_id: str
    root: Path
    database: Database
    segments: SegmentStore
    capture: Capture
    clock: Clock

    @classmethod
    def of(cls, store: Store) -> Intake:
        """The hub is one more door into the same store, so it takes its parts as they are."""
        return cls(
            store_id=store.store_id,
            root=store.path,
            database=store._database,  # noqa: SLF001
            segments=store._segments,  # noqa: SLF001
            capture=store._capture,  # noqa: SLF001
            clock=store._clock,  # noqa: SLF001
        )
