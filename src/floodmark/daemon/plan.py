"""What is due: the state of the daemon. No threads, files or clock; its inputs are views of the store and results.

Terms. *Work* is one flush or one compaction of a dataset, or one export (a tick) of a sink. A *view* is the state of
the store at one time. A sink *has its own schedule* if its settings have `every` or `cron`.

Rules
- A dataset and a sink have at most one piece of work at a time. Compaction counts apart: it never delays a flush.
- Rows are flushed when they have waited long enough or have enough bytes. Rows that wait at the first view have waited
  long enough. However short that is, a dataset has at most about one commit a second, unless there are many bytes.
- A dataset with new commits is compacted after some time, or after so many commits; one dataset at a time.
- The other tasks of maintenance are due at intervals, one at a time and never beside a compaction. The control database
  has the last result of each, so that a restart does not begin them again.
- A sink is due by its schedule. The control database has its last slot, so a slot that was missed while no daemon ran
  is caught up. A sink without its own schedule is due at the first view, at equal intervals, and as soon as a dataset
  has new rows. New rows do not wake a sink with its own schedule: `every 1h` asks for few, large chunks.
- Failed work is retried after the wait that its report asks for, or after the next step of the same back-off. Neither a
  slot nor new rows shorten that wait; new settings do, because they may correct the cause.
- A corrupt dataset is retried at the last step of that back-off: a user may have repaired it, and this process is not
  notified. Nothing else waits for it (I10).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from floodmark.commit.flush import FlushReport
from floodmark.config import RunSettings
from floodmark.control.sinks import Sink
from floodmark.delivery.backoff import wait_seconds
from floodmark.delivery.channel import ExportReport
from floodmark.delivery.kinds import seconds
from floodmark.errors import Corrupt, Paused
from floodmark.maintenance.compact import CompactReport
from floodmark.maintenance.upkeep import AFTER_COMMITS, TaskReport, intervals
from floodmark.schedule import Cron, Every, Schedule, due_slot

FAILURES_OF_DAMAGE = 10
"""The back-off step of a damaged dataset: the last one."""
COMMIT_SECONDS_MIN = 0.8
"""From the beginning of one flush to that of the next: what a table bears for long."""
TASK_FIRST_SECONDS = 60.0
"""A task that has no result on record is due so long after its dataset was first seen: rows come first."""
FLUSHES_AT_ONCE = 4
"""More would only share the same cores; with fewer, one slow dataset could block the others."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: slots are on the wall clock, waits are on the monotonic clock."""

    wall: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Flush:
    """Work: seal and commit what waits in a dataset."""

    dataset: str


@dataclass(frozen=True, slots=True)
class Compact:
    """Work: join the small files of a dataset, and expire its old snapshots."""

    dataset: str


@dataclass(frozen=True, slots=True)
class Export:
    """Work: one tick of a sink. If it succeeds, `slot` is done; it is recorded if the sink has its own schedule."""

    instance: str
    sink: str
    slot: datetime
    recorded: bool


@dataclass(frozen=True, slots=True)
class Tend:
    """Work: a task of maintenance of a dataset, which is done at intervals."""

    task: str
    dataset: str


Work = Flush | Compact | Tend | Export


