"""Doctor: can this machine run this store? Each check has a result, and each problem what to do about it.

Nothing is changed. Probes of disks and destinations are removed again. A check that fails does not stop the others.
"""

from __future__ import annotations

import os
import platform
import re
import secrets
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from floodmark.config import FILE_NAME, Settings
from floodmark.control import datasets, inspection, sinks
from floodmark.engine import CONTROL_FILE, Engine
from floodmark.errors import FloodmarkError, reason_of

OK, WARNING, WRONG, SKIPPED = "ok", "warning", "wrong", "skipped"

SPACE_BYTES_MIN = 256 << 20
"""With less free space commits are about to fail …"""
SPACE_BYTES_LOW = 2 << 30
"""… and with less than this soon."""
SYNC_SECONDS_MIN = 20e-6
"""A disk that has stored a block takes longer than this, also a fast one. Below, nothing was stored."""
SYNC_SECONDS_SLOW = 0.05
SYNCS = 9
CLOCK_SECONDS_MAX = 5.0
FILES_MIN = 1024
IN_MEMORY = {"tmpfs", "ramfs"}
OVER_NETWORK = {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "glusterfs", "fuse.sshfs", "fuse.s3fs"}
"""SQLite's write-ahead log needs memory that all processes share, and locks that work: file servers have neither."""
_UNSAFE_OPTIONS = {"nobarrier", "barrier=0", "norecovery"}
PACKAGES = ("floodmark", "pyspark", "pyiceberg", "pyarrow", "sqlalchemy", "obstore")


@dataclass(frozen=True, slots=True)
class Checkup:
    """The result of one check."""

    name: str
    """A short name that does not change: `java`, `disk-space`, `sink archive`, …"""
    state: str
    """`ok`, `warning`, `wrong` or `skipped`."""
    what: str
    run: str = ""
    """What to do about it."""


@dataclass(frozen=True, slots=True)
class DoctorReport:
    """What the checks found."""

    store: str | None
    checks: tuple[Checkup, ...]

    @property
    def sound(self) -> bool:
        """Whether nothing is wrong; warnings do not count."""
        return not any(one.state == WRONG for one in self.checks)


Check = tuple[str, Callable[[], Iterator[Checkup]]]


