"""Which Java is taken, and what is said of the others. The programs here only say which version they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.errors import EnvironmentProblem
from floodmark.lake.java import check_java

WORDS = {
    8: 'java version "1.8.0_392"\nJava(TM) SE Runtime Environment (build 1.8.0_392-b08)',
    11: 'openjdk version "11.0.13" 2021-10-19\nOpenJDK Runtime Environment Temurin-11.0.13+8 (build 11.0.13+8)',
    17: 'openjdk version "17.0.15" 2025-04-15\nOpenJDK Runtime Environment (build 17.0.15+6-Debian-1deb12u1)',
    21: 'Picked up JAVA_TOOL_OPTIONS: -Dx="1"\nopenjdk version "21" 2023-09-19\nOpenJDK Runtime Environment',
    22: 'openjdk version "22.0.2" 2024-07-16\nOpenJDK Runtime Environment (build 22.0.2+9-70)',
    23: 'openjdk version "23-ea" 2024-09-17\nOpenJDK Runtime Environment (build 23-ea+1)',
    24: 'openjdk version "24.0.1" 2025-04-15\nOpenJDK Runtime Environment (build 24.0.1+9-30)',
    25: 'openjdk version "25.0.3" 2026-04-21 LTS\nOpenJDK Runtime Environment Temurin-25.0.3+9 (build 25.0.3+9-LTS)',
}


def use(home: Path, words: str, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A Java home whose program says these words, as the real one does: to standard error."""
    program = home / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\ncat >&2 <<'END'\n{words}\nEND\n")
    program.chmod(0o755)
    monkeypatch.setenv("JAVA_HOME", str(home))
    return program


@pytest.mark.parametrize("major", [17, 21, 22])
def test_a_java_that_spark_runs_on_is_taken(major, tmp_path, monkeypatch):
    use(tmp_path, WORDS[major], monkeypatch)
    assert check_java() == major


@pytest.mark.parametrize("major", [8, 11, 23, 24, 25])
def test_a_java_that_spark_cannot_run_on_is_refused_by_name_with_one_that_can(major, tmp_path, monkeypatch):
    program = use(tmp_path, WORDS[major], monkeypatch)
    with pytest.raises(EnvironmentProblem) as caught:
        check_java()
    assert f"Java {major} ({program})" in caught.value.message
    assert "Java 17 or 21" in caught.value.message
    assert caught.value.hint is not None
    assert "JAVA_HOME" in caught.value.hint


def test_a_java_that_fits_and_is_installed_is_named(tmp_path, monkeypatch):
    use(tmp_path / "wrong", WORDS[25], monkeypatch)
    for name, version in {"a-old": "11.0.2", "b-new": "25.0.3", "c-good": "21.0.8"}.items():
        home = tmp_path / "jvm" / name
        (home / "bin").mkdir(parents=True)
        (home / "bin" / "java").touch()
        (home / "release").write_text(f'IMPLEMENTOR="x"\nJAVA_VERSION="{version}"\n')
    monkeypatch.setattr("floodmark.lake.java._PLACES", (f"{tmp_path}/jvm/*",))
    with pytest.raises(EnvironmentProblem) as caught:
        check_java()
    assert caught.value.hint == f"Java 21 is installed: set JAVA_HOME={tmp_path}/jvm/c-good."


def test_where_no_java_fits_the_hint_says_what_to_install(tmp_path, monkeypatch):
    use(tmp_path / "wrong", WORDS[25], monkeypatch)
    monkeypatch.setattr("floodmark.lake.java._PLACES", ())
    with pytest.raises(EnvironmentProblem) as caught:
        check_java()
    assert caught.value.hint is not None
    assert "openjdk-17-jre-headless" in caught.value.hint


def test_a_program_that_does_not_say_its_version_is_refused(tmp_path, monkeypatch):
    use(tmp_path, "The operation couldn't be completed. Unable to locate a Java Runtime.", monkeypatch)
    with pytest.raises(EnvironmentProblem, match="does not report its version"):
        check_java()
