"""Providers: Python functions that read history from other sources than files and tables. Pure Python, no store.

| word     | meaning                                                                                        |
|----------|------------------------------------------------------------------------------------------------|
| provider | a named pair of functions: `plan` says what there is to read, `read` gives its items           |
| unit     | what is read as one resumable step. Its id names *fixed content*: reading it again gives the   |
|          | same items in the same order. A file that has grown is another unit                            |
| item     | one row with the place it comes from, or a problem with the place it was found                 |

A provider has no state. The loader records which units are done, and reads the others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from floodmark.errors import FloodmarkError, InvalidName, ProviderFailed, UnknownProvider, reason_of

__all__ = ["Declaration", "Item", "Provider", "Unit", "find", "known", "provider"]


@dataclass(frozen=True, slots=True)
class Unit:
    """What is read as one resumable step. The id is stable and identifies fixed content."""

    id: str
    description: str = ""
    bytes: int | None = None
    """Its size, for progress; None if unknown."""


@dataclass(frozen=True, slots=True)
class Item:
    """One row, or the content that is not a row; and its place."""

    row: Mapping[str, Any] | None
    provenance: str
    """Its source, for users: `path:line`."""
    problem: str | None = None
    """Why there is no row."""
    content: str | None = None
    """The content instead of a row, possibly shortened."""

    def __post_init__(self) -> None:
        if (self.row is None) == (self.problem is None):
            raise ValueError("an item has either a row or a problem")

    @classmethod
    def broken(cls, provenance: str, problem: str, content: str | None = None) -> Item:
        """Content that is not a row: the loader quarantines it."""
        return cls(None, provenance, problem, content)


@dataclass(frozen=True, slots=True)
class Declaration:
    """A dataset declaration that fits the provider's rows: the arguments of `add_dataset`."""

    identity: Sequence[Sequence[str]] = ()
    event_time: str | None = None
    partition_by: Sequence[str] = ()
    schema: Mapping[str, str] = field(default_factory=dict)


Plan = Callable[[str | None], Iterable[Unit]]
Read = Callable[[Any], Iterable[Item | Mapping[str, Any]]]


@dataclass(frozen=True, slots=True)
class Provider:
    """A named reader of history: `plan` returns the units, `read` the items of one unit.

    Any exception of the functions becomes `ProviderFailed`, so that one broken provider does not stop the others.
    Floodmark's own errors are raised unchanged.
    """

    name: str
    reading: Read
    planning: Plan | None = None
    declaration: Declaration = field(default_factory=Declaration)
    overlapping: bool = False
    """Whether a unit can repeat items of an earlier one, such as a file that has grown. Its dataset then needs an
    identity, to detect the duplicates.
    """

    def plan(self, location: str | None = None) -> list[Unit]:
        """The units to read, in order. Reads as little as possible."""
        if self.planning is None:
            # Without a plan the location is the one unit: the function reads it from its beginning each time.
            return [Unit(location or self.name, f"everything at {location}" if location else "everything")]
        try:
            units = list(self.planning(location))
        except FloodmarkError:
            raise
        except Exception as error:
            where = f" at {location}" if location else ""
            raise self._failed(f"could not plan its units{where}", error) from error
        self._check_ids(units)
        return units

    def read(self, unit: Unit) -> Iterator[Item]:
        """The items of one unit, one at a time: they are not collected in memory."""
        try:
            for position, item in enumerate(self.reading(unit)):
                # A plain row is an item whose place is its index in the unit.
                yield item if isinstance(item, Item) else Item(item, f"{unit.id}#{position}")
        except FloodmarkError:
            raise
        except Exception as error:
            raise self._failed(f"stopped while reading {unit.id}", error) from error

    def _check_ids(self, units: list[Unit]) -> None:
        seen: set[str] = set()
        for unit in units:
            if not unit.id or unit.id in seen:
                raise ProviderFailed(
                    f"Provider {self.name!r} planned {'two units' if unit.id else 'a unit'} with the id {unit.id!r}.",
                    hint="Give every unit a unique id that refers to the same content in every run.",
                )
            seen.add(unit.id)

    def _failed(self, what: str, error: Exception) -> ProviderFailed:
        return ProviderFailed(
            f"Provider {self.name!r} {what}: {type(error).__name__}: {reason_of(error)}.",
            hint="The rows that it returned before are kept. Fix the cause and run it again.",
        )


# ── By name: registered in this process, built in, or installed ──────────────────────────────────────────────────────


GROUP = "floodmark.providers"
"""The entry point group under which an installed package names its providers."""

SHIPPED = {
    "access-logs": "floodmark.providers.access_logs:access_logs",
    "transcripts": "floodmark.providers.transcripts:transcripts",
}

registered: dict[str, Any] = {}


def provider(
    name: str,
    *,
    plan: Plan | None = None,
    declaration: Declaration | None = None,
    overlapping: bool = False,
) -> Callable[[Read], Provider]:
    """Make a provider of a generator function that takes a unit and yields items, or bare rows.

    `plan` takes a location (or None) and gives the units. Without it the location itself is the one unit.
    """
    if not isinstance(name, str) or not name or name != name.strip() or ":" in name:
        raise InvalidName(
            f"{name!r} is not a valid provider name.",
            hint="Use a word such as `tickets`, without a colon: a colon marks the path of a function.",
        )

    def made(function: Read) -> Provider:
        new = Provider(name, function, plan, declaration or Declaration(), overlapping)
        registered[name] = new  # a later one with the same name replaces it
        return new

    return made


def known() -> list[str]:
    """All known names, sorted. Loads nothing, so a broken provider is also listed."""
    return sorted({*registered, *SHIPPED, *(point.name for point in _installed())})


def find(name: str) -> Provider:
    """The provider of that name: registered, built in, installed as an entry point, or `package.module:function`.

    `UnknownProvider` if there is none, `ProviderFailed` if its module cannot be loaded.
    """
    found = _resolve(name)
    if isinstance(found, Provider):
        return found
    # `package.module:function` may also name a plain generator function, which needs no decorator.
    return Provider(name, found)


def _resolve(name: str) -> Any:
    """Load the provider, or plain function, of that name."""
    if ":" in name:
        return _loaded(name, lambda: _by_path(name))
    if name in registered:
        return registered[name]
    if name in SHIPPED:
        return _loaded(name, lambda: _by_path(SHIPPED[name]))
    for point in _installed():
        if point.name == name:
            return _loaded(name, point.load)
    raise UnknownProvider(
        f"There is no provider {name!r}.",
        hint=f"The known providers are {', '.join(known())}. Give any other by its path, package.module:function.",
    )


def _installed() -> list[EntryPoint]:
    return sorted(entry_points(group=GROUP), key=lambda point: (point.name, point.value))


def _by_path(path: str) -> Any:
    module, _, attribute = path.partition(":")
    return getattr(import_module(module), attribute)


def _loaded(name: str, load: Callable[[], Any]) -> Any:
    try:
        found = load()
    except Exception as error:
        raise ProviderFailed(
            f"Provider {name!r} cannot be loaded: {type(error).__name__}: {reason_of(error)}.",
            hint="Check the path, and that its package is installed here.",
        ) from error
    if not callable(found) and not hasattr(found, "read"):
        raise ProviderFailed(
            f"Provider {name!r} is a {type(found).__name__}.",
            hint="A provider must be a generator function, with or without @floodmark.provider.",
        )
    return found
