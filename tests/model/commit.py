"""The commit: base → reserve → append → verdict → record, by two flushers at once, beside upkeep and a reader.

Steps of a flusher (a crash may come between any two of them)

    idle ──load the base──▶ based ──reserve, send──▶ waiting ──▶ looking ──▶ recording ──▶ cleaning
      ╰──an undecided block: look────────────────────────────────╯  │  ╰──▶ voiding
                                                    ╰──send again───╯

A request that timed out, or whose client died, is *late*: it arrives at any time, or never. Rows are named by their
segment: each segment brings one row, and segment 1 also a second one that turns out to be a duplicate, so that a
block's last number is one that no row has.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without
from .lake_table import Base, Commit, Row, Table

RESERVED, COMMITTED, VOID = "reserved", "committed", "void"
NOWHERE = Base(0, 0)


class Block(NamedTuple):
    id: int
    after: int
    through: int
    base: Base
    segments: tuple[int, ...]
    state: str = RESERVED


class Control(NamedTuple):
    """The control database. A transaction is one step."""

    counter: int
    horizon: int
    blocks: tuple[Block, ...]
    segments: tuple[str, ...]
    """For each segment: `absent`, `sealed`, `consumed`, or `in n`: in the undecided block n."""

    def undecided(self) -> Block | None:
        return next((block for block in self.blocks if block.state == RESERVED), None)

    def find(self, id: int) -> Block | None:
        return next((block for block in self.blocks if block.id == id), None)

    def sealed(self) -> tuple[int, ...]:
        return tuple(index for index, state in enumerate(self.segments) if state == "sealed")


class Flusher(NamedTuple):
    at: str = "idle"
    base: Base = NOWHERE
    seen: int = 0
    """The highest number that is visible at the base."""
    block: Block | None = None
    rows: tuple[Row, ...] = ()
    """What the loaded table shows, while that is needed."""
    taken: tuple[int, ...] = ()
    """The block's segments that were seen in the table: those are done with, the others go with the next block."""


class Reader(NamedTuple):
    cursor: int = 0
    horizon: int = 0
    """Read, and not yet followed by a look at the table; 0 for none."""
    got: tuple[int, ...] = ()
    cache: tuple[Row, ...] | None = None


class State(NamedTuple):
    table: Table
    control: Control
    files: tuple[bool, ...]
    flushers: tuple[Flusher, ...]
    late: tuple[Block, ...]
    reader: Reader
    purged: tuple[int, ...]
    dropped: tuple[int, ...]
    """Rows that went with a table that somebody dropped."""
    born: int
    """Ids of blocks are fresh for ever, also after the control database went back in time."""
    captured: int
    upkeep: tuple[str, int]
    backup: Control | None
    left: tuple[int, ...]
    flaw: str


