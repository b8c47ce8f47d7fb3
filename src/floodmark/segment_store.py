"""Where the files of segments are: in the store's directory, or in a bucket that every host of the store reaches.

A segment's file is named once, written once and never changed; `relative` is its name below the store's directory and
the key of its object. Whoever writes one writes it on this machine first and then stores it: on the disk that is a
sync, in a bucket the creation of an object that is not there yet. A copy that stays on this machine, or was fetched, is
only a copy: whether a segment exists is asked of the bucket.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from floodmark.config import CatalogSettings, Settings, secret
from floodmark.errors import Corrupt, Retryable
from floodmark.files import make_directory, sync_directory, sync_file

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

SEGMENTS = "segments"
_S3 = {
    "s3.endpoint": "endpoint",
    "s3.region": "region",
    "client.region": "region",
    "s3.access-key-id": "access_key_id",
    "s3.secret-access-key": "secret_access_key",
    "s3.session-token": "session_token",
}
"""The properties of a lake in S3 that its segments are reached with too, and what the client calls them."""
_CLIENT: dict[str, Any] = {"connect_timeout": "5s", "timeout": "5m", "user_agent": "floodmark"}
_RETRIES: dict[str, Any] = {
    "max_retries": 5,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}


class SegmentStore(Protocol):
    """The files of a store's segments."""

    def path(self, relative: str) -> Path:
        """A file on this machine with the segment's content; `FileNotFoundError` if there is no such segment."""

    def draft(self, relative: str) -> Path:
        """Where a new segment is written before it is stored. Its directory exists."""

    def store(self, relative: str) -> int:
        """Make the draft durable, where every host finds it; its size in bytes."""

    def discard(self, relative: str) -> None:
        """Forget a draft that could not be written."""

    def size(self, relative: str) -> int | None:
        """How many bytes the segment's file has; None if there is none."""

    def names(self, dataset: str) -> list[str]:
        """The names of all files among the segments of a dataset."""

    def copies(self, dataset: str) -> list[str]:
        """The names of what is here only as a copy."""

    def remove(self, relatives: Iterable[str]) -> None:
        """Remove files, durably. Those that are not there are not missed."""

    def settle(self, dataset: str) -> None:
        """Make removals last that were not made durable."""

    @property
    def bucket(self) -> Bucket | None:
        """Where tasks on other machines read the files; None if only this machine has them."""


def segment_store(root: Path, settings: Settings) -> SegmentStore:
    """As `spool.segments` says."""
    if not settings.spool.segments:
        return DirectorySegments(root)
    return BucketSegments(root, bucket_of(settings.spool.segments, settings.lake))


def folder(dataset: str) -> str:
    return f"spool/{dataset}/{SEGMENTS}"


