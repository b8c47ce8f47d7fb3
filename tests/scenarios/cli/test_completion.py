"""What a shell completes: commands, options, and the names that the store has. The scripts are read by real shells."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from scenarios.cli.conftest import Cli

SHELLS = ["bash", "zsh", "fish"]


def completed(store: Path, *words: str) -> list[str]:
    """What bash gets for the last word, asked in a process of its own as bash does it."""
    environment = {
        "_FLOODMARK_COMPLETE": "bash_complete",
        "COMP_WORDS": " ".join(["floodmark", *words]),
        "COMP_CWORD": str(len(words)),
        "FLOODMARK_STORE": str(store),
        "PATH": "/usr/bin:/bin",
        "HOME": "/nonexistent",
    }
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "floodmark.cli"],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "pyspark" not in done.stderr
    assert "Traceback" not in done.stderr, done.stderr
    return [line.partition(",")[2] for line in done.stdout.splitlines() if line]


@pytest.fixture
def store(shop: Cli, tmp_path: Path) -> Path:
    shop("dataset", "add", "returns")
    shop("sink", "add", "archive", "blob", "--url", (tmp_path / "out").as_uri())
    return tmp_path / "store"


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["comp"], ["compact", "completion"]),
        (["flush", ""], ["orders", "returns"]),
        (["flush", "o"], ["orders"]),
        (["export", "a"], ["archive"]),
        (["sink", "rewind", ""], ["archive"]),
        (["dataset", "remove", "r"], ["returns"]),
        (["flush", "--js"], ["--json"]),
    ],
)
def test_a_word_is_completed_from_the_store_without_a_jvm(store: Path, words: list[str], found: list[str]) -> None:
    assert completed(store, *words) == found


def test_without_a_store_nothing_is_completed_and_nothing_is_said(tmp_path: Path) -> None:
    assert completed(tmp_path, "flush", "") == []


@pytest.mark.parametrize("shell", SHELLS)
def test_the_script_is_one_of_that_shell(cli: Cli, shell: str, tmp_path: Path) -> None:
    done = cli("completion", shell)
    assert done.code == 0
    assert f"_FLOODMARK_COMPLETE={shell}_complete" in done.out
    program = shutil.which(shell)
    if program is not None:
        script = tmp_path / "script"
        script.write_text(done.out)
        subprocess.run([program, "-n", str(script)], check=True)


def test_another_shell_is_refused_with_those_that_there_are(cli: Cli) -> None:
    done = cli("completion", "tcsh")
    assert done.code == 2
    assert all(shell in done.err for shell in SHELLS)
