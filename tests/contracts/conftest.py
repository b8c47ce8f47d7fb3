"""What the contract suites run on: every implementation of a contract, each test on a fresh one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from lakes import blocks, driver, spark_driver  # noqa: F401 - fixtures

from floodmark.control.database import Database, sqlite_url
from tables import lay_out, postgres_schemas, postgres_server  # noqa: F401 - fixtures


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)], scope="session")
def dialect(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def database_url(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> str:
    """The URL of an empty control database: a file, or a schema on a real server."""
    if dialect == "sqlite":
        return f"sqlite:///{tmp_path / 'control.db'}"
    return request.getfixturevalue("postgres_server").create_schema()


@pytest.fixture
def database(request: pytest.FixtureRequest, dialect: str, tmp_path: Path) -> Iterator[Database]:
    """A control database with its tables."""
    with contextlib.ExitStack() as stack:
        if dialect == "sqlite":
            made = Database(sqlite_url(tmp_path / "control.db"))
            lay_out(made)
        else:
            made = Database(stack.enter_context(request.getfixturevalue("postgres_schemas").lend()))
        stack.callback(made.close)
        yield made
