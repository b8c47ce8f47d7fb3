"""The jars that Spark starts with are those that this version was tested with, byte for byte."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from floodmark.errors import EnvironmentProblem
from floodmark.lake import jars
from floodmark.lake.jars import Jar, ready_jars

CONTENT = {"runtime": b"the runtime" * 1000, "driver": b"the driver" * 1000}


@pytest.fixture
def directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A cache with two small jars, pinned as the real ones are."""
    pinned = tuple(Jar("g", name, "1", hashlib.sha256(content).hexdigest()) for name, content in CONTENT.items())
    monkeypatch.setattr(jars, "JARS", pinned)
    for jar in pinned:
        (tmp_path / jar.file_name).write_bytes(CONTENT[jar.artifact])
    return tmp_path


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The files whose content was read."""
    seen: list[str] = []
    digest = hashlib.file_digest

    def watched(file, algorithm):
        seen.append(Path(file.name).name)
        return digest(file, algorithm)

    monkeypatch.setattr(hashlib, "file_digest", watched)
    return seen


def test_a_jar_with_another_content_is_refused_with_its_name_and_the_way_out(directory):
    ready_jars(directory)
    (directory / "driver-1.jar").write_bytes(b"something else")
    with pytest.raises(EnvironmentProblem) as caught:
        ready_jars(directory)
    assert str(directory / "driver-1.jar") in caught.value.message
    assert "floodmark jars" in (caught.value.hint or "")


def test_a_jar_of_the_same_size_and_modification_time_is_found_out_as_well(directory):
    ready_jars(directory)
    path = directory / "driver-1.jar"
    before = path.stat()
    path.write_bytes(CONTENT["driver"].replace(b"the", b"The", 1))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(EnvironmentProblem, match="checksum differs"):
        ready_jars(directory)


def test_a_jar_is_read_once_and_again_only_when_it_has_changed(directory, read):
    assert ready_jars(directory) == [directory / "runtime-1.jar", directory / "driver-1.jar"]
    assert sorted(read) == ["driver-1.jar", "runtime-1.jar"]
    ready_jars(directory)
    assert len(read) == 2
    os.utime(directory / "driver-1.jar", ns=(1, 1))
    ready_jars(directory)
    assert read[2:] == ["driver-1.jar"]


def test_another_pinned_checksum_makes_what_was_checked_before_count_for_nothing(directory, monkeypatch):
    ready_jars(directory)
    monkeypatch.setattr(jars, "JARS", (jars.JARS[0], Jar("g", "driver", "1", "0" * 64)))
    with pytest.raises(EnvironmentProblem, match=r"driver-1\.jar"):
        ready_jars(directory)


@pytest.mark.parametrize("record", [b"", b"[]", b"{", b"\xff"])
def test_a_damaged_record_costs_a_reading_and_nothing_else(directory, read, record):
    (directory / jars.CHECKED_FILE).write_bytes(record)
    assert len(ready_jars(directory)) == 2
    assert len(read) == 2


def test_where_the_record_cannot_be_written_the_jars_are_used_all_the_same(directory, read):
    (directory / jars.CHECKED_FILE).mkdir()
    for _ in range(2):
        assert len(ready_jars(directory)) == 2
    assert len(read) == 4
