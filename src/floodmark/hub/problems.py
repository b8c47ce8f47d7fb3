"""Errors as a client sees them: `application/problem+json`, with the error's own name and the way out.

What a request did wrong is said in full. What is wrong inside the hub is said in general: its own words may hold paths,
and are for its operator's log.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from floodmark.errors import (
    Corrupt,
    DivergedHistory,
    FloodmarkError,
    InvalidName,
    KeyReused,
    LedgerAhead,
    LedgerBehind,
    Loop,
    MalformedChunk,
    OutcomeUnknown,
    QuarantineFull,
    Retryable,
    SchemaConflict,
    SpoolFull,
    TooLarge,
    UnknownDataset,
    UnserialisableValue,
)
from floodmark.hub.access import Forbidden, Unauthorised
from floodmark.hub.decision import Disagreement

MEDIA_TYPE = "application/problem+json"
RETRY_SECONDS = 5
SPOOL_RETRY_SECONDS = 30


@dataclass(frozen=True, slots=True)
class Problem:
    """An answer that is not a success."""

    name: str
    status: int
    detail: str
    hint: str | None = None
    ledger: dict[str, Any] | None = None
    headers: dict[str, str] = field(default_factory=dict)

    def content(self) -> dict[str, Any]:
        found: dict[str, Any] = {
            "type": f"urn:floodmark:problem:{self.name}",
            "title": self.name,
            "status": self.status,
            "detail": self.detail,
        }
        if self.hint:
            found["hint"] = self.hint
        if self.ledger is not None:
            found["ledger"] = self.ledger
        return found


class Refusal(Exception):
    """A problem found while the request was read."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.detail)
        self.problem = problem


_STATUS: dict[type[FloodmarkError], int] = {
    MalformedChunk: 400,
    TooLarge: 413,
    UnknownDataset: 404,
    SchemaConflict: 422,
    InvalidName: 422,
    UnserialisableValue: 422,
    KeyReused: 422,
    QuarantineFull: 422,
    LedgerBehind: 409,
    LedgerAhead: 409,
    DivergedHistory: 409,
    Loop: 409,
}
"""What a request is to blame for: told in the error's own words."""


def problem_of(error: BaseException) -> Problem:
    """The answer for anything that was raised."""
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, Disagreement):
        told = problem_of(error.error)
        return Problem(told.name, told.status, told.detail, told.hint, ledger=error.state.content(error.version))
    status = _STATUS.get(type(error))  # type: ignore[arg-type]
    if isinstance(error, FloodmarkError) and status is not None:
        if isinstance(error, UnknownDataset):  # its own words name the others, which this client may not know
            return Problem("UnknownDataset", 404, "There is no such dataset here.", "Declare it at the hub first.")
        return Problem(type(error).__name__, status, error.message, error.hint)
    return _trouble(error)


def _trouble(error: BaseException) -> Problem:
    """What the request is not to blame for: who sent it, or the state of the hub."""
    match error:
        case Unauthorised():
            found = Problem(
                "Unauthorised",
                401,
                "This hub requires a token, and the request has none that it knows.",
                "Send `Authorization: Bearer …` with a token made by `floodmark token add`.",
                headers={"WWW-Authenticate": 'Bearer realm="floodmark"'},
            )
        case Forbidden():
            found = Problem("Forbidden", 403, str(error), "Use a token that allows it.")
        case SpoolFull():
            found = _later("SpoolFull", error.message, seconds=SPOOL_RETRY_SECONDS)
        case Retryable():
            found = _later("Busy", "The hub cannot store rows just now. Nothing was stored.", seconds=RETRY_SECONDS)
        case OutcomeUnknown():
            found = _later(
                "OutcomeUnknown",
                "The result of this request is unknown: its rows may or may not be stored.",
                seconds=RETRY_SECONDS,
                hint="A chunk, or a capture with an idempotency key, may be sent again: it is stored once.",
            )
        case Corrupt():
            found = Problem(
                "Corrupt", 500, "The hub's own records contradict each other.", "Its operator must check the store."
            )
        case _:
            found = Problem("Unexpected", 500, "An unexpected error occurred in the hub.", "Its log has the details.")
    return found


def _later(name: str, detail: str, *, seconds: int, hint: str = "Send the same request again later.") -> Problem:
    return Problem(name, 503, detail, hint, headers={"Retry-After": str(seconds)})
