"""The language of row filters: read into a tree, and written again as text for an engine. Pure.

A condition is never handed on as it was typed. It is parsed into the nodes below, and an engine gets text that is
made from them, so that it can hold nothing but: columns of the dataset, literals, comparison, boolean and arithmetic
operators, IS, IN, BETWEEN, LIKE, CASE, casts to plain types, and the functions in `FUNCTIONS`. Anything else is
refused by name: it could run code, read other rows, files, the clock or the environment, or answer differently the
next time. Precedence is Spark's.

It is a small parser of our own on purpose. A parser for all of SQL accepts far more than may pass, and rewrites
functions and literals on the way: what a destination receives would depend on that parser's version.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from floodmark.schema.names import is_system_column, name_key

CHARACTERS_MAX = 1_000_000
DEPTH_MAX = 40
"""How deep parentheses and calls may be nested."""
CHAIN_MAX = 200
"""How many operators of one kind may follow each other; AND and OR have no such limit."""

FUNCTIONS: dict[str, str] = {
    "text": "ascii btrim char_length character_length concat concat_ws contains endswith get_json_object hex"
    " initcap instr lcase left length locate lower lpad ltrim octet_length position regexp_extract"
    " regexp_like regexp_replace repeat replace reverse right rpad rtrim split split_part startswith"
    " substr substring substring_index translate trim ucase upper",
    "numbers": "abs bround cbrt ceil ceiling exp floor isnan ln log log10 log2 mod nanvl pmod pow power round sign"
    " signum sqrt try_add try_divide try_multiply try_subtract",
    "null and choice": "coalesce greatest if ifnull isnotnull isnull least nullif nvl nvl2",
    "date and time": "add_months date date_add date_diff date_format date_from_unix_date date_part date_sub date_trunc"
    " dateadd datediff day dayofmonth dayofweek dayofyear from_unixtime from_utc_timestamp hour last_day"
    " make_date minute month months_between quarter second timestamp timestamp_micros timestamp_millis"
    " timestamp_seconds to_date to_timestamp to_utc_timestamp trunc try_to_timestamp unix_date unix_micros"
    " unix_millis unix_seconds unix_timestamp weekday weekofyear year",
    "hashes": "crc32 hash md5 sha1 sha2 xxhash64",
    "lists": "array_contains array_max array_min array_position array_size cardinality element_at size try_element_at",
}
"""Deterministic functions of Spark's, of their arguments alone, by what they are about."""
ALLOWED = frozenset(" ".join(FUNCTIONS.values()).split())
NEEDS_ARGUMENTS = frozenset({"unix_timestamp"})
"""Without an argument it is the clock."""
_TIMES = frozenset(FUNCTIONS["date and time"].split())
_OF_CONSTANTS = (_TIMES | set(FUNCTIONS["numbers"].split())) - {"date_format", "from_unixtime"}
"""May have no column: their result is no text."""
_CLOCK = re.compile(r"\s*(?:epoch|now|today|tomorrow|yesterday)\b", re.IGNORECASE)