@dataclass(frozen=True, slots=True)
class DatasetView:
    """A dataset in one view."""

    waiting_bytes: int = 0
    """In landing files and segments, including those of an undecided block."""
    horizon: int = 0
    paused: bool = False
    tended: Mapping[str, datetime] = field(default_factory=dict)
    """When each task had its last result."""


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink in one view."""

    sink: Sink
    created_at: datetime
    ticked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class StoreView:
    """The state of the store at one time."""

    datasets: Mapping[str, DatasetView] = field(default_factory=dict)
    sinks: Sequence[SinkView] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """The result of work: a report, or the error that ended it."""

    work: Work
    report: FlushReport | CompactReport | TaskReport | ExportReport | None = None
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        match self.report:
            case ExportReport():
                return bool(self.report.errors)
            case CompactReport():
                return not self.report.sound
            case TaskReport():
                return self.report.problem is not None
        return self.error is not None and not isinstance(self.error, Paused)


@dataclass(frozen=True, slots=True)
class Change:
    """A dataset or sink that was added, removed or changed since the previous view."""

    subject: Literal["dataset", "sink"]
    name: str
    what: Literal["added", "removed", "changed"]
    instance: str | None = None


@dataclass(slots=True)
class _Lane:
    """The state of a dataset or sink."""

    started: float | None = None
    """When the running work began."""
    failures: int = 0
    retry_at: float | None = None

    @property
    def busy(self) -> bool:
        return self.started is not None

    def rests(self, now: Moment) -> bool:
        return self.busy or (self.retry_at is not None and now.seconds < self.retry_at)

    def end(self, outcome: Outcome, now: Moment) -> None:
        self.started = None
        if not outcome.failed:
            self.failures, self.retry_at = 0, None
            return
        self.failures += 1
        asked = outcome.report.wait_seconds if isinstance(outcome.report, ExportReport) else None
        self.retry_at = now.seconds + (asked or wait_seconds(self.failures))


@dataclass(slots=True)
class _Compaction(_Lane):
    commits: int = 0
    """How many commits it has not seen: one for each view in which the horizon rose."""
    since: float = 0.0
    """When the first of them was noticed."""

    def count(self, now: Moment) -> None:
        if not self.commits:
            self.since = now.seconds
        self.commits += 1


@dataclass(slots=True)
class _Task(_Lane):
    seen: float = 0.0
    """When its dataset was first seen."""
    ended: float | None = None
    """When it ended last in this process."""
    horizon: int | None = None
    """The dataset's horizon when it began last."""

    def overdue_seconds(self, now: Moment, seconds_between: float, recorded: datetime | None) -> float:
        """For how long it has been due; below zero if it is not. `recorded` is its last result, of any process."""
        if self.retry_at is not None:
            return now.seconds - self.retry_at
        ages = [now.seconds - self.ended] if self.ended is not None else []
        ages += [(now.wall - recorded).total_seconds()] if recorded is not None else []
        return min(ages) - seconds_between if ages else now.seconds - self.seen - TASK_FIRST_SECONDS


@dataclass(slots=True)
class _Dataset(_Lane):
    view: DatasetView = field(default_factory=DatasetView)
    since: float | None = None
    """Since when rows have been waiting."""
    flushed_at: float = float("-inf")
    """When the last flush began."""
    compaction: _Compaction = field(default_factory=_Compaction)
    tasks: dict[str, _Task] = field(default_factory=dict)

    @property
    def tended(self) -> bool:
        """Whether a compaction or a task is in progress."""
        return self.compaction.busy or any(task.busy for task in self.tasks.values())


@dataclass(slots=True, kw_only=True)
class _Sink(_Lane):
    view: SinkView
    schedule: Schedule
    own: bool
    last: datetime | None
    """The last finished slot; None: never, so it is due."""
    woken: bool = False


