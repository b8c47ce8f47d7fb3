"""Sealing: landing lines become segments, by two sealers at once, beside a writer that captures, closes or dies.

Steps of a sealer (a crash may come between any two of them)

    idle ──lock, length, offset──▶ announcing, writing ──▶ registering ──▶ looking again … removing ──▶ closing

A line is one row, and one byte long. Two sealers may see files of different length, and so make different segments of
the same lines; a segment's id is a function of its lines, its file has a name of its own.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put

LINES = 2


class Segment(NamedTuple):
    """A row of the control database."""

    start: int
    end: int
    state: str
    file: int
    owner: int
    """Which sealer's life wrote it: a dead one's may be dropped."""


class Sealer(NamedTuple):
    at: str = "idle"
    life: int = 0
    start: int = 0
    end: int = 0
    size: int = 0
    writer_gone: bool = False
    file: int = 0


class State(NamedTuple):
    written: int
    """Lines in the landing file, or in what is left of it."""
    lost_lines: tuple[int, ...]
    """Lines that went into a file without a name."""
    writer: str
    named: bool
    offset: int
    landing: str
    segments: tuple[Segment, ...]
    files: tuple[int, ...]
    sealers: tuple[Sealer, ...]
    dead: tuple[int, ...]
    born: int
    cleaning: Segment | None
    left: tuple[int, ...]
    locked: bool = True
    """Whether the writer, as long as it lives, holds the file's lock."""

    @property
    def writer_gone(self) -> bool:
        """What the file's lock says of its writer."""
        return self.writer == "gone" or not self.locked