TYPES = (
    *("boolean", "byte", "tinyint", "short", "smallint", "int", "integer", "long", "bigint", "float", "real"),
    *("double", "decimal", "numeric", "string", "date", "timestamp", "timestamp_ntz", "binary"),
)
UNITS = frozenset({"year", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond"})
EXTRACTED = UNITS - {"millisecond", "microsecond"} | {"quarter", "dayofweek", "dow", "doy"}


class Inadmissible(Exception):
    """Why a text is not a condition that may be used: a part of a sentence."""

    def __init__(self, problem: str, *, hint: str | None = None) -> None:
        super().__init__(problem)
        self.hint = hint


@dataclass(frozen=True, slots=True)
class Number:
    text: str


@dataclass(frozen=True, slots=True)
class Text:
    value: str


@dataclass(frozen=True, slots=True)
class Constant:
    """NULL, TRUE or FALSE."""

    word: str


@dataclass(frozen=True, slots=True)
class Typed:
    """`DATE '…'`, `TIMESTAMP '…'` or `X'…'`."""

    word: str
    value: str


@dataclass(frozen=True, slots=True)
class Interval:
    amount: str
    unit: str


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    fields: tuple[str, ...] = ()
    """The way into a struct."""


@dataclass(frozen=True, slots=True)
class Prefixed:
    sign: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Operation:
    sign: str
    left: Node
    right: Node


@dataclass(frozen=True, slots=True)
class Test:
    """`operand [NOT] word others`: BETWEEN, IN, LIKE, ILIKE, RLIKE, IS NULL, IS TRUE, IS DISTINCT FROM, …"""

    word: str
    operand: Node
    others: tuple[Node, ...] = ()
    negated: bool = False
    escape: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    subject: Node | None
    branches: tuple[tuple[Node, Node], ...]
    otherwise: Node | None


@dataclass(frozen=True, slots=True)
class Cast:
    word: str
    operand: Node
    type: str


@dataclass(frozen=True, slots=True)
class Extract:
    unit: str
    operand: Node


@dataclass(frozen=True, slots=True)
class Call:
    name: str
    arguments: tuple[Node, ...]


@dataclass(frozen=True, slots=True)
class Item:
    """`operand[index]`"""

    operand: Node
    index: Node


Node = (
    Number
    | Text
    | Constant
    | Typed
    | Interval
    | Column
    | Prefixed
    | Operation
    | Test
    | Case
    | Cast
    | Extract
    | Call
    | Item
)

# ── tokens ───────────────────────────────────────────────────────────────────────────────────────────────────────────

_TOKEN = re.compile(
    r"""
      (?P<blank>\s+)
    | (?P<comment>--|/\*)
    | (?P<raw>[rR]'[^']*'|[rR]"[^"]*")
    | (?P<hex>[xX]'[^']*'|[xX]"[^"]*")
    | (?P<text>'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.|"")*")
    | `(?P<quoted>[^`]+)`
    | (?P<number>(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?:[lL]|[sS]|[yY]|[dD]|[fF]|[bB][dD])?(?![\w.]))
    | (?P<word>[^\W\d]\w*)
    | (?P<sign><=>|<>|!=|<=|>=|==|\|\||.)
    """,
    re.VERBOSE | re.DOTALL,
)
_ESCAPED = re.compile(r"\\(u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|[0-3][0-7]{2}|.)", re.DOTALL)
_ESCAPES = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str

    @property
    def word(self) -> str:
        """In capitals, where it is one; else nothing: a quoted name is never a keyword."""
        return self.text.upper() if self.kind == "word" else ""


_END = _Token("end", "")


def _tokens(expression: str) -> Iterator[_Token]:
    for found in _TOKEN.finditer(expression):
        kind = str(found.lastgroup)
        if kind == "comment":
            raise Inadmissible("it has a comment")
        if kind == "sign" and found[kind] in "'\"`":  # at once: a search for each one's end would be quadratic
            raise Inadmissible("a quote in it is not closed")
        if kind in {"raw", "hex"}:
            yield _Token("text" if kind == "raw" else kind, found[kind][2:-1])
        elif kind == "text":
            yield _Token(kind, _unescaped(found[kind]))
        elif kind != "blank":
            yield _Token(kind, found[kind])


def _unescaped(literal: str) -> str:
    """The value of a literal, as Spark reads it."""
    quote = literal[0]

    def value(found: re.Match[str]) -> str:
        code = found[1]
        if code[0] in "uU" and len(code) > 1:
            if int(code[1:], 16) > 0x10FFFF:
                raise Inadmissible("a text in it has a character that does not exist")
            return chr(int(code[1:], 16))
        return chr(int(code, 8)) if len(code) == 3 else _ESCAPES.get(code, code)

    # Two quotes in a row are one, unless the first is escaped already.
    inside = re.sub(rf"(?s)\\.|{quote}{quote}", lambda m: m[0] if m[0][0] == "\\" else f"\\{quote}", literal[1:-1])
    return _ESCAPED.sub(value, inside)


# ── the parser ───────────────────────────────────────────────────────────────────────────────────────────────────────

_COMPARISONS = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">=", "<=>"})
_MORE_THAN_A_CONDITION = frozenset({"SELECT", "FROM", "WITH", "VALUES", "TABLE", "EXISTS", "OVER", "USING"})
_MOMENT = re.compile(r"[0-9][0-9A-Za-z :.+/_-]*")
_KEYWORDS = frozenset({"AND", "OR", "NOT", "IS", "IN", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "WHEN", "THEN", "ELSE"})


