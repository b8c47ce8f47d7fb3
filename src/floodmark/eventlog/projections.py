"""Projections: functions or classes that turn events into state, and the runner that feeds them.

Terms
    live         follows local-ingestion order. It never misses an event and never goes back; an event that a
                 merge brought comes when it arrives, whatever its place in the canonical order.
    rebuild      follows canonical order. When the part it has already read is no longer the beginning of that
                 order, as after most merges, it starts again from nothing.
    poison       an event that the projection refuses, by raising.
    target       where effects and checkpoints go. A SQL target commits both in one transaction.

Invariants
    E12  On a SQL target an event's effect and the checkpoint that covers it are committed together: each
         event takes effect exactly once, whatever crashes and wherever.
    E13  Two runners of one name never both advance: on a replica by the leadership lock, on a shared database by
         comparing the stored checkpoint with the one that was read.

Transitions, per batch
    lead → refresh → load the checkpoint → begin → apply each → save the checkpoint → commit
"""

from __future__ import annotations

import contextlib
import hashlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import islice
from typing import Any, Literal, Protocol

import msgspec

from floodmark import faults
from floodmark.errors import FloodmarkError, InvalidSetting, LogReadOnly, ProjectionStopped, Retryable, reason_of
from floodmark.eventlog.checkpoints import Applied, decode_checkpoint, encode_checkpoint, leadership
from floodmark.eventlog.history import History
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.log import EventLog
from floodmark.eventlog.reading import Filter
from floodmark.eventlog.transactions import RecordedEvent

# ── Traversals of a log: as events arrive, or in canonical order ─────────────────────────────────────────────────────
# A traversal knows what comes next and how to write down how far it has come; it applies nothing.


# A transaction, and the place of an event in it.
Place = tuple[str, int]


class Traversal(Protocol):
    """The interface of a traversal."""

    def pending(self) -> Iterator[Place | None]:
        """The next events; None for one to skip. Each is followed by `take`."""
        ...

    def take(self) -> None:
        """The last pending event is done."""
        ...

    def record(self) -> str:
        """The checkpoint of the traversal, to be stored."""
        ...

    def left(self) -> int:
        """The number of remaining events."""
        ...


class ArrivalTraversal:
    """Local-ingestion order, by number while the number can be trusted (E11)."""

    def __init__(self, text: str | None, *, name: str, history: History, ingestion: IngestionLog) -> None:
        saved = None if text is None else decode_checkpoint(text, name=name, ingestion=ingestion)
        self._applied = Applied(saved, name=name, history=history, ingestion=ingestion)
        self._ingestion = ingestion
        self._current: tuple[int, str, Place | None] | None = None

    def pending(self) -> Iterator[Place | None]:
        for current in self._applied.pending():
            self._current = current
            yield current[2]

    def take(self) -> None:
        assert self._current is not None  # noqa: S101 - `pending` has just given it
        self._applied.take(*self._current)

    def record(self) -> str:
        return encode_checkpoint(self._applied.checkpoint())

    def left(self) -> int:
        return self._ingestion.last - self._applied.seq


class _Prefix(msgspec.Struct, frozen=True):
    """How much of the canonical order has been read, and which events those were."""

    count: int
    sha256: str
    topology_generation: int


class CanonicalTraversal:
    """Canonical order, for as long as what was read is still its beginning."""

    def __init__(self, text: str | None, *, history: History) -> None:
        self._history = history
        self._places = [(t.id, ordinal) for t, ordinal, _ in history.event_keys()]
        self._count = 0
        self._digest = hashlib.sha256()
        # A topology that changed is the usual reason; files that merely arrived are another.
        self.begins_anew = text is not None and not self._go_on_from(text)

    def _go_on_from(self, text: str) -> bool:
        try:
            saved = msgspec.json.decode(text, type=_Prefix)
        except (msgspec.DecodeError, UnicodeDecodeError):
            return False  # from a live projection, or damaged: it cannot be used
        for _ in islice(self._places, saved.count):
            self.take()
        if self._count == saved.count and self._digest.hexdigest() == saved.sha256:
            return True
        self._count, self._digest = 0, hashlib.sha256()
        return False

    def pending(self) -> Iterator[Place | None]:
        yield from islice(self._places, self._count, None)

    def take(self) -> None:
        transaction_id, ordinal = self._places[self._count]
        self._digest.update(self._history[transaction_id].events[ordinal].event_id.encode())
        self._count += 1

    def record(self) -> str:
        prefix = _Prefix(self._count, self._digest.hexdigest(), self._history.graph.merges)
        return msgspec.json.encode(prefix).decode()

    def left(self) -> int:
        return len(self._places) - self._count


# ── Projections ──────────────────────────────────────────────────────────────────────────────────────────────────────


Mode = Literal["live", "rebuild"]
OnPoison = Literal["stop", "quarantine"]


