"""Threads: each sink has its own until it is removed, a few threads share the flushes, and one compacts.

So work that hangs, in a destination or in Spark, blocks nothing else. The threads are kept between two pieces of work,
because each has its own connection and thread in Spark as well.

Only the daemon's thread calls this module, except for the work itself: no lock is needed.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from queue import SimpleQueue

from floodmark.clock import Clock
from floodmark.daemon.plan import Compact, Export, Flush, Outcome, Tend, Work
from floodmark.delivery.channel import Stop

JOIN_SECONDS_MAX = 1.0

Perform = Callable[[Work, Stop], Outcome]


class Lane:
    """One thread, and its present work."""

    def __init__(self, name: str, perform: Perform, report: Callable[[Outcome], None], stop: Stop) -> None:
        self.work: Work | None = None
        self.stop = stop
        self._perform = perform
        self._report = report
        self._inbox: SimpleQueue[Work | None] = SimpleQueue()
        # A daemon thread: one that hangs must not keep the process from ending.
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def begin(self, work: Work) -> None:
        self.work = work
        self._inbox.put(work)

    def close(self) -> None:
        """End the thread after its present work."""
        self._inbox.put(None)

    def join(self) -> None:
        self._thread.join(JOIN_SECONDS_MAX)

    def _run(self) -> None:
        while (work := self._inbox.get()) is not None:
            self._report(self._perform(work, self.stop))


@dataclass(slots=True)
class Lanes:
    """All threads of one daemon."""

    perform: Perform
    report: Callable[[Outcome], None]
    """Called by the threads."""
    clock: Clock
    _flushing: list[Lane] = field(default_factory=list)
    _compacting: list[Lane] = field(default_factory=list)
    _exporting: dict[str, Lane] = field(default_factory=dict)
    """By the sink's instance."""
    _leaving: list[Lane] = field(default_factory=list)
    """Of sinks that were removed while an export was running."""

    def begin(self, work: Work) -> None:
        """Give work to a thread; its dataset or sink must be idle."""
        self._lane_for(work).begin(work)

    def end(self, work: Work) -> None:
        """The thread has reported; it is free again."""
        for lane in self._all():
            if lane.work is work:
                lane.work = None
        self._leaving = [lane for lane in self._leaving if lane.work is not None]

    def under_way(self) -> list[Work]:
        return [lane.work for lane in self._all() if lane.work is not None]

    def drop(self, instance: str) -> None:
        """The sink was removed: its tick ends after the present chunk, and then its thread."""
        lane = self._exporting.pop(instance, None)
        if lane is not None:
            lane.stop.set()
            lane.close()
            if lane.work is not None:
                self._leaving.append(lane)

    def stop(self) -> None:
        """Ticks end after the present chunk, flushes after the commit; waits end immediately."""
        for lane in self._all():
            lane.stop.set()

    def close(self) -> None:
        """End the threads. One that hangs ends with the process."""
        for lane in self._all():
            lane.close()
        for lane in self._all():
            if lane.work is None:
                lane.join()

    def _lane_for(self, work: Work) -> Lane:
        if isinstance(work, Export):
            if work.instance not in self._exporting:
                self._exporting[work.instance] = self._new(f"export-{work.sink}")
            return self._exporting[work.instance]
        shared, name = (self._compacting, "compact") if isinstance(work, Compact | Tend) else (self._flushing, "flush")
        idle = next((lane for lane in shared if lane.work is None), None)
        if idle is None:
            idle = self._new(f"{name}-{len(shared) + 1}")
            shared.append(idle)
        return idle

    def _new(self, name: str) -> Lane:
        return Lane(name, self.perform, self.report, Stop(self.clock))

    def _all(self) -> list[Lane]:
        return [*self._flushing, *self._compacting, *self._exporting.values(), *self._leaving]


def subject_of(work: Work) -> str:
    """The dataset or sink of work, for messages."""
    match work:
        case Flush():
            return f"dataset {work.dataset}"
        case Compact():
            return f"compaction of {work.dataset}"
        case Tend():
            return f"{work.task} of {work.dataset}"
        case Export():
            return f"sink {work.sink}"
