"""What is due: the daemon's memory. No threads, no files and no clock; it is told what there is and what came of it.

Terms. *Work* is one flush of a dataset, or one export (a tick) of a sink. A *look* is what the store shows at one
moment. A sink *has its own schedule* if its settings say `every` or `cron`.

Rules
- Of a dataset and of a sink there is at most one piece of work at a time.
- Rows are flushed when they have waited long enough or are many enough. What is found waiting at the first look has
  waited long enough.
- A sink is due by its schedule. When that was last, the control database says: it outlives this process, so what is
  missed while none runs is caught up. A sink without a schedule of its own is due at the first look and at equal
  intervals, and as soon as a dataset has new rows. One with its own is not woken: who writes `every 1h` wants few,
  large chunks.
- What failed is tried again after the wait that its report asks for, or after the next step of the same ladder. Neither
  a slot nor new rows cut that wait short; new settings do, because somebody has done something about it.
- A dataset whose stored state contradicts itself is tried again at the last step of that ladder: somebody may have
  repaired it, and nothing tells this process. Nothing else waits for it (I10).
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
from floodmark.delivery.kinds import seconds
from floodmark.delivery.report import ExportReport
from floodmark.errors import Corrupt
from floodmark.schedule import Cron, Every, Schedule, due_slot

FAILURES_OF_DAMAGE = 10
"""Where on the ladder of waits a damaged dataset stands: at its end."""
FLUSHES_AT_ONCE = 4
"""More would only share the same cores; fewer would let one slow dataset hold the others up."""


@dataclass(frozen=True, slots=True)
class Moment:
    """One instant on both clocks: slots are on the wall clock, waits are on the one that never goes back."""

    wall: datetime
    seconds: float


@dataclass(frozen=True, slots=True)
class Flush:
    """Work: seal and commit what waits in a dataset."""

    dataset: str


@dataclass(frozen=True, slots=True)
class Export:
    """Work: one tick of a sink. If it gets through, `slot` is done; it is recorded where the schedule is its own."""

    instance: str
    sink: str
    slot: datetime
    recorded: bool


Work = Flush | Export


@dataclass(frozen=True, slots=True)
class DatasetView:
    """A dataset as one look shows it."""

    waiting_bytes: int = 0
    """In landing files and segments, those of an undecided block among them."""
    horizon: int = 0


@dataclass(frozen=True, slots=True)
class SinkView:
    """A sink as one look shows it."""

    sink: Sink
    created_at: datetime
    ticked_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Look:
    """What the store shows at one moment."""

    datasets: Mapping[str, DatasetView] = field(default_factory=dict)
    sinks: Sequence[SinkView] = ()


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a piece of work: a report, or the error that ended it."""

    work: Work
    report: FlushReport | ExportReport | None = None
    error: BaseException | None = None
    seconds: float = 0.0

    @property
    def failed(self) -> bool:
        return self.error is not None or (isinstance(self.report, ExportReport) and bool(self.report.errors))


@dataclass(frozen=True, slots=True)
class Change:
    """A dataset or sink that has come, gone, or got other settings since the look before."""

    subject: Literal["dataset", "sink"]
    name: str
    what: Literal["added", "removed", "changed"]
    instance: str | None = None


@dataclass(slots=True)
class _Lane:
    """What is remembered of every dataset and sink."""

    started: float | None = None
    """When the work that is under way began."""
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
class _Dataset(_Lane):
    view: DatasetView = field(default_factory=DatasetView)
    since: float | None = None
    """From when on something has been waiting."""


@dataclass(slots=True, kw_only=True)
class _Sink(_Lane):
    view: SinkView
    schedule: Schedule
    own: bool
    last: datetime | None
    """The last slot that is done; None: never, so it is due."""
    woken: bool = False


