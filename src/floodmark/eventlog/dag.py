"""The graph of transactions: depth, heads, ancestry. Pure, iterative, near-linear.

Terms
    present       its file is here and valid. A parent that is not present is *missing*.
    depth         0 if no parent is present, else one more than the deepest present parent.
    head          a present transaction that no present transaction names as its parent.
    dangling      present, with a missing parent. It stays readable.
    cyclic        it is its own ancestor. No writer can make one, since a parent's id is known before the
                  child's; such files are damage and count as not present.

Invariants
    E3  Depth, heads and the canonical order are a pure function of the set of files: the order in which
        they arrived, crashes and the index leave no trace in them.

Transitions
    `extend` adds transactions and recomputes only them and what descends from them; removal builds anew.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence

# One pass over the graph answers ancestry for this many transactions at once, one bit of an integer each.
# Passes cost time, bits cost memory (an eighth of a byte per bit and transaction); this balances them.
_BITS_PER_PASS = 2048


class Graph:
    """Transactions and their parents."""

    def __init__(self) -> None:
        self.parents: dict[str, tuple[str, ...]] = {}
        self.depth: dict[str, int] = {}
        self.cyclic: set[str] = set()
        self.heads: set[str] = set()
        self.merges = 0  # present transactions with more than one parent: the topology generation
        self._below: dict[str, list[str]] | None = {}

    def restore(self, parents: Mapping[str, tuple[str, ...]], depths: Mapping[str, int]) -> None:
        """Load a graph that was computed earlier; only into an empty one, without cyclic transactions."""
        self.parents = dict(parents)
        self.depth = dict(depths)
        self._below = None
        self.merges = sum(len(above) > 1 for above in parents.values())
        self.heads = set(parents.keys()).difference(*parents.values())

    @property
    def _children(self) -> dict[str, list[str]]:
        """Children by parent, present or missing. Built when first needed: reading a log does not need it."""
        if self._below is None:
            self._below = {}
            for transaction, above in self.parents.items():
                for parent in above:
                    self._below.setdefault(parent, []).append(transaction)
        return self._below

    def extend(self, new: Mapping[str, tuple[str, ...]]) -> bool:
        """Add transactions; returns whether the depth of an existing one changed."""
        if len(new) == 1 and self.add_last(*next(iter(new.items()))):
            return False
        children = self._children  # made before the new ones are known, or they would be in it twice
        for transaction, above in new.items():
            self.parents[transaction] = above
            for parent in above:
                children.setdefault(parent, []).append(transaction)
        affected = self._descendants(new)
        before = {t: self.depth.pop(t) for t in affected if t in self.depth}
        self.cyclic -= affected
        left = self._compute_depths(affected)
        if left:
            self.cyclic |= self._trim_to_cycles(left)
            self._compute_depths(left - self.cyclic)
        self._compute_heads(affected)
        added = self.depth if self.cyclic else new
        self.merges = (0 if self.cyclic else self.merges) + sum(len(self.parents[t]) > 1 for t in added)
        return any(self.depth.get(t) != depth for t, depth in before.items())

    def add_last(self, transaction: str, above: tuple[str, ...]) -> bool:
        """Add a transaction without descendants, such as an append; False, and nothing is done, if it has one."""
        children = self._children
        if transaction in children or transaction in above:
            return False
        self.parents[transaction] = above
        deepest = -1
        for parent in above:
            deepest = max(deepest, self.depth.get(parent, -1))
            children.setdefault(parent, []).append(transaction)
        self.depth[transaction] = deepest + 1
        self.heads.difference_update(above)
        self.heads.add(transaction)
        self.merges += len(above) > 1
        return True

    def children(self, transaction: str) -> Sequence[str]:
        """The present transactions that name this one as a parent."""
        return [child for child in self._children.get(transaction, ()) if child not in self.cyclic]

    def missing_parents(self, transaction: str) -> tuple[str, ...]:
        return tuple(parent for parent in self.parents[transaction] if parent not in self.depth)

    def dangling(self) -> dict[str, tuple[str, ...]]:
        """Each transaction with a missing parent, and the parents it misses."""
        missing = self._children.keys() - self.depth.keys()
        below = {child for parent in missing for child in self.children(parent)}
        return {transaction: self.missing_parents(transaction) for transaction in below}

    def _descendants(self, roots: Iterable[str]) -> set[str]:
        found = set(roots)
        pending = list(found)
        while pending:
            for child in self._children.get(pending.pop(), ()):
                if child not in found:
                    found.add(child)
                    pending.append(child)
        return found

    def _compute_depths(self, affected: set[str]) -> set[str]:
        """Give every affected transaction its depth, parents first; returns those that wait for themselves."""
        waiting = {t: sum(parent in affected for parent in self.parents[t]) for t in affected}
        ready = [t for t, count in waiting.items() if count == 0]
        done = 0
        while ready:
            transaction = ready.pop()
            done += 1
            depths = [self.depth[p] for p in self.parents[transaction] if p in self.depth]
            self.depth[transaction] = 1 + max(depths) if depths else 0
            for child in self._children.get(transaction, ()):
                if child in waiting:
                    # A parent named twice counts twice on both sides.
                    waiting[child] -= 1
                    if waiting[child] == 0:
                        ready.append(child)
        return set() if done == len(affected) else {t for t, count in waiting.items() if count > 0}

    def _trim_to_cycles(self, left: set[str]) -> set[str]:
        """Transactions that are their own ancestors. A mere descendant of a cycle is valid, and only dangling."""
        cyclic: set[str] = set()
        above = {t: {p for p in self.parents[t] if p in left} for t in left}
        settled: set[str] = set()
        for start in _last_left_first(above):
            if start in settled:
                continue
            # Of what is not settled yet, everything that descends from `start` is above it as well.
            loop, pending = {start}, [start]
            while pending:
                for child in self._children.get(pending.pop(), ()):
                    if child in left and child not in settled and child not in loop:
                        loop.add(child)
                        pending.append(child)
            settled |= loop
            if len(loop) > 1 or start in above[start]:
                cyclic |= loop
        return cyclic

    def _compute_heads(self, affected: set[str]) -> None:
        touched = set(affected)
        for transaction in affected:
            touched.update(self.parents[transaction])
        for transaction in touched:
            if transaction in self.depth and not self.children(transaction):
                self.heads.add(transaction)
            else:
                self.heads.discard(transaction)


def _last_left_first(above: Mapping[str, set[str]]) -> list[str]:
    """A walk upwards from every transaction, in the reverse of the order in which the walk leaves them for good."""
    left: list[str] = []
    seen: set[str] = set()
    for start in above:
        path = [] if start in seen else [(start, iter(above[start]))]
        seen.add(start)
        while path:
            one, rest = path[-1]
            following = next((other for other in rest if other not in seen), None)
            if following is None:
                left.append(one)
                path.pop()
            else:
                seen.add(following)
                path.append((following, iter(above[following])))
    return left[::-1]


def descending(graph: Graph, order: Sequence[str], pairs: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Of pairs (above, below), those whose second descends from its first.

    `order` lists every present transaction, parents first. One pass carries a bit for each of a few
    thousand `above`s down the graph, so the cost is a pass per that many, whatever the graph looks like.
    """
    wanted: dict[str, list[str]] = {}
    for above, below in pairs:
        wanted.setdefault(above, []).append(below)
    aboves = list(wanted)
    found: set[tuple[str, str]] = set()
    for start in range(0, len(aboves), _BITS_PER_PASS):
        some = aboves[start : start + _BITS_PER_PASS]
        masks = _seen_masks(graph, order, some)
        for place, above in enumerate(some):
            found.update(
                (above, below) for below in wanted[above] if below != above and masks.get(below, 0) >> place & 1
            )
    return found


def _seen_masks(graph: Graph, order: Sequence[str], marked: Sequence[str]) -> dict[str, int]:
    """For each transaction the set of marked ones among it and its ancestors, as bits."""
    bit = {transaction: 1 << place for place, transaction in enumerate(marked)}
    depth, parents = graph.depth, graph.parents
    # Nothing above the highest marked one can descend from any of them.
    floor = min(depth[transaction] for transaction in marked)
    masks: dict[str, int] = {}
    for transaction in order[bisect_left(order, floor, key=depth.__getitem__) :]:
        mask = bit.get(transaction, 0)
        for parent in parents[transaction]:
            mask |= masks.get(parent, 0)
        if mask:
            masks[transaction] = mask
    return masks


def is_ancestor(graph: Graph, one: str, *, of: str) -> bool:
    """Whether `of` descends from `one`; a search upwards that stops at `one`'s depth."""
    floor = graph.depth[one]
    pending, found = [of], {of}
    while pending:
        for parent in graph.parents[pending.pop()]:
            if parent == one:
                return True
            if parent not in found and graph.depth.get(parent, -1) > floor:
                found.add(parent)
                pending.append(parent)
    return False
