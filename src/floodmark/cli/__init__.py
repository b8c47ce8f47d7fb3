"""The command line: `floodmark [-s STORE] VERB`. One file per command, loaded when it is called."""

from __future__ import annotations

from floodmark.cli.entry import main

__all__ = ["main"]
