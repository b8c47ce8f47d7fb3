"""The event log: append, open, refresh and status at 1k, 10k and 50k transactions.

One event per transaction, beside the figures that the Rust crate of this format reached on the same kind of
machine (two cores). Run it with `python -m bench.eventlog`, or `python -m bench.eventlog 1000` for a quick look.

ext4 passes over the inodes of files deleted in the last minutes, one by one, whenever it makes a file near them: that
alone can make appending ten times slower. So all appends are measured before anything is deleted; leave
some minutes between two runs, or set TMPDIR to another place.
"""

from __future__ import annotations

import gc
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from floodmark.eventlog import Event, EventLog

SIZES = (1_000, 10_000, 50_000)
ARRIVING = 100
SYNCED_APPENDS = 1_000
UNSYNCED_APPENDS = 15_000
REPEATS = 3

CRATE = {
    "append_with_fsync_per_second": [766, 1_592],
    "append_without_fsync_per_second": [4_700, 8_500],
    "open_seconds": {"1000": 0.022, "10000": 0.174, "50000": 0.905},
    "status_seconds": {"1000": 17.0},
}
TARGETS = {"open_with_index_50000_seconds": 0.9, "status_10000_seconds": 1.0, "append_with_fsync_per_second": 766}


def timed(action):
    gc.collect()
    started = time.perf_counter()
    result = action()
    return time.perf_counter() - started, result


def fastest(action, *, prepare=lambda: None, finish=lambda _: None):
    """The best of a few: noise only ever adds."""
    times = []
    for _ in range(REPEATS):
        prepare()
        seconds, result = timed(action)
        finish(result)
        times.append(seconds)
    return min(times)


def cpu_seconds(action):
    """Of this process alone: the figure that a busy machine does not change."""
    gc.collect()
    started = time.process_time()
    result = action()
    used = time.process_time() - started
    result.close()
    return used


def append_many(log, count):
    for n in range(count):
        log.append([Event(f"account-{n % 100}", {"amount": n, "text": "a deposit"})])


def bare_writes(root, count, *, sync):
    """What the file system gives at most: a file written, renamed and, if asked, synced twice; and nothing else."""
    directory = os.open(root, os.O_RDONLY)
    for n in range(count):
        descriptor = os.open(f"{root}/{n}.tmp", os.O_WRONLY | os.O_CREAT)
        os.write(descriptor, b"x" * 500)
        if sync:
            os.fsync(descriptor)
        os.close(descriptor)
        os.rename(f"{root}/{n}.tmp", f"{root}/{n}")  # noqa: PTH104 - as the log does it
        if sync:
            os.fsync(directory)
    os.close(directory)


def append_beside_bare(root, count, *, sync):
    """Ours and the bare file system's in turns, so that what else runs on the machine meets both."""
    count //= REPEATS
    rates, bare, cpu = [], [], []
    for repeat in range(REPEATS):
        with EventLog.open(root / f"ours-{sync}-{repeat}", sync=sync) as log:
            before = time.process_time()
            rates.append(count / timed(lambda log=log: append_many(log, count))[0])
            cpu.append((time.process_time() - before) / count)
        folder = root / f"bare-{sync}-{repeat}"
        folder.mkdir()
        bare.append(count / timed(lambda folder=folder: bare_writes(folder, count, sync=sync))[0])
    return {
        "best": round(max(rates)),
        "median": round(statistics.median(rates)),
        "bare_file_system_best": round(max(bare)),
        "bare_file_system_median": round(statistics.median(bare)),
        "part_of_bare": round(max(rates) / max(bare), 2),
        "cpu_microseconds_each": round(statistics.median(cpu) * 1e6),
    }


def append_all(root, size):
    """Make a log of this size; returns the appends per second."""
    with EventLog.open(root / str(size), sync=False) as log:
        return round(size / timed(lambda: append_many(log, size))[0])


def measure(root, size):
    path = root / str(size)
    # Files as young as this are read again on purpose; a log in use is older.
    time.sleep(0.1)
    EventLog.open(path).close()
    index = path / "index" / "transactions.index"
    found = {
        "open_with_index_seconds": fastest(lambda: EventLog.open(path), finish=EventLog.close),
        "open_with_index_cpu_seconds": cpu_seconds(lambda: EventLog.open(path)),
        "open_read_only_seconds": fastest(lambda: EventLog.open(path, read_only=True)),
        "open_cold_seconds": fastest(lambda: EventLog.open(path), prepare=index.unlink, finish=EventLog.close),
    }
    with EventLog.open(path, sync=False) as log:
        found["status_seconds"] = fastest(log.status)
        found["read_events_per_second"] = round(size / timed(log.read_events)[0])
        found[f"refresh_after_{ARRIVING}_arrive_seconds"] = refresh_after_merge(root, log)
    return {name: round(value, 4) for name, value in found.items()}


def refresh_after_merge(root, log):
    """Another replica, with all our history, has written some more; its files arrive."""
    other_root = root / "other"
    shutil.copytree(log.root / "events", other_root / "events")
    with EventLog.open(other_root, sync=False) as other:
        append_many(other, ARRIVING)
        append_many(log, ARRIVING)
        for file in (other_root / "events").iterdir():
            if not (log.root / "events" / file.name).exists():
                shutil.copy(file, log.root / "events" / file.name)
    shutil.rmtree(other_root)
    seconds, arrived = timed(log.refresh)
    if arrived != ARRIVING:
        raise RuntimeError(f"{arrived} transactions arrived, not {ARRIVING}")
    return seconds


def run(sizes=SIZES) -> dict:
    """All figures, with the crate's beside them."""
    root = Path(tempfile.mkdtemp(prefix="floodmark-bench-"))
    try:
        return {
            "load_average": round(os.getloadavg()[0], 1),
            "append_with_fsync_per_second": append_beside_bare(root, SYNCED_APPENDS, sync=True),
            "append_without_fsync_per_second": append_beside_bare(root, UNSYNCED_APPENDS, sync=False),
            "append_without_fsync_per_second_to_size": {str(size): append_all(root, size) for size in sizes},
            "sizes": {str(size): measure(root, size) for size in sizes},
            "crate": CRATE,
            "targets": TARGETS,
        }
    finally:
        shutil.rmtree(root)


if __name__ == "__main__":
    print(json.dumps(run(tuple(int(size) for size in sys.argv[1:]) or SIZES), indent=2))
