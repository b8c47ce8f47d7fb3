"""Delivery of one channel: pin → plan → ship → acknowledge, by two exporters at once.

Steps of an exporter (a crash may come between any two of them)

    idle ──begin──▶ pinning ──▶ planning ──▶ shipping ──▶ waiting ──▶ acknowledging ──▶ shipping … idle
                                                │ refused: splitting, or giving up ╯

Rows have the numbers 1, 2 and 3; the last arrives when it likes. Between two ticks somebody changes the sink's
settings: version 0 cuts chunks of two rows, version 1 of one row, and writes another format. The destination is a place
of objects that are created only if absent, or a server that knows keys and nothing of ranges; that one refuses row 2
until somebody corrects it.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

ROWS = 3
CHUNK_ROWS = (2, 1)
PENDING, ACKNOWLEDGED, QUARANTINED = "pending", "acknowledged", "quarantined"


class Range(NamedTuple):
    after: int
    through: int

    @property
    def rows(self) -> tuple[int, ...]:
        return tuple(range(self.after + 1, self.through + 1))


class Intent(NamedTuple):
    id: int
    range: Range
    version: int
    """Of the settings that it was pinned with."""


class Chunk(NamedTuple):
    range: Range
    state: str = PENDING


class Control(NamedTuple):
    watermark: int = 0
    intents: tuple[Intent, ...] = ()
    """Those that are open."""
    chunks: tuple[Chunk, ...] = ()
    """Of the open intent."""
    pinned: tuple[Range, ...] = ()
    """Every range that was ever pinned: nobody asks for it, it is here to be checked."""
    held: tuple[Range, ...] = ()
    """Chunks that were given up: their rows are in quarantine."""


class Parcel(NamedTuple):
    """What is sent: a range under a name. The same range always has the same rows."""

    range: Range
    name: str

    @property
    def rows(self) -> tuple[int, ...]:
        return self.range.rows


class Exporter(NamedTuple):
    at: str = "idle"
    horizon: int = 0
    mark: int = 0
    intent: Intent | None = None
    version: int = 0
    """Of the settings that it writes under."""
    queue: tuple[Range, ...] = ()
    """The chunks that are still to be sent, as this process knows them; the first is under way."""
    fixed: tuple[Parcel, ...] = ()
    """What the destination was seen to hold beyond the watermark: those ranges are chunks as they are."""


class State(NamedTuple):
    horizon: int
    version: int
    poisoned: bool
    control: Control
    exporters: tuple[Exporter, ...]
    there: tuple[Parcel, ...]
    late: tuple[Parcel, ...]
    replay: tuple[str, Range] | None
    born: int
    left: tuple[int, ...]
    flaw: str


class DeliveryModel(Model):
    """What the two kinds of destination have in common."""

    sizes = frozenset({"exporters"})
    poison = False
    any_order = False

    def initial(self) -> State:
        return State(
            horizon=ROWS - 1,
            version=0,
            poisoned=self.poison,
            control=Control(),
            exporters=(Exporter(),) * self.bound.get("exporters", 2),
            there=(),
            late=(),
            replay=None,
            born=1,
            left=self.plenty(),
            flaw="",
        )

    def same(self, state: State) -> State:
        ordered = tuple(sorted(state.exporters, key=_order))
        return state if ordered == state.exporters else state._replace(exporters=ordered)

    def steps(self, state: State) -> Iterator[Step]:
        for index, exporter in enumerate(state.exporters):
            for label, reached in self._exporter(state, index, exporter):
                yield f"exporter {label}", reached
        for place, parcel in enumerate(state.late):
            if parcel not in state.late[:place]:
                stored, answer = self._store(state._replace(late=without(state.late, parcel)), parcel)
                yield f"a late request for {_text(parcel.range)} arrives: {answer}", stored
        if state.horizon < ROWS:
            yield "a row arrives", state._replace(horizon=state.horizon + 1)
        if state.version == 0 and (poorer := self.spend(state, "settings")) is not None:
            yield "somebody changes the settings", poorer._replace(version=1)
        # A server that knows no ranges, and changes its mind between a chunk and its halves, cannot be protected from
        # an exporter that is still at the whole chunk: it is corrected while none is at work.
        quiet = not state.late and all(exporter.at == "idle" for exporter in state.exporters)
        if state.poisoned and quiet and (poorer := self.spend(state, "corrected")) is not None:
            yield "somebody corrects the server", poorer._replace(poisoned=False)
        # Put back from a copy, with every exporter stopped and every request arrived or gone.
        if quiet and state.control != Control() and self.bound.get("lost"):
            if (poorer := self.spend(state, "lost")) is not None:
                yield "every record of deliveries is lost", poorer._replace(control=Control())
        yield from self._person(state)

    # ── an exporter ──────────────────────────────────────────────────────────────────────────────────────────────

    def _exporter(self, state: State, index: int, exporter: Exporter) -> Iterator[Step]:
        def to(new: Exporter, now: State = state) -> State:
            return now._replace(exporters=put(now.exporters, index, new))

        match exporter.at:
            case "idle":
                if state.control.intents or state.control.watermark < state.horizon:
                    at = "asking" if self.bound.get("lost") else "pinning"
                    yield "begins", to(Exporter(at, state.horizon, state.control.watermark))
            case "asking":
                found = tuple(parcel for parcel in state.there if parcel.range.through > exporter.mark)
                fixed = () if self.bug == "the destination is not asked" else found
                yield "asks what is there", to(exporter._replace(at="pinning", fixed=fixed))
            case "pinning":
                yield "pins", self._pin(state, exporter, to)
            case "planning":
                yield "records the chunks", self._plan(state, exporter, to)
            case "shipping":
                yield from self._ship(exporter, to)
            case "waiting":
                yield from self._answers(state, exporter, to)
            case "acknowledging":
                yield f"acknowledges {_text(exporter.queue[0])}", self._acknowledge(state, exporter, to)
            case "splitting":
                yield f"splits {_text(exporter.queue[0])}", self._split(state, exporter, to)
            case "giving up":
                yield f"gives {_text(exporter.queue[0])} up", self._give_up(state, exporter, to)
            case "holding":
                held = with_one(state.control.held, exporter.queue[0])
                kept = state._replace(control=state.control._replace(held=held))
                yield "puts the row into quarantine", to(_next(exporter), kept)
        if exporter.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Exporter(), poorer)
            if exporter.at == "waiting":
                late = with_one(poorer.late, self._parcel(exporter))
                yield "dies, its request is late", to(Exporter(), poorer._replace(late=late))

    def _pin(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: adopt the open intent with its settings, else pin what lies behind the watermark."""
        control = state.control
        if self.bug == "nothing is pinned":
            whole = Intent(0, Range(control.watermark, exporter.horizon), state.version)
            return to(exporter._replace(at="planning", intent=whole) if whole.range.rows else Exporter())
        after = exporter.mark if self.bug == "watermark read outside the pin" else control.watermark
        if control.intents and not (self.bug == "watermark read outside the pin" and after != control.watermark):
            return to(exporter._replace(at="planning", intent=control.intents[0]))
        if after >= exporter.horizon:
            return to(Exporter())
        intent = Intent(state.born, Range(after, exporter.horizon), state.version)
        pinned = control._replace(
            intents=(*control.intents, intent), chunks=(), pinned=tuple(sorted((*control.pinned, intent.range)))
        )
        return to(exporter._replace(at="planning", intent=intent), state._replace(control=pinned, born=state.born + 1))

    def _plan(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: the chunks that are recorded stand; else they are recorded, before one of them leaves."""
        intent, control = exporter.intent, state.control
        ranges = _cut(intent.range, CHUNK_ROWS[intent.version], tuple(item.range for item in exporter.fixed))
        exporter = exporter._replace(version=intent.version)
        if self.bug == "settings are not pinned":
            exporter = exporter._replace(version=state.version)
        elif self.bug == "chunks are computed again":
            ranges = _cut(intent.range, CHUNK_ROWS[state.version])
        if self.bug in {"chunks are computed again", "nothing is pinned"}:
            queue = tuple(item for item in ranges if item.through > control.watermark)
            return to(exporter._replace(at="shipping", queue=queue))
        if intent not in control.intents:
            return to(Exporter())  # closed meanwhile: nothing is pending in it
        if not control.chunks:
            control = control._replace(chunks=tuple(Chunk(item) for item in ranges))
        queue = tuple(chunk.range for chunk in control.chunks if chunk.state == PENDING)
        return to(exporter._replace(at="shipping", queue=queue), state._replace(control=control))

    def _ship(self, exporter: Exporter, to) -> Iterator[Step]:
        if not exporter.queue:
            yield "has nothing left to send", to(Exporter())
            return
        # Objects are stored by tasks, in any order; a server gets its chunks in turn.
        for first in exporter.queue if self.any_order else exporter.queue[:1]:
            queue = (first, *without(exporter.queue, first))
            at = "acknowledging" if self.bug == "acknowledged before it is sent" else "waiting"
            yield f"sends {_text(first)}", to(exporter._replace(at=at, queue=queue))

    def _answers(self, state: State, exporter: Exporter, to) -> Iterator[Step]:
        parcel = self._parcel(exporter)
        stored, answer = self._store(state, parcel)
        following = {"stored": "acknowledging", "refused": "splitting" if len(parcel.rows) > 1 else "giving up"}
        done = _next(exporter) if self.bug == "acknowledged before it is sent" else None
        yield (
            f"gets an answer to {_text(parcel.range)}: {answer}",
            to(done or exporter._replace(at=following[answer]), stored),
        )
        if (poorer := self.spend(state, "late")) is not None:
            yield (
                "gives up waiting, its request is late",
                to(Exporter(), poorer._replace(late=with_one(poorer.late, parcel))),
            )
            yield "gets an error, and nothing was stored", to(Exporter(), poorer)
            if answer == "stored":
                yield "gets no answer, and it was stored", to(Exporter(), self._store(poorer, parcel)[0])

    def _acknowledge(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: only while the intent is open and the chunk pending; else it changes nothing."""
        following = _next(exporter)
        if self.bug == "acknowledged before it is sent":
            following = exporter._replace(at="waiting")
        return to(following, self._settle(state, exporter, ACKNOWLEDGED))

    def _settle(self, state: State, exporter: Exporter, settled: str) -> State:
        control, range = state.control, exporter.queue[0]
        if self.bug == "late acknowledgements count" and exporter.intent not in control.intents:
            back = f"D2 the watermark goes back from {control.watermark} to {range.through}"
            flaw = back if range.through < control.watermark else ""
            return state._replace(control=control._replace(watermark=range.through), flaw=state.flaw or flaw)
        if self.bug in {"nothing is pinned", "chunks are computed again"}:
            moved = max(control.watermark, range.through) if range.after <= control.watermark else control.watermark
            closed = () if exporter.intent.range.through <= moved else control.intents
            return state._replace(control=control._replace(watermark=moved, intents=closed))
        if exporter.intent not in control.intents or Chunk(range) not in control.chunks:
            return state
        marked = _settled(control, range, settled)
        if self.bug == "watermark by maximum":
            marked = marked._replace(watermark=max(control.watermark, range.through))
        advanced = _advance(marked, exporter.intent)
        return state._replace(control=advanced)

    def _split(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: two pending chunks in the place of their parent."""
        control, range = state.control, exporter.queue[0]
        middle = range.rows[len(range.rows) // 2 - 1]
        halves = (Range(range.after, middle), Range(middle, range.through))
        shipping = exporter._replace(at="shipping", queue=halves + exporter.queue[1:])
        if self.bug == "a split is kept in memory":
            return to(shipping)
        if exporter.intent not in control.intents or Chunk(range) not in control.chunks:
            return to(_next(exporter))
        place = control.chunks.index(Chunk(range))
        chunks = (*control.chunks[:place], *(Chunk(half) for half in halves), *control.chunks[place + 1 :])
        return to(shipping, state._replace(control=control._replace(chunks=chunks)))

    def _give_up(self, state: State, exporter: Exporter, to) -> State:
        """One transaction: the chunk is settled, and its row is in quarantine."""
        range = exporter.queue[0]
        settled = self._settle(state, exporter, QUARANTINED)
        if settled.control == state.control:
            return to(_next(exporter))
        if self.bug == "given up in two transactions":
            return to(exporter._replace(at="holding"), settled)
        held = settled.control._replace(held=with_one(settled.control.held, range))
        return to(_next(exporter), settled._replace(control=held))

    # ── a person ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _person(self, state: State) -> Iterator[Step]:
        """Skips the first chunk that does not get through, and sends later what was given up."""
        control = state.control
        pending = [chunk for chunk in control.chunks if chunk.state == PENDING]
        if pending and control.intents and (poorer := self.spend(state, "skip")) is not None:
            by_hand = Exporter("giving up", intent=control.intents[0], queue=(pending[0].range,))
            skipped = self._give_up(poorer, by_hand, lambda _, now=poorer: now)
            yield f"a person gives {_text(pending[0].range)} up", skipped
        match state.replay:
            case None:
                for range in control.held[:1]:
                    if (poorer := self.spend(state, "replay")) is not None:
                        yield f"a replay of {_text(range)} begins", poorer._replace(replay=("sending", range))
            case ("sending", range):
                now = state
                for parcel in self._replayed(range):
                    now, answer = self._store(now, parcel)
                    if answer == "refused":
                        yield "the replay is refused", state._replace(replay=None)
                        return
                yield "the replay is stored", now._replace(replay=("deciding", range))
            case ("deciding", range):
                held = without(control.held, range) if range in control.held else control.held
                decided = state._replace(control=control._replace(held=held), replay=None)
                yield "the row is no longer held", decided
                if (poorer := self.spend(state, "crash")) is not None:
                    yield "the replay dies before it says so", poorer._replace(replay=None)

    def _replayed(self, range: Range) -> tuple[Parcel, ...]:
        """What was given up leaves as it would have left then: the same range under the same name."""
        if self.bug == "a replay has a name of its own":
            return tuple(Parcel(Range(row - 1, row), f"{row}, replayed") for row in range.rows)
        return (Parcel(range, _text(range)),)

    # ── the destination ──────────────────────────────────────────────────────────────────────────────────────────

    def _parcel(self, exporter: Exporter) -> Parcel:
        raise NotImplementedError

    def _store(self, state: State, parcel: Parcel) -> tuple[State, str]:
        raise NotImplementedError

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        control = state.control
        if state.flaw:
            return state.flaw
        if len(control.intents) > 1:
            return f"D4 two intents are open: {[_text(intent.range) for intent in control.intents]}"
        held = {row for range in control.held for row in range.rows}
        delivered = [row for parcel in state.there for row in parcel.rows]
        for row in range(1, ROWS + 1):
            if delivered.count(row) > 1:
                parcels = [parcel for parcel in state.there if row in parcel.rows]
                return f"{_blame(control, parcels)} row {row} is there twice: {[parcel.name for parcel in parcels]}"
            if row <= control.watermark and row not in delivered and row not in held:
                return f"D2 the watermark passed row {row}, which is nowhere"
        return None

    def done(self, state: State) -> bool:
        return (
            state.control.watermark == ROWS
            and not state.control.intents
            and all(exporter.at == "idle" for exporter in state.exporters)
        )


class BlobModel(DeliveryModel):
    """Objects, created only if absent."""

    name = "delivery to objects"
    about = (
        "Two exporters on one channel; objects created only if absent, in any order; settings changed in between; rows "
        "arriving; answers lost, requests late; a person who skips and replays; crashes at every step."
    )
    bounds = {
        "trouble": 2, "crash": 1, "late": 1, "settings": 1, "corrected": 0, "skip": 0, "replay": 0,
    }  # fmt: skip
    large = {"trouble": 4, "crash": 2, "late": 2}
    any_order = True
    bugs = {
        "nothing is pinned": Bug("each tick takes everything behind the watermark", ("D1",)),
        "watermark read outside the pin": Bug("an intent begins where the watermark was a moment ago", ("D4", "D1")),
        "settings are not pinned": Bug("a retry writes under the settings of today", ("D1", "D3")),
        "chunks are computed again": Bug("a retry cuts the range anew, by the settings of today", ("D3",)),
        "watermark by maximum": Bug("the watermark is the highest acknowledged number", ("D2",)),
        "late acknowledgements count": Bug("an acknowledgement counts also after the intent is closed", ("D2", "D4")),
        "acknowledged before it is sent": Bug("a chunk is acknowledged, then sent", ("D2",)),
    }

    def _parcel(self, exporter: Exporter) -> Parcel:
        first = exporter.queue[0]
        # What is there in another format is compared as it is, and gets no second copy.
        found = next((parcel for parcel in exporter.fixed if parcel.range == first), None)
        return found or Parcel(first, f"{_text(first)}.{exporter.version}")

    def _store(self, state: State, parcel: Parcel) -> tuple[State, str]:
        """Created if absent. One of the same name has the same rows: they are compared, and equal."""
        there = state.there if parcel in state.there else with_one(state.there, parcel)
        return state._replace(there=there), "stored"


class LostRecordsModel(BlobModel):
    """The records of deliveries are lost: the objects' names are what is left of them."""

    name = "delivery to objects, records lost"
    about = (
        "An exporter whose watermarks, intents and chunks vanish while it is not at work; settings changed before or after; "
        "the names of the objects say what was delivered."
    )
    bounds = {
        "trouble": 4, "crash": 2, "late": 1, "settings": 1, "corrected": 0, "skip": 0, "replay": 0, "lost": 1,
        "exporters": 1,
    }  # fmt: skip
    large = {"exporters": 2}
    bugs = {"the destination is not asked": Bug("what is there already is not looked for first", ("D1", "D3"))}


class KeyModel(DeliveryModel):
    """A server that knows keys, and nothing of ranges."""

    name = "delivery to a server that knows keys"
    about = (
        "Two exporters on one channel; a server that stores what comes under a new key, and refuses one row until it is "
        "corrected; splits, rows given up, skipped and replayed; answers lost, requests late; crashes at every step."
    )
    bounds = {
        "trouble": 2, "crash": 1, "late": 1, "settings": 0, "corrected": 1, "skip": 1, "replay": 1,
    }  # fmt: skip
    large = {"trouble": 3}
    poison = True
    bugs = {
        "a split is kept in memory": Bug("the halves of a refused chunk are known to one process only", ("D3",)),
        "given up in two transactions": Bug("a chunk is settled first, its row quarantined afterwards", ("D2",)),
        "a replay has a name of its own": Bug(
            "a row that was given up is sent again under another key than the chunk it was in", ("D3",), {"trouble": 3}
        ),
    }

    def _parcel(self, exporter: Exporter) -> Parcel:
        return Parcel(exporter.queue[0], _text(exporter.queue[0]))

    def _store(self, state: State, parcel: Parcel) -> tuple[State, str]:
        if any(other.name == parcel.name for other in state.there):
            return state, "stored"
        if state.poisoned and 2 in parcel.rows:
            return state, "refused"
        return state._replace(there=with_one(state.there, parcel)), "stored"


def _blame(control: Control, parcels: list[Parcel]) -> str:
    """D1 if what was pinned overlaps or left under two settings, D3 if one range was cut in two ways."""
    pinned = any(parcel.range.after >= range.after and parcel.range.through <= range.through
                 for range in control.pinned for parcel in parcels)  # fmt: skip
    overlap = any(one.through > other.after for one, other in pairwise(control.pinned))
    return "D3" if pinned and not overlap and parcels[0].range != parcels[1].range else "D1"


def _order(exporter: Exporter) -> tuple[object, ...]:
    return (
        exporter.at,
        exporter.horizon,
        exporter.mark,
        exporter.intent or (),
        exporter.version,
        exporter.queue,
        exporter.fixed,
    )


def _next(exporter: Exporter) -> Exporter:
    """After a chunk is dealt with: the next one; at the end of the list the tick ends."""
    queue = exporter.queue[1:]
    return exporter._replace(at="shipping", queue=queue) if queue else Exporter()


def _cut(whole: Range, rows: int, fixed: tuple[Range, ...] = ()) -> list[Range]:
    """A range in chunks; what is there already is a chunk as it is."""
    found: list[Range] = []
    after = whole.after
    for item in (*(item for item in fixed if item.after >= whole.after), Range(whole.through, whole.through)):
        edges = [*range(after, item.after, rows), item.after]
        found += [Range(one, other) for one, other in pairwise(edges)]
        found += [item] if item.rows else []
        after = item.through
    return found


def _settled(control: Control, range: Range, state: str) -> Control:
    chunks = tuple(Chunk(range, state) if chunk == Chunk(range) else chunk for chunk in control.chunks)
    return control._replace(chunks=chunks)


def _advance(control: Control, intent: Intent) -> Control:
    """The watermark follows the gapless run of settled chunks; at the end of the range the intent is closed."""
    watermark = control.watermark
    for chunk in control.chunks:
        if chunk.state == PENDING:
            break
        watermark = max(watermark, chunk.range.through)
    if intent in control.intents and watermark >= intent.range.through:
        control = control._replace(intents=without(control.intents, intent), chunks=())
    return control._replace(watermark=watermark)


def _text(range: Range) -> str:
    return f"{range.after}-{range.through}"
