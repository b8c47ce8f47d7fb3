"""Where objects are stored: a directory, or a prefix of a bucket. An existing object is never replaced.

An object is created completely and durably, or not at all, and `create` returns whether it created it: of two processes
that create one key at the same time, exactly one succeeds. A blob sink needs nothing else.

Keys are parts joined by `/`, below the root of the place. Which place it is, a sink's settings say.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import unquote, urlsplit

from floodmark.delivery.credentials import Credential, check_credential, shown_url
from floodmark.delivery.outcomes import Busy
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent
from floodmark.files import make_directory, retryable_os_error, sync_directory

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = S3Store | GCSStore | AzureStore

Content = bytes | memoryview


class ObjectPlace(Protocol):
    """Stores objects. Can be pickled for another process; every failure is a `FloodmarkError`."""

    @property
    def where(self) -> str:
        """The place, for messages."""
        ...

    @property
    def remote(self) -> bool:
        """Whether a server creates the objects: it may ignore the precondition."""
        ...

    def create(self, key: str, content: Content) -> bool:
        """Create the object with its whole content, durably; false, without a change, if the key exists."""
        ...

    def read(self, key: str) -> bytes | None:
        """The object's content; None if there is none."""
        ...

    def list(self, prefix: str) -> Iterable[str]:
        """The names of the objects directly below a prefix, in no order."""
        ...

    def try_write(self) -> str | None:
        """Create an object and remove it again. Returns its key if it could not be removed; creating it raises."""
        ...


@dataclass(frozen=True, slots=True)
class Claim:
    """The object that names the owner of a place. It also proves that the place never replaces objects."""

    key: str
    content: bytes

    def proves(self, place: ObjectPlace) -> bool:
        """Create it again. A server that reports success twice in a row replaces objects.

        Once is not enough: the claim may have been removed. A replaced claim has the same content.
        """
        return not (place.create(self.key, self.content) and place.create(self.key, self.content))


@dataclass(frozen=True, slots=True)
class LocalObjects:
    """Objects are files below a directory, which is created when needed."""

    directory: Path
    remote: bool = field(default=False, init=False)

    @property
    def where(self) -> str:
        return str(self.directory)

    def create(self, key: str, content: Content) -> bool:
        path = self.directory / key
        try:
            make_directory(path.parent)
            return create_file(path, content)
        except OSError as error:
            raise _error_of(error, doing=f"Writing {path}") from error

    def read(self, key: str) -> bytes | None:
        path = self.directory / key
        try:
            return path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise _error_of(error, doing=f"Reading {path}") from error

    def list(self, prefix: str) -> Iterable[str]:
        folder = self.directory / prefix
        try:
            with os.scandir(folder) as entries:
                # A name that begins with a dot is an object that is being written, or whose writer crashed.
                return [entry.name for entry in entries if not entry.name.startswith(".") and entry.is_file()]
        except FileNotFoundError:
            return []
        except OSError as error:
            raise _error_of(error, doing=f"Listing {folder}") from error

    def try_write(self) -> str | None:
        there = next(path for path in (self.directory, *self.directory.parents) if path.exists())
        path = there / f".floodmark-probe.{secrets.token_hex(8)}"
        try:
            create_file(path, b"")
            path.unlink()
        except OSError as error:
            raise _error_of(error, doing=f"Writing to {there}") from error
        return None