class CommitModel(Model):
    """Two flushers and a reader."""

    name = "commit"
    about = (
        "Two flushers and a reader; requests that time out, land late or meet a false conflict; compaction; crashes at "
        "every step, recovery by whoever comes."
    )
    sizes = frozenset({"segments", "reader", "flushers"})
    bounds = {
        "trouble": 3, "crash": 2, "late": 2, "compact": 1, "delete": 0, "expire": 0, "recreate": 0, "restore": 0,
        "segments": 2, "reader": 1, "flushers": 2,
    }  # fmt: skip
    large = {"trouble": 4, "segments": 3, "delete": 1}
    bugs = {
        "reserve before base": Bug("numbers are reserved first, and the head is loaded afterwards", ("I2",)),
        "conflict is a verdict": Bug("a conflict is taken for `not committed`: the segments go to a new block", ("I4",)),
        "time-out is a verdict": Bug("a time-out is taken for `not committed`", ("I4",)),
        "verdict from two loads": Bug("one load says not landed, a second one that another came first", ("I4",)),
        "horizon at reserve": Bug("the horizon rises when numbers are reserved", ("I3",)),
        "reserve in two transactions": Bug("what waits is read in one transaction and taken in another", ("I5",)),
        "two blocks at once": Bug("a block is reserved beside an undecided one", ("I8",)),
        "snapshot before horizon": Bug("a reader loads the table first, and the horizon afterwards", ("I9",)),
        "cached snapshot": Bug("a reader's catalog gives the table as it was at the first look", ("I9",)),
    }  # fmt: skip

    def __init__(self, bug: str | None = None, **bounds: int) -> None:
        super().__init__(bug, **bounds)
        self.width = [1, 2, 1, 1][: self.bound["segments"]]

    def initial(self) -> State:
        count = self.bound["segments"]
        present = count - 1
        return State(
            table=Table(),
            control=Control(0, 0, (), ("sealed",) * present + ("absent",) * (count - present)),
            files=(True,) * present + (False,) * (count - present),
            flushers=(Flusher(),) * self.bound["flushers"],
            late=(),
            reader=Reader(),
            purged=(),
            dropped=(),
            born=1,
            captured=present,
            upkeep=("idle", 0),
            backup=None,
            left=self.plenty(),
            flaw="",
        )

    def same(self, state: State) -> State:
        if len(state.flushers) == 1 or _order(state.flushers[0]) <= _order(state.flushers[1]):
            return state
        return state._replace(flushers=state.flushers[::-1])

    def steps(self, state: State) -> Iterator[Step]:
        for index, flusher in enumerate(state.flushers):
            for label, reached in self._flusher(state, index, flusher):
                yield f"flusher {label}", reached
        yield from self._requests(state)
        yield from self._spool(state)
        if self.bound["reader"]:
            yield from self._reader(state)
        yield from self._upkeep(state)
        yield from self._restore(state)

    # ── a flusher ────────────────────────────────────────────────────────────────────────────────────────────────

    def _flusher(self, state: State, index: int, flusher: Flusher) -> Iterator[Step]:
        def to(new: Flusher, now: State = state) -> State:
            return now._replace(flushers=put(now.flushers, index, new))

        block = flusher.block
        match flusher.at:
            case "idle":
                yield from self._begin(state, to)
            case "loaded":
                yield "compares the table with what is recorded", self._compare(state, flusher, to)
            case "found":
                yield "enters the commits that were forgotten", self._enter_found(state, flusher, to)
            case "based":
                yield from self._reserve(state, flusher, to)
            case "taking":
                yield "takes what it saw waiting", self._take(state, flusher, to, waiting=flusher.rows)
            case "basing":
                based = block._replace(base=state.table.base)
                blocks = put(state.control.blocks, state.control.blocks.index(block), based)
                told = state._replace(control=state.control._replace(blocks=blocks))
                yield "loads the base, after it reserved, and sends", to(Flusher("waiting", block=based), told)
            case "waiting":
                yield from self._answers(state, block, to)
            case "looking":
                yield from self._look(state, block, to)
            case "looking again":
                second = "void" if any(commit.brought_rows for commit in state.table.commits[block.base.head :]) else ""
                yield (
                    "loads the table a second time",
                    to(flusher._replace(at="voiding" if second else "waiting")),
                )
            case "recording":
                yield "records the block as committed", self._record(state, flusher, to)
            case "cleaning":
                yield f"removes the files of {flusher.taken}", to(Flusher(), _remove_files(state, flusher.taken))
            case "early cleaning":
                yield "removes the files", to(flusher._replace(at="recording"), _remove_files(state, flusher.taken))
            case "voiding":
                yield f"voids block {block.id}", to(Flusher(), _void(state, block))
        if flusher.at != "idle" and (poorer := self.spend(state, "crash")):
            yield "dies", to(Flusher(), poorer)
            if flusher.at == "waiting":
                yield "dies, its request is late", to(Flusher(), poorer._replace(late=with_one(poorer.late, block)))

    def _begin(self, state: State, to) -> Iterator[Step]:
        undecided = state.control.undecided()
        if self.bug == "reserve before base":
            if state.control.sealed():
                yield "reserves before it has a base", self._take(state, Flusher(), to, waiting=state.control.sealed())
            elif undecided is not None and undecided.base != NOWHERE:
                yield f"finds block {undecided.id} undecided", to(Flusher("looking", block=undecided))
            return
        if undecided is not None:
            yield f"finds block {undecided.id} undecided", to(Flusher("looking", block=undecided))
        if state.control.sealed() or undecided is not None:  # it may have looked before that block was reserved
            yield "loads the base", to(self._loaded(state))

    def _loaded(self, state: State) -> Flusher:
        table = state.table
        compares = bool(table.rows) and self.bound["restore"]
        if not compares:
            return Flusher("based", table.base, table.highest())
        return Flusher("loaded", table.base, table.highest(), rows=table.rows)

    def _reserve(self, state: State, flusher: Flusher, to) -> Iterator[Step]:
        if self.bug == "reserve in two transactions":
            if state.control.undecided() is None:
                waiting = flusher._replace(at="taking", rows=state.control.sealed())
                yield "reads what waits", to(waiting if state.control.sealed() else Flusher())
        elif (state.control.undecided() and self.bug != "two blocks at once") or not state.control.sealed():
            yield "cannot reserve: another was first", to(Flusher())
        else:
            yield "reserves, and sends", self._take(state, flusher, to, waiting=state.control.sealed())

    def _take(self, state: State, flusher: Flusher, to, *, waiting) -> State:
        """The transaction: numbers above everything, the block, its segments."""
        control = state.control
        after = max(control.counter, flusher.seen)
        through = after + sum(self.width[segment] for segment in waiting)
        block = Block(state.born, after, through, flusher.base, tuple(waiting))
        segments = tuple(
            f"in {block.id}" if index in waiting else value for index, value in enumerate(control.segments)
        )
        horizon = through if self.bug == "horizon at reserve" else control.horizon
        reserved = control._replace(
            counter=through, blocks=(*control.blocks, block), segments=segments, horizon=horizon
        )
        at = "basing" if self.bug == "reserve before base" else "waiting"
        return to(Flusher(at, block=block), state._replace(control=reserved, born=state.born + 1))

    def _answers(self, state: State, block: Block, to) -> Iterator[Step]:
        """A request arrives, or does not. Whatever the answer says, the flusher looks at the table."""
        looking = Flusher("looking", block=block)
        arrived, landed = self._arrive(state, block)
        refused = Flusher("voiding", block=block) if self.bug == "conflict is a verdict" else looking
        yield f"gets its answer: {'landed' if landed else 'conflict'}", to(looking if landed else refused, arrived)
        if (poorer := self.spend(state, "late")) is not None:
            late = poorer._replace(late=with_one(poorer.late, block))
            timed_out = Flusher("voiding", block=block) if self.bug == "time-out is a verdict" else looking
            yield "gives up waiting, its request is late", to(timed_out, late)
            yield "gets a conflict, and nothing has landed", to(refused, poorer)
            if landed:
                yield "gets a conflict with itself, and has landed", to(refused, self._arrive(poorer, block)[0])

    def _arrive(self, state: State, block: Block) -> tuple[State, bool]:
        """The compare-and-swap append."""
        table = state.table
        accepted = table.may_append_on(block.base)
        if self.bug == "successor takes the base" and table.uuid != block.base.table:
            accepted = not table.commits
        if not accepted:
            return state, False
        flaw = state.flaw
        if any(commit.after < block.through and block.after < commit.through for commit in table.commits):
            flaw = flaw or f"I1 numbers of block {block.id} were given before"
        if block.after < table.landed_through:
            flaw = flaw or f"I2 block {block.id} landed behind number {table.landed_through}"
        if block.after < state.control.horizon and not self.bound["restore"]:
            flaw = flaw or f"I3 block {block.id} landed below the horizon {state.control.horizon}"
        rows, number = [], block.after
        for segment in block.segments:
            rows.append((number + 1, segment))
            number += self.width[segment]
        grown = table.append(tuple(rows), block=block.id, after=block.after, through=block.through)
        return state._replace(table=grown, flaw=flaw), True

    def _look(self, state: State, block: Block, to) -> Iterator[Step]:
        """The verdict, from one load."""
        table = state.table
        after_base = table.since(block.base.head) if table.uuid == block.base.table else None
        known = table.commits[table.forgotten :] if after_base is None else after_base
        first = "early cleaning" if self.bug == "files before record" else "recording"
        if any(commit.block == block.id for commit in known):
            yield f"sees block {block.id} landed", to(Flusher(first, block=block, taken=block.segments))
            return
        if any(block.after < number <= block.through for number, _ in table.rows):
            # Only rows tell: the snapshot has expired, or they are those of a forgotten block with the same numbers.
            there = {segment for number, segment in table.rows if number > block.after}
            taken = tuple(segment for segment in block.segments if segment in there)
            if self.bug == "known by numbers alone":
                taken = block.segments
            yield f"sees rows of block {block.id}, of {taken}", to(Flusher(first, block=block, taken=taken))
            return
        if self.bug == "verdict from two loads":
            yield f"does not see block {block.id}", to(Flusher("looking again", block=block))
            return
        open_still = table.may_append_on(block.base)
        if self.bug == "overwrite is no append":
            open_still = open_still or not any(commit.operation == "append" for commit in known)
        if self.bug == "successor takes the base" and table.uuid != block.base.table:
            open_still = False
        if not open_still:
            yield f"sees block {block.id} void", to(Flusher("voiding", block=block))
            return
        # Spark reads the segments now. They are gone only if another has decided the block.
        there = all(state.files[segment] for segment in block.segments)
        yield f"sees block {block.id} open, sends it again", to(Flusher("waiting", block=block) if there else Flusher())

    def _record(self, state: State, flusher: Flusher, to) -> State:
        """Only if it is still reserved: committed, segments consumed, horizon raised. Else another's word stands."""
        block, control = flusher.block, state.control
        found = control.find(block.id)
        if found is None or found.state == VOID:
            return to(Flusher())
        cleaning = Flusher("cleaning", block=block, taken=flusher.taken)
        if self.bug == "files before record":
            cleaning = Flusher()
        if found.state == COMMITTED:
            return to(cleaning)
        decided = _decide(control, found, COMMITTED, release="consumed", taken=flusher.taken)
        flaw = state.flaw
        if decided.horizon > block.through:
            flaw = flaw or f"I3 block {block.id} is recorded below the horizon {control.horizon}"
        decided = decided._replace(horizon=max(decided.horizon, block.through))
        return to(cleaning, state._replace(control=decided, flaw=flaw))

    # ── catching up after the control database went back in time ─────────────────────────────────────────────────

    def _compare(self, state: State, flusher: Flusher, to) -> State:
        """Read after the table: every block that it shows was reserved before, so it is undecided or recorded."""
        undecided = state.control.undecided()
        highest = max(number for number, _ in flusher.rows)
        known = max(state.control.horizon, undecided.through if undecided else 0)
        seen = max(flusher.seen, highest)
        if highest <= known:
            return to(flusher._replace(at="based", seen=seen, rows=()))
        if undecided is not None:
            return to(Flusher("looking", block=undecided))
        return to(flusher._replace(at="found", seen=seen))

    def _enter_found(self, state: State, flusher: Flusher, to) -> State:
        """One transaction: the commits that the table shows and the records have forgotten."""
        control = state.control
        if control.horizon >= flusher.seen:
            return to(Flusher())  # another has caught up meanwhile
        above = [(number, segment) for number, segment in flusher.rows if number > control.horizon]
        committed = {segment for _, segment in above}
        first = min(number for number, _ in above) - 1
        if any(block.after == first for block in control.blocks):
            return to(Flusher())  # the numbers are taken: an error, and nothing has changed
        segments = tuple(
            "consumed" if index in committed or (value == "sealed" and not state.files[index]) else value
            for index, value in enumerate(control.segments)
        )
        found = Block(state.born, first, flusher.seen, NOWHERE, tuple(sorted(committed)), COMMITTED)
        entered = control._replace(
            segments=segments,
            blocks=(*control.blocks, found),
            horizon=flusher.seen,
            counter=max(control.counter, flusher.seen),
        )
        return to(Flusher(), state._replace(control=entered, born=state.born + 1))

    # ── others ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _requests(self, state: State) -> Iterator[Step]:
        for place, block in enumerate(state.late):
            if block not in state.late[:place]:
                arrived, landed = self._arrive(state._replace(late=without(state.late, block)), block)
                yield f"a late request of block {block.id} {'lands' if landed else 'is refused'}", arrived

    def _spool(self, state: State) -> Iterator[Step]:
        """Landing lines become a segment; again, if the records have forgotten that they did."""
        for index, value in enumerate(state.control.segments):
            if value == "absent" and index <= state.captured:
                control = state.control._replace(segments=put(state.control.segments, index, "sealed"))
                yield (
                    f"segment {index} is registered",
                    state._replace(
                        control=control,
                        files=put(state.files, index, True),
                        captured=max(state.captured, index + 1),
                    ),
                )
                return

    def _reader(self, state: State) -> Iterator[Step]:
        reader, horizon = state.reader, state.control.horizon
        if self.bug == "snapshot before horizon":
            if reader.cache is None:
                if horizon > reader.cursor:
                    yield "reader loads the table", state._replace(reader=reader._replace(cache=state.table.rows))
            elif horizon > reader.cursor:
                yield "reader takes the horizon, and reads", _read(state, horizon, reader.cache)
        elif reader.horizon:
            rows = state.table.rows
            if self.bug == "cached snapshot" and reader.cache is not None:
                rows = reader.cache
            reached = _read(state, reader.horizon, rows)
            if self.bug == "cached snapshot":
                reached = reached._replace(reader=reached.reader._replace(cache=rows))
            yield "reader loads the table, and reads", reached
        elif horizon > reader.cursor:  # a cursor above the horizon is refused
            yield f"reader takes the horizon {horizon}", state._replace(reader=reader._replace(horizon=horizon))

    def _upkeep(self, state: State) -> Iterator[Step]:
        table, control = state.table, state.control
        undecided = control.undecided()
        careless = self.bug == "purge beside an undecided block"
        if table.rows and (poorer := self.spend(state, "compact")):
            compacted = table._replace(commits=(*table.commits, Commit("replace")))
            yield "compaction commits", poorer._replace(table=compacted)
        match state.upkeep:
            case ("idle", _):
                decided = max((block.through for block in control.blocks if block.state != RESERVED), default=0)
                limit = max((number for number, _ in table.rows), default=0) if careless else decided
                if limit and table.rows and (undecided is None or careless) and (poorer := self.spend(state, "delete")):
                    yield f"a purge begins, up to {limit}", poorer._replace(upkeep=("delete", limit))
                keep = len(table.commits) - 1
                if undecided is not None and undecided.base.table == table.uuid and not careless:
                    keep = min(keep, undecided.base.head)
                if keep > table.forgotten and (poorer := self.spend(state, "expire")):
                    yield f"expiry begins, of the first {keep} snapshots", poorer._replace(upkeep=("expire", keep))
            case ("delete", limit):
                gone = tuple(segment for number, segment in table.rows if number <= limit)
                for operation in ("delete", "overwrite"):
                    yield (
                        f"the purge commits ({operation})",
                        state._replace(
                            table=table.delete(limit, operation=operation),
                            purged=tuple(sorted(state.purged + gone)),
                            upkeep=("idle", 0),
                        ),
                    )
            case ("expire", keep):
                forgotten = max(table.forgotten, min(keep, max(len(table.commits) - 1, 0)))
                max_seq = table.max_seq if self.bug == "expiry forgets numbers" else table.highest()
                expired = table._replace(forgotten=forgotten, max_seq=max_seq)
                yield "expiry commits", state._replace(table=expired, upkeep=("idle", 0))
        if table.commits and state.upkeep == ("idle", 0) and (poorer := self.spend(state, "recreate")):
            # Rows of an undecided block may come again: nobody was told that they are there.
            gone = tuple(segment for _, segment in table.rows)
            yield (
                "somebody drops the table and makes it anew",
                poorer._replace(table=Table(uuid=table.uuid + 1), dropped=gone),
            )

    def _restore(self, state: State) -> Iterator[Step]:
        """The control database is copied, and put back later. Processes are stopped; late requests cannot be."""
        if not self.bound["restore"]:
            return
        if state.backup is None:
            yield "a backup of the control database is made", state._replace(backup=state.control)
        elif (poorer := self.spend(state, "restore")) is not None:
            waiting = [flusher.block for flusher in state.flushers if flusher.at == "waiting"]
            restored = poorer._replace(control=state.backup, flushers=(Flusher(),) * self.bound["flushers"])
            yield "the backup is put back", restored
            for block in waiting if self.bound["late"] else ():
                late = with_one(restored.late, block)
                yield f"the backup is put back; the request of block {block.id} is late", restored._replace(late=late)

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        return state.flaw or _broken_rows(state) or self._broken_records(state)

    def _broken_records(self, state: State) -> str | None:
        control = state.control
        there = {segment for _, segment in state.table.rows} | {*state.purged, *state.dropped}
        taken = [segment for block in control.blocks if block.state == RESERVED for segment in block.segments]
        if len(set(taken)) < len(taken):
            return "I5 a segment is in two blocks"
        if sum(block.state == RESERVED for block in control.blocks) > 1 and self.bug != "reserve before base":
            return "I8 two blocks are undecided"
        # Catching up may find the rows of a block that was reserved a moment ago: that one is refused, and void.
        if any(control.segments[segment] == "consumed" for segment in taken) and not self.bound["restore"]:
            return "I5 a segment that is done with is in a new block"
        for index, value in enumerate(control.segments):
            if value == "consumed" and index not in there:
                return f"I4 segment {index} is done with, and its row is nowhere"
            gone = value not in {"consumed", "absent"} and not state.files[index]
            if gone and not (self.bound["restore"] and index in there):
                return f"I7 segment {index} waits, and its file is gone"
        landed = {commit.block for commit in state.table.commits}
        for block in control.blocks:
            if block.state == VOID and block.id in landed:
                return f"I4 block {block.id} is void, and its rows are in the table"
            if block.state == COMMITTED and not set(block.segments) <= there:
                return f"I4 block {block.id} is committed, and a row of it is nowhere"
        return None

    def done(self, state: State) -> bool:
        return (
            all(value == "consumed" for value in state.control.segments)
            and all(flusher.at == "idle" for flusher in state.flushers)
            and (state.reader.cursor >= state.control.horizon or not self.bound["reader"])
        )


