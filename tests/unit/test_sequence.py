"""Ranges, sets of them, cursors and tallies, against models that are too simple to be wrong."""

from __future__ import annotations

import base64
import itertools
import json
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.errors import InvalidCursor
from floodmark.sequence import CHECKSUM_MODULUS, SEQUENCE_MAX, Cursor, RangeSet, SequenceRange, Tally

SMALL = st.tuples(st.integers(0, 30), st.integers(0, 30)).map(lambda pair: SequenceRange(min(pair), max(pair)))


def numbers(item: SequenceRange) -> set[int]:
    return set(range(item.after + 1, item.through + 1))


# ── ranges ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("after", "through"), [(-1, 1), (2, 1), (0, SEQUENCE_MAX + 1), (-2, -1)])
def test_what_is_no_range_is_refused(after: int, through: int) -> None:
    with pytest.raises(ValueError, match="not a sequence range"):
        SequenceRange(after, through)


def test_the_highest_number_has_a_successor_in_64_bits() -> None:
    assert SEQUENCE_MAX + 1 == 2**63 - 1
    assert len(SequenceRange(SEQUENCE_MAX - 1, SEQUENCE_MAX)) == 1


@given(SMALL)
def test_a_range_holds_what_lies_above_its_start_up_to_its_end(item: SequenceRange) -> None:
    assert {n for n in range(-2, 40) if n in item} == numbers(item)
    assert len(item) == len(numbers(item))
    assert item.empty == (not numbers(item))
    assert "1" not in item


@given(SMALL, SMALL)
def test_an_intersection_is_what_both_hold(one: SequenceRange, other: SequenceRange) -> None:
    both = one.intersect(other)
    assert (numbers(both) if both else set()) == numbers(one) & numbers(other)
    assert both == other.intersect(one)


@given(st.lists(SMALL))
def test_ranges_sort_by_where_they_begin(items: list[SequenceRange]) -> None:
    assert [(r.after, r.through) for r in sorted(items)] == sorted((r.after, r.through) for r in items)
    assert all((a <= b) == ((a.after, a.through) <= (b.after, b.through)) for a in items for b in items)


def test_a_range_is_written_as_in_mathematics() -> None:
    assert str(SequenceRange(3, 7)) == "(3, 7]"


# ── sets of ranges ───────────────────────────────────────────────────────────────────────────────────────────────


@given(st.lists(SMALL), SMALL)
def test_a_range_set_is_a_set(items: list[SequenceRange], whole: SequenceRange) -> None:
    """Whatever is added in whatever order: the same numbers, in the fewest ranges, in order."""
    held = RangeSet.of(items)
    model = set().union(*map(numbers, items)) if items else set()
    assert set().union(*map(numbers, held), set()) == model
    assert len(held) == len(model)
    assert {n for n in range(-1, 40) if n in held} == model
    ranges = list(held)
    assert all(not r.empty for r in ranges)
    assert all(a.through < b.after for a, b in itertools.pairwise(ranges)), "touching ranges are one"
    assert set().union(*map(numbers, held.missing_within(whole)), set()) == numbers(whole) - model


def test_touching_ranges_are_merged_and_holes_are_told() -> None:
    held = RangeSet.of([SequenceRange(0, 5), SequenceRange(7, 9), SequenceRange(5, 6), SequenceRange(8, 8)])
    assert list(held) == [SequenceRange(0, 6), SequenceRange(7, 9)]
    assert held.missing_within(SequenceRange(2, 12)) == [SequenceRange(6, 7), SequenceRange(9, 12)]


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────

CURSORS = st.builds(
    Cursor,
    store_id=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    dataset=st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    partition=st.none() | st.text(st.characters(exclude_categories=["Cs"]), max_size=20),
    seq=st.integers(0, SEQUENCE_MAX),
)


@given(CURSORS)
def test_a_cursor_survives_its_text(cursor: Cursor) -> None:
    """The text is one word that a shell, a URL and a file name take as it is."""
    text = str(cursor)
    assert Cursor.parse(text) == cursor
    assert Cursor.parse(f"  {text}\n") == cursor
    assert set(text) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.")


@given(CURSORS, st.data())
def test_a_cursor_with_one_character_changed_is_refused(cursor: Cursor, data: st.DataObject) -> None:
    """A mistyped cursor is refused rather than read as another place."""
    text = str(cursor)
    at = data.draw(st.integers(text.index(".") + 1, len(text) - 2))
    other = data.draw(st.sampled_from([c for c in "abcXYZ019-_" if c != text[at]]))
    with pytest.raises(InvalidCursor):
        Cursor.parse(text[:at] + other + text[at + 1 :])


def forged(payload: object, version: str = "fm1") -> str:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    sealed = body + zlib.crc32(body).to_bytes(4, "big")
    return f"{version}.{base64.urlsafe_b64encode(sealed).decode().rstrip('=')}"


def test_the_forger_here_makes_good_cursors_too() -> None:
    assert Cursor.parse(forged(["s", "d", None, 5])) == Cursor("s", "d", None, 5)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "fm",
        "fm1",
        "fm1.",
        ".",
        "17",
        "fm.abc",
        "fmx.abc",
        "fm¹.abc",
        "gm1.abcdefgh",
        "fm1.ab!d",
        "fm1.é",
        "fm1.a",
        forged([1, "d", None, 5]),
        forged(["s", None, None, 5]),
        forged(["s", "d", 7, 5]),
        forged(["s", "d", None, -1]),
        forged(["s", "d", None, SEQUENCE_MAX + 1]),
        forged(["s", "d", None, 1.0]),
        forged(["s", "d", None, True]),
        forged(["s", "d", None, "5"]),
        forged(["s", "d", None]),
        forged({"store": "s"}),
        forged(b"[" * 100_000),
        forged(b"\xff\xff"),
        forged(7),
        forged(["s", "d", None, 5])[:-3],
    ],
)
def test_what_is_no_cursor_is_refused_with_a_hint(text: str) -> None:
    with pytest.raises(InvalidCursor) as caught:
        Cursor.parse(text)
    assert caught.value.hint
    assert len(caught.value.message) < 200


def test_a_newer_cursor_is_refused_as_such() -> None:
    with pytest.raises(InvalidCursor, match="version 2"):
        Cursor.parse(forged(["s", "d", None, 5], version="fm2"))


# ── tallies ──────────────────────────────────────────────────────────────────────────────────────────────────────

TALLIES = st.builds(Tally, st.integers(0, 2**40), st.integers(0, CHECKSUM_MODULUS - 1))


@given(TALLIES, TALLIES, TALLIES)
def test_tallies_of_disjoint_parts_add_up_in_any_order(a: Tally, b: Tally, c: Tally) -> None:
    assert (a + b) + c == a + (b + c) == (c + a) + b
    assert a + b - b == a
    assert a + Tally() == a
    assert 0 <= (a + b).checksum < CHECKSUM_MODULUS


@given(TALLIES)
def test_a_tally_survives_its_text(a: Tally) -> None:
    assert len(a.checksum_text) == 16
    assert Tally.of(a.rows, a.checksum_text) == a


def test_a_version_of_thousands_of_digits_is_refused_as_any_other() -> None:
    with pytest.raises(InvalidCursor, match="version 9999"):
        Cursor.parse("fm" + "9" * 5000 + ".AAAA")


def test_a_cursor_with_half_a_character_in_a_name_is_damaged() -> None:
    with pytest.raises(InvalidCursor, match="damaged"):
        Cursor.parse(forged(["s", "\ud800", None, 5]))
