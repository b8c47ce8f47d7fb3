"""`floodmark demo`: the complete pipeline on a scratch store, with its results checked."""

from __future__ import annotations

from floodmark.cli.demo.command import demo

__all__ = ["demo"]