class UpkeepModel(CommitModel):
    """The same flushers beside everything that rewrites the table."""

    name = "commit beside upkeep"
    about = (
        "Two flushers; deletes (merge-on-read and copy-on-write), compaction, snapshot expiry, a table dropped and made "
        "anew; late requests and crashes."
    )
    bounds = {
        "trouble": 2, "crash": 1, "late": 1, "compact": 1, "delete": 1, "expire": 1, "recreate": 1, "restore": 0,
        "segments": 2, "reader": 0, "flushers": 2,
    }  # fmt: skip
    large = {"trouble": 3}
    bugs = {
        "files before record": Bug("segment files go before the block says committed", ("I7",)),
        "purge beside an undecided block": Bug(
            "deletes reach into an undecided block and expiry behind its base",
            ("I4",),
            {"trouble": 4},
            rules=("U3", "U13", "U15"),
        ),
        "overwrite is no append": Bug(
            "a copy-on-write delete does not count in the verdict", ("progress",), rules=("I4",)
        ),
        "successor takes the base": Bug(
            "a base of a dropped table is accepted by the table of the same name", ("I2", "I3", "I4")
        ),
    }


class RestoreModel(CommitModel):
    """The control database goes back in time; the table and late requests do not."""

    name = "restored control database"
    about = (
        "Two flushers; the control database is copied at any time and put back at any later one, while requests that it "
        "then knows nothing of are still under way."
    )
    bounds = {
        "trouble": 2, "crash": 1, "late": 1, "compact": 0, "delete": 0, "expire": 0, "recreate": 0, "restore": 1,
        "segments": 2, "reader": 0, "flushers": 2,
    }  # fmt: skip
    large = {"trouble": 3}
    bugs = {
        "known by numbers alone": Bug(
            "a visible row with a number of the block says that all of its segments landed",
            ("I4",),
        ),
    }