class SealingModel(Model):
    """Two sealers, a writer, and whoever cleans up behind dead sealers."""

    name = "sealing"
    about = (
        "A writer that captures, closes or dies; two sealers that see the file at different lengths; a clean-up of what "
        "dead sealers left; crashes at every step."
    )
    bounds = {"trouble": 1, "crash": 1}
    large = {"trouble": 2, "crash": 2}
    bugs = {
        "the offset is not guarded": Bug("a segment is registered wherever the offset stands by now", ("I6",)),
        "the offset moves first": Bug("the offset moves in one transaction, the segment comes in the next", ("I6",)),
        "a live writer's file goes": Bug("a file that is sealed to its end is removed under its writer", ("L5",)),
        "one's own end is taken for sealed": Bug("who lost the race goes on behind the lines it had", ("L5",)),
        "named before it is locked": Bug(
            "a new file has its name before its writer holds the lock", ("L5",), rules=("L2",)
        ),
        "size before lock": Bug("the file's length is taken before its lock", ("L5",)),
        "clean-up without a guard": Bug("a row is dropped although somebody announced it anew", ("I6", "I7")),
    }

    def initial(self) -> State:
        early = self.bug == "named before it is locked"
        return State(
            locked=not early,
            written=0 if early else 1,
            lost_lines=(),
            writer="alive",
            named=True,
            offset=0,
            landing="open",
            segments=(),
            files=(),
            sealers=(Sealer(life=1), Sealer(life=2)),
            dead=(),
            born=3,
            cleaning=None,
            left=self.plenty(),
        )

    def same(self, state: State) -> State:
        """Sealers could change places, and their lives are only names."""
        one, other = state.sealers
        if one[:1] + one[2:] > other[:1] + other[2:]:
            state = state._replace(sealers=(other, one))
        return state

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._writer(state)
        for index, sealer in enumerate(state.sealers):
            for label, reached in self._sealer(state, index, sealer):
                yield f"sealer {index + 1} {label}", reached
        yield from self._clean_up(state)

    def _writer(self, state: State) -> Iterator[Step]:
        if state.writer != "alive":
            return
        if not state.locked:
            yield "the writer takes the lock", state._replace(locked=True)
        elif state.written < LINES:
            lost = state.lost_lines if state.named else (*state.lost_lines, state.written)
            yield (
                "the writer captures a line, and acknowledges it",
                state._replace(written=state.written + 1, lost_lines=lost),
            )
        yield "the writer closes or dies", state._replace(writer="gone")

    def _sealer(self, state: State, index: int, sealer: Sealer) -> Iterator[Step]:
        def to(new: Sealer, now: State = state) -> State:
            return now._replace(sealers=put(now.sealers, index, new))

        idle = Sealer(life=sealer.life)
        match sealer.at:
            case "idle":
                if state.named and (state.offset < state.written or state.writer_gone):
                    yield from self._open(state, sealer, to)
            case "locking":
                yield "tries the lock", to(self._onward(state, sealer._replace(writer_gone=state.writer_gone)))
            case "announcing":
                announced = _announced(state, sealer)
                written = announced._replace(files=tuple(sorted({*state.files, sealer.file})))
                yield "announces its segment and writes the file", to(sealer._replace(at="registering"), written)
            case "registering":
                yield from self._register(state, sealer, to)
            case "adding":
                yield "registers", to(sealer._replace(at="looking"), _sealed(state, sealer))
            case "looking":
                offset = sealer.end if self.bug == "one's own end is taken for sealed" else state.offset
                yield "looks where the records are", to(self._onward(state._replace(offset=offset), sealer))
            case "removing":
                yield "removes the file's name", to(sealer._replace(at="closing"), state._replace(named=False))
            case "closing":
                yield "records that it is gone", to(idle, state._replace(landing="removed"))
        if sealer.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            dead = tuple(sorted((*poorer.dead, sealer.life)))
            fresh = Sealer(life=poorer.born)
            yield "dies", to(fresh, poorer._replace(dead=dead, born=poorer.born + 1))

    def _open(self, state: State, sealer: Sealer, to) -> Iterator[Step]:
        """The lock before the length: who holds it knows that no line will follow."""
        opened = sealer._replace(at="locking", size=state.written, start=state.offset)
        if self.bug == "size before lock":
            yield "takes the file's length", to(opened)
        else:
            yield "opens the file", to(self._onward(state, opened._replace(writer_gone=state.writer_gone)))

    def _onward(self, state: State, sealer: Sealer) -> Sealer:
        """The next lines from the recorded offset on; at the end, the file itself."""
        if state.landing == "removed":
            return Sealer(life=sealer.life)
        if state.offset < sealer.size:
            file = 10 * sealer.life + state.offset
            return sealer._replace(at="announcing", start=state.offset, end=sealer.size, file=file)
        if sealer.writer_gone or self.bug == "a live writer's file goes":
            return sealer._replace(at="removing")
        return Sealer(life=sealer.life)

    def _register(self, state: State, sealer: Sealer, to) -> Iterator[Step]:
        """One transaction: the segment and the offset, and only from where its lines begin."""
        row = _row(state, sealer)
        mine = row is not None and row.state == "writing"
        guarded = state.offset == sealer.start and state.landing == "open"
        if self.bug == "the offset is not guarded":
            guarded = True
        elif self.bug == "the offset moves first" and mine and guarded:
            yield "moves the offset", to(sealer._replace(at="adding"), state._replace(offset=sealer.end))
            return
        if mine and guarded:
            moved = _sealed(state, sealer)._replace(offset=max(state.offset, sealer.end))
            yield f"registers lines {sealer.start}-{sealer.end}", to(sealer._replace(at="looking"), moved)
        else:
            yield "was beaten, throws its file away", to(sealer._replace(at="looking"), _dropped(state, sealer))

    def _clean_up(self, state: State) -> Iterator[Step]:
        """Looks for rows of dead sealers; then drops each, if it still says `writing` and names the same file."""
        if state.cleaning is None:
            for row in state.segments:
                if row.state == "writing" and row.owner in state.dead:
                    yield "clean-up sees a dead sealer's row", state._replace(cleaning=row)
            return
        seen = state.cleaning
        now = next((row for row in state.segments if (row.start, row.end) == (seen.start, seen.end)), None)
        cleaned = state._replace(files=tuple(file for file in state.files if file != seen.file), cleaning=None)
        if now is not None and (now == seen or self.bug == "clean-up without a guard"):
            cleaned = cleaned._replace(segments=tuple(row for row in state.segments if row != now))
        yield "clean-up drops it, and deletes its file", cleaned

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        sealed = [row for row in state.segments if row.state == "sealed"]
        for line in range(state.written):
            holders = [row for row in sealed if row.start <= line < row.end]
            if len(holders) > 1:
                return f"I6 line {line} is in two segments"
            if line in state.lost_lines:
                return f"L5 line {line} went to a file without a name"
            unsealed = state.named and line >= state.offset
            coming = any(sealer.at == "adding" and sealer.start <= line < sealer.end for sealer in state.sealers)
            if not holders and not unsealed and not coming:
                return f"{'I6' if line < state.offset else 'L5'} line {line} is nowhere"
        missing = [row for row in sealed if row.file not in state.files]
        return (
            f"I7 segment {missing[0].start}-{missing[0].end} is registered, and its file is gone" if missing else None
        )

    def done(self, state: State) -> bool:
        return (
            state.writer == "gone"
            and not state.named
            and state.offset == state.written
            and all(sealer.at == "idle" for sealer in state.sealers)
        )


def _row(state: State, sealer: Sealer) -> Segment | None:
    return next((row for row in state.segments if (row.start, row.end) == (sealer.start, sealer.end)), None)


def _announced(state: State, sealer: Sealer) -> State:
    """Say `writing` before the file exists. A row that was announced or dropped before is announced anew."""
    row = _row(state, sealer)
    new = Segment(sealer.start, sealer.end, "writing", sealer.file, sealer.life)
    if row is None:
        return state._replace(segments=tuple(sorted((*state.segments, new))))
    if row.state == "sealed":
        return state
    return state._replace(segments=put(state.segments, state.segments.index(row), new))


def _sealed(state: State, sealer: Sealer) -> State:
    row = _row(state, sealer)
    sealed = row._replace(state="sealed", file=sealer.file, owner=sealer.life)
    return state._replace(segments=put(state.segments, state.segments.index(row), sealed))


def _dropped(state: State, sealer: Sealer) -> State:
    row = _row(state, sealer)
    segments = state.segments
    if row is not None and row.state == "writing" and row.file == sealer.file:
        segments = tuple(other for other in segments if other != row)  # a dropped row and none are the same here
    return state._replace(segments=segments, files=tuple(file for file in state.files if file != sealer.file))
