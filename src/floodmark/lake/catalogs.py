"""Catalogs that rows are delivered to or read from: those of the settings file, as Spark and as Python see them.

A catalog is described once, in `[catalogs.NAME]`. Its name is what other engines know it by, too: a SQL catalog keeps
the name beside every table.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from floodmark.config import CatalogSettings
from floodmark.errors import InvalidSetting, Permanent, Retryable, reason_of
from floodmark.lake.catalog import Catalog

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import SparkSession


def configured(name: str, settings: CatalogSettings, *, namespace: str) -> Catalog:
    """A catalog of the settings file, with one of its namespaces."""
    shared = {key: value for key, value in settings.properties.items() if not key.startswith(("spark.", "python."))}
    if settings.warehouse is not None:
        shared["warehouse"] = settings.warehouse
    spark, python = _addresses(name, _resolved(name, {"uri": settings.uri})["uri"], settings.type)
    return Catalog(
        name,
        spark_settings=_resolved(name, {**shared, **_only(settings, "spark."), **spark}),
        python_settings=_resolved(name, {**shared, **_only(settings, "python."), **python}),
        namespace=namespace,
    )


def attach_described(spark: SparkSession, table: str, described: Mapping[str, CatalogSettings]) -> None:
    """Make the catalog of `catalog.namespace.table` known to a session, if the settings describe it."""
    name, _, _ = table.partition(".")
    if name in described:
        configured(name, described[name], namespace="").attach(spark)


def attach_mentioned(spark: SparkSession, query: str, described: Mapping[str, CatalogSettings]) -> None:
    """Make the described catalogs that a query names known to a session. Only those: another may be out of reach."""
    for name, settings in described.items():
        if name in query:
            configured(name, settings, namespace="").attach(spark)


def _only(settings: CatalogSettings, prefix: str) -> dict[str, str]:
    return {key.removeprefix(prefix): value for key, value in settings.properties.items() if key.startswith(prefix)}


def _resolved(name: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with what the environment holds of them."""
    found = {}
    for key, value in settings.items():
        if value.startswith("env:"):
            secret = os.environ.get(value.removeprefix("env:"))
            if secret is None:
                raise InvalidSetting(
                    f"catalogs.{name}.{key} is {value}, and this environment variable is not set.",
                    hint="Set it for every process that exports.",
                )
            value = secret  # noqa: PLW2901 - it is what the setting says
        found[key] = value
    return found


def _addresses(name: str, uri: str, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """The catalog's address, as Spark takes it and as Python takes it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if kind == "rest":
        _check_address(name, uri)
        address = {"type": "rest", "uri": uri}
        return address, address
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        url = None
    if url is not None and url.get_backend_name() == "sqlite" and url.database:
        spark = {"uri": f"jdbc:sqlite:{url.database}?busy_timeout=60000"}
        python = f"sqlite:///{url.database}"
    elif url is not None and url.get_backend_name() == "postgresql" and url.host:
        spark = {"uri": f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database or ''}"}
        spark |= {"jdbc.user": url.username} if url.username else {}
        spark |= {"jdbc.password": str(url.password)} if url.password else {}
        python = url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    else:
        raise InvalidSetting(
            f"catalogs.{name}.uri is not the address of a SQL database that can be used here.",
            hint="Write sqlite:////absolute/path or postgresql://user@host/database.",
        )
    return {"type": "jdbc", "jdbc.schema-version": "V1", **spark}, {"type": "sql", "uri": python}


def _check_address(name: str, uri: str) -> None:
    """Here, where it is not repeated: libraries show an address that they cannot read, with the password in it."""
    try:
        parts = urlsplit(uri)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise InvalidSetting(
            f"catalogs.{name}.uri is not the address of a REST catalog.", hint="Write https://host[:port][/path]."
        )


def loaded(catalog: Catalog, table: str) -> IcebergTable | None:
    """A table as PyIceberg loads it, freshly; None if there is none.

    A catalog that refuses us will refuse us again; one that does not answer may answer later.
    """
    from pyiceberg import exceptions
    from sqlalchemy.exc import SQLAlchemyError

    where = f"Catalog {catalog.name!r}"
    try:
        return catalog.load(table)
    except (exceptions.NoSuchTableError, exceptions.NoSuchNamespaceError):
        return None
    except (
        exceptions.UnauthorizedError,
        exceptions.ForbiddenError,
        exceptions.OAuthError,
        exceptions.BadRequestError,
        exceptions.NotInstalledError,
    ) as error:
        raise Permanent(
            f"{where} refuses to load {catalog.namespace}.{table}: {reason_of(error)}.",
            hint=f"Correct [catalogs.{catalog.name}] in floodmark.toml, or the permissions there.",
        ) from error
    except (exceptions.RESTError, exceptions.ValidationError, SQLAlchemyError, OSError, ValueError) as error:
        raise Retryable(f"{where} did not describe {catalog.namespace}.{table}: {reason_of(error)}.") from error
