"""Authorisation: a request's token, and what it allows.

A store without tokens is open, and its hub listens on loopback only. As soon as a token was created, every request
under `/v1` needs one, also after the last token was revoked or has expired.

One rule for every route: a token allows a request if it allows everything that the request names.

| route   | the dataset | the origin        | a right               |
|---------|-------------|-------------------|-----------------------|
| chunks  | in the path | in the header     |                       |
| capture | in the path | rows have none    | `capture`             |
| ledger  | of channels | in the path       |                       |
| metrics | names all   | names all         | `metrics`             |
| pages   | names all   | names all         | `dashboard`           |

A browser cannot send a bearer token by itself: for pages, a token is also accepted as the password of HTTP's basic
authentication. The requests that send rows do not accept it, because a browser sends it with requests that other sites
make, too.
"""

from __future__ import annotations

import base64
import ipaddress
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial

from sqlalchemy import Connection
from starlette.requests import Request

from floodmark.control import datasets as dataset_records
from floodmark.control import tokens
from floodmark.control.tokens import Token
from floodmark.engine import Engine
from floodmark.errors import InvalidName, InvalidSetting
from floodmark.store import Store

REMEMBERED_SECONDS = 1.0
"""How long a revoked token may still be accepted: the control database is not read at every request."""
REMEMBERED_MAX = 4096
SECRET_CHARACTERS_MAX = 512
_FORWARDED = ("forwarded", "x-forwarded-for", "x-real-ip", "via")

ANYBODY = Token(name="", origins=None, datasets=None, created_at="", rights=tokens.RIGHTS)
"""What is allowed if no token is needed."""


class Unauthorised(Exception):
    """No token, or an unknown one. No message contains any part of what was sent."""


class Forbidden(Exception):
    """The token is valid, but does not allow this."""


@dataclass(slots=True)
class Access:
    """One worker's cache of tokens. Threads share it."""

    engine: Engine
    _cached: OrderedDict[str, tuple[float, Token | None]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def token(self, authorization: str | None, *, basic: bool = False) -> Token:
        """The token of a request, by its `Authorization` header; `Unauthorised` if it is missing or unknown."""
        hashed = _hash(authorization, basic=basic)
        token = self._remembered(hashed)
        if token is None:
            raise Unauthorised
        return token

    def _remembered(self, hashed: str) -> Token | None:
        now = self.engine.clock.monotonic_seconds()
        with self._lock:
            found = self._cached.get(hashed)
        if found is not None and 0 <= now - found[0] < REMEMBERED_SECONDS:
            return found[1]
        token = self.engine.database.read(lambda c: self._find(c, hashed))
        with self._lock:
            self._cached[hashed] = (now, token)
            self._cached.move_to_end(hashed)
            while len(self._cached) > REMEMBERED_MAX:
                self._cached.popitem(last=False)
        return token

    def _find(self, connection: Connection, hashed: str) -> Token | None:
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
    """H5: a token cannot name stores that it is not bound to: otherwise any edge could block a hub's own forwarding."""
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
    """Whether a request comes from this machine, and not through a proxy on it."""
    if request.client is None or any(name in request.headers for name in _FORWARDED):
        return False
    try:
        return ipaddress.ip_address(request.client.host).is_loopback
    except ValueError:
        return False


def check_reader(access: Access, request: Request, right: str, *, doing: str) -> None:
    """What shows all datasets and all senders is for this machine, and for tokens with the right."""
    if not is_local(request):
        given = request.headers.getlist("authorization")
        token = access.token(given[0] if len(given) == 1 else None, basic=True)
        check_right(token, right, doing=doing)


def _hash(authorization: str | None, *, basic: bool = False) -> str:
    """The hash of the token that was sent; empty if it cannot be a token."""
    scheme, _, secret = (authorization or "").partition(" ")
    secret = secret.strip()
    if basic and scheme.lower() == "basic":
        scheme, secret = "bearer", _password(secret)
    if scheme.lower() != "bearer" or not 0 < len(secret) <= SECRET_CHARACTERS_MAX:
        return ""
    return tokens.hash_of(secret)


def _password(encoded: str) -> str:
    """The password of basic authentication; empty if there is none."""
    if len(encoded) > 2 * SECRET_CHARACTERS_MAX:
        return ""
    try:
        return base64.b64decode(encoded, validate=True).decode().partition(":")[2]
    except ValueError:  # not base64, or not UTF-8
        return ""


# ── tokens of a store ────────────────────────────────────────────────────────────────────────────────────────────────


_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def add_token(
    store: Store,
    name: str,
    *,
    origins: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    any_origin: bool = False,
    any_dataset: bool = False,
    relay: bool = False,
    rights: Sequence[str] = (),
    expires: timedelta | None = None,
) -> tuple[Token, str]:
    """Create a token; returns what it allows, and its text, which is not stored.

    It allows only what is named; all stores or all datasets must be requested explicitly. A token that is bound to
    origins allows only their own rows, unless `relay`: then also rows that others have sent to them.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{name[:60]!r} cannot name a token.", hint="Use letters, digits, dots, dashes and underscores: at most 63."
        )
    _check_bounds(origins, datasets, any_origin=any_origin, any_dataset=any_dataset, rights=rights)
    if expires is not None and expires <= timedelta():
        raise InvalidSetting("The token would expire before it is used.", hint="Give a time such as 90d.")
    engine, secret, now = store.engine, tokens.new_secret(), store.engine.clock.now()
    for dataset in datasets or ():  # a token for a misspelt dataset would allow nothing
        engine.database.read(partial(dataset_records.get, name=dataset))
    made = Token(
        name,
        None if any_origin else tuple(origins or ()),
        None if any_dataset else tuple(datasets or ()),
        now.isoformat(),
        relay=relay or any_origin,
        rights=tuple(right for right in tokens.RIGHTS if right in rights),
        expires_at=None if expires is None else (now + expires).isoformat(),
    )
    engine.database.transact(lambda c: tokens.add(c, made, secret=secret))
    return made, secret


def _check_bounds(
    origins: Sequence[str] | None,
    datasets: Sequence[str] | None,
    *,
    any_origin: bool,
    any_dataset: bool,
    rights: Sequence[str],
) -> None:
    unknown = sorted(set(rights) - set(tokens.RIGHTS))
    if unknown:
        raise InvalidSetting(f"{unknown[0]!r} is not a right.", hint=f"There are {', '.join(tokens.RIGHTS)}.")
    if (any_origin and origins) or (any_dataset and datasets):
        raise InvalidSetting("A token allows some or any, not both.", hint="Leave one of the two out.")
    sends = any_origin or bool(origins) or tokens.CAPTURE in rights
    if not sends and not {tokens.METRICS, tokens.DASHBOARD} & set(rights):
        raise InvalidSetting(
            "The token would allow nothing: it names no store, and no right.",
            hint="Give --origins with the ids of the stores that send, or --capture for clients that post rows, or "
            "--metrics, or --dashboard; --any-origin is for all stores.",
        )
    if sends and not any_dataset and not datasets:
        raise InvalidSetting(
            "The token names no dataset.", hint="Give --datasets with the datasets it is for, or --any-dataset."
        )


def list_tokens(store: Store) -> list[Token]:
    return store.engine.database.read(tokens.everyone)


def revoke_token(store: Store, name: str) -> None:
    engine = store.engine
    engine.database.transact(lambda c: tokens.revoke(c, name, now=engine.clock.now()))
