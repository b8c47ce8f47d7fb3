"""Everything Floodmark raises on purpose.

The family of an error says what the caller must do next:

| family           | what happened                                    | what to do                          |
|------------------|--------------------------------------------------|-------------------------------------|
| `Retryable`      | nothing was changed; the cause may be temporary  | call again later                    |
| `OutcomeUnknown` | the call may or may not have taken effect        | check, or repeat with the same key  |
| `Permanent`      | nothing was changed; the same call fails again   | change the call                     |
| `Corrupt`        | stored state contradicts itself                  | stop; do not change the store       |

A message says what failed and which thing; `hint` says what to do. The command line prints them as
`Error:` and `Try:`.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 2000


def shown(text: str) -> str:
    """A message on one line, of limited length, without characters that control a terminal."""
    if len(text) > MESSAGE_CHARACTERS_MAX:
        text = f"{text[: MESSAGE_CHARACTERS_MAX - 1]}…"
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else " " if c.isspace() else repr(c)[1:-1] for c in text)


class FloodmarkError(Exception):
    """The base of every error that Floodmark raises on purpose."""

    def __init__(self, message: str, *, hint: str | None = None) -> None:
        self.message = shown(message)
        self.hint = None if hint is None else shown(hint)
        super().__init__(self.message)

    def __str__(self) -> str:
        return self.message if self.hint is None else f"{self.message} {self.hint}"


class Retryable(FloodmarkError):
    """Nothing was changed, and the cause may be temporary: call again later."""


class OutcomeUnknown(FloodmarkError):
    """The call may or may not have taken effect: check before you repeat it."""


class Permanent(FloodmarkError):
    """Nothing was changed, and the same call will fail again."""


class Corrupt(FloodmarkError):
    """Stored state contradicts itself. Work on it stops until it is repaired."""


class FilesMissing(Corrupt):
    """A table refers to files that are missing or incomplete."""


class CommitConflict(Retryable):
    """Another writer committed first; the rows are safe in the spool, and the next flush commits them."""


class Paused(Retryable):
    """The dataset or sink is paused: nothing of it is committed or delivered until it is resumed."""


class SpoolFull(Retryable):
    """The spool has reached its configured limit; no row of this call was stored."""


class ProviderFailed(Retryable):
    """A provider failed to load, plan or read; its earlier rows are kept, and the next run continues after them."""


class InvalidCursor(Permanent):
    """A cursor that is malformed, from another store or dataset, from the future, or ahead of the data."""


class SchemaConflict(Permanent):
    """The rows do not fit the dataset, and no additive change would make them fit."""


class SchemaChanged(Retryable):
    """The type of a column was corrected while rows were fitted to the old one. Nothing was stored; send them again."""


class InvalidName(Permanent):
    """A dataset, column or sink name that is not valid."""


class InvalidSetting(Permanent):
    """A setting that is unknown, of the wrong kind or out of range."""


class UnserialisableValue(Permanent):
    """A value that no column type can store."""


class UnknownDataset(Permanent):
    """No dataset of that name in this store."""


class DatasetExists(Permanent):
    """A dataset of that name already exists with another declaration."""


class UnknownSink(Permanent):
    """No sink of that name in this store."""


class UnknownProvider(Permanent):
    """No provider of that name."""


class UnknownQuarantineEntry(Permanent):
    """No quarantine entry of that id in this store."""


class StoreExists(Permanent):
    """A store already exists in that directory."""


class StoreMissing(Permanent):
    """There is no store in that directory."""


class StoreReadOnly(Permanent):
    """The store is read-only for this process."""


class StoreTooNew(Permanent):
    """The store was written by a newer version of Floodmark."""


class EnvironmentProblem(Permanent):
    """A program or file that Floodmark needs is missing on this machine, or has the wrong version."""


class LedgerBehind(Permanent):
    """The hub's ledger ends before the chunk begins: accepting the chunk would leave a gap."""


class DivergedHistory(Permanent):
    """Two histories have the same sequence numbers with different rows."""


class LedgerAhead(Permanent):
    """The hub's ledger ends inside the chunk: the hub may already have some of its rows."""


class Loop(Permanent):
    """The rows have already passed through this store: accepting them again would create a loop."""


class KeyReused(Permanent):
    """An idempotency key that was already used for other rows."""


class UnknownToken(Permanent):
    """No token of that name in this store."""


class TokenExists(Permanent):
    """A token of that name already exists, active or revoked."""


class QuarantineFull(Permanent):
    """Rows do not fit, and the quarantine has reached its limit. Nothing was stored."""


class MalformedChunk(Permanent):
    """A chunk that is incomplete, or does not match its header."""


class TooLarge(Permanent):
    """A request that exceeds a limit of the hub."""


class VersionConflict(Permanent):
    """A stream does not have the version that the writer expected."""

    def __init__(
        self, message: str, *, hint: str | None = None, stream: str = "", expected: int = 0, actual: int = 0
    ) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream
        self.expected = expected
        self.actual = actual


class ReplicaIdentityConflict(Permanent):
    """Two concurrent transactions have the same replica identity: two writers share it."""

    def __init__(self, message: str, *, hint: str | None = None, transactions: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.transactions = transactions


class LogLocked(Retryable):
    """Another process is writing to the event log."""


class LogClosed(Permanent):
    """The event log's handle was closed."""


class LogMissing(Permanent):
    """There is no event log in that directory."""


class LogReadOnly(Permanent):
    """The event log was opened for reading only."""


class ProjectionStopped(Permanent):
    """A projection refused an event, and its on_poison setting is `stop`."""


class NotLeader(Retryable):
    """Another process is running the projection."""


def reason_of(error: BaseException) -> str:
    """Another library's error in one line. For a Java stack trace, the innermost cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    other = [line for line in lines if not line.startswith("An error occurred while calling")]
    found = (causes[-1:] or other[:1] or [type(error).__name__])[0]
    return found.removeprefix(": ").rstrip(".")[:300]
