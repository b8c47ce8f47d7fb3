"""Claude Code's session files: each line is an event with a uuid; `user` and `assistant` lines carry a message.

A response of the model stands in several lines, one per block, which share `message.id` (our `response_id`) and repeat
its token counts: take them once per `response_id`, not once per row. Lines of a subagent name the session it works for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from floodmark.providers.parts import NotARow, PendingCalls, mapping, moment, number, output, text

_MESSAGES = {"user", "assistant"}


class ClaudeCode:
    """One session file, read from its beginning."""

    layout = "claude-code"

    def __init__(self, path: Path) -> None:
        self._file = path.stem
        self._calls = PendingCalls()

    def rows(self, line: dict[str, Any], line_number: int) -> list[dict[str, Any]]:
        """The parts of a line's message; `NotARow` if it should have one and cannot be read."""
        kind = line.get("type")
        if kind == "system" and isinstance(line.get("content"), str):
            message: dict[str, Any] = {"role": "system", "content": line["content"]}
        elif kind in _MESSAGES:
            message = mapping(line.get("message"))
            if "content" not in message:
                raise NotARow(f"a line of type {kind!r} has no message with content")
        else:
            return []
        content = message["content"]
        blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
        if not isinstance(blocks, list):
            raise NotARow(f"the message's content is a JSON {type(content).__name__}")
        uuid = text(line.get("uuid"))
        session = text(line.get("sessionId")) or self._file
        common = {
            "message_id": uuid or f"{session}/{self._file}:{line_number}",
            "time": moment(line.get("timestamp")),
            "session": session,
            "role": text(message.get("role")) or kind,
            "model": text(message.get("model")),
            "response_id": text(message.get("id")),
            **_tokens(mapping(message.get("usage"))),
        }
        return [
            {"part_id": f"{uuid}:{index}" if uuid else None, "part_index": index, **common, **self._part(block)}
            for index, block in enumerate(blocks)
        ]

    def _part(self, block: Any) -> dict[str, Any]:
        if isinstance(block, str):
            return {"kind": "text", "text": block}
        if not isinstance(block, dict):
            raise NotARow(f"a part of the message is a JSON {type(block).__name__}")
        match block.get("type"):
            case "text":
                return {"kind": "text", "text": text(block.get("text"))}
            case "thinking":
                return {"kind": "thinking", "text": text(block.get("thinking"))}
            case "tool_use" | "server_tool_use":
                call, tool = text(block.get("id")), text(block.get("name"))
                self._calls.called(call, tool)
                return {"kind": "tool_call", "tool": tool, "call_id": call, "tool_input": block.get("input")}
            case "tool_result":
                call = text(block.get("tool_use_id"))
                tool = self._calls.answered(call)
                return {
                    "kind": "tool_result",
                    "tool": tool,
                    "call_id": call,
                    "tool_output": output(block.get("content")),
                }
            case other:
                # Images and documents are named, not stored; of unknown kinds only the name is stored.
                return {"kind": text(other) or "other"}


def _tokens(usage: dict[str, Any]) -> dict[str, Any]:
    return {
        "input_tokens": number(usage.get("input_tokens")),
        "output_tokens": number(usage.get("output_tokens")),
        "cached_tokens": number(usage.get("cache_read_input_tokens")),
    }
