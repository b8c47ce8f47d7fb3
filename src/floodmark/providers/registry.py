"""Find a provider by name: registered in this process, built in, or installed."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from floodmark.errors import ProviderFailed, UnknownProvider, reason_of

GROUP = "floodmark.providers"
"""The entry point group under which an installed package names its providers."""

SHIPPED = {
    "access-logs": "floodmark.providers.access_logs:access_logs",
    "transcripts": "floodmark.providers.transcripts:transcripts",
}

registered: dict[str, Any] = {}


def register(name: str, provider: Any) -> None:
    """Register the provider in this process; a later one with the same name replaces it."""
    registered[name] = provider


def known() -> list[str]:
    """All known names, sorted. Loads nothing, so a broken provider is also listed."""
    return sorted({*registered, *SHIPPED, *(point.name for point in _installed())})


def resolve(name: str) -> Any:
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
