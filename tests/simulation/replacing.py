"""Putting something else in the place of a function, for a while."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any


@contextlib.contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let `owner.name` be `value` while the block runs."""
    before = owner.__dict__[name] if name in vars(owner) else getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)


@contextlib.contextmanager
def everywhere(function: Callable[..., Any], other: Callable[..., Any]) -> Iterator[None]:
    """The same for a function of the product, in every module that has imported it."""
    with contextlib.ExitStack() as places:
        for name, module in list(sys.modules.items()):
            if name.startswith("floodmark.") and getattr(module, function.__name__, None) is function:
                places.enter_context(replaced(module, function.__name__, other))
        yield
