"""Which rows an upkeep operation removes, and which of them a sink still needs. Pure.

Terms. A row is *selected* if the rule of an operation names it: it is old enough, or it matches a purge's condition. A
sink *needs* every row above its position. A selected row that a sink needs is *held back* by that sink, unless the
sink was given up: then the row is removed, and what the sink never receives is a *forfeit*, recorded with its range.

- U10 Retention removes no row above the position of a sink whose scope has it, unless that sink was given up.
- U11 Nothing of an open intent is removed, not even of a sink that was given up: a pinned chunk may have arrived
  already, and is sent again exactly as it was pinned.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from floodmark.sequence import SEQUENCE_MAX, SequenceRange, Tally


@dataclass(frozen=True, slots=True)
class Spared:
    """Ranges of one partition that stay, whatever the rule says."""

    partition: str
    ranges: tuple[SequenceRange, ...]


@dataclass(frozen=True, slots=True)
class Selection:
    """The rule: rows up to a number, of which all that is said here is true.

    The same rule names the same rows as long as no other operation changes committed rows (U17), so a delete that is
    repeated after a crash removes nothing more.
    """

    through: int
    event_time: str | None = None
    before: int | None = None
    """Only rows with an event time before this, in microseconds since 1970. A row without one is never too old."""
    where: str | None = None
    """Only rows of which this SQL condition is true."""
    spared: tuple[Spared, ...] = ()
    numbers: tuple[int, ...] | None = None
    """Only rows with these sequence numbers."""
    after: int = 0
    """Only rows with a higher number than this."""
    without: tuple[int, ...] = ()
    """Not the rows with these sequence numbers."""

    @property
    def range(self) -> SequenceRange:
        return SequenceRange(self.after, self.through)

    @property
    def is_range(self) -> bool:
        """Whether it names every row of its range."""
        return self == Selection(self.through, after=self.after)

    def also(self, condition: str) -> Selection:
        """Of the rows that it names, those of which another condition is true as well."""
        whole = condition if self.where is None else f"({self.where}) AND ({condition})"
        return replace(self, where=whole)

    def to_json(self) -> str:
        spared = [[item.partition, [[one.after, one.through] for one in item.ranges]] for item in self.spared]
        whole = {"through": self.through, "event_time": self.event_time, "before": self.before, "where": self.where}
        further = {"after": self.after, "without": self.without}
        given = {name: value for name, value in further.items() if value}
        return json.dumps({**whole, **given, "numbers": self.numbers, "spared": spared}, sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Selection:
        content: dict[str, Any] = json.loads(text)
        spared = [
            Spared(partition, tuple(SequenceRange(*pair) for pair in ranges)) for partition, ranges in content["spared"]
        ]
        numbers = content.get("numbers")
        named = None if numbers is None else tuple(numbers)
        without = tuple(content.get("without", ()))
        return cls(**{**content, "numbers": named, "spared": tuple(spared), "without": without})


@dataclass(frozen=True, slots=True)
class Stretch:
    """Selected rows of one partition, between two cuts: how many, and the first and last of them."""

    range: SequenceRange
    """From before its first row to its last one."""
    tally: Tally
    filtered: tuple[tuple[str, Stretch | None], ...] = ()
    """For each filter of a sink, the rows for which it is true; None if there are none."""


@dataclass(frozen=True, slots=True)
class Need:
    """What one sink still needs of one partition."""

    sink: str
    after: int
    """Everything above this number."""
    under_way: SequenceRange | None = None
    """The range of its open intent."""


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of one partition that go, in one record: all of them on the same side of every sink's position."""

    partition: str
    range: SequenceRange
    tally: Tally
    filtered: tuple[tuple[str, Stretch | None], ...] = ()
    """For each filter of a sink, the rows for which it is true: what such a sink's destination counts."""


@dataclass(frozen=True, slots=True)
class Forfeit:
    """What one sink will never get of one partition."""

    sink: str
    partition: str
    range: SequenceRange
    tally: Tally


@dataclass(slots=True)
class Verdict:
    """What becomes of the selected rows."""

    parts: list[Part] = field(default_factory=list)
    forfeits: list[Forfeit] = field(default_factory=list)
    held_back: dict[str, Tally] = field(default_factory=dict)
    """Sink → the selected rows that stay because of it."""
    spared: list[Spared] = field(default_factory=list)

    @property
    def tally(self) -> Tally:
        return sum((part.tally for part in self.parts), Tally())


def cuts_of(needs: Iterable[Need], *, through: int) -> tuple[int, ...]:
    """Where selected rows are counted apart: at every position, and around every range that is being delivered."""
    found = {need.after for need in needs}
    found |= {end for need in needs if need.under_way for end in (need.under_way.after, need.under_way.through)}
    return tuple(sorted(cut for cut in found if 0 < cut < through))


def under_way(stretches: dict[str, list[Stretch]], needs: dict[str, list[Need]]) -> bool:
    """Whether some of the rows are being delivered to a sink."""
    return any(
        need.under_way is not None and item.range.intersect(need.under_way)
        for partition, items in stretches.items()
        for need in needs.get(partition, [])
        for item in items
    )


def kept_back(needs: dict[str, list[Need]]) -> tuple[Spared, ...]:
    """The rows that are being delivered, by partition."""
    found = []
    for partition, here in sorted(needs.items()):
        ranges = tuple(sorted({need.under_way for need in here if need.under_way is not None}))
        if ranges:
            found.append(Spared(partition, ranges))
    return tuple(found)


def judge(selected: dict[str, list[Stretch]], needs: dict[str, list[Need]], *, given_up: Iterable[str] = ()) -> Verdict:
    """U10, U11: of the selected rows of each partition, those that go, and the sinks that hold the others back."""
    verdict = Verdict()
    ruled_out = set(given_up)
    for partition, stretches in sorted(selected.items()):
        here = needs.get(partition, [])
        spared = _kept(here, ruled_out)
        for sink, ranges in spared.items():
            lost = [item.tally for item in stretches if any(item.range.intersect(one) for one in ranges)]
            if lost:
                verdict.held_back[sink] = verdict.held_back.get(sink, Tally()) + sum(lost, Tally())
        whole = [one for ranges in spared.values() for one in ranges]
        # A position that moved since the rows were counted lies inside a stretch: then all of the stretch stays.
        straddled = [need.after for need in here if need.sink in ruled_out]
        stays = [item for item in stretches if _stays(item.range, whole, straddled)]
        going = [item for item in stretches if item not in stays]
        if stays:
            verdict.spared.append(Spared(partition, tuple(sorted({*whole, *(item.range for item in stays)}))))
        verdict.parts += [Part(partition, item.range, item.tally, item.filtered) for item in going]
        for need in here:
            above = [item for item in going if item.range.through > need.after and need.sink in ruled_out]
            verdict.forfeits += [Forfeit(need.sink, partition, item.range, item.tally) for item in above]
    return verdict


def _stays(range: SequenceRange, kept: Sequence[SequenceRange], positions: Sequence[int]) -> bool:
    return any(range.intersect(one) for one in kept) or any(range.after < at < range.through for at in positions)


def _kept(needs: Sequence[Need], given_up: set[str]) -> dict[str, list[SequenceRange]]:
    """Sink → the ranges that stay for it."""
    kept: dict[str, list[SequenceRange]] = {}
    for need in needs:
        if need.sink not in given_up:
            kept[need.sink] = [SequenceRange(need.after, SEQUENCE_MAX)]
        elif need.under_way is not None:
            kept[need.sink] = [need.under_way]
    return kept
