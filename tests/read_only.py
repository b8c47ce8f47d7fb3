"""Directories that cannot be written to: by their rights, or as root, whom rights do not stop, by a read-only mount."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


@contextlib.contextmanager
def read_only(directory: Path, *, at: Path | None = None) -> Iterator[Path]:
    """Show a directory read-only, in its own place or `at` another; there is only the former without a mount."""
    place = at or directory
    if os.geteuid() == 0:
        place.mkdir(exist_ok=True)
        done = subprocess.run(["mount", "--bind", directory, place], capture_output=True, check=False)
        if done.returncode != 0:
            pytest.skip(f"a read-only mount is not possible here: {done.stderr.decode().strip()}")
        try:
            subprocess.run(["mount", "-o", "remount,ro,bind", place], check=True)
            yield place
        finally:
            subprocess.run(["umount", "--lazy", place], check=True)
        return
    if at is not None:
        pytest.skip("showing a directory in another place needs a mount, and so root")
    found = [directory, *directory.rglob("*")]
    modes = {path: path.stat().st_mode for path in found}
    for path in reversed(found):
        path.chmod(modes[path] & ~0o222)
    try:
        yield directory
    finally:
        for path in found:
            path.chmod(modes[path])
