"""The class archive is used where it is, and never needed."""

from __future__ import annotations

from pathlib import Path

import pytest

from floodmark.lake import jars as jar_files


@pytest.fixture
def jars(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FLOODMARK_JARS", str(tmp_path))
    return tmp_path


def test_without_an_archive_the_jvm_is_told_nothing(jars: Path) -> None:
    assert jar_files.archive_options() == []


def test_an_archive_is_used_without_a_word_about_it(jars: Path) -> None:
    jar_files.archive_file().touch()
    used, *muted = jar_files.archive_options()
    assert used == f"-XX:SharedArchiveFile={jar_files.archive_file()}"
    assert all(option.startswith("-Xlog:") for option in muted)


def test_another_build_of_java_has_another_archive(jars: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    jar_files.archive_file().touch()
    monkeypatch.setattr(jar_files, "java_build", lambda: "another")
    assert jar_files.archive_options() == []


def test_an_archive_below_a_directory_with_a_blank_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Spark would split the option at the blank, and the JVM would not start."""
    (tmp_path / "my jars").mkdir()
    monkeypatch.setenv("FLOODMARK_JARS", str(tmp_path / "my jars"))
    jar_files.archive_file().touch()
    assert jar_files.archive_options() == []