def parse(expression: str, columns: Collection[str] | None) -> Node:
    """The tree of a condition over these columns (None: whichever); `Inadmissible` says what may not pass."""
    if len(expression) > CHARACTERS_MAX:
        raise Inadmissible(f"it has {len(expression)} characters, and {CHARACTERS_MAX} is the maximum")
    tokens = list(_tokens(expression))
    if not tokens:
        raise Inadmissible("it is empty")
    parser = _Parser(tokens, None if columns is None else {name_key(name): name for name in columns})
    found = parser.disjunction()
    if parser.ahead is not _END:
        raise parser.unexpected()
    return found


def columns_of(node: Node) -> frozenset[str]:
    """The columns that a condition uses."""
    return frozenset(one.name for one in nodes_of(node) if isinstance(one, Column))


def nodes_of(node: Node) -> Iterator[Node]:
    """A node, and all below it."""
    waiting = [node]
    while waiting:
        one = waiting.pop()
        yield one
        match one:
            case Prefixed(_, inner) | Cast(_, inner, _) | Extract(_, inner):
                waiting.append(inner)
            case Operation(_, left, right) | Item(left, right):
                waiting += [left, right]
            case Test(_, operand, others):
                waiting += [operand, *others]
            case Case(subject, branches, otherwise):
                waiting += [part for part in (subject, otherwise) if part is not None]
                waiting += [part for branch in branches for part in branch]
            case Call(_, arguments):
                waiting += arguments


