"""Loss of power: what was written and not synced is gone, and so is everybody; what was committed to a database is not.

A row's way: landing line ──sync──▶ acknowledged ──▶ segment file ──sync──▶ registered ──▶ appended (files of the lake are written,
the catalog's pointer is durable at once) ──▶ those files synced ──▶ recorded ──▶ segment file gone. Compaction replaces the
table's files and syncs them afterwards; then the old ones are deleted.

After a loss of power the table's head may refer to files that are gone. Recovery goes back over it, if that loses nothing:
a commit of the undecided block is sent again, and a commit that only rewrote files had the same rows before.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put

ROWS = 2


class Row(NamedTuple):
    """Where one row is, beside the lake."""

    landing: str = "none"
    """`none`, `written`, `synced`, `sealed` (its line is in a registered segment, and the file goes)"""
    acknowledged: bool = False
    segment: str = "none"
    """`none`, `writing`, `sealed`, `taken` (in the undecided block), `consumed`"""
    file: str = "none"
    """The segment's: `none`, `written`, `synced`"""


class Commit(NamedTuple):
    operation: str
    rows: tuple[int, ...]
    files: tuple[int, ...]
    """The data files that the table has from then on."""


class State(NamedTuple):
    rows: tuple[Row, ...]
    commits: tuple[Commit, ...]
    files: tuple[tuple[int, bool], ...]
    """Data files that exist, and whether they are synced."""
    undecided: tuple[int, ...]
    """The rows of the block that is reserved."""
    flusher: str
    compacted: bool
    born: int
    left: tuple[int, ...]


