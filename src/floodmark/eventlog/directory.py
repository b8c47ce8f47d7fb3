"""The directory of transaction files: scanning, reading, and the one way to write a file.

E9  A transaction is acknowledged after its content and its name are durable: staging file, fsync, rename,
    fsync of the directory. Before the rename nothing happened; after it nothing is undone.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Container
from pathlib import Path

from floodmark import faults
from floodmark.errors import OutcomeUnknown, Retryable
from floodmark.eventlog.identifiers import is_lower_uuid
from floodmark.eventlog.transactions import SUFFIX
from floodmark.files import make_directory, retryable_os_error

# Size, modification time, change time, inode: what changes when a file is written or replaced.
Signature = tuple[int, int, int, int]
# Inode and modification time of the directory: what changes when it is replaced, or a name added or removed.
Stamp = tuple[int, int]
UNKNOWN: Stamp = (-1, -1)
_GONE: Stamp = (0, 0)


class EventsDirectory:
    """`<root>/events` and the staging directory beside it."""

    def __init__(self, root: Path) -> None:
        self.path = root / "events"
        self._staging = root / "tmp"
        # Plain names: creating a Path costs as much as the system call.
        self._name = str(self.path)
        self._staging_name = str(self._staging)
        self._descriptor: int | None = None

    def create(self) -> None:
        make_directory(self.path)
        make_directory(self._staging)

    def clear_staging(self) -> None:
        """Remove the staging files of dead writers; only under the writer's lock."""
        for leftover in self._staging.glob(f"*{SUFFIX}.tmp"):
            leftover.unlink(missing_ok=True)

    def scan(self, known: Container[str] = ()) -> tuple[dict[str, Signature], list[str]]:
        """Every transaction file with its signature, and the `.jsonl` names that name no transaction.

        `known` transactions need not be recognised again.
        """
        # git may have removed and created the directory again: the old one must not be synced instead.
        self.close()
        found: dict[str, Signature] = {}
        strange: list[str] = []
        if not self.path.is_dir():
            return found, strange
        with os.scandir(self.path) as entries:
            for entry in entries:
                name = entry.name
                if not name.endswith(SUFFIX):
                    continue
                transaction_id = name[: -len(SUFFIX)]
                if transaction_id not in known and not (is_lower_uuid(transaction_id) and _is_file(entry)):
                    strange.append(name)
                    continue
                try:
                    status = entry.stat()
                except FileNotFoundError:
                    continue  # it was removed in between
                found[transaction_id] = (status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
        return found, strange

    def file(self, transaction_id: str) -> Path:
        return self.path / f"{transaction_id}{SUFFIX}"

    def read(self, transaction_id: str) -> bytes:
        with open(f"{self._name}/{transaction_id}{SUFFIX}", "rb") as file:  # noqa: PTH123 - half the time of a Path
            return file.read()

    def stamp(self) -> Stamp:
        """Of the directory that has the name now."""
        try:
            status = os.stat(self._name)  # noqa: PTH116 - in every append
        except FileNotFoundError:
            return _GONE
        return status.st_ino, status.st_mtime_ns

    def held_stamp(self) -> Stamp:
        """Of the directory that this process has open, which is cheaper to ask."""
        try:
            status = os.fstat(self._open())
        except FileNotFoundError:
            return _GONE
        return status.st_ino, status.st_mtime_ns

    def write(self, transaction_id: str, content: bytes, *, sync: bool) -> Signature:
        """Commit one transaction file."""
        staged = f"{self._staging_name}/{transaction_id}{SUFFIX}.tmp"
        try:
            descriptor = _write_file(staged, content, sync=sync)
        except OSError as error:
            raise _given_up(staged, error) from error
        try:
            faults.reach("eventlog.staged")
            try:
                os.rename(staged, f"{self._name}/{transaction_id}{SUFFIX}")  # noqa: PTH104 - a text for each event, not a Path
            except OSError as error:
                raise _given_up(staged, error) from error
            # After the rename, which changes it; of the open file, since by name it might be another by now.
            signature = _signature(os.fstat(descriptor))
        finally:
            os.close(descriptor)
        faults.reach("eventlog.renamed")
        if sync:
            try:
                self._sync_names()
            except OSError as error:
                raise OutcomeUnknown(
                    f"Transaction {transaction_id} is written, but its file name may not be durable: {error}.",
                    hint="Open the log again and check whether it exists before you append the same events again.",
                ) from error
        faults.reach("eventlog.committed")
        return signature

    def _sync_names(self) -> None:
        os.fsync(self._open())

    def _open(self) -> int:
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        return self._descriptor

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def _is_file(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_file()
    except OSError:  # a link to itself: not a regular file, so not a transaction
        return False


def _write_file(path: str, content: bytes, *, sync: bool) -> int:
    """Write a new file and leave it open."""
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
    try:
        written = os.write(descriptor, content)
        while written < len(content):
            written += os.write(descriptor, content[written:])
        if sync:
            os.fsync(descriptor)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _given_up(staged: str, error: OSError) -> Retryable:
    with contextlib.suppress(OSError):
        Path(staged).unlink()
    transaction_id = Path(staged).name.partition(".")[0]
    return retryable_os_error(error, doing=f"Writing transaction {transaction_id}")


def _signature(status: os.stat_result) -> Signature:
    return status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