class RestoreAndExpiryModel(CommitModel):
    """… and the snapshots that would have told are gone."""

    name = "restored control database, expired snapshots"
    about = "A flusher and a reader; a restored control database; compaction and snapshot expiry; no late requests."
    bounds = {
        "trouble": 3, "crash": 0, "late": 0, "compact": 1, "delete": 0, "expire": 1, "recreate": 0, "restore": 1,
        "segments": 3, "reader": 1, "flushers": 1,
    }  # fmt: skip
    large = {"flushers": 2}
    bugs = {
        "expiry forgets numbers": Bug(
            "expiry does not raise the table's highest number, and a block ended in numbers that no row has",
            ("I1",),
            rules=("I1", "U3"),
        ),
    }


class BarrierModel(CommitModel):
    """One segment cannot be committed: its blocks are given up behind a barrier, an append without rows."""

    name = "a segment that cannot be committed"
    about = (
        "Two flushers; every send of a block with one certain segment fails, and its request may be under way all the "
        "same; barriers that land, are refused or are late; smaller blocks; the segment set aside."
    )
    bounds = {
        "trouble": 2, "crash": 1, "late": 2, "again": 1, "compact": 0, "delete": 0, "expire": 0, "recreate": 0,
        "restore": 0, "segments": 2, "reader": 0, "flushers": 2,
    }  # fmt: skip
    large = {"trouble": 3, "compact": 1}
    bugs = {
        "given up without a barrier": Bug("a block whose sends fail is void at once", ("I4",), rules=("U34", "I4")),
        "a barrier's answer is a verdict": Bug(
            "a block is void when its barrier was sent, whoever came first", ("I4",), rules=("U34", "I4")
        ),
        "a block that fails is sent for ever": Bug(
            "there is no barrier", ("progress",), {"trouble": 1}, rules=("U34",)
        ),
        "set aside in the next block": Bug(
            "a segment is set aside without a look whether another flusher has taken it", ("U34",)
        ),
    }
    BAD = 0
    """The segment."""

    def _begin(self, state: State, to) -> Iterator[Step]:
        yield from super()._begin(state, to)
        if self._failed_alone(state) and state.control.segments[self.BAD] == "sealed":
            yield "finds that the segment has failed alone", to(Flusher("setting aside"))

    def _reserve(self, state: State, flusher: Flusher, to) -> Iterator[Step]:
        """All that waits; after a failure, one segment after the other."""
        control, waiting = state.control, state.control.sealed()
        failed = any(block.state == VOID and self.BAD in block.segments for block in control.blocks)
        if control.undecided() is not None or not waiting or not failed:
            yield from super()._reserve(state, flusher, to)
            return
        others = tuple(segment for segment in waiting if segment != self.BAD)
        if others:
            yield f"reserves for segment {others[0]}", self._take(state, flusher, to, waiting=others[:1])
        if self.BAD in waiting:
            now = self.spend(state, "again") if self._failed_alone(state) else state
            if now is not None:
                yield "reserves for the segment", self._take(now, flusher, to, waiting=(self.BAD,))
        yield "lets it be", to(Flusher())

    def _failed_alone(self, state: State) -> bool:
        return any(block.state == VOID and block.segments == (self.BAD,) for block in state.control.blocks)

    def _flusher(self, state: State, index: int, flusher: Flusher) -> Iterator[Step]:
        block = flusher.block
        if flusher.at == "voiding" and block.segments == (self.BAD,):
            aside = Flusher("setting aside", block=block)
            yield (
                f"voids block {block.id}",
                _void(state, block)._replace(flushers=put(state.flushers, index, aside)),
            )
        yield from super()._flusher(state, index, flusher)
        match flusher.at:
            case "barring":
                yield from self._bar(state, index, block)
            case "setting aside":
                free = state.control.segments[self.BAD] == "sealed" or self.bug == "set aside in the next block"
                segments = put(state.control.segments, self.BAD, "aside") if free else state.control.segments
                told = state._replace(control=state.control._replace(segments=segments))
                yield "sets the segment aside", told._replace(flushers=put(state.flushers, index, Flusher()))

    def _bar(self, state: State, index: int, block: Block) -> Iterator[Step]:
        """Send the barrier. Whatever the answer says, the flusher looks at the table."""
        after = "voiding" if self.bug == "a barrier's answer is a verdict" else "looking"

        def to(now: State) -> State:
            return now._replace(flushers=put(now.flushers, index, Flusher(after, block=block)))

        barrier = block._replace(segments=())
        arrived, landed = self._arrive(state, barrier)
        yield f"sends a barrier: {'it lands' if landed else 'it is refused'}", to(arrived)
        if (poorer := self.spend(state, "late")) is not None:
            yield "sends a barrier, which is late", to(poorer._replace(late=with_one(poorer.late, barrier)))

    def _answers(self, state: State, block: Block, to) -> Iterator[Step]:
        if self.BAD not in block.segments:
            yield from super()._answers(state, block, to)
            return
        looking = Flusher("looking", block=block)
        yield "fails, and nothing is sent", to(looking)
        if (poorer := self.spend(state, "late")) is not None:
            yield "fails, its request is late", to(looking, poorer._replace(late=with_one(poorer.late, block)))

    def _arrive(self, state: State, block: Block) -> tuple[State, bool]:
        if block.segments:
            return super()._arrive(state, block)
        if not state.table.may_append_on(block.base):
            return state, False
        grown = state.table.append((), block=0, after=block.through, through=block.through)
        return state._replace(table=grown), True

    def _look(self, state: State, block: Block, to) -> Iterator[Step]:
        yield from super()._look(state, block, to)
        fails = self.BAD in block.segments and self.bug != "a block that fails is sent for ever"
        landed = any(commit.block == block.id for commit in state.table.commits)
        if fails and not landed and state.table.may_append_on(block.base):
            given_up = "voiding" if self.bug == "given up without a barrier" else "barring"
            yield f"sees block {block.id} open, gives it up", to(Flusher(given_up, block=block))

    def _broken_records(self, state: State) -> str | None:
        there = {segment for _, segment in state.table.rows}
        if state.control.segments[self.BAD] == "aside" and self.BAD in there:
            return "U34 a segment is set aside, and its row is in the table"
        return super()._broken_records(state)

    def done(self, state: State) -> bool:
        segments = state.control.segments
        counted = put(segments, self.BAD, "consumed") if segments[self.BAD] == "aside" else segments
        return super().done(state._replace(control=state.control._replace(segments=counted)))


