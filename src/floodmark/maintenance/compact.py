"""Compaction: joins small files, expires snapshots, removes orphan files. Readers do not notice.

    settle → run the settle function again → rewrite bucket by bucket → make durable
        → join manifests → make durable → expire snapshots → orphans
      → tables that a rebuild has retired → old records (`maintenance.fold`)

Every step is independent: after a crash the next run finds less to do. Flushes and exports continue beside
it, in this process and in others: a rewrite is no append, and a reader whose snapshot expires retries.

- U1 A rewrite changes no row: each keeps its number, so that cursors and watermarks mean what they meant.
- U5 An orphan file is removed only by age, and never while a commit in progress could refer to it.
- U6 Compaction comes to an end: a run that finds everything in order rewrites nothing, and reports so.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, field
from datetime import timedelta
from typing import TypeVar

from floodmark import faults, traces
from floodmark.commit.flush import decide_beside_flushes
from floodmark.commit.protocol import TableState
from floodmark.compaction import Bucket, Choice, Limits, choose
from floodmark.control import datasets
from floodmark.control.datasets import Dataset
from floodmark.engine import Engine
from floodmark.errors import FloodmarkError, Retryable
from floodmark.lake import inventory
from floodmark.lake.inventory import TableFiles, total_bytes
from floodmark.lake.table import Lake
from floodmark.maintenance.expiry import SnapshotRule, expire_snapshots, make_durable
from floodmark.maintenance.fold import DatasetFolding, fold_dataset
from floodmark.maintenance.rebuild import remove_retired
from floodmark.maintenance.remove_dataset import finish_removals
from floodmark.maintenance.settle import SettledAgain, settle_again
from floodmark.sequence import SequenceRange

T = TypeVar("T")
MANIFEST_TRIES_MAX = 3
"""How often manifests are joined again because a commit came in between."""
REPLACED_MAX = 1_000
"""After so many compacted files, the manifests that still list them are rewritten. Those of fewer files go with the
next commits: a commit leaves out a manifest without live files, and joins small ones."""
ORPHAN_AGE_MIN = timedelta(days=1)
"""No commit takes longer than this: a younger file is never an orphan, whatever the settings are."""


@dataclass(frozen=True, slots=True)
class CompactedBucket:
    """One bucket whose files were joined, or would be."""

    range: SequenceRange
    """The bucket's numbers."""
    files_before: int
    files_after: int | None
    """None in a dry run."""
    bytes_before: int
    bytes_after: int | None


@dataclass(frozen=True, slots=True)
class SkippedBucket:
    """One bucket that is not rewritten."""

    range: SequenceRange
    files: int
    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class DatasetCompaction:
    """What a compaction did to one dataset."""

    dataset: str
    compacted: tuple[CompactedBucket, ...] = ()
    skipped: tuple[SkippedBucket, ...] = ()
    failed: tuple[SkippedBucket, ...] = ()
    """Buckets whose files could not be joined; the others were."""
    manifests_before: int = 0
    """Small lists of files."""
    manifests_after: int = 0
    snapshots_expired: int = 0
    orphans: int = 0
    """Files that nothing referred to: removed, or found by a dry run."""
    orphan_bytes: int = 0
    generations_removed: tuple[int, ...] = ()
    """Old tables of rebuilds, kept for a while for their readers."""
    bytes_freed: int = 0
    """As seen on the disk."""
    settled: SettledAgain = field(default_factory=SettledAgain)
    """The result of settling committed rows again."""
    problems: tuple[str, ...] = ()
    """Steps that failed; the others were taken."""
    folded: DatasetFolding | None = None
    """How many old records of the control database were joined with others, or are needed no more."""

    @property
    def idle(self) -> bool:
        """Whether there was nothing to do."""
        return not (
            self.compacted
            or self.failed
            or self.problems
            or self.snapshots_expired
            or self.orphans
            or self.generations_removed
            or self.settled != SettledAgain()
            or (self.folded is not None and self.folded.records)
        )


@dataclass(frozen=True, slots=True)
class CompactReport:
    """What a compaction did."""

    datasets: tuple[DatasetCompaction, ...]
    dry_run: bool = False

    @property
    def sound(self) -> bool:
        """Whether nothing failed."""
        return not any(item.failed or item.problems for item in self.datasets)


