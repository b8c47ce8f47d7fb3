"""Whether the objects of a channel are those that the records speak of.

An object's own rows give the checksum that was recorded when it was delivered: a row's content id covers its user
columns, and an object has all of them. Where they do not (a settle function changed values after the id was made), the
object is compared with the rows as the lake has them today; where the lake has fewer by now, that cannot be told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from floodmark.delivery.destination import Account, Audited, Discrepancy, Settled
from floodmark.delivery.sinks.formats import FORMATS, decoded, holds_rows
from floodmark.delivery.sinks.objects import ObjectPlace
from floodmark.errors import reason_of
from floodmark.rows.content import content_ids, tally
from floodmark.schema import Schema
from floodmark.sequence import SequenceRange

if TYPE_CHECKING:
    import pyarrow as pa

_RESTORE = "Put the object back from a backup; or deliver everything to a new prefix, with a sink of its own."
_MOVE_AWAY = "Move it away: whoever reads the prefix takes its rows for delivered ones."


@dataclass(slots=True)
class ObjectAudit:
    """One look at one channel's folder."""

    place: ObjectPlace
    folder: str
    schema: Schema
    account: Account
    listed: Mapping[str, tuple[SequenceRange, str] | None]
    """Every name in the folder: the range and format that it says, None for one that no sink gives."""
    rows: int = 0
    unproven: int = 0
    """Objects whose rows could not be proved, though nothing speaks against them."""
    _used: set[str] = field(default_factory=set)

    def run(self, *, deep: bool) -> Audited:
        found = [*self._missing(), *(self._damaged() if deep else ())]
        found += self._extra()
        note = None
        if self.unproven:
            note = f"{self.unproven} objects hold as many rows as they should; which, cannot be proved any more."
        return Audited(self.rows if deep else None, tuple(found), note)

    def _missing(self) -> Iterator[Discrepancy]:
        for settled in self.account.settled:
            names = self._names(settled) if settled.tally.rows else []
            if settled.replayed and names != self._whole(settled) and len(names) < len(settled.replayed):
                what = f"{len(settled.replayed)} rows of {settled.range} were replayed, and {len(names)} are there."
                yield Discrepancy("object-missing", what, self._where(), settled.range, _RESTORE)
            elif settled.tally.rows and not names:
                what, kind = f"The object of {settled.range} is not there: {settled.tally.rows} rows.", "object-missing"
                if not settled.recorded:
                    kind = "never-sent"
                    what = (
                        f"{settled.tally.rows} rows of {settled.range} lie below the watermark, and there is neither "
                        "a delivered chunk on record nor an object."
                    )
                yield Discrepancy(kind, what, self._where(), settled.range, _RESTORE)

    def _names(self, settled: Settled) -> list[str]:
        """The objects that hold a settled range: its own, or pieces of it where it may have come in pieces."""
        found = self._whole(settled) if settled.recorded else []
        if settled.replayed and not found:
            alone = {SequenceRange(seq - 1, seq) for seq in settled.replayed}
            found = [name for name, told in self.listed.items() if told is not None and told[0] in alone]
        if not settled.recorded:
            inside = ((name, told) for name, told in self.listed.items() if told is not None)
            found = [name for name, told in inside if settled.range.intersect(told[0]) == told[0]]
        self._used.update(found)
        return found

    def _whole(self, settled: Settled) -> list[str]:
        return [name for name, told in self.listed.items() if told is not None and told[0] == settled.range][:1]

    def _extra(self) -> Iterator[Discrepancy]:
        allowed = set(self.account.pending)
        for name, told in sorted(self.listed.items()):
            if name in self._used or (told is not None and told[0] in allowed):
                continue
            if told is None and not name.endswith(tuple(f".{format}" for format in FORMATS)):
                continue  # not an object of rows: somebody's own file
            yield self._unknown(name, None if told is None else told[0])

    def _unknown(self, name: str, span: SequenceRange | None) -> Discrepancy:
        where = f"{self._where()}/{name}"
        if span is not None and self.account.watermark <= span.after < span.through <= self.account.horizon:
            what = f"The object {name} is there and not on record: a delivery that was forgotten, or is under way."
            remedy = "The next export compares it, and takes it over."
            return Discrepancy("object-unrecorded", what, where, span, remedy, wrong=False)
        what = f"The object {name} belongs to no chunk on record."
        return Discrepancy("object-extra", what, where, span, _MOVE_AWAY)

    # ── row by row ───────────────────────────────────────────────────────────────────────────────────────────────

    def _damaged(self) -> Iterator[Discrepancy]:
        for settled in self.account.settled:
            names = self._names(settled) if settled.tally.rows else []
            if names and names == self._whole(settled):
                yield from self._compared(settled, names[0])
            elif names:
                yield from self._counted(settled, names)

    def _compared(self, settled: Settled, name: str) -> Iterator[Discrepancy]:
        content, rows, problem = self._read(name)
        if problem is not None or rows is None:
            yield problem or self._gone(settled, name)
            return
        self.rows += rows.num_rows
        ids, prefixes = content_ids(rows)
        if tally(prefixes) == settled.tally:
            return
        wanted = settled.tally.rows
        where = f"{self._where()}/{name}"
        if rows.num_rows == wanted:
            today = settled.fetch()
            if today.num_rows < wanted:
                self.unproven += 1
            elif not holds_rows(content, today, self.listed[name][1], self.schema):  # type: ignore[index]
                what = f"The object {name} has {wanted} rows, as it should, and not those that were delivered."
                yield Discrepancy("rows-altered", what, where, settled.range, _RESTORE)
            return
        twice = sum(count - 1 for count in Counter(ids.to_pylist()).values())
        kind = "rows-missing" if rows.num_rows < wanted else "rows-doubled" if twice else "rows-extra"
        what = f"The object {name} has {rows.num_rows} rows, and {wanted} were delivered."
        yield Discrepancy(kind, what, where, settled.range, _RESTORE)

    def _counted(self, settled: Settled, names: list[str]) -> Iterator[Discrepancy]:
        count = 0
        for name in names:
            _, rows, problem = self._read(name)
            if problem is not None:
                yield problem
            count += 0 if rows is None else rows.num_rows
        self.rows += count
        if count != settled.tally.rows:
            what = f"The objects within {settled.range} have {count} rows, and the lake has {settled.tally.rows}."
            kind = "rows-missing" if count < settled.tally.rows else "rows-extra"
            yield Discrepancy(kind, what, self._where(), settled.range, _RESTORE)

    def _read(self, name: str) -> tuple[bytes, pa.Table | None, Discrepancy | None]:
        told = self.listed[name]
        content = self.place.read(f"{self.folder}/{name}")
        if content is None or told is None:
            return b"", None, None
        try:
            return content, decoded(content, told[1], self.schema), None
        except ValueError as error:
            what = f"The object {name} cannot be read ({len(content)} bytes): {reason_of(error)}."
            return content, None, Discrepancy("object-damaged", what, f"{self._where()}/{name}", told[0], _RESTORE)

    def _gone(self, settled: Settled, name: str) -> Discrepancy:
        return Discrepancy("object-missing", f"The object {name} is not there.", self._where(), settled.range, _RESTORE)

    def _where(self) -> str:
        return f"{self.place.where}/{self.folder}"
