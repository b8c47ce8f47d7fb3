"""Errors as a client sees them: `application/problem+json`, with the error's name and a hint.

An error of the request is reported in full. An error inside the hub is reported in general: its own message may contain
paths, and is for the operator's log.
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
    """An error response."""

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


_STATUS: dict[type[BaseException], int] = {
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
"""Errors that the request caused: reported with the error's own message."""


def problem_of(error: BaseException) -> Problem:
    """The response to an exception."""
    if isinstance(error, Refusal):
        return error.problem
    if isinstance(error, Disagreement):
        found = problem_of(error.error)
        return Problem(found.name, found.status, found.detail, found.hint, ledger=error.state.content(error.version))
    status = _STATUS.get(type(error))
    if isinstance(error, FloodmarkError) and status is not None:
        if isinstance(error, UnknownDataset):  # its own message names other datasets, which this client may not know
            return Problem("UnknownDataset", 404, "There is no such dataset here.", "Declare it at the hub first.")
        return Problem(type(error).__name__, status, error.message, error.hint)
    return _trouble(error)


def _trouble(error: BaseException) -> Problem:
    """Errors of authorisation, and errors that the request did not cause."""
    match error:
        case Unauthorised():
            found = Problem(
                "Unauthorised",
                401,
                "This hub requires a token, but the request has no valid one.",
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