class PowerLossModel(Model):
    """A writer, a sealer, a flusher and a compaction, and the power going at any instant."""

    name = "power loss"
    about = (
        "A writer, a sealer, a flusher, a compaction and the deletion of old files; the power goes at any instant, more "
        "than once, and takes every file along that was not synced."
    )
    bounds = {"trouble": 5, "power": 2, "compact": 2, "crash": 1}
    large = {"trouble": 8, "power": 3, "compact": 3, "crash": 2}
    bugs = {
        "acknowledged before the sync": Bug("a capture returns when its line is written", ("L1",)),
        "registered before the sync": Bug("a segment is registered when its file is written", ("I7",)),
        "the commit is not synced": Bug("a block is recorded as soon as it has landed", ("I7",)),
        "old files go before new ones are synced": Bug(
            "compaction deletes what it has replaced at once", ("I7",), rules=("U2",)
        ),
        "only an undecided block is undone": Bug(
            "a rewrite whose files are gone stays the head, though its predecessor is whole",
            ("progress",),
            rules=("U4",),
        ),
    }

    def initial(self) -> State:
        return State((Row(),) * ROWS, (), (), (), "idle", True, 1, self.plenty())

    def steps(self, state: State) -> Iterator[Step]:
        for place, row in enumerate(state.rows):
            for label, new in self._spool(row):
                yield f"row {place + 1}: {label}", state._replace(rows=put(state.rows, place, new))
        yield from self._flusher(state)
        yield from self._compaction(state)
        yield from self._mend(state)
        if (poorer := self.spend(state, "power")) is not None:
            yield "the power goes", _dark(poorer)
        if state.flusher != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "the flusher dies", poorer._replace(flusher="idle")

    def _spool(self, row: Row) -> Iterator[tuple[str, Row]]:
        """From the landing log to a registered segment."""
        early = self.bug == "acknowledged before the sync"
        if row.landing == "none" and not row.acknowledged:
            yield "its line is written", row._replace(landing="written", acknowledged=early)
        elif row.landing == "written":
            yield "its line is synced, the capture returns", row._replace(landing="synced", acknowledged=True)
        elif row.landing == "synced" and row.segment == "none":
            yield "its segment is written", row._replace(segment="writing", file="written")
        elif row.segment == "writing":
            if row.file == "written" and self.bug != "registered before the sync":
                yield "its segment is synced", row._replace(file="synced")
            else:
                yield "its segment is registered, the line goes", row._replace(segment="sealed", landing="sealed")
        elif row.segment == "sealed" and row.file == "written":
            yield "its segment is synced", row._replace(file="synced")

    def _flusher(self, state: State) -> Iterator[Step]:
        match state.flusher:
            case "idle":
                waiting = tuple(place for place, row in enumerate(state.rows) if row.segment == "sealed")
                readable = all(state.rows[place].file != "none" for place in waiting)
                if state.undecided:
                    yield "the flusher finds a block undecided", state._replace(flusher="looking")
                elif waiting and readable and _whole(state):
                    rows = state.rows
                    for place in waiting:
                        rows = put(rows, place, rows[place]._replace(segment="taken"))
                    yield (
                        f"the flusher reserves for {waiting}",
                        state._replace(rows=rows, undecided=waiting, flusher="sending"),
                    )
            case "sending":
                if all(state.rows[place].file != "none" for place in state.undecided):
                    yield "the flusher appends", _append(state)
            case "looking":
                landed = bool(set(state.undecided) & set(_head(state).rows))
                if landed and _whole(state):
                    skips = self.bug == "the commit is not synced"
                    yield "the flusher sees it landed", state._replace(flusher="recording" if skips else "syncing")
                elif not landed and _whole(state):
                    yield "the flusher sees it open", state._replace(flusher="sending")
                else:
                    yield "the flusher cannot read the table", state._replace(flusher="idle")
            case "syncing":
                if _whole(state):
                    live = _head(state).files
                    files = tuple((file, synced or file in live) for file, synced in state.files)
                    yield "the flusher syncs the table's files", state._replace(files=files, flusher="recording")
            case "recording":
                rows = state.rows
                for place in state.undecided:
                    rows = put(rows, place, rows[place]._replace(segment="consumed"))
                yield "the flusher records the block", state._replace(rows=rows, undecided=(), flusher="cleaning")
            case "cleaning":
                rows = tuple(row._replace(file="none") if row.segment == "consumed" else row for row in state.rows)
                yield "the flusher removes the segments' files", state._replace(rows=rows, flusher="idle")

    def _compaction(self, state: State) -> Iterator[Step]:
        head = _head(state)
        if head.files and _whole(state) and state.compacted and (poorer := self.spend(state, "compact")) is not None:
            commit = Commit("replace", head.rows, (state.born,))
            files = tuple(sorted((*state.files, (state.born, False))))
            gone = files
            if self.bug == "old files go before new ones are synced":
                gone = tuple(item for item in files if item[0] == state.born)
            yield (
                "a compaction commits",
                poorer._replace(commits=(*state.commits, commit), files=gone, born=state.born + 1, compacted=False),
            )
        if not state.compacted and _whole(state):
            live = head.files
            kept = tuple((file, True) for file, _ in state.files if file in live)
            yield "the compaction syncs its files, and deletes the old ones", state._replace(files=kept, compacted=True)

    def _mend(self, state: State) -> Iterator[Step]:
        """The head's files are gone: back to the commit before it, if that loses nothing."""
        if _whole(state):
            return
        head, before = state.commits[-1], state.commits[:-1]
        own = head.operation == "append" and set(head.rows) - set(_head(state._replace(commits=before)).rows)
        undone = bool(own) and set(own) <= set(state.undecided)
        if head.operation == "replace" and self.bug != "only an undecided block is undone":
            undone = True
        if undone and state.flusher == "idle":
            yield "recovery goes back over the head", state._replace(commits=before, compacted=True)

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        there = {file for file, _ in state.files}
        for place, row in enumerate(state.rows):
            if not row.acknowledged:
                continue
            in_lake = any(place in commit.rows and set(commit.files) <= there for commit in state.commits)
            in_segment = row.segment in {"sealed", "taken"} and row.file != "none"
            if row.landing == "none":
                return f"L1 row {place + 1} was acknowledged, and is nowhere"
            if row.landing == "sealed" and not in_segment and not in_lake:
                return f"I7 row {place + 1} is nowhere any more"
        numbers = _head(state).rows
        return f"I4 a row is in the table twice: {numbers}" if len(set(numbers)) < len(numbers) else None

    def done(self, state: State) -> bool:
        return all(row.segment == "consumed" for row in state.rows) and _whole(state) and state.flusher == "idle"


def _head(state: State) -> Commit:
    return state.commits[-1] if state.commits else Commit("none", (), ())


def _whole(state: State) -> bool:
    """Whether every file of the head is there."""
    return set(_head(state).files) <= {file for file, _ in state.files}


def _append(state: State) -> State:
    head = _head(state)
    commit = Commit("append", head.rows + state.undecided, (*head.files, state.born))
    return state._replace(
        commits=(*state.commits, commit),
        files=(*state.files, (state.born, False)),
        born=state.born + 1,
        flusher="looking",
    )


def _dark(state: State) -> State:
    """Only what was synced is left, and nobody is at work."""
    rows = []
    for row in state.rows:
        landing = "none" if row.landing == "written" else row.landing
        file = "none" if row.file == "written" else row.file
        segment = "none" if row.segment == "writing" else row.segment
        rows.append(row._replace(landing=landing, file="none" if segment == "none" else file, segment=segment))
    files = tuple((file, synced) for file, synced in state.files if synced)
    return state._replace(rows=tuple(rows), files=files, flusher="idle")