@dataclass(slots=True)
class Plan:
    """What is due in one store."""

    settings: RunSettings
    datasets: dict[str, _Dataset] = field(default_factory=dict)
    sinks: dict[str, _Sink] = field(default_factory=dict)
    """By instance: a sink that is removed and added again is another one."""
    _looked: bool = False

    # ── what there is ────────────────────────────────────────────────────────────────────────────────────────────

    def see(self, look: Look, now: Moment) -> list[Change]:
        """Take in a look; returns what has changed. The first look changes nothing: it is how things are."""
        risen = {name for name, view in look.datasets.items() if self._see_dataset(name, view, now)}
        changes = [Change("dataset", name, "added") for name in look.datasets if name not in self.datasets]
        for name in [name for name, item in self.datasets.items() if name not in look.datasets and not item.busy]:
            del self.datasets[name]
            changes.append(Change("dataset", name, "removed"))
        for change in changes:
            if change.what == "added":
                self._add_dataset(change.name, look.datasets[change.name], now)
        changes += self._see_sinks(look.sinks, risen)
        first, self._looked = not self._looked, True
        return [] if first else changes

    def _add_dataset(self, name: str, view: DatasetView, now: Moment) -> None:
        item = self.datasets[name] = _Dataset(view=view)
        if view.waiting_bytes:
            item.since = now.seconds if self._looked else float("-inf")

    def _see_dataset(self, name: str, view: DatasetView, now: Moment) -> bool:
        """Whether it has new rows."""
        item = self.datasets.get(name)
        if item is None:
            return self._looked and view.horizon > 0
        risen = view.horizon > item.view.horizon
        item.view = view
        if not view.waiting_bytes:
            item.since = None
        elif item.since is None:
            item.since = now.seconds
        return risen

    def _see_sinks(self, views: Sequence[SinkView], risen: set[str]) -> list[Change]:
        changes = []
        there = {view.sink.instance for view in views}
        for instance, item in [(key, value) for key, value in self.sinks.items() if key not in there]:
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
        """What should begin now. Nothing is remembered of the question: `began` is."""
        waiting = [(item.since or 0.0, name) for name, item in self.datasets.items() if self._flush_due(item, now)]
        room = FLUSHES_AT_ONCE - sum(item.busy for item in self.datasets.values())
        works: list[Work] = [Flush(name) for _, name in sorted(waiting)[: max(room, 0)]]
        for instance, item in self.sinks.items():
            slot = _slot(item, now)
            if slot is not None:
                works.append(Export(instance, item.view.sink.name, slot, item.own))
        return works

    def _flush_due(self, item: _Dataset, now: Moment) -> bool:
        if item.since is None or item.rests(now):
            return False
        old = now.seconds - item.since >= self.settings.flush_seconds
        return old or item.view.waiting_bytes >= self.settings.flush_bytes

    def began(self, work: Work, now: Moment) -> None:
        lane = self._lane(work)
        if lane is not None:
            lane.started = now.seconds
        if isinstance(lane, _Sink):
            lane.woken = False  # what comes from now on may be missed by this tick, and wakes it again

    def ended(self, outcome: Outcome, now: Moment) -> None:
        """Take in what came of a piece of work. Of a sink that has been removed meanwhile nothing is remembered."""
        lane = self._lane(outcome.work)
        if lane is None:
            return
        if isinstance(lane, _Dataset):
            if isinstance(outcome.error, Corrupt):
                lane.failures = max(lane.failures, FAILURES_OF_DAMAGE)
            if not outcome.failed:
                # What came while it ran has waited since it began, at most. If nothing waits, the next look says so.
                lane.since = lane.started
        lane.end(outcome, now)
        if isinstance(lane, _Sink) and isinstance(outcome.work, Export) and not outcome.failed:
            lane.last = outcome.work.slot

    def retry_seconds(self, work: Work, now: Moment) -> float | None:
        """How long until it is tried again; None if nothing of it failed, or it is not."""
        lane = self._lane(work)
        if lane is None or lane.retry_at is None:
            return None
        return max(0.0, lane.retry_at - now.seconds)

    def running_seconds(self, work: Work, now: Moment) -> float:
        lane = self._lane(work)
        return 0.0 if lane is None or lane.started is None else now.seconds - lane.started

    def _lane(self, work: Work) -> _Dataset | _Sink | None:
        return self.datasets.get(work.dataset) if isinstance(work, Flush) else self.sinks.get(work.instance)


def schedule_of(sink: Sink, settings: RunSettings) -> tuple[Schedule, bool]:
    """A sink's schedule, and whether it is its own."""
    if sink.settings.get("cron"):
        return Cron(sink.settings["cron"]), True
    if sink.settings.get("every"):
        return Every(seconds(sink.settings["every"])), True
    return Every(settings.export_seconds), False


def _recorded(view: SinkView, schedule: Schedule) -> datetime | None:
    """The last slot. Before there is one, a cron expression counts from when the sink was added; an interval is due."""
    return view.created_at if view.ticked_at is None and isinstance(schedule, Cron) else view.ticked_at


def _slot(item: _Sink, now: Moment) -> datetime | None:
    """The slot for which a sink is due now."""
    if item.rests(now):
        return None
    slot = now.wall if item.last is None else due_slot(item.schedule, last=item.last, now=now.wall)
    if slot is None and (item.woken or item.retry_at is not None):
        return now.wall
    return slot


def _takes(sink: Sink, dataset: str) -> bool:
    names = sink.settings.get("datasets")
    return names is None or dataset in names
