"""The event log: one handle on one directory.

It ties together what knows nothing of each other, and owns no logic of its own: the files (`view`), the numbering
(`ingestion`), writing (`writer`), reading and reconciling.

Transitions
    open        load the index, read what it does not cover; `writer` numbers what is new
    append      `writer`: lock → catch up → check versions → write the file → number its events
    refresh     `writer`: lock → catch up; read-only: look again without numbering
    reconcile   per fork: ask the resolver → `writer`: lock → write the merge
    close       `writer`: write the index
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

import msgspec

from floodmark.clock import Clock, SystemClock
from floodmark.errors import LogClosed, LogMissing, LogReadOnly
from floodmark.eventlog import fsck, replica
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.forks import Fork, StreamFork, find_branches, find_forks
from floodmark.eventlog.history import History
from floodmark.eventlog.identifiers import new_identifier
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.reading import EventReader, Filter, numbered_places, seq_after, unnumbered_places
from floodmark.eventlog.reconcile import ReconcileReport, Refusals, Resolver, Unresolvable, answer_of
from floodmark.eventlog.status import Status, fork_key, make_status, with_reason
from floodmark.eventlog.transactions import Event, RecordedEvent
from floodmark.eventlog.view import View
from floodmark.eventlog.writer import Appended, Writer
from floodmark.files import durable_write, make_directory, retryable_os_error

# ── Snapshots of a stream's state, valid only while the events that they cover are still its beginning ───────────────
# A merge may put an event *before* the version that a snapshot was made at. A snapshot therefore carries a
# digest of the events it covers, in order, and is simply not found any more when that does not fit.


@dataclass(frozen=True, slots=True)
class Snapshot:
    """A state, and the version of the stream that it covers: continue reading after it."""

    version: int
    state: Any


class _Stored(msgspec.Struct, frozen=True):
    version: int
    covered: str
    state: Any


class Snapshots:
    """Snapshots in `<root>/.eventcore/snapshots`, local and disposable."""

    def __init__(self, root: Path) -> None:
        self._folder = root / ".eventcore" / "snapshots"

    def save(self, history: History, *, stream: str, name: str, state: Any) -> None:
        version = history.version(stream)
        stored = _Stored(version, _covered(history, stream, version), state)
        make_directory(self._folder)
        durable_write(self._path(stream, name), msgspec.json.encode(stored))

    def load(self, history: History, *, stream: str, name: str) -> Snapshot | None:
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            stored = msgspec.json.decode(self._path(stream, name).read_bytes(), type=_Stored)
            if _covered(history, stream, stored.version) == stored.covered:
                return Snapshot(stored.version, stored.state)
        return None

    def _path(self, stream: str, name: str) -> Path:
        key = hashlib.sha256(f"{stream}\0{name}".encode()).hexdigest()
        return self._folder / f"floodmark-{key}.json"


def _covered(history: History, stream: str, version: int) -> str:
    digest = hashlib.sha256()
    left = version
    for transaction in history.writers(stream):
        for event in transaction.events:
            if event.stream == stream and left:
                digest.update(event.event_id.encode())
                left -= 1
    return digest.hexdigest() if not left else ""


# ── Log ──────────────────────────────────────────────────────────────────────────────────────────────────────────────


class EventLog:
    """An event log in a directory, usually a git working tree. Use `EventLog.open`.

    Handles in several processes or threads may share a directory; one handle is for one thread.
    """

    def __init__(self, root: Path, *, read_only: bool, sync: bool, clock: Clock, lock_wait_seconds_max: float) -> None:
        self.root = root
        self.read_only = read_only
        self._directory = EventsDirectory(root)
        self._view = View(self._directory, root / "index" / "transactions.index")
        self._reader = EventReader(self._directory)
        self._refusals = Refusals(root)
        self._snapshots = Snapshots(root)
        self._writer: Writer | None = None
        if read_only:
            self._view.load()
            self._unwritten = IngestionLog(
                root,
                replica=replica.stored_identity(root) or "",
                read_only=True,
                make_identity=lambda: new_identifier(clock.now()),
            )
        else:
            self._writer = Writer(
                root, self._view, self._directory, sync=sync, clock=clock, lock_wait_seconds_max=lock_wait_seconds_max
            )

    @classmethod
    def open(
        cls,
        path: str | Path,
        *,
        read_only: bool = False,
        create: bool = True,
        sync: bool = True,
        clock: Clock | None = None,
        lock_wait_seconds_max: float = 10.0,
    ) -> EventLog:
        """Open the log at `path`; create it if it does not exist.

        Read-only takes no lock and writes nothing. `sync=False` is faster, but acknowledged events may be lost in a
        power loss. Raises `LogMissing`, or `LogLocked` while another process writes for longer than
        `lock_wait_seconds_max`.
        """
        root = Path(path)
        try:
            if (read_only or not create) and not (root / "events").is_dir():
                raise LogMissing(
                    f"There is no event log at {root}.", hint=f"Create one with `floodmark log init {root}`."
                )
            return cls(
                root,
                read_only=read_only,
                sync=sync,
                clock=clock or SystemClock(),
                lock_wait_seconds_max=lock_wait_seconds_max,
            )
        except OSError as error:
            raise retryable_os_error(error, doing=f"Opening the event log {root}") from error

    # Writing

    def append(self, events: Iterable[Event], expected: Mapping[str, int] | None = None) -> Appended:
        """Write events as one transaction, durable on return.

        `expected` names versions that streams must be at, also of streams that were only read; otherwise
        `VersionConflict`, and nothing is written.
        """
        return self._writable().append(list(events), expected or {})

    def refresh(self) -> int:
        """Read transactions that git or other processes added; returns how many are new."""
        before = len(self._view.history)
        if self.read_only:
            self._view.refresh()
            self._unwritten.load()
        else:
            self._writable().refresh()
        self._reader.forget()
        return len(self._view.history) - before

    def reconcile(self, resolver: Resolver) -> ReconcileReport:
        """Call the resolver for every open fork, and write the merge transactions."""
        writer = self._writable()
        resolved: list[str] = []
        declined: dict[str, Fork] = {}
        again = True
        while again:
            again = False
            for parts in find_forks(self._view.history):
                if fork_key(parts) in declined:
                    continue
                fork = self._fork(parts)
                answer = answer_of(resolver, fork)
                if isinstance(answer, Unresolvable):
                    self._refusals.remember(fork_key(parts), answer.reason)
                    declined[fork_key(parts)] = with_reason(fork, self._refusals.reasons)
                    continue
                again = True
                merge = writer.merge(fork, answer)
                if merge is None:
                    break
                resolved.append(merge)
        return ReconcileReport(tuple(resolved), tuple(declined.values()))

    def take_new_identity(self) -> str:
        """Give this replica a new identity, after an identity conflict."""
        return self._writable().take_new_identity()

    def restore_line_ends(self) -> int:
        """Restore files that a checkout converted to CRLF; returns how many."""
        restored = self._writable().restore_line_ends()
        self._reader.forget()
        return restored

    def _writable(self) -> Writer:
        if self.read_only:
            raise LogReadOnly(
                f"The event log {self.root} was opened for reading only.", hint="Open it without read_only to write."
            )
        if self._writer is None:
            raise LogClosed(f"The event log {self.root} was closed.", hint="Open it again.")
        return self._writer

    # Reading

    @property
    def replica_id(self) -> str | None:
        """The id of this replica; None for a read-only log without one."""
        return self._writer.replica_id if self._writer is not None else replica.stored_identity(self.root)

    @property
    def heads(self) -> tuple[str, ...]:
        return self._view.history.heads

    @property
    def topology_generation(self) -> int:
        """How many transactions have more than one parent: changes when histories were merged."""
        return self._view.history.graph.merges

    @property
    def identity(self) -> str:
        """The identity of the local numbering: positions of another numbering are not valid (E7)."""
        return self.ingestion.identity

    @property
    def history(self) -> History:
        """The transactions and their order, for tools. It grows with the log; do not change it."""
        return self._view.history

    @property
    def ingestion(self) -> IngestionLog:
        """The local numbering, for consumers of positions. Only the log writes it."""
        return self._unwritten if self._writer is None else self._writer.ingestion

    def version(self, stream: str) -> int:
        return self._view.history.version(stream)

    def streams(self) -> Mapping[str, int]:
        return self._view.history.streams()

    def read_stream(self, stream: str, *, after: int = 0, limit: int | None = None) -> list[RecordedEvent]:
        """A stream's events above a version, in canonical order."""
        found: list[RecordedEvent] = []
        version = 0
        for transaction in self._view.history.writers(stream):
            for ordinal, event in enumerate(transaction.events):
                if event.stream != stream:
                    continue
                version += 1
                if version > after:
                    if limit is not None and len(found) >= limit:
                        return found
                    found.append(self._event(transaction.id, ordinal))
        return found

    def read_events(
        self,
        after: UUID | str | int | None = None,
        limit: int | None = None,
        prefix: str | None = None,
        *,
        pattern: str | None = None,
        type: str | None = None,
    ) -> list[RecordedEvent]:
        """Events above a position, in local-ingestion order. Filters come before the limit."""
        found: list[RecordedEvent] = []
        for event in self.arrivals(after, wanted=Filter(prefix, pattern, type)):
            if limit is not None and len(found) >= limit:
                break
            found.append(event)
        return found

    def arrivals(
        self, after: UUID | str | int | None = None, *, wanted: Filter | None = None
    ) -> Iterator[RecordedEvent]:
        """Events in local-ingestion order, each with every coordinate that it has, read as they are taken.

        With `identity` this is all that a consumer needs to take each event exactly once.
        """
        if self._writer is not None:
            self._writer.number_pending()
        # E6: what follows hands out positions.
        self.ingestion.sync()
        start = seq_after(after, identity=self.identity)
        places = numbered_places(self._view.history, self.ingestion, after=start, wanted=wanted or Filter())
        for seq, transaction_id, ordinal in places:
            yield self._event(transaction_id, ordinal, seq)
        if self.read_only:
            # Events without a number yet are returned, but without a position.
            for transaction_id, ordinal in unnumbered_places(self._view.history, self.ingestion, wanted or Filter()):
                yield self._event(transaction_id, ordinal)

    def canonical_events(self) -> Iterator[RecordedEvent]:
        """Every event in canonical order."""
        for transaction_id in list(self._view.history.order):
            for ordinal in range(len(self._view.history[transaction_id].events)):
                yield self._event(transaction_id, ordinal)

    def event(self, event_id: str) -> RecordedEvent | None:
        """The event with this id, or None."""
        place = self._view.history.place(event_id)
        return None if place is None else self.event_at(*place)

    def event_at(self, transaction_id: str, ordinal: int) -> RecordedEvent:
        """The event at this index of a transaction."""
        return self._event(transaction_id, ordinal)

    def _event(self, transaction_id: str, ordinal: int, seq: int | None = None) -> RecordedEvent:
        if seq is None:
            self.ingestion.sync()
        return self._reader.event(self._view.history, self.ingestion, transaction_id, ordinal, seq)

    def forks(self) -> list[Fork]:
        """Every open fork, with the events of each branch."""
        return [self._fork(parts) for parts in find_forks(self._view.history)]

    def _fork(self, parts: tuple[StreamFork, ...]) -> Fork:
        branches, later = find_branches(self._view.history, parts)
        filled = tuple(replace(branch, events=self._events_of(branch.transactions)) for branch in branches)
        return with_reason(Fork(parts, filled, self._events_of(later)), self._refusals.reasons)

    def _events_of(self, transactions: Iterable[str]) -> tuple[RecordedEvent, ...]:
        history = self._view.history
        return tuple(self._event(t, ordinal) for t in transactions for ordinal in range(len(history[t].events)))

    def save_snapshot(self, stream: str, name: str, state: Any) -> None:
        """Store a state (any JSON value) computed from all of the stream's events, under a name."""
        self._writable()
        self._snapshots.save(self._view.history, stream=stream, name=name, state=state)

    def load_snapshot(self, stream: str, name: str) -> Snapshot | None:
        """The snapshot, or None if there is none or a merge has changed what it covers."""
        return self._snapshots.load(self._view.history, stream=stream, name=name)

    def status(self) -> Status:
        """The counts, open forks and problems of the log. It never raises because of a problem that it reports."""
        return make_status(
            self.root, self._view, self.ingestion, replica=self.replica_id, refusals=self._refusals.reasons
        )

    def fsck(self) -> fsck.FsckReport:
        """Read every file again and check everything."""
        return fsck.check(self.root, self._directory, self._view, self.ingestion)

    def close(self) -> None:
        """Write the index and release all resources. The log can be opened again at once."""
        if self._writer is not None:
            self._unwritten = self._writer.close()
            self._writer = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
