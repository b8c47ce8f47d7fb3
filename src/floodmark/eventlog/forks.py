"""Forks: concurrent changes of two replicas to one stream. Pure.

Terms
    fork        two or more concurrent transactions that extend one stream from the same base, and no
                decision that covers them all.
    unit        forks that are decided together: those that share a transaction, since it is atomic, and on
                one stream those whose branches merely go on from another's.
    decision    a merge transaction that says which fork it settles. Having *seen* both sides is not a
                decision: the next ordinary append sees them too.
    side        what became of one branch: a fork's transaction, or several that were decided already.

Files of other tools mark no decisions. Their merge transactions name exactly the fork's transactions as
parents and write to its stream; that much is taken for a decision, and nothing less.

Only transactions that write to a stream can fork it: one that merely read it has changed nothing.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from itertools import combinations, pairwise, permutations, product

from floodmark.eventlog.dag import Graph, descending
from floodmark.eventlog.history import History
from floodmark.eventlog.transactions import Decision, RecordedEvent


@dataclass(frozen=True, slots=True)
class StreamFork:
    """The fork of one stream: the common version, and the transactions that continue from it."""

    stream: str
    base_version: int
    transactions: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Branch:
    """One side of a fork: its first transactions, and all their descendants that have not seen another side."""

    roots: tuple[str, ...]
    transactions: tuple[str, ...]
    heads: tuple[str, ...]
    events: tuple[RecordedEvent, ...] = ()

    def on(self, stream: str) -> list[RecordedEvent]:
        """The branch's events on one stream."""
        return [event for event in self.events if event.stream == stream]


@dataclass(frozen=True, slots=True)
class Fork:
    """A fork over one or more streams, to be decided as one.

    `later` holds what writers added who had seen several sides already, without deciding.
    """

    parts: tuple[StreamFork, ...]
    branches: tuple[Branch, ...]
    later: tuple[RecordedEvent, ...] = ()
    reason: str | None = None

    @property
    def stream(self) -> str:
        return self.parts[0].stream

    @property
    def base_version(self) -> int:
        return self.parts[0].base_version

    @property
    def streams(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(part.stream for part in self.parts))

    @property
    def transactions(self) -> tuple[str, ...]:
        """Every transaction that takes part, sorted."""
        return tuple(sorted({t for part in self.parts for t in part.transactions}))

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """The header value of a transaction that resolves this fork."""
        return tuple(Decision(part.stream, part.transactions) for part in self.parts)


@dataclass(frozen=True, slots=True)
class IdentityConflict:
    """Two concurrent transactions under one replica identity: two writers share it (E4)."""

    replica: str
    transactions: tuple[str, str]


def find_forks(history: History) -> list[tuple[StreamFork, ...]]:
    """Every open unit, in order of its first stream and base."""
    undecided = _undecided_groups(history)
    pairs = {pair for group in undecided.values() for pair in permutations(group, 2)}
    related = descending(history.graph, history.order, pairs)
    forks: list[StreamFork] = []
    for (stream, base), group in undecided.items():
        concurrent = {
            t
            for one, other in combinations(group, 2)
            if (one, other) not in related and (other, one) not in related
            for t in (one, other)
        }
        if concurrent:
            forks.append(StreamFork(stream, base, tuple(sorted(concurrent))))
    forks.sort(key=_place)
    return _units(forks, _continued(history, forks))


def _continued(history: History, forks: list[StreamFork]) -> set[StreamFork]:
    """Forks that go on from the one before on their stream, each side from another side of it.

    Two branches of equal length agree on the number of their bases at every step, though they share
    only the first.
    """
    neighbours = [(one, other) for one, other in pairwise(forks) if one.stream == other.stream]
    pairs = {pair for one, other in neighbours for pair in product(one.transactions, other.transactions)}
    related = descending(history.graph, history.order, pairs)
    continued = set()
    for one, other in neighbours:
        from_side = [tuple(a for a in one.transactions if (a, t) in related) for t in other.transactions]
        if all(len(sides) == 1 for sides in from_side) and len(set(from_side)) == len(from_side):
            continued.add(other)
    return continued


def _undecided_groups(history: History) -> dict[tuple[str, int], list[str]]:
    groups: dict[tuple[str, int], list[str]] = defaultdict(list)
    # By stream and member, so that many decisions on one stream do not multiply with many forks of it.
    decisions: dict[tuple[str, str], list[frozenset[str]]] = defaultdict(list)
    unmarked: set[tuple[str, frozenset[str]]] = set()
    for transaction in history:
        for stream in transaction.streams:
            base = transaction.bases.get(stream)
            if base is not None:
                groups[stream, base].append(transaction.id)
            if transaction.decides is None and len(transaction.parents) > 1:
                unmarked.add((stream, frozenset(transaction.parents)))
        for decision in transaction.decides or ():
            covered = frozenset(decision.transaction_ids)
            for member in covered:
                decisions[decision.stream_id, member].append(covered)
    return {
        (stream, base): group
        for (stream, base), group in groups.items()
        if len(group) > 1
        and (stream, frozenset(group)) not in unmarked
        and not any(covered.issuperset(group) for covered in decisions.get((stream, group[0]), ()))
    }


