"""Start-up and the way out: light help, no JVM where none is needed, one sentence and one code for every failure."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import click
import pytest

from floodmark.cli.entry import run
from floodmark.cli.group import COMMANDS, app
from floodmark.errors import Corrupt, Retryable
from floodmark.store import Store, init
from waiting import wait_until

FLOODMARK = [sys.executable, "-m", "floodmark.cli"]
HEAVY = ("pyarrow", "sqlalchemy", "pyspark", "pyiceberg", "rich", "orjson", "msgspec")


def modules_after(*arguments: str, stdin: str = "") -> set[str]:
    program = (
        "import sys; from floodmark.cli.entry import run; run(sys.argv[1:]); "
        "print('\\n'.join(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, *arguments], input=stdin, capture_output=True, text=True, check=True
    )
    return set(done.stderr.splitlines())


@pytest.mark.parametrize("arguments", [("--help",), ("--version",), ("capture", "--help"), ("read", "--help")])
def test_help_imports_no_data_library(arguments):
    assert modules_after(*arguments).isdisjoint(HEAVY)


@pytest.mark.parametrize(
    "arguments", [("status",), ("sink", "list"), ("quarantine", "list"), ("capture", "rows", "-")], ids=" ".join
)
def test_questions_to_the_records_and_a_captured_row_need_no_arrow_and_no_lake(tmp_path, arguments):
    with init(tmp_path / "store") as store:
        store.add_dataset("rows", schema={"n": "long", "text": "string"})
        store.add_sink("archive", "blob", url=(tmp_path / "out").as_uri())
    loaded = modules_after("-s", str(tmp_path / "store"), *arguments, stdin='{"n": 1, "text": "a"}\n')
    assert loaded.isdisjoint({"pyarrow", "numpy", "pandas", "pyspark", "pyiceberg", "floodmark.lake.table"})
    # Nor what commits, delivers and removes rows: every dataclass of it would be made first.
    writing = ("commit.protocol", "control.removals", "delivery.destination", "providers", "spool.segments")
    assert loaded.isdisjoint(f"floodmark.{name}" for name in writing)


@pytest.mark.parametrize(("arguments", "code"), [(("--version",), 0), (("no-such-command",), 2)])
def test_a_process_that_is_left_at_once_has_done_all_that_it_would_do_at_its_end(arguments, code):
    program = (
        "import atexit, sys; from floodmark.cli import main; "
        "atexit.register(lambda: sys.stdout.write('said at the end')); main()"
    )
    done = subprocess.run([sys.executable, "-c", program, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == code
    assert done.stdout.endswith("said at the end")


def test_help_loads_neither_the_records_nor_arrow_nor_spark():
    """What makes a command slow to answer is what it loads, and that can be counted."""
    program = (
        "import atexit, sys; from floodmark.cli import main; sys.argv = ['floodmark', '--help'];"
        "atexit.register(lambda: print(*{name.split('.')[0] for name in sys.modules}, file=sys.stderr)); main()"
    )
    asked = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True, text=True)
    loaded = set(asked.stderr.split())
    assert {"floodmark", "click"} <= loaded
    assert not loaded & {"sqlalchemy", "pyarrow", "pyiceberg", "pyspark", "httpx", "rich"}


def test_the_list_of_verbs_says_what_each_command_says_of_itself():
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        assert command is not None
        assert (command.help or "").strip(), name
        assert COMMANDS[name][1].endswith(".")


def test_every_command_has_an_example_in_its_help():
    context = click.Context(app)
    for name in app.list_commands(context):
        command = app.get_command(context, name)
        leaves = command.commands.values() if isinstance(command, click.Group) else [command]
        for leaf in leaves:
            assert "Example" in (leaf.help or ""), f"{name} {leaf.name}"


def test_init_dataset_capture_status_and_quarantine_start_no_jvm(tmp_path: Path):
    environment = {
        "PATH": "/nowhere",
        "JAVA_HOME": "/nowhere",
        "HOME": str(tmp_path),
        "FLOODMARK_STORE": str(tmp_path / "store"),
    }

    def call(*arguments: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([*FLOODMARK, *arguments], env=environment, input=stdin, capture_output=True, check=False)

    for arguments, stdin in (
        (("init",), b""),
        (("dataset", "add", "orders", "--identity", "id"), b""),
        (("dataset", "list"), b""),
        (("capture", "orders", "-"), b'{"id": 1}\n'),
        (("status",), b""),
        (("quarantine", "list"), b""),
    ):
        done = call(*arguments, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()

    flush = call("flush")
    assert flush.returncode == 1
    assert b"Error: JAVA_HOME is /nowhere" in flush.stderr
    assert b"Try:   " in flush.stderr
    assert b"Traceback" not in flush.stderr


def test_a_pipe_that_pauses_has_its_rows_stored(tmp_path: Path):
    """A quiet source must not keep its last rows waiting in memory for a batch to fill."""
    store = init(tmp_path / "store")
    store.add_dataset("orders")
    command = [*FLOODMARK, "-s", str(tmp_path / "store"), "capture", "orders", "-"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdin is not None
        process.stdin.write(b'{"id": 1}\n{"id": 2}\n{"id": ')
        process.stdin.flush()
        wait_until(lambda: store.status().datasets[0].spool.landing_bytes or process.poll() is not None)
        assert process.poll() is None
        out, _ = process.communicate(b"3}")
    assert out == b"Stored 3 rows of orders. Read to line 3.\n"
    store.close()


# ── failures ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def failing_with(monkeypatch: pytest.MonkeyPatch, error: BaseException) -> None:
    def fail(_self):
        raise error

    monkeypatch.setattr(Store, "status", fail)


@pytest.mark.parametrize(
    ("error", "code", "text"),
    [
        (Retryable("It is busy.", hint="Wait."), 1, "Error: It is busy.\nTry:   Wait.\n"),
        (Retryable("It is busy."), 1, "Error: It is busy.\n"),
        (Corrupt("It contradicts itself.", hint="Look."), 3, "Error: It contradicts itself.\nTry:   Look.\n"),
        (
            ZeroDivisionError("by zero\nand more"),
            1,
            (
                "Error: Unexpected failure (ZeroDivisionError: by zero).\n"
                "Try:   Run the command again with FLOODMARK_TRACEBACK=1 and report the traceback.\n"
            ),
        ),
        (KeyboardInterrupt(), 130, "Interrupted. All acknowledged rows are safe.\n"),
    ],
)
def test_a_failure_ends_as_a_sentence_and_a_code(shop, monkeypatch, error, code, text):
    failing_with(monkeypatch, error)
    done = shop("status")
    assert (done.code, done.out, done.err.lstrip("\n")) == (code, "", text)


def test_the_traceback_is_there_for_those_who_ask(shop, monkeypatch):
    failing_with(monkeypatch, ZeroDivisionError("by zero"))
    monkeypatch.setenv("FLOODMARK_TRACEBACK", "1")
    done = shop("status")
    assert done.code == 1
    assert "Traceback (most recent call last)" in done.err


def test_an_unknown_verb_or_option_is_a_usage_error(cli):
    for arguments in (["bogus"], ["status", "--bogus"], ["capture"], ["read", "x", "--limit", "0"]):
        assert cli(*arguments).code == 2


def test_since_and_cursor_file_exclude_each_other(shop, tmp_path: Path):
    assert shop("read", "orders", "--since", "x", "--cursor-file", str(tmp_path / "c")).code == 2


def test_a_reader_that_leaves_ends_the_command_quietly_and_without_success(tmp_path: Path):
    program = (
        "import sys\n"
        "from floodmark.cli import group\n"
        "from floodmark.cli.entry import run\n"
        "import click\n"
        "@click.command()\n"
        "def status():\n"
        "    for _ in range(100_000):\n"
        "        sys.stdout.buffer.write(b'x' * 100 + b'\\n')\n"
        "group.LazyGroup.get_command = lambda *_: status\n"
        "sys.exit(run(['status']))\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        said = process.stderr.read().decode()
    assert (process.returncode, said) == (1, "")


def test_the_store_may_be_named_by_the_environment(tmp_path: Path, monkeypatch, capfd):
    monkeypatch.setenv("FLOODMARK_STORE", str(tmp_path / "elsewhere"))
    assert run(["init"]) == 0
    assert run(["status"]) == 0
    assert str(tmp_path / "elsewhere") in capfd.readouterr().out


def test_what_the_operating_system_refuses_is_told_with_the_path(capsys, tmp_path: Path):
    assert run(["-s", str(tmp_path / ("x" * 300)), "init"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("Error: /")
    assert "File name too long.\nTry:   " in said


def test_verbose_shows_what_spark_says_and_no_other_command_does(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("floodmark.lake.sparklog.show_spark_output", lambda: asked.append(True))
    init(tmp_path / "store").close()
    run(["-s", str(tmp_path / "store"), "status"])
    assert asked == []
    run(["-v", "-s", str(tmp_path / "store"), "status"])
    assert asked == [True]
