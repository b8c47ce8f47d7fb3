"""Rows go: retention and purge, beside two exporters that look at the table at different times.

Steps of an exporter                    Steps of a removal
    look ──▶ pin, or adopt ──▶ send         count ──▶ plan (positions and record in one transaction, and only if no
         ──▶ acknowledge                      other removal began or ended since) ──▶ delete ──▶ record

The destination knows an object by its range, and never takes other rows under the same one. Retention takes what every
sink has; a purge takes row 1, whoever has it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put

ROWS = 2


class Exporter(NamedTuple):
    at: str = "idle"
    rows: tuple[int, ...] = ()
    """What its look at the table has."""
    horizon: int = 0
    moment: int = 0
    """How many removals had ended by then."""
    range: tuple[int, int] = (0, 0)


class Removal(NamedTuple):
    kind: str
    rows: tuple[int, ...]
    state: str = "planned"
    deleted: bool = False


class State(NamedTuple):
    rows: tuple[int, ...]
    """What the table holds."""
    horizon: int
    mark: int
    intent: tuple[int, int] | None
    objects: tuple[tuple[int, int, tuple[int, ...]], ...]
    exporters: tuple[Exporter, ...]
    removal: Removal | None
    """What is on record and has not ended."""
    ended: tuple[int, ...]
    """What removals that have ended took."""
    purged: tuple[int, ...]
    counted: tuple[str, tuple[int, ...], int] | None
    """What a removal has counted, and when; or what a careless one has deleted."""
    moment: int
    """How often a removal has begun or ended."""
    begun: int
    clash: str
    left: tuple[int, ...]


class RemovalModel(Model):
    """One partition, one sink."""

    name = "removing rows"
    about = (
        "Two exporters that look at the table at different times, rows arriving, a retention and a purge, continued by "
        "whoever finds them; crashes at every step."
    )
    bounds = {"trouble": 2, "crash": 2}
    large = {"trouble": 3, "crash": 3}
    bugs = {
        "retention does not ask the sinks": Bug("what is old goes, whoever has it", ("U10",)),
        "positions of a moment ago": Bug(
            "what goes is decided from positions that were read before the record", ("U11",), rules=("U10", "U11")
        ),
        "rows under way go": Bug("what an open intent has pinned is removed", ("U11",)),
        "rows go before the record": Bug("rows are deleted first, and recorded afterwards", ("U12",)),
        "pinned over rows that go": Bug(
            "a range is pinned while rows of it are being removed, or went since the look", ("U11",), rules=("U14",)
        ),
        "adopted with an older look": Bug(
            "another's intent is fulfilled from a look of before rows of it went", ("U11",), rules=("U14",)
        ),
        "counts of before another removal": Bug(
            "rows are recorded as they were counted, although another removal has taken them since", ("U17",)
        ),
        "an older look is enough": Bug(
            "an exporter fulfils another's intent from a look that does not reach to its end",
            ("D7", "U11"),
            rules=("D7",),
        ),
    }

    def initial(self) -> State:
        return State(
            rows=(1,),
            horizon=1,
            mark=0,
            intent=None,
            objects=(),
            exporters=(Exporter(), Exporter()),
            removal=None,
            ended=(),
            purged=(),
            counted=None,
            moment=0,
            begun=0,
            clash="",
            left=self.plenty(),
        )

    def same(self, state: State) -> State:
        return state._replace(exporters=tuple(sorted(state.exporters)))

    def steps(self, state: State) -> Iterator[Step]:
        if state.horizon < ROWS:
            new = state.horizon + 1
            yield "a row is committed", state._replace(rows=(*state.rows, new), horizon=new)
        for index, exporter in enumerate(state.exporters):
            for label, reached in self._exporter(state, index, exporter):
                yield f"exporter {index + 1} {label}", reached
        yield from self._removals(state)

    # ── delivery ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _exporter(self, state: State, index: int, exporter: Exporter) -> Iterator[Step]:
        def to(new: Exporter, now: State = state) -> State:
            return now._replace(exporters=put(now.exporters, index, new))

        looked = Exporter("looked", state.rows, state.horizon, len(state.ended))
        match exporter.at:
            case "idle":
                if state.mark < state.horizon or state.intent is not None:
                    yield "looks at the table", to(looked)
            case "looked":
                yield from self._pin(state, exporter, to)
            case "pinned":
                enough = exporter.horizon >= exporter.range[1] or self.bug == "an older look is enough"
                if enough:
                    yield "sends", to(exporter._replace(at="sent"), self._sent(state, exporter))
                else:
                    yield "looks again", to(looked._replace(at="pinned", range=exporter.range))
            case "sent":
                acknowledged = state
                if state.intent == exporter.range:
                    acknowledged = state._replace(intent=None, mark=exporter.range[1])
                yield "acknowledges", to(Exporter(), acknowledged)
        if exporter.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Exporter(), poorer)

    def _pin(self, state: State, exporter: Exporter, to) -> Iterator[Step]:
        moved = exporter.moment != len(state.ended)
        if state.intent is not None:
            after, through = state.intent
            if (
                moved
                and any(after < row <= through for row in state.ended)
                and self.bug != "adopted with an older look"
            ):
                yield "is told to come again", to(Exporter())
            else:
                yield "adopts the open intent", to(exporter._replace(at="pinned", range=state.intent))
            return
        if state.mark >= exporter.horizon:
            yield "has nothing to do", to(Exporter())
            return
        going = state.removal is not None and any(row > state.mark for row in state.removal.rows)
        went = moved and any(row > state.mark for row in state.ended)
        if (going or went) and self.bug != "pinned over rows that go":
            yield "is told to come again", to(Exporter())
            return
        span = (state.mark, exporter.horizon)
        yield f"pins {span}", to(exporter._replace(at="pinned", range=span), state._replace(intent=span))

    def _sent(self, state: State, exporter: Exporter) -> State:
        after, through = exporter.range
        rows = tuple(row for row in exporter.rows if after < row <= through)
        there = next((held for start, end, held in state.objects if (start, end) == (after, through)), None)
        if there is None:
            late = (after, through) != state.intent  # settled by another, whose object is there: it was empty
            return state if late else state._replace(objects=tuple(sorted((*state.objects, (after, through, rows)))))
        pending = (after, through) == state.intent
        return state._replace(clash=f"{there} and {rows}") if there != rows and pending else state

    # ── removals ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _removals(self, state: State) -> Iterator[Step]:
        removal = state.removal
        if removal is not None:
            if not removal.deleted:
                left = tuple(row for row in state.rows if row not in removal.rows)
                yield "the rows go", state._replace(rows=left, removal=removal._replace(deleted=True))
            else:
                ended = (*state.ended, *removal.rows)
                moment = state.moment + 1
                yield "a removal is recorded as done", state._replace(removal=None, ended=ended, moment=moment)
            return
        if state.counted is not None:
            yield from self._plan(state, *state.counted)
        if state.begun < 2:
            begun = state._replace(begun=state.begun + 1)
            for kind, wanted in (("retention", state.rows[:1]), ("purge", (1,))):
                doomed = tuple(row for row in wanted if row in state.rows and self._may_go(state, row, kind))
                if not doomed:
                    continue
                counted = (kind, doomed, state.moment)
                if state.counted is not None:  # another's, which comes to its plan at once
                    yield f"another {kind} of {doomed} is recorded", _planned(begun, kind, doomed)
                elif self.bug == "rows go before the record":
                    left = tuple(row for row in state.rows if row not in doomed)
                    yield f"a {kind} deletes {doomed}", begun._replace(rows=left, counted=counted)
                else:
                    yield f"a {kind} counts {doomed}", begun._replace(counted=counted)

    def _plan(self, state: State, kind: str, doomed: tuple[int, ...], moment: int) -> Iterator[Step]:
        done = state._replace(counted=None)
        careless = self.bug in {"rows go before the record", "positions of a moment ago"}
        held = not careless and not all(self._may_go(state, row, kind) for row in doomed)
        moved = moment != state.moment and self.bug != "counts of before another removal"
        if held or moved:
            yield "… and has to count again", done
        else:
            yield f"… and records the {kind} of {doomed}", _planned(done, kind, doomed)
        if (poorer := self.spend(state, "crash")) is not None:
            yield "the removal dies", poorer._replace(counted=None)

    def _may_go(self, state: State, row: int, kind: str) -> bool:
        under_way = state.intent is not None and state.intent[0] < row <= state.intent[1]
        if under_way and self.bug != "rows under way go":
            return False
        return kind == "purge" or row <= state.mark or self.bug == "retention does not ask the sinks"

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        if state.clash:
            return f"U11 a range was sent with other rows than before: {state.clash}"
        if len(set(state.ended)) < len(state.ended):
            return f"U17 rows are recorded as removed twice: {state.ended}"
        recorded = {*state.ended, *(state.removal.rows if state.removal else ())}
        delivered = {row for _, _, rows in state.objects for row in rows}
        for row in range(1, state.horizon + 1):
            if row not in state.rows and row not in recorded:
                return f"U12 row {row} is gone, and nothing says so"
            if row in delivered or row in state.purged:
                continue
            if row not in state.rows:
                return f"U10 row {row} is gone, and the sink never had it"
            if row <= state.mark:
                return f"D7 row {row} counts as delivered, and never left"
        return None

    def done(self, state: State) -> bool:
        return state.mark == state.horizon == ROWS and state.removal is None and state.intent is None


def _planned(state: State, kind: str, doomed: tuple[int, ...]) -> State:
    purged = tuple(sorted({*state.purged, *(doomed if kind == "purge" else ())}))
    return state._replace(removal=Removal(kind, doomed), purged=purged, moment=state.moment + 1)


# ── a sink that comes later ──────────────────────────────────────────────────────────────────────────────────────────


class Later(NamedTuple):
    clock: int
    events: int
    removal: tuple[int, int] | None
    """Row 3 went: the number of the event, and the time."""
    sink: tuple[int, int] | None
    mark: int
    """Up to where the sink's records say that it has everything; -1: they are lost."""
    delivered: int
    left: tuple[int, ...]


