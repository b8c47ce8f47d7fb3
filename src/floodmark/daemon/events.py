"""The daemon's log: one line for each event, and each change of state once.

A sink that cannot be reached for a day is one line when it fails and one when it recovers, for any number of attempts.
A flush or an export without work is not an event.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from floodmark.commit.flush import FlushReport
from floodmark.daemon.lanes import subject_of
from floodmark.daemon.plan import Change, Compact, Export, Flush, Outcome, Tend, Work
from floodmark.delivery.channel import ExportReport
from floodmark.errors import Corrupt, FloodmarkError
from floodmark.maintenance.compact import CompactReport, DatasetCompaction
from floodmark.maintenance.upkeep import TaskReport

_NUMBERS = re.compile(r"[0-9]+")


@dataclass(frozen=True, slots=True)
class Event:
    """One line. `details` is for programs."""

    name: str
    text: str
    details: dict[str, Any] = field(default_factory=dict)
    error: BaseException | None = None
    """For a traceback, if requested."""


@dataclass(slots=True)
class Voice:
    """Reports events, and remembers what it has reported."""

    tell: Callable[[Event], None]
    _problems: dict[str, str] = field(default_factory=dict)
    """The problem of each subject, without numbers: those differ between attempts, and do not make it a new problem."""
    _slow: set[str] = field(default_factory=set)
    """The subjects whose present work was reported as slow."""

    def started(self, *, store: str, pid: int, beside: bool) -> None:
        also = " beside another daemon" if beside else ""
        self.tell(Event("started", f"Running on {store}{also} (process {pid}).", {"store": store, "pid": pid}))

    def listening(self, address: str) -> None:
        text = f"Dashboard, metrics and health on {address}"
        self.tell(Event("listening", text, {"address": address}))

    def noticed(self, change: Change) -> None:
        details = {"subject": change.subject, "name": change.name, "change": change.what}
        self.tell(Event("noticed", f"{change.subject} {change.name} was {change.what}", details))
        if change.what == "removed":
            self._problems.pop(f"{change.subject} {change.name}", None)

    def ended(self, outcome: Outcome, *, retry_seconds: float | None) -> None:
        """Report the result of work, and whether its subject has recovered."""
        if isinstance(outcome.report, FlushReport):
            self._flushed(outcome.report, outcome.seconds)
            if outcome.report.problems:  # it succeeded, except for what it had to skip
                self._slow.discard(subject_of(outcome.work))
                self.problem(subject_of(outcome.work), " ".join(outcome.report.problems), retry_seconds=None)
                return
        elif isinstance(outcome.report, ExportReport):
            self._exported(outcome.report, outcome.seconds)
        elif isinstance(outcome.report, CompactReport):
            for item in outcome.report.datasets:
                self._compacted(item, outcome.seconds)
        elif isinstance(outcome.report, TaskReport):
            self._tended(outcome.report, outcome.seconds)
        subject = subject_of(outcome.work)
        self._slow.discard(subject)
        if outcome.failed:
            self.problem(subject, _problem(outcome), retry_seconds=retry_seconds, error=outcome.error)
        else:
            self.well(subject)

    def problem(
        self, subject: str, text: str, *, retry_seconds: float | None, error: BaseException | None = None
    ) -> None:
        gist = _NUMBERS.sub("", text)
        if self._problems.get(subject) == gist:
            return
        self._problems[subject] = gist
        again = "" if retry_seconds is None else f" Next try in {retry_seconds:.0f} s."
        self.tell(
            Event(
                "problem",
                f"{subject}: {text}{again}",
                {"subject": subject, "problem": text, "retry_seconds": retry_seconds},
                error,
            )
        )

    def well(self, subject: str) -> None:
        if self._problems.pop(subject, None) is not None:
            self.tell(Event("recovered", f"{subject}: recovered", {"subject": subject}))

    def slow(self, work: Work, seconds: float) -> None:
        subject = subject_of(work)
        if subject in self._slow:
            return
        self._slow.add(subject)
        doing = "an export" if isinstance(work, Export) else "it" if isinstance(work, Compact | Tend) else "a flush"
        text = f"{subject}: {doing} has been running for {seconds:.0f} s"
        self.tell(Event("slow", text, {"subject": subject, "seconds": round(seconds, 3)}))

    def stopping(self, under_way: Sequence[Work], *, reason: str, seconds_max: int) -> None:
        subjects = [subject_of(work) for work in under_way]
        rest = f"; waiting up to {seconds_max} s for {', '.join(subjects)}" if subjects else ""
        self.tell(Event("stopping", f"Stopping ({reason}){rest}.", {"reason": reason, "under_way": subjects}))

    def stopped(self, under_way: Sequence[Work], *, at_once: bool = False) -> None:
        subjects = [subject_of(work) for work in under_way]
        how = " by a second signal" if at_once else ""
        given_up = f" Not finished: {', '.join(subjects)}; the next start continues them." if subjects else ""
        self.tell(Event("stopped", f"Stopped{how}.{given_up}", {"given_up": subjects}))

    def _flushed(self, report: FlushReport, seconds: float) -> None:
        if not (report.rows or report.duplicates or report.quarantined):
            return
        parts = [f"{_count(report.rows, 'row')} committed"]
        parts += [f"in {report.block}"] if report.block is not None else []
        parts += [_count(report.duplicates, "duplicate")] if report.duplicates else []
        parts += [f"{report.quarantined:,} in quarantine"] if report.quarantined else []
        block = None if report.block is None else {"after": report.block.after, "through": report.block.through}
        details = {
            "dataset": report.dataset,
            "rows": report.rows,
            "duplicates": report.duplicates,
            "quarantined": report.quarantined,
            "block": block,
            "blocks": report.blocks,
            "seconds": round(seconds, 3),
        }
        self.tell(Event("flushed", f"dataset {report.dataset}: {', '.join(parts)} ({seconds:.1f} s)", details))

    def _tended(self, report: TaskReport, seconds: float) -> None:
        if report.idle:
            return
        details = {"task": report.task, "dataset": report.dataset, **report.details, "seconds": round(seconds, 3)}
        self.tell(Event("tended", f"{report.task} of {report.dataset}: {report.message} ({seconds:.1f} s)", details))

    def _compacted(self, report: DatasetCompaction, seconds: float) -> None:
        if report.idle:
            return
        before = sum(bucket.files_before for bucket in report.compacted)
        after = sum(bucket.files_after or 0 for bucket in report.compacted)
        parts = [f"{_count(before, 'file')} joined into {after:,}"] if before else []
        parts += [f"{_count(report.snapshots_expired, 'snapshot')} expired"] if report.snapshots_expired else []
        parts += [f"{_count(report.orphans, 'orphan file')} removed"] if report.orphans else []
        details = {
            "dataset": report.dataset,
            "files_before": before,
            "files_after": after,
            "snapshots_expired": report.snapshots_expired,
            "orphans": report.orphans,
            "bytes_freed": report.bytes_freed,
            "seconds": round(seconds, 3),
        }
        text = ", ".join(parts) or "tidied up"
        self.tell(Event("compacted", f"compaction of {report.dataset}: {text} ({seconds:.1f} s)", details))

    def _exported(self, report: ExportReport, seconds: float) -> None:
        if not (report.rows or report.quarantined):
            return
        refused = f", {report.quarantined:,} refused" if report.quarantined else ""
        details = {
            "sink": report.sink,
            "rows": report.rows,
            "chunks": report.chunks,
            "bytes": report.bytes,
            "quarantined": report.quarantined,
            "seconds": round(seconds, 3),
        }
        moved = f"{_count(report.rows, 'row')} in {_count(report.chunks, 'chunk')}"
        self.tell(Event("exported", f"sink {report.sink}: {moved}{refused} ({seconds:.1f} s)", details))


def _count(number: int, of: str) -> str:
    return f"{number:,} {of}" if number == 1 else f"{number:,} {of}s"


def _problem(outcome: Outcome) -> str:
    """The problem, in a sentence or two."""
    if outcome.error is not None:
        text = text_of(outcome.error)
        if isinstance(outcome.error, Corrupt) and isinstance(outcome.work, Flush):
            text += " All other work continues."
        return text
    report = outcome.report
    if isinstance(report, TaskReport):
        return report.problem or ""
    if isinstance(report, CompactReport):
        failed = [text for item in report.datasets for text in item.problems]
        failed += [f"{bucket.range}: {bucket.reason}" for item in report.datasets for bucket in item.failed]
        return " ".join(failed[:3])
    if not isinstance(report, ExportReport) or not isinstance(outcome.work, Export):
        raise TypeError("only an export fails without an error")
    first = report.blocked or next(iter(report.errors.values()))
    others = len(report.errors) - 1
    return ("blocked: " if report.blocked else "") + first + (f" ({others} more.)" if others else "")


def text_of(error: BaseException) -> str:
    """An error as a sentence, also an unexpected one."""
    if isinstance(error, FloodmarkError):
        return str(error)
    lines = str(error).strip().splitlines()
    detail = f": {lines[0][:300]}" if lines else ""
    return f"Unexpected failure ({type(error).__name__}{detail})."
