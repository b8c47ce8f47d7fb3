"""Fsck: is the store what its records say? Control database against lake against spool.

Every check only reads. A problem that needs no user's decision has its own repair, and that is
run only on request: with the same steps that a flush takes when it finds such a store, and, for segment
files without a record in a restored control database, by registering them again.

Invariants
- U30 A finding is what two looks agree on, and only such a one is repaired.
- U32 A repair loses nothing: it records what the lake and the spool show, and removes only files whose rows are
  committed. Each is one transaction, so a crash leaves it done or not begun, and the next run continues.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from floodmark import faults
from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.delivery.destination import Finding
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError
from floodmark.maintenance.findings import Offer, Problem, agreed
from floodmark.maintenance.fsck_records import check_lake, check_numbers, check_records
from floodmark.maintenance.fsck_spool import age_out, check_spool
from floodmark.maintenance.give_up import give_up, retry
from floodmark.maintenance.remove_dataset import unfinished_removals

PASSES_MAX = 4
"""How often a repair checks again: one repair may reveal another problem."""


@dataclass(frozen=True, slots=True)
class FsckReport:
    """What a check of the store found, and what was done about it."""

    deep: bool
    datasets: tuple[str, ...]
    findings: tuple[Finding, ...]
    """What is left, after repairs."""
    repaired: tuple[str, ...] = ()
    offers: tuple[Offer, ...] = ()
    """Segments that cannot be committed: what would be lost by giving them up (`give_up`)."""

    @property
    def sound(self) -> bool:
        return not any(item.wrong for item in self.findings)


@dataclass(frozen=True, slots=True)
class Fsck:
    """Checks one store."""

    engine: Engine
    progress: Callable[[str], None] | None = None

    def check(
        self, *, deep: bool = False, repair: bool = False, given_up: Sequence[int] = (), retried: Sequence[int] = ()
    ) -> FsckReport:
        """Look, and with `repair` repair; segments are given up or tried again only if they are named."""
        declared = self.engine.database.read(datasets.everyone)
        problems = self.seen_twice(deep=deep)
        repaired: list[str] = []
        if given_up or retried:
            offered = {item.offer.segment: item.offer.problem for item in problems if item.offer is not None}
            repaired += [retry(self.engine, id) for id in retried]
            repaired += [give_up(self.engine, id, problem=offered.get(id)) for id in given_up]
            problems = self.seen_twice(deep=deep)
        failed: dict[object, str] = {}
        for _ in range(PASSES_MAX if repair else 0):
            failed = {}  # what did not go before may go now
            done = [line for item in problems for line in self._mended(item, failed)]
            if not done:
                break
            repaired += done
            problems = self.seen_twice(deep=deep)
        if repair:
            repaired += [line for item in declared if (line := age_out(self.engine, item.name))]
        findings = [
            replace(item.finding, run=f"It could not be repaired: {failed[item.finding.key]}")
            if item.finding.key in failed
            else item.finding
            for item in problems
        ]
        offers = tuple(item.offer for item in problems if item.offer is not None)
        return FsckReport(deep, tuple(item.name for item in declared), tuple(findings), tuple(repaired), offers)

    def seen_twice(self, *, deep: bool) -> list[Problem]:
        """U30"""
        first = list(self.seen_once(deep=deep))
        if not first:
            return []
        second = list(self.seen_once(deep=deep))
        both = set(agreed([item.finding for item in first], [item.finding for item in second]))
        return [item for item in second if item.finding in both]

    def seen_once(self, *, deep: bool) -> Iterator[Problem]:
        for dataset in self.engine.database.read(datasets.everyone):
            yield from self._dataset(dataset, deep=deep)
        yield from check_numbers(self.engine)
        yield from unfinished_removals(self.engine)

    def _dataset(self, dataset: Dataset, *, deep: bool) -> Iterator[Problem]:
        if self.progress is not None:
            self.progress(dataset.name)
        yield from check_records(self.engine, dataset)
        yield from check_spool(self.engine, dataset)
        yield from check_lake(self.engine, dataset, deep=deep)

    def _mended(self, problem: Problem, failed: dict[object, str]) -> list[str]:
        if problem.repair is None:
            return []
        faults.reach("fsck.mending")
        try:
            done = problem.repair()
        except FloodmarkError as error:
            failed[problem.finding.key] = str(error)
            return []
        faults.reach("fsck.mended")
        return [done] if done else []
