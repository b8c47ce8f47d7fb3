"""The identity of this replica, which is written into each transaction.

An identity is kept only while its fingerprint (machine, absolute path, git directory) still fits the
place. A tree that was copied, together with the identity files in it, therefore gets one of its own.

E4  Everything one replica writes forms a chain: each of its transactions descends from all its earlier
    ones. Two concurrent transactions of one identity prove that two writers share it.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from floodmark import faults
from floodmark.eventlog.identifiers import is_lower_uuid
from floodmark.files import durable_write, make_directory

_MACHINE_ID = Path("/etc/machine-id")


def fingerprint(root: Path) -> str:
    """The fingerprint of this location."""
    try:
        machine = _MACHINE_ID.read_text().strip() or "none"
    except OSError:
        machine = "none"
    try:
        git = str((root / ".git").stat().st_ino)
    except OSError:
        git = "none"
    return f"machine={machine};path={root.resolve()};git={git}"


def stored_identity(root: Path) -> str | None:
    """The identity of this replica, or None if there is none or it belongs to another location."""
    folder = root / ".eventcore"
    try:
        replica = (folder / "replica_id").read_text().strip()
        place = os.fsdecode((folder / "replica_fingerprint").read_bytes()).strip()
    except (OSError, UnicodeDecodeError):
        return None
    return replica if is_lower_uuid(replica) and place == fingerprint(root) else None


def new_identity(root: Path, *, make: Callable[[], str]) -> str:
    """Create a new, permanent identity for this location."""
    folder = root / ".eventcore"
    make_directory(folder)
    replica = make()
    # The identity first: a crash in between leaves a fingerprint that fits no identity of ours, at worst
    # the old one, and then the next opening makes yet another. The other way round, the old identity
    # would be taken for this place's own.
    durable_write(folder / "replica_id", replica.encode())
    faults.reach("eventlog.identity_made")
    durable_write(folder / "replica_fingerprint", os.fsencode(fingerprint(root)))
    return replica
