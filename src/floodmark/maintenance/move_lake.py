"""Moving the tables and the segments of a store: into an object store with its catalog elsewhere, and back.

    record the move → rebuild every dataset into the new lake → drop the old tables → record the new places
      → copy the segments that wait → replace the settings

A dataset moves by a rebuild whose new table is in the other lake (`lake.moving`): the tables are compared, and the
pointer is switched, as in every rebuild. Captures into the landing log continue. Flushes and deliveries of a dataset
fail from its fence on, until the process that runs them is restarted with the new settings. A move that was interrupted
is run again.

Invariants
- U43 A process that uses the old lake commits no row after the switch of a dataset: see `lake.moving`. The new lake is
  recorded only if every dataset is there, and a dataset is added only by a process that uses the recorded lake.
- U44 A segment is registered only by a process that uses the recorded place of segments. So after the new place is
  recorded, the segments that wait at the old place are all there will ever be.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import cast

from sqlalchemy import Connection

from floodmark import config, faults
from floodmark.clock import Clock
from floodmark.commit.recovery import raise_numbers
from floodmark.config import Settings
from floodmark.control import datasets, generations
from floodmark.control import segments as segment_records
from floodmark.control.database import Database, check_owner, migrate
from floodmark.control.datasets import Dataset
from floodmark.control.topology import begin_move, check_topology, end_move, recorded_topology, topology_of
from floodmark.engine import Engine, control_database
from floodmark.errors import InvalidSetting, Permanent, Retryable
from floodmark.files import durable_write
from floodmark.lake.generations import find_table
from floodmark.lake.moving import MovingLake, TablesMoved
from floodmark.lake.table import Lake
from floodmark.maintenance.move import with_value
from floodmark.maintenance.rebuild import Rebuilder, RebuildReport
from floodmark.segment_store import BucketSegments, segment_store

EMBEDDED = "embedded"
"""The type of a lake in the store's directory."""
HERE = "directory"
"""The place of segments in the store's directory."""
ROUNDS_MAX = 20
"""How often datasets that were added meanwhile are moved too."""


@dataclass(frozen=True, slots=True)
class LakeMoveReport:
    """What was moved."""

    lake: str
    """`sql`, `rest` or `embedded`."""
    segments: str
    """The URL of the place of segments, or `directory`."""
    datasets: int
    rows: int
    """Rows of the tables that were copied and compared."""
    segments_copied: int


def move_lake(
    directory: str | Path,
    *,
    lake: Mapping[str, str] | None = None,
    segments: str | None = None,
    lakes: Callable[[Path, Settings, Settings], tuple[Lake, Lake]],
    clock: Clock | None = None,
    progress: Callable[[RebuildReport], None] = lambda _: None,
) -> LakeMoveReport:
    """Move a store's tables to the lake that is described (`{"type": "embedded"}`: the store's directory), and its
    segments to a URL (`directory`: the store's directory). What is not given stays. `lakes` opens the
    lakes of the old settings and of the new ones.
    """
    file = config.settings_file(Path(directory))
    text, settings = file.read_text(encoding="utf-8"), config.load(file)
    changed_text = _changed_text(text, settings, lake, segments)
    changed = config.parsed(changed_text)
    if topology_of(changed) == topology_of(settings):
        raise InvalidSetting("The tables and segments are there already.", hint="Name the place to move them to.")
    database = control_database(file.parent, settings)
    try:
        migrate(database, create=False)
        check_owner(database, settings.store_id)
        move = _Move(file.parent, settings, changed, database, clock, progress)
        if not move.is_recorded():
            move.copy_segments()  # most of them; and a place that cannot be reached is noticed here
            both = None if changed.lake == settings.lake else lakes(file.parent, settings, changed)
            database.transact(move.begin)
            faults.reach("move.begun")
            if both is not None:
                move.move_tables(*both)
            else:
                database.transact(lambda connection: end_move(connection, changed))
            faults.reach("move.recorded")
        copied = move.copy_segments()
        faults.reach("move.segments_copied")
        move.remove_segments()
        durable_write(file, changed_text.encode(), private=True)
        faults.reach("move.written")
    finally:
        database.close()
    kind = changed.lake.type if changed.lake is not None and (changed.lake.uri or changed.lake.warehouse) else EMBEDDED
    return LakeMoveReport(kind, changed.spool.segments or HERE, len(move.moved), sum(move.moved.values()), copied)


