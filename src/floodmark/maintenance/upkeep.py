"""The tasks that `run` does at intervals, one dataset at a time, so that a store can be left alone.

    expire   old snapshots, when there are more than the settings keep
    retain   rows that are older than `[run.retain]` says; never one that a sink still needs
    fold     old records of commits and deliveries in the control database
    orphans  files that no snapshot refers to

Each is bounded, safe beside flushes and exports, and done again by the next run after a crash. What it did, or why it
could not, is recorded (`control.reports`).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from floodmark.config import RunSettings
from floodmark.control import datasets, reports
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, InvalidSetting
from floodmark.lake.inventory import total_bytes
from floodmark.maintenance.audit import AuditReport
from floodmark.maintenance.compact import DatasetCompaction, orphan_age
from floodmark.maintenance.expiry import SnapshotRule, expire_snapshots
from floodmark.maintenance.fold import fold_dataset
from floodmark.maintenance.retain import retain

AUDIT = "audit"
COMPACT = "compact"
EXPIRE, RETAIN, FOLD, ORPHANS = "expire", "retain", "fold", "orphans"
APART = frozenset({EXPIRE, FOLD, ORPHANS})
"""What a compaction of `run` leaves to these tasks."""
AFTER_COMMITS = frozenset({EXPIRE, FOLD})
"""What grows with commits: without a new one there is nothing to do again."""
SURPLUS_MIN = 10
"""Snapshots are expired when there are this many more than are kept: each expiry costs a commit."""

_RULE = re.compile(r"(?P<age>[1-9][0-9]{0,8}\s*[smhdw])(?P<ingest>\s+ingest)?|(?P<rows>[1-9][0-9]{0,17})\s+rows")


@dataclass(frozen=True, slots=True)
class TaskReport:
    """What a task did."""

    task: str
    dataset: str
    message: str
    details: dict[str, Any] = field(default_factory=dict)
    idle: bool = False
    """Whether there was nothing to do."""
    problem: str | None = None
    """Why it could not do all, and what to do."""


@dataclass(frozen=True, slots=True)
class RetentionRule:
    """Which rows of a dataset `run` removes."""

    older_than: str | None = None
    by: str = "event_time"
    keep_rows: int | None = None


def intervals(settings: RunSettings, dataset: str) -> dict[str, float]:
    """How often each task of a dataset is due, in seconds; those that are switched off are left out."""
    found: dict[str, float] = {}
    if settings.expire:
        found[EXPIRE] = settings.expire_seconds
    if dataset in settings.retain:
        found[RETAIN] = settings.retain_seconds
    if settings.fold:
        found[FOLD] = settings.fold_seconds
    if settings.orphans:
        found[ORPHANS] = settings.orphans_seconds
    return found


def retention_rule(dataset: str, text: str) -> RetentionRule:
    """`30d`, `30d ingest` or `1000000 rows`; else `InvalidSetting`."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise InvalidSetting(
            f"run.retain.{dataset} is {text[:60]!r}, which is not a retention rule.",
            hint='Write "30d" (by event time), "30d ingest" (by time of commit) or "1000000 rows".',
        )
    if match["rows"]:
        return RetentionRule(keep_rows=int(match["rows"]))
    return RetentionRule(match["age"], "ingest_time" if match["ingest"] else "event_time")


def check_rules(settings: RunSettings) -> None:
    """`InvalidSetting` for a rule that cannot be used: before the first task, not after an hour."""
    for dataset, text in settings.retain.items():
        retention_rule(dataset, text)


def tend(engine: Engine, task: str, dataset: str) -> TaskReport:
    """Do one task of one dataset."""
    work: Mapping[str, Callable[[Engine, str], TaskReport]] = {
        EXPIRE: _expire,
        RETAIN: _retain,
        FOLD: _fold,
        ORPHANS: _orphans,
    }
    return work[task](engine, dataset)