def compact(
    engine: Engine,
    dataset: str | None = None,
    *,
    dry_run: bool = False,
    progress: Callable[[str], None] | None = None,
    apart: frozenset[str] = frozenset(),
) -> CompactReport:
    """Keep tables small and quick. Any number of processes may try at once.

    `apart` are steps that are left to others: `expire`, `orphans`, `fold`.
    """

    def one(name: str) -> DatasetCompaction:
        declared = engine.database.read(lambda c: datasets.get(c, name))
        if declared.fenced:
            raise Retryable(f"Dataset {name!r} is being rebuilt.", hint="Compact it afterwards.")
        if not dry_run:
            decide_beside_flushes(engine, name)
        state = engine.lake.load(declared.table_name)
        if state is None or state.head is None:
            return DatasetCompaction(name)
        run = _Run(engine, declared, progress, apart)
        with traces.span("compact", dataset=name):
            return run.forecast(state) if dry_run else run.work(state)

    if dataset is not None:
        return CompactReport((one(dataset),), dry_run)
    if not dry_run:
        finish_removals(engine)
    done = []
    for item in engine.database.read(datasets.everyone):
        try:
            done.append(one(item.name))
        except FloodmarkError as error:  # one dataset's trouble is not the others'
            done.append(DatasetCompaction(item.name, problems=(error.message,)))
    return CompactReport(tuple(done), dry_run)


