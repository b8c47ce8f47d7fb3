"""Objects in a bucket: S3 and compatible stores, Google Cloud Storage, Azure.

An object is created with the store's own precondition (such as `If-None-Match: *`), so that one of two exporters wins,
and a retry after a lost response finds its own object.

Every request is bounded: connecting, responding and retrying have limits. An error of a store is reported in one
sentence with a hint. Its own message is not shown: it can contain keys, signatures and addresses with tokens.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from floodmark.delivery.outcomes import Busy
from floodmark.delivery.sinks.objects import Content
from floodmark.errors import FloodmarkError, Permanent

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = S3Store | GCSStore | AzureStore


# ── The errors of object stores as our messages: one sentence, and a hint ────────────────────────────────────────────
# The store's own message is not shown: it can contain keys, signatures, and addresses with tokens.


@dataclass(frozen=True, slots=True)
class Answer:
    """The message for some error codes of a store. The texts may name `where`, `bucket`, its `kind`, and `code`."""

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
        "Use an object store, or a newer version of it, that supports conditional writes (If-None-Match).",
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
# The addresses of the clouds' identity services: they are tried last if the sink has no credentials.
_IDENTITY_SERVICE = re.compile(
    r"://(169\.254\.\d+\.\d+|metadata\.google\.internal|[^/\s]*login\.microsoftonline\.com|[^/\s]+/latest/api/token)"
)


def error_of(error: BaseException, *, where: str, bucket: str) -> FloodmarkError:
    """The error of a store as one of ours, with a hint."""
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
    return _other_error(code, int(status or 0), where=where)


def code_of(error: BaseException) -> str | None:
    """The error code in the XML of the response; all three providers use the same element."""
    found = _CODE.search(str(error))
    return found[1] if found else None


def _other_error(code: str | None, status: int, *, where: str) -> FloodmarkError:
    """Temporary errors, and unknown ones."""
    said = f"{code} ({status})" if code else str(status)
    if code in _THROTTLED or status in {408, 429} or status >= 500:
        return Busy(f"{where} is busy: {said}.", hint="Nothing is lost; the next export continues from here.")
    return Permanent(
        f"{where} refused the request: {said}.",
        hint="Look up the response in the store's documentation, correct the cause, then export again.",
    )


def _other_region(text: str, *, where: str, bucket: str) -> FloodmarkError:
    region = _REGION.search(text)
    there = f"the region {region[1]!r}" if region else "another region than the sink's"
    return Permanent(
        f"The {_kind(where)} {bucket!r} is in {there}.",
        hint=f"Set region={region[1] if region else '…'} for the sink, or AWS_REGION in the environment.",
    )


def _unreachable(text: str, *, where: str) -> FloodmarkError:
    reason = "it did not answer in time" if "kind: Timeout" in text else "there is no connection"
    return Busy(f"{where} cannot be reached: {reason}.", hint="Check endpoint and network; nothing is lost.")


def _kind(where: str) -> str:
    return "container" if where.startswith("az:") else "bucket"


# ── Remote ───────────────────────────────────────────────────────────────────────────────────────────────────────────


SCHEMES = ("s3", "gs", "az")

CLIENT: dict[str, Any] = {"connect_timeout": "5s", "timeout": "5m", "user_agent": "floodmark"}
RETRIES: dict[str, Any] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Few and short, for transient errors. Longer waits are in the tick, where they can be interrupted."""


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """Objects below a prefix of a bucket (Azure: of a container)."""

    scheme: str
    bucket: str
    prefix: str
    options: tuple[tuple[str, str], ...] = ()
    """Region, endpoint, account: further settings of the store."""
    credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Never shown. If empty, the provider's environment variables and machine identity are used."""
    remote: bool = field(default=True, init=False)

    @property
    def where(self) -> str:
        return f"{self.scheme}://{self.bucket}" + (f"/{self.prefix}" if self.prefix else "")

    def create(self, key: str, content: Content) -> bool:
        import obstore
        from obstore.exceptions import AlreadyExistsError, BaseError

        try:
            obstore.put(_connected(self), key, memoryview(content).cast("B"), mode="create")
        except AlreadyExistsError:
            return False
        except (BaseError, OSError, ValueError) as error:
            raise error_of(
                error, where=self.where, bucket=self.bucket
            ) from None  # the cause has the store's own message
        return True

    def read(self, key: str) -> bytes | None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            return obstore.get(_connected(self), key).bytes().to_bytes()
        except FileNotFoundError as error:
            if code_of(error) in {None, "NoSuchKey", "BlobNotFound"}:
                return None
            raise error_of(error, where=self.where, bucket=self.bucket) from None
        except (BaseError, OSError, ValueError) as error:
            raise error_of(error, where=self.where, bucket=self.bucket) from None

    def list(self, prefix: str) -> Iterable[str]:
        import obstore
        from obstore.exceptions import BaseError

        below = f"{prefix}/"
        try:
            found = [
                meta["path"].removeprefix(below)
                for page in obstore.list(_connected(self), prefix, chunk_size=1000)
                for meta in page
                if meta["path"].startswith(below)
            ]
        except (BaseError, OSError, ValueError) as error:
            raise error_of(error, where=self.where, bucket=self.bucket) from None
        return [name for name in found if "/" not in name]


@lru_cache(maxsize=64)
def _connected(place: RemoteObjects) -> Store:
    """One client per place and process: it keeps connections open and refreshes expiring credentials."""
    from obstore.exceptions import BaseError
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    config = {**dict(place.options), **dict(place.credentials)}
    plain = any(value.startswith("http://") for _, value in place.options)
    try:
        store: Store = kinds[place.scheme](
            place.bucket,
            prefix=place.prefix or None,
            config=config,
            client_options={**CLIENT, "allow_http": plain},
            retry_config=RETRIES,
        )
    except (BaseError, OSError, ValueError):
        raise Permanent(
            f"{place.where} cannot be reached with the settings of this sink: they contradict each other, or one is"
            " missing.",
            hint="Check region, endpoint, account and credentials, in the sink and in the environment.",
        ) from None
    return store