class _Parser:
    """Recursive descent; each method reads what binds tighter than the one above it."""

    def __init__(self, tokens: list[_Token], columns: dict[str, str] | None) -> None:
        self._tokens = tokens
        self._columns = columns
        self._place = 0
        self._depth = 0

    @property
    def ahead(self) -> _Token:
        return self._look(0)

    def _look(self, further: int) -> _Token:
        place = self._place + further
        return self._tokens[place] if place < len(self._tokens) else _END

    def _next(self) -> _Token:
        found = self.ahead
        self._place += 1
        return found

    def _took(self, *words: str) -> bool:
        """Whether the next tokens are these words or signs; then they are passed."""
        for further, wanted in enumerate(words):
            token = self._look(further)
            if (token.text if token.kind == "sign" else token.word) != wanted:
                return False
        self._place += len(words)
        return True

    def _demand(self, wanted: str) -> None:
        if not self._took(wanted):
            raise self.unexpected()

    def unexpected(self) -> Inadmissible:
        token = self.ahead
        if token is _END:
            return Inadmissible("it ends too early, or its parentheses do not match")
        if token.word in _MORE_THAN_A_CONDITION:
            return Inadmissible("it has a query (quote a column of that name with backticks)")
        if token.text == ";":
            return Inadmissible("it has a semicolon")
        if token.text == "$":
            return Inadmissible("it has a $, and variables are not replaced")
        return Inadmissible(f"{_shown(token)} is not valid at this place, or may not be used")

    # ── from loose to tight ──────────────────────────────────────────────────────────────────────────────────────

    def disjunction(self) -> Node:
        self._depth += 1
        if self._depth > DEPTH_MAX:
            raise Inadmissible(f"it is nested more than {DEPTH_MAX} deep")
        found = [self._conjunction()]
        while self._took("OR"):
            found.append(self._conjunction())
        self._depth -= 1
        return _balanced("OR", found)

    def _conjunction(self) -> Node:
        found = [self._negation()]
        while self._took("AND"):
            found.append(self._negation())
        return _balanced("AND", found)

    def _negation(self) -> Node:
        count = 0
        while self._took("NOT") or self._took("!"):
            count += 1
        found = self._predicate()
        if count:
            found = Prefixed("NOT", found)
        return Prefixed("NOT", found) if count and count % 2 == 0 else found

    def _predicate(self) -> Node:
        """A comparison, and one test of it; a second one needs parentheses, as in Spark."""
        operand = self._comparison()
        if self._took("IS"):
            return self._is(operand, negated=self._took("NOT"))
        negated = self._took("NOT")
        if self._took("BETWEEN"):
            low = self._comparison()
            self._demand("AND")
            return Test("BETWEEN", operand, (low, self._comparison()), negated)
        if self._took("IN"):
            self._demand("(")
            return Test("IN", operand, self._arguments(least=1), negated)
        if self._took("RLIKE") or self._took("REGEXP"):
            return Test("RLIKE", operand, (self._comparison(),), negated)
        for word in ("LIKE", "ILIKE"):
            if self._took(word):
                return Test(word, operand, (self._comparison(),), negated, self._escape())
        if negated:
            raise self.unexpected()
        return operand

    def _is(self, operand: Node, *, negated: bool) -> Node:
        if self._took("DISTINCT", "FROM"):
            return Test("IS DISTINCT FROM", operand, (self._comparison(),), negated)
        for word in ("NULL", "TRUE", "FALSE", "UNKNOWN"):
            if self._took(word):
                return Test(f"IS {word}", operand, (), negated)
        raise self.unexpected()

    def _escape(self) -> str | None:
        if not self._took("ESCAPE"):
            return None
        token = self._next()
        if token.kind != "text" or len(token.text) != 1 or not token.text.isprintable() or token.text in "'\"\\$":
            raise Inadmissible("ESCAPE takes one plain character")
        return token.text

    def _comparison(self) -> Node:
        return self._chain(self._sum, _COMPARISONS)

    def _sum(self) -> Node:
        return self._chain(self._product, frozenset({"+", "-", "||"}))

    def _product(self) -> Node:
        return self._chain(self._signed, frozenset({"*", "/", "%", "DIV"}))

    def _chain(self, tighter: Callable[[], Node], signs: frozenset[str]) -> Node:
        found, length = tighter(), 0
        while (sign := self.ahead.word or self.ahead.text) in signs and self.ahead.kind in {"word", "sign"}:
            self._place += 1
            length += 1
            if length > CHAIN_MAX:
                raise Inadmissible(f"it has more than {CHAIN_MAX} operators in a row")
            found = Operation({"==": "=", "!=": "<>"}.get(sign, sign), found, tighter())
            if sign == "||":
                _of_columns(found, sign)
        return found

    def _signed(self) -> Node:
        if self.ahead.kind == "sign" and self.ahead.text in "+-":
            sign = self._next().text
            self._depth += 1
            if self._depth > DEPTH_MAX:
                raise Inadmissible(f"it is nested more than {DEPTH_MAX} deep")
            inner = Prefixed(sign, self._signed())
            self._depth -= 1
            return inner
        found = self._primary()
        for _ in range(DEPTH_MAX):
            if not self._took("["):
                break
            found = Item(found, self.disjunction())
            self._demand("]")
        return found

    # ── operands ────────────────────────────────────────────────────────────────────────────────────

    def _primary(self) -> Node:
        token = self.ahead
        if self._took("("):
            found = self.disjunction()
            self._demand(")")
            return found
        if token.kind == "number":
            return Number(self._next().text)
        if token.kind == "text":
            return Text(self._next().text)
        if token.kind == "hex":
            if re.fullmatch(r"(?:[0-9a-fA-F]{2})*", token.text) is None:
                raise Inadmissible("a binary literal in it is not made of pairs of hexadecimal digits")
            return Typed("X", self._next().text)
        if token.kind == "quoted":
            return self._column(self._next())
        if token.kind == "word":
            return self._of_word(token)
        raise self.unexpected()

    def _of_word(self, token: _Token) -> Node:
        word, behind = token.word, self._look(1)
        if word in {"NULL", "TRUE", "FALSE"}:
            self._place += 1
            return Constant(word)
        if word in {"DATE", "TIMESTAMP"} and behind.kind == "text":
            self._place += 2
            if _MOMENT.fullmatch(behind.text) is None:
                raise Inadmissible(f"{word} {behind.text[:60]!r} is not a date or time in digits")
            return Typed(word, behind.text)
        if word == "INTERVAL" and (behind.kind in {"number", "text"} or behind.text == "-"):
            return self._interval()
        if word == "CASE":
            return self._case()
        if behind.kind == "sign" and behind.text == "(":
            return self._call(token)
        if word in _KEYWORDS or (word in _MORE_THAN_A_CONDITION and not self._known(token)):
            raise self.unexpected()
        return self._column(self._next())

    def _known(self, token: _Token) -> bool:
        return self._columns is not None and name_key(token.text) in self._columns

    def _column(self, token: _Token) -> Node:
        if self.ahead.text == "(" and self.ahead.kind == "sign":
            raise Inadmissible(f"{_shown(token)} is called, and a function's name must not be quoted")
        if is_system_column(token.text):
            raise Inadmissible(f"{token.text} is a system column")
        if "${" in token.text:
            raise Inadmissible("a name in it has ${, which Spark would replace")
        if self._columns is not None and not self._known(token):
            known = ", ".join(sorted(self._columns.values())[:20])
            raise Inadmissible(f"{_shown(token)} is not a column (there are: {known or 'none yet'})")
        fields = []
        while self._took("."):
            part = self._next()
            if part.kind not in {"word", "quoted"} or "${" in part.text:
                raise self.unexpected()
            if self.ahead.text == "(" and self.ahead.kind == "sign":
                raise Inadmissible(f"{_shown(part)} is called, and functions have no prefix")
            fields.append(part.text)
        name = token.text if self._columns is None else self._columns[name_key(token.text)]
        return Column(name, tuple(fields))

    def _call(self, token: _Token) -> Node:
        name = token.text.lower()
        self._place += 2
        if name in {"cast", "try_cast"}:
            return self._cast(name.upper())
        if name == "extract":
            unit = self._next().text.lower()
            if unit not in EXTRACTED or not self._took("FROM"):
                raise Inadmissible(f"EXTRACT takes one of {', '.join(sorted(EXTRACTED))}, and FROM")
            operand = self.disjunction()
            self._demand(")")
            return Extract(unit, operand)
        if token.word in _MORE_THAN_A_CONDITION:
            self._place -= 2
            raise self.unexpected()
        if name not in ALLOWED:
            raise Inadmissible(
                f"the function {_shown(token)} may not be used", hint=f"Allowed are {', '.join(sorted(ALLOWED))}."
            )
        if self.ahead.word in _MORE_THAN_A_CONDITION and not self._known(self.ahead):
            raise self.unexpected()
        arguments = self._arguments(least=0)
        if name in NEEDS_ARGUMENTS and not arguments:
            raise Inadmissible(f"{name}() without an argument is the time of the day, which changes")
        return _of_columns(Call(name, arguments), name)

    def _arguments(self, *, least: int) -> tuple[Node, ...]:
        """Up to the closing parenthesis."""
        found: list[Node] = []
        if least == 0 and self._took(")"):
            return ()
        while True:
            found.append(self.disjunction())
            if self._took(")"):
                return tuple(found)
            self._demand(",")

    def _cast(self, word: str) -> Node:
        operand = self.disjunction()
        self._demand("AS")
        name = self._next().text.lower()
        if name not in TYPES:
            raise Inadmissible(f"a cast is to one of {', '.join(TYPES)}, not to {name[:60]!r}")
        if name in {"decimal", "numeric"} and self._took("("):
            digits = [self._digits()]
            while self._took(",") and len(digits) < 2:
                digits.append(self._digits())
            self._demand(")")
            name = f"{name}({', '.join(digits)})"
        self._demand(")")
        found = Cast(word, operand, name)
        return _of_columns(found, word) if name == "string" else found

    def _digits(self) -> str:
        token = self._next()
        if token.kind != "number" or not token.text.isdigit():
            raise Inadmissible("a decimal's precision and scale are whole numbers")
        return token.text

    def _interval(self) -> Node:
        self._place += 1
        minus = "-" if self._took("-") else ""
        amount, unit = self._next(), self._next().text.lower()
        if re.fullmatch(r"-?[0-9]{1,9}", amount.text) is None or unit.removesuffix("s") not in UNITS:
            raise Inadmissible("an interval is written as INTERVAL 3 DAY: a whole number and a unit")
        return Interval(minus + amount.text, unit.removesuffix("s").upper())

    def _case(self) -> Node:
        self._place += 1
        subject = None if self.ahead.word == "WHEN" else self.disjunction()
        branches = []
        while self._took("WHEN"):
            when = self.disjunction()
            self._demand("THEN")
            branches.append((when, self.disjunction()))
        otherwise = self.disjunction() if self._took("ELSE") else None
        self._demand("END")
        if not branches:
            raise Inadmissible("a CASE in it has no WHEN")
        return Case(subject, tuple(branches), otherwise)