# ── in the store's directory ─────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class DirectorySegments:
    """Files below the store's directory."""

    root: Path
    bucket: Bucket | None = field(default=None, init=False)

    def path(self, relative: str) -> Path:
        return self.root / relative

    def draft(self, relative: str) -> Path:
        return _draft(self.root, relative)

    def store(self, relative: str) -> int:
        path = self.root / relative
        sync_file(path)
        sync_directory(path.parent)
        return path.stat().st_size

    def discard(self, relative: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / relative).unlink(missing_ok=True)

    def size(self, relative: str) -> int | None:
        try:
            return (self.root / relative).stat().st_size
        except FileNotFoundError:
            return None

    def names(self, dataset: str) -> list[str]:
        return _names(self.root / folder(dataset))

    def copies(self, dataset: str) -> list[str]:  # noqa: ARG002 - the files themselves are here
        return []

    def remove(self, relatives: Iterable[str]) -> None:
        directories = set()
        for relative in relatives:
            path = self.root / relative
            path.unlink(missing_ok=True)
            directories.add(path.parent)
        for directory in directories:
            with contextlib.suppress(FileNotFoundError):
                sync_directory(directory)

    def settle(self, dataset: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            sync_directory(self.root / folder(dataset))


def _draft(root: Path, relative: str) -> Path:
    path = root / relative
    make_directory(path.parent, private=True)
    return path


def _names(directory: Path) -> list[str]:
    """Only files: what strangers put there is not followed."""
    try:
        with os.scandir(directory) as entries:
            return [entry.name for entry in entries if entry.is_file(follow_symlinks=False)]
    except FileNotFoundError:
        return []


# ── in a bucket ──────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True, slots=True)
class Bucket:
    """Objects below a prefix. It travels to tasks, with what they need to read them."""

    scheme: str
    name: str
    prefix: str
    options: tuple[tuple[str, str], ...] = field(default=(), repr=False)

    def read(self, key: str) -> bytes:
        """`FileNotFoundError` if there is no such object."""
        import obstore

        try:
            return obstore.get(_connected(self), key).bytes().to_bytes()
        except Exception as error:  # noqa: BLE001 - one of the client's many, told apart below
            self._refuse(error)
            raise FileNotFoundError(f"{self.scheme}://{self.name}/{self.prefix}/{key}") from None

    def size(self, key: str) -> int | None:
        import obstore

        try:
            return int(obstore.head(_connected(self), key)["size"])
        except Exception as error:  # noqa: BLE001 - one of the client's many, told apart below
            self._refuse(error)
            return None

    def create(self, key: str, content: bytes) -> None:
        """An object of that name with another content is `Corrupt`; one with the same is ours: an answer was lost."""
        import obstore
        from obstore.exceptions import AlreadyExistsError

        try:
            obstore.put(_connected(self), key, content, mode="create")
        except AlreadyExistsError:
            if self.read(key) != content:
                raise Corrupt(
                    f"The object {key} of {self.scheme}://{self.name} exists, with another content.",
                    hint="Nothing was overwritten. Use one prefix per store for spool.segments.",
                ) from None
        except Exception as error:  # noqa: BLE001 - one of the client's many, told apart below
            self._refuse(error, missing_is_fine=False)

    def keys(self, prefix: str) -> list[str]:
        import obstore

        try:
            pages = obstore.list(_connected(self), prefix, chunk_size=1000)
            return [meta["path"].removeprefix(f"{prefix}/") for page in pages for meta in page]
        except Exception as error:  # noqa: BLE001 - one of the client's many, told apart below
            self._refuse(error, missing_is_fine=False)
            return []

    def remove(self, keys: list[str]) -> None:
        import obstore

        try:
            if keys:
                obstore.delete(_connected(self), keys)
        except Exception as error:  # noqa: BLE001 - one of the client's many, told apart below
            self._refuse(error)

    def _refuse(self, error: Exception, *, missing_is_fine: bool = True) -> None:
        """`Retryable` for everything but an object that is not there. The client's own words are not shown: they can
        contain keys and signatures.
        """
        if missing_is_fine and isinstance(error, FileNotFoundError):
            return
        raise Retryable(
            f"The segments in {self.scheme}://{self.name} cannot be reached ({type(error).__name__}).",
            hint="Nothing is lost. Check spool.segments, the properties of the lake, the permissions and the network.",
        ) from None


def bucket_of(place: str, lake: CatalogSettings | None) -> Bucket:
    """The bucket of a URL, reached with the properties of the lake; without them, as the environment says."""
    scheme, _, rest = place.partition("://")
    name, _, prefix = rest.partition("/")
    options: dict[str, str] = {}
    properties = {} if lake is None or scheme != "s3" else lake.properties
    for key, client in _S3.items():
        if key in properties:
            options[client] = secret(properties[key], key=f"lake.{key}")
    if properties.get("s3.path-style-access") == "false":
        options["virtual_hosted_style_request"] = "true"
    return Bucket(scheme, name, prefix.strip("/"), tuple(sorted(options.items())))


@lru_cache(maxsize=16)
def _connected(bucket: Bucket) -> S3Store | GCSStore | AzureStore:
    """One client per bucket and process: it keeps connections open."""
    from obstore.store import AzureStore, GCSStore, S3Store

    kinds: dict[str, Any] = {"s3": S3Store, "gs": GCSStore, "az": AzureStore}
    plain = any(value.startswith("http://") for _, value in bucket.options)
    store: S3Store | GCSStore | AzureStore = kinds[bucket.scheme](
        bucket.name,
        prefix=bucket.prefix or None,
        config=dict(bucket.options),
        client_options={**_CLIENT, "allow_http": plain},
        retry_config=_RETRIES,
    )
    return store


@dataclass(frozen=True, slots=True)
class BucketSegments:
    """Objects of a bucket, and copies of them on this machine."""

    root: Path
    bucket: Bucket

    def path(self, relative: str) -> Path:
        path = self.root / relative
        if not path.exists():
            content = self.bucket.read(relative)
            draft = _draft(self.root, f"{relative}.{secrets.token_hex(4)}.part")
            draft.write_bytes(content)
            draft.rename(path)
        return path

    def draft(self, relative: str) -> Path:
        return _draft(self.root, relative)

    def store(self, relative: str) -> int:
        content = (self.root / relative).read_bytes()
        self.bucket.create(relative, content)
        return len(content)

    def discard(self, relative: str) -> None:
        with contextlib.suppress(OSError):
            (self.root / relative).unlink(missing_ok=True)

    def size(self, relative: str) -> int | None:
        return self.bucket.size(relative)

    def names(self, dataset: str) -> list[str]:
        return [name for name in self.bucket.keys(folder(dataset)) if "/" not in name]

    def copies(self, dataset: str) -> list[str]:
        return _names(self.root / folder(dataset))

    def remove(self, relatives: Iterable[str]) -> None:
        """The objects first: a copy without one is of no use, an object without a copy is a segment."""
        keys = list(relatives)
        self.bucket.remove(keys)
        for relative in keys:
            self.discard(relative)

    def settle(self, dataset: str) -> None:
        """What a bucket has answered lasts."""
