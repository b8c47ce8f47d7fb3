"""Codex CLI's rollout files: `{timestamp, type, payload}` per line, the first of them about the session.

Messages, calls and results are `response_item`s. `event_msg` lines repeat them for the screen and give no rows, but for
token counts, which stand nowhere else: a row of kind `usage` each. Items carry no ids of their own, and a file only
grows, so a message is identified by its file's name, which holds the session's id, and its line. Files of early
versions have bare items, without an envelope.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floodmark.jsonread import read_json
from floodmark.providers.parts import NotARow, PendingCalls, listed, mapping, moment, number, output, text

_CALLS = {"function_call", "custom_tool_call", "local_shell_call", "web_search_call"}
_RESULTS = {"function_call_output", "custom_tool_call_output"}


class Codex:
    """One rollout file, read from its beginning."""

    layout = "codex"

    def __init__(self, path: Path) -> None:
        self._file = path.stem
        self._session: str | None = None
        self._began: Any = None
        self._model: str | None = None
        self._calls = PendingCalls()

    def rows(self, line: dict[str, Any], line_number: int) -> list[dict[str, Any]]:
        """The parts of a line's item; `NotARow` if it should have some and cannot be read."""
        kind, payload = line.get("type"), line.get("payload")
        if not isinstance(payload, dict):
            return self._bare(line, line_number)
        if kind == "session_meta":
            # The first one: a session that goes on from another one carries the other's lines, its first included.
            self._session = self._session or text(payload.get("id"))
        elif kind == "turn_context":
            self._model = text(payload.get("model")) or self._model
        elif kind == "response_item":
            return self._numbered(self._parts(payload), line.get("timestamp"), line_number)
        elif kind == "event_msg" and payload.get("type") == "token_count":
            return self._numbered(_usage(payload), line.get("timestamp"), line_number)
        return []

    def _bare(self, line: dict[str, Any], line_number: int) -> list[dict[str, Any]]:
        if "type" not in line and "id" in line:
            self._session = self._session or text(line["id"])
            self._began = line.get("timestamp")
            return []
        return self._numbered(self._parts(line), line.get("timestamp") or self._began, line_number)

    def _numbered(self, parts: list[dict[str, Any]], timestamp: Any, line_number: int) -> list[dict[str, Any]]:
        if not parts:
            return []
        common = {
            "part_id": None,
            "message_id": f"{self._file}:{line_number}",
            "time": moment(timestamp),
            "session": self._session or self._file,
            "model": self._model,
        }
        return [{**common, "part_index": index, **part} for index, part in enumerate(parts)]

    def _parts(self, item: dict[str, Any]) -> list[dict[str, Any]]:
        kind = item.get("type")
        if kind == "message":
            content = item.get("content")
            if not isinstance(content, list):
                raise NotARow("a message has no list of content")
            return [{"role": text(item.get("role")), **_content(block)} for block in content]
        if kind == "reasoning":
            blocks = [*listed(item.get("summary")), *listed(item.get("content"))]
            return [{"role": "assistant", "kind": "thinking", "text": output([block])} for block in blocks]
        if kind in _CALLS:
            return [self._call(item)]
        if kind in _RESULTS:
            call = text(item.get("call_id"))
            tool = self._calls.answered(call)
            answer = output(_unwrapped(item.get("output")))
            return [{"role": "tool", "kind": "tool_result", "tool": tool, "call_id": call, "tool_output": answer}]
        return []

    def _call(self, item: dict[str, Any]) -> dict[str, Any]:
        call = text(item.get("call_id")) or text(item.get("id"))
        tool = text(item.get("name")) or str(item["type"]).removesuffix("_call")
        given = next((item[key] for key in ("arguments", "input", "action") if key in item), None)
        self._calls.called(call, tool)
        return {"role": "assistant", "kind": "tool_call", "tool": tool, "call_id": call, "tool_input": _parsed(given)}


def _content(block: Any) -> dict[str, Any]:
    kind = text(mapping(block).get("type")) or ""
    if kind.endswith("_text") or kind == "text":
        return {"kind": "text", "text": text(block.get("text"))}
    return {"kind": "image" if kind.endswith("_image") else kind or "other"}


def _usage(payload: dict[str, Any]) -> list[dict[str, Any]]:
    usage = mapping(mapping(payload.get("info")).get("last_token_usage"))
    if not usage:
        return []  # rate limits only
    return [
        {
            "role": "assistant",
            "kind": "usage",
            "input_tokens": number(usage.get("input_tokens")),
            "output_tokens": number(usage.get("output_tokens")),
            "cached_tokens": number(usage.get("cached_input_tokens")),
        }
    ]


def _parsed(given: Any) -> Any:
    """Arguments stand in a string that is JSON; what is free text stays a string."""
    if not isinstance(given, str):
        return given
    try:
        return read_json(given.encode())
    except ValueError:
        return given


def _unwrapped(answer: Any) -> Any:
    """A failed call's answer may stand in an object beside whether it succeeded."""
    return answer["content"] if isinstance(answer, dict) and "content" in answer else answer
