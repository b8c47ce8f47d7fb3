"""Creating, listing and revoking the tokens of a store."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import timedelta
from functools import partial

from floodmark.control import datasets as dataset_records
from floodmark.control import tokens
from floodmark.control.tokens import Token
from floodmark.errors import InvalidName, InvalidSetting
from floodmark.store import Store

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
    if not sends and tokens.METRICS not in rights:
        raise InvalidSetting(
            "The token would allow nothing: it names no store, and no right.",
            hint="Give --origins with the ids of the stores that send, or --capture for clients that post rows, or "
            "--metrics; --any-origin is for all stores.",
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
