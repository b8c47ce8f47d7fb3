"""Objects in a bucket: S3 and what speaks its language, Google Cloud Storage, Azure.

An object is created with the store's own precondition (`If-None-Match: *` and its likes), so that of two exporters one
wins, and a request whose answer was lost meets its own object.

Every request ends: connecting, answering and trying again all have limits. What a store answers is told in one
sentence, with what to do. Its own words are not: they can hold keys, signatures and addresses with tokens in them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from floodmark.delivery.sinks.answers import code_of, told
from floodmark.delivery.sinks.objects import Content
from floodmark.errors import Permanent

if TYPE_CHECKING:
    from obstore.store import AzureStore, GCSStore, S3Store

    Store = S3Store | GCSStore | AzureStore

SCHEMES = ("s3", "gs", "az")

CLIENT: dict[str, Any] = {"connect_timeout": "5s", "timeout": "5m", "user_agent": "floodmark"}
RETRIES: dict[str, Any] = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=30),
    "backoff": {"init_backoff": timedelta(milliseconds=100), "max_backoff": timedelta(seconds=2), "base": 2},
}
"""Few and quick: hiccups end here. Longer waits are the tick's, which can be interrupted and lets others go on."""


@dataclass(frozen=True, slots=True)
class RemoteObjects:
    """Objects below a prefix of a bucket (Azure: of a container)."""

    scheme: str
    bucket: str
    prefix: str
    options: tuple[tuple[str, str], ...] = ()
    """Region, endpoint, account: whatever the store must know besides."""
    credentials: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    """Never shown. Where there are none, the provider's environment variables and machine identities count."""
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
            raise told(
                error, where=self.where, bucket=self.bucket
            ) from None  # the cause would bring the store's own words along
        return True

    def read(self, key: str) -> bytes | None:
        import obstore
        from obstore.exceptions import BaseError

        try:
            return obstore.get(_connected(self), key).bytes().to_bytes()
        except FileNotFoundError as error:
            if code_of(error) in {None, "NoSuchKey", "BlobNotFound"}:
                return None
            raise told(error, where=self.where, bucket=self.bucket) from None
        except (BaseError, OSError, ValueError) as error:
            raise told(error, where=self.where, bucket=self.bucket) from None

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
            raise told(error, where=self.where, bucket=self.bucket) from None
        return [name for name in found if "/" not in name]


@lru_cache(maxsize=64)
def _connected(place: RemoteObjects) -> Store:
    """One client for each place and process: it keeps connections open and refreshes what expires."""
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