def create_file(path: Path, content: Content) -> bool:
    """Create a file with its whole content, durably; false if the name exists. Never replaces a file."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
    try:
        with os.fdopen(descriptor, "wb", buffering=0) as file:
            left = memoryview(content)
            while left:
                left = left[file.write(left) :]
            os.fsync(file.fileno())
        os.link(temporary, path)
    except FileExistsError:
        return False
    else:
        return True
    finally:
        with contextlib.suppress(FileNotFoundError):
            temporary.unlink()
        # Also if the name existed: its writer may have crashed before this, and the file must be durable from now on.
        sync_directory(path.parent)


_HINTS = {
    errno.EACCES: "Give this process permission to read and write there, then export again.",
    errno.EPERM: "Give this process permission to read and write there, then export again.",
    errno.EROFS: "Mount it for writing, or deliver to another directory.",
    errno.ENOTDIR: "A part of the path is a file: correct the sink's url, or move the file away.",
    errno.EISDIR: "A directory has the object's name: move it away, then export again.",
    errno.ENAMETOOLONG: "The partition's values are too long for file names: deliver to an object store.",
}


def _error_of(error: OSError, *, doing: str) -> FloodmarkError:
    """Errors that need a user block the sink; others are retried."""
    hint = _HINTS.get(error.errno or 0)
    if hint is None:
        return retryable_os_error(error, doing=doing)
    return Permanent(f"{doing} failed: {error.strerror}.", hint=hint)


# ── a bucket ─────────────────────────────────────────────────────────────────────────────────────────────────────────
# S3 and compatible stores, Google Cloud Storage, Azure. An object is created with the store's own precondition (such as
# `If-None-Match: *`), so that one of two exporters wins, and a retry after a lost response finds its own object.
#
# Every request is bounded: connecting, responding and retrying have limits. An error of a store is reported in one
# sentence with a hint. Its own message is not shown: it can contain keys, signatures and addresses with tokens.


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

    def try_write(self) -> str | None:
        import obstore
        from obstore.exceptions import BaseError

        key = f"_floodmark_probe.{secrets.token_hex(8)}"
        self.create(key, b"")
        try:
            obstore.delete(_connected(self), key)
        except (BaseError, OSError, ValueError):  # a sink needs no right to remove objects
            return key
        return None


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


# ── the place in a sink's settings ───────────────────────────────────────────────────────────────────────────────────
# Its url, its connection options and its credentials.
#
# | url                       | further settings                                                              |
# |---------------------------|-------------------------------------------------------------------------------|
# | `file:///directory`       |                                                                               |
# | `s3://bucket/prefix`      | region, endpoint; access_key_id, secret_access_key, session_token             |
# | `gs://bucket/prefix`      | endpoint; service_account, bearer_token                                       |
# | `az://container/prefix`   | account, endpoint; account_key, sas_token, bearer_token                       |
#
# Other settings come from the provider's environment variables (`AWS_…`, `GOOGLE_…`, `AZURE_…`) or from the identity of
# the machine that writes the objects.


# Each of our settings, and its name in the client library.
_OPTIONS: dict[str, dict[str, str]] = {
    "file": {},
    "s3": {"region": "region", "endpoint": "endpoint"},
    "gs": {"endpoint": "base_url"},
    "az": {"endpoint": "endpoint", "account": "account_name"},
}
_CREDENTIALS: dict[str, dict[str, str]] = {
    "file": {},
    "s3": {
        "access_key_id": "access_key_id",
        "secret_access_key": "secret_access_key",
        "session_token": "session_token",
    },
    "gs": {"service_account": "service_account_key", "bearer_token": "bearer_token"},
    "az": {"account_key": "account_key", "sas_token": "sas_key", "bearer_token": "token"},
}

OPTIONS = tuple(dict.fromkeys(name for names in _OPTIONS.values() for name in names))
SECRET = frozenset(name for names in _CREDENTIALS.values() for name in names)

_BUCKET = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{1,221}")
_URLS = "Use file:///absolute/path, s3://bucket/prefix, gs://bucket/prefix or az://container/prefix."


def check_place(settings: dict[str, Any]) -> None:
    """`InvalidSetting` for an invalid place; its url is converted to its canonical form."""
    settings["url"] = _canonical(settings["url"])
    scheme = settings["url"].partition(":")[0]
    allowed = {**_OPTIONS[scheme], **_CREDENTIALS[scheme]}
    for name in (*OPTIONS, *sorted(SECRET)):
        value = settings[name]
        if value is None:
            continue
        if name not in allowed:
            others = ", ".join(allowed) or "none"
            raise InvalidSetting(f"{name} is not a setting of {scheme}:// places.", hint=f"Their settings: {others}.")
        if name == "service_account":
            _check_reference(name, value)
        elif name in SECRET:
            check_credential(name, value)
        else:
            _check_option(name, value)


def place_of(settings: Mapping[str, Any]) -> ObjectPlace:
    """The place, with its present credentials."""
    scheme, _, rest = settings["url"].partition("://")
    if scheme == "file":
        return LocalObjects(Path(unquote(rest)))
    bucket, _, prefix = rest.partition("/")
    options = {theirs: settings.get(ours) for ours, theirs in _OPTIONS[scheme].items()}
    sources = {theirs: (ours, settings.get(ours)) for ours, theirs in _CREDENTIALS[scheme].items()}
    return RemoteObjects(
        scheme,
        bucket,
        prefix,
        tuple((theirs, str(value)) for theirs, value in options.items() if value is not None),
        tuple((theirs, _secret(ours, source)) for theirs, (ours, source) in sources.items() if source is not None),
    )


def _canonical(url: Any) -> str:
    if not isinstance(url, str):
        raise InvalidSetting(f"The url is a {type(url).__name__}.", hint=_URLS)
    try:
        parts = urlsplit(url if unquote(url).isprintable() else "")
    except ValueError:
        parts = urlsplit("")
    if "@" in parts.netloc or parts.query or parts.fragment:
        # Not shown: it may contain a password or a signature.
        raise InvalidSetting(
            "The url of a sink must not contain credentials, a query or a fragment.",
            hint=f"{_URLS} Credentials are settings.",
        )
    if parts.scheme == "file" and not parts.netloc and parts.path.startswith("/"):
        return url
    if parts.scheme in _OPTIONS and parts.scheme != "file" and _BUCKET.fullmatch(parts.netloc):
        prefix = "/".join(part for part in parts.path.split("/") if part)
        if not {".", ".."} & set(prefix.split("/")):
            return f"{parts.scheme}://{parts.netloc}" + (f"/{prefix}" if prefix else "")
    raise InvalidSetting(f"The url {shown_url(url)} cannot be delivered to.", hint=_URLS)


def _check_option(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value:
        raise InvalidSetting(f"{name} is {value!r}.", hint="It must be a text.")
    if name == "endpoint":
        if "@" in value or "?" in value or "#" in value:  # anywhere in it: a password may contain a slash
            raise InvalidSetting(
                "The endpoint must not contain credentials, a query or a fragment.", hint="Credentials are settings."
            )
        try:
            parts = urlsplit(value)
            _ = parts.port  # an invalid port is detected only here
        except ValueError:
            parts = urlsplit("")
        if parts.scheme not in {"http", "https"} or not parts.hostname:
            raise InvalidSetting(
                f"The endpoint {shown_url(value)} is not an address.", hint="Write https://host or http://host:port."
            )


# ── credentials ──────────────────────────────────────────────────────────────────────────────────────────────────────


def _secret(name: str, source: str) -> str:
    return _account_key(source) if name == "service_account" else Credential(source).text()


def _check_reference(name: str, value: Any) -> None:
    if not isinstance(value, str) or not value.startswith(("env:", "file:", "{")):
        raise InvalidSetting(
            f"{name} is neither a reference nor a key.",
            hint="Write file:/path/of/key.json, env:NAME, or the key's JSON.",
        )
    if not value.startswith("{"):
        check_credential(name, value)


def _account_key(source: str) -> str:
    """A service account's key is a JSON document of many lines, not a word that a header could contain."""
    kind, _, rest = source.partition(":")
    try:
        text = source
        if kind == "env":
            text = os.environ[rest]
        elif kind == "file":
            text = Path(unquote(rest.removeprefix("//")) if rest.startswith("//") else rest).read_text(encoding="utf-8")
        if not isinstance(json.loads(text), dict):
            raise ValueError("not an object")  # noqa: TRY004 - one error for everything that is not a key
    except (KeyError, OSError, ValueError):
        shown = source if kind in {"env", "file"} else "in the settings"
        raise Permanent(
            f"The service account's key {shown} is missing or is not a JSON document.",
            hint="Put the downloaded key there; the next export reads it again.",
        ) from None
    return text
