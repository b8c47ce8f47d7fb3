"""A lake, a bucket and a network that lose, delay and repeat requests. What becomes of each request is decided by
whoever sends it: an operation brings its own chances, so that it meets the same fate in every run of its schedule.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit

import orjson

from floodmark.commit.protocol import Append
from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks.http import Reply
from floodmark.errors import Retryable
from floodmark.hub.problems import problem_of
from floodmark.lake.table import Copy
from floodmark.lake.targets import Claim, TargetAppend, TargetName, TargetState
from floodmark.schema import Schema
from floodmark.testing.memory.lake import MemoryLake
from floodmark.testing.memory.tables import MemoryTable
from floodmark.testing.memory.targets import MemoryTarget
from floodmark.wire import HEADER, ChunkHeader

from .stage import ServerDied, Stage

LAND, LOSE, DROP, HOLD = "land", "lose_answer", "drop", "hold"
"""A request arrives; arrives without its answer; is lost; or arrives later, when its client has given up."""
Fate = Callable[[str], str]


def drawn(chance: random.Random) -> str:
    """What becomes of a request, by chance."""
    return LAND if chance.random() < 0.65 else chance.choice([LOSE, DROP, HOLD, HOLD])


def delay(chance: random.Random) -> int | None:
    """After how many pauses, of whomever, a request arrives that was held up; None: not before a step says so."""
    return chance.randint(1, 12) if chance.random() < 0.7 else None


def is_late(chance: random.Random) -> bool:
    """Whether the first request of an operation with these chances arrives a little late."""
    return drawn(chance) == HOLD and delay(chance) is not None


Look = Callable[[MemoryLake, MemoryTable, tuple[int, ...]], None]
"""Is told of every commit before it lands."""


def simulated_lake(stage: Stage, fate: Fate, counts: Counter[str], look: Look) -> MemoryLake:
    """A memory lake whose requests are pauses, and whose commits may be refused, lost or held up."""

    def paused(name: str) -> Any:
        real = getattr(MemoryLake, name)

        def call(self: MemoryLake, *arguments: Any, **options: Any) -> Any:
            stage.pause(f"lake.{name}")
            with stage.at_once():
                return real(self, *arguments, **options)

        return call

    def append(self: MemoryLake, request: Any) -> bool:
        if not isinstance(request, Append):
            stage.pause("lake.copy" if isinstance(request, Copy) else "lake.barrier")
            with stage.at_once():
                return MemoryLake.append(self, request)
        stage.pause("lake.append")
        try:
            return MemoryLake.append(self, request)
        except Exception as error:
            counts[f"append: {type(error).__name__}"] += 1
            raise

    written: dict[str, int] = {}
    """For each block under way a file that nothing refers to yet."""

    def swap(self: MemoryLake, request: Any, rows: Any) -> None:
        with stage.at_once():
            MemoryLake.land_block(self, request, rows)
            table = self.tables[request.table]
            if written.get(request.block, 0) not in self.data and table.head is not None:
                for file in table.files[table.head][-1:]:  # somebody has taken the file for nobody's
                    self.data.pop(file, None)

    def on_append(request: Any) -> str:
        written[request.block] = lake.store(request.schema.arrow().empty_table())
        stage.pause("lake.committing")  # the rows are read and written, and others may commit before they are visible
        return fate("append")

    def on_settle(request: Any) -> str:
        if request.operation is None:
            return LAND
        stage.pause("lake.settling")
        return fate("settlement")

    def target(self: MemoryLake, name: TargetName) -> MemoryTarget:
        return SimulatedTarget(name, self.targets, self, stage)

    def on_target(_request: Any) -> str:
        stage.pause("target.append")
        return fate("target")

    def remove(self: MemoryLake, *arguments: Any, **options: Any) -> None:
        stage.pause("lake.remove")
        met = fate("delete")
        if met in (HOLD, DROP):  # it is the lake's own process that deletes: held up, it is lost
            raise Retryable("no answer to a delete")
        with stage.at_once():
            MemoryLake.remove(self, *arguments, **options)
        if met == LOSE:
            raise Retryable("no answer to a delete")

    def commit(self: MemoryLake, table: MemoryTable, **options: Any) -> Any:
        look(self, table, options["files"])
        return MemoryLake.commit(self, table, **options)

    names = (
        *("load", "ensure", "scan", "aggregate", "files", "sync", "rename", "drop"),
        *("rewrite", "expire", "rollback", "resettle"),
    )
    own = {"append": append, "land_block": swap, "target": target, "remove": remove, "commit": commit}
    lake: MemoryLake = type("SimulatedLake", (MemoryLake,), {name: paused(name) for name in names} | own)()
    lake.on_append = on_append
    lake.on_copy = lambda _request: fate("copy")
    lake.on_settle = on_settle
    lake.targets.on_append = on_target
    return lake


@dataclass(frozen=True, slots=True)
class SimulatedTarget(MemoryTarget):
    """A table of somebody else's, whose requests are pauses."""

    stage: Stage

    def load(self) -> TargetState | None:
        self.stage.pause("target.load")
        return MemoryTarget.load(self)

    def fit(self, columns: Schema, claim: Claim) -> None:
        self.stage.pause("target.fit")
        with self.stage.at_once():  # it holds the target's lock: whoever stood still in there would stop everybody
            MemoryTarget.fit(self, columns, claim)

    def append(self, request: TargetAppend) -> None:
        MemoryTarget.append(self, request)
        self.stage.pause("target.appended")