def examine(
    engine: Engine | None,
    *,
    start_spark: Callable[[], str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> DoctorReport:
    """Check the machine, and the store if there is one. `start_spark` starts Spark and says what it found."""
    checks: list[Check] = [
        ("versions", _versions),
        ("java", _java),
        ("jars", lambda: _jars(None if engine is None else engine.settings)),
        ("memory", lambda: _memory(None if engine is None else engine.settings)),
        (
            "disk",
            lambda: _disk(Path(tempfile.gettempdir()) if engine is None else engine.root, durable=engine is not None),
        ),
    ]
    if engine is not None:
        checks += [
            ("permissions", lambda: _permissions(engine.root)),
            ("control database", lambda: _control(engine)),
            ("catalog", lambda: _catalog(engine)),
            *((f"sink {one.name}", lambda one=one: _sink(engine, one)) for one in _sinks(engine)),
        ]
    checks.append(("spark", lambda: _spark(start_spark)))
    found: list[Checkup] = []
    for name, check in checks:
        if progress is not None:
            progress(name)
        try:
            found += check()
        except FloodmarkError as error:
            found.append(Checkup(name, WRONG, error.message, error.hint or "Correct it, then run the doctor again."))
        except Exception as error:  # noqa: BLE001 - whatever a library or the system raises is the finding
            found.append(Checkup(name, WRONG, f"{type(error).__name__}: {reason_of(error)}.", "Correct the cause."))
    return DoctorReport(None if engine is None else str(engine.root), tuple(found))


# ── this machine ─────────────────────────────────────────────────────────────────────────────────────────────────────


def _versions() -> Iterator[Checkup]:
    found = [f"Python {platform.python_version()}"]
    for name in PACKAGES:
        try:
            found.append(f"{name} {version(name)}")
        except PackageNotFoundError:
            yield Checkup("versions", WRONG, f"The package {name} is not installed.", "Install floodmark again.")
    yield Checkup("versions", OK, ", ".join(found) + f"; {platform.system()} {platform.release()}.")


def _java() -> Iterator[Checkup]:
    from floodmark.lake.java import check_java, java_build

    yield Checkup("java", OK, f"Java {check_java()}: {java_build().splitlines()[0]}.")


def _jars(settings: Settings | None) -> Iterator[Checkup]:
    """Those that every store needs, and those of this store's lake."""
    from floodmark.lake.catalogs import needed_jars
    from floodmark.lake.jars import checked_jars, jar_directory, missing_jars

    if settings is not None and settings.spark.remote:
        yield Checkup("jars", OK, f"None are needed here: {settings.spark.remote} has its own.")
        return
    needs = set() if settings is None else needed_jars(settings)

    directory = jar_directory()
    missing = missing_jars(directory, needs=needs)
    if missing:
        what = f"{', '.join(missing)} {'is' if len(missing) == 1 else 'are'} not in {directory}."
        yield Checkup(
            "jars", WARNING, what, "They are downloaded when Spark first starts; or run `floodmark jars` now."
        )
        return
    yield Checkup(
        "jars", OK, f"{len(checked_jars(directory, needs=needs))} jars in {directory}, with the right checksums."
    )


def _memory(settings: Settings | None) -> Iterator[Checkup]:
    try:
        text = Path("/proc/meminfo").read_text(encoding="ascii")
    except OSError:
        yield Checkup("memory", SKIPPED, "This system does not report its memory in /proc.")
        return
    found = re.search(r"MemAvailable:\s+(\d+) kB", text)
    free = int(found[1]) << 10 if found else 0
    wanted = settings.spark.driver_memory if settings is not None else "1g"
    heap = int(wanted[:-1]) << {"k": 10, "m": 20, "g": 30, "t": 40}[wanted[-1].lower()]
    what = f"{_size(free)} of memory are available; Spark's heap is {wanted} (spark.driver_memory)."
    if free < heap:
        yield Checkup("memory", WARNING, what, "Free memory, or set a smaller spark.driver_memory, at least 512m.")
    else:
        yield Checkup("memory", OK, what)


# ── the disk ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def _disk(root: Path, *, durable: bool) -> Iterator[Checkup]:
    yield _space(root)
    yield _open_files()
    kind, options = file_system(root)
    if durable:
        yield judged_sync(root, kind, options, sync_seconds(root))
    yield _clock(root)


def _space(root: Path) -> Checkup:
    found = os.statvfs(root)
    free = found.f_bavail * found.f_frsize
    what = f"{_size(free)} free at {root}."
    if free < SPACE_BYTES_MIN or (found.f_files and found.f_favail < 1000):
        files = f" Room for {found.f_favail} more files." if found.f_files else ""
        return Checkup("disk-space", WRONG, what + files, "Free space: commits fail when the disk is full.")
    if free < SPACE_BYTES_LOW:
        return Checkup("disk-space", WARNING, what, "Free space soon; `floodmark compact` removes unused files.")
    return Checkup("disk-space", OK, what)


def _open_files() -> Checkup:
    import resource

    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    what = f"A process may open {limit} files."
    if limit < FILES_MIN:
        return Checkup("open-files", WARNING, what, f"Raise the limit to {FILES_MIN} or more: `ulimit -n`.")
    return Checkup("open-files", OK, what)


def file_system(path: Path, mounts: str | None = None) -> tuple[str, set[str]]:
    """The kind of file system that a path is on, and its mount options; empty if the system does not tell."""
    if mounts is None:
        try:
            mounts = Path("/proc/self/mountinfo").read_text(encoding="utf-8", errors="replace")
        except OSError:
            return "", set()
    best, kind, options = "", "", set[str]()
    real = str(path.resolve())
    for line in mounts.splitlines():
        left, dash, right = line.partition(" - ")
        fields, about = left.split(), right.split()
        if not dash or len(fields) < 6 or len(about) < 3:
            continue
        where = fields[4].replace("\\040", " ")
        inside = real == where or real.startswith(where.rstrip("/") + "/")
        if inside and len(where) >= len(best):
            best, kind, options = where, about[0], {*fields[5].split(","), *about[2].split(",")}
    return kind, options


def judged_sync(root: Path, kind: str, options: set[str], seconds: float) -> Checkup:
    """Whether fsync does what it says, as far as a program can find out."""
    took = f"An fsync takes {seconds * 1000:.2f} ms on {kind or 'this file system'} ({root})."
    unsafe = sorted(options & _UNSAFE_OPTIONS)
    state, what, run = OK, took, ""
    if "libeatmydata" in os.environ.get("LD_PRELOAD", ""):
        state, what, run = WRONG, "libeatmydata is loaded: fsync does nothing.", "Unset LD_PRELOAD."
    elif kind in IN_MEMORY:
        state, what, run = WARNING, f"{root} is in memory ({kind}): a restart loses it.", "Put the store on a disk."
    elif kind in OVER_NETWORK:
        state = WRONG
        what = f"{root} is on a network file system ({kind}): locks and SQLite's log are not reliable there."
        run = "Put the store on a local disk."
    elif unsafe:
        state, what, run = WRONG, f"{root} is mounted with {unsafe[0]}: power loss undoes an fsync.", "Remount it."
    elif seconds < SYNC_SECONDS_MIN:
        state, what = WARNING, f"{took} No disk is that fast."
        run = "If the disk is virtual, its host may ignore fsync: acknowledged rows are then lost with the power."
    elif seconds > SYNC_SECONDS_SLOW:
        state, run = WARNING, "Every capture and every commit waits for it: use a faster disk."
    return Checkup("fsync", state, what, run)


def sync_seconds(root: Path) -> float:
    """How long it takes to make a small write durable: the median of a few."""
    path = root / f".floodmark-probe.{secrets.token_hex(8)}"
    taken = []
    try:
        with path.open("xb", buffering=0) as file:
            for _ in range(SYNCS):
                file.write(b"\0" * 4096)
                begun = time.perf_counter()
                os.fsync(file.fileno())
                taken.append(time.perf_counter() - begun)
    finally:
        path.unlink(missing_ok=True)
    return statistics.median(taken)


def _clock(root: Path) -> Checkup:
    """Against the file system's clock, which is another machine's on a server, and against a time that has passed."""
    with tempfile.TemporaryFile(dir=root) as file:
        off = abs(time.time() - os.fstat(file.fileno()).st_mtime)
    now = datetime.now(UTC)
    if now.year < 2026 or off > CLOCK_SECONDS_MAX:
        return Checkup("clock", WRONG, f"The clock says {now:%Y-%m-%d %H:%M:%S} UTC.", "Set the clock, with NTP.")
    return Checkup("clock", OK, f"The clock says {now:%Y-%m-%d %H:%M:%S} UTC.")


# ── the store ────────────────────────────────────────────────────────────────────────────────────────────────────────


def _permissions(root: Path) -> Iterator[Checkup]:
    name = "permissions"
    parts = [root, *(path for part in ("spool", "lake", "quarantine", "logs") if (path := root / part).exists())]
    closed = [str(path) for path in parts if not os.access(path, os.R_OK | os.W_OK | os.X_OK)]
    if closed:
        yield Checkup(name, WRONG, f"{closed[0]} cannot be written to by this user.", "Run as the store's owner.")
        return
    foreign = [path for path in parts if path.stat().st_uid != os.geteuid()]
    if foreign:
        what = f"{foreign[0]} belongs to another user (id {foreign[0].stat().st_uid})."
        yield Checkup(name, WARNING, what, "Run every process of a store as one user, so that all can write.")
    secret = [
        path for one in (FILE_NAME, CONTROL_FILE) if (path := root / one).exists() and path.stat().st_mode & 0o077
    ]
    if secret:
        what = f"Other users of this machine can read {secret[0]}: it may contain secrets."
        yield Checkup(name, WARNING, what, f"Run `chmod 600 {secret[0]}`.")
    if not foreign and not secret:
        yield Checkup(name, OK, "The store can be written to, and is private.")


def _control(engine: Engine) -> Iterator[Checkup]:
    name = "control database"
    begun = time.perf_counter()
    found = engine.database.read(inspection.health)
    taken = (time.perf_counter() - begun) * 1000
    if found.problem is not None:
        run = "Stop all processes of the store and restore a backup, or `floodmark fsck --rebuild-records`."
        yield Checkup(name, WRONG, f"{found.version} finds damage: {found.problem}.", run)
        return
    if engine.database.read_only:
        yield Checkup(name, WARNING, f"{found.version} answers; it can only be read.", "Run as the store's owner.")
    else:
        yield Checkup(name, OK, f"{found.version} answers in {taken:.1f} ms.")
    if found.now is not None and abs((datetime.now(UTC) - found.now).total_seconds()) > CLOCK_SECONDS_MAX:
        off = (datetime.now(UTC) - found.now).total_seconds()
        yield Checkup("clock", WRONG, f"The database's clock differs by {off:.0f} s.", "Set both clocks, with NTP.")


def _catalog(engine: Engine) -> Iterator[Checkup]:
    declared = engine.database.read(datasets.everyone)
    rows = 0
    for dataset in declared:
        state = engine.lake.load(dataset.table_name)
        rows += state is not None
    yield Checkup("catalog", OK, f"The catalog answers: {rows} tables of {len(declared)} datasets.")


def _sinks(engine: Engine) -> list[sinks.Sink]:
    try:
        return engine.database.read(sinks.everyone)
    except Exception:  # noqa: BLE001 - the check of the control database has said it
        return []


def _sink(engine: Engine, sink: sinks.Sink) -> Iterator[Checkup]:
    from floodmark.delivery.kinds import kind_of

    found = kind_of(sink).probe(engine, sink)
    if sink.state == "blocked":
        yield Checkup(
            f"sink {sink.name}",
            WRONG,
            f"{found} But the sink is blocked: {sink.reason}",
            "Correct the cause, then export.",
        )
    else:
        yield Checkup(f"sink {sink.name}", OK, found)


def _spark(start: Callable[[], str] | None) -> Iterator[Checkup]:
    if start is None:
        yield Checkup("spark", SKIPPED, "Spark was not started.")
        return
    begun = time.perf_counter()
    what = start()
    yield Checkup("spark", OK, f"{what.removesuffix('.')}, in {time.perf_counter() - begun:.1f} s.")


def _size(count: int) -> str:
    return f"{count / (1 << 30):.1f} GiB" if count >= 1 << 30 else f"{count / (1 << 20):.0f} MiB"
