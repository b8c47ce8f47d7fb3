"""Rows like those of a chat log: about 330 bytes each as JSON, the same for the same seed."""

from __future__ import annotations

import random
import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

WORDS = [f"{a}{b}" for a in ("ra", "mo", "ti", "sel", "do", "ka", "ven", "lu") for b in ("n", "ter", "s", "ling", "")]
START = datetime(2026, 1, 1, tzinfo=UTC)


def rows(count: int, *, first: int = 0, seed: int = 0) -> list[dict[str, Any]]:
    chance = random.Random(seed * 1_000_003 + first)
    return [
        {
            "part_id": str(uuid.UUID(int=chance.getrandbits(128), version=4)),
            "ts": (START + timedelta(milliseconds=250 * (first + index))).isoformat(),
            "source": chance.choice(("github", "slack", "mail")),
            "role": chance.choice(("user", "assistant")),
            "tokens": chance.randrange(4000),
            "cost": round(chance.random(), 6),
            "text": " ".join(chance.choices(WORDS, k=35)),
        }
        for index in range(count)
    ]


def table(count: int, *, first: int = 0, seed: int = 0) -> pa.Table:
    made = pa.Table.from_pylist(rows(count, first=first, seed=seed))
    at = made.column_names.index("ts")
    return made.set_column(at, "ts", made["ts"].cast(pa.timestamp("us", tz="UTC")))


def renewed(made: pa.Table, *, first: int) -> pa.Table:
    """The same rows with ids of their own and later times: made at once, where making each would take the time."""
    count = made.num_rows
    digits = pa.py_buffer(random.Random(first).randbytes(16 * count).hex().encode())
    ids = pa.Array.from_buffers(pa.binary(32), count, [None, digits]).cast(pa.binary()).cast(pa.string())
    start = int(START.timestamp() * 1_000_000)
    times = pc.add(pc.multiply(pa.array(range(first, first + count), pa.int64()), 250_000), start)
    renewed = made.set_column(made.column_names.index("part_id"), "part_id", ids)
    return renewed.set_column(made.column_names.index("ts"), "ts", times.cast(pa.timestamp("us", tz="UTC")))
