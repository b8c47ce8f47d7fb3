"""The event log: one handle on one directory.

It ties together what knows nothing of each other: the files (`view`), the numbering (`ingestion`), the lock
(`writing`), reading and reconciling.

Transitions
    open        load the index, read what it does not cover, number what is new
    append      lock → catch up → check versions → write the file (E9) → number its events
    refresh     lock → catch up; read-only: look again without numbering
    reconcile   per fork: ask the resolver → lock → write the merge
    close       write the index
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self
from uuid import UUID

from floodmark.clock import Clock, SystemClock
from floodmark.errors import LogClosed, LogMissing, LogReadOnly, Permanent, ReplicaIdentityConflict, VersionConflict
from floodmark.eventlog import fsck, git, replica
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.forks import Fork, StreamFork, find_branches, find_forks, identity_conflicts
from floodmark.eventlog.history import History
from floodmark.eventlog.identifiers import new_identifier, timestamp
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.reading import EventReader, Filter, numbered_places, seq_after, unnumbered_places
from floodmark.eventlog.reconcile import ReconcileReport, Refusals, Resolver, Unresolvable, answer_of, merge_parents
from floodmark.eventlog.snapshots import Snapshot, Snapshots
from floodmark.eventlog.status import Status, fork_key, make_status, with_reason
from floodmark.eventlog.transactions import Decision, Event, EventKey, RecordedEvent, Transaction, encode
from floodmark.eventlog.view import View
from floodmark.eventlog.writing import WriterLock
from floodmark.files import durable_write, make_directory


@dataclass(frozen=True, slots=True)
class Appended:
    """What an append made: its transaction, its events' ids, and the versions that it left its streams at."""

    transaction_id: str
    event_ids: tuple[str, ...]
    versions: Mapping[str, int]


