"""What the tests feed to `capture`."""

from __future__ import annotations

import orjson


def lines(*rows: object) -> bytes:
    return b"".join(orjson.dumps(row) + b"\n" for row in rows)