def record(engine: Engine, report: TaskReport | DatasetCompaction | FloodmarkError, *, task: str, dataset: str) -> None:
    """Keep a result for those who look at the store."""
    if isinstance(report, DatasetCompaction):
        report = compaction_report(report)
    if isinstance(report, TaskReport):
        message, failed, details = report.problem or report.message, report.problem is not None, report.details
    else:
        message, failed, details = str(report), True, {}
    now = engine.clock.now()
    engine.database.transact(
        lambda c: reports.record(c, task, dataset, message=message, failed=failed, now=now, details=details)
    )


def compaction_report(done: DatasetCompaction) -> TaskReport:
    """A compaction as a task: files in, files out."""
    before = sum(bucket.files_before for bucket in done.compacted)
    after = sum(bucket.files_after or 0 for bucket in done.compacted)
    failed = [f"{bucket.range}: {bucket.reason}" for bucket in done.failed]
    return TaskReport(
        COMPACT,
        done.dataset,
        f"{before:,} files joined into {after:,}" if before else "no files to join",
        {"files_before": before, "files_after": after, "bytes_freed": done.bytes_freed},
        idle=done.idle,
        problem=" ".join([*done.problems, *failed][:3]) or None,
    )


def record_audit(engine: Engine, report: AuditReport) -> None:
    """Keep the result of an audit, where the store can be written."""
    if engine.database.read_only:
        return
    wrong, channels = [item for item in report.findings if item.wrong], len(report.channels)
    rows = sum(channel.settled for channel in report.channels)
    message = f"{rows:,} delivered rows in {channels:,} channels, each exactly once"
    if wrong:
        message = f"{len(wrong):,} findings. {wrong[0].what} {wrong[0].run}"
    elif not report.asked:
        message = "The records are consistent; the destination could not be checked"
    details = {"rows": rows, "deep": report.deep, "sound": report.sound}
    now = engine.clock.now()
    with contextlib.suppress(FloodmarkError):  # for those who look; the caller has the report
        engine.database.transact(
            lambda c: reports.record(
                c, AUDIT, report.sink, message=message, failed=not report.sound, now=now, details=details
            )
        )


# ── the tasks ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _expire(engine: Engine, dataset: str) -> TaskReport:
    settings = engine.settings.upkeep
    age = timedelta(seconds=settings.snapshots_age_seconds)
    rule = SnapshotRule(settings.snapshots_keep, age, settings.snapshots_max)
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    state = None if declared.fenced else engine.lake.load(declared.table_name)
    if state is None or len(state.lineage) < rule.kept(state, now=engine.clock.now()) + SURPLUS_MIN:
        return TaskReport(EXPIRE, dataset, "no snapshots to expire", idle=True)
    gone = expire_snapshots(engine, dataset, [declared.table_name], rule)
    return TaskReport(EXPIRE, dataset, f"{gone:,} snapshots expired", {"snapshots": gone}, idle=not gone)


def _retain(engine: Engine, dataset: str) -> TaskReport:
    text = engine.settings.run.retain[dataset]
    rule = retention_rule(dataset, text)
    done = retain(engine, dataset, older_than=rule.older_than, by=rule.by, keep_rows=rule.keep_rows)
    needed = ", ".join(f"{one.sink} still needs {one.rows:,} old rows" for one in done.held_back_by)
    message = f"{done.rows:,} rows removed ({text})" + (f"; {needed}" if needed else "")
    return TaskReport(
        RETAIN, dataset, message, {"rows": done.rows, "bytes_freed": done.bytes_freed}, idle=not done.rows
    )


def _fold(engine: Engine, dataset: str) -> TaskReport:
    records = fold_dataset(engine, dataset).records
    return TaskReport(FOLD, dataset, f"{records:,} records folded", {"records": records}, idle=not records)


def _orphans(engine: Engine, dataset: str) -> TaskReport:
    declared = engine.database.read(lambda c: datasets.get(c, dataset))
    before = engine.clock.now() - orphan_age(engine)
    found = [] if declared.fenced else engine.lake.orphans(declared.table_name, before=before, remove=True)
    details = {"files": len(found), "bytes": total_bytes(found)}
    return TaskReport(ORPHANS, dataset, f"{len(found):,} orphan files removed", details, idle=not found)