@dataclass(slots=True)
class Plan:
    """What is due in one store."""

    settings: RunSettings
    datasets: dict[str, _Dataset] = field(default_factory=dict)
    sinks: dict[str, _Sink] = field(default_factory=dict)
    """By instance: a sink that is removed and added again is a new one."""
    _viewed: bool = False

    # ── the state of the store ───────────────────────────────────────────────────────────────────────────────────

    def see(self, store: StoreView, now: Moment) -> list[Change]:
        """Process a view; returns the changes. The first view has none: it is the initial state."""
        risen = {name for name, view in store.datasets.items() if self._see_dataset(name, view, now)}
        changes = [Change("dataset", name, "added") for name in store.datasets if name not in self.datasets]
        gone = [name for name in self.datasets if name not in store.datasets]
        for name in [name for name in gone if not (self.datasets[name].busy or self.datasets[name].tended)]:
            del self.datasets[name]
            changes.append(Change("dataset", name, "removed"))
        for change in changes:
            if change.what == "added":
                self._add_dataset(change.name, store.datasets[change.name], now)
        changes += self._see_sinks(store.sinks, risen)
        first, self._viewed = not self._viewed, True
        return [] if first else changes

    def _add_dataset(self, name: str, view: DatasetView, now: Moment) -> None:
        tasks = {task: _Task(seen=now.seconds) for task in intervals(self.settings, name)}
        item = self.datasets[name] = _Dataset(view=view, tasks=tasks)
        if view.waiting_bytes:
            item.since = now.seconds if self._viewed else float("-inf")

    def _see_dataset(self, name: str, view: DatasetView, now: Moment) -> bool:
        """Whether it has new rows."""
        item = self.datasets.get(name)
        if item is None:
            return self._viewed and view.horizon > 0
        risen = view.horizon > item.view.horizon
        if risen:
            item.compaction.count(now)
        item.view = view
        if not view.waiting_bytes:
            item.since = None
        elif item.since is None:
            item.since = now.seconds
        return risen

    def _see_sinks(self, views: Sequence[SinkView], risen: set[str]) -> list[Change]:
        changes = []
        present = {view.sink.instance for view in views}
        for instance, item in [(key, value) for key, value in self.sinks.items() if key not in present]:
            del self.sinks[instance]
            changes.append(Change("sink", item.view.sink.name, "removed", instance))
        for view in views:
            sink = view.sink
            known = self.sinks.get(sink.instance)
            if known is None:
                self.sinks[sink.instance] = self._new_sink(view)
                changes.append(Change("sink", sink.name, "added", sink.instance))
                continue
            if known.view.sink.settings != sink.settings:
                fresh = self._new_sink(view)
                known.schedule, known.own, known.last = fresh.schedule, fresh.own, fresh.last
                known.failures, known.retry_at = 0, None
                changes.append(Change("sink", sink.name, "changed", sink.instance))
            known.view = view
            if known.own:
                known.last = _recorded(view, known.schedule)
            elif any(_takes(sink, name) for name in risen):
                known.woken = True
        return changes

    def _new_sink(self, view: SinkView) -> _Sink:
        schedule, own = schedule_of(view.sink, self.settings)
        return _Sink(view=view, schedule=schedule, own=own, last=_recorded(view, schedule) if own else None)

    # ── what is due ──────────────────────────────────────────────────────────────────────────────────────────────

    def due(self, now: Moment) -> list[Work]:
        """What should begin now. This changes no state: `began` does."""
        waiting = [(item.since or 0.0, name) for name, item in self.datasets.items() if self._flush_due(item, now)]
        room = FLUSHES_AT_ONCE - sum(item.busy for item in self.datasets.values())
        works: list[Work] = [Flush(name) for _, name in sorted(waiting)[: max(room, 0)]]
        works += self._compaction_due(now) or self._task_due(now)
        for instance, item in self.sinks.items():
            slot = _slot(item, now)
            if slot is not None:
                works.append(Export(instance, item.view.sink.name, slot, item.own))
        return works

    def _flush_due(self, item: _Dataset, now: Moment) -> bool:
        if item.since is None or item.view.paused or item.rests(now):
            return False
        if item.view.waiting_bytes >= self.settings.flush_bytes:
            return True
        old = now.seconds - item.since >= self.settings.flush_seconds
        return old and now.seconds - item.flushed_at >= COMMIT_SECONDS_MIN

    def _compaction_due(self, now: Moment) -> list[Work]:
        """The dataset with the most commits: compactions share the same cores, so there is one at a time."""
        if not self.settings.compact or any(item.tended for item in self.datasets.values()):
            return []
        waiting = []
        for name, item in self.datasets.items():
            own = item.compaction
            often = own.commits >= self.settings.compact_commits
            if (
                own.commits
                and not item.view.paused
                and not own.rests(now)
                and (often or now.seconds - own.since >= self.settings.compact_seconds)
            ):
                waiting.append((-own.commits, name))
        return [Compact(name) for _, name in sorted(waiting)[:1]]

    def _task_due(self, now: Moment) -> list[Work]:
        """The task that has been due for longest, of a dataset with rows that is not being flushed."""
        if any(item.tended for item in self.datasets.values()):
            return []
        waiting = []
        for name, item in self.datasets.items():
            if item.busy or item.view.paused or not item.view.horizon:
                continue
            for task, seconds_between in intervals(self.settings, name).items():
                own = item.tasks[task]
                if task in AFTER_COMMITS and own.horizon == item.view.horizon and not own.failures:
                    continue
                over = own.overdue_seconds(now, seconds_between, item.view.tended.get(task))
                if over >= 0 and not own.rests(now):
                    waiting.append((-over, name, task))
        return [Tend(task, name) for _, name, task in sorted(waiting)[:1]]

    def began(self, work: Work, now: Moment) -> None:
        lane = self._lane(work)
        if lane is not None:
            lane.started = now.seconds
        if isinstance(lane, _Dataset):
            lane.flushed_at = now.seconds
        if isinstance(lane, _Task) and isinstance(work, Tend):
            lane.horizon = self.datasets[work.dataset].view.horizon
        if isinstance(lane, _Compaction):
            lane.commits = 0  # those that land from now on are for the next one
        if isinstance(lane, _Sink):
            lane.woken = False  # this tick may miss rows from now on: they wake the sink again

    def ended(self, outcome: Outcome, now: Moment) -> None:
        """Process the result of work. The result of a removed sink is ignored."""
        lane = self._lane(outcome.work)
        if lane is None:
            return
        if isinstance(lane, _Dataset):
            if isinstance(outcome.error, Corrupt):
                lane.failures = max(lane.failures, FAILURES_OF_DAMAGE)
            if not outcome.failed:
                # Rows that arrived while it ran have waited since its start at most. The next view shows if none wait.
                lane.since = lane.started
        if isinstance(lane, _Compaction) and outcome.failed:
            lane.commits, lane.since = max(lane.commits, 1), float("-inf")  # due as soon as it may be tried again
        if isinstance(lane, _Task):
            lane.ended = now.seconds
        lane.end(outcome, now)
        if isinstance(lane, _Sink) and isinstance(outcome.work, Export) and not outcome.failed:
            lane.last = outcome.work.slot

    def retry_seconds(self, work: Work, now: Moment) -> float | None:
        """How long until the next attempt; None if it did not fail."""
        lane = self._lane(work)
        if lane is None or lane.retry_at is None:
            return None
        return max(0.0, lane.retry_at - now.seconds)

    def running_seconds(self, work: Work, now: Moment) -> float:
        lane = self._lane(work)
        return 0.0 if lane is None or lane.started is None else now.seconds - lane.started

    def _lane(self, work: Work) -> _Dataset | _Compaction | _Task | _Sink | None:
        match work:
            case Export():
                return self.sinks.get(work.instance)
            case Flush():
                return self.datasets.get(work.dataset)
            case Compact():
                found = self.datasets.get(work.dataset)
                return None if found is None else found.compaction
            case Tend():
                found = self.datasets.get(work.dataset)
                return None if found is None else found.tasks.get(work.task)


def schedule_of(sink: Sink, settings: RunSettings) -> tuple[Schedule, bool]:
    """A sink's schedule, and whether it is its own."""
    if sink.settings.get("cron"):
        return Cron(sink.settings["cron"]), True
    if sink.settings.get("every"):
        return Every(seconds(sink.settings["every"])), True
    return Every(settings.export_seconds), False


def _recorded(view: SinkView, schedule: Schedule) -> datetime | None:
    """The last slot. Before the first, a cron schedule counts from the time the sink was added; an interval is due."""
    return view.created_at if view.ticked_at is None and isinstance(schedule, Cron) else view.ticked_at


def _slot(item: _Sink, now: Moment) -> datetime | None:
    """The slot for which a sink is due now."""
    if item.view.sink.paused_at is not None or item.rests(now):
        return None
    slot = now.wall if item.last is None else due_slot(item.schedule, last=item.last, now=now.wall)
    if slot is None and (item.woken or item.retry_at is not None):
        return now.wall
    return slot


def _takes(sink: Sink, dataset: str) -> bool:
    names = sink.settings.get("datasets")
    return names is None or dataset in names
