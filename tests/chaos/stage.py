"""The stage: an edge store with two datasets that delivers to objects and to a hub, all of it real processes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.chaos.hubs import HubMember

from floodmark.config import Settings, SparkSettings
from floodmark.store import Store
from floodmark.torture import reading
from floodmark.torture.chaos_run import ChaosRun, doing, exercised, flush_store
from floodmark.torture.daemons import DaemonMember
from floodmark.torture.members import Member
from floodmark.torture.processes import floodmark as command_line
from floodmark.torture.scratch import Planned, make_store
from floodmark.torture.verdict import Compared, Verdict, compared, oracle_of, unexercised
from floodmark.torture.writers import WriterMember

from .servers import DiskMember, PostgresMember, S3Member

DATASETS = {"orders": True, "readings": False}
"""By name, and whether it has an identity: there, what nobody knows the fate of is captured again. In the other one a
row that was committed twice could not pass for a duplicate."""

SMALL_JVM = Settings(
    store_id="",
    spark=SparkSettings(
        master="local[1]",
        driver_memory="600m",
        settings={
            "spark.sql.shuffle.partitions": "1",
            "spark.default.parallelism": "1",
            "spark.sql.codegen.wholeStage": "false",
            "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        },
    ),
)

RIGHT_TO_END = {
    "postgres": ("The control database is not available",),
    "disk": ("The control database is not available", "No space left on device", "disk is full"),
}
"""With what a process may say that it cannot start, while what it needs is not there."""


@dataclass
class Stage:
    """One run, from an empty folder to the verdict."""

    folder: Path
    seed: int
    seconds: float
    underneath: frozenset[str] = frozenset()
    """What goes away under the store: `s3`, `postgres`, `disk`."""
    kills_min: dict[str, int] = field(default_factory=lambda: {"writer": 3, "daemon": 3, "hub": 3})
    tell: Callable[[str], None] = lambda _: None
    began: float = field(default_factory=time.monotonic)

    def run(self) -> Verdict:
        with contextlib.ExitStack() as stack:
            central = stack.enter_context(
                make_store(self.folder / "central", SMALL_JVM, dict.fromkeys(DATASETS, False), ())
            )
            hub = HubMember(central.path, folder=self.folder, seed=self.seed, began=self.began, life_seconds=8.0)
            below = self._below(stack)
            root = self.folder / "disk" / "edge" if "disk" in below else self.folder / "edge"
            control = below["postgres"].url if "postgres" in below else ""
            sinks = self._sinks(hub, below)
            edge = stack.enter_context(make_store(root, SMALL_JVM, DATASETS, sinks, control=control))
            chaos = self._chaos(edge, [hub, *below.values()])
            chaos.run(lambda: self._read(chaos, edge, central, sinks))
            return self._verdict(chaos)

    def _below(self, stack: contextlib.ExitStack) -> dict:
        found = {}
        if "s3" in self.underneath:
            found["s3"] = S3Member(self.folder, seed=self.seed, began=self.began)
        if "postgres" in self.underneath:
            found["postgres"] = PostgresMember(seed=self.seed, began=self.began)
        if "disk" in self.underneath:
            found["disk"] = DiskMember(self.folder / "disk", seed=self.seed, began=self.began)
            stack.callback(found["disk"].unmount)
        for member in found.values():
            stack.callback(member.close)
        return found

    def _sinks(self, hub: HubMember, below: dict) -> list[Planned]:
        place = below["s3"].settings if "s3" in below else {"url": (self.folder / "files").as_uri()}
        return [
            Planned("objects", "blob", {**place, "chunk_rows": 40}),
            Planned("central", "forward", {"url": hub.url, "chunk_rows": 40, "timeout_seconds": 5}),
        ]

    def _chaos(self, edge: Store, others: list[Member]) -> ChaosRun:
        writer = (sys.executable, "-m", "floodmark.torture.writer")
        run = command_line(edge.path, "run", "--json")
        shared = {"folder": self.folder, "seed": self.seed, "began": self.began}
        writers = [
            WriterMember(
                edge.path,
                dataset=name,
                name=f"{name}-{number}",
                again=identity,
                command=writer,
                life_seconds=10.0,
                **shared,
            )
            for name, identity in DATASETS.items()
            for number in range(1, 2 + identity)
        ]
        daemon = DaemonMember(edge.path, name="run", look=lambda: doing(edge), command=run, **shared)
        minimum = {**self.kills_min, **dict.fromkeys(self.underneath, 2)}
        return ChaosRun(
            edge, writers, daemon, others, self.seconds, self.seed, kills_min=minimum, tell=self.tell, began=self.began
        )

    # ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────

    def _read(self, chaos: ChaosRun, edge: Store, central: Store, sinks: list[Planned]) -> list[Compared]:
        flush_store(central.path)
        return [item for name in DATASETS for item in self._compared(chaos, edge, central, sinks, name)]

    def _compared(
        self, chaos: ChaosRun, edge: Store, central: Store, sinks: list[Planned], dataset: str
    ) -> list[Compared]:
        oracle = oracle_of(writer.entries() for writer in chaos.writers if writer.dataset == dataset)
        lake = reading.lake_rows(edge, dataset)
        objects = reading.Objects(next(sink.settings for sink in sinks if sink.kind == "blob"))
        there = {"lake": lake, "objects": objects.rows(dataset), "hub": reading.lake_rows(central, dataset)}
        return [compared(oracle, f"{name}, {dataset}", rows, lake, how="every row") for name, rows in there.items()]

    def _verdict(self, chaos: ChaosRun) -> Verdict:
        done = exercised(chaos)
        excused = [text for kind in self.underneath for text in RIGHT_TO_END.get(kind, ())]
        astray = [f"{member.kind} {text}" for member in chaos.members for text in member.records.astray]
        return Verdict(
            seed=self.seed,
            seconds=time.monotonic() - self.began,
            drained=chaos.drained,
            stuck="" if chaos.drained else " ".join(chaos.daemon.reports.problems.values()),
            destinations=tuple(chaos.destinations),
            exercised=done,
            astray=tuple(text for text in astray if not any(right in text for right in excused)),
            unexercised=unexercised(done, kinds=chaos.kills_min, destinations=chaos.destinations),
        )
