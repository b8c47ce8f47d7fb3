"""Tokens, as the operator of a store makes and revokes them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import partial

from floodmark.control import datasets as dataset_records
from floodmark.control import tokens
from floodmark.control.tokens import Token
from floodmark.errors import InvalidName
from floodmark.hub.intake import Intake
from floodmark.store import Store

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


def add_token(
    store: Store,
    name: str,
    *,
    origins: Sequence[str] | None = None,
    datasets: Sequence[str] | None = None,
    relay: bool = False,
) -> tuple[Token, str]:
    """Make a token; returns what it allows, and its text, which is kept nowhere.

    One that is bound to origins brings rows of those alone, unless `relay`: then also what others have sent to them.
    """
    if _NAME.fullmatch(name) is None:
        raise InvalidName(
            f"{name[:60]!r} cannot name a token.", hint="Use letters, digits, dots, dashes and underscores: at most 63."
        )
    intake, secret, now = Intake.of(store), tokens.new_secret(), Intake.of(store).clock.now()
    bound = None if datasets is None else tuple(datasets)
    for dataset in bound or ():  # a misspelt one would be a token for nothing
        intake.database.read(partial(dataset_records.get, name=dataset))
    relays = relay or origins is None
    made = Token(name, None if origins is None else tuple(origins), bound, now.isoformat(), relay=relays)
    intake.database.transact(
        lambda c: tokens.add(
            c, name, secret=secret, origins=made.origins, datasets=made.datasets, relay=made.relay, now=now
        )
    )
    return made, secret


def list_tokens(store: Store) -> list[Token]:
    return Intake.of(store).database.read(tokens.everyone)


def revoke_token(store: Store, name: str) -> None:
    intake = Intake.of(store)
    intake.database.transact(lambda c: tokens.revoke(c, name, now=intake.clock.now()))
