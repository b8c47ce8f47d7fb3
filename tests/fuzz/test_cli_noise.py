"""The command line with any arguments and files: one sentence and one exit code, and what is counted is stored."""

from __future__ import annotations

import contextlib
import gzip
import io
import os
import re
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from noise import altered, dumped, mutated
from trying import REFUSED, SECONDS_MAX, TRIED, fresh, inputs, rows_of, scratch

import floodmark.lake.session
import floodmark.store
from floodmark.cli.entry import run
from floodmark.cli.group import app
from floodmark.errors import EnvironmentProblem
from floodmark.sequence import Cursor
from floodmark.store import Store
from floodmark.testing import MemoryLake

NOT_HERE = {"run", "hub", "demo", "jars", "torture"}
"""Commands that stay, and those that fetch something."""


@dataclass(frozen=True)
class Outcome:
    code: int
    out: bytes
    err: str


class Terminal:
    """Where commands run: a directory of its own, a store on the memory lake, no Spark."""

    INPUTS_MAX = 20

    def __init__(self, place: Path) -> None:
        self.above = place
        self.place = place
        self.lake = MemoryLake()
        self._left = 0

    def again(self) -> None:
        """For the next input: where there are too many datasets by now, everything anew."""
        self._left -= 1
        if self._left >= 0:
            return
        self._left = self.INPUTS_MAX
        self.lake = MemoryLake()
        self.place = self.above / fresh("terminal")
        self.place.mkdir()
        os.chdir(self.place)
        assert self("init").code == 0
        assert self("dataset", "add", "orders", "--identity", "id", "--column", "total:long").code == 0
        assert self("capture", "orders", stdin=b'{"id":1,"total":5}\n').code == 0
        assert self("flush").code == 0
        assert self("log", "init", "log").code == 0
        (self.place / "rows.jsonl").write_bytes(b'{"id":2}\n')
        (self.place / "noise").write_bytes(bytes(range(256)))

    def __call__(self, *arguments: str, stdin: bytes = b"") -> Outcome:
        # As the interpreter opens them: what cannot be written is an error on one, and escaped on the other.
        out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="strict", write_through=True)
        err = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="backslashreplace", write_through=True)
        before = sys.stdin, sys.stdout, sys.stderr
        sys.stdin, sys.stdout, sys.stderr = io.TextIOWrapper(io.BytesIO(stdin)), out, err
        try:
            code = run(["-s", str(self.place / "store"), *arguments])
        finally:
            sys.stdin, sys.stdout, sys.stderr = before
        said, told = (stream.buffer.getvalue() for stream in (out, err))
        return Outcome(code, said, told.decode())

    def store(self) -> Store:
        return floodmark.store.open_store(self.place / "store")


@pytest.fixture(scope="module")
def terminal() -> Iterator[Terminal]:
    with scratch() as place, pytest.MonkeyPatch.context() as patch, contextlib.chdir(place):
        made = Terminal(place)
        real = floodmark.store.open_store

        def refuse(**_: Any) -> None:
            raise EnvironmentProblem("There is no Spark in this test.", hint="Run it elsewhere.")

        patch.setattr(floodmark.store, "open_store", lambda path, **more: real(path, **{**more, "lake": made.lake}))
        patch.setattr(floodmark.lake.session, "start_session", refuse)
        patch.delenv("FLOODMARK_TRACEBACK", raising=False)
        yield made


def check(done: Outcome, kind: str) -> None:
    TRIED[kind] += 1
    REFUSED[kind] += done.code != 0
    assert done.code in {0, 1, 2, 3}, done
    assert "Traceback" not in done.err
    assert "Unexpected failure" not in done.err, done.err
    assert done.code == 0 or done.err or done.out
    assert "\x1b" not in done.err


# ── arguments ────────────────────────────────────────────────────────────────────────────────────────────────────────

TEXTS = [
    "",
    " ",
    "-",
    "--",
    "orders",
    "nothing",
    "id",
    "total",
    "\udcff",
    "a\udcffb",
    "x" * 300,
    "9" * 5000,
    "²",
    "1",
    "-1",
    "0",
    "1e9",
    "NaN",
    "null",
    "{",
    "[]",
    '{"id":1}',
    '{"id":"\\ud800"}',
    "a=b",
    "=",
    "id=1",
    "total=²",
    "id=",
    "id:long",
    "id:",
    ":",
    "30d",
    "9" * 30 + "d",
    "now",
    "2026-01-01",
    "99999-01-01",
    "0001-01-01T00:00:00+14:00",
    "é",
    "a\nb",
    "\x1b[31m",
    "💩",
    "a,b",
    ",",
    "json:dumps",
    "nope:nope",
    "json:nope",
    "total > 3",
    "total >",
    "1=1; --",
    "fm1.AAAA",
    "fm" + "9" * 5000 + ".A",
    str(Cursor("x", "orders", None, 1)),
    "1@x",
    "chunk_rows=" + "9" * 5000,
    "start=5",
    "token=x",
    "sqlite://",
    "postgresql://a:b@c:d/e",
    "access-logs",
    "transcripts",
]
PATHS = ["log", "nothing", "rows.jsonl", "noise", "store", "\udcff", "x" * 300, "a\nb", "-", ".", "rows.jsonl/x"]
PLACES = {"path", "source", "cursor_file", "output", "events", "warehouse", "url", "target"}
"""Parameters that something could be written to: only what lies in the test's own directory."""
URLS = [
    "file:///dev/null/x",
    "http://127.0.0.1:9",
    "s3://",
    "sqlite://",
    "postgresql://u:p@127.0.0.1:9/x",
    "x",
    "\udcff",
]


