"""A table sink: chunks are appended to somebody else's table, each exactly once, whatever else happens there.

Steps of an exporter (a crash may come between any two of them)

    idle ──load the target──▶ recording the base (the first one stands) ──▶ deciding, from that load ──▶ sending on its head
      ──▶ waiting ──▶ loading again … ──▶ acknowledging

There are two chunks. The target's owner appends rows of their own, deletes ours, expires snapshots, or drops the table
and makes it anew. What they deleted must not come back.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from .checker import Bug, Model, Step, put, with_one, without

CHUNKS = 2
PENDING, DONE = "pending", "done"


class Target(NamedTuple):
    """One load of this value is one load of the metadata."""

    uuid: int = 1
    commits: tuple[tuple[str, int], ...] = ()
    """(operation, the chunk whose mark it carries, or 0), oldest first."""
    forgotten: int = 0
    rows: tuple[int, ...] = ()
    """The chunks whose rows are visible."""

    @property
    def base(self) -> tuple[int, int]:
        return self.uuid, len(self.commits)

    def since(self, head: int) -> tuple[tuple[str, int], ...] | None:
        return self.commits[head:] if self.forgotten <= head <= len(self.commits) else None


class Chunk(NamedTuple):
    state: str = PENDING
    base: tuple[int, int] | None = None


class Exporter(NamedTuple):
    at: str = "idle"
    chunk: int = 0
    loaded: Target | None = None
    base: tuple[int, int] | None = None
    first_look: bool = False


class Request(NamedTuple):
    chunk: int
    uuid: int
    head: int


class State(NamedTuple):
    target: Target
    chunks: tuple[Chunk, ...]
    exporters: tuple[Exporter, ...]
    late: tuple[Request, ...]
    appended: tuple[int, ...]
    """Every chunk that ever landed: nobody can ask for it, it is here to be checked."""
    blocked: str
    left: tuple[int, ...]


class TableSinkModel(Model):
    """Two exporters, and the owner of the target."""

    name = "table sink"
    about = (
        "Two exporters on one channel into a table of somebody else's; its owner appends, deletes rows of ours, expires "
        "snapshots, drops the table and makes it anew; answers lost, requests late; crashes at every step."
    )
    bounds = {"trouble": 3, "crash": 1, "late": 1, "append": 1, "delete": 1, "expire": 1, "recreate": 1}
    large = {"trouble": 4, "crash": 2, "late": 2}
    bugs = {
        "known by rows only": Bug("a chunk whose rows are not there was not delivered", ("table",), rules=("D6",)),
        "the last base stands": Bug("each attempt records the target as it is then", ("table",), {"trouble": 4}, rules=("D5",)),
        "an unknown history is guessed": Bug("what cannot be told is appended", ("table",), {"trouble": 4}, rules=("D6",)),
        "appended on whatever head": Bug("an append is not bound to the load that it was decided on", ("table",), rules=("D6",)),
        "decided on an older load": Bug(
            "a load from before the base on record is judged by it: its history does not know that base",
            ("progress",),
            {"trouble": 1},
            rules=("D6",),
        ),
        "an error is a verdict": Bug("a request without an answer did not land", ("table",), rules=("D6",)),
    }  # fmt: skip

    def initial(self) -> State:
        return State(Target(), (Chunk(),) * CHUNKS, (Exporter(), Exporter()), (), (), "", self.plenty())

    def same(self, state: State) -> State:
        one, other = (_order(exporter) for exporter in state.exporters)
        return state if one <= other else state._replace(exporters=state.exporters[::-1])

    def steps(self, state: State) -> Iterator[Step]:
        for index, exporter in enumerate(state.exporters):
            for label, reached in self._exporter(state, index, exporter):
                yield f"exporter {label}", reached
        for request in dict.fromkeys(state.late):
            taken = state._replace(late=without(state.late, request))
            yield f"a late append of chunk {request.chunk} arrives", self._arrive(taken, request)
        yield from self._owner(state)

    def _exporter(self, state: State, index: int, exporter: Exporter) -> Iterator[Step]:
        def to(new: Exporter, now: State = state) -> State:
            return now._replace(exporters=put(now.exporters, index, new))

        chunk = exporter.chunk
        match exporter.at:
            case "idle":
                pending = [place for place, item in enumerate(state.chunks, 1) if item.state == PENDING]
                if pending and not state.blocked:
                    yield (
                        f"loads the target, for chunk {pending[0]}",
                        to(Exporter("recording", pending[0], state.target)),
                    )
            case "recording":
                yield from self._record(state, exporter, to)
            case "loading":
                yield (
                    "loads the target again",
                    to(self._decided(exporter._replace(loaded=state.target, first_look=False))),
                )
            case "sending":
                request = Request(chunk, exporter.loaded.uuid, len(exporter.loaded.commits))
                again = exporter._replace(at="loading", loaded=None)
                yield f"appends chunk {chunk}, and has its answer", to(again, self._arrive(state, request))
                if (poorer := self.spend(state, "late")) is not None:
                    late = poorer._replace(late=with_one(poorer.late, request))
                    yield "gives up waiting, its append is late", to(again, late)
                    if self.bug == "an error is a verdict":
                        landed = self._arrive(poorer, request)
                        blind = exporter._replace(loaded=landed.target)
                        yield "gets no answer, and tries on the new head", to(blind, landed)
            case "acknowledging":
                settled = state._replace(chunks=put(state.chunks, chunk - 1, Chunk(DONE)))
                yield f"acknowledges chunk {chunk}", to(Exporter(), settled)
            case "blocked" | "elsewhere":
                yield f"blocks the sink: {exporter.at}", to(Exporter(), self._block(state, exporter))
        if exporter.at != "idle" and (poorer := self.spend(state, "crash")) is not None:
            yield "dies", to(Exporter(), poorer)

    def _record(self, state: State, exporter: Exporter, to) -> Iterator[Step]:
        """One transaction: the first base stands; a chunk that is settled is not sent."""
        chunk = state.chunks[exporter.chunk - 1]
        if chunk.state == DONE:
            yield "finds it settled", to(Exporter())
            return
        base = chunk.base
        if base is None or self.bug == "the last base stands":
            base = exporter.loaded.base
        recorded = state._replace(chunks=put(state.chunks, exporter.chunk - 1, chunk._replace(base=base)))
        looked = exporter._replace(base=base, first_look=base == exporter.loaded.base)
        if looked.first_look or self.bug == "decided on an older load":
            yield "records the base", to(self._decided(looked), recorded)
        else:
            # Another's base stands, perhaps from after this load: only a load that follows it can tell.
            yield "finds a base on record", to(looked._replace(at="loading", loaded=None), recorded)

    def _decided(self, exporter: Exporter) -> Exporter:
        """What became of the chunk, from one load."""
        target, base, chunk = exporter.loaded, exporter.base, exporter.chunk
        done = exporter._replace(at="acknowledging", loaded=None, base=None, first_look=False)
        if target.uuid != base[0]:
            return exporter._replace(at="elsewhere")
        visible = chunk in target.rows
        if self.bug == "known by rows only":
            return done if visible else exporter._replace(at="sending")
        ours = [mark for _, mark in target.commits[target.forgotten :] if mark]
        if chunk in ours:
            return done
        unknown = target.since(base[1]) is None
        if unknown or (exporter.first_look and not ours and target.commits):
            if visible:
                return done
            if unknown and self.bug != "an unknown history is guessed":
                return exporter._replace(at="blocked")
        return exporter._replace(at="sending")

    def _block(self, state: State, exporter: Exporter) -> State:
        """A chunk that another has settled since blocks nothing."""
        if state.chunks[exporter.chunk - 1].state == DONE:
            return state
        return state._replace(blocked=exporter.at)

    def _arrive(self, state: State, request: Request) -> State:
        """The compare-and-swap append, on the head of the load that it was decided on."""
        target = state.target
        since = target.since(request.head)
        accepted = target.uuid == request.uuid and since is not None and all(op != "append" for op, _ in since)
        if not accepted and self.bug != "appended on whatever head":
            return state
        grown = target._replace(
            commits=(*target.commits, ("append", request.chunk)), rows=with_one(target.rows, request.chunk)
        )
        return state._replace(target=grown, appended=with_one(state.appended, request.chunk))

    def _owner(self, state: State) -> Iterator[Step]:
        target = state.target
        if (poorer := self.spend(state, "append")) is not None:
            grown = target._replace(commits=(*target.commits, ("append", 0)))
            yield "the owner appends rows of their own", poorer._replace(target=grown)
        if target.rows and (poorer := self.spend(state, "delete")) is not None:
            emptied = target._replace(commits=(*target.commits, ("delete", 0)), rows=())
            yield "the owner deletes our rows", poorer._replace(target=emptied)
        if len(target.commits) - 1 > target.forgotten and (poorer := self.spend(state, "expire")) is not None:
            expired = target._replace(forgotten=len(target.commits) - 1)
            yield "the owner expires all snapshots but the newest", poorer._replace(target=expired)
        if target.commits and (poorer := self.spend(state, "recreate")) is not None:
            yield "the owner drops the table and makes it anew", poorer._replace(target=Target(uuid=target.uuid + 1))

    # ── what must be true ────────────────────────────────────────────────────────────────────────────────────────

    def broken(self, state: State) -> str | None:
        for chunk in range(1, CHUNKS + 1):
            if state.appended.count(chunk) > 1:
                return f"table: chunk {chunk} was appended twice"
            if state.chunks[chunk - 1].state == DONE and chunk not in state.appended:
                return f"table: chunk {chunk} counts as delivered, and never was"
        return None

    def done(self, state: State) -> bool:
        settled = all(chunk.state == DONE for chunk in state.chunks)
        elsewhere = state.blocked == "elsewhere" and state.target.uuid > 1
        unclear = state.blocked == "blocked" and bool(state.target.forgotten or state.target.uuid > 1)
        return settled or elsewhere or unclear


def _order(exporter: Exporter) -> tuple[object, ...]:
    return (exporter.at, exporter.chunk, exporter.loaded or (), exporter.base or (), exporter.first_look)