class _Move:
    """One run of a move."""

    def __init__(
        self,
        root: Path,
        settings: Settings,
        changed: Settings,
        database: Database,
        clock: Clock | None,
        progress: Callable[[RebuildReport], None],
    ) -> None:
        self.root, self.settings, self.changed, self.database = root, settings, changed, database
        self.clock, self.progress = clock, progress
        self.moved: dict[str, int] = {}

    def is_recorded(self) -> bool:
        """Whether a run before this one came to its end, but for segments and settings."""
        recorded = self.database.read(recorded_topology)
        return recorded.places == topology_of(self.changed).places != topology_of(self.settings).places

    def begin(self, connection: Connection) -> None:
        check_topology(connection, self.settings)
        begin_move(connection, self.changed)

    # ── tables ───────────────────────────────────────────────────────────────────────────────────────────────────

    def move_tables(self, old: Lake, new: Lake) -> None:
        both = MovingLake(old, new)
        engine = Engine(self.root, self.settings, self.database, cast("Lake", both), self.clock)
        for _ in range(ROUNDS_MAX):
            for declared in self.database.read(datasets.everyone):
                if declared.fenced or both.moved(declared.table_name) is None:
                    self._move_dataset(engine, both, declared)
                    faults.reach("move.dataset_moved")
            moved = {one.table_name for one in self.database.read(datasets.everyone) if self._has_moved(both, one)}
            self._drop_old(old)
            faults.reach("move.dropped")
            if self.database.transact(partial(self._end, moved=moved)):
                self._drop_marks(new)
                return
        raise Retryable("Datasets are added faster than they move.", hint="Run it again.")

    def _move_dataset(self, engine: Engine, both: MovingLake, declared: Dataset) -> None:
        begun = self.database.read(lambda c: generations.unfinished(c, declared.name))
        if begun is not None and self._is_ordinary(both, declared.of_generation(begun.generation)):
            raise_numbers(engine)
            old = Engine(self.root, self.settings, self.database, both.old, self.clock)
            old.recovered.numbers_raised = True  # in both lakes: in this one are marks
            Rebuilder(old, self.progress).rebuild(declared.name, takeover=True)
        elif begun is None and find_table(self.database, both.old, declared)[1] is None and not declared.horizon:
            # Never flushed. Another process may be about to make its table in the old lake: that one will be fenced.
            both.old.ensure(declared.table_name, declared.schema, layout=declared.layout)
        rebuilt = Rebuilder(engine, self.progress).rebuild(
            declared.name, lambda layout: replace(layout, warehouse=None), takeover=True
        )
        self.moved[declared.name] = rebuilt.rows

    def _has_moved(self, both: MovingLake, declared: Dataset) -> bool:
        if declared.fenced or both.moved(declared.table_name) is None:
            return False
        # A rebuild that was interrupted after its switch has not done this.
        both.new.ensure(declared.table_name, declared.schema, create=False, declaration=declared.declaration)
        return True

    def _is_ordinary(self, both: MovingLake, staging: Dataset) -> bool:
        """Whether a rebuild that has not ended was started before the move: its copy is in the old lake."""
        with contextlib.suppress(TablesMoved):
            return both.moved(staging.table_name) is None and both.old.load(staging.table_name) is not None
        return False

    def _drop_old(self, old: Lake) -> None:
        """U23: the tables were compared before the switch. Nobody who removes rows later would reach these."""
        for declared in self.database.read(datasets.everyone):
            for name in self.database.read(partial(generations.retired_tables, dataset=declared.name)):
                with contextlib.suppress(TablesMoved):
                    if old.load(name) is not None:
                        old.drop(name)

    def _drop_marks(self, new: Lake) -> None:
        """The tables are in this lake again: nobody must be kept from it."""
        for name in new.table_names():
            try:
                new.load(name)
            except TablesMoved:
                new.drop(name)

    def _end(self, connection: Connection, *, moved: set[str]) -> bool:
        """U43: the new lake is recorded only if every dataset is there."""
        if any(one.fenced or one.table_name not in moved for one in datasets.everyone(connection)):
            return False
        end_move(connection, self.changed)
        return True

    # ── segments ─────────────────────────────────────────────────────────────────────────────────────────────────

    def copy_segments(self) -> int:
        """U44: after the new place is recorded, those that wait are all there will be."""
        old, new = segment_store(self.root, self.settings), segment_store(self.root, self.changed)
        if old == new:
            return 0
        new.names("none")  # `Retryable` if it cannot be reached
        waiting = self._waiting()
        for relative in waiting:
            old.path(relative)  # a file on this machine, also of an object
            new.store(relative)
        return len(waiting)

    def remove_segments(self) -> None:
        """Objects that the settings will not name any more. Files in the directory are copies now, or the segments."""
        old = segment_store(self.root, self.settings)
        if isinstance(old, BucketSegments) and old != segment_store(self.root, self.changed):
            old.bucket.remove(self._waiting())

    def _waiting(self) -> list[str]:
        every = self.database.read(datasets.everyone)
        found = [self.database.read(partial(segment_records.sealed_paths, dataset=one.name)) for one in every]
        return [path for paths in found for path in paths.values()]


# ── settings ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _changed_text(text: str, settings: Settings, lake: Mapping[str, str] | None, segments: str | None) -> str:
    """The settings file with another lake and another place of segments; everything else in it stays."""
    if segments is not None:
        text = with_value(text, "spool", "segments", "" if segments == HERE else segments)
    if lake is None:
        return text
    described = {} if lake.get("type") == EMBEDDED else dict(lake)
    if described and settings.control.url and described.get("type", "sql") == "sql":
        described.setdefault("uri", settings.control.url)  # as `init` does
    changed = _with_lake(text, described)
    if _nameless(config.parsed(changed)) == _nameless(settings):
        return text
    if config.parsed(changed).catalog_name == settings.catalog_name:
        # Spark knows a catalog by its name, and needs both at once.
        changed = _with_lake(text, described | {"name": f"{settings.catalog_name}_2"})
    return changed


def _nameless(settings: Settings) -> dict[str, str]:
    """Where the tables are, whatever the name of the catalog."""
    lake = {} if settings.lake is None else config.catalog_values(settings.lake)
    return {key: value for key, value in lake.items() if key != "name" and (key, value) != ("type", "sql")}


def _with_lake(text: str, described: Mapping[str, str]) -> str:
    kept = re.sub(r"(?ms)^\[lake(?:\.[^\]\n]*)?\][^\n]*\n?(?:(?!^\[).)*", "", text).rstrip()
    changed = f"{kept}\n\n{config.section_text('lake', described)}" if described else f"{kept}\n"
    found, before = config.parsed(changed), config.parsed(text)
    values = {} if found.lake is None else config.catalog_values(found.lake)
    if replace(found, lake=None) != replace(before, lake=None) or values.keys() - {"type"} != described.keys() - {
        "type"
    }:
        raise Permanent(
            f"[lake] in {config.FILE_NAME} could not be replaced.",
            hint="Write it as one section, and run the move again.",
        )
    return changed
