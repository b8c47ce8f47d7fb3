"""Backfill: a source's units, step by step, into the spool and through flush.

    seal the landing logs → read and fit → store step by step (`sources.steps`, B1) → flush

Invariants
- B2 Flush alone decides what is a duplicate. A backfill leaves a row out only if it has an identity, no settle function
  may change that, and its duplicate waits in a registered segment or is committed.
- B3 A row without an identity is never left out, so what holds such rows is loaded once: the same unit with other
  content or under other options is refused, unless it has another source id.
- B4 A unit is read on from its middle only if it gives the same rows in the same order each time. Otherwise it is read
  from its beginning where identities show what is stored, and refused where there are none.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from floodmark import faults
from floodmark.commit.flush import flush
from floodmark.commit.recovery import recover
from floodmark.control import blocks, datasets, sources
from floodmark.control import segments as segment_records
from floodmark.control.blocks import Block
from floodmark.control.database import Database
from floodmark.control.datasets import Dataset
from floodmark.control.segments import SourceStep
from floodmark.control.sources import Source as SourceRecord
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent, Retryable
from floodmark.lake import queries
from floodmark.lake.generations import find_table
from floodmark.lake.overlap import ABSENT
from floodmark.lake.stored import FileKeys
from floodmark.lake.table import Lake
from floodmark.rows.identities import identity_hashes, rows_without_identity
from floodmark.sources.shaping import Shape, Shaper
from floodmark.sources.steps import Step, StepLoader
from floodmark.sources.units import BackfillReport, Batch, Mark, Source, Unit
from floodmark.spool.capture import Capture
from floodmark.spool.sealing import seal

if TYPE_CHECKING:
    import pyarrow as pa


# ── A backfill's final numbers: what the blocks say of its segments ──────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Decided:
    """What became of rows that were in the spool."""

    new: int = 0
    duplicates: int = 0
    expired: int = 0
    dropped: int = 0
    waiting: int = 0
    """Rows whose block is not decided, because their flush was stopped."""

    def __add__(self, other: Decided) -> Decided:
        return Decided(
            self.new + other.new,
            self.duplicates + other.duplicates,
            self.expired + other.expired,
            self.dropped + other.dropped,
            self.waiting + other.waiting,
        )


def decided_rows(database: Database, lake: Lake, dataset: str, steps: Sequence[SourceStep]) -> Decided:
    """The sum over the segments that the steps became."""
    total = Decided()
    for id, own in database.read(lambda c: segment_records.blocks_of_steps(c, steps)).items():
        block = database.read(partial(blocks.get, id=id))
        if block is None or block.state == "reserved":
            total += Decided(waiting=sum(rows for _, rows in own))
        else:
            total += _of_block(database, lake, dataset, block, dict(own))
    return total


def _of_block(database: Database, lake: Lake, dataset: str, block: Block, own: dict[int, int]) -> Decided:
    segments = database.read(lambda c: segment_records.of_block(c, block.id))
    if all(segment.id in own for segment in segments):
        return Decided(block.rows, block.duplicates, block.expired, block.dropped)
    # Live rows were sealed in the meantime and share the block: the table says which rows are whose.
    new = 0
    if block.rows:
        _, state = find_table(database, lake, database.read(lambda c: datasets.get(c, dataset)))
        if state is not None and state.head is not None:
            brought = queries.segment_rows(lake, state.name, snapshot=state.head, within=block.range)
            new = sum(brought.get(id, 0) for id in own)
    # Of rows that were left out for other reasons the block only knows the sum: they are taken for the backfill's,
    # whose rows are the old ones.
    left = sum(own.values()) - new
    expired = min(block.expired, left)
    dropped = min(block.dropped, left - expired)
    return Decided(new, left - expired - dropped, expired, dropped)


# ── Load ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


# ── Which rows of a source are there already: those whose identity waits in a segment, or is committed ───────────────
# A forecast, and no more: flush compares every row again with what is committed at its base, and alone decides. A row
# is left out here only because its duplicate is certain to stay (B2, B10). Where the forecast cannot see, it leaves no
# row out.


STORED_ROWS_MIN = 50_000
"""Of fewer rows it takes longer to look than to store them and let flush find the duplicates."""
WAITING_ROWS_MAX = 1_000_000
"""Of more rows in the spool than this the identities are not held in memory: flush finds the duplicates."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """The identities that waited in the spool when a backfill began."""

    declared: Dataset
    hashes: pa.Array | None = None

    def without(self, rows: pa.Table) -> tuple[pa.Table, int]:
        """The rows whose identity does not wait, and how many do."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.hashes is None or rows.num_rows == 0:
            return rows, 0
        own = pa.array(identity_hashes(rows, self.declared.identity, self.declared.key_time), pa.string())
        kept = rows.filter(pc.invert(pc.is_in(own, value_set=self.hashes, skip_nulls=True)))
        return kept, rows.num_rows - kept.num_rows


