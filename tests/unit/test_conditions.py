"""What a row filter may hold: a text is refused, or it becomes SQL that holds nothing but what is on the list."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from floodmark.lake.conditions import ALLOWED, CHARACTERS_MAX, TYPES, Inadmissible, columns_of, parse, spark_sql

COLUMNS = ("id", "site", "on", "total amount", "case", "select")
WORDS = (
    *COLUMNS,
    *[
        "AND",
        "OR",
        "NOT",
        "IS",
        "NULL",
        "IN",
        "BETWEEN",
        "LIKE",
        "ESCAPE",
        "CASE",
        "WHEN",
        "THEN",
        "ELSE",
        "END",
        "CAST",
        "AS",
        "INTERVAL",
        "DATE",
        "TIMESTAMP",
    ],
    *[
        "=",
        "<>",
        "<",
        "(",
        ")",
        "(",
        ")",
        ",",
        "+",
        "-",
        "*",
        "/",
        "%",
        "||",
        ".",
        "[",
        "]",
        "!",
        "<=>",
        ";",
        "$",
        "${",
        "}",
        ":",
        "?",
        "@",
        "--",
        "/*",
        "*/",
        "->",
        "`",
        "'",
        '"',
        "\\",
        "#",
        "{",
    ],
    *[
        "1",
        "2.5",
        "1e3",
        "10L",
        "'text'",
        "'it''s'",
        '"two"',
        "'a\\'b'",
        "r'\\d'",
        "X'1F'",
        "'${env:HOME}'",
        "`site`",
        "`total",
        "amount`",
        "`reflect`",
    ],
    *[
        "lower",
        "coalesce",
        "year",
        "reflect",
        "java_method",
        "rand",
        "now",
        "current_date",
        "SELECT",
        "FROM",
        "exists",
        "IDENTIFIER",
        "string",
        "int",
    ],
)


@given(st.lists(st.sampled_from(WORDS), max_size=14).map(" ".join) | st.text(max_size=60))
def test_a_text_is_refused_by_name_or_becomes_sql_of_listed_parts(text: str) -> None:
    try:
        node = parse(text, COLUMNS)
        made = spark_sql(node)
    except Inadmissible:
        return
    assert columns_of(node) <= set(COLUMNS)
    bare = re.sub(r"'[^']*'", "''", made)
    assert not re.search(r"[;$?:@#\\{}]|--|/\*|->", bare), made
    assert "${" not in made
    assert {name.strip("`") for name in re.findall(r"`[^`]+`", bare)} - set(COLUMNS) <= set(re.findall(r"\w+", text))
    called = {name.lower() for name in re.findall(r"([A-Za-z_]\w*)\(", re.sub(r"`[^`]+`", "``", bare))}
    assert called <= {*ALLOWED, "char", "concat", "cast", "try_cast", "extract", "and", "or", "not", "in", *TYPES}


@pytest.mark.parametrize(
    ("text", "made"),
    [
        ("SITE = 'a' OR id=1 AND NOT id = 2", "((`site` = 'a') OR ((`id` = 1) AND (NOT (`id` = 2))))"),
        ("id = 1 + 2 * 3 - 4", "(`id` = ((1 + (2 * 3)) - 4))"),
        (
            "site = 'it''s ${x} \\\\ \\n'",
            "(`site` = concat('it', char(39), 's ', char(36), '{x} ', char(92), ' ', char(10), ''))",
        ),
        ("`case` IS NOT NULL AND `total amount` > -1.5", "((`case` IS NOT NULL) AND (`total amount` > (- 1.5)))"),
        ("on between date '2026-01-01' and on", "(`on` BETWEEN DATE '2026-01-01' AND `on`)"),
    ],
)
def test_a_condition_is_written_anew_with_its_meaning_in_parentheses(text: str, made: str) -> None:
    assert spark_sql(parse(text, COLUMNS)) == made


@pytest.mark.timeout(120)  # each is read once: looked at anew from every quote, this would take hours
@pytest.mark.parametrize("text", ["'\\'" * 20_000, "(" * 20_000, "id = 1 OR " * 2_000, "a" * (CHARACTERS_MAX + 1)])
def test_a_long_text_is_refused_soon(text: str) -> None:
    with pytest.raises(Inadmissible):
        parse(text, COLUMNS)
