"""Agent transcripts become one row per part, in both layouts, however often a live session is read."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

import floodmark
from floodmark import providers
from floodmark.providers import lines, parts
from floodmark.schema import Schema

FIXTURES = Path(__file__).parents[2] / "fixtures" / "transcripts"
SESSION = "7b1f2c40-5d1e-4a57-9a53-0c2f7be1a001"


@pytest.fixture
def transcripts():
    return providers.find("transcripts")


def read(provider, location):
    return [item for unit in provider.plan(str(location)) for item in provider.read(unit)]


def rows(provider, location, *columns):
    items = read(provider, location)
    assert [item.problem for item in items if item.problem] == []
    found = [dict(item.row) for item in items]
    return [tuple(row.get(column) for column in columns) for row in found] if columns else found


def identity(row):
    return row.get("part_id") or (row["message_id"], row["part_index"])


def test_a_claude_code_session_gives_one_row_per_part(transcripts):
    path = FIXTURES / "claude-code/-home-ada-tide" / f"{SESSION}.jsonl"
    assert rows(transcripts, path, "role", "kind", "tool", "text", "tool_output") == [
        ("user", "text", None, "The tide table is an hour late since Sunday. Why?", None),
        ("assistant", "thinking", None, "Sunday was the change to summer time.", None),
        ("assistant", "text", None, "I will look at how the table reads its clock.", None),
        ("assistant", "tool_call", "Grep", None, None),
        ("user", "tool_result", "Grep", None, "src/table.py:41: now = time.localtime()"),
        ("assistant", "tool_call", "Screenshot", None, None),
        ("user", "tool_result", "Screenshot", None, "the table at 9:00\n[image]"),
        ("user", "text", None, "And the moon?", None),
        ("user", "image", None, None, None),
        ("system", "text", None, "Conversation compacted", None),
    ]


def test_a_part_says_where_it_comes_from_and_what_it_cost(transcripts):
    path = FIXTURES / "claude-code/-home-ada-tide" / f"{SESSION}.jsonl"
    call = next(row for row in rows(transcripts, path) if row["kind"] == "tool_call")
    assert call["source"] == f"{path}:6"
    assert call["session"] == SESSION
    assert call["part_id"] == f"{call['message_id']}:0"
    assert (call["model"], call["response_id"], call["call_id"]) == (
        "claude-opus-4-6",
        "msg_tide_01",
        "toolu_tide_grep",
    )
    assert (call["input_tokens"], call["output_tokens"], call["cached_tokens"]) == (12, 87, 9100)
    assert call["tool_input"] == {"pattern": "localtime", "path": "src"}
    assert call["time"].isoformat() == "2026-02-03T09:00:04.125000+00:00"


def test_a_subagent_belongs_to_the_session_it_works_for(transcripts):
    path = FIXTURES / "claude-code/-home-ada-tide" / SESSION / "subagents"
    assert rows(transcripts, path, "session", "role", "model") == [
        (SESSION, "user", None),
        (SESSION, "assistant", "claude-haiku-4-5"),
    ]


def test_a_codex_session_gives_one_row_per_part(transcripts):
    assert rows(transcripts, FIXTURES / "codex/2026", "role", "kind", "tool", "text", "tool_output") == [
        ("user", "text", None, "Round the heights to centimetres.", None),
        ("user", "image", None, None, None),
        ("assistant", "thinking", None, "Heights are floats in metres.", None),
        ("assistant", "tool_call", "shell", None, None),
        ("tool", "tool_result", "shell", None,
         '{"output":"src/table.py:12: height: float","metadata":{"exit_code":0}}'),
        ("assistant", "tool_call", "apply_patch", None, None),
        ("tool", "tool_result", "apply_patch", None, "Success. Updated src/table.py"),
        ("assistant", "tool_call", "web_search", None, None),
        ("assistant", "usage", None, None, None),
        ("assistant", "text", None, "Done: heights are rounded to 0.01 m.", None),
    ]  # fmt: skip


def test_codex_parts_are_identified_by_file_and_line_because_their_calls_are_not_unique(transcripts):
    found = rows(transcripts, FIXTURES / "codex")
    assert {row["part_id"] for row in found} == {None}
    calls = [row for row in found if row.get("call_id") == "call_1"]
    assert len(calls) == 4
    assert len({identity(row) for row in found}) == len(found)
    usage = next(row for row in found if row["kind"] == "usage")
    assert (usage["model"], usage["input_tokens"], usage["cached_tokens"]) == ("gpt-5-codex", 2500, 2048)
    assert next(row for row in found if row.get("tool") == "shell")["tool_input"]["command"] == ["rg", "height"]


def test_codex_files_of_early_versions_have_bare_items(transcripts):
    assert rows(transcripts, FIXTURES / "codex/2025", "kind", "tool", "text", "tool_output") == [
        ("text", None, "hello from an early version", None),
        ("tool_call", "local_shell", None, None),
        ("tool_result", "local_shell", None, "table.py"),
    ]


def test_a_session_that_goes_on_from_another_keeps_its_own_name(transcripts, tmp_path):
    path = next((FIXTURES / "codex/2026").rglob("*.jsonl"))
    first = json.loads(path.read_text().splitlines()[0])
    first["payload"]["id"] = "the-new-one"
    fork = tmp_path / "rollout-fork.jsonl"
    fork.write_text(json.dumps(first) + "\n" + path.read_text())
    assert {row["session"] for row in rows(transcripts, fork)} == {"the-new-one"}
    assert {row["message_id"].split(":")[0] for row in rows(transcripts, fork)} == {"rollout-fork"}


def test_every_row_fits_the_dataset_that_the_provider_suggests(transcripts, tmp_path):
    declared = transcripts.declaration
    found = rows(transcripts, FIXTURES)
    schema = Schema.declare(declared.schema)
    names = [name for row in found for name in row]
    assert set(names) <= set(schema.names)
    with floodmark.init(tmp_path / "store") as store:
        store.add_dataset(
            "parts",
            [list(names) for names in declared.identity],
            event_time=declared.event_time,
            partition_by=declared.partition_by,
            schema=declared.schema,
        )
        receipt = store.capture("parts", found)
    assert (receipt.rows, receipt.quarantined) == (len(found), 0)


def test_a_copied_session_is_the_same_parts_again(transcripts, tmp_path):
    source = FIXTURES / "claude-code/-home-ada-tide" / f"{SESSION}.jsonl"
    shutil.copy(source, tmp_path / "resumed.jsonl")
    assert {identity(row) for row in rows(transcripts, tmp_path)} == {
        identity(row) for row in rows(transcripts, source)
    }


# ---- a session that is being written ----


def test_a_line_that_is_still_being_written_comes_with_the_next_run(transcripts, tmp_path):
    whole = (FIXTURES / "claude-code/-home-ada-tide" / f"{SESSION}.jsonl").read_bytes()
    live = tmp_path / "live.jsonl"
    torn = whole.rindex(b'"content":"Conversation')
    live.write_bytes(whole[:torn])
    first = rows(transcripts, live)
    live.write_bytes(whole)
    second = rows(transcripts, live)
    assert len(second) == len(first) + 1
    assert [identity(row) for row in second[:-1]] == [identity(row) for row in first]


def test_a_unit_gives_what_was_there_when_it_was_planned(transcripts, tmp_path):
    whole = (FIXTURES / "claude-code/-home-ada-tide" / f"{SESSION}.jsonl").read_bytes()
    live = tmp_path / "live.jsonl"
    live.write_bytes(whole)
    (unit,) = transcripts.plan(str(live))
    before = list(transcripts.read(unit))
    with live.open("ab") as file:
        file.write(whole)
    assert list(transcripts.read(unit)) == before
    assert transcripts.plan(str(live))[0].id != unit.id
    assert unit.bytes == len(whole)


def test_a_file_without_a_whole_line_is_no_unit_yet(transcripts, tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b'{"type":"user"')
    (tmp_path / "b.jsonl").write_bytes(b"")
    assert transcripts.plan(str(tmp_path)) == []


@pytest.mark.parametrize("how", ["cut", "replaced"])
def test_a_file_that_is_not_what_was_planned_is_refused(transcripts, tmp_path, how):
    live = tmp_path / "live.jsonl"
    live.write_bytes(b'{"type":"summary"}\n' * 1000)
    (unit,) = transcripts.plan(str(live))
    live.write_bytes(b'{"type":"summary"}\n' * 900 if how == "cut" else b'{"type":"another"}\n' * 1000)
    with pytest.raises(floodmark.ProviderFailed, match="after the plan was made"):
        list(transcripts.read(unit))


def test_a_file_that_is_gone_or_cannot_be_read_is_reported_and_holds_nobody_up(transcripts, tmp_path, monkeypatch):
    gone = tmp_path / "gone.jsonl"
    gone.write_bytes(b"{}\n")
    (unit,) = transcripts.plan(str(gone))
    gone.unlink()
    assert [item.problem for item in transcripts.read(unit)] == ["the file was removed after the plan was made"]

    (tmp_path / "secret.jsonl").write_bytes(b"{}\n")

    def refused(path):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(lines, "open_file", refused)
    (item,) = read(transcripts, tmp_path)
    assert "Permission denied" in item.problem
    assert item.provenance.endswith("secret.jsonl")


# ---- what is no message ----


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (b"not json", "not JSON"),
        (b"[1]", "a JSON list"),
        (b'{"type":"user","uuid":"u","timestamp":"2026-01-01T00:00:00Z"}', "no message with content"),
        (b'{"type":"user","message":{"content":7}}', "content is a JSON int"),
        (b'{"type":"user","message":{"content":[7]},"timestamp":"2026-01-01T00:00:00Z"}', "a part of the message"),
        (b'{"type":"user","message":{"content":"x"}}', "no timestamp"),
        (b'{"type":"user","message":{"content":"x"},"timestamp":"noon"}', "'noon' is not a time"),
        (b'{"type":"user","message":{"content":"x"},"timestamp":"2026-01-01T00:00:00"}', "no time zone"),
        (b'{"a":"\xff"}', "not JSON"),
    ],
)
def test_a_bad_line_is_told_with_its_place_and_its_neighbours_are_rows(transcripts, tmp_path, line, reason):
    good = b'{"type":"user","message":{"content":"x"},"timestamp":"2026-01-01T00:00:00Z"}\n'
    (tmp_path / "s.jsonl").write_bytes(good + line + b"\n\n" + good)
    first, bad, last = read(transcripts, tmp_path)
    assert first.row["text"] == last.row["text"] == "x"
    assert reason in bad.problem
    assert bad.provenance == f"{tmp_path / 's.jsonl'}:2"
    assert bad.content


@pytest.mark.parametrize(
    "payload",
    [{"type": "message"}, {"type": "message", "role": "user", "content": "x"}],
)
def test_a_bad_codex_item_is_told_with_its_place(transcripts, tmp_path, payload):
    line = {"type": "response_item", "timestamp": "2026-01-01T00:00:00Z", "payload": payload}
    (tmp_path / "rollout-x.jsonl").write_text(json.dumps(line) + "\n")
    (item,) = read(transcripts, tmp_path)
    assert "no list of content" in item.problem


def test_lines_without_an_id_of_their_own_are_identified_by_their_place(transcripts, tmp_path):
    line = b'{"type":"user","sessionId":"s","message":{"content":["x","y"]},"timestamp":"2026-01-01T00:00:00Z"}\n'
    (tmp_path / "agent-a.jsonl").write_bytes(line * 2)
    found = rows(transcripts, tmp_path)
    assert [identity(row) for row in found] == [
        ("s/agent-a:1", 0),
        ("s/agent-a:1", 1),
        ("s/agent-a:2", 0),
        ("s/agent-a:2", 1),
    ]


def test_a_line_that_is_too_long_is_passed_over_in_pieces(transcripts, tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 200)
    monkeypatch.setattr(lines, "PIECE_BYTES", 64)
    good = b'{"type":"user","message":{"content":"x"},"timestamp":"2026-01-01T00:00:00Z"}\n'
    (tmp_path / "s.jsonl").write_bytes(good + b'{"x":"' + b"y" * 5000 + b'"}\n' + good)
    first, bad, last = read(transcripts, tmp_path)
    assert first.row["text"] == last.row["text"] == "x"
    assert last.provenance.endswith(":3")
    assert "the line has 5009 bytes" in bad.problem
    assert len(bad.content) <= 2000


def test_calls_that_never_answer_take_no_more_than_their_room(monkeypatch):
    monkeypatch.setattr(parts, "PENDING_CALLS_MAX", 2)
    calls = parts.PendingCalls()
    for name in "abc":
        calls.called(name, f"tool {name}")
    assert [calls.answered(name) for name in "abc"] == [None, "tool b", "tool c"]
    assert calls.answered("b") is None


def test_without_a_location_the_usual_places_are_read(transcripts, tmp_path, monkeypatch):
    monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path / "claude"))
    monkeypatch.setenv("CODEX_HOME", str(tmp_path / "codex"))
    with pytest.raises(floodmark.ProviderFailed, match="give a location"):
        transcripts.plan()
    shutil.copytree(FIXTURES / "claude-code", tmp_path / "claude/projects")
    shutil.copytree(FIXTURES / "codex", tmp_path / "codex/sessions")
    assert len(transcripts.plan()) == 4
    assert transcripts.plan() == transcripts.plan()


def test_a_place_that_is_not_there_is_a_clear_failure(transcripts, tmp_path):
    with pytest.raises(floodmark.ProviderFailed, match="no file at"):
        transcripts.plan(str(tmp_path / "nowhere"))