def _order(flusher: Flusher) -> tuple[object, ...]:
    return (flusher.at, flusher.base, flusher.seen, flusher.block or (), flusher.rows, flusher.taken)


def _decide(
    control: Control, block: Block, verdict: str, *, release: str, taken: tuple[int, ...] | None = None
) -> Control:
    """The end of a block. Its segments become `release`; of a committed one, those that were not taken are free again."""
    place = control.blocks.index(block)
    mine = f"in {block.id}"
    own = block.segments if taken is None else taken
    return control._replace(
        blocks=put(control.blocks, place, block._replace(state=verdict, segments=own)),
        segments=tuple(
            (release if index in own else "sealed") if value == mine else value
            for index, value in enumerate(control.segments)
        ),
    )


def _void(state: State, block: Block) -> State:
    found = state.control.find(block.id)
    if found is None or found.state != RESERVED:
        return state  # another has decided it
    return state._replace(control=_decide(state.control, found, VOID, release="sealed"))


def _remove_files(state: State, segments: tuple[int, ...]) -> State:
    files = tuple(there and index not in segments for index, there in enumerate(state.files))
    return state._replace(files=files)


def _read(state: State, horizon: int, rows: tuple[Row, ...]) -> State:
    reader = state.reader
    got = tuple(segment for number, segment in rows if reader.cursor < number <= horizon)
    return state._replace(reader=Reader(horizon, 0, tuple(sorted(reader.got + got))))


def _broken_rows(state: State) -> str | None:
    numbers = [number for number, _ in state.table.rows]
    segments = [segment for _, segment in state.table.rows]
    if len(set(segments)) < len(segments):
        return f"I4 a row is in the table twice: {state.table.rows}"
    if len(set(numbers)) < len(numbers):
        return f"I1 a number was given twice: {state.table.rows}"
    if set(segments) & set(state.purged):
        return f"I4 a purged row came back: {state.table.rows}"
    for number, segment in state.table.rows:
        if number <= state.reader.cursor and segment not in state.reader.got:
            return f"I9 the reader passed row {number} and did not get it"
    if len(set(state.reader.got)) < len(state.reader.got):
        return f"I9 the reader got a row twice: {state.reader.got}"
    return None
