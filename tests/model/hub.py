"""Forwarding to a hub: one channel's ledger, two workers, and stores whose histories may have parted.

Steps of a store's exporter (a crash may come between any two of them)

    idle ──ask──▶ ──pin and plan──▶ shipping ──send──▶ waiting ──answer──▶ acknowledge, split, give up, take over …

Steps of a worker: take a request, read the ledger and decide; then store the rows and move the ledger in one transaction,
if it is still as it was read. A row is named by its content: `a2` is what the first store has under number 2, and `b2` what
a copy of that store has there which went its own way. A tally is the contents themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

Contents = tuple[str, ...]
PENDING = "pending"


class Parcel(NamedTuple):
    """A chunk as it is sent: it reaches back over what has no delivered rows."""

    after: int
    through: int
    rows: Contents
    before: Contents
    given_up: tuple[int, ...] = ()
    total: Contents = ()
    """Everything up to `through`, what was given up included."""
    replay: bool = False


class Ledger(NamedTuple):
    through: int = 0
    tally: Contents = ()
    given_up: tuple[int, ...] = ()
    version: int = 0
    """0: there is no such channel yet."""


class Hub(NamedTuple):
    ledger: Ledger = Ledger()
    stored: Contents = ()


class Answer(NamedTuple):
    kind: str
    ledger: Ledger


class Worker(NamedTuple):
    at: str = "idle"
    request: tuple[Parcel, int] | None = None
    """A parcel, and who waits for its answer; -1 for nobody."""
    seen: Ledger = Ledger()


class Store(NamedTuple):
    """A sending store: its lake, its records, and its exporter."""

    lake: Contents
    watermark: int = 0
    intent: tuple[int, int] | None = None
    chunks: tuple[tuple[int, int, str], ...] = ()
    settled: tuple[tuple[int, int, str], ...] = ()
    """Settled chunks behind the watermark, as far as a parcel may reach back over them."""
    held: tuple[int, ...] = ()
    at: str = "idle"
    asked: bool = False
    parcel: Parcel | None = None
    answer: Answer | None = None
    there: int = 0
    """Up to where the hub has proved to have everything; a parcel never reaches back behind it."""
    blocked: str = ""


class State(NamedTuple):
    stores: tuple[Store, ...]
    hub: Hub
    workers: tuple[Worker, ...]
    requests: tuple[tuple[Parcel, int], ...]
    backup: Hub | None
    restored: bool
    strict: bool
    """Whether the hub refuses row 2."""
    cut: int
    left: tuple[int, ...]
    flaw: str


class HubModel(Model):
    """One store and a hub with two workers."""

    name = "hub"
    about = (
        "A store that forwards to a hub with two workers; requests late and twice; chunks cut anew after the watermark "
        "was lost; a row refused, given up and replayed; a hub put back from a backup; crashes on both sides."
    )
    sizes = frozenset({"rows", "workers", "cut"})
    bounds = {
        "trouble": 3, "crash": 1, "late": 2, "lost": 1, "corrected": 1, "replay": 1, "restore": 1, "copy": 0, "readd": 1, "skip": 1,
        "rows": 3, "workers": 2, "cut": 2,
    }  # fmt: skip
    large = {"trouble": 4}
    strict = True
    bugs = {
        "rows before the ledger": Bug("rows are stored in one transaction, the ledger moves in the next", ("H1",)),
        "the ledger before the rows": Bug("the ledger moves in one transaction, rows are stored in the next", ("H1",)),
        "no version check": Bug("a worker moves the ledger from whatever it is by now", ("H2",)),
        "a hole is accepted": Bug("a chunk behind the ledger's end is taken", ("H1",)),
        "given-up rows are not told": Bug(
            "a chunk does not reach back over a row that was given up",
            ("progress",),
            {"trouble": 1, "restore": 0},
            rules=("H1",),
        ),
        "a replay is not looked up": Bug(
            "a replayed row is stored whether or not it was given up", ("H1",), rules=("H3",)
        ),
        "a lost watermark starts over": Bug(
            "a store without a watermark does not ask, and the hub takes its chunks", ("H1",)
        ),
        "fast-forward forgets what was given up": Bug(
            "a store that lost its records goes on behind the ledger's end, and over the rows that the hub never got",
            ("H1",),
        ),
        "an equal end is delivery": Bug(
            "a ledger that ends with the chunk and counts the same says that all of it is there, also what it never got",
            ("H1",),
            {"cut": 1},
        ),
        "the reach ends at chunks only": Bug(
            "a ledger that ends inside a chunk which was given up whole gets the same request again and again",
            ("progress",),
            {"trouble": 4, "cut": 1, "restore": 0, "corrected": 0, "replay": 0, "readd": 0},
            rules=("H1",),
        ),
        "ahead inside the reach is divergence": Bug(
            "a ledger that ends inside the stretch a parcel reaches back over is taken for another history",
            ("progress",),
            {"trouble": 2},
            rules=("H1",),
        ),
    }

    def initial(self) -> State:
        return State(
            stores=(Store(lake=("a1", "a2")),),
            hub=Hub(),
            workers=(Worker(),) * self.bound["workers"],
            requests=(),
            backup=None,
            restored=False,
            strict=self.strict,
            cut=self.bound["cut"],
            left=self.plenty(),
            flaw="",
        )

    def same(self, state: State) -> State:
        ordered = tuple(sorted(state.workers, key=_order))
        return state if ordered == state.workers else state._replace(workers=ordered)

    def steps(self, state: State) -> Iterator[Step]:
        for index, store in enumerate(state.stores):
            for label, reached in self._store(state, index, store):
                yield f"store {'ab'[index]} {label}", reached
        yield from self._workers(state)
        yield from self._events(state)

    # ── the sending store ────────────────────────────────────────────────────────────────────────────────────────

    def _store(self, state: State, index: int, store: Store) -> Iterator[Step]:
        def to(new: Store, now: State = state) -> State:
            return now._replace(stores=put(now.stores, index, new))

        if len(store.lake) < self.bound["rows"]:
            row = f"{'ab'[index]}{len(store.lake) + 1}"
            yield f"gets row {row}", to(store._replace(lake=(*store.lake, row)))
        if store.blocked:
            yield from self._unblock(state, store, to)
            return
        match store.at:
            case "idle":
                if store.intent or store.watermark < len(store.lake):
                    yield from self._begin(state, store, to)
            case "shipping":
                parcel = self._parcel(store)
                sent = state._replace(requests=with_one(state.requests, (parcel, index)))
                yield f"sends {_text(parcel)}", to(store._replace(at="waiting", parcel=parcel), sent)
            case "waiting" if store.answer is not None:
                yield f"takes the answer: {store.answer.kind}", to(self._judge(store))
        if store.at in {"shipping", "waiting"} and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(_forgotten(store), _orphaned(poorer, index))
        if store.at == "waiting" and store.answer is None and (poorer := self.spend(state, "late")) is not None:
            yield "gives up waiting", to(store._replace(at="idle", parcel=None), _orphaned(poorer, index))
        if store.at == "waiting" and store.answer is not None and (poorer := self.spend(state, "late")) is not None:
            yield "never gets the answer", to(store._replace(at="idle", parcel=None, answer=None), poorer)

    def _begin(self, state: State, store: Store, to) -> Iterator[Step]:
        if not store.asked and self.bug != "a lost watermark starts over":
            ledger = state.hub.ledger
            if ledger.through > store.watermark and store.intent is None:
                if not _proved(store, ledger):
                    yield "asks, and finds another history", to(store._replace(blocked="diverged"))
                    return
                held = [row for row in ledger.given_up if row > store.watermark]
                if self.bug == "fast-forward forgets what was given up":
                    held = []
                store = store._replace(
                    watermark=ledger.through, settled=(), there=ledger.through, held=tuple(sorted({*store.held, *held}))
                )
            yield f"asks: the ledger ends at {ledger.through}", to(store._replace(asked=True))
        elif store.intent is None:
            whole = (store.watermark, len(store.lake))
            edges = [*range(whole[0], whole[1], state.cut), whole[1]]
            chunks = tuple((one, other, PENDING) for one, other in zip(edges, edges[1:], strict=False))
            yield f"pins {whole}", to(store._replace(intent=whole, chunks=chunks, at="shipping"))
        else:
            yield "goes on with what is pinned", to(store._replace(at="shipping"))

    def _parcel(self, store: Store) -> Parcel:
        """The first pending chunk, from the end of the last one that had rows and was delivered."""
        chunk = next(chunk for chunk in store.chunks if chunk[2] == PENDING)
        after = chunk[0]
        while self.bug != "given-up rows are not told":
            empty = next((one for one in store.settled if one[1] == after and one[2] == "quarantined"), None)
            if empty is None or (after <= store.there and self.bug != "ahead inside the reach is divergence"):
                break
            after = empty[0]
        # The hub's end may lie inside a chunk that was given up whole, if it was cut otherwise before.
        if self.bug not in {"the reach ends at chunks only", "ahead inside the reach is divergence"}:
            after = max(after, min(store.there, chunk[0]))
        given_up = tuple(row for row in store.held if after < row <= chunk[0])
        rows = tuple(store.lake[chunk[0] : chunk[1]])
        return Parcel(after, chunk[1], rows, store.lake[:after], given_up, store.lake[: chunk[1]])

    def _judge(self, store: Store) -> Store:
        """What an answer means, and what becomes of the chunk."""
        answer, parcel = store.answer, store.parcel
        ledger = answer.ledger
        store = store._replace(answer=None, parcel=None, at="shipping")
        chunk = next(chunk for chunk in store.chunks if chunk[2] == PENDING)
        match answer.kind:
            case "refused":
                if chunk[1] - chunk[0] > 1:
                    return _split(store, chunk, chunk[0] + 1)
                return _settle(store, chunk, "quarantined")
            case "behind":
                return store._replace(at="idle", blocked="behind")
            case "diverged":
                return store._replace(at="idle", blocked="diverged")
            case "ahead":
                return self._take_over(store, chunk, ledger, parcel)
        if ledger.through > parcel.through:
            return self._take_over(store, chunk, ledger, parcel)
        if ledger.through < parcel.through and self.bug != "a hole is accepted":
            return store._replace(at="idle", blocked="behind")
        if ledger.tally != parcel.total and self.bug not in {"totals are not compared", "a hole is accepted"}:
            return store._replace(at="idle", blocked="diverged")
        if any(chunk[0] < row <= chunk[1] for row in ledger.given_up) and self.bug != "an equal end is delivery":
            return _settle(store, chunk, "quarantined")  # it counts the rows, and says which of them it never got
        return _settle(store, chunk, "acknowledged")

    def _take_over(self, store: Store, chunk: tuple[int, int, str], ledger: Ledger, parcel: Parcel) -> Store:
        """The hub has more than we recorded. If it counts as we do, what it has is settled."""
        if parcel.after < ledger.through <= chunk[0]:
            # It ends inside the stretch that the parcel reached back over: the next one begins there.
            if self.bug == "ahead inside the reach is divergence":
                return store._replace(at="idle", blocked="diverged")
            return store._replace(there=ledger.through)
        compared = _proved(store, ledger) or (
            self.bug == "totals are not compared" and ledger.through <= len(store.lake)
        )
        if not compared:
            return store._replace(at="idle", blocked="diverged")
        if ledger.through <= chunk[0]:
            return store._replace(at="idle", blocked="diverged")
        if ledger.through < chunk[1]:
            return _split(store, chunk, ledger.through)
        if any(chunk[0] < row <= chunk[1] for row in ledger.given_up):
            return _settle(store._replace(there=ledger.through), chunk, "quarantined")
        return _settle(store, chunk, "acknowledged")

    def _unblock(self, state: State, store: Store, to) -> Iterator[Step]:
        """After `LedgerBehind` a person removes the sink and adds it again: it asks the hub where to go on."""
        if store.blocked == "behind" and (poorer := self.spend(state, "readd")) is not None:
            yield "has its sink removed and added again", to(Store(lake=store.lake), poorer)

    # ── the hub ──────────────────────────────────────────────────────────────────────────────────────────────────

    def _workers(self, state: State) -> Iterator[Step]:
        idle_tried = False
        for index, worker in enumerate(state.workers):
            if worker.at == "idle":
                if not idle_tried:
                    idle_tried = True
                    for request in dict.fromkeys(state.requests):
                        taken = state._replace(requests=without(state.requests, request))
                        yield from self._decide(taken, index, request)
                continue
            yield from self._move(state, index, worker)
            if (poorer := self.spend(state, "crash")) is not None:
                yield "worker dies", _hung_up(poorer._replace(workers=put(poorer.workers, index, Worker())), worker)

    def _decide(self, state: State, index: int, request: tuple[Parcel, int]) -> Iterator[Step]:
        parcel, ledger = request[0], state.hub.ledger
        outcome = self._outcome(parcel, ledger)
        if outcome == "take" and state.strict and any(row[1:] == "2" for row in parcel.rows):
            outcome = "refused"
        label = f"worker reads {_text(parcel)}, the ledger ends at {ledger.through}: {outcome}"
        if outcome == "take":
            yield label, state._replace(workers=put(state.workers, index, Worker("storing", request, ledger)))
        else:
            idle = state._replace(workers=put(state.workers, index, Worker()))
            yield label, _answered(idle, request, Answer(outcome, ledger))

    def _outcome(self, parcel: Parcel, ledger: Ledger) -> str:
        end = ledger.through
        if parcel.replay:
            if parcel.through > end:
                return "behind"
            known = parcel.through in ledger.given_up or self.bug == "a replay is not looked up"
            return "take" if known else "there"
        if not ledger.version:
            return "behind" if parcel.before and self.bug != "a hole is accepted" else "take"
        if parcel.after == end:
            same = parcel.before == ledger.tally or self.bug == "totals are not compared"
            return "take" if same or self.bug == "a hole is accepted" else "diverged"
        if parcel.after > end:
            return "take" if self.bug == "a hole is accepted" else "behind"
        if self.bug == "a lost watermark starts over":
            return "take"
        return "there" if parcel.through <= end else "ahead"

    def _move(self, state: State, index: int, worker: Worker) -> Iterator[Step]:
        """One transaction: rows and ledger together, from the version that was seen."""
        request, hub = worker.request, state.hub
        parcel = request[0]
        here = state._replace(workers=put(state.workers, index, Worker()))
        if worker.at == "storing":
            if hub.ledger.version != worker.seen.version and self.bug != "no version check":
                yield from self._decide(here, index, request)
                return
            moved = _moved(worker.seen if self.bug == "no version check" else hub.ledger, parcel)
            stored = tuple(sorted((*hub.stored, *parcel.rows)))
            if self.bug == "rows before the ledger":
                half = worker._replace(at="moving", seen=moved)
                yield (
                    "worker stores the rows",
                    state._replace(hub=hub._replace(stored=stored), workers=put(state.workers, index, half)),
                )
                return
            if self.bug == "the ledger before the rows":
                half = worker._replace(at="adding")
                yield (
                    "worker moves the ledger",
                    state._replace(hub=hub._replace(ledger=moved), workers=put(state.workers, index, half)),
                )
                return
            done = here._replace(hub=Hub(moved, stored))
            yield f"worker stores {_text(parcel)}", _answered(done, request, Answer("stored", moved))
        elif worker.at == "moving":
            done = here._replace(hub=hub._replace(ledger=worker.seen))
            yield "worker moves the ledger", _answered(done, request, Answer("stored", worker.seen))
        elif worker.at == "adding":
            done = here._replace(hub=hub._replace(stored=tuple(sorted((*hub.stored, *parcel.rows)))))
            yield "worker stores the rows", _answered(done, request, Answer("stored", hub.ledger))

    # ── what happens around them ─────────────────────────────────────────────────────────────────────────────────

    def _events(self, state: State) -> Iterator[Step]:
        store = state.stores[0]
        if store.at == "idle" and (store.watermark or store.intent) and not store.blocked:
            if (poorer := self.spend(state, "lost")) is not None:
                lost = poorer._replace(stores=put(poorer.stores, 0, Store(lake=store.lake)), cut=3 - state.cut)
                yield "store a loses its records, and cuts anew", lost
        pending = [chunk for chunk in store.chunks if chunk[2] == PENDING]
        if pending and store.at == "idle" and (poorer := self.spend(state, "skip")) is not None:
            skipped = _settle(store, pending[0], "quarantined")
            yield f"a person gives {pending[0][:2]} up", poorer._replace(stores=put(poorer.stores, 0, skipped))
        if state.strict and (poorer := self.spend(state, "corrected")) is not None:
            yield "somebody corrects the hub", poorer._replace(strict=False)
        if store.held and (poorer := self.spend(state, "replay")) is not None:
            row = store.held[0]
            parcel = Parcel(row - 1, row, (store.lake[row - 1],), (), replay=True)
            yield f"row {row} is replayed", poorer._replace(requests=with_one(poorer.requests, (parcel, -1)))
        if self.bound["restore"]:
            if state.backup is None:
                yield "a backup of the hub is made", state._replace(backup=state.hub)
            elif state.hub != state.backup and (poorer := self.spend(state, "restore")) is not None:
                stopped = poorer._replace(hub=state.backup, restored=True, workers=(Worker(),) * len(state.workers))
                for worker in state.workers:
                    stopped = _hung_up(stopped, worker)
                yield "the hub is put back", stopped
        if len(state.stores) == 1 and self.bound["copy"] and (poorer := self.spend(state, "copy")) is not None:
            yield "the store is copied", poorer._replace(stores=(store, _forgotten(store)))

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        stored = state.hub.stored
        for row in dict.fromkeys(stored):
            if stored.count(row) > 1:
                return f"{'H2' if self.bug == 'no version check' else 'H1'} row {row} is stored twice"
        for store in state.stores:
            # What was delivered before the hub went back is gone with it, until its ledger asks for it again.
            known = min(store.watermark, state.hub.ledger.through) if state.restored else store.watermark
            for number, row in enumerate(store.lake[:known], 1):
                if row not in stored and number not in store.held:
                    return f"{'D2' if self.bound['copy'] else 'H1'} row {row} counts as delivered, and is not there"
        return self._broken_ledger(state)

    def _broken_ledger(self, state: State) -> str | None:
        if state.workers and any(worker.at in {"moving", "adding"} for worker in state.workers):
            return None
        missing = [row for row in state.hub.ledger.tally if row not in state.hub.stored]
        given_up = [int(row[1:]) for row in missing]
        if any(row not in state.hub.ledger.given_up for row in given_up):
            return f"H1 the ledger speaks of {missing}, and they are not stored"
        return None

    def done(self, state: State) -> bool:
        return all(self._at_its_end(state, store) for store in state.stores)

    def _at_its_end(self, state: State, store: Store) -> bool:
        if store.blocked == "diverged":
            common = min(len(store.lake), state.hub.ledger.through)
            return store.lake[:common] != state.hub.ledger.tally[:common] or state.hub.ledger.through > len(store.lake)
        if store.blocked == "behind":
            # Only a hub that went back in time may say so; and then a person has a way on, if there is one left.
            return state.restored
        return store.watermark == len(store.lake) == self.bound["rows"] and store.at == "idle"


class DivergenceModel(HubModel):
    """A store is copied, or put back from a backup: two histories under one name."""

    name = "divergence"
    about = (
        "A store and a copy of it, each with new rows of its own under the same numbers, forward to one hub under one "
        "name; requests late, crashes. A row of either that is not stored must be refused aloud."
    )
    bounds = {
        "trouble": 3, "crash": 1, "late": 1, "lost": 1, "corrected": 0, "replay": 0, "restore": 0, "copy": 1, "readd": 0, "skip": 0,
        "rows": 3, "workers": 1, "cut": 2,
    }  # fmt: skip
    large = {"workers": 2}
    strict = False
    bugs = {
        "totals are not compared": Bug("neither side compares what it counts", ("D2",)),
    }


def _order(worker: Worker) -> tuple[object, ...]:
    return (worker.at, worker.request or (), worker.seen)


def _text(parcel: Parcel) -> str:
    return f"{parcel.after}-{parcel.through}" + (" again" if parcel.replay else "")


def _proved(store: Store, ledger: Ledger) -> bool:
    """The hub's end lies in our history, and it counts up to there what we count."""
    return ledger.through <= len(store.lake) and store.lake[: ledger.through] == ledger.tally


