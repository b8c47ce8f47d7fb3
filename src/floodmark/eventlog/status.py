"""The status report of a log. A problem is reported and never raised."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from floodmark.eventlog import git
from floodmark.eventlog.forks import Fork, IdentityConflict, StreamFork, find_forks, identity_conflicts
from floodmark.eventlog.ingestion import IngestionLog
from floodmark.eventlog.view import IntegrityFailure, View


@dataclass(frozen=True, slots=True)
class OpenFork:
    """An open fork, and why it is open."""

    parts: tuple[StreamFork, ...]
    reason: str


@dataclass(frozen=True, slots=True)
class Dangling:
    """A transaction whose parents are not all here. It is readable; its place in the order may change."""

    transaction: str
    missing_parents: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Status:
    """The status of a log."""

    transactions: int
    events: int
    streams: int
    heads: tuple[str, ...]
    topology_generation: int
    replica_id: str | None
    log_identity: str
    last_seq: int
    not_ingested: int
    forks: tuple[OpenFork, ...]
    dangling: tuple[Dangling, ...]
    integrity_failures: tuple[IntegrityFailure, ...]
    identity_conflicts: tuple[IdentityConflict, ...]
    notices: tuple[str, ...]

    @property
    def is_clean(self) -> bool:
        return not (self.forks or self.dangling or self.integrity_failures or self.identity_conflicts)

    def as_dict(self) -> dict[str, Any]:
        return {"is_clean": self.is_clean, **asdict(self)}


def fork_key(parts: tuple[StreamFork, ...]) -> str:
    """The name under which a fork's refusal is remembered: another transaction joining makes it another fork."""
    return ";".join(f"{part.stream}@{part.base_version}:{','.join(part.transactions)}" for part in parts)


def make_status(
    root: Path, view: View, ingestion: IngestionLog, *, replica: str | None, refusals: dict[str, str]
) -> Status:
    history = view.history
    units = find_forks(history)
    return Status(
        transactions=len(history),
        events=len(history.event_ids()),
        streams=len(history.streams()),
        heads=history.heads,
        topology_generation=history.graph.merges,
        replica_id=replica,
        log_identity=ingestion.identity,
        last_seq=ingestion.last,
        not_ingested=sum(ingestion.seq(event_id) is None for event_id in history.event_ids()),
        forks=tuple(OpenFork(unit, refusals.get(fork_key(unit), "not decided yet")) for unit in units),
        dangling=tuple(Dangling(t, missing) for t, missing in sorted(history.graph.dangling().items())),
        integrity_failures=tuple(view.failures()),
        identity_conflicts=tuple(identity_conflicts(history)),
        notices=tuple(_notices(root, view, ingestion)),
    )


def _notices(root: Path, view: View, ingestion: IngestionLog) -> list[str]:
    notices = []
    converted = view.converted()
    if converted:
        notices.append(
            f"{len(converted)} transaction files have CRLF line endings. They are still read correctly; "
            "`floodmark log init` restores them."
        )
    if (root / ".git").exists() and not git.keeps_bytes(root):
        notices.append(
            f".gitattributes does not contain `{git.ATTRIBUTE}`: a checkout with core.autocrlf would convert "
            "line endings. Run `floodmark log init`."
        )
    if ingestion.repaired is not None:
        notices.append(f"The ingestion log was repaired on opening: {ingestion.repaired}.")
    return notices


def with_reason(fork: Fork, refusals: dict[str, str]) -> Fork:
    return Fork(fork.parts, fork.branches, fork.later, refusals.get(fork_key(fork.parts), "not decided yet"))