class LaterSinkModel(Model):
    """Row 3 of three is removed before or after a sink is added that loses its records once."""

    name = "a sink that comes later"
    about = (
        "A removal takes what every sink has, a sink is added before or after it, loses its records and asks what is there; "
        "the clock is set back."
    )
    bounds = {"trouble": 2, "back": 1, "lost": 1}
    large = {"trouble": 4, "back": 2, "lost": 2}
    bugs = {
        "a clock says what was first": Bug("a removal and a sink are put into order by their times", ("U19",)),
    }

    def initial(self) -> Later:
        return Later(1, 0, None, None, 0, 0, self.plenty())

    def steps(self, state: Later) -> Iterator[Step]:
        event = (state.events + 1, state.clock)
        if state.clock < 3:
            yield "time passes", state._replace(clock=state.clock + 1)
        if state.clock > 0 and (poorer := self.spend(state, "back")) is not None:
            yield "the clock is set back", poorer._replace(clock=state.clock - 1)
        if state.removal is None and (state.sink is None or state.mark == 3):
            yield "row 3 is removed", state._replace(removal=event, events=event[0])
        if state.sink is None:
            yield "a sink is added", state._replace(sink=event, events=event[0])
            return
        if state.mark == -1:
            yield "the sink asks what is there", state._replace(mark=self._there(state))
            return
        if state.mark < 3:
            to = state.mark + 1
            sends = to < 3 or state.removal is None
            yield f"row {to} is delivered", state._replace(mark=to, delivered=max(to * sends, state.delivered))
        if (poorer := self.spend(state, "lost")) is not None:
            yield "its records are lost", poorer._replace(mark=-1)

    def _there(self, state: Later) -> int:
        """What is at the destination, and beyond it what went because the sink had it."""
        if not state.delivered or state.removal is None or state.sink is None:
            return state.delivered
        by = 1 if self.bug == "a clock says what was first" else 0
        return 3 if state.removal[by] > state.sink[by] else state.delivered

    def broken(self, state: Later) -> str | None:
        for row in (1, 2):
            if state.delivered < row <= state.mark:
                return f"U19 row {row} counts as delivered, and never left"
        return None

    def done(self, state: Later) -> bool:
        return state.mark == 3


