"""Where forwarded rows end up: stores that forward to each other, and an address at which somebody else may answer.

A row is named by its way: `abc` was captured at store a, and came to c by way of b. It must not come to a store twice. (That
it comes by two ways is no circle: then two rows of different origins arrive.)
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put

STORES = "abc"


class Sink(NamedTuple):
    to: int
    watermark: int = 0


class Store(NamedTuple):
    rows: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    """The stores that rows of others are said to have passed on their way here, in the order in which they were named."""
    sinks: tuple[Sink, ...] = ()


class Circle(NamedTuple):
    stores: tuple[Store, ...]
    left: tuple[int, ...]


class CircleModel(Model):
    """Three stores, sinks between any of them, and an edge that lies."""

    name = "circles"
    about = (
        "Three stores; people add forward sinks between any two of them, at any time; rows are captured at each. An edge says "
        "of its rows, or without any, that they passed through another store."
    )
    sizes = frozenset({"rows"})
    bounds = {"trouble": 5, "sink": 4, "captured": 2, "lie": 1, "rows": 2}
    large = {"trouble": 6, "sink": 5}
    bugs = {
        "provenance is cut": Bug(
            "a chunk names the last store that its rows passed, and leaves out the others", ("H4",)
        ),
        "only the origin is looked at": Bug(
            "a store refuses what comes from itself directly, and nothing else", ("H4",)
        ),
        "provenance is recorded for new rows only": Bug(
            "a store names where its own rows were captured, and not what others named to it", ("H4",)
        ),
        "a chunk without rows names stores": Bug(
            "what an empty chunk says about rows that there are none of is recorded", ("progress",), rules=("H5",)
        ),
        "an edge speaks of any store": Bug(
            "a token that is bound to one store may say that its rows passed another", ("progress",), rules=("H5",)
        ),
    }

    def initial(self) -> Circle:
        return Circle((Store(),) * len(STORES), self.plenty())

    def steps(self, state: Circle) -> Iterator[Step]:
        for place, store in enumerate(state.stores):
            name = STORES[place]
            if len([row for row in store.rows if len(row) == 1]) < self.bound["rows"] - 1:
                if (poorer := self.spend(state, "captured")) is not None:
                    yield f"{name} captures a row", _with(poorer, place, store._replace(rows=(*store.rows, name)))
            for to in range(len(STORES)):
                if to == place or any(sink.to == to for sink in store.sinks):
                    continue
                if (poorer := self.spend(state, "sink")) is not None:
                    more = store._replace(sinks=(*store.sinks, Sink(to)))
                    yield f"{name} gets a sink to {STORES[to]}", _with(poorer, place, more)
            for index, sink in enumerate(store.sinks):
                yield from self._send(state, place, index, sink)
        yield from self._lies(state)

    def _path(self, place: int, store: Store) -> tuple[str, ...]:
        own = STORES[place]
        if self.bug == "provenance is cut":
            return (*store.named[-1:], own) if len(store.named) < 2 else (store.named[-1], own)[-1:]
        if self.bug == "only the origin is looked at":
            return (own,)
        return tuple(dict.fromkeys((*store.named, own)))

    def _send(self, state: Circle, place: int, index: int, sink: Sink) -> Iterator[Step]:
        store, target = state.stores[place], state.stores[sink.to]
        path = self._path(place, store)
        if sink.watermark == len(store.rows) or STORES[sink.to] in path:
            return  # nothing new; or refused, and blocked until somebody removes it
        row = store.rows[sink.watermark]
        named = path if self.bug != "provenance is recorded for new rows only" else (row[0],)
        moved = put(store.sinks, index, sink._replace(watermark=sink.watermark + 1))
        after = _with(state, place, store._replace(sinks=moved))
        came = target._replace(
            rows=(*target.rows, row + STORES[sink.to]), named=tuple(dict.fromkeys((*target.named, *named)))
        )
        yield f"{STORES[place]} sends {row} to {STORES[sink.to]}", _with(after, sink.to, came)

    def _lies(self, state: Circle) -> Iterator[Step]:
        """An edge of a store names another: H5 keeps both forms of it from being recorded."""
        believed = {
            "a chunk without rows names stores": "without a row",
            "an edge speaks of any store": "with its own row",
        }.get(self.bug or "")
        for place, store in enumerate(state.stores):
            for lie in STORES:
                if believed and lie != STORES[place] and (poorer := self.spend(state, "lie")) is not None:
                    named = store._replace(named=tuple(dict.fromkeys((*store.named, lie))))
                    yield f"an edge of {STORES[place]} names {lie}, {believed}", _with(poorer, place, named)

    def broken(self, state: Circle) -> str | None:
        for store in state.stores:
            for row in store.rows:
                if len(set(row)) < len(row):
                    return f"H4 row {row} has come to a store where it was"
        return None

    def done(self, state: Circle) -> bool:
        """Everything has arrived, but where it would go round."""
        for place, store in enumerate(state.stores):
            passed = {STORES[place], *(letter for row in store.rows for letter in row)}
            for sink in store.sinks:
                if sink.watermark < len(store.rows) and STORES[sink.to] not in passed:
                    return False
        return True


class Address(NamedTuple):
    watermark: int = 0
    pinned: str = ""
    sent: bool = False
    """A chunk is under way, on a connection on which the other side has said who it is."""
    behind: str = "hub"
    """Who answers at the address now."""
    hub: int = 0
    """How many rows our hub has."""
    left: tuple[int, ...] = ()


class AddressModel(Model):
    """One sink, and what answers at its address."""

    name = "address"
    about = (
        "A store forwards to an address at which its hub answers, or another hub, or something that says 200 to everything; "
        "that changes at any time, also between a question and a chunk."
    )
    sizes = frozenset({"rows"})
    bounds = {"trouble": 4, "changed": 4, "rows": 3}
    large = {"trouble": 8, "changed": 8}
    bugs = {
        "any 2xx counts": Bug("an acknowledgement is a status", ("D8",)),
        "any hub counts": Bug("an acknowledgement of the right form counts, whichever hub gives it", ("D8",)),
        "the hub is asked once": Bug("who answers is asked at first contact only, and then its status counts", ("D8",)),
        "the hub is not remembered": Bug("each process delivers to whichever hub it meets", ("D8",)),
    }

    def initial(self) -> Address:
        return Address(left=self.plenty())

    def steps(self, state: Address) -> Iterator[Step]:
        for who in ("hub", "another hub", "a page"):
            if who != state.behind and (poorer := self.spend(state, "changed")) is not None:
                yield f"{who} is at the address", poorer._replace(behind=who)
        if state.pinned and self.bug == "the hub is not remembered" and not state.sent:
            yield "the process starts anew", state._replace(pinned="")
        if state.sent:
            yield from self._answer(state)
        elif state.watermark < self.bound["rows"]:
            yield from self._ask(state)

    def _ask(self, state: Address) -> Iterator[Step]:
        """D8: who is there is asked first, and the first hub is the one."""
        if state.behind == "a page":
            if self.bug == "any 2xx counts" or (self.bug == "the hub is asked once" and state.pinned):
                yield "sends a chunk", state._replace(sent=True)
            return
        pinned = state.pinned or ("hub" if self.bug != "the hub is not remembered" else state.behind)
        if not state.pinned and state.behind != "hub" and self.bug != "the hub is not remembered":
            return  # it would be another sink: this one is about the hub that was met first
        if state.behind == pinned or self.bug in {"any hub counts", "the hub is asked once", "any 2xx counts"}:
            yield "asks who is there, and sends a chunk", state._replace(sent=True, pinned=pinned)

    def _answer(self, state: Address) -> Iterator[Step]:
        """D8: only the word of our hub, about this chunk, counts. Anything else stops the sink until it is back."""
        counts = {
            "any 2xx counts": True,
            "the hub is asked once": True,
            "any hub counts": state.behind != "a page",
        }.get(self.bug or "", state.behind == (state.pinned or "hub"))
        hub = max(state.hub, state.watermark + 1) if state.behind == "hub" else state.hub
        label = f"{state.behind} answers, and that counts" if counts else f"{state.behind} answers, which is nothing"
        yield label, state._replace(sent=False, hub=hub, watermark=state.watermark + counts)

    def broken(self, state: Address) -> str | None:
        if state.watermark > state.hub:
            return f"D8 row {state.watermark} counts as delivered, and the hub does not have it"
        return None

    def done(self, state: Address) -> bool:
        # While something else is at the address, nothing can be done; that it goes away is not up to us.
        return state.watermark == self.bound["rows"] or state.behind != "hub"


def _with(state: Circle, place: int, store: Store) -> Circle:
    return state._replace(stores=put(state.stores, place, store))
