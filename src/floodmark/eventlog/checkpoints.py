"""The position of a consumer, in a form that survives a lost numbering.

Terms
    applied      the events that a consumer has taken. Ordinarily all up to a number, less those that were
                 absent when it passed them.
    frontier     of the applied transactions, those with no applied child;
    excluded     parents of applied transactions that are not applied themselves. From the frontier upwards,
                 without entering what is excluded, one meets exactly the applied transactions.
    partial      transactions of which only some events are applied.

Invariants
    E11  A checkpoint is believed by number only in the numbering it was made in, and only while its number still
         means the event it meant. Otherwise the applied events are found again from the graph, the new
         numbering is read from its start, and what was applied before is passed over: nothing is skipped
         because numbers moved, and nothing is applied twice.

Transitions
    resume    load → by number, or (E11) replaying
    take      one event is applied: number, frontier, excluded and partial move together
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from floodmark.errors import Corrupt, NotLeader, Permanent
from floodmark.eventlog.history import History
from floodmark.eventlog.identifiers import seq_of
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.transactions import Transaction
from floodmark.files import durable_write, make_directory, try_lock


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """The stored form."""

    log: str
    seq: int = 0
    event_id: str | None = None
    passed_absent: list[int] = []
    frontier: list[str] = []
    excluded: list[str] = []
    partial: dict[str, list[int]] = {}
    # Up to this number the events may have been applied before the numbering changed.
    replay_until: int = 0


def encode_checkpoint(checkpoint: Checkpoint) -> str:
    return msgspec.json.encode(checkpoint).decode()


def decode_checkpoint(text: str, *, name: str, ingestion: IngestionLog) -> Checkpoint:
    """A stored checkpoint, or the bare position that other tools of this format keep."""
    try:
        return msgspec.json.decode(text, type=Checkpoint)
    except (msgspec.DecodeError, UnicodeDecodeError):
        pass
    try:
        seq = seq_of(UUID(text.strip()))
    except ValueError as error:
        raise Corrupt(
            f"The checkpoint of projection {name!r} cannot be read.",
            hint="Restore it, or remove it together with the projection's results to rebuild them.",
        ) from error
    # A bare position does not name its numbering. It can only refer to the log that existed before this tool first
    # opened it.
    if not ingestion.adopted or seq > ingestion.last:
        raise Permanent(
            f"The checkpoint of projection {name!r} is a position without a log identity, and the ingestion "
            "log that it refers to does not exist.",
            hint="Remove it together with the projection's results. The projection is then rebuilt.",
        )
    return Checkpoint(log=ingestion.identity, seq=seq, event_id=ingestion.entry_at(seq))


class Applied:
    """The events that one consumer has applied; the in-memory form of a checkpoint."""

    def __init__(self, checkpoint: Checkpoint | None, *, name: str, history: History, ingestion: IngestionLog) -> None:
        self._name = name
        self._history = history
        self._ingestion = ingestion
        saved = checkpoint or Checkpoint(log=ingestion.identity)
        self._frontier = set(saved.frontier)
        self._excluded = set(saved.excluded)
        self._partial = {t: set(ordinals) for t, ordinals in saved.partial.items()}
        self._before: set[str] | None = None
        by_number = saved.log == ingestion.identity and (
            saved.seq == 0 or ingestion.entry_at(saved.seq) == saved.event_id
        )
        if by_number:
            self.seq, self._event_id = saved.seq, saved.event_id
            self._passed_absent = set(saved.passed_absent)
            self._replay_until = saved.replay_until
            if not saved.frontier and saved.seq:
                self._rebuild_frontier()
        else:
            self.seq, self._event_id = 0, None
            self._passed_absent = set()
            self._replay_until = ingestion.last
        if self._replay_until > self.seq:
            self._before = self._reachable()

    def checkpoint(self) -> Checkpoint:
        return Checkpoint(
            log=self._ingestion.identity,
            seq=self.seq,
            event_id=self._event_id,
            passed_absent=sorted(self._passed_absent),
            frontier=sorted(self._frontier),
            excluded=sorted(self._excluded),
            partial={t: sorted(ordinals) for t, ordinals in sorted(self._partial.items())},
            replay_until=self._replay_until,
        )

    def pending(self) -> Iterator[tuple[int, str, tuple[str, int] | None]]:
        """(seq, event, place) above the checkpoint; place is None for what is absent or applied already."""
        for seq, event_id in self._ingestion.entries_after(self.seq):
            place = self._history.place(event_id)
            yield seq, event_id, None if place is None or self._is_applied(event_id, place) else place

    def _is_applied(self, event_id: str, place: tuple[str, int]) -> bool:
        transaction_id, ordinal = place
        if self._before is not None and (
            transaction_id in self._before or ordinal in self._partial.get(transaction_id, ())
        ):
            return True
        # Numbered more than once: it was absent in between, and may have been applied under an earlier number.
        return event_id in self._ingestion.renumbered and any(
            seq <= self.seq and seq not in self._passed_absent for seq in self._ingestion.numbers_of(event_id)
        )

    def take(self, seq: int, event_id: str, place: tuple[str, int] | None) -> None:
        """Move past a number; with a place, its event has been applied."""
        self.seq, self._event_id = seq, event_id
        if place is None:
            if self._history.place(event_id) is None:
                self._passed_absent.add(seq)
            return
        transaction_id, ordinal = place
        transaction = self._history[transaction_id]
        done = self._partial.setdefault(transaction_id, set())
        done.add(ordinal)
        if len(done) == len(transaction.events):
            del self._partial[transaction_id]
            self._complete(transaction)

    def _complete(self, transaction: Transaction) -> None:
        if transaction.id in self._excluded:
            self._excluded.discard(transaction.id)  # a child of it is applied already
        else:
            self._frontier.add(transaction.id)
        for parent in transaction.parents:
            if parent in self._frontier:
                self._frontier.discard(parent)
            elif not self._is_complete(parent):
                self._excluded.add(parent)

    def _is_complete(self, transaction_id: str) -> bool:
        """Whether all events of a transaction are applied. If its file is missing, it counts as not applied: if the
        numbering is also lost, it is applied again instead of being missed.
        """
        if self._before is not None and transaction_id in self._before:
            return True
        if transaction_id not in self._history:
            return False
        return all(
            any(seq <= self.seq and seq not in self._passed_absent for seq in self._ingestion.numbers_of(key.event_id))
            for key in self._history[transaction_id].events
        )

    def _reachable(self) -> set[str]:
        """The applied transactions, found from the frontier (E11)."""
        found = set(self._frontier)
        pending = list(found)
        while pending:
            transaction_id = pending.pop()
            if transaction_id not in self._history:
                raise Permanent(
                    f"Projection {self._name!r} has applied transaction {transaction_id}, which does not "
                    "exist in this log, and the numbering of its checkpoint is lost.",
                    hint="Restore the file (merge or check out the branch that has it), then run it again.",
                )
            for parent in self._history[transaction_id].parents:
                if parent not in self._excluded and parent not in found:
                    found.add(parent)
                    pending.append(parent)
        return found

    def _rebuild_frontier(self) -> None:
        """For a position that another tool stored: all events up to it count as applied."""
        end, self.seq = self.seq, 0
        last = self._event_id
        for seq, event_id in list(self._ingestion.entries_after(0)):
            if seq > end:
                break
            self.take(seq, event_id, self._history.place(event_id))
        self.seq, self._event_id = end, last


class CheckpointFiles:
    """Checkpoints in `<root>/checkpoints`, one file for each name."""

    def __init__(self, root: Path) -> None:
        self._folder = root / "checkpoints"

    def path(self, name: str) -> Path:
        return self._folder / f"{name.encode().hex()}.json"

    def load(self, name: str) -> str | None:
        try:
            return self.path(name).read_text()
        except FileNotFoundError:
            return None

    def save(self, name: str, text: str) -> None:
        make_directory(self._folder)
        durable_write(self.path(name), text.encode())

    def remove(self, name: str) -> None:
        self.path(name).unlink(missing_ok=True)


@contextlib.contextmanager
def leadership(root: Path, name: str) -> Iterator[None]:
    """Hold the lock of a projection on this replica while the block runs; else `NotLeader`."""
    folder = root / "locks"
    make_directory(folder)
    descriptor = os.open(folder / f"{name.encode().hex()}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    try:
        if not try_lock(descriptor):
            raise NotLeader(
                f"Projection {name!r} is already running in another process.",
                hint="One process is enough. If it hangs, stop it and run this again.",
            )
        yield
    finally:
        os.close(descriptor)