def commands(group: click.Group, above: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        found = group.get_command(context, name)
        if name in NOT_HERE or found is None:
            continue
        if isinstance(found, click.Group):
            yield from commands(found, (*above, name))
        else:
            yield (*above, name), found


COMMANDS = list(commands(app))


@st.composite
def calls(draw: Any) -> list[str]:
    """A command with arguments of its own kind, most of them wrong."""
    names, command = draw(st.sampled_from(COMMANDS))
    words = list(names)
    for parameter in command.params:
        pool = PATHS + URLS if parameter.name in {"url", "target"} else PATHS if parameter.name in PLACES else TEXTS
        if isinstance(parameter.type, click.Choice) and draw(st.booleans()):
            pool = list(parameter.type.choices)
        values = st.sampled_from(pool)
        if isinstance(parameter, click.Argument):
            count = draw(st.integers(0, 2)) if parameter.nargs == -1 else draw(st.sampled_from([1] * 8 + [0, 2]))
            words += [draw(values) for _ in range(count)]
        elif isinstance(parameter, click.Option) and draw(st.integers(0, 3)) == 0:
            words.append(draw(st.sampled_from(parameter.opts)))
            words += [] if parameter.is_flag else [draw(values)]
    if draw(st.integers(0, 9)) == 0:
        words.insert(draw(st.integers(0, len(words))), draw(st.sampled_from(["--nothing", "-x", "--help", "\udcff"])))
    return words


@given(words=calls())
@inputs(40)
def test_any_command_ends_in_a_sentence_and_an_exit_code(terminal: Terminal, words: list[str]) -> None:
    terminal.again()
    began = time.monotonic()
    if words[:2] == ["dataset", "add"] or words[:2] == ["sink", "add"]:
        words = [*words[:2], *(fresh("made") if word == "nothing" else word for word in words[2:])]
    if "--watch" in words:
        words = [*words, "--count", "1"]  # it would stay
    check(terminal(*words), "command lines")
    assert time.monotonic() - began < SECONDS_MAX


def test_what_was_there_before_is_there_after_all_that(terminal: Terminal) -> None:
    terminal.again()
    done = terminal("status", "--json")
    assert done.code == 0, done
    assert len(COMMANDS) > 40


# ── files ────────────────────────────────────────────────────────────────────────────────────────────────────────────


def arrow_stream(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def arrow_file(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as stream:
        stream.write_table(table)
    return sink.getvalue().to_pybytes()


def parquet(table: pa.Table) -> bytes:
    sink = pa.BufferOutputStream()
    pq.write_table(table, sink, compression="none")
    return sink.getvalue().to_pybytes()


TABLE = pa.table({"id": [1, 2, 3], "total": [5, None, 7], "text": ["a", "b", None]})
JSONL = b'{"id":1,"total":5,"text":"a"}\n{"id":2,"total":null}\n\n{"id":3,"total":7}\n'
CSV = b'id,total,text\n1,5,a\n2,,"b\nc"\n3,7,\n'
GOOD = {
    "jsonl": JSONL,
    "csv": CSV,
    "parquet": parquet(TABLE),
    "arrow": arrow_file(TABLE),
    "stream": arrow_stream(TABLE),
}
ROWS = altered([{"id": 1, "total": 5}, {"id": 2, "total": 6}]).map(
    lambda rows: b"\n".join(map(dumped, rows)) if isinstance(rows, list) else dumped(rows)
)


@pytest.mark.parametrize("kind", list(GOOD))
@given(data=st.data())
@inputs(4)
def test_a_file_that_is_captured_is_stored_as_it_is_counted(terminal: Terminal, kind: str, data: st.DataObject) -> None:
    terminal.again()
    dataset = fresh("captured")
    columns = data.draw(st.sampled_from([[], ["--column", "id:long", "--column", "total:long"]]))
    assert terminal("dataset", "add", dataset, *columns).code == 0
    content = data.draw(mutated(GOOD[kind]) | ROWS if kind == "jsonl" else mutated(GOOD[kind]))
    ending = "arrow" if kind == "stream" else kind
    file = terminal.place / f"{dataset}.{ending}"
    file.write_bytes(content)
    through_a_pipe = data.draw(st.booleans())
    given_file = ["-", "--format", ending] if through_a_pipe else [str(file)]
    done = terminal("capture", dataset, *given_file, stdin=content if through_a_pipe else b"")
    file.unlink()
    check(done, "files to capture")
    told = re.search(r"Stored ([0-9,]+) row", done.out.decode() + done.err)
    counted = int(told[1].replace(",", "")) if told else 0
    with terminal.store() as store:
        store.flush(dataset)
        assert len(rows_of(store, dataset)) == counted


@pytest.mark.parametrize("kind", ["jsonl", "csv", "parquet"])
@given(data=st.data())
@inputs(4)
def test_a_file_that_is_loaded_is_stored_as_it_is_counted(terminal: Terminal, kind: str, data: st.DataObject) -> None:
    terminal.again()
    dataset = fresh("loaded")
    identity = data.draw(st.sampled_from([[], ["--identity", "id"], ["--column", "total:long", "--event-time", "at"]]))
    assert terminal("dataset", "add", dataset, *identity).code == 0
    content = data.draw(mutated(GOOD[kind]) | ROWS if kind == "jsonl" else mutated(GOOD[kind]))
    packed = data.draw(st.sampled_from(["", "", ".gz"]))
    folder = terminal.place / dataset
    below = folder / data.draw(st.sampled_from([".", "total=5", "total=x", "=", "a=b=c", "_ingest_seq=1", "total=%41"]))
    below.mkdir(parents=True)
    if packed:
        content = data.draw(st.just(gzip.compress(content)) | mutated(gzip.compress(content)))
    (below / f"rows.{kind}{packed}").write_bytes(content)
    options = data.draw(st.sampled_from([[], ["--since", "2026-01-01"], ["--map", "id=total"], ["--map", "x=y"]]))
    done = terminal("backfill", dataset, "--from", str(folder), "--json", *options)
    check(done, "files to load")
    with terminal.store() as store:
        stored = len(rows_of(store, dataset))
    if done.code == 0:
        report = orjson.loads(done.out)
        assert report["new"] == stored
        again = terminal("backfill", dataset, "--from", str(folder), "--json", *options)
        check(again, "files to load")
        assert orjson.loads(again.out)["new"] == 0


# ── providers ────────────────────────────────────────────────────────────────────────────────────────────────────────

FIXTURES = Path(__file__).parents[1] / "fixtures"
SOURCES = {
    "access-logs": (FIXTURES / "access_logs" / "access.log", "access.log"),
    "claude-code": (next((FIXTURES / "transcripts" / "claude-code").rglob("*.jsonl")), "projects/p/session.jsonl"),
    "codex": (next((FIXTURES / "transcripts" / "codex").rglob("*.jsonl")), "2026/01/01/rollout-x.jsonl"),
}


def sample(provider: str) -> bytes:
    return b"".join(SOURCES[provider][0].read_bytes().splitlines(keepends=True)[:12])


@pytest.mark.parametrize("provider", list(SOURCES))
@given(data=st.data())
@inputs(4)
def test_what_a_provider_reads_is_rows_or_is_held(terminal: Terminal, provider: str, data: st.DataObject) -> None:
    terminal.again()
    lines = sample(provider).splitlines()
    if provider != "access-logs" and data.draw(st.booleans()):
        place = data.draw(st.integers(0, len(lines) - 1))
        lines[place] = dumped(data.draw(altered(orjson.loads(lines[place]))))
        content = b"\n".join(lines) + b"\n"
    else:
        content = data.draw(mutated(sample(provider)))
    dataset = fresh("provided")
    folder = terminal.place / dataset
    file = folder / SOURCES[provider][1]
    if data.draw(st.integers(0, 4)) == 0:
        file, content = file.with_name(f"{file.name}.gz"), data.draw(mutated(gzip.compress(content)))
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    name = provider if provider == "access-logs" else "transcripts"
    done = terminal("backfill", dataset, "--provider", name, "--from", str(folder), "--json")
    check(done, "files of providers")
    if done.code == 0:
        with terminal.store() as store:
            assert len(rows_of(store, dataset)) == orjson.loads(done.out)["new"]


# ── cursors ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@given(data=st.data())
@inputs(8)
def test_a_cursor_file_is_followed_or_refused_and_then_left_alone(terminal: Terminal, data: st.DataObject) -> None:
    terminal.again()
    with terminal.store() as store:
        whole = f"{store.cursor('orders')}\n".encode()
    content = data.draw(mutated(whole))
    file = terminal.place / "cursor"
    file.write_bytes(content)
    done = terminal("read", "orders", "--cursor-file", str(file))
    check(done, "cursor files")
    assert done.code == 0 or file.read_bytes() == content
