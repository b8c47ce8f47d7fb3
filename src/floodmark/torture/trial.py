"""One run of `floodmark torture`: the scratch store, the course, the verdict, and nothing left behind."""

from __future__ import annotations

import contextlib
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from floodmark.errors import Permanent
from floodmark.schema import SEQ
from floodmark.store import Store, open_store
from floodmark.torture import reading
from floodmark.torture.course import Course, doing, exercised
from floodmark.torture.daemons import DaemonMember
from floodmark.torture.processes import floodmark
from floodmark.torture.scratch import PARTITION, SCHEMA, HubAccess, Plan, Planned, make_store, plan
from floodmark.torture.verdict import (
    Compared,
    Verdict,
    compared,
    compared_by_ledger,
    oracle_of,
    unexercised,
)
from floodmark.torture.writers import WriterMember

FLUSH_SECONDS_MAX = 600.0


@dataclass(slots=True)
class Trial:
    """What was asked for."""

    user: Store
    minutes: float
    seed: int
    sinks: Sequence[str] = ()
    writers: int = 2
    hub: HubAccess = field(default_factory=HubAccess)
    keep: bool = False
    tell: Callable[[str], None] = lambda _: None

    def run(self) -> Verdict:
        began = time.monotonic()
        folder = Path(tempfile.mkdtemp(prefix="floodmark-torture-"))
        planned = Plan("", (), ())
        store: Store | None = None
        try:
            planned = plan(self.user, self.sinks, self.hub, folder)
            if not planned.sinks:
                raise Permanent(
                    f"No sink is left to deliver to. {' '.join(planned.left_out)}", hint="Name others with --sink."
                )
            self._declare_at_the_hub(planned)
            store = make_store(folder / "store", self.user.settings, {planned.dataset: True}, planned.sinks)
            course = self._course(store, planned.dataset, folder)
            self.tell(
                f"Scratch store {store.path}; {', '.join(sink.name for sink in planned.sinks)}; seed {self.seed}."
            )
            made = store
            course.run(lambda: self._destinations(made, planned, course))
            verdict = self._verdict(planned, course, seconds=time.monotonic() - began, folder=folder)
        finally:
            left = () if self.keep else self._remove(store, planned, folder)
            if store is not None:
                store.close()
        return replace(verdict, kept=(*verdict.kept, *left))

    def _course(self, store: Store, dataset: str, folder: Path) -> Course:
        began = time.monotonic()
        writers = [
            WriterMember(
                store.path, dataset=dataset, name=f"w{number}", folder=folder, seed=self.seed, again=True, began=began
            )
            for number in range(1, self.writers + 1)
        ]
        daemon = DaemonMember(
            store.path, name="run", folder=folder, seed=self.seed, began=began, look=lambda: doing(store)
        )
        return Course(store, writers, daemon, (), self.minutes * 60, self.seed, tell=self.tell)

    # ── the hub's own store ──────────────────────────────────────────────────────────────────────────────────────

    def _declare_at_the_hub(self, planned: Plan) -> None:
        if self.hub.store is not None and any(sink.kind == "forward" for sink in planned.sinks):
            with open_store(self.hub.store) as central:
                # Without an identity: a row that came twice must show, and not be taken for a duplicate.
                if planned.dataset not in [item.name for item in central.datasets()]:
                    central.add_dataset(planned.dataset, partition_by=[PARTITION], schema=SCHEMA)

    # ── what came of it ──────────────────────────────────────────────────────────────────────────────────────────

    def _destinations(self, store: Store, planned: Plan, course: Course) -> list[Compared]:
        oracle = oracle_of(writer.page() for writer in course.writers)
        lake = reading.lake_rows(store, planned.dataset)
        found = [compared(oracle, "the lake", lake, lake, how="every row of its table")]
        return found + [self._compared(store, sink, planned.dataset, oracle, lake) for sink in planned.sinks]

    def _verdict(self, planned: Plan, course: Course, *, seconds: float, folder: Path) -> Verdict:
        done, found = exercised(course), course.destinations
        return Verdict(
            seed=self.seed,
            seconds=seconds,
            drained=course.drained,
            stuck="" if course.drained else " ".join(course.daemon.told.problems.values()),
            destinations=tuple(found),
            exercised=done,
            astray=tuple(text for member in course.members for text in member.records.astray),
            left_out=planned.left_out,
            kept=self._kept(planned, folder),
            unexercised=unexercised(done, kinds=("writer", "daemon"), destinations=found),
        )

    def _compared(self, store: Store, sink: Planned, dataset: str, oracle: Any, lake: reading.Rows) -> Compared:
        if sink.kind == "blob":
            rows = reading.Objects(sink.settings).rows(dataset)
            return compared(oracle, sink.name, rows, lake, how="every object")
        if sink.kind == "table":
            rows = reading.target_rows(store, sink.settings["table"])
            return compared(oracle, sink.name, rows, lake, how="every row of the table")
        if self.hub.store is not None:
            return compared(oracle, sink.name, self._hub_rows(dataset), lake, how="every row in the hub's store")
        ledger = reading.Ledger(sink.settings["url"], sink.settings.get("token"), sink.settings["origin"])
        return compared_by_ledger(sink.name, ledger.channels(dataset), lake, seq=SEQ, partition=PARTITION)

    def _hub_rows(self, dataset: str) -> reading.Rows:
        root = Path(str(self.hub.store))
        flush_store(root, dataset)
        with open_store(root) as central:
            return reading.lake_rows(central, dataset)

    # ── nothing left behind ──────────────────────────────────────────────────────────────────────────────────────

    def _kept(self, planned: Plan, folder: Path) -> tuple[str, ...]:
        kept = [f"the scratch store in {folder}"] if self.keep else []
        for sink in planned.sinks:
            if sink.kind == "forward":
                kept.append(f"dataset {planned.dataset} at the hub {sink.settings['url']}, with the rows of this run")
            elif self.keep:
                kept.append(f"{sink.name}: {sink.settings.get('url') or sink.settings['table']}")
        return tuple(kept)

    def _remove(self, store: Store | None, planned: Plan, folder: Path) -> tuple[str, ...]:
        """Remove what was made; returns what is left."""
        left = []
        for sink in planned.sinks if store is not None else ():
            try:
                if sink.kind == "blob":
                    reading.Objects(sink.settings).remove()
                elif sink.kind == "table" and store is not None:
                    orphans = reading.drop_target(store, sink.settings["table"])
                    left += [f"{sink.name}: files that killed attempts left in {orphans}, if any"] if orphans else []
            except Exception as error:  # noqa: BLE001 - whatever a destination says to that: it is told, and the rest goes on
                place = sink.settings.get("url") or sink.settings.get("table")
                left.append(f"{sink.name}: {place} could not be removed ({type(error).__name__})")
                self.tell(left[-1])
        with contextlib.suppress(OSError):
            shutil.rmtree(folder)
        return tuple(left)


def flush_store(root: Path, *datasets: str) -> None:
    """Commit what waits in another store, in a process of its own."""
    command = floodmark(root, "flush", *datasets)
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=FLUSH_SECONDS_MAX)
    if done.returncode != 0:
        raise Permanent(f"`floodmark flush` failed on {root}: {done.stderr.strip()}")