class EventLog:
    """An event log in a directory, usually a git working tree. Use `EventLog.open`."""

    def __init__(self, root: Path, *, read_only: bool, sync: bool, clock: Clock, lock_wait_seconds_max: float) -> None:
        self.root = root
        self.read_only = read_only
        self._sync = sync
        self._clock = clock
        self._directory = EventsDirectory(root)
        self._view = View(self._directory, root / "index" / "transactions.index")
        self._reader = EventReader(self._directory)
        self._refusals = Refusals(root)
        self._snapshots = Snapshots(root)
        self._own_conflict: ReplicaIdentityConflict | None = None
        self._unnumbered = False
        self._lock: WriterLock | None = None
        if read_only:
            self.replica_id = replica.stored_identity(root)
            self._view.load()
            self._ingestion = self._open_ingestion()
        else:
            self._prepare()
            self._lock = WriterLock(root, wait_seconds_max=lock_wait_seconds_max)
            with self._lock.held():
                self._open_for_writing()

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
        """Open the log at `path`, making it if it is not there.

        Read-only takes no lock and writes nothing. `sync=False` gives up durability for speed: what was
        acknowledged may be lost in a power cut. Raises `LogMissing`, or `LogLocked` while another
        process writes for longer than `lock_wait_seconds_max`.
        """
        root = Path(path)
        if (read_only or not create) and not (root / "events").is_dir():
            raise LogMissing(f"There is no event log at {root}.", hint=f"Make one with `floodmark log init {root}`.")
        return cls(
            root,
            read_only=read_only,
            sync=sync,
            clock=clock or SystemClock(),
            lock_wait_seconds_max=lock_wait_seconds_max,
        )

    def _prepare(self) -> None:
        make_directory(self.root)
        for name in ("index", ".eventcore"):
            make_directory(self.root / name)
        self._directory.create()
        git.write_if_absent(self.root)

    def _open_for_writing(self) -> None:
        self._directory.clear_staging()
        self.replica_id = replica.stored_identity(self.root) or replica.new_identity(self.root, make=self._identifier)
        self._view.load()
        self._ingestion = self._open_ingestion()
        self._number()
        self._find_own_conflict()
        self._keep_index()

    def _open_ingestion(self) -> IngestionLog:
        return IngestionLog(
            self.root, replica=self.replica_id or "", read_only=self.read_only, make_identity=self._identifier
        )

    def _identifier(self) -> str:
        return new_identifier(self._clock.now())

    # Writing

    def append(self, events: Iterable[Event], expected: Mapping[str, int] | None = None) -> Appended:
        """Write events as one transaction, durable on return.

        `expected` names versions that streams must be at, also of streams that were only read; otherwise
        `VersionConflict`, and nothing is written.
        """
        wanted = list(events)
        _check_events(wanted)
        with self._writing():
            self._check_versions(expected or {})
            return self._write(wanted, parents=self.heads, read=tuple(expected or ()))

    def refresh(self) -> int:
        """See what git or other processes brought since; returns how many transactions are new."""
        before = len(self._view.history)
        if self.read_only:
            self._view.refresh()
            self._ingestion.load()
            self._reader.forget()
        else:
            with self._writing(catch_up=True):
                pass
        return len(self._view.history) - before

    def reconcile(self, resolver: Resolver) -> ReconcileReport:
        """Offer every open fork to the resolver, and write what it decides."""
        self._writable()
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
                known = len(self._view.history)
                with self._writing():
                    if len(self._view.history) != known:
                        # Files came in while the resolver was thinking: what it saw is not what is there.
                        again = True
                        break
                    resolved.append(self._write_merge(fork, answer))
                again = True
        return ReconcileReport(tuple(resolved), tuple(declined.values()))

    def take_new_identity(self) -> str:
        """Give this replica an identity of its own, after a conflict over the one it has."""
        with self._writing():
            self.replica_id = replica.new_identity(self.root, make=self._identifier)
            self._ingestion.close()
            self._ingestion = self._open_ingestion()
            self._own_conflict = None
        return self.replica_id

    def _writable(self) -> WriterLock:
        if self.read_only:
            raise LogReadOnly(
                f"The event log {self.root} was opened for reading only.", hint="Open it without read_only to write."
            )
        if self._lock is None:
            raise LogClosed(f"The event log {self.root} was closed.", hint="Open it again.")
        return self._lock

    def restore_line_ends(self) -> int:
        """Undo the conversion to CRLF that a checkout did; returns how many files it was.

        Not a change (E1): the bytes become what the hashes say they were.
        """
        with self._writing(catch_up=True):
            files = [self.root / name for name in self._view.converted()]
            for file in files:
                durable_write(file, file.read_bytes().replace(b"\r\n", b"\n"))
            self._catch_up()
        return len(files)

    @contextlib.contextmanager
    def _writing(self, *, catch_up: bool = False) -> Iterator[None]:
        with self._writable().held() as died:
            moved = self._ingestion.changed_on_disk() or self._view.stamp != self._directory.stamp()
            if catch_up or died or moved or self._unnumbered:
                self._catch_up()
            yield

    def _catch_up(self) -> None:
        if self._ingestion.changed_on_disk():
            self._ingestion.load()
        self._directory.create()
        self._view.refresh()
        self._reader.forget()
        self._number()
        self._find_own_conflict()
        self._keep_index()

    def _number(self) -> None:
        """Give every event that has no number one, in canonical order; likewise those whose file is back (E8)."""
        history, ingestion = self._view.history, self._ingestion
        present = history.event_ids()
        if not ingestion.absent and ingestion.event_ids() == present:
            self._unnumbered = False
            return
        absent = set(ingestion.event_ids() - present)
        returned = ingestion.absent & present
        new = [
            key.event_id
            for _, _, key in history.event_keys()
            if ingestion.seq(key.event_id) is None or key.event_id in returned
        ]
        ingestion.assign(list(dict.fromkeys(new)))
        ingestion.sync()
        ingestion.set_absent(absent)
        self._unnumbered = False
        if new:
            ingestion.save_identity()

    def _find_own_conflict(self) -> None:
        assert self.replica_id is not None  # noqa: S101 - a log open for writing has one
        found = identity_conflicts(self._view.history, replica=self.replica_id)
        self._own_conflict = None
        if found:
            one, other = found[0].transactions
            self._own_conflict = ReplicaIdentityConflict(
                f"Transactions {one} and {other} are concurrent and both of replica {self.replica_id}: "
                "two writers use one identity.",
                hint="Everything stays readable. Run `floodmark log init --new-identity` here, then append again.",
            )

    def _keep_index(self) -> None:
        if self._view.lags():
            self._view.save_index()

    def _check_versions(self, expected: Mapping[str, int]) -> None:
        if self._own_conflict is not None:
            raise self._own_conflict
        for stream, version in sorted(expected.items()):
            actual = self._view.history.version(stream)
            if actual != version:
                raise VersionConflict(
                    f"Stream {stream!r} is at version {actual}, expected {version}; nothing was written.",
                    hint="Read the stream again, decide again, and append with the version you saw.",
                )

    def _write_merge(self, fork: Fork, events: Sequence[Event]) -> str:
        _check_events(events, allow_none=True)
        self._check_versions({})
        assert self.replica_id is not None  # noqa: S101 - a log open for writing has one
        parents = merge_parents(self._view.history, fork, replica=self.replica_id)
        return self._write(events, parents=parents, read=fork.streams, decides=fork.decisions).transaction_id

    def _write(
        self,
        events: Sequence[Event],
        *,
        parents: tuple[str, ...],
        read: tuple[str, ...],
        decides: tuple[Decision, ...] = (),
    ) -> Appended:
        history = self._view.history
        bases = {stream: history.version(stream) for stream in {*read, *(event.stream for event in events)}}
        now = self._clock.now()
        versions = dict(bases)
        records: list[tuple[int, Event]] = []
        for event in events:
            versions[event.stream] += 1
            records.append((versions[event.stream], event))
        transaction = Transaction(
            id=new_identifier(now),
            replica=self.replica_id or "",
            parents=parents,
            created_at=timestamp(now),
            bases=bases,
            events=tuple(EventKey(new_identifier(now), event.stream, event.type) for event in events),
            decides=decides,
        )
        content = encode(transaction, records)
        self._writable().mark()
        signature = self._directory.write(transaction.id, content, sync=self._sync)
        self._view.add(transaction, signature)
        event_ids = tuple(event.event_id for event in transaction.events)
        try:
            self._ingestion.assign(list(event_ids))
        except OSError:
            # The transaction is committed: saying otherwise would have it written twice. Its numbers follow
            # with the next operation, before anybody is given a position.
            self._unnumbered = True
        self._keep_index()
        return Appended(transaction.id, event_ids, {stream: history.version(stream) for stream in bases})

    # Reading

    @property
    def heads(self) -> tuple[str, ...]:
        return self._view.history.heads

    @property
    def topology_generation(self) -> int:
        """How many transactions have more than one parent: changes when histories were joined."""
        return self._view.history.graph.merges

    @property
    def identity(self) -> str:
        """The identity of the local numbering: positions of another one mean nothing here (E7)."""
        return self._ingestion.identity

    @property
    def history(self) -> History:
        """The transactions and their order, for tools. It grows with the log; do not change it."""
        return self._view.history

    @property
    def ingestion(self) -> IngestionLog:
        """The local numbering, for consumers of positions. Only the log writes it."""
        return self._ingestion

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
        if self._unnumbered:
            with self._writing():
                pass
        # E6: what follows hands out positions.
        self._ingestion.sync()
        start = seq_after(after, identity=self.identity)
        places = numbered_places(self._view.history, self._ingestion, after=start, wanted=wanted or Filter())
        for seq, transaction_id, ordinal in places:
            yield self._event(transaction_id, ordinal, seq)
        if self.read_only:
            # What no writer has numbered yet is shown, but has no position that a reader could keep.
            for transaction_id, ordinal in unnumbered_places(self._view.history, self._ingestion, wanted or Filter()):
                yield self._event(transaction_id, ordinal)

    def canonical_events(self) -> Iterator[RecordedEvent]:
        """Every event in canonical order."""
        for transaction_id in list(self._view.history.order):
            for ordinal in range(len(self._view.history[transaction_id].events)):
                yield self._event(transaction_id, ordinal)

    def event(self, event_id: str) -> RecordedEvent | None:
        """The event of this id, or None if it is not here."""
        place = self._view.history.place(event_id)
        return None if place is None else self.event_at(*place)

    def event_at(self, transaction_id: str, ordinal: int) -> RecordedEvent:
        """The event at this place of a transaction."""
        return self._event(transaction_id, ordinal)

    def _event(self, transaction_id: str, ordinal: int, seq: int | None = None) -> RecordedEvent:
        if seq is None:
            self._ingestion.sync()
        return self._reader.event(self._view.history, self._ingestion, transaction_id, ordinal, seq)

    def forks(self) -> list[Fork]:
        """Every open fork, with all that happened on each of its branches."""
        return [self._fork(parts) for parts in find_forks(self._view.history)]

    def _fork(self, parts: tuple[StreamFork, ...]) -> Fork:
        branches, later = find_branches(self._view.history, parts)
        filled = tuple(replace(branch, events=self._events_of(branch.transactions)) for branch in branches)
        return with_reason(Fork(parts, filled, self._events_of(later)), self._refusals.reasons)

    def _events_of(self, transactions: Iterable[str]) -> tuple[RecordedEvent, ...]:
        history = self._view.history
        return tuple(self._event(t, ordinal) for t in transactions for ordinal in range(len(history[t].events)))

    def save_snapshot(self, stream: str, name: str, state: Any) -> None:
        """Keep a state (any JSON value) computed from all of the stream's events, under a name."""
        self._writable()
        self._snapshots.save(self._view.history, stream=stream, name=name, state=state)

    def load_snapshot(self, stream: str, name: str) -> Snapshot | None:
        """The snapshot, or None if there is none or a merge has changed what it covers."""
        return self._snapshots.load(self._view.history, stream=stream, name=name)

    def status(self) -> Status:
        """What is known to be wrong or open. It never raises because of what it reports."""
        return make_status(
            self.root, self._view, self._ingestion, replica=self.replica_id, refusals=self._refusals.reasons
        )

    def fsck(self) -> fsck.FsckReport:
        """Read every file again and check all that can be checked."""
        return fsck.check(self.root, self._directory, self._view, self._ingestion)

    def close(self) -> None:
        """Write the index and let go of everything. The log may be opened again at once."""
        if self._lock is None:
            return
        with contextlib.suppress(OSError), self._lock.held() as died:
            if not died and not self._ingestion.changed_on_disk():
                self._ingestion.save_identity()
                self._view.save_index()
        self._ingestion.close()
        self._directory.close()
        self._lock.close()
        self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _check_events(events: Sequence[Event], *, allow_none: bool = False) -> None:
    if not events and not allow_none:
        raise Permanent("There is nothing to append.", hint="Give at least one event.")
    for event in events:
        if not isinstance(event.stream, str) or not event.stream or not isinstance(event.type, str) or not event.type:
            raise Permanent(
                f"An event needs a stream and a type, both of them text; this one has {event.stream!r} and "
                f"{event.type!r}.",
                hint='Write Event("account-1", {"amount": 5}, type="Deposited").',
            )
