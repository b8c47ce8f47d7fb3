#!/usr/bin/env python
"""Every text of the source that a user may read, with its file and line: `python scripts/messages.py [PATH ...]`.

A text is a string of at least two words: an error, a hint, an option's help, a line of a report. The help of a
command is its docstring. Other docstrings and SQL are left out.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src" / "floodmark"
SQL = re.compile(r"\s*(?:SELECT|INSERT|UPDATE|DELETE|CREATE|ALTER|DROP|PRAGMA|BEGIN|WITH|SAVEPOINT|MERGE|AND|WHERE)\b")
WORDS = re.compile(r"[A-Za-z}`'\"]{2,}[,:;.]? +[A-Za-z{`'\"(]")


def main() -> None:
    for path in paths(sys.argv[1:]):
        for line, text in messages(path):
            print(f"{path.relative_to(SOURCE.parents[1])}:{line}: {text}")


def paths(named: list[str]) -> list[Path]:
    roots = [Path(name).resolve() for name in named] or [SOURCE]
    return sorted(found for root in roots for found in ([root] if root.is_file() else root.rglob("*.py")))


def messages(path: Path) -> Iterator[tuple[int, str]]:
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and is_command(node):
            yield node.lineno, " ".join((ast.get_docstring(node) or "").split())
    yield from literals(tree)


def is_command(function: ast.FunctionDef) -> bool:
    return any(re.search(r"\b(?:command|group)\(", ast.unparse(item)) for item in function.decorator_list)


def literals(node: ast.AST) -> Iterator[tuple[int, str]]:
    """String literals in order, without those that stand alone as a statement: docstrings."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant):
            continue
        if isinstance(child, ast.JoinedStr | ast.Constant):
            text = written(child)
            if WORDS.search(text) and not SQL.match(text):
                yield child.lineno, " ".join(text.split())
        else:
            yield from literals(child)


def written(node: ast.JoinedStr | ast.Constant) -> str:
    """The text, with the expressions of an f-string in braces."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    parts = (
        part.value if isinstance(part, ast.Constant) else f"{{{ast.unparse(part.value)}}}"
        for part in node.values
        if isinstance(part, ast.Constant | ast.FormattedValue)
    )
    return "".join(map(str, parts))


if __name__ == "__main__":
    main()