def _of_columns(node: Node, name: str) -> Node:
    """Texts are not put together from constants: Spark reads some of them, such as `now`, as times of the clock."""
    if name not in _OF_CONSTANTS and not columns_of(node):
        raise Inadmissible(f"{name} has no column as argument: write its result instead")
    return node


def mentions_clock(node: Node) -> bool:
    """Whether it holds a text that Spark takes for the present time, where it is to be a date or a timestamp."""
    return any(isinstance(one, Text) and _CLOCK.match(one.value) is not None for one in nodes_of(node))


def makes_times(node: Node) -> bool:
    """Whether it makes a date or a timestamp of something else."""
    return any(
        (isinstance(one, Cast) and one.type.startswith(("date", "timestamp")))
        or (isinstance(one, Call) and one.name in _TIMES)
        or isinstance(one, Typed | Extract | Interval)
        for one in nodes_of(node)
    )


def _balanced(sign: str, operands: list[Node]) -> Node:
    """A long AND or OR as a flat tree: engines, and we, walk it by recursion."""
    if len(operands) == 1:
        return operands[0]
    middle = len(operands) // 2
    return Operation(sign, _balanced(sign, operands[:middle]), _balanced(sign, operands[middle:]))


def _shown(token: _Token) -> str:
    text = token.text if len(token.text) <= 60 else token.text[:57] + "…"
    return f"`{text}`" if token.kind == "quoted" else repr(text) if token.kind == "text" else text


