"""When something is due. Pure, and all in UTC: there is no hour that a clock change skips or repeats.

Terms. A *slot* is an instant at which a schedule asks for a run. The *last* slot is the one whose run got through;
it is recorded, so that it outlives the process.

- Due is the newest slot after the last one. Whoever was away for ten slots runs once, not ten times: a run does
  everything that there is to do.
- What is recorded after a run is that slot and not the time of the day. So no slot is run twice, none that came
  while the run was under way is forgotten, and an interval keeps its beat however long its runs take.
- The wall clock may go back. A last slot that lies further ahead than the next one was recorded under a clock that
  was wrong; it counts as now. Else a sink that ran once in the year 2099 would never run again.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta


@dataclass(frozen=True, slots=True)
class Every:
    """Slots at equal distances, counted from the last one."""

    seconds: int

    def following(self, moment: datetime) -> datetime | None:
        return moment + timedelta(seconds=self.seconds)

    def newest(self, *, after: datetime, until: datetime) -> datetime | None:
        interval = timedelta(seconds=self.seconds)
        count = (until - after) // interval
        return after + count * interval if count > 0 else None


@dataclass(frozen=True, slots=True)
class Cron:
    """Slots at whole seconds that match a cron expression."""

    expression: str

    def following(self, moment: datetime) -> datetime | None:
        """The first slot after a moment; None if the expression matches no day of the next fifty years."""
        from cronsim import CronSim

        return next(CronSim(self.expression, moment), None)

    def newest(self, *, after: datetime, until: datetime) -> datetime | None:
        from cronsim import CronSim

        # It goes back from *before* where it starts, so it starts a second later: a slot at `until` counts.
        start = until.replace(microsecond=0) + timedelta(seconds=1)
        slot = next(CronSim(self.expression, start, reverse=True), None)
        return slot if slot is not None and slot > after else None


Schedule = Every | Cron


def due_slot(schedule: Schedule, *, last: datetime, now: datetime) -> datetime | None:
    """The newest slot after the last one that is not ahead of now; None if there is none yet."""
    return schedule.newest(after=_believed(schedule, last=last, now=now), until=now)


def next_slot(schedule: Schedule, *, last: datetime, now: datetime) -> datetime | None:
    """When the schedule is due if not now; in the past where it is due now."""
    return schedule.following(_believed(schedule, last=last, now=now))


def _believed(schedule: Schedule, *, last: datetime, now: datetime) -> datetime:
    if last <= now:
        return last
    ahead = schedule.following(now)
    return now if ahead is not None and last > ahead else last
