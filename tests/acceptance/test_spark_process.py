"""Spark's JVM as a command starts it: on which Java, what is seen of its output, what is said if it does not start."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from stores import SMALL_JVM

from floodmark.lake.java import JAVA_MAX, JAVA_MIN
from floodmark.lake.sparklog import log_file
from floodmark.store import Store, init


def installed() -> dict[int, Path]:
    """The Javas of this machine, by major version."""
    found: dict[int, Path] = {}
    for release in sorted(Path("/usr/lib/jvm").glob("*/release")):
        version = re.search(r'JAVA_VERSION="(\d+)', release.read_text())
        if version is not None and (release.parent / "bin" / "java").is_file():
            found.setdefault(int(version[1]), release.parent)
    return found


UNFIT = {major: home for major, home in installed().items() if not JAVA_MIN <= major <= JAVA_MAX}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A store with a captured row."""
    with init(tmp_path / "store") as store:
        fill(store)
    settings(tmp_path / "store", SMALL_JVM)
    return tmp_path / "store"


def fill(store: Store) -> None:
    store.add_dataset("events", schema={"id": "long"})
    store.capture("events", [{"id": 1}])


def settings(root: Path, text: str) -> None:
    file = root / "floodmark.toml"
    identity = next(line for line in file.read_text().splitlines() if line.startswith("store_id"))
    file.write_text(f"{identity}\n{text}")


def floodmark(root: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYSPARK_GATEWAY")}
    return subprocess.run(
        [sys.executable, "-m", "floodmark.cli", "-s", str(root), *arguments],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def said(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What stands on standard error, but for a flush's own lines of progress, which depend on the machine."""
    return [line for line in done.stderr.splitlines() if not line.startswith("Flushing events … ")]


def test_a_command_shows_its_report_alone_and_what_spark_says_is_kept_in_the_store(root):
    done = floodmark(root, "flush")
    assert done.returncode == 0
    assert said(done) == []
    assert [line.split()[:2] for line in done.stdout.splitlines()] == [["dataset", "committed"], ["events", "1"]]
    assert "WARN" in log_file(root).read_text()


def test_a_jvm_that_does_not_start_is_told_in_two_lines_with_its_own_reason(root):
    settings(root, '[spark]\ndriver_memory = "1000000t"\n')
    done = floodmark(root, "flush")
    assert (done.returncode, done.stdout) == (1, "")
    error, hint = said(done)
    assert error.startswith("Error: Spark's JVM did not start: ")
    assert "Could not reserve enough space" in error
    assert str(log_file(root)) in hint
    shown = floodmark(root, "-v", "flush").stderr
    assert shown.index("Could not reserve enough space") < shown.index("Error: Spark's JVM did not start")


@pytest.mark.skipif(not UNFIT, reason="no Java is installed here that Spark cannot run on")
def test_an_installed_java_that_spark_cannot_run_on_is_refused_before_it_starts(root):
    for major, home in UNFIT.items():
        done = floodmark(root, "flush", JAVA_HOME=str(home))
        assert (done.returncode, done.stdout) == (1, "")
        error, hint = said(done)
        assert error.startswith(f"Error: Spark does not run on Java {major} ({home}/bin/java)")
        assert hint.startswith("Try:   ")
        assert not log_file(root).exists()


@pytest.mark.parametrize("major", [21])
def test_spark_runs_on_the_other_java_that_the_documents_name(root, major):
    home = os.environ.get(f"JAVA{major}_HOME") or installed().get(major)
    if home is None:
        pytest.skip(f"no Java {major} is installed here, and JAVA{major}_HOME does not name one")
    done = floodmark(root, "flush", JAVA_HOME=str(home))
    assert (done.returncode, said(done)) == (0, [])
    assert floodmark(root, "sql", "SELECT count(*) AS n FROM events", JAVA_HOME=str(home)).stdout.split() == ["n", "1"]
