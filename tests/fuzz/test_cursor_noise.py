"""Cursors of any text: the one that was handed out, or refused."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import HALVES, INTEGERS, JSON, PLAIN, TEXTS, altered, mutated
from trying import inputs, refusal, scratch_store

from floodmark.errors import FloodmarkError, InvalidCursor
from floodmark.sequence import Cursor
from floodmark.store import Store

MADE = Cursor("4ea7ac9e-e236-403a-9d9c-13659cdc30ac", "orders", None, 41)


def sealed(content: Any) -> str:
    """What is inside, with check digits that are right."""
    payload = json.dumps(content, default=repr).encode()
    text = base64.urlsafe_b64encode(payload + zlib.crc32(payload).to_bytes(4, "big")).decode().rstrip("=")
    return f"fm1.{text}"


CURSORS = st.one_of(
    mutated(str(MADE).encode()).map(lambda text: text.decode("utf-8", "surrogateescape")),
    altered(["4ea7ac9e", "orders", None, 41]).map(sealed),
    st.tuples(TEXTS, TEXTS, st.none() | TEXTS, INTEGERS.filter(lambda n: abs(n) < 10**50)).map(list).map(sealed),
    JSON.map(sealed),
    TEXTS,
    HALVES,
    st.sampled_from(["fm", "fm.", "fm1", "fm1.", "fm²." + "A" * 8, "fm" + "9" * 5000 + ".AAAA", "fm01." + "A" * 12]),
)


@given(text=CURSORS)
@inputs(40)
def test_a_cursor_is_read_as_it_was_written_or_refused(text: str) -> None:
    cursor, error = refusal("cursors", lambda: Cursor.parse(text))
    assert error is None or type(error) is InvalidCursor
    if cursor is not None:
        assert Cursor.parse(str(cursor)) == cursor


@pytest.fixture(scope="module")
def stand() -> Iterator[Store]:
    with scratch_store() as store:
        store.add_dataset("orders", partition_by=["site"])
        store.capture("orders", [{"id": number, "site": "a"} for number in range(3)])
        store.flush("orders")
        yield store


SLICES = st.none() | TEXTS | HALVES | st.sampled_from(["site=a", "site!", "site=%61"]) | st.dictionaries(TEXTS, PLAIN)


@given(since=CURSORS, seq=INTEGERS, partition=SLICES)
@inputs(20)
def test_reading_since_anything_gives_rows_or_says_why_not(stand: Store, since: Any, seq: int, partition: Any) -> None:
    for cursor in (since, Cursor(stand.store_id, "orders", None, seq), Cursor(stand.store_id, "orders", "site=a", seq)):
        _, error = refusal(
            "cursors", lambda cursor=cursor: list(stand.read_since("orders", cursor, partition=partition))
        )
        assert error is None or isinstance(error, FloodmarkError)
    assert sum(batch.table.num_rows for batch in stand.read_since("orders")) == 3
