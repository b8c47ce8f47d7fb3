"""Users read short plain sentences in the field's usual terms: pages, help and messages avoid a list of phrases."""

import re
import runpy
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = {"evidence.md", "mutations.md", "model.md", "performance.md"}
INSTEAD = {
    r"\banew\b": "again",
    r"\bas (?:it|they) (?:is|are)\b": "unchanged",
    r"\bby (?:itself|themselves)\b": "automatically",
    r"\beach once\b": "exactly once",
    r"\b(?:are|is) gone\b": "was removed, is missing",
    r"\bfor good\b": "permanently",
    r"\b(?:go|goes|gone|went) on\b": "continues",
    r"\b(?:go|goes) round\b": "loops",
    r"\b(?:held|hold|holds) (?:nobody|no other|up)\b": "blocks, does not block",
    r"\bin words\b": "name the thing",
    r"\b(?:an?|each|one|this|two) looks?\b": "read, check",
    r"\b(?:its|their) endings?\b": "file extension",
    r"\b(?:its|their) like\b": "name the rows",
    r"\bnobody\b": "name the process or user",
    r"\bon (?:its|their) way\b": "being delivered",
    r"\bsomebody\b": "you, a user, a process",
    r"\b(?:take|taken|takes|took) (?:back|up)\b": "rolls back, continues",
    r"\btold\b": "reported, detected",
    r"\b(?:keep|leave) the store (?:as|unchanged)": "Do not change the store",
    r"\bthe question for\b": "the request for",
    r"\bnot an? \w+,? but an?\b": "X is a …, but must be a …",
    r"\bat the moment\b": "now",
    r"\bany ?more\b": "no longer",
    r"\btorn\b": "incomplete",
    r"\bunder way\b": "in progress",
    r"\bvouch": "confirms",
    r"\bwhoever\b": "a process that",
}


def pages() -> Iterator[tuple[str, str]]:
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]:
        if page.name not in GENERATED:
            text = re.sub(r"`[^`\n]*`|\]\([^)]*\)", "", page.read_text(encoding="utf-8"))
            yield str(page.relative_to(ROOT)), " ".join(text.split())


def messages() -> Iterator[tuple[str, str]]:
    listed = runpy.run_path(str(ROOT / "scripts" / "messages.py"))
    for path in listed["paths"]([]):
        if "testing" in path.parts:
            continue  # a user's tests read them, and the ones of the lake in memory
        for line, text in listed["messages"](path):
            yield f"{path.relative_to(ROOT)}:{line}", re.sub(r"\{[^{}]*\}", "", text)


@pytest.mark.parametrize("texts", [pages, messages])
def test_no_text_that_users_read_has_a_phrase_that_engineers_do_not_use(texts):
    found = [
        f"{where}: …{text[max(0, match.start() - 40) : match.end() + 20]}… Write: {instead}."
        for where, text in texts()
        for phrase, instead in INSTEAD.items()
        for match in re.finditer(phrase, text, re.IGNORECASE)
    ]
    assert found == [], "\n".join(found)
