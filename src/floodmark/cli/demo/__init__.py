"""`floodmark demo`: the main job end to end, on a scratch store, with its claims checked."""

from __future__ import annotations

from floodmark.cli.demo.command import demo

__all__ = ["demo"]