@dataclass(frozen=True, slots=True)
class Stored:
    """Which rows of Parquet files were committed when a backfill began: a bit for each row."""

    bitmaps: dict[Path, bytes] = field(default_factory=dict)
    snapshot: int | None = None
    """The snapshot that was read."""
    files: frozenset[Path] = frozenset()
    """The files of which every row was searched, and is not in the snapshot where its bit is not set."""
    asked: tuple[str, ...] = ()
    """The files' columns that a row must have to be searched: of one without an event time nothing is certain, nor
    of one without an identity, if such rows are compared by their content."""

    def notes(self, batch: Batch, file: Path | None) -> dict[bytes, bytes]:
        """What is certain of a batch that is left: flush need not read the same snapshot again."""
        if file not in self.files or isinstance(batch.rows, list):
            return {}
        if any(batch.rows[name].null_count for name in self.asked):
            return {}
        return {ABSENT: str(self.snapshot).encode()}

    def without(self, batch: Batch, file: Path | None) -> tuple[Batch, int]:
        """The batch without what is committed, and how many rows that were."""
        import pyarrow as pa
        import pyarrow.compute as pc

        bits = self.bitmaps.get(file) if file is not None else None
        if bits is None or isinstance(batch.rows, list):
            return batch, 0
        known = min(max(8 * len(bits) - batch.first, 0), batch.count)
        mask = pa.Array.from_buffers(pa.bool_(), known, [None, pa.py_buffer(bits)], offset=batch.first)
        kept = pc.indices_nonzero(pc.invert(pa.concat_arrays([mask, pa.repeat(False, batch.count - known)])))
        if len(kept) == batch.count:
            return batch, 0
        rest = replace(batch, rows=batch.rows.take(kept), place=lambda row: batch.place(kept[row].as_py()))
        return rest, batch.count - rest.count


def stored_rows(lake: Lake, declared: Dataset, units: Sequence[Unit], renamed: Mapping[str, str]) -> Stored:
    """Search the current table for the rows of Parquet files; for few rows flush alone is faster."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not declared.identity or declared.settle is not None:
        return Stored()
    try:
        state = lake.load(declared.table_name)
        if state is None or state.head is None:
            return Stored()
        every = FileKeys((), declared.identity, declared.key_time, declared.schema, renamed)
        about = {unit.file: pq.read_metadata(unit.file) for unit in units if unit.file is not None}
        files = tuple(path for path, item in about.items() if every.fits(item.schema.to_arrow_schema()))
        if sum(about[path].num_rows for path in files) < STORED_ROWS_MIN:
            return Stored()
        found = lake.stored_rows(state.name, snapshot=state.head, keys=replace(every, files=files))
        # With fallbacks a bit that is not set proves nothing: a row may have more identities than its duplicate.
        certain = frozenset(files if len(declared.identity) == 1 else ())
        sources = every.sources()
        by_content = declared.identity[0] if declared.by_content else ()
        never_null = [*by_content, *([declared.key_time] if declared.key_time else [])]
        return Stored(found, state.head, certain, tuple(sources[name] for name in never_null))
    except (OSError, pa.ArrowInvalid, Retryable):
        return Stored()  # what cannot be read is not counted


def waiting_identities(engine: Engine, declared: Dataset) -> Waiting:
    """What waits now. With a settle function identities may still change, so none is compared (B2)."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    count, rows, _ = engine.database.read(lambda c: segment_records.backlog(c, declared.name))
    if not declared.identity or declared.settle is not None or not count or rows > WAITING_ROWS_MAX:
        return Waiting(declared)
    wanted = {name for names in declared.identity for name in names} | {declared.event_time}
    found: list[str | None] = []
    for path in engine.database.read(lambda c: segment_records.sealed_paths(c, declared.name)).values():
        try:
            file = engine.segments.path(path)
            present = pq.read_schema(file).names
            keys = pq.read_table(file, columns=[name for name in present if name in wanted])
        except (OSError, pa.ArrowInvalid):
            continue  # just committed, or unreadable: a forecast ignores it
        found += identity_hashes(keys, declared.identity, declared.key_time)
    return Waiting(declared, pa.array([item for item in found if item is not None], pa.string()))


# ── Load ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


STEP_ROWS = 50_000
STEP_BYTES = 64 << 20

Progress = Callable[[BackfillReport], None]


