"""The verdict: what the oracle found at every destination, and what the run has really exercised."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.testing.oracle import Finding, Oracle
from floodmark.torture.journal import Entries
from floodmark.torture.members import Kill

Rows = Sequence[dict[str, Any]]


@dataclass(frozen=True, slots=True)
class Compared:
    """One destination."""

    name: str
    rows: int
    findings: tuple[Finding, ...]
    how: str
    """What was checked."""


@dataclass(frozen=True, slots=True)
class Exercised:
    """What the run went through."""

    kills: tuple[Kill, ...]
    starts: int
    rows_attempted: int
    rows_acknowledged: int
    rows_captured_again: int
    duplicates_dropped: int
    commits: int
    ticks: int
    rows_in_trouble: int
    """Rows that were reported as delivered while processes were killed; the others were delivered later."""
    chunks: int
    setting_changes: int
    problems: int
    """Problems that the daemon reported."""

    @property
    def killed(self) -> dict[str, int]:
        return dict(sorted(Counter(kill.kind for kill in self.kills).items()))

    @property
    def places(self) -> dict[str, int]:
        """Where they died."""
        return dict(sorted(Counter(f"{kill.kind}, {kill.how}: {kill.where}" for kill in self.kills).items()))


@dataclass(frozen=True, slots=True)
class Verdict:
    """All that is to be said."""

    seed: int
    seconds: float
    drained: bool
    stuck: str
    """Where it did not drain: what the daemon complained of."""
    destinations: tuple[Compared, ...]
    exercised: Exercised
    astray: tuple[str, ...] = ()
    """Unexpected exits of processes."""
    left_out: tuple[str, ...] = ()
    kept: tuple[str, ...] = ()
    """What could not be removed."""
    unexercised: tuple[str, ...] = field(default=())
    """What should have happened and did not."""

    @property
    def findings(self) -> list[Finding]:
        return [finding for compared in self.destinations for finding in compared.findings]

    @property
    def sound(self) -> bool:
        return self.drained and not self.findings

    @property
    def proven(self) -> bool:
        """Sound, and not because nothing happened."""
        return self.sound and not self.unexercised


def oracle_of(journals: Iterable[Entries]) -> Oracle:
    """The oracle that knows what these journals say."""
    oracle = Oracle()
    for entries in journals:
        for number, rows in entries.attempts.items():
            oracle.attempted |= {str(row["id"]): row for row in rows}
            if number in entries.acknowledged:
                oracle.acknowledge(rows)
    return oracle


def compared(oracle: Oracle, name: str, found: Rows, lake: Rows, *, how: str) -> Compared:
    """The problems of one destination: its own rows, compared with the lake, and their order."""
    findings = oracle.compare(name, found)
    if found is not lake:
        there = {str(row.get("id")) for row in found}
        # A row without an acknowledgement may be in the lake; then it must be at every destination.
        findings += [
            Finding("missing", name, str(row["id"]), "the lake has it")
            for row in lake
            if str(row["id"]) not in there and str(row["id"]) not in oracle.acknowledged
        ]
        findings += oracle.compare_order(name, found, lake)
    return Compared(name, len(found), tuple(findings), how)


def compared_by_ledger(
    name: str, channels: dict[str, tuple[int, int]], lake: Rows, *, seq: str, partition: str
) -> Compared:
    """A hub that shows its ledger and not its rows: each partition's end and count against the lake's."""
    findings = []
    wanted: dict[str, tuple[int, int]] = {}
    for row in lake:
        key = f"{partition}={row[partition]}"
        last, rows = wanted.get(key, (0, 0))
        wanted[key] = (max(last, int(row[seq])), rows + 1)
    for key in sorted(wanted.keys() | channels.keys()):
        last, rows = wanted.get(key, (0, 0))
        through, vouched = channels.get(key, (0, 0))
        if vouched != rows or through < last:
            kind = "missing" if vouched < rows or through < last else "doubled"
            detail = f"the hub's ledger has {vouched} rows up to {through}; the lake has {rows} up to {last}"
            findings.append(Finding(kind, name, key, detail))
    rows_vouched = sum(rows for _, rows in channels.values())
    return Compared(name, rows_vouched, tuple(findings), "its ledger, by ranges and counts")


def unexercised(done: Exercised, *, kinds: Iterable[str], destinations: Iterable[Compared]) -> tuple[str, ...]:
    """Why a run proves nothing, if it does not."""
    lacking = [f"no {kind} was killed" for kind in kinds if not done.killed.get(kind)]
    lacking += [] if done.rows_acknowledged else ["no row was acknowledged"]
    lacking += [] if done.rows_in_trouble else ["nothing was delivered while processes were killed"]
    lacking += [f"nothing arrived at {item.name}" for item in destinations if not item.rows]
    return tuple(lacking)