@dataclass(frozen=True, slots=True)
class Projection:
    """A named projection. Made by `@projection`."""

    name: str
    apply: Callable[[RecordedEvent, Any], None]
    mode: Mode = "live"
    on_poison: OnPoison = "stop"
    wanted: Filter = field(default_factory=Filter)
    setup: Callable[[Any], None] | None = None
    reset: Callable[[Any], None] | None = None

    def __post_init__(self) -> None:
        if self.mode not in {"live", "rebuild"} or self.on_poison not in {"stop", "quarantine"}:
            raise InvalidSetting(
                f"Projection {self.name!r} has mode {self.mode!r} and on_poison {self.on_poison!r}.",
                hint="mode is live or rebuild; on_poison is stop or quarantine.",
            )
        if self.mode == "rebuild" and self.reset is None:
            raise InvalidSetting(
                f"Projection {self.name!r} has mode rebuild, but no reset function.",
                hint="Give it reset=..., or a method `reset(connection)` that empties its tables.",
            )


def projection(
    name: str,
    *,
    mode: Mode = "live",
    on_poison: OnPoison = "stop",
    prefix: str | None = None,
    pattern: str | None = None,
    type: str | None = None,
    setup: Callable[[Any], None] | None = None,
    reset: Callable[[Any], None] | None = None,
) -> Callable[[Any], Projection]:
    """Decorator: make a projection from a function `(event, connection)`, or from a class with that method as `apply`.

    A class may also have `setup(connection)`, run once per runner, and `reset(connection)`, which empties
    what the projection has made and which `rebuild` needs.
    """

    def make(wrapped: Any) -> Projection:
        instance: Any = wrapped() if inspect.isclass(wrapped) else None
        return Projection(
            name=name,
            apply=instance.apply if instance is not None else wrapped,
            mode=mode,
            on_poison=on_poison,
            wanted=Filter(prefix, pattern, type),
            setup=setup or getattr(instance, "setup", None),
            reset=reset or getattr(instance, "reset", None),
        )

    return make


@dataclass(frozen=True, slots=True)
class QuarantinedEvent:
    """An event that a projection refused, and why."""

    event_id: str
    seq: int | None
    stream: str
    type: str
    data: Any
    reason: str


class Session(Protocol):
    """One transaction on a target: effects, checkpoint and quarantine commit together, or not at all."""

    connection: Any

    def load(self, name: str) -> str | None: ...

    def save(self, name: str, text: str, *, expected: str | None) -> None:
        """Store a checkpoint; `Retryable` if the stored one is not the `expected`."""
        ...

    def attempt(self, effect: Callable[[], None]) -> None:
        """Run an effect so that, if it raises, nothing of it remains."""
        ...

    def quarantine(self, name: str, event: QuarantinedEvent) -> None: ...

    def quarantined(self, name: str) -> list[QuarantinedEvent]: ...

    def release(self, name: str, event_id: str) -> None:
        """Remove an event from quarantine."""
        ...

    def commit(self) -> None: ...

    def rollback(self) -> None: ...


class Target(Protocol):
    """Where a projection's effects and checkpoints go."""

    # Errors of the target itself, not of an event.
    failures: tuple[type[BaseException], ...]

    def begin(self) -> Session: ...


@dataclass(frozen=True, slots=True)
class CatchUp:
    """The progress of a run."""

    done: int
    total: int


@dataclass(frozen=True, slots=True)
class RunReport:
    """The result of a run. `rebuilt`: it started again from the first event."""

    applied: int
    quarantined: int
    rebuilt: bool = False


