"""Whether a target has the rows of a channel, each once: counted by their numbers, and if asked compared one by one.

One count over everything comes first. Only where it differs are the chunks halved until the ranges are found that
differ, so a sound table costs one look however many chunks it got.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from floodmark.delivery.destination import Account, Audited, Discrepancy, Settled
from floodmark.lake.targets import Census, Cut, Origin, Target, TargetState
from floodmark.sequence import SEQUENCE_MAX, SequenceRange

FINDINGS_MAX = 20
"""How many ranges are named; a table that lost more than these has lost more than can be mended one by one."""
_MEND = (
    "Was it changed by hand? What was deleted on purpose stays away. To get every row anew, deliver to another table."
)


@dataclass(frozen=True, slots=True)
class TableAudit:
    """One look at one channel's rows in one target."""

    target: Target
    state: TargetState
    origin: Origin
    account: Account

    def run(self, *, deep: bool) -> Audited:
        settled = self.account.settled
        rows = 0
        found: list[Discrepancy] = []
        if settled:
            whole = _hull(settled)
            counted = self._census(whole)
            rows = counted.rows
            found += list(self._counted(settled, counted))[:FINDINGS_MAX]
            if deep and not any(item.kind == "rows-missing" for item in found):
                found += self._altered(settled)
        beyond = max([self.account.watermark, *(item.through for item in self.account.pending)])
        more = self._census(SequenceRange(beyond, SEQUENCE_MAX))
        if more.rows:
            what = f"{more.rows} rows above {beyond}, and nothing above it has left this store."
            found.append(self._told("rows-extra", what, SequenceRange(beyond, SEQUENCE_MAX)))
        return Audited(rows + more.rows, tuple(found))

    def _counted(self, settled: Sequence[Settled], counted: Census) -> Iterator[Discrepancy]:
        wanted = sum(item.tally.rows for item in settled)
        if counted == Census(wanted, wanted):
            return
        if len(settled) > 1:
            middle = len(settled) // 2
            for half in (settled[:middle], settled[middle:]):
                yield from self._counted(half, self._census(_hull(half)))
            return
        span = settled[0].range
        if counted.numbers < wanted:
            kind = "rows-missing" if settled[0].recorded or counted.numbers else "never-sent"
            yield self._told(kind, f"{counted.numbers} of {wanted} rows of {span} are there.", span)
        if counted.rows > counted.numbers:
            what = f"{counted.rows - counted.numbers} rows of {span} are there more than once."
            yield self._told("rows-doubled", what, span)
        if counted.numbers > wanted:
            yield self._told("rows-extra", f"{counted.numbers} rows of {span} are there, and {wanted} left.", span)

    def _altered(self, settled: Sequence[Settled]) -> Iterator[Discrepancy]:
        for run in _alike(settled):
            source = run[0].source
            without = frozenset(source.given_up)
            hull = _hull(run)
            cut = Cut(source.table, source.snapshot, hull, source.columns, source.where, source.keep, without)
            numbers = self.target.unlike(self.state, cut, self.origin, count_max=FINDINGS_MAX)
            if numbers:
                shown = ", ".join(str(number) for number in numbers)
                more = " and more" if len(numbers) == FINDINGS_MAX else ""
                what = f"Rows {shown}{more} are there, and not as they were delivered."
                yield self._told("rows-altered", what, SequenceRange(numbers[0] - 1, numbers[-1]))

    def _census(self, within: SequenceRange) -> Census:
        return self.target.census(self.state, store=self.origin.store, partition=self.origin.partition, within=within)

    def _told(self, kind: str, what: str, span: SequenceRange) -> Discrepancy:
        return Discrepancy(kind, what, str(self.target.name), span, _MEND)


def _hull(settled: Sequence[Settled]) -> SequenceRange:
    return SequenceRange(settled[0].range.after, max(item.range.through for item in settled))


def _alike(settled: Sequence[Settled]) -> Iterator[list[Settled]]:
    """Neighbours that were sent with the same columns and filter."""
    run: list[Settled] = []
    for item in settled:
        if run and (item.source.columns, item.source.keep) != (run[0].source.columns, run[0].source.keep):
            yield run
            run = []
        run.append(item)
    if run:
        yield run
