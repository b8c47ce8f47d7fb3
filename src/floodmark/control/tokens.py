"""Who may send to the hub.

A token is shown once, when it is made, and kept as its SHA-256: whoever reads the control database or a backup of it
cannot send. A revoked token's row stays, so that a hub does not become open to all when its last token is revoked.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import Connection, select, update

from floodmark.control.schema import Record, tokens
from floodmark.errors import TokenExists, UnknownToken

PREFIX = "fmk_"
"""A prefix by which secret scanners find a token that was leaked into a file."""


CAPTURE = "capture"
METRICS = "metrics"
DASHBOARD = "dashboard"
RIGHTS = (CAPTURE, METRICS, DASHBOARD)


@dataclass(frozen=True, slots=True)
class Token:
    """What a token allows; never the token itself."""

    name: str
    origins: tuple[str, ...] | None
    """The stores whose chunks it may send, and whose ledger it may see; None: of any."""
    datasets: tuple[str, ...] | None
    """None: all."""
    created_at: str
    revoked_at: str | None = None
    relay: bool = True
    """Whether it may bring rows that passed through stores which it is not bound to."""
    rights: tuple[str, ...] = ()
    """What it may do beside that: capture rows, which have no origin, read metrics, and see the dashboard."""
    expires_at: str | None = None

    def allows_origin(self, origin: str) -> bool:
        return self.origins is None or origin in self.origins

    def allows_dataset(self, dataset: str) -> bool:
        return self.datasets is None or dataset in self.datasets

    def is_in_force(self, now: datetime) -> bool:
        # Times are texts in UTC, which sort like times.
        return self.revoked_at is None and (self.expires_at is None or now.isoformat() < self.expires_at)


def new_secret() -> str:
    """A token's text: 256 random bits."""
    return PREFIX + secrets.token_urlsafe(32)


def hash_of(secret: str) -> str:
    """What is kept of a token. It is random and long, so that a plain hash cannot be searched backwards."""
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()


def add(connection: Connection, token: Token, *, secret: str) -> None:
    if connection.execute(select(tokens.c.name).where(tokens.c.name == token.name)).one_or_none() is not None:
        raise TokenExists(
            f"A token {token.name!r} already exists, active or revoked.",
            hint="Choose another name. The name of a revoked token is not used again, so that old logs stay correct.",
        )
    connection.execute(
        tokens.insert().values(
            name=token.name,
            hash=hash_of(secret),
            origins=None if token.origins is None else json.dumps(token.origins),
            datasets=None if token.datasets is None else json.dumps(token.datasets),
            created_at=token.created_at,
            relay=int(token.relay),
            rights=json.dumps(token.rights),
            expires_at=token.expires_at,
        )
    )


def revoke(connection: Connection, name: str, *, now: datetime) -> None:
    """From now on the token is refused. Revoking it again changes nothing."""
    if connection.execute(select(tokens.c.name).where(tokens.c.name == name)).one_or_none() is None:
        raise UnknownToken(f"There is no token {name!r}.", hint="See `floodmark token list`.")
    connection.execute(
        update(tokens).where(tokens.c.name == name, tokens.c.revoked_at.is_(None)).values(revoked_at=now.isoformat())
    )


def everyone(connection: Connection) -> list[Token]:
    return [_token(row) for row in connection.execute(select(tokens).order_by(tokens.c.name))]


def any_exist(connection: Connection) -> bool:
    """Whether requests need a token: also when all are revoked."""
    return connection.execute(select(tokens.c.name).limit(1)).one_or_none() is not None


def find(connection: Connection, *, hash: str, now: datetime) -> Token | None:
    """The token with that hash, if it is in force."""
    row = connection.execute(select(tokens).where(tokens.c.hash == hash)).one_or_none()
    token = None if row is None else _token(row)
    return token if token is not None and token.is_in_force(now) else None


def _token(row: Record) -> Token:
    return Token(
        name=row.name,
        origins=None if row.origins is None else tuple(json.loads(row.origins)),
        datasets=None if row.datasets is None else tuple(json.loads(row.datasets)),
        created_at=row.created_at,
        revoked_at=row.revoked_at,
        relay=bool(row.relay),
        rights=tuple(json.loads(row.rights)),
        expires_at=row.expires_at,
    )
