"""What a power cut leaves of a directory tree.

What was fsynced stays. Of the rest anything may have reached the disk: a file's unsynced end may be there, cut, or have
holes of zeros; a new name may be gone; a removed one may be back; a renamed file has one of its two names.
"""

from __future__ import annotations

import errno
import os
import random
import stat
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Disk:
    """Watches the fsyncs below one directory."""

    root: Path
    names: dict[str, dict[str, int]] = field(default_factory=dict)
    """For each directory the durable names, with the inode of each."""
    contents: dict[int, bytes] = field(default_factory=dict)
    """For each inode its durable content."""
    failing: bool = False
    """Whether the next fsync of a landing file fails."""
    dropped: dict[int, tuple[int, int]] = field(default_factory=dict)
    """For each inode the bytes whose fsync failed: the system has dropped them, and no later fsync writes them."""

    def synced(self, descriptor: int) -> None:
        """Somebody called fsync."""
        found = os.fstat(descriptor)
        path = str(Path(f"/proc/self/fd/{descriptor}").readlink())
        if not path.startswith(f"{self.root}/"):
            return
        if stat.S_ISDIR(found.st_mode):
            self.names[path] = {entry.name: entry.inode() for entry in os.scandir(path)}
            return
        content = Path(f"/proc/self/fd/{descriptor}").read_bytes()
        if self.failing and path.endswith(".jsonl"):
            self.failing = False
            self.dropped[found.st_ino] = (len(self.contents.get(found.st_ino, b"")), len(content))
            raise OSError(errno.EIO, "the disk has an error")
        start, end = self.dropped.get(found.st_ino, (0, 0))
        self.contents[found.st_ino] = content[:start] + bytes(end - start) + content[end:]

    def lose_power(self, chance: random.Random) -> None:
        """Leave what a disk may hold after the power went."""
        for folder, _, _ in list(os.walk(self.root)):
            self._after(Path(folder), self.names.get(folder, {}), chance)
        self.take_stock()

    def take_stock(self) -> None:
        """What is there now is on the disk."""
        self.names = {
            folder: {entry.name: entry.inode() for entry in os.scandir(folder)} for folder, _, _ in os.walk(self.root)
        }
        self.contents = {}
        for folder, _, files in os.walk(self.root):
            for name in files:
                path = Path(folder) / name
                self.contents[path.stat().st_ino] = path.read_bytes()

    def _after(self, folder: Path, durable: dict[str, int], chance: random.Random) -> None:
        now = {entry.name: entry.inode() for entry in os.scandir(folder) if entry.is_file()}
        was = {inode: name for name, inode in durable.items()}
        for name, inode in sorted(now.items()):
            path = folder / name
            content = self._left(path.read_bytes(), self.contents.get(inode), chance)
            if durable.get(name) == inode or chance.random() < 0.5:
                path.write_bytes(content)
                continue
            path.unlink()  # the new name never reached the disk
            old = was.get(inode)
            if old is not None and old not in now:
                (folder / old).write_bytes(content)  # … so the file still has its old one
        for name, inode in sorted(durable.items()):
            gone = name not in now and inode not in now.values() and inode in self.contents
            if gone and chance.random() < 0.5:
                (folder / name).write_bytes(self.contents[inode])  # its removal never reached the disk

    @staticmethod
    def _left(now: bytes, durable: bytes | None, chance: random.Random) -> bytes:
        kept = durable or b""
        if not now.startswith(kept):
            return kept if len(kept) == len(now) else chance.choice([now, kept])
        end = bytearray(now[len(kept) :])
        del end[chance.choice([0, len(end), chance.randint(0, len(end))]) :]
        if end and chance.random() < 0.2:
            start = chance.randrange(len(end))
            end[start : start + 16] = bytes(len(end[start : start + 16]))
        return kept + bytes(end)
