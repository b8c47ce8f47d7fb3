"""Catalogs of the settings file, as Spark and as Python see them: the store's own, and others.

A catalog is described once, in `[catalogs.NAME]`. Its name is what other engines know it by, too: a SQL catalog keeps
the name beside every table.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import quote, urlencode, urlsplit

from floodmark.config import CatalogSettings, Settings, secret
from floodmark.errors import FloodmarkError, InvalidSetting, Permanent, Retryable, reason_of
from floodmark.lake.catalog import Catalog
from floodmark.lake.files import local_location
from floodmark.lake.jars import POSTGRESQL, S3

if TYPE_CHECKING:
    from pyiceberg.table import Table as IcebergTable
    from pyspark.sql import SparkSession
    from sqlalchemy import URL


_FILE_IO = {
    "s3": "org.apache.iceberg.aws.s3.S3FileIO",
    "gs": "org.apache.iceberg.gcp.gcs.GCSFileIO",
    "abfs": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
    "abfss": "org.apache.iceberg.azure.adlsv2.ADLSFileIO",
}
"""How Spark reaches a warehouse, by the scheme of its URL: Hadoop knows none of these without further jars."""
_QUERY = {
    "sslmode": "sslmode",
    "sslrootcert": "sslrootcert",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "options": "options",
    "connect_timeout": "connectTimeout",
    "application_name": "ApplicationName",
    "target_session_attrs": "targetServerType",
}
"""What may follow the address of a PostgreSQL database, and what the JDBC driver calls it."""
_NESSIE = "nessie.is-nessie-catalog"
_SESSIONS = {"read-write": "primary", "primary": "primary", "any": "any"}


def configured(name: str, settings: CatalogSettings, *, namespace: str, section: str | None = None) -> Catalog:
    """A catalog of the settings file, with one of its namespaces."""
    section = section or f"catalogs.{name}"
    shared = {key: value for key, value in settings.properties.items() if not key.startswith(("spark.", "python."))}
    spark, python = _addresses(section, secret(settings.uri, key=f"{section}.uri"), settings.type)
    spark |= _resolved(section, {**_for_spark(settings, shared), **_only(settings, "spark.")})
    python |= _resolved(section, {**shared, **_only(settings, "python.")})
    if settings.warehouse is not None:  # never a secret, and `file:` in it is a URL
        spark["warehouse"] = python["warehouse"] = settings.warehouse
    return Catalog(name, spark_settings=spark, python_settings=python, namespace=namespace)


def own_catalog(root: Path, settings: Settings) -> Catalog:
    """The catalog of a store's own tables: in its directory, or where `[lake]` says.

    Its name, and the namespace in a catalog that others use too, are the store's own, so that stores can share a
    database, a REST catalog and a warehouse.
    """
    short = settings.store_id.replace("-", "")[:12]
    name = settings.catalog_name
    home = root / "lake"
    if settings.lake is None:
        return Catalog.embedded(name=name, lake=home)
    lake = settings.lake
    properties = {key: value for key, value in lake.properties.items() if key not in ("name", "namespace")}
    whole = replace(lake, uri=lake.uri or f"sqlite:///{home / 'catalog.db'}", properties=properties)
    if whole.warehouse is None and whole.type == "sql":
        whole = replace(whole, warehouse=local_location(home))
    return configured(name, whole, namespace=lake.properties.get("namespace", f"datasets_{short}"), section="lake")


def needed_jars(settings: Settings) -> set[str]:
    """What the described catalogs need beyond a lake in a directory."""
    needs: set[str] = set()
    for one in (*settings.catalogs.values(), *([settings.lake] if settings.lake is not None else [])):
        if (one.warehouse or "").startswith("s3://") or any(key.startswith("s3.") for key in one.properties):
            needs.add(S3)
        with contextlib.suppress(InvalidSetting):  # said by name where the catalog is used
            if secret(one.uri, key="uri").startswith("postgres"):
                needs.add(POSTGRESQL)
    return needs


def prepare(catalog: Catalog) -> None:
    """Make a new lake's catalog ready: its tables and the namespace, once, before several processes need them.

    A catalog that cannot be reached, or that refuses us, is noticed here and not at the first flush.
    """
    from pyiceberg.exceptions import NamespaceAlreadyExistsError
    from sqlalchemy.exc import SQLAlchemyError

    try:
        if catalog.python.properties.get(_NESSIE) == "true":
            raise InvalidSetting(
                "This REST catalog (Nessie) shows only the newest snapshot of a table.",
                hint="Whether a commit landed is read from a table's history. Use a catalog that keeps it.",
            )
        with contextlib.suppress(NamespaceAlreadyExistsError):
            catalog.python.create_namespace(catalog.namespace)
    except FloodmarkError:
        raise
    except SQLAlchemyError as error:
        raise InvalidSetting(
            f"The catalog of the lake cannot be used: {reason_of(getattr(error, 'orig', None) or error)}.",
            hint="Correct lake.uri, or the permissions there. Nothing was created.",
        ) from error
    except Exception as error:
        raise InvalidSetting(
            f"The catalog of the lake cannot be used: {reason_of(error)}.",
            hint="Correct the settings of the lake, or the permissions there. Nothing was created.",
        ) from error


def _for_spark(settings: CatalogSettings, shared: Mapping[str, str]) -> dict[str, str]:
    """The shared properties in Spark's words: which classes read the warehouse, and the region of S3."""
    scheme = (settings.warehouse or "").partition("://")[0]
    given = dict(shared)
    if scheme in _FILE_IO:
        given.setdefault("io-impl", _FILE_IO[scheme])
    if "s3.region" in given:
        given.setdefault("client.region", given["s3.region"])
    return given


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


