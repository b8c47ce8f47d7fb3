"""The oracle: what must be true in the end, kept by somebody who knows nothing of how the product works.

It makes the rows itself, each with an id of its own and a proof of its content, and writes down what a producer was
told: an *attempt* may have been stored, an *obligation* was acknowledged and must arrive. In the end it is shown what
every destination holds, and says what is wrong. It imports nothing of the product.

| finding       | meaning                                                                             |
|---------------|-------------------------------------------------------------------------------------|
| missing       | acknowledged, and not there                                                         |
| doubled       | there more than once                                                                |
| altered       | there, with another content or in another partition than it was captured with       |
| invented      | there, and nobody ever captured it                                                  |
| out of order  | there in another order than in the lake, within its partition                       |
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Row = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong with one row at one destination."""

    kind: str
    destination: str
    row: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.destination}: row {self.row} is {self.kind}{f' ({self.detail})' if self.detail else ''}"


@dataclass(slots=True)
class Oracle:
    """Makes rows, remembers what became of their captures, and compares."""

    attempted: dict[str, Row] = field(default_factory=dict)
    acknowledged: dict[str, None] = field(default_factory=dict)
    """The ids of rows that must arrive, in the order of their acknowledgement."""

    # ── rows in ──────────────────────────────────────────────────────────────────────────────────────────────────

    def rows(self, count: int, *, partitions: Sequence[str]) -> list[dict[str, Any]]:
        """Fresh rows, dealt to the partitions. Whoever captures them says so before and after."""
        made = []
        for _ in range(count):
            number = len(self.attempted)
            id, site, text = f"row-{number:06d}", partitions[number % len(partitions)], f"text of {number}"
            row = {"id": id, "site": site, "text": text, "proof": proof(id, site, text)}
            self.attempted[id] = row
            made.append(row)
        return made

    def acknowledge(self, rows: Iterable[Row]) -> None:
        """The product said that these are safe."""
        for row in rows:
            self.acknowledged[str(row["id"])] = None

    def unanswered(self) -> list[Row]:
        """Rows of which nobody was told whether they are stored: a producer may try them again."""
        return [row for id, row in self.attempted.items() if id not in self.acknowledged]

    # ── rows out ─────────────────────────────────────────────────────────────────────────────────────────────────

    def compare(self, destination: str, found: Sequence[Row], *, excused: Collection[str] = ()) -> list[Finding]:
        """What is wrong with what a destination holds. `excused` are rows that were removed on purpose."""
        ids = Counter(str(row.get("id")) for row in found)
        wrong = [Finding("missing", destination, id) for id in self.acknowledged if id not in ids and id not in excused]
        wrong += [Finding("doubled", destination, id, f"{count} times") for id, count in ids.items() if count > 1]
        for row in found:
            id = str(row.get("id"))
            captured = self.attempted.get(id)
            if captured is None:
                wrong.append(Finding("invented", destination, id))
            elif any(row.get(name) != value for name, value in captured.items()) or not proven(row):
                wrong.append(Finding("altered", destination, id, f"{dict(row)}"))
        return wrong

    @staticmethod
    def compare_order(destination: str, found: Sequence[Row], lake: Sequence[Row]) -> list[Finding]:
        """Whether each partition is in the lake's order. Rows that the lake no longer has are passed over."""
        place = {str(row["id"]): index for index, row in enumerate(lake)}
        last: dict[str, int] = {}
        wrong = []
        for row in found:
            id, site = str(row.get("id")), str(row.get("site"))
            if id not in place:
                continue
            if place[id] < last.get(site, -1):
                wrong.append(Finding("out of order", destination, id, f"in partition {site}"))
            last[site] = max(place[id], last.get(site, -1))
        return wrong


def proof(id: str, site: str, text: str) -> str:
    """What a row says of its own content."""
    return hashlib.blake2b(f"{id}|{site}|{text}".encode(), digest_size=8).hexdigest()


def proven(row: Row) -> bool:
    """Whether a row is what it was made as, told by itself: also by an oracle that did not make it."""
    return bool(row.get("proof") == proof(str(row.get("id")), str(row.get("site")), str(row.get("text"))))
