"""A full check: every file is read again, and everything derived is derived again and compared."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floodmark.eventlog import git
from floodmark.eventlog.directory import EventsDirectory
from floodmark.eventlog.forks import identity_conflicts
from floodmark.eventlog.history import History
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.transactions import SUFFIX, InvalidTransaction, Transaction, parse
from floodmark.eventlog.view import View


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem, its file, and what to do. `error` is False for a note."""

    file: str
    reason: str
    hint: str
    error: bool = True


@dataclass(frozen=True, slots=True)
class FsckReport:
    """The result of a full check."""

    transactions: int
    events: int
    problems: tuple[Problem, ...]

    @property
    def ok(self) -> bool:
        return not any(problem.error for problem in self.problems)

    def as_dict(self) -> dict[str, Any]:
        return {"ok": self.ok, **asdict(self)}


_RESTORE = "Restore it from another clone or from git (`git checkout -- events`)."


def check(root: Path, directory: EventsDirectory, view: View, ingestion: IngestionLog) -> FsckReport:
    problems: list[Problem] = []
    transactions = _read_all(directory, problems)
    history = History.of(transactions)
    own_ancestor = "it is its own ancestor: the parents form a cycle"
    problems += [
        Problem(_name(t), own_ancestor, "Remove it: Floodmark never writes such a file.")
        for t in sorted(history.cyclic)
    ]
    for transaction_id, missing in sorted(history.graph.dangling().items()):
        reason = f"its parents {', '.join(missing)} are missing"
        problems.append(Problem(_name(transaction_id), reason, "Merge the branch that contains them.", error=False))
    problems += _repeated_events(history)
    for conflict in identity_conflicts(history):
        one, other = conflict.transactions
        reason = f"replica {conflict.replica} wrote it and also {other}, and neither is an ancestor of the other"
        hint = "Two writers share one identity: run `floodmark log init --new-identity` in one of them."
        problems.append(Problem(_name(one), reason, hint))
    problems += _compare_with_memory(history, view, ingestion)
    if (root / ".git").exists() and not git.keeps_bytes(root):
        reason = f"it does not contain `{git.ATTRIBUTE}`"
        problems.append(Problem(".gitattributes", reason, "Run `floodmark log init`.", error=False))
    return FsckReport(len(history), len(history.event_ids()), tuple(problems))


def _read_all(directory: EventsDirectory, problems: list[Problem]) -> list[Transaction]:
    found, strange = directory.scan()
    transactions: list[Transaction] = []
    unnamed = "its name is not a transaction id"
    problems += [Problem(f"events/{name}", unnamed, "Move it out of the directory.") for name in sorted(strange)]
    for transaction_id in sorted(found):
        try:
            transaction, _ = parse(directory.read(transaction_id), name=transaction_id)
        except FileNotFoundError:
            continue
        except (InvalidTransaction, OSError) as error:
            problems.append(Problem(_name(transaction_id), str(error), _RESTORE))
            continue
        if transaction.converted:
            reason = "its line endings were converted to CRLF; it is still read correctly"
            hint = "Run `floodmark log init`: it restores them."
            problems.append(Problem(_name(transaction_id), reason, hint, error=False))
        transactions.append(transaction)
    return transactions


def _repeated_events(history: History) -> list[Problem]:
    problems = []
    for transaction, ordinal, event in history.event_keys():
        place = history.place(event.event_id)
        if place != (transaction.id, ordinal):
            reason = f"event {event.event_id} is also in {place[0] if place else 'no'} other transaction"
            problems.append(Problem(_name(transaction.id), reason, "Remove the duplicate file."))
    return problems


def _compare_with_memory(history: History, view: View, ingestion: IngestionLog) -> list[Problem]:
    problems = []
    # Files that arrived after this log was opened are not a problem.
    known = set(view.history.order)
    if [t for t in history.order if t in known] != [t for t in view.history.order if t in history]:
        reason = "the order in memory is not the order of the files"
        problems.append(Problem("index/transactions.index", reason, "Delete index/transactions.index and open again."))
    if ingestion.repaired is not None:
        problems.append(Problem("index/ingestion.log", ingestion.repaired, "Nothing to do.", error=False))
    return problems


def _name(transaction_id: str) -> str:
    return f"events/{transaction_id}{SUFFIX}"