def _units(forks: list[StreamFork], continued: set[StreamFork]) -> list[tuple[StreamFork, ...]]:
    """Join the forks that share a transaction, and those that continue from the one before."""
    unit_of: dict[str, list[StreamFork]] = {}
    before: list[StreamFork] = []
    for fork in forks:
        touched = [unit for t in fork.transactions if (unit := unit_of.get(t)) is not None]
        if fork in continued:
            touched.append(before)
        joined = [part for unit in {id(unit): unit for unit in touched}.values() for part in unit]
        joined.append(fork)
        for part in joined:
            unit_of.update(dict.fromkeys(part.transactions, joined))
        before = unit_of[fork.transactions[0]]
    units = {id(unit): tuple(sorted(unit, key=_place)) for unit in unit_of.values()}
    return sorted(units.values(), key=lambda unit: _place(unit[0]))


def _place(fork: StreamFork) -> tuple[str, int]:
    return fork.stream, fork.base_version


def find_branches(history: History, parts: tuple[StreamFork, ...]) -> tuple[tuple[Branch, ...], tuple[str, ...]]:
    """The sides of a unit, and the transactions that have seen more than one of them."""
    graph = history.graph
    members = {t for part in parts for t in part.transactions}
    region = _below(graph, members)
    ordered = sorted(region, key=history.key)
    sides = _sides(history, parts, members, ordered)
    side_of = {root: place for place, side in enumerate(sides) for root in side}
    toward: dict[str, set[int]] = {}
    for t in reversed(ordered):
        own = {side_of[t]} if t in side_of else set()
        toward[t] = own.union(*(toward.get(child, ()) for child in graph.children(t)))
    # What leads to a side belongs to it; below the sides, what descends from it.
    label: dict[str, set[int]] = {}
    for t in ordered:
        label[t] = toward[t] or set().union(*(label.get(parent, ()) for parent in graph.parents[t]))
    later = tuple(t for t in ordered if not toward[t] and len(label[t]) > 1)
    branches = tuple(
        Branch(
            roots=tuple(side),
            transactions=tuple(t for t in ordered if place in label[t] and t not in set(later)),
            heads=tuple(sorted(t for t in graph.heads if place in label.get(t, ()))),
        )
        for place, side in enumerate(sides)
    )
    return branches, later


def _below(graph: Graph, roots: set[str]) -> set[str]:
    found, pending = set(roots), list(roots)
    while pending:
        for child in graph.children(pending.pop()):
            if child not in found:
                found.add(child)
                pending.append(child)
    return found


def _sides(history: History, parts: tuple[StreamFork, ...], members: set[str], ordered: list[str]) -> list[list[str]]:
    """The latest members of each branch, those together that a decision has already joined."""
    related = descending(history.graph, ordered, permutations(members, 2))
    passed = {above for above, _ in related}
    side_of = {t: [t] for t in ordered if t in members and t not in passed}
    for decision in _decisions_below(history, parts, members, ordered):
        joined = list({id(side_of[t]): side_of[t] for t in decision if t in side_of}.values())
        if 1 < len(joined) < len({id(side) for side in side_of.values()}):
            side = [t for group in joined for t in group]
            side_of.update(dict.fromkeys(side, side))
    return list({id(side): side for side in side_of.values()}.values())


def _decisions_below(
    history: History, parts: tuple[StreamFork, ...], members: set[str], ordered: list[str]
) -> list[tuple[str, ...]]:
    streams = {part.stream for part in parts}
    decisions: list[tuple[str, ...]] = []
    for transaction in (history[t] for t in ordered):
        if transaction.decides is None and members.issuperset(transaction.parents) and transaction.streams & streams:
            decisions.append(transaction.parents)
        decisions += [d.transaction_ids for d in transaction.decides or () if d.stream_id in streams]
    return decisions


def identity_conflicts(history: History, *, replica: str | None = None) -> list[IdentityConflict]:
    """The first conflict of each identity, or of the one asked for."""
    graph = history.graph
    chains: dict[str, list[str]] = defaultdict(list)
    for transaction in history:
        if replica is None or transaction.replica == replica:
            chains[transaction.replica].append(transaction.id)
    if not _doubtful(graph, chains):
        return []
    # Descendants of a missing parent may be related through it: without proof, no conflict is reported.
    unknown = _below(graph, set(graph.dangling()))
    doubtful = _doubtful(graph, {owner: [t for t in chain if t not in unknown] for owner, chain in chains.items()})
    related = descending(graph, history.order, (pair for _, pair in doubtful))
    first: dict[str, tuple[str, str]] = {}
    for owner, pair in doubtful:
        if pair not in related:
            first.setdefault(owner, pair)
    return [IdentityConflict(owner, pair) for owner, pair in sorted(first.items())]


def _doubtful(graph: Graph, chains: dict[str, list[str]]) -> list[tuple[str, tuple[str, str]]]:
    """Neighbours of which the later does not name the earlier as its parent.

    In canonical order the neighbours of a chain descend from each other; if all do, so do all pairs.
    """
    parents = graph.parents
    return [
        (owner, (one, other))
        for owner, chain in chains.items()
        for one, other in pairwise(chain)
        if one not in parents[other]
    ]
