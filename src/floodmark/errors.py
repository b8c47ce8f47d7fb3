"""Everything Floodmark raises on purpose.

The families say what the caller does next, because that is the one thing a caller must know:

| family           | what happened                                    | what to do                          |
|------------------|--------------------------------------------------|-------------------------------------|
| `Retryable`      | nothing moved; the cause may pass                | call again later                    |
| `OutcomeUnknown` | it may or may not have happened                  | look, or repeat with the same key   |
| `Permanent`      | nothing moved; the same call fails again         | change the call                     |
| `Corrupt`        | stored state contradicts itself                  | stop; keep the store as it is       |

A message says what failed and which thing; `hint` says what to do. The command line prints them as
`Error:` and `Try:`.
"""

from __future__ import annotations

MESSAGE_CHARACTERS_MAX = 2000


def shown(text: str) -> str:
    """A message on one line, of bounded length, that any terminal shows and none obeys, whatever was put into it."""
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
    """Nothing moved, and the cause may pass: call again later."""


class OutcomeUnknown(FloodmarkError):
    """It may or may not have happened: look before you repeat it."""


class Permanent(FloodmarkError):
    """Nothing moved, and the same call will fail again."""


class Corrupt(FloodmarkError):
    """Stored state contradicts itself. Nothing goes on until it is looked at."""


class FilesMissing(Corrupt):
    """A table refers to files that are not there, or not whole."""


class CommitConflict(Retryable):
    """Another writer appended first; the rows are safe in the spool and go with the next flush."""


class SpoolFull(Retryable):
    """The spool's backlog is at its configured limit; nothing of this call was stored."""


class ProviderFailed(Retryable):
    """A provider did not load, plan or read; what it gave before is kept, and the next run goes on behind it."""


class InvalidCursor(Permanent):
    """A cursor that is malformed, from another store or dataset, from the future, or ahead of the data."""


class SchemaConflict(Permanent):
    """The rows do not fit the dataset, and no additive change would make them fit."""


class InvalidName(Permanent):
    """A dataset, column or sink name that cannot be used."""


class InvalidSetting(Permanent):
    """A setting that is unknown, of the wrong kind or out of range."""


class UnserialisableValue(Permanent):
    """A value that no column type can hold."""


class UnknownDataset(Permanent):
    """No dataset of that name in this store."""


class DatasetExists(Permanent):
    """A dataset of that name exists already, declared differently."""


class UnknownSink(Permanent):
    """No sink of that name in this store."""


class UnknownProvider(Permanent):
    """No provider of that name here."""


class UnknownQuarantineEntry(Permanent):
    """No quarantine entry of that id in this store."""


class StoreExists(Permanent):
    """There is a store at that place already."""


class StoreMissing(Permanent):
    """There is no store at that place."""


class StoreReadOnly(Permanent):
    """The store can be looked at, but not be written to by this process."""


class StoreTooNew(Permanent):
    """The store was written by a newer version of Floodmark."""


class EnvironmentProblem(Permanent):
    """Something this machine must have is missing or of the wrong version."""


class LedgerBehind(Permanent):
    """The hub's ledger ends before the chunk begins: accepting it would leave a hole."""


class DivergedHistory(Permanent):
    """Two histories carry the same sequence numbers with different rows."""


class LedgerAhead(Permanent):
    """The hub's ledger ends inside the chunk: part of its rows may be there already."""


class Loop(Permanent):
    """The rows have passed through this store before: taking them again would send them round for ever."""


class KeyReused(Permanent):
    """An idempotency key that was used before, for other rows."""


class UnknownToken(Permanent):
    """No token of that name in this store."""


class TokenExists(Permanent):
    """A token of that name exists already, in use or revoked."""


class QuarantineFull(Permanent):
    """Rows do not fit, and quarantine takes no more of them. Nothing was stored."""


class MalformedChunk(Permanent):
    """A chunk of rows that is torn, or not what its header says."""


class TooLarge(Permanent):
    """A request with more bytes than the hub takes at once."""


class VersionConflict(Permanent):
    """A stream is not at the version the writer expected."""

    def __init__(
        self, message: str, *, hint: str | None = None, stream: str = "", expected: int = 0, actual: int = 0
    ) -> None:
        super().__init__(message, hint=hint)
        self.stream = stream
        self.expected = expected
        self.actual = actual


class ReplicaIdentityConflict(Permanent):
    """Two concurrent transactions carry one replica identity that no single writer could have made."""

    def __init__(self, message: str, *, hint: str | None = None, transactions: tuple[str, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.transactions = transactions


class LogLocked(Retryable):
    """Another process is writing the event log."""


class LogClosed(Permanent):
    """The event log's handle was closed."""


class LogMissing(Permanent):
    """There is no event log at that place."""


class LogReadOnly(Permanent):
    """The event log was opened for reading only."""


class ProjectionStopped(Permanent):
    """A projection refused an event, and was told to stop rather than to set it aside."""


class NotLeader(Retryable):
    """Another process runs the projection."""


def reason_of(error: BaseException) -> str:
    """Another library's error in one line. Of a Java stack, the innermost cause: that is what went wrong."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    told = [line for line in lines if not line.startswith("An error occurred while calling")]
    found = (causes[-1:] or told[:1] or [type(error).__name__])[0]
    return found.removeprefix(": ").rstrip(".")[:300]
