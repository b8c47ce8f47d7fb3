"""Writing: one operation at a time, each on top of everything that is there.

Transitions
    open        lock → clear the staging directory → identity → load → number what is new
    operation   lock → catch up, if anything has changed since → what is to be done
    append      check versions → write the file (E9) → number its events
    merge       only if the history is still the one that the resolver saw
    close       lock → bind the numbering's identity → write the index
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from floodmark.clock import Clock
from floodmark.errors import Permanent, ReplicaIdentityConflict, VersionConflict
from floodmark.eventlog import git, replica
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.forks import Fork, identity_conflicts
from floodmark.eventlog.identifiers import new_identifier, new_identifiers, timestamp
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.reconcile import merge_parents
from floodmark.eventlog.transactions import Decision, Event, EventKey, Transaction, encode
from floodmark.eventlog.view import View
from floodmark.eventlog.writing import WriterLock
from floodmark.files import durable_write, make_directory


class Appended(msgspec.Struct, frozen=True):
    """What an append made: its transaction, its events' ids, and the versions that it left its streams at."""

    transaction_id: str
    event_ids: tuple[str, ...]
    versions: Mapping[str, int]


class Writer:
    """The writing half of an open log."""

    def __init__(
        self,
        root: Path,
        view: View,
        directory: EventsDirectory,
        *,
        sync: bool,
        clock: Clock,
        lock_wait_seconds_max: float,
    ) -> None:
        self._root = root
        self._view = view
        self._directory = directory
        self._sync = sync
        self._clock = clock
        self._own_conflict: ReplicaIdentityConflict | None = None
        self._unnumbered = False
        self._prepare()
        self._lock = WriterLock(root, wait_seconds_max=lock_wait_seconds_max)
        with self._lock:
            self._open_for_writing()

    def _prepare(self) -> None:
        make_directory(self._root)
        for name in ("index", ".eventcore"):
            make_directory(self._root / name)
        self._directory.create()
        git.write_if_absent(self._root)

    def _open_for_writing(self) -> None:
        self._directory.clear_staging()
        self.replica_id = replica.stored_identity(self._root) or replica.new_identity(self._root, make=self._identifier)
        self._view.load()
        self.ingestion = self._open_ingestion()
        self._number()
        self._find_own_conflict()
        self._keep_index()

    def _open_ingestion(self) -> IngestionLog:
        return IngestionLog(self._root, replica=self.replica_id, read_only=False, make_identity=self._identifier)

    def _identifier(self) -> str:
        return new_identifier(self._clock.now())

    # Operations

    def append(self, events: Sequence[Event], expected: Mapping[str, int]) -> Appended:
        """Write events as one transaction, durable on return."""
        _check_events(events)
        for stream in expected:
            _check_name(stream, "stream")
        with self._lock as died:
            self._know_all(died=died)
            self._check_versions(expected)
            return self._write(events, parents=self._view.history.heads, read=tuple(expected))

    def merge(self, fork: Fork, events: Sequence[Event]) -> str | None:
        """Write the decision on a fork; None if files came in while the resolver was thinking."""
        _check_events(events, allow_none=True)
        known = len(self._view.history)
        with self._lock as died:
            self._know_all(died=died)
            if len(self._view.history) != known:
                return None
            self._check_versions({})
            parents = merge_parents(self._view.history, fork, replica=self.replica_id)
            return self._write(events, parents=parents, read=fork.streams, decides=fork.decisions).transaction_id

    def take_new_identity(self) -> str:
        """Give this replica an identity of its own, after a conflict over the one it has."""
        with self._lock as died:
            self._know_all(died=died)
            self.replica_id = replica.new_identity(self._root, make=self._identifier)
            self.ingestion.close()
            self.ingestion = self._open_ingestion()
            self._own_conflict = None
        return self.replica_id

    def restore_line_ends(self) -> int:
        """Undo the conversion to CRLF that a checkout did; returns how many files it was.

        Not a change (E1): the bytes become what the hashes say they were.
        """
        with self._lock:
            self._catch_up()
            files = [self._root / name for name in self._view.converted()]
            for file in files:
                durable_write(file, file.read_bytes().replace(b"\r\n", b"\n"))
            self._catch_up()
        return len(files)

    def number_pending(self) -> None:
        """Number what an append could not number, before a position is handed out."""
        if self._unnumbered:
            self.refresh()

    def refresh(self) -> None:
        """Look at every file again, and number what is new."""
        with self._lock:
            self._catch_up()

    def _know_all(self, *, died: bool) -> None:
        """Know everything that is there (E5); the first step of every operation under the lock."""
        moved = self.ingestion.changed_on_disk() or self._view.stamp != self._directory.stamp()
        if died or moved or self._unnumbered:
            self._catch_up()

    def _catch_up(self) -> None:
        # `git clean` may have taken everything that git ignores.
        self._prepare()
        if self.ingestion.changed_on_disk():
            self.ingestion.load()
        self._view.refresh()
        self._number()
        self._find_own_conflict()
        self._keep_index()

    def _number(self) -> None:
        """Give every event that has no number one, in canonical order; likewise those whose file is back (E8)."""
        history, ingestion = self._view.history, self.ingestion
        present = history.event_ids()
        if not ingestion.absent and ingestion.event_ids() == present:
            self._unnumbered = False
            return
        absent = set(ingestion.event_ids() - present)
        new = history.in_order((present - ingestion.event_ids()) | (ingestion.absent & present))
        ingestion.assign(new)
        ingestion.sync()
        ingestion.set_absent(absent)
        self._unnumbered = False
        if new:
            ingestion.save_identity()

    def _find_own_conflict(self) -> None:
        found = identity_conflicts(self._view.history, replica=self.replica_id)
        self._own_conflict = None
        if found:
            one, other = found[0].transactions
            self._own_conflict = ReplicaIdentityConflict(
                f"Transactions {one} and {other} are concurrent and both of replica {self.replica_id}: "
                "two writers use one identity.",
                hint="Everything stays readable. Run `floodmark log init --new-identity` here, then append again.",
                transactions=found[0].transactions,
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
                    stream=stream,
                    expected=version,
                    actual=actual,
                )

    def _write(
        self,
        events: Sequence[Event],
        *,
        parents: tuple[str, ...],
        read: tuple[str, ...],
        decides: tuple[Decision, ...] = (),
    ) -> Appended:
        history = self._view.history
        now = self._clock.now()
        transaction_id, *event_ids = new_identifiers(now, 1 + len(events))
        bases = {stream: history.version(stream) for stream in read}
        versions = dict(bases)
        keys: list[EventKey] = []
        records: list[tuple[int, Event]] = []
        for event_id, event in zip(event_ids, events, strict=True):
            stream = event.stream
            if stream not in bases:
                bases[stream] = versions[stream] = history.version(stream)
            versions[stream] += 1
            keys.append(EventKey(event_id, stream, event.type))
            records.append((versions[stream], event))
        transaction = Transaction(
            id=transaction_id,
            replica=self.replica_id,
            parents=parents,
            created_at=timestamp(now),
            bases=bases,
            events=tuple(keys),
            decides=decides,
        )
        content = encode(transaction, records)
        self._lock.mark()
        signature = self._directory.write(transaction_id, content, sync=self._sync)
        self._view.add(transaction, signature)
        try:
            self.ingestion.assign(event_ids)
        except OSError:
            # The transaction is committed: saying otherwise would have it written twice. Its numbers follow
            # with the next operation, before anybody is given a position.
            self._unnumbered = True
        self._keep_index()
        return Appended(transaction_id, tuple(event_ids), {stream: history.version(stream) for stream in bases})

    def close(self) -> IngestionLog:
        """Let go of everything; what remains is the numbering, for reading."""
        with contextlib.suppress(OSError), self._lock as died:
            if not died and not self.ingestion.changed_on_disk():
                self.ingestion.save_identity()
                self._view.save_index()
                self._lock.unmark()
        self.ingestion.close()
        self._directory.close()
        self._lock.close()
        return self.ingestion


def _check_events(events: Sequence[Event], *, allow_none: bool = False) -> None:
    if not events and not allow_none:
        raise Permanent("There is nothing to append.", hint="Give at least one event.")
    for event in events:
        _check_name(event.stream, "stream")
        _check_name(event.type, "type")
        if not isinstance(event.metadata, dict):
            raise Permanent(
                f"The metadata of an event for stream {event.stream!r} is {event.metadata!r}.",
                hint="Metadata is a dictionary; leave it out if there is none.",
            )


def _check_name(name: str, what: str) -> None:
    if isinstance(name, str) and name:
        if name.isascii():
            return
        with contextlib.suppress(UnicodeEncodeError):
            name.encode()
            return
    raise Permanent(
        f"An event needs a {what} that is text; this one has {name!r}.",
        hint='Write Event("account-1", {"amount": 5}, type="Deposited").',
    )