# ── text for an engine ───────────────────────────────────────────────────────────────────────────────────────────────

_SPECIAL = re.compile(r"([\x00-\x1f\x7f'\\]|\$(?=\{))")


def spark_sql(node: Node) -> str:  # noqa: C901, PLR0911, PLR0912 - one arm for each kind of node
    """The condition as Spark's SQL: every operator in parentheses, every name quoted.

    Characters that a session's settings give a meaning to (escapes, quotes, `${…}`) are written by their codes: a text
    is the same text in every session.
    """
    match node:
        case Number(text):
            return text
        case Text(value):
            return _spark_text(value)
        case Constant(word):
            return word
        case Typed(word, value):
            return f"X'{value}'" if word == "X" else f"{word} '{value}'"
        case Interval(amount, unit):
            return f"INTERVAL '{amount}' {unit}"
        case Column(name, fields):
            return ".".join(f"`{part}`" for part in (name, *fields))
        case Prefixed(sign, operand):
            return f"({sign} {spark_sql(operand)})"
        case Operation(sign, left, right):
            return f"({spark_sql(left)} {sign} {spark_sql(right)})"
        case Test():
            return _spark_test(node)
        case Case(subject, branches, otherwise):
            middle = " ".join(f"WHEN {spark_sql(when)} THEN {spark_sql(then)}" for when, then in branches)
            start = "" if subject is None else f" {spark_sql(subject)}"
            end = "" if otherwise is None else f" ELSE {spark_sql(otherwise)}"
            return f"(CASE{start} {middle}{end} END)"
        case Cast(word, operand, type_):
            return f"{word}({spark_sql(operand)} AS {type_})"
        case Extract(unit, operand):
            return f"extract({unit} FROM {spark_sql(operand)})"
        case Call(name, arguments):
            return f"{name}({', '.join(map(spark_sql, arguments))})"
        case Item(operand, index):
            return f"{spark_sql(operand)}[{spark_sql(index)}]"


def _spark_test(test: Test) -> str:
    operand, others = spark_sql(test.operand), [spark_sql(one) for one in test.others]
    word, negation = test.word, "NOT " if test.negated else ""
    if word.startswith("IS "):
        text = " ".join([operand, "IS", negation + word.removeprefix("IS "), *others])
    elif word == "BETWEEN":
        text = f"{operand} {negation}BETWEEN {others[0]} AND {others[1]}"
    elif word == "IN":
        text = f"{operand} {negation}IN ({', '.join(others)})"
    else:
        text = f"{operand} {negation}{word} {others[0]}" + (f" ESCAPE '{test.escape}'" if test.escape else "")
    return f"({text})"


def _spark_text(value: str) -> str:
    pieces = _SPECIAL.split(value)  # plain ones, and between every two of them a special character
    if len(pieces) == 1:
        return f"'{value}'"
    shown = [f"char({ord(piece)})" if place % 2 else f"'{piece}'" for place, piece in enumerate(pieces)]
    return f"concat({', '.join(shown)})"