@dataclass(slots=True)
class _Run:
    """One dataset's compaction."""

    engine: Engine
    declared: Dataset
    progress: Callable[[str], None] | None
    apart: frozenset[str]
    compacted: dict[SequenceRange, Bucket] = field(default_factory=dict)
    failed: list[SkippedBucket] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    manifests_before: int = 0

    @property
    def lake(self) -> Lake:
        return self.engine.lake

    @property
    def table(self) -> str:
        return self.declared.table_name

    def forecast(self, state: TableState) -> DatasetCompaction:
        files = self.lake.files(state)
        choices = self._choices(files)
        orphans = self.lake.orphans(self.table, before=self.engine.clock.now() - orphan_age(self.engine))
        return DatasetCompaction(
            self.declared.name,
            tuple(
                CompactedBucket(item.bucket.range, len(item.bucket.files), None, item.bucket.bytes, None)
                for item in choices
                if item.rewrite
            ),
            _skipped(choices),
            manifests_before=files.manifests,
            manifests_after=files.manifests,
            orphans=len(orphans),
            orphan_bytes=total_bytes(orphans),
        )

    def work(self, state: TableState) -> DatasetCompaction:
        settled = self._settled_again()
        state = self.lake.load(self.table) or state
        choices = self._choices(self.lake.files(state))
        room = inventory.stored_bytes(self.lake, self.table)
        self._rewrite([item for item in choices if item.rewrite])
        self._step("rewriting manifests", self._join_manifests)
        apart = self.apart
        expired = 0 if "expire" in apart else self._step("expiring snapshots", self._expire) or 0
        orphans, orphan_bytes = 0, 0
        if "orphans" not in apart:
            orphans, orphan_bytes = self._step("removing orphan files", self._remove_orphans) or (0, 0)
        retired = self._step("removing retired tables", lambda: remove_retired(self.engine, self.declared.name)) or ()
        folded = None
        if "fold" not in apart:
            folded = self._step("folding old records", lambda: fold_dataset(self.engine, self.declared.name))
        after = self.lake.load(self.table) or state
        files = self.lake.files(after)
        now = {bucket.range: bucket for bucket in files.buckets}
        return DatasetCompaction(
            self.declared.name,
            tuple(_compacted(bucket, now.get(bucket.range)) for _, bucket in sorted(self.compacted.items())),
            _skipped(choices),
            tuple(sorted(self.failed, key=lambda item: item.range)),
            self.manifests_before,
            files.manifests,
            expired,
            orphans,
            orphan_bytes,
            retired,
            max(0, room - inventory.stored_bytes(self.lake, self.table)),
            settled,
            tuple(self.problems),
            folded,
        )

    def _settled_again(self) -> SettledAgain:
        """Before files are joined: what collapses need not be joined first."""
        if self.declared.settle is None:
            return SettledAgain()
        settled = self._step("running the settle function", lambda: settle_again(self.engine, self.declared.name))
        if settled is not None and settled.problem is not None:
            self.problems.append(f"running the settle function: {settled.problem}")
        return settled or SettledAgain()

    # ── the steps ────────────────────────────────────────────────────────────────────────────────────────────────

    def _choices(self, files: TableFiles) -> list[Choice]:
        settings = self.engine.settings.upkeep
        limits = Limits(settings.file_bytes, settings.files_min, settings.bytes_max)
        return choose(files.buckets, limits)

    def _rewrite(self, chosen: list[Choice]) -> None:
        """Bucket by bucket, each its own commit: one that fails leaves the others alone."""
        if chosen:
            self._tell(f"compacting {len(chosen)} buckets")
        for done, (item, error) in enumerate(self._rewritten(chosen), start=1):
            if error is None:
                self.compacted[item.bucket.range] = item.bucket
                self._step("making files durable", lambda: make_durable(self.engine, self.declared))
            else:
                self.failed.append(_skip(item.bucket, error.message))
            self._tell(f"{done} of {len(chosen)} buckets compacted")

    def _rewritten(self, chosen: list[Choice]) -> Iterator[tuple[Choice, FloodmarkError | None]]:
        workers = min(self.engine.settings.upkeep.buckets_at_once, len(chosen))
        if workers < 2:
            yield from ((item, self._rewrite_one(item)) for item in chosen)
            return
        with ThreadPoolExecutor(workers, thread_name_prefix="compact") as pool:
            waiting = {pool.submit(self._rewrite_one, item): item for item in chosen}
            for done in as_completed(waiting):
                yield waiting[done], done.result()

    def _rewrite_one(self, item: Choice) -> FloodmarkError | None:
        if item.rewrite is None:
            return None
        faults.reach("compact.rewriting")
        try:
            size = self.engine.settings.upkeep.file_bytes
            self.lake.rewrite(self.table, within=item.rewrite, file_bytes=size, one_file=item.bytes <= size)
        except FloodmarkError as error:
            return error
        faults.reach("compact.rewritten")
        return None

    def _join_manifests(self) -> None:
        state = self.lake.load(self.table)
        if state is None:
            return
        self.manifests_before = self.lake.files(state).manifests
        replaced = sum(len(bucket.files) for bucket in self.compacted.values())
        if self.manifests_before > self.engine.settings.upkeep.manifests_max or replaced > REPLACED_MAX:
            if not self._rewrite_manifests(state):
                return
            faults.reach("compact.manifests_joined")
            make_durable(self.engine, self.declared)

    def _rewrite_manifests(self, state: TableState) -> bool:
        """False if flushes were faster each time: they join manifests, too, and the next compaction does the rest."""
        for _ in range(MANIFEST_TRIES_MAX):
            try:
                self.lake.rewrite(self.table)
            except Retryable:
                now = self.lake.load(self.table)
                if now is None or now.head == state.head:
                    raise  # nobody has changed the table: it is something else
                state = now
            else:
                return True
        return False

    def _expire(self) -> int:
        settings = self.engine.settings.upkeep
        age = timedelta(seconds=settings.snapshots_age_seconds)
        rule = SnapshotRule(settings.snapshots_keep, age, settings.snapshots_max)
        decide_beside_flushes(self.engine, self.declared.name)
        gone = expire_snapshots(self.engine, self.declared.name, [self.table], rule)
        faults.reach("compact.expired")
        return gone

    def _remove_orphans(self) -> tuple[int, int]:
        """U5: the one place that needs a clock."""
        before = self.engine.clock.now() - orphan_age(self.engine)
        found = self.lake.orphans(self.table, before=before, remove=True)
        return len(found), total_bytes(found)

    # ── around them ──────────────────────────────────────────────────────────────────────────────────────────────

    def _step(self, name: str, work: Callable[[], T]) -> T | None:
        """Run a step; its error is reported, and the next steps run anyway."""
        self._tell(name)
        try:
            return work()
        except FloodmarkError as error:
            self.problems.append(f"{name}: {error.message}")
            return None

    def _tell(self, text: str) -> None:
        if self.progress is not None:
            self.progress(f"{self.declared.name}: {text}")


def orphan_age(engine: Engine) -> timedelta:
    """U5: how old a file must be before it is removed because nothing refers to it."""
    return max(ORPHAN_AGE_MIN, timedelta(seconds=engine.settings.upkeep.orphan_age_seconds))


def _skip(bucket: Bucket, reason: str) -> SkippedBucket:
    return SkippedBucket(bucket.range, len(bucket.files), bucket.bytes, reason)


def _skipped(choices: list[Choice]) -> tuple[SkippedBucket, ...]:
    return tuple(sorted((_skip(i.bucket, i.reason) for i in choices if not i.rewrite), key=lambda item: item.range))


def _compacted(before: Bucket, after: Bucket | None) -> CompactedBucket:
    files, size = (0, 0) if after is None else (len(after.files), after.bytes)
    return CompactedBucket(before.range, len(before.files), files, before.bytes, size)
