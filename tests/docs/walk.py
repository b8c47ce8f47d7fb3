"""A page's commands and Python, run as a new user would: in order, in one shell, in an empty directory.

Every block of code on a page has a fence that says what it is:

| fence     | what happens                                                                                          |
|-----------|-------------------------------------------------------------------------------------------------------|
| `console` | each line after `$ ` is given to one bash; what the page shows below it is what it prints               |
| `python`  | is run, in one namespace for each page, and prints what stands behind `# →`; or is written to the file   |
|           | that its first line names (`# totals.py`)                                                               |
| `toml`    | is appended to the store's floodmark.toml                                                              |
| others    | are not run: the test lists them with the reason                                                       |

`floodmark` in this shell is a short program that hands its arguments, environment, directory and standard streams to
this process, which runs the command: so one JVM serves all pages. What runs until it is stopped (`run`, `hub`) is a
process of its own, in the background until the page stops it or ends.
"""

from __future__ import annotations

import contextlib
import io
import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import orjson

from floodmark.cli.entry import run
from waiting import wait_until

ROOT = Path(__file__).parents[2]
START_SECONDS_MAX = 240
PROCESSES = ("run", "hub")
"""Commands that run until they are stopped."""

SHIM = """\
#!{python} -SE
import json, os, socket, sys
arguments = sys.argv[1:]
words = [word for word in arguments if not word.startswith("-")]
if {processes!r} & set(words[:2]) and not {{"--once", "--help"}} & set(arguments):
    os.execv({real!r}, [{real!r}, *arguments])
walk = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
walk.connect({address!r})
call = json.dumps({{"arguments": arguments, "directory": os.getcwd(), "environment": dict(os.environ)}})
socket.send_fds(walk, [call.encode()], [0, 1, 2])
sys.exit(int(walk.recv(16)))
"""


@dataclass(frozen=True)
class Block:
    page: str
    line: int
    kind: str
    text: str

    @property
    def title(self) -> str:
        """The first line: what a list of blocks names it by."""
        return self.text.partition("\n")[0]


@dataclass(frozen=True)
class Command:
    text: str
    shown: list[str]
    """What the page shows as its output; empty if it shows none."""

    @property
    def stays(self) -> bool:
        """Whether it runs until it is stopped."""
        return bool(re.fullmatch(rf"floodmark (-\S+ \S+ )*({'|'.join(PROCESSES)})\b(?!.*--once).*", self.text))


def blocks(page: str) -> list[Block]:
    """A page's blocks of code, in order. A block without a fence has the kind `indented`."""
    found: list[Block] = []
    lines = (ROOT / page).read_text(encoding="utf-8").splitlines()
    number = 0
    while number < len(lines):
        fence = re.fullmatch(r"( *)```(\w*)", lines[number])
        if fence:
            end = next(n for n in range(number + 1, len(lines)) if lines[n].strip() == "```")
            text = textwrap.dedent("\n".join(lines[number + 1 : end]) + "\n")
            found.append(Block(page, number + 1, fence[2] or "none", text))
            number = end + 1
        elif lines[number].startswith("    ") and not (number and lines[number - 1].strip()):
            end = next((n for n in range(number, len(lines)) if not lines[n].startswith("    ")), len(lines))
            found.append(Block(page, number + 1, "indented", textwrap.dedent("\n".join(lines[number:end]) + "\n")))
            number = end
        else:
            number += 1
    return found


def commands(block: Block) -> Iterator[Command]:
    """The commands of a `console` block, each with what the page shows below it."""
    lines = block.text.splitlines()
    while lines:
        first = lines.pop(0)
        assert first.startswith("$ "), f"{block.page}:{block.line}: a console block begins with `$ `: {first}"
        text = [first[2:]]
        here = re.search(r"<<'(\w+)'", first)
        while lines and ((here and text[-1] != here[1]) or text[-1].endswith("\\")):
            text.append(lines.pop(0))
        shown = []
        while lines and not lines[0].startswith("$ "):
            shown.append(lines.pop(0))
        yield Command("\n".join(text), shown)


@dataclass
class Outcome:
    code: int
    output: str


