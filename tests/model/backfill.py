"""Backfill beside live capture: two loads of one source, a row that came live as well, and a flush that decides.

Steps of a backfill (a crash may come between any two of them)

    idle ──read the position──▶ forecasting ──▶ registering (segment and position in one transaction) ──▶ idle …

The source has two rows, `1` and `2`, a step each. Row `1` was also captured live, and waits in the spool. With an identity
the two are one row; without, they are two, and the source's steps are what keeps each from being loaded twice.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put

STEPS = 2


class Loader(NamedTuple):
    at: str = "idle"
    ordinal: int = 0
    keeps: bool = True
    """What its forecast says of the row."""
    row: int = 0
    """Which row it has read, if that is not the step's own."""


class State(NamedTuple):
    spool: tuple[str, ...]
    """Registered segments of one row each, in order. `live 1` is a row that was captured, `1` one of the source."""
    table: tuple[str, ...]
    position: int
    captured: bool
    loaders: tuple[Loader, ...]
    flushing: tuple[str, ...] | None
    """What a flush has taken."""
    base: tuple[str, ...]
    left: tuple[int, ...]


class BackfillModel(Model):
    """A dataset with an identity."""

    name = "backfill"
    about = (
        "Two processes load one source, step by step, into a dataset with an identity, while one of its rows also comes "
        "live; a flush takes what is registered and decides; crashes at every step."
    )
    bounds = {"trouble": 2, "crash": 2}
    large = {"trouble": 4, "crash": 4}
    identity = True
    bugs = {
        "the backfill decides": Bug(
            "what the forecast lets through is not compared again at flush", ("identity",), rules=("B2",)
        ),
        "flush looks into the spool": Bug(
            "flush drops a row whose identity waits in a segment", ("identity",), rules=("B2",)
        ),
        "a batch is not compared with itself": Bug("flush compares with the table only", ("identity",), rules=("B2",)),
    }

    def initial(self) -> State:
        return State((), (), 0, False, (Loader(), Loader()), None, (), self.plenty())

    def same(self, state: State) -> State:
        return state._replace(loaders=tuple(sorted(state.loaders)))

    def steps(self, state: State) -> Iterator[Step]:
        if not state.captured:
            yield "a live row is captured and sealed", state._replace(captured=True, spool=(*state.spool, "live 1"))
        for index, loader in enumerate(state.loaders):
            yield from self._loader(state, index, loader)
        yield from self._flush(state)

    def _loader(self, state: State, index: int, loader: Loader) -> Iterator[Step]:
        def to(new: Loader, now: State = state) -> State:
            return now._replace(loaders=put(now.loaders, index, new))

        match loader.at:
            case "idle":
                if state.position < STEPS:
                    begun = Loader("forecasting", state.position + 1)
                    yield f"backfill begins step {begun.ordinal}", to(begun)
                    if self.bug == "read on in another order" and state.position:
                        yield "backfill reads on, in another order", to(begun._replace(row=state.position))
            case "forecasting":
                stored = any(_same(row, str(loader.ordinal)) for row in state.table) and self.identity
                keeps = not (stored and self.bug == "the backfill decides")
                yield "backfill forecasts", to(loader._replace(at="registering", keeps=keeps))
            case "registering":
                yield from self._register(state, loader, to)
            case "adding":
                yield "backfill registers its segment", to(Loader(), _registered(state, loader))
        if loader.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "backfill dies", to(Loader(), poorer)

    def _register(self, state: State, loader: Loader, to) -> Iterator[Step]:
        """One transaction: the segment with its source and ordinal, and the position, which moves from there only."""
        if self.bug == "steps are not guarded":
            moved = _registered(state, loader)._replace(position=max(state.position, loader.ordinal))
            yield f"backfill registers step {loader.ordinal}", to(Loader(), moved)
        elif state.position != loader.ordinal - 1:
            yield "backfill was beaten", to(Loader())
        elif self.bug == "the position moves first":
            yield (
                "backfill moves the position",
                to(loader._replace(at="adding"), state._replace(position=loader.ordinal)),
            )
        else:
            moved = _registered(state, loader)._replace(position=loader.ordinal)
            yield f"backfill registers step {loader.ordinal}", to(Loader(), moved)

    def _flush(self, state: State) -> Iterator[Step]:
        """Takes what is registered, compares it with its base and with itself, and commits on that base alone."""
        if state.flushing is None:
            if state.spool:
                yield "a flush takes what waits", state._replace(flushing=state.spool, base=state.table)
            return
        new: list[str] = []
        for row in state.flushing:
            known = [*state.base] if self.bug == "a batch is not compared with itself" else [*state.base, *new]
            if self.bug == "the backfill decides":
                known = []
            if self.bug == "flush looks into the spool":
                known += [other for other in state.spool if other != row]
            if not (self.identity and any(_same(row, other) for other in known)):
                new.append(row)
        rest = state.spool[len(state.flushing) :]
        table = tuple(sorted((*state.table, *new)))
        yield "the flush commits", state._replace(table=table, spool=rest, flushing=None, base=())

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        for number in ("1", "2"):
            copies = [row for row in state.table if _same(row, number)]
            names = copies if not self.identity else ["it"] * len(copies)
            if len(set(names)) < len(names):
                return f"{'identity' if self.identity else 'I6'}: row {number} is in the table twice: {copies}"
        for row in self._promised(state):
            there = [*state.table, *state.spool]
            found = any(_same(row, other) for other in there) if self.identity else row in there
            coming = any(loader.at == "adding" and row == str(loader.ordinal) for loader in state.loaders)
            if not found and not coming:
                return f"{'identity' if self.identity else 'I6'}: row {row} is nowhere"
        return None

    def _promised(self, state: State) -> list[str]:
        return (["live 1"] if state.captured else []) + [str(step + 1) for step in range(state.position)]

    def done(self, state: State) -> bool:
        return state.position == STEPS and state.captured and not state.spool


class SourceStepsModel(BackfillModel):
    """A dataset without an identity: only the source's steps tell what was loaded."""

    name = "backfill without an identity"
    about = "The same without an identity: what a source's step brings is loaded once, because its number is."
    identity = False
    bugs = {
        "steps are not guarded": Bug(
            "a step is registered wherever the source stands by now", ("I6",), rules=("B1", "B3", "U40")
        ),
        "the position moves first": Bug(
            "the position moves in one transaction, the segment comes in the next", ("I6",), rules=("B1", "U40")
        ),
        "read on in another order": Bug(
            "a source that gives its rows in another order each time is gone on with in the middle",
            ("I6",),
            rules=("B4",),
        ),
    }


def _same(one: str, other: str) -> bool:
    return one.removeprefix("live ") == other.removeprefix("live ")


def _registered(state: State, loader: Loader) -> State:
    return state._replace(spool=(*state.spool, str(loader.row or loader.ordinal))) if loader.keeps else state
