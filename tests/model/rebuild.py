"""Rebuild: a dataset is copied into a new generation of its table while flushes go on; then the pointer is switched.

Steps of a rebuilder (a crash may come between any two of them)

    take over (epoch + 1) ──▶ name the staging table after it ──▶ copy what is missing, again and again
      ──▶ fence (in the records, then by renaming the old table) ──▶ settle the undecided block against the renamed table
      ──▶ compare; repair until equal ──▶ switch the pointer, if generation and epoch are still the same

A rebuilder that does not know what became of a copy takes over from itself. Else rows that retention has removed from both
tables meanwhile could come back with that copy after the switch.

A row is a number. `old` is the table that readers see at first; nobody can append to it once it was renamed, because
requests name their table. A copy is a compare-and-swap append on the staging table; it may be late.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

RESERVED, COMMITTED, VOID = "reserved", "committed", "void"


class Table(NamedTuple):
    name: str
    rows: tuple[int, ...] = ()
    head: int = 0
    """How many commits; one that brought rows since a base makes an append on that base fail."""
    blocks: tuple[int, ...] = ()


class Block(NamedTuple):
    id: int
    table: str
    """The name of the generation that it is for."""
    head: int
    state: str = RESERVED


class Copy(NamedTuple):
    name: str
    head: int
    rows: tuple[int, ...]


class Flusher(NamedTuple):
    at: str = "idle"
    base: tuple[str, int] = ("", 0)
    block: Block | None = None


class Rebuilder(NamedTuple):
    at: str = "idle"
    epoch: int = 0
    copy: Copy | None = None


class State(NamedTuple):
    old: Table
    staging: Table | None
    pointer: str
    epoch: int
    fenced: bool
    blocks: tuple[Block, ...]
    waiting: int
    """Rows in the spool. A row gets its number when it is taken, and keeps waiting if its block is void."""
    counter: int
    flusher: Flusher
    late_block: tuple[Block, ...]
    late_copies: tuple[Copy, ...]
    rebuilders: tuple[Rebuilder, ...]
    removed: tuple[int, ...]
    left: tuple[int, ...]


class RebuildModel(Model):
    """Two rebuilders, a flusher, and retention."""

    name = "rebuild"
    about = (
        "Two rebuilders of one dataset, a flusher, retention; copies and appends late; takeovers at any time; crashes at "
        "every step."
    )
    bounds = {"trouble": 3, "crash": 1, "late": 1, "late copy": 1, "remove": 1, "takeover": 1}
    large = {"trouble": 4, "crash": 2}
    bugs = {
        "the staging table keeps its name": Bug(
            "a takeover does not rename it: a slower rebuilder's copy lands after the comparison", ("rebuild",), rules=("U20",)
        ),
        "a late copy of one's own is passed over": Bug(
            "a rebuilder that does not know what became of its copy goes on under the same name", ("rebuild",), rules=("U21",)
        ),
        "the switch does not look at the epoch": Bug("a rebuilder that was taken over from switches", ("rebuild",), rules=("U23",)),
        "no fence": Bug("flushes go on in the old table until the pointer is switched", ("rebuild",), rules=("U22",)),
        "nothing is compared behind the fence": Bug(
            "what landed between the last copy and the fence is lost", ("rebuild",), rules=("U23",)
        ),
        "a missing table is a verdict": Bug(
            "an undecided block is void because the table of its name is gone: it was renamed", ("I4",), rules=("U22",)
        ),
        "the block is not settled against the old table": Bug(
            "the pointer is switched while a block of the old generation is undecided, and it is judged by the new one",
            ("I4",),
            rules=("U22",),
        ),
    }  # fmt: skip

    def initial(self) -> State:
        return State(
            old=Table("old", rows=(1,), head=1),
            staging=None,
            pointer="old",
            epoch=0,
            fenced=False,
            blocks=(),
            waiting=1,
            counter=1,
            flusher=Flusher(),
            late_block=(),
            late_copies=(),
            rebuilders=(Rebuilder(), Rebuilder()),
            removed=(),
            left=self.plenty(),
        )

    def same(self, state: State) -> State:
        one, other = (((r.at, r.epoch, r.copy or ())) for r in state.rebuilders)
        return state if one <= other else state._replace(rebuilders=state.rebuilders[::-1])

    def steps(self, state: State) -> Iterator[Step]:
        yield from self._flusher(state)
        for index, rebuilder in enumerate(state.rebuilders):
            for label, reached in self._rebuilder(state, index, rebuilder):
                yield f"rebuilder {label}", reached
        for block in state.late_block:
            yield f"a late append of block {block.id} arrives", _append(state._replace(late_block=()), block)
        for copy in dict.fromkeys(state.late_copies):
            taken = state._replace(late_copies=without(state.late_copies, copy))
            yield f"a late copy to {copy.name} arrives", self._copied(taken, copy)
        if state.pointer == "old" and not state.fenced and state.old.rows == (1,):
            if all(block.state != RESERVED for block in state.blocks):
                if (poorer := self.spend(state, "remove")) is not None:
                    emptied = state.old._replace(rows=())
                    yield "retention removes row 1", poorer._replace(old=emptied, removed=(1,))

    # ── the flusher ──────────────────────────────────────────────────────────────────────────────────────────────

    def _flusher(self, state: State) -> Iterator[Step]:
        flusher, block = state.flusher, state.flusher.block

        def to(new: Flusher, now: State = state) -> State:
            return now._replace(flusher=new)

        match flusher.at:
            case "idle":
                undecided = next((item for item in state.blocks if item.state == RESERVED), None)
                table = _table(state, state.pointer)
                if undecided is not None:
                    yield f"flusher finds block {undecided.id}", to(Flusher("looking", block=undecided))
                elif state.waiting and table is not None:
                    yield "flusher loads the base", to(Flusher("based", (table.name, table.head)))
            case "based":
                fenced = state.fenced and self.bug != "no fence"
                if fenced or state.pointer != flusher.base[0] or any(b.state == RESERVED for b in state.blocks):
                    yield "flusher cannot reserve", to(Flusher())
                else:
                    new = Block(state.counter + 1, *flusher.base)
                    reserved = state._replace(
                        blocks=(*state.blocks, new), waiting=state.waiting - 1, counter=state.counter + 1
                    )
                    yield f"flusher reserves {new.id}", to(Flusher("waiting", block=new), reserved)
            case "waiting":
                yield "flusher gets its answer", to(Flusher("looking", block=block), _append(state, block))
                if not state.late_block and (poorer := self.spend(state, "late")) is not None:
                    late = poorer._replace(late_block=(block,))
                    yield "flusher gives up waiting, its request is late", to(Flusher("looking", block=block), late)
            case "looking":
                yield f"flusher looks for block {block.id}", to(self._verdict(state, block))
            case "recording":
                yield f"flusher records block {block.id}", to(Flusher(), _decide(state, block, COMMITTED))
            case "voiding":
                yield f"flusher voids block {block.id}", to(Flusher(), _decide(state, block, VOID))
        if flusher.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "flusher dies", to(Flusher(), poorer)

    def _verdict(self, state: State, block: Block) -> Flusher:
        """Against the table of the block's own generation, whatever it is called by now."""
        renamed = state.old.name != "old"
        if self.bug == "a missing table is a verdict" and block.table == "old" and renamed:
            return Flusher("voiding", block=block)
        if self.bug == "the block is not settled against the old table" and state.pointer != block.table:
            return Flusher("voiding", block=block)
        table = state.old if block.table == "old" else state.staging
        if table is None:
            return Flusher()
        if block.id in table.blocks:
            return Flusher("recording", block=block)
        if table.head != block.head or (block.table == "old" and renamed):
            return Flusher("voiding", block=block)
        return Flusher("waiting", block=block)

    # ── a rebuilder ──────────────────────────────────────────────────────────────────────────────────────────────

    def _rebuilder(self, state: State, index: int, rebuilder: Rebuilder) -> Iterator[Step]:
        def to(new: Rebuilder, now: State = state) -> State:
            return now._replace(rebuilders=put(now.rebuilders, index, new))

        epoch = rebuilder.epoch
        match rebuilder.at:
            case "idle":
                # A takeover from one that is at work counts as trouble; one from a dead one does not.
                at_work = any(other.at != "idle" for other in state.rebuilders)
                begun = self.spend(state, "takeover") if at_work else state
                if state.pointer == "old" and begun is not None:
                    taken = begun._replace(epoch=state.epoch + 1)
                    yield f"takes over, epoch {taken.epoch}", to(Rebuilder("naming", taken.epoch), taken)
            case "naming":
                yield "names the staging table", to(Rebuilder("copying", epoch), self._named(state, epoch))
            case "copying":
                yield from self._copy(state, rebuilder, to)
            case "sending":
                copying = Rebuilder("copying", epoch)
                yield "gets an answer to its copy", to(copying, self._copied(state, rebuilder.copy))
                if (poorer := self.spend(state, "late copy")) is not None:
                    late = poorer._replace(late_copies=with_one(poorer.late_copies, rebuilder.copy))
                    # It takes over from itself: under the next epoch's name its own late copy has nowhere to land.
                    again = copying if self.bug == "a late copy of one's own is passed over" else Rebuilder()
                    yield "gives up waiting, its copy is late", to(again, late)
            case "fencing":
                mine = state.epoch == epoch
                fenced = state._replace(fenced=True) if mine else state
                yield (
                    "fences, in the records",
                    to(Rebuilder("renaming" if mine else "idle", epoch if mine else 0), fenced),
                )
            case "renaming":
                renamed = (
                    state if self.bug == "no fence" else state._replace(old=state.old._replace(name="old, fenced"))
                )
                yield "renames the old table", to(Rebuilder("settling", epoch), renamed)
            case "settling":
                yield from self._settle(state, epoch, to)
            case "switching":
                yield "switches the pointer", to(Rebuilder(), self._switch(state, epoch))
        if rebuilder.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Rebuilder(), poorer)
            if rebuilder.at == "sending":
                late = poorer._replace(late_copies=with_one(poorer.late_copies, rebuilder.copy))
                yield "dies, its copy is late", to(Rebuilder(), late)

    def _named(self, state: State, epoch: int) -> State:
        """The table that an earlier epoch left gets this one's name; from a later epoch nothing is taken away."""
        name = "staging" if self.bug == "the staging table keeps its name" else f"staging {epoch}"
        if state.staging is None:
            return state._replace(staging=Table(name))
        if state.epoch != epoch or state.pointer == state.staging.name:
            return state
        return state._replace(staging=state.staging._replace(name=name))

    def _copy(self, state: State, rebuilder: Rebuilder, to) -> Iterator[Step]:
        staging = self._mine(state, rebuilder.epoch)
        if staging is None:
            yield "finds that it was taken over from", to(Rebuilder())
            return
        missing = tuple(row for row in state.old.rows if row not in staging.rows)
        extra = tuple(row for row in staging.rows if row not in state.old.rows)
        if extra:
            kept = staging._replace(rows=tuple(row for row in staging.rows if row not in extra), head=staging.head + 1)
            yield "removes what the old table no longer has", to(rebuilder, state._replace(staging=kept))
        elif missing:
            copy = Copy(staging.name, staging.head, missing)
            yield f"copies {missing}", to(Rebuilder("sending", rebuilder.epoch, copy))
        else:
            following = "fencing" if not state.fenced else "settling" if state.old.name != "old" else "renaming"
            if state.fenced and self.bug == "no fence":
                following = "settling"
            yield "has caught up", to(Rebuilder(following, rebuilder.epoch))

    def _mine(self, state: State, epoch: int) -> Table | None:
        if state.staging is None or state.pointer == state.staging.name:
            return None
        name = "staging" if self.bug == "the staging table keeps its name" else f"staging {epoch}"
        return state.staging if state.staging.name == name else None

    def _copied(self, state: State, copy: Copy) -> State:
        """The compare-and-swap append to the table of that name."""
        staging = state.staging
        if staging is None or staging.name != copy.name:
            return state
        if staging.head != copy.head:
            return state
        rows = tuple(sorted((*staging.rows, *copy.rows)))
        return state._replace(staging=staging._replace(rows=rows, head=staging.head + 1))

    def _settle(self, state: State, epoch: int, to) -> Iterator[Step]:
        """The undecided block first, by whoever; then the comparison; what differs is repaired."""
        undecided = next((block for block in state.blocks if block.state == RESERVED), None)
        if undecided is not None and self.bug not in {"the block is not settled against the old table", "no fence"}:
            verdict = self._verdict(state, undecided)
            ends = {"recording": COMMITTED, "voiding": VOID}
            if verdict.at in ends:
                yield (
                    f"settles block {undecided.id}: {verdict.at}",
                    to(Rebuilder("settling", epoch), _decide(state, undecided, ends[verdict.at])),
                )
            return
        staging = self._mine(state, epoch)
        if staging is None:
            yield "finds that it was taken over from", to(Rebuilder())
        elif staging.rows == state.old.rows or self.bug == "nothing is compared behind the fence":
            yield "compares: equal", to(Rebuilder("switching", epoch))
        else:
            yield "compares: not equal", to(Rebuilder("copying", epoch))

    def _switch(self, state: State, epoch: int) -> State:
        """One transaction: only from the same generation, and only in the same epoch."""
        if state.pointer != "old":
            return state
        if state.epoch != epoch and self.bug != "the switch does not look at the epoch":
            return state
        name = "staging" if self.bug == "the staging table keeps its name" else f"staging {epoch}"
        return state._replace(pointer=name, fenced=False)

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        table = state.old if state.pointer == "old" else _table(state, state.pointer)
        if table is None:
            return f"rebuild: the pointer leads to {state.pointer!r}, and there is no such table"
        if state.pointer != "old":
            for row in set(table.rows):
                if table.rows.count(row) > 1:
                    return f"rebuild: row {row} is in the new table twice"
                if row in state.removed:
                    return f"rebuild: row {row} was removed, and came back"
        for block in state.blocks:
            if block.state == COMMITTED and block.id not in table.rows:
                return f"rebuild: row {block.id} is committed, and not in {table.name!r}"
            if block.state == VOID and (block.id in table.rows or block.id in state.old.rows):
                return f"I4 block {block.id} is void, and its row is in the table"
        if state.pointer != "old" and 1 not in table.rows and 1 not in state.removed:
            return "rebuild: row 1 was not copied"
        return None

    def done(self, state: State) -> bool:
        return (
            state.pointer != "old"
            and not state.waiting
            and all(block.state != RESERVED for block in state.blocks)
            and state.flusher.at == "idle"
        )


def _table(state: State, name: str) -> Table | None:
    return next((table for table in (state.old, state.staging) if table is not None and table.name == name), None)


def _append(state: State, block: Block) -> State:
    """The compare-and-swap append, to the table of the generation's name."""
    table = _table(state, block.table)
    if table is None or table.head != block.head:
        return state
    grown = table._replace(
        rows=tuple(sorted((*table.rows, block.id))), head=table.head + 1, blocks=(*table.blocks, block.id)
    )
    return state._replace(old=grown) if table is state.old else state._replace(staging=grown)


def _decide(state: State, block: Block, verdict: str) -> State:
    if block not in state.blocks:
        return state
    decided = put(state.blocks, state.blocks.index(block), block._replace(state=verdict))
    return state._replace(blocks=decided, waiting=state.waiting + (verdict == VOID))
