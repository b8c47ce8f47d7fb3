"""The history in memory: the valid transactions, their canonical order, the versions of their streams.

Terms
    canonical order   transactions by (depth, created_at as bytes, replica id, transaction id); the events of
                      a transaction keep their order in the file.
    version           the place of an event among its stream's events in that order, from 1.

E3 holds here too: whatever way the same files came in, `order` and every version are the same. That is
why an append is inserted by its key like any arriving file, and never simply put last.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet

from floodmark.eventlog.dag import Graph
from floodmark.eventlog.transactions import EventKey, Transaction

CanonicalKey = tuple[int, str, str, str]


class History:
    """A set of valid transactions in canonical order."""

    def __init__(self) -> None:
        self.graph = Graph()
        self.order: list[str] = []
        self._transactions: dict[str, Transaction] = {}
        self._writers: dict[str, list[str]] = {}
        self._versions: dict[str, int] = {}
        self._firsts: dict[str, dict[str, int]] = {}
        self._places: dict[str, tuple[str, int]] = {}

    @classmethod
    def of(cls, transactions: Iterable[Transaction]) -> History:
        history = cls()
        history.extend(transactions)
        return history

    @classmethod
    def restored(cls, ordered: Sequence[tuple[Transaction, int]]) -> History:
        """From transactions already in canonical order, each with its depth, none of them cyclic."""
        history = cls()
        history._transactions = {transaction.id: transaction for transaction, _ in ordered}
        for transaction in history._transactions.values():
            history._count_events(transaction)
        history.order = list(history._transactions)
        history.graph.restore(
            {t.id: t.parents for t in history._transactions.values()}, {t.id: depth for t, depth in ordered}
        )
        return history

    def extend(self, transactions: Iterable[Transaction]) -> None:
        """Add transactions, wherever in the order they belong."""
        new = {t.id: t for t in transactions if t.id not in self._transactions}
        if not new:
            return
        self._transactions.update(new)
        was_cyclic = set(self.graph.cyclic)
        moved = self.graph.extend({t.id: t.parents for t in new.values()})
        if moved or self.graph.cyclic != was_cyclic:
            # A missing parent arrived, so the depth of its descendants changed. This is rare, so everything is computed
            # again.
            self._lay_out()
            return
        for transaction in sorted(new.values(), key=lambda t: self.key(t.id)):
            self._insert(transaction)

    def add(self, transaction: Transaction) -> None:
        """Add a transaction that was just written. It has no descendants, so no other transaction moves."""
        if transaction.id in self._transactions or not self.graph.add_last(transaction.id, transaction.parents):
            self.extend([transaction])
            return
        self._transactions[transaction.id] = transaction
        self._insert(transaction)

    def _lay_out(self) -> None:
        self.order = sorted(self.graph.depth, key=self.key)
        self._writers, self._versions, self._firsts, self._places = {}, {}, {}, {}
        for transaction_id in self.order:
            self._count_events(self._transactions[transaction_id])

    def _insert(self, transaction: Transaction) -> None:
        depth = self.graph.depth
        last = (
            not self.order
            or depth[self.order[-1]] < depth[transaction.id]
            or self.key(self.order[-1]) < self.key(transaction.id)
        )
        if last:
            self.order.append(transaction.id)
        else:
            insort(self.order, transaction.id, key=self.key)
        self._count_events(transaction, sort=not last)

    def _count_events(self, transaction: Transaction, *, sort: bool = False) -> None:
        if len(transaction.events) == 1 and not sort:
            self._count_single(transaction, transaction.events[0])
            return
        counts: dict[str, int] = {}
        for ordinal, event in enumerate(transaction.events):
            self._places[event.event_id] = (transaction.id, ordinal)
            counts[event.stream] = counts.get(event.stream, 0) + 1
        for stream, count in counts.items():
            writers = self._writers.setdefault(stream, [])
            firsts = self._firsts.get(stream)
            if sort:
                insort(writers, transaction.id, key=self.key)
                self._firsts.pop(stream, None)
            else:
                writers.append(transaction.id)
                if firsts is not None:
                    firsts[transaction.id] = self._versions.get(stream, 0) + 1
            self._versions[stream] = self._versions.get(stream, 0) + count

    def _count_single(self, transaction: Transaction, event: EventKey) -> None:
        """The common case, separate for speed: opening a long history mostly runs this."""
        stream = event.stream
        self._places[event.event_id] = (transaction.id, 0)
        version = self._versions.get(stream, 0) + 1
        self._versions[stream] = version
        if version == 1:
            self._writers[stream] = [transaction.id]
        else:
            self._writers[stream].append(transaction.id)
        if stream in self._firsts:
            self._firsts[stream][transaction.id] = version

    def key(self, transaction_id: str) -> CanonicalKey:
        """Text compares as its UTF-8 bytes do, so `created_at` needs no conversion."""
        transaction = self._transactions[transaction_id]
        return (self.graph.depth[transaction_id], transaction.created_at, transaction.replica, transaction_id)

    def __contains__(self, transaction_id: object) -> bool:
        return transaction_id in self.graph.depth

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, transaction_id: str) -> Transaction:
        return self._transactions[transaction_id]

    def __iter__(self) -> Iterator[Transaction]:
        """In canonical order."""
        return map(self._transactions.__getitem__, self.order)

    def all_of(self, transaction_ids: Iterable[str]) -> list[Transaction]:
        """These transactions, the cyclic ones too."""
        return [self._transactions[t] for t in transaction_ids]

    @property
    def heads(self) -> tuple[str, ...]:
        return tuple(sorted(self.graph.heads))

    @property
    def cyclic(self) -> frozenset[str]:
        return frozenset(self.graph.cyclic)

    def version(self, stream: str) -> int:
        """How many events the stream has; 0 if it does not exist."""
        return self._versions.get(stream, 0)

    def streams(self) -> Mapping[str, int]:
        """Every stream and its version, in order of name."""
        return dict(sorted(self._versions.items()))

    def writers(self, stream: str) -> list[Transaction]:
        """The transactions that extend the stream, in canonical order."""
        return [self._transactions[t] for t in self._writers.get(stream, ())]

    def first_version(self, stream: str, transaction_id: str) -> int:
        """The version of the transaction's first event on the stream."""
        firsts = self._firsts.get(stream)
        if firsts is None:
            firsts, version = {}, 1
            for transaction in self.writers(stream):
                firsts[transaction.id] = version
                version += sum(event.stream == stream for event in transaction.events)
            self._firsts[stream] = firsts
        return firsts[transaction_id]

    def place(self, event_id: str) -> tuple[str, int] | None:
        """The transaction that contains the event, and the event's index in it."""
        return self._places.get(event_id)

    def event_ids(self) -> AbstractSet[str]:
        return self._places.keys()

    def in_order(self, event_ids: Iterable[str]) -> list[str]:
        """These events in canonical order."""
        places = {event_id: self._places[event_id] for event_id in event_ids}
        keys = {transaction_id: self.key(transaction_id) for transaction_id, _ in places.values()}
        return sorted(places, key=lambda event_id: (keys[places[event_id][0]], places[event_id][1]))

    def event_keys(self) -> Iterator[tuple[Transaction, int, EventKey]]:
        """Every event in canonical order, with its transaction and its index in it."""
        for transaction in self:
            for ordinal, event in enumerate(transaction.events):
                yield transaction, ordinal, event
