"""Rows that are taken as they are would also be taken by the careful way, unchanged; and what it refuses never is."""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime
from typing import Any

import pytest

from floodmark.config import SpoolSettings
from floodmark.rows.envelope import decode_envelope, encode_envelope
from floodmark.rows.fit import Demands, fit_rows
from floodmark.rows.plain import ROWS_MAX, PlainRows
from floodmark.schema import Schema
from seeds import SEED

SCHEMA = Schema.declare(
    {
        "id": "long not null",
        "small": "int",
        "text": "string",
        "ratio": "double",
        "on": "boolean",
        "at": "timestamp",
        "day": "date",
        "doc": "json",
        "price": "decimal(12,2)",
    }
)
PLAIN = PlainRows(SCHEMA, ())
TIMES = [
    "2026-01-31T12:00:00",
    "2026-01-31 12:00:00Z",
    "2026-01-31T12:00:00.5+02:00",
    "2026-01-31T12:00:00.123456-14:00",
    "1000-01-01T00:00:00+14:00",
    "9998-12-31T23:59:59-14:59",
]
VALUES: list[Any] = [
    None, 0, 1, -1, 2**31 - 1, 2**31, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, True, False, 0.0, -0.0, 1.5, math.nan,
    math.inf, "", "a", "ä", "\ud800", "x" * 1000, "2026-02-30T00:00:00Z", "2026-01-31T24:00:00Z",
    "9999-12-31T23:59:59Z",
    "0999-01-01T00:00:00Z", "2026-01-31", "2026-01-31T12:00:60Z", "٢٠٢٦-01-31T12:00:00Z", b"a", [1], {"a": 1},
    datetime(2026, 1, 31, tzinfo=UTC), *TIMES,
]  # fmt: skip


@pytest.mark.parametrize("at", TIMES)
def test_rows_of_known_columns_are_taken_as_they_are(at: str) -> None:
    row = {"id": 1, "small": 2, "text": "ä", "ratio": 0.5, "on": True, "at": at}
    assert PLAIN.columns([row, {**row, "text": None}]) == (
        list(row),
        [[1, 1], [2, 2], ["ä", None], [0.5, 0.5], [True, True], [at, at]],
    )


@pytest.mark.parametrize(
    "rows",
    [
        [],
        [{}],
        ({"id": 1},),
        [{"id": 1, "new": 1}],
        [{"id": None}],
        [{"text": "without an id"}],
        [{"id": 1}, {"id": 2, "text": "a"}],
        [{"id": 1}] * (ROWS_MAX + 1),
        [{"id": 1, "day": "2026-01-31"}],
        [{"id": 1, "doc": {}}],
        [{"id": 1, "price": 1}],
        [[1]],
    ],
)
def test_what_is_not_certain_is_left_to_the_careful_way(rows: Any) -> None:
    assert PLAIN.columns(rows) is None


def test_an_identity_that_is_demanded_must_be_there() -> None:
    plain = PlainRows(SCHEMA, (("text", "small"), ("at",)))
    assert plain.columns([{"id": 1, "text": "a"}]) is None
    assert plain.columns([{"id": 1, "text": "a", "small": None}]) is None
    assert plain.columns([{"id": 1, "text": "a", "small": 1}]) is not None
    assert plain.columns([{"id": 1, "at": TIMES[0]}]) is not None


def test_a_yes_is_what_the_careful_way_says() -> None:
    chance = random.Random(SEED)
    names = list(SCHEMA.names)
    taken = 0
    for _ in range(20_000):
        columns = chance.sample(names, chance.randrange(1, 4))
        rows = [{"id": 7, **{name: chance.choice(VALUES) for name in columns}} for _ in range(chance.randrange(1, 3))]
        found = PLAIN.columns(rows)
        if found is None:
            continue
        taken += 1
        fitted = fit_rows(SCHEMA, rows, Demands(SpoolSettings()))
        assert not fitted.fit.misfits, rows
        assert not fitted.fit.evolves, rows
        line = encode_envelope(*found, rows=len(rows))
        assert line == encode_envelope(fitted.columns, fitted.values, rows=len(rows))
        back = decode_envelope(line)
        again = fit_rows(
            SCHEMA,
            [dict(zip(back.columns, row, strict=True)) for row in zip(*back.values, strict=True)],
            Demands(SpoolSettings()),
        )
        assert again.fit.table.equals(fitted.fit.table), rows
    assert taken > 500
