"""One chunk becomes one object: encoded, created if absent, else compared. Runs wherever the rows are."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from floodmark.delivery.outcomes import Busy, Oversized
from floodmark.delivery.sinks.formats import encoded, holds_rows
from floodmark.delivery.sinks.objects import Claim, ObjectPlace
from floodmark.errors import DivergedHistory, Permanent, reason_of
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

REPLACES = "Use a store, or a newer version of it, that knows conditional writes (If-None-Match)."


@dataclass(frozen=True, slots=True)
class ObjectWriter:
    """Stores the rows of a range of one channel under the range's name. Can be pickled: tasks of Spark's run it."""

    place: ObjectPlace
    folder: str
    format: str
    schema: Schema
    chunk_bytes: int
    found: Mapping[SequenceRange, str] = field(default_factory=dict)
    """Ranges that are there already in another format, and in which: a retry compares, and adds no second copy."""
    claim: Claim | None = None
    """Created again behind each object that a server says it created: else nothing would tell that it has replaced
    somebody's object. One small request for each object."""

    def __call__(self, range: SequenceRange, rows: pa.Table) -> dict[str, Any]:
        """Returns the object's `bytes`, and whether it was `created` now or found to hold these rows already."""
        if rows.num_rows == 0:
            return {"bytes": 0, "created": False}  # a stretch without rows has no object
        format = self.found.get(range, self.format)
        key = f"{self.folder}/{range.after}-{range.through}.{format}"
        if rows.num_rows > 1 and rows.nbytes > self.chunk_bytes:
            self._split_unless_there(key, rows.nbytes)
        content = encoded(rows, format, self.schema)
        created = self.place.create(key, content)
        if not created:
            self._compare(key, range, content, rows, format)
        elif self.place.remote and self.claim is not None and not self.claim.proves(self.place):
            raise Permanent(
                f"{self.place.where} does not refuse any more to replace objects. {key} was written now; if another "
                "object had that name, it is gone.",
                hint=f"Look at earlier versions of it. {REPLACES}",
            )
        return {"bytes": len(content), "created": created}

    def _split_unless_there(self, key: str, size: int) -> None:
        """Objects are never cut anew: one that was made under a larger limit is compared as it stands."""
        if self.place.read(key) is None:
            raise Oversized(f"{size} bytes of rows for {key}, and chunk_bytes is {self.chunk_bytes}")

    def _compare(self, key: str, range: SequenceRange, content: memoryview, rows: pa.Table, format: str) -> None:
        found = self.place.read(key)
        if found is None:
            raise Busy(f"{self.place.where}/{key} is being written by somebody else.", hint="Export again.")
        if found == content:
            return
        try:
            same = holds_rows(found, rows, format, self.schema)
        except ValueError as error:
            raise DivergedHistory(
                f"{self.place.where}/{key} is not what this sink wrote: {reason_of(error)}.",
                hint="Move the object away, then export again; or deliver to a new prefix.",
            ) from error
        if not same:
            raise DivergedHistory(
                f"{self.place.where}/{key} holds other rows for the range {range}.",
                hint="Was the store restored from a backup, or the object changed? Deliver to a new prefix.",
            )
