"""Work on many ranges, dealt to tasks: what a task does with one range, and how its answer travels back.

- A task takes neighbouring ranges, in order, and stops at the first that fails.
- An answer is a value, also when the work failed: an exception that left a task would stop the whole job, be tried
  again by the engine, and arrive as a stack trace. The error itself travels, and is raised where the answers are read.
- Nothing here knows an engine.
"""

from __future__ import annotations

import pickle
import traceback
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import orjson

from floodmark.errors import Corrupt, FloodmarkError, OutcomeUnknown
from floodmark.sequence import SequenceRange, Tally

if TYPE_CHECKING:
    import pyarrow as pa

    from floodmark.lake.table import Work


@dataclass(frozen=True, slots=True)
class RangeOutcome:
    """What became of one range: its tally and what the work said, or the error that the work ended with."""

    index: int
    tally: Tally = field(default_factory=Tally)
    answer: dict[str, Any] | None = None
    error: BaseException | None = None


def dealt(ranges: Sequence[SequenceRange], weights: Sequence[float], *, tasks: int) -> list[range]:
    """The ranges' places in at most so many tasks: neighbours together, about the same weight in each."""
    check_rising(ranges)
    groups: list[range] = []
    whole, sum_, start = sum(weights), 0.0, 0
    for index, weight in enumerate(weights):
        share = (len(groups) + 1) * whole / tasks
        # The range goes where the larger half of it belongs.
        if index > start and len(groups) < tasks - 1 and sum_ + weight / 2 > share:
            groups.append(range(start, index))
            start = index
        sum_ += weight
    return [*groups, range(start, len(ranges))] if ranges else []


def check_rising(ranges: Sequence[SequenceRange]) -> None:
    for left, right in pairwise(ranges):
        if right.after < left.through:
            raise ValueError(f"ranges must rise and not overlap: {left}, {right}")


def done(
    index: int, within: SequenceRange, identifiers: pa.ChunkedArray | None, rows: pa.Table | None, work: Work
) -> RangeOutcome:
    """Do the work on one range's rows."""
    from floodmark.rows.content import tally_of_ids

    if rows is None or identifiers is None or rows.num_rows == 0:
        return RangeOutcome(index, answer={})
    try:
        answer = work(within, rows)
        orjson.dumps(answer)
    except Exception as error:  # noqa: BLE001 - it is raised where the answers are read
        return RangeOutcome(index, error=error)
    return RangeOutcome(index, tally_of_ids(identifiers), answer)


def told(
    ranges: Sequence[SequenceRange], outcomes: Iterable[RangeOutcome]
) -> Iterator[tuple[SequenceRange, Tally, dict[str, Any]]]:
    """The results in order of the ranges; then the error of the lowest range that failed, if one did."""
    found: dict[int, RangeOutcome] = {}
    for outcome in outcomes:
        if outcome.index in found:
            raise Corrupt(f"Range {ranges[outcome.index]} was answered for twice.", hint="Report this.")
        found[outcome.index] = outcome
    for index, outcome in sorted(found.items()):
        if outcome.answer is not None:
            yield ranges[index], outcome.tally, outcome.answer
    for _, outcome in sorted(found.items()):
        if outcome.error is not None:
            raise outcome.error
    if len(found) != len(ranges):
        lost = next(ranges[index] for index in range(len(ranges)) if index not in found)
        raise OutcomeUnknown(f"No task answered for range {lost}.", hint="Do the same ranges again.")


# ── across processes ─────────────────────────────────────────────────────────────────────────────────────────────────


def sealed(error: BaseException) -> bytes:
    """An error as bytes, with where it came from if it is not one of ours."""
    if not isinstance(error, FloodmarkError):
        error.add_note("".join(traceback.format_exception(error)))
    try:
        raw = pickle.dumps(error)
        pickle.loads(raw)  # noqa: S301 - our own bytes: some errors can be written and not read
    except Exception:  # noqa: BLE001 - it need not be picklable to be told
        return pickle.dumps(OutcomeUnknown(f"A task failed: {type(error).__name__}: {error}."))
    return raw


def unsealed(raw: bytes) -> BaseException:
    try:
        error = pickle.loads(raw)  # noqa: S301 - written by our own task, on a worker that we trust with the rows
    except Exception as problem:  # noqa: BLE001 - a class that only the worker knows
        return OutcomeUnknown(f"A task failed, and its error cannot be read here: {problem}.")
    return error if isinstance(error, BaseException) else OutcomeUnknown(f"A task failed: {error!r}.")
