"""Settlement: a function that upgrades identities looks at the rows at flush, and again at compaction.

Row `x` comes with a provisional identity; it turns out to be row `y` seen twice, once somebody knows that. From then on
the function says so: at flush `x` is a duplicate of `y`, and in the table the two collapse into the one with the lower
number. What it says may change between two attempts to send the same block, and while a request is late.

Steps of a compaction that settles
    asks the function ──▶ plans (recorded) ──▶ commits: only if nothing was appended or settled since ──▶ looks

What it planned is brought to its end by whoever finds it, from the table's history: it has landed, and what it took is
recorded; or it never will, and the plan is dropped; or it may still land, and a commit that changes nothing is put in its
way.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

RESERVED, COMMITTED, VOID = "reserved", "committed", "void"


class Block(NamedTuple):
    id: int
    number: int
    base: int
    row: str
    wise: bool
    """Whether `x` was known to be `y` when the block was reserved: an answer that all attempts share."""


class Request(NamedTuple):
    block: Block
    row: str


class Operation(NamedTuple):
    """A settlement as it was planned."""

    id: int
    base: int
    rows: tuple[tuple[int, str], ...]
    """What the table holds if it lands."""
    gone: tuple[int, ...]


class Flusher(NamedTuple):
    at: str = "idle"
    block: Block | None = None
    base: int = 0


class State(NamedTuple):
    known: bool
    commits: tuple[tuple[str, int], ...]
    """(operation, block)"""
    rows: tuple[tuple[int, str], ...]
    blocks: tuple[tuple[Block, str], ...]
    spool: tuple[str, ...]
    counter: int
    flushers: tuple[Flusher, ...]
    late: tuple[Request, ...]
    compacting: tuple[int, tuple[tuple[int, str], ...]] | Operation | None
    """What a compaction has been told by the function, or has planned and is about to commit."""
    operation: Operation | None
    """What is on record as planned."""
    planned: int
    settlements: tuple[Operation, ...]
    """Settling commits that are late."""
    gone: tuple[int, ...]
    """What landed settlements took."""
    removed: tuple[int, ...]
    """What is on record as removed."""
    left: tuple[int, ...]
    flaw: str


class SettlementModel(Model):
    """Two flushers, one compaction that settles, and a function that becomes wiser."""

    name = "settlement"
    about = (
        "Two flushers and a compaction that settles; the function learns at any time that two rows are one; requests and "
        "settling commits late, crashes."
    )
    bounds = {"trouble": 3, "crash": 1, "late": 2, "compact": 2}
    large = {"trouble": 5, "crash": 2}
    bugs = {
        "the function is asked at each attempt": Bug(
            "an attempt that has nothing left to send ends the block, while an earlier one with a row is late",
            ("I4",), rules=("B5",),
        ),
        "compaction does not compare and swap": Bug(
            "a compaction that settles replaces the table as it was, whatever was committed since", ("I4", "U17"), rules=("B7",)
        ),
        "the higher number survives": Bug("of two rows that collapse, the one that readers know goes", ("settlement",), rules=("B8",)),
        "settled beside an undecided block": Bug(
            "a compaction collapses a row by which a commit would be recognised",
            ("I4",), {"expire": 1, "trouble": 4}, rules=("B7",),
        ),
        "carried out without its commit": Bug(
            "what a settlement was to remove is removed although its commit was refused", ("I4",), rules=("U18",)
        ),
        "dropped while it may still land": Bug(
            "a settlement that is not in the table's history is taken for one that will never be", ("U17",), rules=("U18",)
        ),
        "counted with the plan": Bug(
            "what a settlement is going to remove is recorded as removed before its commit has landed", ("U17",)
        ),
    }  # fmt: skip

    def __init__(self, bug: str | None = None, **bounds: int) -> None:
        super().__init__(bug, **{"expire": 0, **self.bounds, **(self.bugs[bug].bounds if bug else {}), **bounds})

    def initial(self) -> State:
        return State(
            known=False,
            commits=(),
            rows=(),
            blocks=(),
            spool=("y", "x"),
            counter=0,
            flushers=(Flusher(), Flusher()),
            late=(),
            compacting=None,
            operation=None,
            planned=0,
            settlements=(),
            gone=(),
            removed=(),
            left=self.plenty(),
            flaw="",
        )

    def same(self, state: State) -> State:
        one, other = state.flushers
        if (one.at, one.block or (), one.base) <= (other.at, other.block or (), other.base):
            return state
        return state._replace(flushers=(other, one))

    def steps(self, state: State) -> Iterator[Step]:
        if not state.known:
            yield "somebody learns that x is y", state._replace(known=True)
        for index, flusher in enumerate(state.flushers):
            for label, reached in self._flusher(state, index, flusher):
                yield f"flusher {label}", reached
        for request in dict.fromkeys(state.late):
            taken = state._replace(late=without(state.late, request))
            yield f"a late request of block {request.block.id} arrives", _arrive(taken, request)
        for operation in state.settlements:
            taken = state._replace(settlements=without(state.settlements, operation))
            yield f"a late settlement {operation.id} arrives", self._settled(taken, operation)
        yield from self._compaction(state)
        if state.operation is not None:
            yield from self._decide(state, state.operation)

    def _flusher(self, state: State, index: int, flusher: Flusher) -> Iterator[Step]:
        def to(new: Flusher, now: State = state) -> State:
            return now._replace(flushers=put(now.flushers, index, new))

        block = flusher.block
        match flusher.at:
            case "idle":
                undecided = next((item for item, verdict in state.blocks if verdict == RESERVED), None)
                if undecided is not None:
                    yield f"finds block {undecided.id}", to(Flusher("looking", undecided))
                elif state.spool:
                    yield "loads the base", to(Flusher("based", base=len(state.commits)))
            case "based":
                if any(verdict == RESERVED for _, verdict in state.blocks) or not state.spool:
                    yield "cannot reserve", to(Flusher())
                else:
                    row, rest = state.spool[0], state.spool[1:]
                    number = state.counter + 1
                    new = Block(number, number, flusher.base, row, state.known)
                    blocks = (*state.blocks, (new, RESERVED))
                    reserved = state._replace(blocks=blocks, spool=rest, counter=number)
                    yield f"reserves {number} for {row}", to(Flusher("sending", new), reserved)
            case "sending":
                yield from self._send(state, block, to)
            case "waiting":
                request = Request(block, block.row)
                yield "gets its answer", to(Flusher("looking", block), _arrive(state, request))
                if (poorer := self.spend(state, "late")) is not None:
                    late = poorer._replace(late=with_one(poorer.late, request))
                    yield "gives up waiting, its request is late", to(Flusher("looking", block), late)
            case "looking":
                yield f"looks for block {block.id}", to(self._verdict(state, block))
            case "recording":
                yield f"records block {block.id}", to(Flusher(), _decide(state, block, COMMITTED))
            case "voiding":
                freed = state
                if (block, RESERVED) in state.blocks:
                    freed = _decide(state, block, VOID)._replace(spool=(block.row, *state.spool))
                yield f"voids block {block.id}", to(Flusher(), freed)
            case "consuming":
                yield f"voids block {block.id}: nothing was left", to(Flusher(), _decide(state, block, VOID))
        if flusher.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Flusher(), poorer)

    def _send(self, state: State, block: Block, to) -> Iterator[Step]:
        """The function, then the comparison with the base; nothing left is an end without a commit."""
        wise = state.known if self.bug == "the function is asked at each attempt" else block.wise
        base_rows = {name for number, name in state.rows if number < block.number}
        if block.row == "x" and wise and "y" in base_rows:
            yield "has nothing left to send", to(Flusher("consuming", block))
        else:
            yield f"sends {block.row}", to(Flusher("waiting", block))

    def _verdict(self, state: State, block: Block) -> Flusher:
        after = state.commits[block.base :]
        forgotten = self.bound["expire"] and len(after) > 1  # all but the newest snapshot may have expired
        visible = any(number == block.number for number, _ in state.rows)
        if visible or (("append", block.id) in after and not forgotten):
            return Flusher("recording", block)
        if any(operation in {"append", "overwrite"} for operation, _ in after):
            return Flusher("voiding", block)
        return Flusher("sending", block)

    def _compaction(self, state: State) -> Iterator[Step]:
        """Asks, plans, and commits like a flush: only if nothing was committed since. The lowest number survives."""
        careless = self.bug == "settled beside an undecided block"
        undecided = any(verdict == RESERVED for _, verdict in state.blocks) and not careless
        idle = state._replace(compacting=None)
        match state.compacting:
            case None:
                free = state.operation is None and state.rows and not undecided
                if free and (poorer := self.spend(state, "compact")) is not None:
                    asked = (len(state.commits), self._answer(state))
                    yield "a compaction asks the function", poorer._replace(compacting=asked)
            case Operation() as operation:
                yield "the settling commit arrives", self._settled(idle, operation)
                if (poorer := self.spend(idle, "late")) is not None:
                    late = tuple(sorted((*poorer.settlements, operation)))
                    yield "the settling commit is late", poorer._replace(settlements=late)
                if (poorer := self.spend(idle, "crash")) is not None:
                    yield "the compaction dies", poorer
            case (base, rows) if rows == state.rows:
                if not _moved(state, base):
                    yield "the compaction rewrites files", idle._replace(commits=(*state.commits, ("replace", 0)))
                else:
                    yield "the compaction is refused", idle
            case (base, rows):
                if undecided or state.operation is not None:
                    yield "the compaction gives way", idle
                    return
                gone = tuple(number for number, _ in state.rows if number not in dict(rows))
                operation = Operation(state.planned + 1, base, rows, gone)
                planned = state._replace(operation=operation, compacting=operation, planned=operation.id)
                if self.bug == "counted with the plan":
                    planned = planned._replace(removed=tuple(sorted({*state.removed, *gone})))
                yield f"settlement {operation.id} is planned", planned

    def _answer(self, state: State) -> tuple[tuple[int, str], ...]:
        if not state.known or not {"x", "y"} <= {name for _, name in state.rows}:
            return state.rows
        ordered = sorted(state.rows)
        return tuple(ordered[-1:] if self.bug == "the higher number survives" else ordered[:1])

    def _settled(self, state: State, operation: Operation) -> State:
        """The compare-and-swap commit of a settlement."""
        if _moved(state, operation.base) and self.bug != "compaction does not compare and swap":
            return state
        commits = (*state.commits, ("overwrite", -operation.id))
        return state._replace(commits=commits, rows=operation.rows, gone=tuple(sorted({*state.gone, *operation.gone})))

    def _decide(self, state: State, operation: Operation) -> Iterator[Step]:
        """U18: by the table, whoever finds it."""
        ended = state._replace(operation=None)
        counted = tuple(sorted({*state.removed, *operation.gone}))
        if ("overwrite", -operation.id) in state.commits[operation.base :]:
            yield f"settlement {operation.id} is recorded", ended._replace(removed=counted)
        elif _moved(state, operation.base) or self.bug == "dropped while it may still land":
            if self.bug == "carried out without its commit":
                left = tuple(row for row in state.rows if row[0] not in operation.gone)
                yield "what was planned goes all the same", ended._replace(rows=left, removed=counted)
            else:
                yield f"settlement {operation.id} is dropped", ended
        else:
            yield (
                f"settlement {operation.id} is superseded",
                state._replace(commits=(*state.commits, ("overwrite", 0))),
            )

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        names = [name for _, name in state.rows]
        for name in set(names):
            if names.count(name) > 1:
                return f"I4 row {name} is in the table twice: {state.rows}"
        for block, verdict in state.blocks:
            if verdict == VOID and ("append", block.id) in state.commits:
                return f"I4 block {block.id} is void, and its row is in the table"
            there = {number for number, _ in state.rows}
            if verdict == COMMITTED and block.number not in there and block.number not in state.gone:
                return f"I4 block {block.id} is committed, and its row is nowhere"
        if state.operation is None and state.removed != state.gone:
            return f"U17 {state.removed} are on record as removed, and {state.gone} went"
        committed = [block.number for block, verdict in state.blocks if verdict == COMMITTED]
        landed = [block.number for block, _ in state.blocks if ("append", block.id) in state.commits]
        if committed and state.rows and min(number for number, _ in state.rows) > min(committed + landed):
            return f"settlement: the row that readers know is gone: {state.rows}"
        return None

    def done(self, state: State) -> bool:
        return (
            not state.spool
            and state.operation is None
            and all(verdict != RESERVED for _, verdict in state.blocks)
            and all(flusher.at == "idle" for flusher in state.flushers)
        )


def _moved(state: State, base: int) -> bool:
    """Whether something stands in the way of a commit on a base."""
    return any(operation in {"append", "overwrite"} for operation, _ in state.commits[base:])


def _arrive(state: State, request: Request) -> State:
    """The compare-and-swap append."""
    block = request.block
    if _moved(state, block.base):
        return state
    rows = tuple(sorted((*state.rows, (block.number, request.row))))
    return state._replace(commits=(*state.commits, ("append", block.id)), rows=rows)


def _decide(state: State, block: Block, verdict: str) -> State:
    if (block, RESERVED) not in state.blocks:
        return state
    place = state.blocks.index((block, RESERVED))
    return state._replace(blocks=put(state.blocks, place, (block, verdict)))
