"""The stores that rows have passed through, as reported by each sending origin.

A store forwards the rows of a dataset under one sequence, wherever they came from. So it names to the next one every
store that any of them has passed, and whoever finds itself among those refuses them.

Invariants
- H4 Provenance is complete or nothing is sent: a store that is named by rows which came here is named by every chunk
  that leaves from here, until somebody says by hand that it was never true.
- H5 Only rows bring provenance, and only as far as their sender may speak of it. A chunk without rows names nobody.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from sqlalchemy import Connection, select

from floodmark.control.schema import provenance


@dataclass(frozen=True, slots=True)
class Passed:
    """One store that rows of a dataset have passed through, and the origin that says so."""

    origin: str
    dataset: str
    store: str


def record(connection: Connection, *, origin: str, dataset: str, stores: Iterable[str]) -> None:
    """H4: in the transaction that registers the rows. Each store is recorded once, for any number of chunks."""
    here = (provenance.c.origin == origin, provenance.c.dataset == dataset)
    known = set(connection.execute(select(provenance.c.store).where(*here)).scalars())
    new = [store for store in dict.fromkeys((*stores, origin)) if store not in known]
    if new:
        connection.execute(
            provenance.insert(), [{"origin": origin, "dataset": dataset, "store": store} for store in new]
        )


def stores_before(connection: Connection, dataset: str) -> list[str]:
    """Every store that rows of the dataset have passed through before this one, by id."""
    found = connection.execute(select(provenance.c.store).where(provenance.c.dataset == dataset).distinct())
    return sorted(found.scalars())


def everything(connection: Connection, *, dataset: str | None = None, store: str | None = None) -> list[Passed]:
    query = select(provenance).order_by(provenance.c.dataset, provenance.c.origin, provenance.c.store)
    if dataset is not None:
        query = query.where(provenance.c.dataset == dataset)
    if store is not None:
        query = query.where(provenance.c.store == store)
    return [Passed(row.origin, row.dataset, row.store) for row in connection.execute(query)]


def forget(connection: Connection, *, origin: str, dataset: str | None = None, store: str | None = None) -> int:
    """Take back what an origin said; how many entries that were."""
    query = provenance.delete().where(provenance.c.origin == origin)
    if dataset is not None:
        query = query.where(provenance.c.dataset == dataset)
    if store is not None:
        query = query.where(provenance.c.store == store)
    return connection.execute(query).rowcount