@dataclass
class Shell:
    """One bash, and the process that runs its `floodmark`."""

    directory: Path
    environment: Mapping[str, str]
    _background: list[tuple[int, Path]] = field(default_factory=list)
    _started: int = 0

    def __enter__(self) -> Self:
        self.directory.mkdir(parents=True, exist_ok=True)
        programs = self.directory.parent / "programs"
        programs.mkdir()
        # A socket's address is short: pytest's directories may be deeper than it allows.
        self._sockets = Path(f"/tmp/floodmark-walk-{os.getpid()}-{id(self)}")
        self._sockets.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._listener.bind(str(self._sockets))
        self._listener.listen()
        (programs / "floodmark").write_text(
            SHIM.format(
                python=sys.executable,
                processes=set(PROCESSES),
                real=str(Path(sys.executable).with_name("floodmark")),
                address=str(self._sockets),
            )
        )
        (programs / "floodmark").chmod(0o755)
        home = self.directory.parent / "home"
        home.mkdir()
        (home / ".gitconfig").write_text(
            "[user]\nname = A Reader\nemail = reader@example.org\n[init]\ndefaultBranch = main\n[advice]\nall = false\n"
        )
        (home / ".curlrc").write_text(
            "silent\nshow-error\n"
        )  # as on a terminal, where it shows no progress for so little
        kept = {
            name: os.environ[name]
            for name in ("FLOODMARK_JARS", "SPARK_SUBMIT_OPTS", "JAVA_HOME")
            if name in os.environ
        }
        self._output = self.directory.parent / "output"
        self._output.touch()
        ends, done = os.pipe()
        self._ended = os.fdopen(ends, "rb", buffering=0)
        with self._output.open("ab") as output:
            self._bash = subprocess.Popen(
                ["/bin/bash", "--norc", "--noprofile"],
                cwd=self.directory,
                env={
                    **kept,
                    "PATH": f"{programs}:{Path(sys.executable).parent}:{os.environ['PATH']}",
                    "HOME": str(home),
                    "LC_ALL": "C.UTF-8",
                    "TERM": "dumb",
                    **self.environment,
                },
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=[done],
                start_new_session=True,
            )
        os.close(done)
        self._done = done
        return self

    def __exit__(self, *_: object) -> None:
        try:
            self.stop_everything()
        finally:
            assert self._bash.stdin is not None
            self._bash.stdin.close()
            self._bash.wait(timeout=30)
            self._listener.close()
            self._ended.close()
            self._sockets.unlink(missing_ok=True)

    # ── in the foreground ────────────────────────────────────────────────────────────────────────────────────────────

    def do(self, text: str) -> Outcome:
        """Give bash a command, and serve the `floodmark`s in it until it has ended."""
        before = self._output.stat().st_size
        self._tell(f"{{\n{text}\n}} </dev/null {self._done}>&-; echo $? >&{self._done}\n")
        while True:
            ready, _, _ = select.select([self._listener, self._ended], [], [], 300)
            assert ready, f"five minutes without an end: {text}"
            if self._listener in ready:
                self._serve()
            else:
                break
        code = self._ended.read(16)
        assert code, f"bash has ended in: {text}"
        with self._output.open("rb") as output:
            output.seek(before)
            return Outcome(int(code), output.read().decode())

    def _tell(self, text: str) -> None:
        assert self._bash.stdin is not None
        self._bash.stdin.write(text.encode())
        self._bash.stdin.flush()

    def _serve(self) -> None:
        connection, _ = self._listener.accept()
        with connection:
            message, streams, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            call = orjson.loads(message)
            with self.as_if_in(call["directory"], call["environment"], streams):
                code = run(call["arguments"])
            for stream in streams:
                os.close(stream)
            connection.send(str(code).encode())

    @contextlib.contextmanager
    def as_if_in(
        self, directory: str, environment: Mapping[str, str], streams: list[int] | None = None
    ) -> Iterator[None]:
        """This process with another one's directory, environment, import path and standard streams."""
        here, variables, path = Path.cwd(), dict(os.environ), list(sys.path)
        loaded, names = set(sys.modules), (sys.stdin, sys.stdout, sys.stderr)
        saved = [os.dup(number) for number in range(3)]
        try:
            os.chdir(directory)
            os.environ.clear()
            os.environ.update(environment)
            sys.path[:0] = [item for item in environment.get("PYTHONPATH", "").split(":") if item]
            if streams:
                for number, stream in enumerate(streams):
                    os.dup2(stream, number)
                sys.stdin = io.TextIOWrapper(io.BufferedReader(io.FileIO(0, "rb", closefd=False)))
                sys.stdout, sys.stderr = (
                    io.TextIOWrapper(io.BufferedWriter(io.FileIO(number, "wb", closefd=False)), write_through=True)
                    for number in (1, 2)
                )
            yield
        finally:
            if streams:
                sys.stdout.flush()
            sys.stdin, sys.stdout, sys.stderr = names
            for number, stream in enumerate(saved):
                os.dup2(stream, number)
                os.close(stream)
            os.environ.clear()
            os.environ.update(variables)
            os.chdir(here)
            sys.path[:] = path
            for name in set(sys.modules) - loaded:
                file = getattr(sys.modules[name], "__file__", None)
                if file and Path(file).is_relative_to(self.directory):
                    del sys.modules[name]  # another page has another module of this name

    def python(self, source: str, block: Block, namespace: dict[str, Any]) -> str:
        """Run a page's Python where its shell is; returns what it printed."""
        variables = self.variables()
        printed = io.StringIO()
        directory = str(Path(f"/proc/{self._bash.pid}/cwd").readlink())
        with self.as_if_in(directory, variables), contextlib.redirect_stdout(printed):
            sys.path.insert(0, directory)  # as `python` in that directory has it
            exec(compile(source, f"{block.page}:{block.line}", "exec"), namespace)
        return printed.getvalue()

    def variables(self) -> dict[str, str]:
        text = self.do("env -0").output
        return dict(item.split("=", 1) for item in text.split("\0") if "=" in item)

    # ── in the background ────────────────────────────────────────────────────────────────────────────────────────────

    def start(self, text: str, shown: str) -> None:
        """Start what runs until it is stopped, and wait until it has printed what the page shows last."""
        self._started += 1
        log = self.directory.parent / f"background-{self._started}"
        log.touch()
        started = self.do(f"{{ exec {text}\n}} >{log} 2>&1 & echo $!")  # the line may end with a comment
        assert started.code == 0, started.output
        process = int(started.output.split()[-1])
        self._background.append((process, log))
        wait_until(
            lambda: shown in log.read_text() or not _alive(process),
            seconds_max=START_SECONDS_MAX,
            story=lambda: f"`{text}` has not said {shown!r}:\n{log.read_text()}",
        )
        assert shown in log.read_text(), log.read_text()

    @property
    def last_process(self) -> int:
        """The last process in the background."""
        return self._background[-1][0] if self._background else 0

    def said(self) -> str:
        """What the last process in the background has printed."""
        return self._background[-1][1].read_text()

    def stop_everything(self) -> list[int]:
        """End what runs in the background, as `systemd` would; returns the exit codes."""
        codes = []
        for process, log in self._background:
            if _alive(process) and "Stopping" not in log.read_text():  # the page may have stopped it
                os.kill(process, signal.SIGTERM)
            codes.append(self.do(f"wait {process}").code)
        self._background.clear()
        return codes


