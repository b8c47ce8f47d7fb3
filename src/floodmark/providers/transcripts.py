"""Agent transcripts: session logs of coding agents, one JSON line per message, one row per part of it.

Two layouts are supported, detected by file name:

| layout      | files                                              | a part is identified by                         |
|-------------|----------------------------------------------------|-------------------------------------------------|
| claude-code | `~/.claude/projects/<project>/**/<session>.jsonl`  | `part_id`: the line's uuid and the part's index |
| codex       | `~/.codex/sessions/<date>/rollout-*.jsonl`         | `message_id` (file and line) + `part_index`     |

Ids that a model's server gives to calls and messages (`call_id`, `response_id`) are columns, never an identity: not
every server makes them unique. Copies of a session's lines in another file, as resuming makes them, carry the same
uuids and stay single. A line that is no message (progress, summaries, snapshots) gives no row.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from floodmark.jsonread import read_json
from floodmark.providers import Declaration, Item, Unit, provider
from floodmark.providers.claude_code import ClaudeCode
from floodmark.providers.codex import Codex
from floodmark.providers.lines import FileUnit, absolute, file_unit, lines, text_of
from floodmark.providers.parts import NotARow

DECLARATION = Declaration(
    identity=[["part_id"], ["message_id", "part_index"]],
    event_time="time",
    schema={
        "part_id": "string",
        "message_id": "string",
        "part_index": "int",
        "time": "timestamp",
        "session": "string",
        "layout": "string",
        "role": "string",
        "kind": "string",
        "text": "string",
        "tool": "string",
        "call_id": "string",
        "tool_input": "json",
        "tool_output": "string",
        "model": "string",
        "response_id": "string",
        "input_tokens": "long",
        "output_tokens": "long",
        "cached_tokens": "long",
        "source": "string",
    },
)


def plan(location: str | None) -> Iterator[Unit]:
    """Every session file below the location; by default below the directories of the two agents."""
    roots = [Path(location).expanduser()] if location is not None else _homes()
    found: set[Path] = set()
    for root in roots:
        if not root.exists():
            raise FileNotFoundError(f"no file at {root}")
        found |= {absolute(path) for path in ([root] if root.is_file() else root.rglob("*.jsonl")) if path.is_file()}
    for path in sorted(found):
        unit = file_unit(path)
        if unit is not None:
            yield unit


@provider("transcripts", plan=plan, declaration=DECLARATION, overlapping=True)
def transcripts(unit: FileUnit) -> Iterator[Item]:
    """One row per part of each message."""
    session = Codex(unit.path) if unit.path.name.startswith("rollout-") else ClaudeCode(unit.path)
    for entry in lines(unit):
        if isinstance(entry, Item):
            yield entry
            continue
        number, line = entry
        if not line.strip():
            continue
        place = f"{unit.place}:{number}"
        try:
            rows = session.rows(_object(line), number)
        except NotARow as error:
            yield Item.broken(place, str(error), text_of(line))
            continue
        for row in rows:
            yield Item({"layout": session.layout, **row, "source": place}, place)


def _object(line: bytes) -> dict[str, Any]:
    try:
        content = read_json(line)
    except ValueError as error:
        raise NotARow(f"the line is not JSON: {error}") from error
    if not isinstance(content, dict):
        raise NotARow(f"the line is a JSON {type(content).__name__}, not an object")
    return content


def _homes() -> list[Path]:
    home = Path.home()
    usual = [
        Path(os.environ.get("CLAUDE_CONFIG_DIR") or home / ".claude") / "projects",
        Path(os.environ.get("CODEX_HOME") or home / ".codex") / "sessions",
    ]
    there = [path for path in usual if path.is_dir()]
    if not there:
        raise FileNotFoundError(f"neither {usual[0]} nor {usual[1]} exists; give a location")
    return there
