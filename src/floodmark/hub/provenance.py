"""Listing and correcting the recorded path of rows."""

from __future__ import annotations

from floodmark.control import provenance
from floodmark.control.provenance import Passed
from floodmark.errors import Permanent
from floodmark.store import Store


def list_provenance(store: Store, *, dataset: str | None = None, passed: str | None = None) -> list[Passed]:
    """The stores that rows have passed through, and the origin that reported each; of one dataset, or one store."""
    return store.engine.database.read(lambda c: provenance.everything(c, dataset=dataset, store=passed))


def forget_provenance(store: Store, origin: str, *, dataset: str | None = None, passed: str | None = None) -> int:
    """Remove entries of an origin; returns how many.

    The operator is responsible: if rows did pass through those stores, they can now loop.
    """
    gone = store.engine.database.transact(lambda c: provenance.forget(c, origin=origin, dataset=dataset, store=passed))
    if not gone:
        raise Permanent(f"{origin!r} has no such entry.", hint="See `floodmark provenance list`. Nothing was changed.")
    return gone