def _alive(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


# ── what a page shows, and what was printed ──────────────────────────────────────────────────────────────────────────

MOMENTS = (
    (re.compile(r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00| UTC)?"), "<time>"),
    (re.compile(r"\b[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}\b"), "<uuid>"),
    (re.compile(r"\b\d+(\.\d+)? (s|ms|seconds?|minutes?)\b"), "<duration>"),
    (re.compile(r"\b([0-9a-f]{12}|[0-9a-f]{32}|\d{15,})\b"), "<id>"),
    (re.compile(r"\bprocess \d+\b"), "process <number>"),
    (re.compile(r"\bfm1\.[\w.…-]+"), "<cursor>"),
    (re.compile(r"\b\d+(\.\d+)? (B|KB|KiB|MB|MiB)\b"), "<size>"),
    (re.compile(r"[ ─━-]{2,}"), "  "),
)
"""What differs from run to run: a page shows one of them, and every run prints another."""


def normalised(text: str, places: Mapping[str, str]) -> list[str]:
    for place, name in places.items():
        text = text.replace(place, name)
    for pattern, name in MOMENTS:
        text = pattern.sub(name, text)
    return [line.strip() for line in text.splitlines() if line.strip()]


PROGRESS = re.compile(r".* …( <duration>)?|.*: [\d,]+( of [\d,]+)? \w+, [\d,]+/s(, about <duration> left)?")
"""Lines of work that takes longer than two seconds: whether they come depends on the machine."""


def without_progress(lines: list[str]) -> list[str]:
    return [line for line in lines if not PROGRESS.fullmatch(line)]


def matches(shown: list[str], printed: list[str]) -> bool:
    """Line by line; `…` in a line of the page is any text, and a line with only `…` is any number of lines."""
    pattern = "".join(
        r"(?:.*\n)*" if line == "…" else ".*".join(re.escape(part) for part in line.split("…")) + "\n" for line in shown
    )
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in printed)) is not None