@dataclass(frozen=True, slots=True)
class Backfiller:
    """Loads sources into one store."""

    engine: Engine
    capture: Capture

    def load(
        self, dataset: str, source: Source, shape: Shape, *, named: bool, progress: Progress | None = None
    ) -> BackfillReport:
        """Load what is not loaded yet, and commit it. `named`: the source has an id that the user gave."""
        recover(self.engine, dataset)
        declared = self.engine.database.read(lambda c: datasets.get(c, dataset))
        if shape.is_windowed and declared.event_time is None:
            raise InvalidSetting(
                f"Dataset {dataset!r} has no event time to select rows by.",
                hint="Load all rows, or load into a dataset that is declared with an event time.",
            )
        # What was captured before counts as stored: sealed first, it is in a segment that the forecast sees.
        seal(self.engine, dataset)
        faults.reach("backfill.sealed")
        run = _Run(self, declared, source, shape, named, progress)
        run.check_loaded_once()
        StepLoader(self.engine, dataset, source.name, run.note_stored, self.capture).load(run.read_steps)
        faults.reach("backfill.loaded")
        flush(self.engine, dataset)
        return run.final()

    def is_loaded(self, dataset: str, whole: Source, shape: Shape, *, named: bool) -> bool:
        """Whether a source that is known as a whole was loaded to its end; B3 is checked before it is read."""
        declared = self.engine.database.read(lambda c: datasets.get(c, dataset))
        run = _Run(self, declared, whole, shape, named, None)
        run.check_loaded_once()
        return run.is_done()

    def is_begun(self, dataset: str, name: str) -> bool:
        """Whether some of a staged source's rows are loaded."""
        known = self.engine.database.read(lambda c: sources.of_dataset(c, dataset))
        return any(f":{name} " in id for id in known)


@dataclass(slots=True, kw_only=True)
class _Step(Step):
    """What is gathered until it is worth a segment."""

    report: BackfillReport
    """With the rows of this step."""

    @property
    def is_full(self) -> bool:
        return self.rows >= STEP_ROWS or self.bytes >= STEP_BYTES


