"""What the pages say, put together from a reading: states, words, trends. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise

from floodmark.config import RunSettings
from floodmark.control.problems import gist_of
from floodmark.control.quarantine import Entry
from floodmark.control.reports import Report
from floodmark.dashboard import words
from floodmark.dashboard.watch import Reading, Sample
from floodmark.maintenance import upkeep
from floodmark.status import DatasetStatus, SinkStatus

SAMPLES_OF_A_REASON = 3
SPARK_SECONDS = 900.0
SPARK_SECONDS_MIN = 120.0
SPARK_WIDTH, SPARK_HEIGHT = 120.0, 28.0
WAITING_FACTOR = 5
"""Rows that wait this many times longer than they should are reported."""
AUDIT = upkeep.AUDIT
UPKEEP = {
    upkeep.COMPACT: "joins small files",
    upkeep.EXPIRE: "expires old snapshots",
    upkeep.RETAIN: "removes old rows",
    upkeep.FOLD: "folds old records",
    upkeep.ORPHANS: "removes files that no snapshot uses",
}


@dataclass(frozen=True, slots=True)
class Attention:
    """Something to look at."""

    level: str
    """`bad`: rows wait for it; `note`: nothing waits."""
    subject: str
    text: str
    command: str | None = None


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink at a glance."""

    sink: SinkStatus
    state: str
    behind_seconds: float
    trend: str
    """`growing`, `shrinking` or `steady`; empty before it is known."""
    spark: str
    """The points of a line: the rows behind in the last quarter of an hour."""
    waits_for: str
    retry_at: datetime | None
    """When a failed delivery is retried."""
    catch_up_seconds: float | None
    """When it has caught up, at the present pace."""


@dataclass(frozen=True, slots=True)
class Upkeep:
    """What a task did last and when it is next."""

    task: str
    words: str
    last: Report | None
    next_at: datetime | None
    on: bool


@dataclass(frozen=True, slots=True)
class Reason:
    """Quarantined rows that were refused alike."""

    dataset: str
    sink: str | None
    reason: str
    rows: int
    first_at: datetime
    last_at: datetime
    samples: tuple[Entry, ...]
    command: str


def attentions(reading: Reading, settings: RunSettings) -> list[Attention]:
    """What needs a person, the worst first."""
    found: list[Attention] = []
    for item in reading.status.datasets:
        found += _of_dataset(item, reading.at, settings)
    for sink in reading.status.sinks:
        if sink.state == "paused":
            found.append(Attention("note", f"sink {sink.name}", "is paused.", f"floodmark sink resume {sink.name}"))
        elif sink.reason is not None:
            word = "is blocked" if sink.state == "blocked" else "fails and is retried"
            found.append(Attention("bad", f"sink {sink.name}", f"{word}: {sink.reason}"))
        found += [Attention("note", f"sink {sink.name}", warning) for warning in sink.warnings]
    for task in reading.status.tasks:
        if task.failures:
            about = f" of {task.subject}" if task.subject else ""
            found.append(Attention("bad", f"{task.task}{about}", task.message))
    return sorted(found, key=lambda one: one.level)


def _of_dataset(item: DatasetStatus, now: datetime, settings: RunSettings) -> list[Attention]:
    subject, found = f"dataset {item.name}", []
    if item.paused_since is not None:
        found.append(Attention("note", subject, "is paused.", f"floodmark dataset resume {item.name}"))
    if item.problem is not None:
        found.append(Attention("bad", subject, f"The last flush could not commit all rows. {item.problem}"))
    patience = max(60.0, WAITING_FACTOR * settings.flush_seconds)
    waited = 0.0 if item.spool.since is None else (now - item.spool.since).total_seconds()
    if waited > patience and item.problem is None and item.paused_since is None:
        text = f"Rows have waited for {words.duration(waited)}. No process commits them."
        found.append(Attention("bad", subject, text, "floodmark run"))
    if item.quarantined:
        text = f"{words.rows(item.quarantined)} in quarantine."
        found.append(Attention("note", subject, text, f"floodmark quarantine list {item.name}"))
    if item.lost_rows:
        text = f"{words.rows(item.lost_rows)} were given up with damaged segments."
        found.append(Attention("note", subject, text, "floodmark fsck"))
    return found


def verdict(reading: Reading, found: Sequence[Attention]) -> str:
    """The state of the store in a sentence."""
    bad = sum(one.level == "bad" for one in found)
    if bad:
        return f"{bad} {'thing needs' if bad == 1 else 'things need'} your attention."
    if not reading.status.datasets:
        return "This store has no dataset yet."
    behind = [sink for sink in reading.status.sinks if sink.lag]
    if behind:
        slowest = max(behind, key=lambda sink: seconds_behind(sink, reading.at))
        seconds = words.duration(seconds_behind(slowest, reading.at))
        return f"All is well. Rows are being delivered; {slowest.name} is {seconds} behind."
    waiting = sum(item.spool.segment_rows + item.spool.landing_bytes for item in reading.status.datasets)
    if waiting:
        return "All is well. Rows wait for the next commit."
    return "All is well. Every row is committed and delivered." if reading.status.sinks else "All is well."


