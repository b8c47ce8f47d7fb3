"""Writing: one operation at a time, each based on all existing files.

Transitions
    open        lock → clear the staging directory → identity → load → number what is new
    operation   lock → catch up, if anything has changed since → what is to be done
    append      check versions → write the file (E9) → number its events
    merge       only if the history is still the one that the resolver saw
    close       lock → bind the numbering's identity → write the index
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from floodmark.clock import Clock
from floodmark.errors import LogLocked, Permanent, ReplicaIdentityConflict, VersionConflict
from floodmark.eventlog import git, replica
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.forks import Fork, identity_conflicts
from floodmark.eventlog.identifiers import new_identifier, new_identifiers, timestamp
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.reconcile import merge_parents
from floodmark.eventlog.transactions import Decision, Event, EventKey, Transaction, encode
from floodmark.eventlog.view import View
from floodmark.files import durable_write, make_directory, try_lock

# ── One writer at a time: the lock that an operation holds while it writes ───────────────────────────────────────────
# The lock is `flock` on `<root>/.lock`, the same that other tools of this format take, held for one operation
# and not for as long as a log is open: readers need no lock, and several processes may take turns.
#
# E5  A writer acts on everything that earlier writers made durable. Before a handle changes files it leaves its
#     own mark in the lock file; whoever finds the mark of another cannot tell whether that one finished, looks
#     at
#     every file again, and takes the mark away.
#
# A mark stays when its operation ends. A handle that finds its own knows that nobody has been there since, so
# one that writes alone marks once and not with every append.


_POLL_SECONDS = 0.005
# The first byte says whether there is a mark at all, what follows says whose.
_MARKED, _UNMARKED = b"1", b"0"


class WriterLock:
    """The lock of one log directory: `with lock as died:`, where `died` says that all must be looked at again."""

    def __init__(self, root: Path, *, wait_seconds_max: float) -> None:
        self._root = root
        self._wait_seconds_max = wait_seconds_max
        self._path = str(root / ".lock")
        self._mine = _MARKED + secrets.token_hex(8).encode()
        self._found = b""
        self._changing = False
        self._failed = False
        self._open()

    def _open(self) -> None:
        self._descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._inode = os.fstat(self._descriptor).st_ino

    def __enter__(self) -> bool:
        """Take the lock; says whether an operation, of another or of this handle, may have ended half-way."""
        self._acquire()
        self._changing = False
        self._found = os.pread(self._descriptor, len(self._mine), 0)
        return self._failed or (self._found != self._mine and self._found.startswith(_MARKED))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self._failed = False
                if self._found != self._mine and self._found.startswith(_MARKED):
                    self._write(_UNMARKED)
            elif self._changing:
                # The mark is our own and would tell this handle nothing.
                self._failed = True
        finally:
            fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def mark(self) -> None:
        """Set the mark before files change; only under the lock."""
        self._changing = True
        if self._found != self._mine:
            self._write(self._mine)

    def unmark(self) -> None:
        """Clear the mark after all changes are finished; only under the lock."""
        if self._found == self._mine:
            self._write(_UNMARKED)

    def _write(self, mark: bytes) -> None:
        os.pwrite(self._descriptor, mark, 0)
        self._found = mark

    def _acquire(self) -> None:
        if try_lock(self._descriptor) and self._is_in_place():
            return
        deadline = time.monotonic() + self._wait_seconds_max
        while not (try_lock(self._descriptor) and self._is_in_place()):
            if time.monotonic() >= deadline:
                raise LogLocked(
                    f"Another process is writing to the event log {self._root}.",
                    hint="Run the same command again when it has finished, or open the log read-only.",
                )
            time.sleep(_POLL_SECONDS)

    def _is_in_place(self) -> bool:
        """Whether the file we hold is still the one that others will lock; `git clean` may have removed it."""
        try:
            if os.stat(self._path).st_ino == self._inode:  # noqa: PTH116 - in every append
                return True
        except FileNotFoundError:
            pass
        os.close(self._descriptor)
        self._open()
        return try_lock(self._descriptor) and self._is_in_place()

    def close(self) -> None:
        os.close(self._descriptor)


# ── Writer ───────────────────────────────────────────────────────────────────────────────────────────────────────────


class Appended(msgspec.Struct, frozen=True):
    """The result of an append: its transaction, its event ids, and the new versions of its streams."""

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
        """Write the merge transaction of a fork; None if files arrived while the resolver ran."""
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
        """Give this replica a new identity, after an identity conflict."""
        with self._lock as died:
            self._know_all(died=died)
            self.replica_id = replica.new_identity(self._root, make=self._identifier)
            self.ingestion.close()
            self.ingestion = self._open_ingestion()
            self._own_conflict = None
        return self.replica_id

    def restore_line_ends(self) -> int:
        """Restore files that a checkout converted to CRLF; returns how many.

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
        """Number events that an append could not number, before a position is returned."""
        if self._unnumbered:
            self.refresh()

    def refresh(self) -> None:
        """Read every file again, and number new events."""
        with self._lock:
            self._catch_up()

    def _know_all(self, *, died: bool) -> None:
        """Read all changes (E5); the first step of every operation under the lock."""
        moved = self.ingestion.changed_on_disk() or self._view.stamp != self._directory.stamp()
        if died or moved or self._unnumbered:
            self._catch_up()

    def _catch_up(self) -> None:
        # `git clean` may have removed everything that git ignores.
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
                f"Transactions {one} and {other} are concurrent and both from replica {self.replica_id}: two "
                "writers use the same identity.",
                hint="All events stay readable. Run `floodmark log init --new-identity` here, then append again.",
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
                    hint="Read the stream again, decide again, and append with the version that you read.",
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
            # The transaction is committed: an error would make the caller write it twice. Its numbers are assigned by
            # the next operation, before a position is returned.
            self._unnumbered = True
        self._keep_index()
        return Appended(transaction_id, tuple(event_ids), {stream: history.version(stream) for stream in bases})

    def close(self) -> IngestionLog:
        """Release all resources; the numbering stays available for reading."""
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
                hint="Metadata must be a dictionary. Omit it if there is none.",
            )


def _check_name(name: str, what: str) -> None:
    if isinstance(name, str) and name:
        if name.isascii():
            return
        with contextlib.suppress(UnicodeEncodeError):
            name.encode()
            return
    raise Permanent(
        f"An event's {what} must be text; this one is {name!r}.",
        hint='Write Event("account-1", {"amount": 5}, type="Deposited").',
    )
