"""Shared by the commands: the store, and common options."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

import click

if TYPE_CHECKING:
    from floodmark.control.datasets import Dataset
    from floodmark.store import Store

DOWNLOADS = "floodmark.jars"
"""The log in which a download reports what it does."""
F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def store_path() -> Path:
    """The store that `-s` or `FLOODMARK_STORE` named."""
    path = click.get_current_context().find_root().obj
    if not isinstance(path, Path):
        raise TypeError("the command was called outside of the floodmark group")
    return path


def open_store() -> Store:
    """Open the named store."""
    from floodmark.store import open_store as opened

    tell_of_downloads()
    return opened(store_path())


def tell_of_downloads() -> None:
    """If Spark is started and has no jars yet, they are downloaded: say so, on standard error."""
    log = logging.getLogger(DOWNLOADS)
    if not log.handlers:
        log.addHandler(_ProgressLines())
        log.setLevel(logging.INFO)
        log.propagate = False


class _ProgressLines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(record.getMessage(), err=True)


def declared_dataset(store: Store, name: str) -> Dataset:
    """The declared dataset; `UnknownDataset` lists the existing ones."""
    store.horizon(name)
    return next(item for item in store.datasets() if item.name == name)


def json_option(command: F) -> F:
    """`--json`: the report for programs."""
    return click.option("--json", "as_json", is_flag=True, help="Print the report as one JSON document.")(command)


class Amount(click.FloatRange):
    """A number within bounds. NaN is none, although it is below no bound and above none."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        found: float = super().convert(value, param, ctx)
        if math.isnan(found):
            self.fail(f"{value!r} is not a number", param, ctx)
        return found


def lake_option(command: F) -> F:
    """`--lake KEY=VALUE`, any number of times."""
    return click.option(
        "--lake",
        metavar="KEY=VALUE",
        multiple=True,
        callback=_assignments,
        help="Another setting of the lake, such as s3.endpoint=https://objects.example. Give secrets as env:NAME.",
    )(command)


def spark_options(command: F) -> F:
    """`--master` and `--remote`, as one table of settings."""

    @functools.wraps(command)
    def called(*arguments: Any, master: str | None, remote: str | None, **options: Any) -> Any:
        given = {"master": master, "remote": remote}
        return command(*arguments, spark={key: value for key, value in given.items() if value}, **options)

    with_remote = click.option("--remote", metavar="URL", help="A Spark Connect server: sc://host:15002.")(called)
    with_master = click.option("--master", metavar="URL", help="The Spark master: spark://host:7077, yarn, k8s://….")
    return cast("F", with_master(with_remote))


def _assignments(_ctx: click.Context, _parameter: click.Parameter, given: tuple[str, ...]) -> dict[str, str]:
    if any("=" not in item or item.startswith("=") for item in given):
        raise click.BadParameter("write it as KEY=VALUE")
    return each_once((key, value) for key, _, value in (item.partition("=") for item in given))


def each_once(pairs: Iterable[tuple[str, T]], option: str | None = None) -> dict[str, T]:
    """The pairs by their keys. A key that is given twice is refused: one of its values would silently be ignored."""
    found: dict[str, T] = {}
    for key, value in pairs:
        if key in found:
            raise click.BadParameter(f"{key!r} is given twice.", param_hint=option)
        found[key] = value
    return found


def column_list(_ctx: click.Context, _parameter: click.Parameter, value: str | None) -> list[str] | None:
    """`a,b` as a list; spaces around names are ignored."""
    if value is None:
        return None
    names = [name.strip() for name in value.split(",")]
    if not all(names):
        raise click.BadParameter("give column names separated by commas, like a,b")
    return list(each_once((name, None) for name in names))


# ── what a shell completes ───────────────────────────────────────────────────────────────────────────────────────────


def dataset_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The datasets of the store that begin like this; none if it cannot be read."""
    return _named(context, incomplete, lambda store: [item.name for item in store.datasets()])


def sink_names(context: click.Context, _parameter: click.Parameter, incomplete: str) -> list[str]:
    """The sinks of the store that begin like this; none if it cannot be read."""
    return _named(context, incomplete, lambda store: [item.name for item in store.sinks()])


def _named(context: click.Context, incomplete: str, names: Callable[[Store], list[str]]) -> list[str]:
    from floodmark.store import open_store as opened

    try:
        # The group's function has not run: its options are only parsed.
        with opened(context.find_root().params.get("store") or Path()) as store:
            return [name for name in names(store) if name.startswith(incomplete)]
    except Exception:  # noqa: BLE001 - a shell that asks for words has no place for an error
        return []