class InTurn:
    """An executor without threads: what is handed in is done at once, by whoever hands it in."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        pass

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_arguments: object) -> None:
        pass

    def submit(self, work: Callable[..., Any], *arguments: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*arguments))
        except Exception as error:
            done.set_exception(error)
        return done

    def shutdown(self, **_options: Any) -> None:
        pass


@dataclass(eq=False)
class Bucket:
    """An object store. Nothing in it is ever replaced."""

    stage: Stage
    fate: Fate
    counts: Counter[str]
    objects: dict[str, bytes] = field(default_factory=dict)
    flying: list[tuple[str, bytes]] = field(default_factory=list)
    where: str = "s3://simulated/archive"
    remote: bool = False  # it honours conditions by construction: nobody has to try

    def create(self, key: str, content: Any) -> bool:
        self.stage.pause("bucket.create")
        fate = self.fate("create")
        if fate == HOLD:
            self.flying.append((key, bytes(content)))
        if fate in (HOLD, DROP):
            self.counts["object: no answer"] += 1
            raise Busy("no answer to a put")
        new = self.arrive(key, bytes(content))
        self.stage.pause("bucket.created")
        if fate == LOSE:
            self.counts["object: no answer"] += 1
            raise Busy("no answer to a put")
        return new

    def arrive(self, key: str, content: bytes) -> bool:
        if key in self.objects:
            self.counts["object: there already"] += 1
            return False
        self.objects[key] = content
        return True

    def read(self, key: str) -> bytes | None:
        self.stage.pause("bucket.read")
        return self.objects.get(key)

    def list(self, prefix: str) -> Iterable[str]:
        self.stage.pause("bucket.list")
        below = f"{prefix}/"
        found = [key.removeprefix(below) for key in self.objects if key.startswith(below)]
        return sorted(name for name in found if "/" not in name)

    def deliver(self) -> None:
        """Let the puts under way arrive, when their clients have long given up."""
        flying, self.flying = self.flying, []
        for key, content in flying:
            self.counts["object: late put"] += 1
            self.arrive(key, content)

    def rows(self) -> list[dict[str, Any]]:
        """What the objects hold, range by range."""
        keys = [key for key in self.objects if key.endswith(".jsonl")]
        ordered = sorted(keys, key=lambda key: (key.rsplit("/", 1)[0], int(key.rsplit("/", 1)[1].split("-")[0])))
        return [orjson.loads(line) for key in ordered for line in self.objects[key].splitlines() if line.strip()]


@dataclass(eq=False)
class Network:
    """The way to the hub."""

    stage: Stage
    fate: Fate
    counts: Counter[str]
    worker: Callable[[], Any]
    """A hub's worker process that is up, or None."""
    flying: list[tuple[str, str, dict[str, str], bytes | None]] = field(default_factory=list)
    sent: list[tuple[str, str, dict[str, str], bytes | None]] = field(default_factory=list)

    def send(
        self,
        method: str,
        url: str,
        *,
        headers: Any,
        content: bytes | None = None,
        reply_bytes_max: int = 0,
        greet: Any = None,
    ) -> Reply:
        """What a forward sink's exchange does."""
        self.stage.pause("network.sending")
        request = (method, url, dict(headers), content)
        fate = self.fate("request")
        if method == "POST":
            self.sent.append(request)
        if fate == HOLD and method == "POST":
            self.flying.append(request)
        if fate in (HOLD, DROP):
            self.counts["request: lost"] += 1
            raise Busy("no answer")
        reply = self.arrive(request)
        self.stage.pause("network.answering")
        if reply is None or fate == LOSE:
            self.counts["request: answer lost"] += 1
            raise Busy("the connection broke")
        if reply.status >= 400:
            self.counts[f"request: {reply.problem}"] += 1
        return reply

    def arrive(self, request: tuple[str, str, dict[str, str], bytes | None]) -> Reply | None:
        """A request reaches a worker of the hub; None if that dies over it."""
        worker = self.worker()
        actor = self.stage.running
        if worker is None or actor is None:
            return None
        actor.servers.append(worker)
        try:
            return worker.answer(*request)
        except ServerDied:
            return None
        finally:
            actor.servers.remove(worker)

    def close(self) -> None:
        pass


def answered(store: Any, chunks: Any, method: str, url: str, headers: dict[str, str], content: bytes | None) -> Reply:
    """What a hub answers: its own code behind the parsing of HTTP."""
    parts = urlsplit(url)
    if method == "GET":
        origin = unquote(parts.path.rsplit("/", 1)[1])
        asked = {key: values[0] for key, values in parse_qs(parts.query).items()}
        return Reply(200, orjson.dumps(chunks.ledger(origin, asked, allows=lambda _dataset: True)))
    dataset = unquote(parts.path.split("/")[-2])
    try:
        header = ChunkHeader.parse(headers[HEADER])
        accepted = chunks.accept(dataset, header, content, encoding="zstd", media=headers["Content-Type"])
    except Exception as error:
        problem = problem_of(error)
        body = orjson.dumps({**problem.content(), "hub": store.store_id})
        return Reply(problem.status, body, retry_after=problem.headers.get("Retry-After"))
    return Reply(200, orjson.dumps(accepted.content()))