def _resolved(section: str, settings: Mapping[str, str]) -> dict[str, str]:
    """The settings with what the environment and files hold of them."""
    return {key: secret(value, key=f"{section}.{key}") for key, value in settings.items()}


def _addresses(section: str, uri: str, kind: str) -> tuple[dict[str, str], dict[str, str]]:
    """The catalog's address, as Spark takes it and as Python takes it."""
    from sqlalchemy.engine import make_url
    from sqlalchemy.exc import ArgumentError

    if kind == "rest":
        _check_address(section, uri)
        return {"type": "rest", "uri": uri}, {"type": "rest", "uri": uri}
    try:
        url = make_url(uri)
    except (ArgumentError, ValueError):  # the latter for a port that is no number
        url = None
    if url is not None and url.get_backend_name() == "sqlite" and url.database:
        spark = {"uri": f"jdbc:sqlite:{url.database}?busy_timeout=60000"}
        python = f"sqlite:///{url.database}"
    elif url is not None and url.get_backend_name() == "postgresql" and url.host:
        spark = {"uri": f"jdbc:postgresql://{url.host}:{url.port or 5432}/{url.database or ''}{_query(url)}"}
        spark |= {"jdbc.user": url.username} if url.username else {}
        spark |= {"jdbc.password": str(url.password)} if url.password else {}
        python = url.set(drivername="postgresql+psycopg").render_as_string(hide_password=False)
    else:
        raise InvalidSetting(
            f"{section}.uri is not the address of a SQL database that can be used here.",
            hint="Write sqlite:////absolute/path or postgresql://user@host/database.",
        )
    return {"type": "jdbc", "jdbc.schema-version": "V1", **spark}, {"type": "sql", "uri": python}


def _query(url: URL) -> str:
    """What follows the address, in the words of the JDBC driver. What only Python's driver knows is left out."""
    given = {key: value for key, value in url.query.items() if key in _QUERY and isinstance(value, str)}
    if "target_session_attrs" in given:
        given["target_session_attrs"] = _SESSIONS.get(given["target_session_attrs"], "any")
    found = urlencode({_QUERY[key]: value for key, value in given.items()}, quote_via=quote)
    return f"?{found}" if found else ""


def _check_address(section: str, uri: str) -> None:
    """Here, where it is not repeated: libraries show an address that they cannot read, with the password in it."""
    try:
        parts = urlsplit(uri)
        whole = parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0
    except ValueError:
        whole = False
    if not whole:
        raise InvalidSetting(
            f"{section}.uri is not the address of a REST catalog.", hint="Write https://host[:port][/path]."
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
