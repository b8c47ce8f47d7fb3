"""Shared by the commands: the store, and common options."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset
    from floodmark.store import Store

F = TypeVar("F", bound=Callable[..., Any])


def store_path() -> Path:
    """The store that `-s` or `FLOODMARK_STORE` named."""
    path = click.get_current_context().find_root().obj
    if not isinstance(path, Path):
        raise TypeError("the command was called outside of the floodmark group")
    return path


def open_store() -> Store:
    """Open the named store."""
    from floodmark.store import open_store as opened

    return opened(store_path())


def declared_dataset(store: Store, name: str) -> Dataset:
    """The declared dataset; `UnknownDataset` lists the existing ones."""
    store.horizon(name)
    return next(item for item in store.datasets() if item.name == name)


def json_option(command: F) -> F:
    """`--json`: the report for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")(command)


def column_list(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> list[str] | None:
    """`a,b` as a list; spaces around names are ignored."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("give column names separated by commas, like a,b")
    return names
