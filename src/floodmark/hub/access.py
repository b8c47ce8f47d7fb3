"""Who may do what: a request's token, and what it is bound to.

A store without tokens is open, and then its hub listens on loopback only. As soon as there is one, every request under
`/v1` needs one; so it stays when the last token is revoked or has expired.

One rule for every route: a token allows a request if it allows everything that the request names.

| route   | the dataset | the origin        | a right               |
|---------|-------------|-------------------|-----------------------|
| chunks  | in the path | in the header     |                       |
| capture | in the path | rows have none    | `capture`             |
| ledger  | of channels | in the path       |                       |
| metrics | names all   | names all         | `metrics`             |
"""

from __future__ import annotations

import ipaddress
import threading
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from sqlalchemy import Connection
from starlette.requests import Request

from floodmark.control import tokens
from floodmark.control.tokens import Token
from floodmark.engine import Engine

REMEMBERED_SECONDS = 1.0
"""So long a revoked token may still be taken: the control database is not asked at every request."""
REMEMBERED_MAX = 4096
SECRET_CHARACTERS_MAX = 512
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

ANYBODY = Token(name="", origins=None, datasets=None, created_at="", rights=tokens.RIGHTS)
"""What is allowed where no token is needed."""


class Unauthorised(Exception):
    """No token, or none that is known. What was sent is not repeated, not even in part."""


class Forbidden(Exception):
    """The token is good, and not for this."""


@dataclass(slots=True)
class Access:
    """One worker's knowledge of tokens. Threads share it."""

    engine: Engine
    _looks: OrderedDict[str, tuple[float, Token | None]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def token(self, authorization: str | None) -> Token:
        """The token of a request, by its `Authorization` header; `Unauthorised` if it may not come in."""
        hashed = _hash(authorization)
        token = self._remembered(hashed)
        if token is None:
            raise Unauthorised
        return token

    def _remembered(self, hashed: str) -> Token | None:
        now = self.engine.clock.monotonic_seconds()
        with self._lock:
            look = self._looks.get(hashed)
        if look is not None and 0 <= now - look[0] < REMEMBERED_SECONDS:
            return look[1]
        token = self.engine.database.read(lambda c: self._look(c, hashed))
        with self._lock:
            self._looks[hashed] = (now, token)
            self._looks.move_to_end(hashed)
            while len(self._looks) > REMEMBERED_MAX:
                self._looks.popitem(last=False)
        return token

    def _look(self, connection: Connection, hashed: str) -> Token | None:
        found = tokens.find(connection, hash=hashed, now=self.engine.clock.now()) if hashed else None
        if found is None and not tokens.any_exist(connection):
            return ANYBODY
        return found


def check_dataset(token: Token, dataset: str) -> None:
    if not token.allows_dataset(dataset):
        raise Forbidden(f"This token does not allow the dataset {dataset!r}.")


def check_origin(token: Token, origin: str) -> None:
    if not token.allows_origin(origin):
        raise Forbidden("This token does not allow rows of that store.")


def check_path(token: Token, stores: Iterable[str]) -> None:
    """H5: what a token is not bound to, it cannot speak of: else any edge could have a hub's own forwarding refused."""
    strange = [] if token.relay else [store for store in stores if not token.allows_origin(store)]
    if strange:
        raise Forbidden(
            f"This token does not allow rows that passed through {strange[0]!r}. A store that forwards for "
            "others needs a token with the right to relay."
        )


def check_right(token: Token, right: str, *, doing: str) -> None:
    if right not in token.rights:
        raise Forbidden(f"This token does not allow {doing}.")


def is_local(request: Request) -> bool:
    """Whether a request comes from this machine, and not from a proxy here that speaks for somebody else."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def _hash(authorization: str | None) -> str:
    """The hash of what was sent; nothing for what cannot be a token."""
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if scheme.lower() != "bearer" or not 0 < len(secret) <= SECRET_CHARACTERS_MAX:
        return ""
    return tokens.hash_of(secret)
