"""What object stores answer when they refuse, in our words: one sentence, and what to do. Pure.

The store's own words stay behind: they can hold keys, signatures, and addresses with tokens in them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from floodmark.delivery.outcomes import Busy
from floodmark.errors import FloodmarkError, Permanent


@dataclass(frozen=True, slots=True)
class Answer:
    """What some of a store's error codes mean. The texts may name `where`, `bucket`, `kind` (of it) and `code`."""

    codes: frozenset[str]
    message: str
    hint: str


_ANSWERS = (
    Answer(
        frozenset(
            [
                "InvalidAccessKeyId",
                "SignatureDoesNotMatch",
                "InvalidToken",
                "ExpiredToken",
                "TokenRefreshRequired",
                "AuthenticationFailed",
                "InvalidAuthenticationInfo",
                "NoAuthenticationInformation",
                "AuthenticationRequired",
                "AuthFailure",
                "InvalidSecurity",
                "MissingSecurityHeader",
                "401",
            ]
        ),
        "{where} does not accept the credentials: {code}.",
        "Correct them in the sink's settings or in the environment; they may have expired.",
    ),
    Answer(
        frozenset({"NoSuchBucket", "ContainerNotFound", "ContainerBeingDeleted", "InvalidBucketName", "404"}),
        "There is no {kind} {bucket!r} for {where}.",
        "Create it, or correct the url, endpoint or account of the sink.",
    ),
    Answer(
        frozenset({"RequestTimeTooSkewed"}),
        "{where} refuses requests because this machine's clock is wrong.",
        "Set the clock, then export again.",
    ),
    Answer(
        frozenset({"KeyTooLongError", "InvalidUri"}),
        "A partition's values are too long for the name of an object at {where}.",
        "Shorten the prefix, or partition by shorter values.",
    ),
    Answer(
        frozenset({"NotImplemented", "501"}),
        "{where} cannot create an object only if it is absent, and without that rows could be overwritten.",
        "Use a store, or a newer version of it, that knows conditional writes (If-None-Match).",
    ),
    Answer(
        frozenset({"403"}),
        "Access to {where} was denied.",
        "The credentials need the rights to read, list and create objects there.",
    ),
)
_OTHER_REGION = frozenset(
    [
        "PermanentRedirect",
        "TemporaryRedirect",
        "Redirect",
        "AuthorizationHeaderMalformed",
        "IllegalLocationConstraintException",
    ]
)
_THROTTLED = frozenset(
    [
        "SlowDown",
        "Throttling",
        "ThrottlingException",
        "TooManyRequests",
        "RequestLimitExceeded",
        "RateLimitExceeded",
        "ServerBusy",
    ]
)
_CODE = re.compile(r"<Code>\s*(\w+)\s*</Code>")
_STATUS = re.compile(r"status code: (\d{3})")
_REGION = re.compile(r"<Region>\s*([a-z0-9-]+)\s*</Region>")
# The addresses at which a cloud's machines ask who they are: where the sink has no credentials, these are asked last.
_IDENTITY_SERVICE = re.compile(
    r"://(169\.254\.\d+\.\d+|metadata\.google\.internal|[^/\s]*login\.microsoftonline\.com|[^/\s]+/latest/api/token)"
)


def told(error: BaseException, *, where: str, bucket: str) -> FloodmarkError:
    """A store's refusal in our words: what is wrong, and what to do about it."""
    text = str(error).partition("Debug source:")[0]
    found = _STATUS.search(text)
    code, status = code_of(error), found[1] if found else None
    if code in _OTHER_REGION or "configured region" in text:
        return _other_region(text, where=where, bucket=bucket)
    if _IDENTITY_SERVICE.search(text):
        return Permanent(
            f"There are no credentials for {where}: neither the sink nor the environment has any.",
            hint="Give them to the sink, or set the provider's environment variables.",
        )
    if code is None and status is None:
        return _unreachable(str(error), where=where)
    for said in (code, status):
        answer = next((item for item in _ANSWERS if said in item.codes), None)
        if answer is not None:
            names = {"where": where, "bucket": bucket, "kind": _kind(where), "code": code or status}
            return Permanent(answer.message.format(**names), hint=answer.hint.format(**names))
    return _by_chance(code, int(status or 0), where=where)


def code_of(error: BaseException) -> str | None:
    """The error code in the answer's XML; all three providers write it alike."""
    found = _CODE.search(str(error))
    return found[1] if found else None


def _by_chance(code: str | None, status: int, *, where: str) -> FloodmarkError:
    """What may pass, and what nobody has met yet."""
    said = f"{code} ({status})" if code else str(status)
    if code in _THROTTLED or status in {408, 429} or status >= 500:
        return Busy(f"{where} is busy: {said}.", hint="Nothing is lost; the next export goes on from here.")
    return Permanent(
        f"{where} refused the request: {said}.",
        hint="Look the answer up in the store's documentation, correct the cause, then export again.",
    )


def _other_region(text: str, *, where: str, bucket: str) -> FloodmarkError:
    region = _REGION.search(text)
    there = f"the region {region[1]!r}" if region else "another region than the sink says"
    return Permanent(
        f"The {_kind(where)} {bucket!r} is in {there}.",
        hint=f"Set region={region[1] if region else '…'} for the sink, or AWS_REGION in the environment.",
    )


def _unreachable(text: str, *, where: str) -> FloodmarkError:
    reason = "it did not answer in time" if "kind: Timeout" in text else "there is no connection"
    return Busy(f"{where} cannot be reached: {reason}.", hint="Check endpoint and network; nothing is lost.")


def _kind(where: str) -> str:
    return "container" if where.startswith("az:") else "bucket"