# ── what waits ───────────────────────────────────────────────────────────────────────────────────────────────────────


class Waiting(NamedTuple):
    segment: str
    """Rows 1 and 2: `waiting`, `in a block`, `committed`, `retired`."""
    copy: str
    """Row 2 alone: `none`, `waiting`, `in a block`, `committed`."""
    purger: str
    left: tuple[int, ...]


class PurgedSegmentModel(Model):
    """A purge of row 1 while its segment waits for a flush."""

    name = "purging what waits"
    about = "A purge replaces a waiting segment by a copy without the row, beside flushes; crashes at every step."
    bounds = {"trouble": 2, "crash": 2}
    large = {"trouble": 4, "crash": 4}
    bugs = {
        "a copy beside its segment": Bug("the copy is registered first, the segment retired afterwards", ("U16",)),
        "a segment before its copy": Bug("the segment is retired first, the copy registered afterwards", ("U16",)),
        "a segment of a block is retired": Bug("nobody looks whether a block has the segment", ("U16",)),
    }

    def initial(self) -> Waiting:
        return Waiting("waiting", "none", "looking", self.plenty())

    def steps(self, state: Waiting) -> Iterator[Step]:
        yield from self._purge(state)
        for name in ("segment", "copy"):
            match getattr(state, name):
                case "waiting":
                    yield f"a flush takes the {name}", state._replace(**{name: "in a block"})
                case "in a block":
                    yield f"the {name} is committed", state._replace(**{name: "committed"})
                    yield f"the block of the {name} is void", state._replace(**{name: "waiting"})

    def _purge(self, state: Waiting) -> Iterator[Step]:
        free = state.segment == "waiting" or (
            self.bug == "a segment of a block is retired" and state.segment == "in a block"
        )
        if state.purger == "looking" and free:
            if self.bug == "a copy beside its segment":
                yield "the copy is registered", state._replace(copy="waiting", purger="half done")
            elif self.bug == "a segment before its copy":
                yield "the segment is retired", state._replace(segment="retired", purger="half done")
            else:
                replaced = "in a block, retired" if state.segment == "in a block" else "retired"
                yield "they change places", state._replace(segment=replaced, copy="waiting", purger="done")
        elif state.purger == "half done":
            if self.bug == "a copy beside its segment" and state.segment == "waiting":
                yield "the segment is retired", state._replace(segment="retired", purger="done")
            elif self.bug == "a segment before its copy":
                yield "the copy is registered", state._replace(copy="waiting", purger="done")
            if (poorer := self.spend(state, "crash")) is not None:
                yield "the purge dies", poorer._replace(purger="looking" if state.copy == "none" else "done")
        if state.segment == "in a block, retired":
            yield "the block is committed", state._replace(segment="committed")

    def broken(self, state: Waiting) -> str | None:
        copies = (state.segment != "retired") + (state.copy != "none")
        if state.purger != "half done" and copies != 1:
            return f"U16 row 2 is there {copies} times"
        return None

    def done(self, state: Waiting) -> bool:
        return "committed" in (state.segment, state.copy)