class Runner:
    """Feeds one projection from one log into one target."""

    def __init__(
        self,
        log: EventLog,
        projection: Projection,
        target: Target,
        *,
        batch_events: int = 500,
        on_progress: Callable[[CatchUp], None] = lambda _: None,
    ) -> None:
        if log.read_only:
            raise LogReadOnly(
                f"Projection {projection.name!r} needs the log {log.root} open for writing.",
                hint="A projection assigns numbers to new events. It holds the write lock only for a short time, "
                "so other writers can continue.",
            )
        self._log = log
        self._projection = projection
        self._target = target
        self._batch_events = batch_events
        self._on_progress = on_progress
        self._left = 0
        self._moved = 0
        # Where the last batch left off, to be gone on with if the target still says the same.
        self._traversal: tuple[str, Traversal] | None = None

    def run(self) -> RunReport:
        """Apply all new events, then return."""
        total, done = RunReport(0, 0), 0
        with leadership(self._log.root, self._projection.name):
            # Reading the files again may give a new history, or a new numbering.
            self._log.refresh()
            self._traversal = None
            self._set_up()
            while True:
                batch = self._batch()
                total = RunReport(
                    total.applied + batch.applied, total.quarantined + batch.quarantined, total.rebuilt or batch.rebuilt
                )
                if self._moved == 0:
                    return total
                done += self._moved
                self._on_progress(CatchUp(done, done + self._left))

    def retry_quarantined(self) -> RunReport:
        """Retry the quarantined events; accepted ones are removed from quarantine."""
        applied = refused = 0
        name = self._projection.name
        with leadership(self._log.root, name), self._session() as session:
            for entry in session.quarantined(name):
                event = self._log.event(entry.event_id)
                if event is None or self._attempt(session, event) is not None:
                    refused += 1
                    continue
                session.release(name, entry.event_id)
                applied += 1
        return RunReport(applied, refused)

    def _set_up(self) -> None:
        if self._projection.setup is None:
            return
        with self._session() as session:
            try:
                self._projection.setup(session.connection)
            except FloodmarkError:
                raise
            except Exception as error:
                raise ProjectionStopped(
                    f"Projection {self._projection.name!r} failed in its setup: {type(error).__name__}: "
                    f"{reason_of(error)}.",
                    hint=f"It gets a connection of {_maker(session.connection)}; correct it and run it again.",
                ) from error

    @contextlib.contextmanager
    def _session(self) -> Iterator[Session]:
        session = self._target.begin()
        try:
            yield session
            session.commit()
        except BaseException:
            self._traversal = None  # it is ahead of what is committed
            session.rollback()
            raise

    def _batch(self) -> RunReport:
        """Apply and commit one batch; `ProjectionStopped` comes after what was before the event is committed."""
        name, log = self._projection.name, self._log
        matches = self._projection.wanted.matcher()
        stopped: ProjectionStopped | None = None
        applied = refused = offered = self._moved = 0
        with self._session() as session:
            text = session.load(name)
            traversal, anew = self._resume(session, text)
            for place in traversal.pending():
                # What is passed over does not count: two clones that take turns on one target each read the log
                # from its beginning, and would only pass over, for ever, if a batch could end in the midst of that.
                if place is not None and offered == self._batch_events:
                    break
                offered += place is not None
                if place is not None and matches(log.history[place[0]].events[place[1]]):
                    stopped, accepted = self._offer(session, log.event_at(*place))
                    if stopped is not None:
                        break
                    applied, refused = applied + accepted, refused + (not accepted)
                traversal.take()
                self._moved += 1
            if self._moved or anew:
                record = traversal.record()
                session.save(name, record, expected=text)
                self._traversal = (record, traversal)
                faults.reach("eventlog.applied")
        if self._moved:
            faults.reach("eventlog.checkpointed")
        if stopped is not None:
            self._traversal = None
            raise stopped
        self._left = traversal.left()
        return RunReport(applied, refused, anew)

    def _resume(self, session: Session, text: str | None) -> tuple[Traversal, bool]:
        """The traversal from where the target says, and whether it begins anew."""
        if self._traversal is not None and self._traversal[0] == text:
            return self._traversal[1], False
        name, log = self._projection.name, self._log
        if self._projection.mode == "live":
            return ArrivalTraversal(text, name=name, history=log.history, ingestion=log.ingestion), False
        traversal = CanonicalTraversal(text, history=log.history)
        if traversal.begins_anew:
            assert self._projection.reset is not None  # noqa: S101 - checked when the projection was made
            self._projection.reset(session.connection)
            for entry in session.quarantined(name):
                session.release(name, entry.event_id)
        return traversal, traversal.begins_anew

    # One event

    def _offer(self, session: Session, event: RecordedEvent) -> tuple[ProjectionStopped | None, bool]:
        error = self._attempt(session, event)
        if error is None:
            return None, True
        reason = f"{type(error).__name__}: {error}"
        if self._projection.on_poison == "stop":
            stop = ProjectionStopped(
                f"Projection {self._projection.name!r} refused event {event.event_id} of stream {event.stream!r} "
                f"(seq {event.seq}): {reason}.",
                hint="Correct the projection and run it again, or move such events to quarantine with "
                "on_poison=quarantine.",
            )
            stop.__cause__ = error
            return stop, False
        entry = QuarantinedEvent(event.event_id, event.seq, event.stream, event.type, event.data, reason)
        session.quarantine(self._projection.name, entry)
        return None, False

    def _attempt(self, session: Session, event: RecordedEvent) -> Exception | None:
        try:
            session.attempt(lambda: self._projection.apply(event, session.connection))
        except Exception as error:
            if isinstance(error, (*self._target.failures, Retryable)):
                # The target fails, not the event: nothing is quarantined, and the batch is rolled back.
                raise
            return error
        return None


def _maker(connection: Any) -> str:
    """Which library a connection is from: statements are written differently for each."""
    return {"sqlalchemy": "SQLAlchemy", "sqlite3": "sqlite3"}.get(
        type(connection).__module__.partition(".")[0], "yours"
    )
