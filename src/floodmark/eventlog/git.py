"""Git settings of a log: what to ignore, how to merge, and a check before each commit.

`-text` prevents git from converting line endings: the content hashes cover the bytes. `merge=union` is for a case that
should not happen, one file added on both sides with different content: both are kept, and the hash detects it.
"""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
from pathlib import Path

from floodmark.errors import EnvironmentProblem
from floodmark.files import durable_write

IGNORED = ("/tmp/", "/checkpoints/", "/locks/", "/index/", "/.eventcore/", "/.lock")  # noqa: S108 - a pattern
ATTRIBUTE = "events/** merge=union -text"
_HOOK_MARK = "# floodmark: check the event log"


def write_if_absent(root: Path) -> None:
    """Write the git files when a log is opened for writing; existing files are not changed."""
    if not (root / ".gitignore").exists():
        lines = ["# Only events/ is committed; the rest is local to this machine.", *IGNORED]
        durable_write(root / ".gitignore", ("\n".join(lines) + "\n").encode())
    if not (root / ".gitattributes").exists():
        durable_write(root / ".gitattributes", f"{ATTRIBUTE}\n".encode())


def complete(root: Path) -> list[str]:
    """Add missing lines to existing files; returns what was added."""
    write_if_absent(root)
    added: list[str] = []
    ignore = root / ".gitignore"
    missing = [pattern for pattern in IGNORED if pattern not in _lines(ignore)]
    if missing:
        _append(ignore, missing)
        added += [f".gitignore: {pattern}" for pattern in missing]
    attributes = root / ".gitattributes"
    if not keeps_bytes(root):
        _append(attributes, [ATTRIBUTE])
        added.append(f".gitattributes: {ATTRIBUTE}")
    return added


def keeps_bytes(root: Path) -> bool:
    """Whether `.gitattributes` prevents git from converting the line endings of transactions."""
    for line in reversed(_lines(root / ".gitattributes")):
        pattern, *attributes = line.split()
        if pattern == "events/**":
            return "-text" in attributes or "binary" in attributes
    return False


def install_hook(root: Path) -> Path:
    """Install a pre-commit hook that checks the log; an existing hook is kept and runs first."""
    hook = _hooks_directory(root) / "pre-commit"
    existing = hook.read_text() if hook.exists() else "#!/bin/sh\n"
    if _HOOK_MARK not in existing:
        run = "from floodmark.cli import main; main()"
        command = shlex.join([sys.executable, "-c", run, "log", "fsck", str(root.resolve())])
        check = f"{_HOOK_MARK}\n{command} >&2 || exit 1\n"
        hook.parent.mkdir(parents=True, exist_ok=True)
        durable_write(hook, f"{existing.rstrip()}\n{check}".encode())
        hook.chmod(0o755)
    return hook


def _hooks_directory(root: Path) -> Path:
    try:
        answer = subprocess.run(
            ["git", "rev-parse", "--git-path", "hooks"],  # noqa: S607 - the user's own git, as on the command line
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise EnvironmentProblem(
            f"{root} is not inside a git repository, so a pre-commit hook cannot be installed.",
            hint=f"Run `git init {root}` first, or run the command without --hook.",
        ) from error
    return root / answer.stdout.strip()


def _lines(path: Path) -> list[str]:
    with contextlib.suppress(FileNotFoundError):
        text = path.read_text(errors="replace")
        return [line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return []


def _append(path: Path, lines: list[str]) -> None:
    before = path.read_bytes()
    joint = b"" if not before or before.endswith(b"\n") else b"\n"
    durable_write(path, before + joint + "\n".join(lines).encode() + b"\n")
