"""Actors that take turns. Each is a thread, but only one runs at a time, from pause to pause.

A *pause* is an instant at which something else may happen: a fault point, the edge of a control transaction, a request
to a lake, a bucket or a hub. The scheduler lets an actor run for so many pauses, and then it stands still until its
next turn, or for ever if its process has died. Inside a control transaction nobody pauses (others would wait for its
lock, which a single runner cannot grant), but a process may die there.
"""

from __future__ import annotations

import contextlib
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

PAUSES_MAX = 20_000
"""An operation that takes more turns than this does not end."""
STUCK_SECONDS = 120.0


class Died(BaseException):
    """The process ends here. Not an Exception: nothing in the product may catch it and go on."""


class ServerDied(BaseException):
    """A process that worked for another one ends here: the other one sees a broken connection."""


class Stuck(AssertionError):
    """An actor waits for something that nobody will do."""


@dataclass(eq=False)
class Actor:
    """One operation of one process."""

    name: str
    process: Any
    work: Callable[[], Any]
    budget: int = 0
    pauses: int = 0
    at: str = "start"
    state: str = "paused"
    """`paused`, `done`, or `dead`: its process died, and it stands where it stood."""
    error: BaseException | None = None
    result: Any = None
    transactions: int = 0
    """How many control transactions it is inside of."""
    whole: int = 0
    """How many things it is inside of that happen at once, or not at all."""
    until: str = ""
    """The pause that is waited for; empty: any."""
    dies_inside: bool = False
    struck: type[BaseException] | None = None
    """What is raised in it when it is woken next."""
    servers: list[Any] = field(default_factory=list)
    """The processes that work for it just now: a hub's worker while it takes the request."""
    wake: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    thread: threading.Thread | None = None

    @property
    def on(self) -> Any:
        """The process whose code it runs just now."""
        return self.servers[-1] if self.servers else self.process


@dataclass
class Stage:
    """Where actors take turns."""

    actors: list[Actor] = field(default_factory=list)
    passed: Counter[str] = field(default_factory=Counter)
    """How often each pause was reached."""
    died: Counter[str] = field(default_factory=Counter)
    """At which pauses processes died."""
    meanwhile: Callable[[], None] = lambda: None
    """What happens elsewhere at every pause, whoever pauses: a request that was held up arrives."""
    _running: Actor | None = None
    _back: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    @property
    def running(self) -> Actor | None:
        """The actor whose thread this is, if it is one's."""
        actor = self._running
        return actor if actor is not None and actor.thread is threading.current_thread() else None

    def add(self, name: str, process: Any, work: Callable[[], Any]) -> Actor:
        actor = Actor(name, process, work)
        self.actors.append(actor)
        return actor

    def run(self, actor: Actor, pauses: int, *, until: str = "", dies: bool = False) -> None:
        """Let an actor run for so many pauses (of one name), or to its end. `dies`: inside a transaction too."""
        if actor.state != "paused":
            return
        actor.budget, actor.until, actor.dies_inside = pauses, until, dies
        self._running = actor
        if actor.thread is None:
            actor.thread = threading.Thread(target=self._main, args=(actor,), daemon=True)
            actor.thread.start()
        else:
            actor.wake.release()
        if not self._back.acquire(timeout=STUCK_SECONDS):
            raise Stuck(f"{actor.name} hangs at or behind {actor.at}")
        self._running = None

    def finish(self, actor: Actor) -> None:
        """Let an actor run to its end."""
        while actor.state == "paused":
            self.run(actor, PAUSES_MAX)

    def pause(self, label: str) -> None:
        """Reach an instant at which something else may happen."""
        actor = self.running
        if actor is None or actor.whole:
            return
        with self.at_once():
            self.meanwhile()
        self.passed[label] += 1
        actor.at = label
        actor.pauses += 1
        if not actor.until or actor.until == label:
            actor.budget -= 1
        if actor.pauses > PAUSES_MAX:
            raise Stuck(f"{actor.name} does not end: it is at {label}")
        if actor.budget > 0:
            return
        if actor.transactions:
            if actor.dies_inside:
                self.died[label] += 1
                actor.dies_inside = False
                raise (ServerDied if actor.servers else Died)(label)
            return
        self._stand(actor)

    def strike(self, actor: Actor, error: type[BaseException]) -> None:
        """Let an error come out of where an actor stands, when it runs next."""
        actor.struck = error

    def abandon(self, actor: Actor) -> None:
        """Its process died: it stands where it stands, and nothing of it happens any more."""
        if actor.state == "paused":
            self.died[actor.at] += 1
            actor.state = "dead"

    @contextlib.contextmanager
    def transaction(self) -> Iterator[None]:
        """Nobody pauses in here, but a process may die."""
        actor = self.running
        if actor is None:
            yield
            return
        actor.transactions += 1
        try:
            yield
        finally:
            actor.transactions -= 1

    @contextlib.contextmanager
    def at_once(self) -> Iterator[None]:
        """Nothing happens in here but this."""
        actor = self.running
        if actor is None:
            yield
            return
        actor.whole += 1
        try:
            yield
        finally:
            actor.whole -= 1

    def clear(self) -> None:
        """Unwind whatever still stands somewhere. What that does to files no longer matters."""
        for actor in self.actors:
            if actor.thread is not None and actor.state != "done":
                actor.state, actor.struck, actor.budget, actor.until = "paused", Died, PAUSES_MAX, ""
                actor.pauses = 0
                self._running = actor
                actor.wake.release()
                if not self._back.acquire(timeout=STUCK_SECONDS):
                    raise Stuck(f"{actor.name} cannot be unwound from {actor.at}")
        for actor in self.actors:
            if actor.thread is not None:
                actor.thread.join()
        self._running = None
        self.actors.clear()

    # ── inside ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _stand(self, actor: Actor) -> None:
        self._back.release()
        actor.wake.acquire()
        if actor.struck is not None:
            struck, actor.struck = actor.struck, None
            raise struck(actor.at)

    def _main(self, actor: Actor) -> None:
        try:
            actor.result = actor.work()
        except BaseException as error:
            actor.error = error
        actor.state = "done"
        self._back.release()