def seconds_behind(sink: SinkStatus, now: datetime) -> float:
    return 0.0 if sink.behind_since is None else max(0.0, (now - sink.behind_since).total_seconds())


def sink_view(sink: SinkStatus, now: datetime, samples: Sequence[Sample]) -> SinkView:
    recent = [one for one in samples if one.at >= now.timestamp() - SPARK_SECONDS and sink.name in one.lag_rows]
    lags = [(one.at, float(one.lag_rows[sink.name])) for one in recent]
    return SinkView(
        sink,
        words.state(sink),
        seconds_behind(sink, now),
        trend(lags),
        spark(lags, until=now.timestamp()),
        words.waits_for(sink, now),
        sink.next_attempt if sink.reason is not None else None,
        catch_up(lags) if sink.lag else None,
    )


def trend(points: Sequence[tuple[float, float]]) -> str:
    """Where the rows behind are going, by the last minute."""
    if len(points) < 2:
        return ""
    end, last = points[-1]
    first = next(value for at, value in points if at >= end - 60)
    if abs(last - first) <= max(1.0, 0.05 * max(first, last)):
        return "steady"
    return "growing" if last > first else "shrinking"


def catch_up(points: Sequence[tuple[float, float]]) -> float | None:
    """How long until nothing is behind, at the pace of the last minute; None if it does not get there."""
    if len(points) < 2:
        return None
    end, last = points[-1]
    begin, first = next((at, value) for at, value in points if at >= end - 60)
    if last >= first or end <= begin:
        return None
    return last * (end - begin) / (first - last)


def spark(points: Sequence[tuple[float, float]], *, until: float) -> str:
    """A small line chart: the `points` of a polyline, oldest left."""
    if len(points) < 2:
        return ""
    top = max(value for _, value in points)
    wide = max(SPARK_SECONDS_MIN, until - points[0][0])
    return " ".join(
        f"{SPARK_WIDTH * (1 - max(0.0, until - at) / wide):.1f},"
        f"{SPARK_HEIGHT - 2 - (SPARK_HEIGHT - 4) * (value / top if top else 0):.1f}"
        for at, value in points
    )


def rates(samples: Sequence[Sample], figure: Callable[[Sample], float | None]) -> list[float | None]:
    """Growth per second from each sample to the next; the first has none."""
    found: list[float | None] = [None] if samples else []
    for before, after in pairwise(samples):
        first, last = figure(before), figure(after)
        if first is None or last is None or after.at <= before.at:
            found.append(None)
        else:
            found.append(max(0.0, (last - first) / (after.at - before.at)))
    return found


def reasons(quarantined: Sequence[Entry], sinks: dict[str, str]) -> list[Reason]:
    """Entries that were refused alike, together; `sinks` has the names of instances."""
    groups: dict[tuple[str, str | None, str], list[Entry]] = {}
    for one in quarantined:
        groups.setdefault((one.dataset, one.sink, gist_of(one.reason)), []).append(one)
    found = []
    for (dataset, instance, _), entries in groups.items():
        sink = None if instance is None else sinks.get(instance, instance)
        command = (
            f"floodmark quarantine replay --all --dataset {dataset}"
            if sink is None
            else f"floodmark sink replay {sink}"
        )
        found.append(
            Reason(
                dataset,
                sink,
                entries[0].reason,
                sum(one.rows for one in entries),
                datetime.fromisoformat(entries[-1].created_at),
                datetime.fromisoformat(entries[0].created_at),
                tuple(entries[:SAMPLES_OF_A_REASON]),
                command,
            )
        )
    return sorted(found, key=lambda one: (one.dataset, one.sink or "", -one.rows))


def upkeep_of(tasks: Sequence[Report], subject: str, settings: RunSettings) -> list[Upkeep]:
    """The tasks that `run` does for a dataset."""
    known = {one.task: one for one in tasks if one.subject == subject}
    seconds = upkeep.intervals(settings, subject)
    if settings.compact:
        seconds[upkeep.COMPACT] = settings.compact_seconds
    found = []
    for task, what in UPKEEP.items():
        last, on = known.get(task), task in seconds
        next_at = last.ended_at + timedelta(seconds=seconds[task]) if last is not None and on else None
        found.append(Upkeep(task, what, last, next_at, on))
    return found
