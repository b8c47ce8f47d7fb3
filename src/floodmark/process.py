"""Who is running: a name for this process that survives the reuse of its number."""

from __future__ import annotations

import os
import socket
from functools import lru_cache
from pathlib import Path


def process_identity() -> str:
    """Name the running process as `host/boot/pid/start`, unlike any other that ever was."""
    host, boot = _machine()
    return f"{host}/{boot}/{os.getpid()}/{_own_start(os.getpid())}"


@lru_cache(maxsize=1)
def _own_start(pid: int) -> str:
    """Read once: it is part of every segment's record. A forked child has another number."""
    return _started(pid)


def is_certainly_dead(identity: str) -> bool:
    """Whether that process has ended, as far as can be known here: a process of another host may live."""
    host, boot, pid, started = identity.split("/")
    here, boot_here = _machine()
    if host != here:
        return False
    return boot != boot_here or _started(int(pid)) != started


def _machine() -> tuple[str, str]:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        boot = "unknown"
    return socket.gethostname().replace("/", "-"), boot


def _started(pid: int) -> str:
    """The start time of a process in clock ticks since boot, or nothing if there is no such process."""
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return _alive_without_proc(pid)
    fields = status.rpartition(")")[2].split()
    state, threads, started = fields[0], int(fields[17]), fields[19]
    # A zombie has ended; in a container whose first process reaps nobody's children it stays listed for ever. (The
    # first thread may end before the others: then it has not.)
    return "" if state in {"Z", "X"} and threads <= 1 else started


def _alive_without_proc(pid: int) -> str:
    """Systems without /proc: all that can be known is whether the number is in use."""
    if Path("/proc/self").exists():
        return ""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except PermissionError:
        pass
    return "running"