@dataclass(slots=True)
class _Run:
    """One run of a backfill."""

    parts: Backfiller
    declared: Dataset
    source: Source
    shape: Shape
    named: bool
    progress: Progress | None
    report: BackfillReport = field(init=False)
    shaper: Shaper = field(init=False)
    waiting: Waiting = field(init=False)
    stored: Stored | None = None
    step: _Step = field(init=False)
    """What is being gathered."""
    steps: list[SourceStep] = field(default_factory=list)

    def __post_init__(self) -> None:
        parts, name = self.parts, self.declared.name
        self.report = BackfillReport(name, self.source.name, bytes_total=self.source.bytes)
        self.shaper = Shaper(parts.engine, name, self.shape)
        self.waiting = waiting_identities(parts.engine, self.declared)
        self.step = _Step(dataset=self.declared, report=self.report)

    # ── units ────────────────────────────────────────────────────────────────────────────────────────────────────

    def check_loaded_once(self) -> None:
        """B3: rows without an identity cannot be recognised among stored rows."""
        if self.declared.identity or self.named:
            return
        if self.source.anonymous:
            raise InvalidSetting(
                f"Dataset {self.declared.name!r} has no identity, so rows that are loaded again are not recognised.",
                hint="Set source_id: rows that were loaded under it are not loaded again.",
            )
        known = {id.rpartition("#")[0]: id for id in self._known()}
        for unit in self.source.units:
            id = self._id(unit)
            before = known.get(id.rpartition("#")[0])
            if before is not None and before != id:
                raise Permanent(
                    f"{unit.name} was loaded before, with other content or other options, and "
                    f"{self.declared.name!r} has no identity to recognise its rows.",
                    hint="Load only new rows. If all of them are new, set another source id.",
                )

    def is_done(self) -> bool:
        known = self._known()
        records = [known.get(self._id(unit)) for unit in self.source.units]
        return all(record is not None and json.loads(record.position)["done"] for record in records)

    def read_steps(self) -> Iterator[_Step]:
        """The steps of every unit that is not read to its end, behind the recorded positions."""
        known = self._known()
        if self.stored is None:
            self.stored = self._stored(known)
        left: list[tuple[Unit, Mark]] = []
        for unit in self.source.units:
            record = known.get(self._id(unit))
            position = json.loads(record.position) if record else {"mark": None, "done": False}
            if not position["done"]:
                left.append((unit, resumes_at(unit, position["mark"])))
        self.report = replace(self.report, units_loaded_before=len(self.source.units) - len(left))
        self.step = _Step(dataset=self.declared, report=self.report)
        try:
            for (unit, mark), batches in zip(left, self.source.read(left), strict=True):
                record = known.get(self._id(unit))
                check_goes_on(self.source, unit, record, self.declared)
                yield from self._read_unit(unit, record, mark, batches)
        except FloodmarkError:
            if self.step.moves:
                yield self._gathered()
            raise
        if self.step.moves:
            yield self._gathered()

    def _stored(self, known: dict[str, SourceRecord]) -> Stored:
        begun = {id for id, record in known.items() if json.loads(record.position)["done"]}
        left = [unit for unit in self.source.units if self._id(unit) not in begun]
        return stored_rows(
            self.parts.engine.lake, self.declared, left, {} if self.shape.applied else self.shape.renamed
        )

    def _read_unit(
        self, unit: Unit, record: SourceRecord | None, mark: Mark, batches: Iterator[Batch]
    ) -> Iterator[_Step]:
        id = self._id(unit)
        for batch in batches:
            self._take(batch, unit.file)
            mark = batch.behind
            self.step.moves[id] = (record, _position(mark, done=False))
            if self.step.is_full:
                yield self._gathered()
                record = SourceRecord(id, self.declared.name, "", (record.next_ordinal if record else 0) + 1)
        self.step.moves[id] = (record, _position(mark, done=True))
        self.step.report = replace(self.step.report, units=self.step.report.units + 1)

    def _gathered(self) -> _Step:
        """The step that was gathered; the next one begins."""
        step = self.step
        step.dataset = self.declared
        self.step = _Step(dataset=self.declared, report=step.report)
        faults.reach("backfill.read")
        return step

    def _known(self) -> dict[str, SourceRecord]:
        found = self.parts.engine.database.read(lambda c: sources.of_dataset(c, self.declared.name))
        return {id: record for id, record in found.items() if id.startswith("backfill:")}

    def _id(self, unit: Unit) -> str:
        """A unit under a name that the user gave is that unit, whatever it holds."""
        if self.named or self.source.anonymous:
            return f"backfill:{self.declared.name}:{self.source.name}:{unit.name}"
        options = [sorted(self.shape.renamed.items()), self.shape.since, self.shape.until, self.shape.select]
        text = json.dumps([unit.fingerprint, options]).encode()
        return f"backfill:{self.declared.name}:{unit.name}#{hashlib.blake2b(text, digest_size=8).hexdigest()}"

    # ── steps ────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, whole: Batch, file: Path | None) -> None:
        """Fit a batch, and leave out of it what is committed or waits already (B2)."""
        step, before = self.step, self.step.report
        batch, stored = self.stored.without(whole, file) if self.stored else (whole, 0)
        shaped = self.shaper.shaped(batch, first=before.new + before.already_stored == 0)
        rows, spooled = self.waiting.without(shaped.rows)
        notes = self.stored.notes(batch, file) if self.stored else {}
        step.notes = notes if not step.tables or step.notes == notes else {}
        step.tables.append(rows)
        step.quarantined += shaped.quarantined
        self.declared = shaped.declared
        step.report = replace(
            before,
            read=before.read + whole.count + len(whole.problems),
            already_stored=before.already_stored + stored,
            new=before.new + rows.num_rows,
            already_spooled=before.already_spooled + spooled,
            quarantined=before.quarantined + len(shaped.quarantined),
            without_identity=before.without_identity + self._without_identity(shaped.rows),
            outside=before.outside + shaped.outside,
            bytes=before.bytes + whole.bytes,
        )

    def _without_identity(self, rows: pa.Table) -> int:
        arrays = {name: rows[name] for name in rows.column_names}
        if not self.declared.identity:
            return 0
        return len(rows_without_identity(arrays, self.declared.identity, rows.num_rows))

    def note_stored(self, step: _Step) -> None:
        faults.reach("backfill.stored")
        if step.rows:
            self.steps.append(step.number)
        self.report = step.report
        if self.progress is not None:
            self.progress(self.report)

    def final(self) -> BackfillReport:
        """The report with the numbers of the blocks in place of the forecast."""
        found = decided_rows(self.parts.engine.database, self.parts.engine.lake, self.declared.name, self.steps)
        return replace(
            self.report,
            new=found.new + found.waiting,
            already_stored=self.report.already_stored + found.duplicates,
            expired=found.expired,
            dropped=found.dropped,
        )


def resumes_at(unit: Unit, mark: Mark) -> Mark:
    """B4: where a unit is read on: at the mark, or from its beginning."""
    return mark if unit.steady else None


def check_goes_on(source: Source, unit: Unit, record: SourceRecord | None, declared: Dataset) -> None:
    """B4."""
    if record is None or unit.steady or declared.identity or json.loads(record.position)["mark"] is None:
        return
    raise Permanent(
        f"{source.name} was partly loaded, and may not return the same rows in the same order again.",
        hint="Its rows have no identity, so the load cannot continue. Load the rest under another source id.",
    )


def _position(mark: Mark, *, done: bool) -> str:
    return json.dumps({"mark": mark, "done": done})
