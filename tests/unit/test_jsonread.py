"""No number of a JSON text changes while it is read, however it is written, and whoever wrote it."""

from __future__ import annotations

import json
import pickle
from decimal import Decimal

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.jsonread import ExactNumber, lines_change, read_json
from floodmark.wire import Limits
from floodmark.wire.lines import columns_of

DIGITS = st.text("0123456789", min_size=1, max_size=40).map(lambda text: text.lstrip("0") or "0")
NUMBERS = st.builds(
    lambda sign, whole, fraction, exponent: f"{sign}{whole}{fraction}{exponent}",
    st.sampled_from(["", "-"]),
    DIGITS,
    st.just("") | st.text("0123456789", min_size=1, max_size=40).map(lambda text: f".{text}"),
    st.just("") | st.integers(-330, 300).map(lambda number: f"e{number}") | st.integers(0, 300).map("E+{}".format),
)
TEXTS = st.text(max_size=12) | NUMBERS


def exactly(value: object) -> Decimal:
    if isinstance(value, ExactNumber):
        return value.decimal
    return Decimal(repr(value))


@given(NUMBERS, TEXTS, st.sampled_from([",", ", ", " ,\n"]), st.booleans())
def test_every_number_is_read_as_it_is_written(number, text, comma, ascii_only):
    written = f'{{"x":[{number}{comma}{json.dumps(text, ensure_ascii=ascii_only)}]}}'.encode()
    try:
        orjson.loads(written)
    except ValueError:
        return  # beyond the largest double: refused as a whole, and so not changed
    value, other = read_json(written)["x"]
    assert exactly(value) == Decimal(number)
    assert other == text


@given(st.lists(NUMBERS, min_size=1, max_size=5))
def test_lines_are_suspected_together_exactly_if_one_of_them_would_be_changed(numbers):
    lines = [f'{{"x": {number}}}'.encode() for number in numbers]
    try:
        values = [orjson.loads(line) for line in lines]
    except ValueError:
        return
    changed = any(exactly(value["x"]) != Decimal(number) for value, number in zip(values, numbers, strict=True))
    assert lines_change(lines, values) or not changed


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (b"18446744073709551617", 18446744073709551617),
        (b"-9223372036854775809", -9223372036854775809),
        (b"1.1", 1.1),
        (b"0.30000000000000004", 0.30000000000000004),
        (b'{"a": "18446744073709551617"}', {"a": "18446744073709551617"}),
        (b'{"a": 1, "a": 2}', {"a": 2}),
        (b'{"a": 18446744073709551617, "a": 18446744073709551618}', {"a": 18446744073709551618}),
    ],
)
def test_numbers_that_a_double_carries_stay_plain_and_the_last_of_two_keys_counts(text, value):
    assert read_json(text) == value
    assert type(read_json(text)) is type(value)


def test_a_number_of_many_digits_has_one_form_and_survives_the_way_to_a_worker():
    one, other = read_json(b"0.12345678901234567890"), read_json(b"1234567890123456789e-19")
    assert type(one) is ExactNumber
    assert one.text == other.text == "0.1234567890123456789"
    assert pickle.loads(pickle.dumps(one)).text == one.text


@pytest.mark.parametrize("text", [b"1e400", b"1" * 1200, b"0." + b"1" * 1200, b"[" * 5000, b"NaN", b"[1e-400, NaN]"])
def test_what_is_no_number_is_refused_and_not_changed(text):
    with pytest.raises(ValueError, match=r"."):
        read_json(text)


def test_a_chunk_of_lines_is_read_exactly_also_by_the_fast_reader_of_chunks():
    content = b'{"j":0.1234567890123456789}\n{"j":0.5}\n'
    _, (values,), count = columns_of(content, Limits())
    assert (values[0].text, values[1], count) == ("0.1234567890123456789", 0.5, 2)
    assert columns_of(b'{"d":0.8444218515250481}\n', Limits())[1] == [(0.8444218515250481,)]
