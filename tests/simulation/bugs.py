"""Bugs that are put into the product on purpose. Each undoes one protection; the simulation must find every one."""

from __future__ import annotations

from . import (  # noqa: F401 - each seeds its bugs
    seeded_backfill,
    seeded_capture,
    seeded_commit,
    seeded_delivery,
    seeded_hub,
    seeded_upkeep,
)
from .seeding import BUGS, Bug

__all__ = ["BUGS", "Bug"]
