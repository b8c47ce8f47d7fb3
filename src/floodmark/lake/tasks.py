"""Work on many ranges, dealt to tasks: what a task does with one range, and how its answer travels back.

- A task takes neighbouring ranges, in order, and stops at the first that fails.
- An answer is a value, also when the work failed: an exception that left a task would stop the whole job, be tried
  again by the engine, and arrive as a stack trace. The error itself travels, and is raised where the answers are read.
- Nothing here knows an engine.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from floodmark import faults
from floodmark.errors import Corrupt, FloodmarkError, Retryable
from floodmark.lake.files import Odd
from floodmark.schema import CONTENT_ID, Schema
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake.table import Work


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What became of one range: its tally and what the work said, or the error that the work ended with.

    With neither, the range was not begun: its task had stopped, or (`odd`) could not read it.
    """

    index: int
    tally: Tally = field(default_factory=Tally)
    answer: dict[str, Any] | None = None
    error: BaseException | None = None
    odd: bool = False


@dataclass(frozen=True, slots=True)
class RangeWork:
    """What is to be done with each of some ranges."""

    ranges: tuple[SequenceRange, ...]
    columns: tuple[str, ...]
    schema: Schema
    work: Work

    def __post_init__(self) -> None:
        for left, right in pairwise(self.ranges):
            if right.after < left.through:
                raise ValueError(f"ranges must rise and not overlap: {left}, {right}")

    def each(self, places: Iterable[int], read: Callable[[SequenceRange], pa.Table]) -> list[RangeOutcome]:
        """Do the work on some of the ranges, one after the other, up to the first that fails.

        `read` gives the rows of a range: in order, with their content ids, with the stored columns.
        """
        outcomes, stopped = [], False
        for index in places:
            outcomes.append(RangeOutcome(index) if stopped else self._one(index, read))
            stopped = stopped or outcomes[-1].error is not None
        return outcomes

    def _one(self, index: int, read: Callable[[SequenceRange], pa.Table]) -> RangeOutcome:
        from floodmark.rows.content import tally_of_ids

        try:
            rows = read(self.ranges[index])
        except Odd:
            return RangeOutcome(index, odd=True)
        if rows.num_rows == 0:
            return RangeOutcome(index, answer={})
        try:
            answer = self.work(self.ranges[index], self.schema.typed(rows, self.columns))
            faults.reach("task.range_done")
            orjson.dumps(answer)
        except Exception as error:  # noqa: BLE001 - it is raised where the answers are read
            return RangeOutcome(index, error=error)
        return RangeOutcome(index, tally_of_ids(rows[CONTENT_ID]), answer)

    def dealt(self, weights: Sequence[float], *, tasks: int) -> list[range]:
        """The ranges' places in at most so many tasks: neighbours together, about the same weight in each."""
        groups: list[range] = []
        whole, sum_, start = sum(weights), 0.0, 0
        for index, weight in enumerate(weights):
            share = (len(groups) + 1) * whole / tasks
            # A range goes where the larger half of it belongs.
            if index > start and len(groups) < tasks - 1 and sum_ + weight / 2 > share:
                groups.append(range(start, index))
                start = index
            sum_ += weight
        return [*groups, range(start, len(weights))] if weights else []

    def results(self, outcomes: Iterable[RangeOutcome]) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
        """The results in order of the ranges; then the error of the lowest range that failed, if one did."""
        found: dict[int, RangeOutcome] = {}
        for outcome in outcomes:
            if outcome.index in found:
                raise Corrupt(f"Range {self.ranges[outcome.index]} has two results.", hint="Report this.")
            found[outcome.index] = outcome
        for index, outcome in sorted(found.items()):
            if outcome.answer is not None:
                yield self.ranges[index], outcome.tally, outcome.answer
        for _, outcome in sorted(found.items()):
            if outcome.error is not None:
                raise outcome.error
        lost = [range_ for index, range_ in enumerate(self.ranges) if index not in found or found[index].answer is None]
        if lost:
            raise Retryable(f"Range {lost[0]} has no result.", hint="Run it again.")


# ── across processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def packed(outcomes: Iterable[RangeOutcome]) -> bytes:
    return pickle.dumps([(item.index, item.tally, item.answer, _sealed(item.error), item.odd) for item in outcomes])


def unpacked(raw: bytes) -> list[RangeOutcome]:
    """What a task sent. It is trusted as the rows are: a machine that runs our tasks could write anything anyway."""
    return [
        RangeOutcome(index, tally, answer, _unsealed(error), odd)
        for index, tally, answer, error, odd in pickle.loads(raw)  # noqa: S301 - said above
    ]


def _sealed(error: BaseException | None) -> bytes | None:
    """An error as bytes, with where it came from if it is not one of ours."""
    if error is None:
        return None
    if not isinstance(error, FloodmarkError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        raw = pickle.dumps(error)
        pickle.loads(raw)  # noqa: S301 - our own bytes: some errors can be written and not read
    except Exception:  # noqa: BLE001 - it need not be picklable to be reported
        return pickle.dumps(Retryable(f"A task failed: {type(error).__name__}: {error}."))
    return raw


def _unsealed(raw: bytes | None) -> BaseException | None:
    if raw is None:
        return None
    try:
        error = pickle.loads(raw)  # noqa: S301 - see `unpacked`
    except Exception as problem:  # noqa: BLE001 - a class that only the worker knows
        return Retryable(f"A task failed, and its error cannot be read here: {problem}.")
    return error if isinstance(error, BaseException) else Retryable(f"A task failed: {error!r}.")
