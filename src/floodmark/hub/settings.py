"""The hub's limits. Each bounds what one request, or all of them together, may cost."""

from __future__ import annotations

from dataclasses import dataclass

from floodmark.wire import Limits


@dataclass(frozen=True, slots=True)
class HubSettings:
    """The limits of a worker."""

    body_bytes_max: int = 16 << 20
    """A body as it is sent, compressed or not."""
    content_bytes_max: int = 32 << 20
    """A body once it is decompressed. Text in memory needs up to four times the bytes of the body."""
    rows_max: int = 200_000
    columns_max: int = 2_000
    values_max: int = 1_000_000
    nesting_max: int = 64
    """What a body may contain; see `wire.Limits`."""
    header_bytes_max: int = 384 << 10
    """All headers of a request: a chunk's header has the numbers that were given up."""
    request_seconds_max: float = 60.0
    """How long a client may take to send a request."""
    threads: int = 4
    """Requests that a worker processes at the same time."""
    requests_max: int = 64
    """Requests that a worker has in memory at the same time; others get a response to retry."""
    client_requests_max: int = 32
    """… and of them those of one sender, which never gets more than are free (`hub.shares`)."""
    key_days: int = 7
    """How long the key of a capture is remembered."""
    quarantine_max: int = 10_000
    """Quarantined entries of a dataset; above it, captures with rows that do not fit are refused."""
    quarantine_token_max: int = 1_000
    """… and of them those that came with one token."""
    log: str = "text"
    """The form of log lines: `text` or `json`."""
    hosts: frozenset[str] | None = None
    """The allowed `Host` names of requests; None: any. A foreign page in a browser on this machine can resolve its own
    name to 127.0.0.1 (DNS rebinding): only the name distinguishes its requests."""

    @property
    def limits(self) -> Limits:
        return Limits(self.rows_max, self.columns_max, self.values_max, self.nesting_max)