def _split(store: Store, chunk: tuple[int, int, str], at: int) -> Store:
    place = store.chunks.index(chunk)
    halves = ((chunk[0], at, PENDING), (at, chunk[1], PENDING))
    return store._replace(chunks=(*store.chunks[:place], *halves, *store.chunks[place + 1 :]))


def _settle(store: Store, chunk: tuple[int, int, str], verdict: str) -> Store:
    """One transaction: the chunk, the watermark, the quarantine, and the intent's end."""
    settled = (chunk[0], chunk[1], verdict)
    # A parcel reaches back to the last delivered chunk, so what lies before that is not needed any more.
    behind = (*store.settled, settled) if verdict == "quarantined" else ()
    held = store.held
    if verdict == "quarantined":
        held = tuple(sorted({*held, *range(chunk[0] + 1, chunk[1] + 1)}))
    chunks = tuple(one for one in store.chunks if one != chunk)
    moved = store._replace(chunks=chunks, settled=behind, watermark=chunk[1], held=held)
    return moved if chunks else moved._replace(intent=None, at="idle")


def _forgotten(store: Store) -> Store:
    """A new process: what the old one had in memory is gone."""
    return store._replace(at="idle", asked=False, parcel=None, answer=None, there=0)


def _orphaned(state: State, index: int) -> State:
    """Nobody waits for this store's requests any more; they are late."""
    requests = tuple(sorted((parcel, -1 if owner == index else owner) for parcel, owner in state.requests))
    workers = tuple(
        worker._replace(request=(worker.request[0], -1)) if worker.request and worker.request[1] == index else worker
        for worker in state.workers
    )
    return state._replace(requests=requests, workers=workers)


def _hung_up(state: State, worker: Worker) -> State:
    """The connection to a worker broke: whoever waited for its answer comes again later."""
    owner = -1 if worker.request is None else worker.request[1]
    if owner < 0:
        return state
    return state._replace(stores=put(state.stores, owner, state.stores[owner]._replace(at="idle", parcel=None)))


def _answered(state: State, request: tuple[Parcel, int], answer: Answer) -> State:
    owner = request[1]
    if owner < 0:
        return state
    return state._replace(stores=put(state.stores, owner, state.stores[owner]._replace(answer=answer)))


def _moved(ledger: Ledger, parcel: Parcel) -> Ledger:
    if parcel.replay:
        left = tuple(row for row in ledger.given_up if row != parcel.through)
        return ledger._replace(given_up=left, version=ledger.version + 1)
    return Ledger(
        max(ledger.through, parcel.through),
        parcel.total if parcel.through >= ledger.through else ledger.tally,
        tuple(sorted({*ledger.given_up, *parcel.given_up})),
        ledger.version + 1,
    )
