"""Progress of work in named steps, on standard error."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def steps(title: str) -> Iterator[Callable[[str], None] | None]:
    """Show the step that is under way; only where somebody looks."""
    if not sys.stderr.isatty():
        yield None
        return
    from rich.console import Console

    with Console(stderr=True).status(f"{title} …") as status:
        yield lambda step: status.update(f"{title}: {step} …")
