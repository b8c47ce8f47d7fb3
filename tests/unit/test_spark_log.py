"""What a JVM says goes into a file of bounded size. The process here is a shell that says what a JVM would."""

from __future__ import annotations

import os
import stat
import subprocess
import threading
from pathlib import Path

import pytest

from floodmark.lake import sparklog
from floodmark.lake.sparklog import SparkLog, empty_log, log_file


def say(log: SparkLog, text: str) -> None:
    """A process that writes this to both its outputs by turns, and ends."""
    lines = [f"echo '{line}' >&{1 + number % 2}" for number, line in enumerate(text.splitlines())]
    subprocess.run(["sh", "-c", "\n".join(lines)], stdout=log.input, stderr=log.input, check=True)
    log.handed_over()
    log.last_words()  # waits for the end of the pipe


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with -v; what follows is silent again."""
    monkeypatch.setattr(sparklog, "shown", threading.Event())
    sparklog.show_spark_output()


def test_both_outputs_go_into_a_file_of_the_store_that_only_its_owner_can_read(tmp_path, capfd):
    log = SparkLog(log_file(tmp_path))
    say(log, "WARN one\nWARN two\n\tat somewhere")
    assert log_file(tmp_path).read_text() == "WARN one\nWARN two\n\tat somewhere\n"
    assert stat.S_IMODE(log_file(tmp_path).stat().st_mode) == 0o600
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("shown")
def test_where_it_is_asked_for_the_lines_are_shown_as_well(tmp_path, capfd):
    say(SparkLog(log_file(tmp_path)), "WARN one\nWARN two")
    assert capfd.readouterr() == ("", "WARN one\nWARN two\n")
    assert log_file(tmp_path).read_text() == "WARN one\nWARN two\n"


def test_the_next_jvm_goes_on_in_the_same_file(tmp_path):
    for text in ("first", "second"):
        say(SparkLog(log_file(tmp_path)), text)
    assert log_file(tmp_path).read_text() == "first\nsecond\n"


def test_two_files_of_bounded_size_are_kept(tmp_path, monkeypatch):
    monkeypatch.setattr(sparklog, "FILE_BYTES_MAX", 1000)
    say(SparkLog(log_file(tmp_path)), "\n".join(f"line {number:04}" for number in range(1000)))
    files = sorted(log_file(tmp_path).parent.iterdir())
    assert [file.name for file in files] == ["spark.log", "spark.log.1"]
    assert all(file.stat().st_size <= 1010 for file in files)
    assert log_file(tmp_path).read_text().splitlines()[-1] == "line 0999"


def test_two_processes_that_fill_one_file_lose_nothing_of_the_newest(tmp_path, monkeypatch):
    monkeypatch.setattr(sparklog, "FILE_BYTES_MAX", 100)
    one, other = SparkLog(log_file(tmp_path)), SparkLog(log_file(tmp_path))
    os.write(one.input, b"o" * 200 + b"\n")
    say(other, "x" * 200 + "\nthe other")
    say(one, "the one")
    kept = "".join(file.read_text() for file in log_file(tmp_path).parent.iterdir())
    assert "the one\n" in kept
    assert "the other\n" in kept


@pytest.mark.parametrize(
    ("line", "secret"),
    [
        ("cannot connect to jdbc:postgresql://user:hush@host/db", "hush"),
        ("catalog.password = hush", "hush"),
        ('{"s3.secret-access-key": "hush", "region": "eu"}', "hush"),
        ("Authorization token: hush", "hush"),
    ],
)
def test_passwords_are_masked_before_a_line_is_kept(tmp_path, line, secret):
    log = SparkLog(log_file(tmp_path))
    say(log, line)
    assert secret not in log_file(tmp_path).read_text()
    assert secret not in log.last_words()
    assert "***" in log.last_words()


def test_a_file_that_cannot_be_written_stops_nobody(tmp_path):
    log_file(tmp_path).mkdir(parents=True)
    log = SparkLog(log_file(tmp_path))
    say(log, "WARN one\nError: the reason")
    assert log.last_words() == "Error: the reason"


def test_why_a_jvm_did_not_start_is_found_in_its_last_words(tmp_path):
    log = SparkLog(None)
    say(
        log,
        "WARNING: incubator\nError occurred during initialization of VM\nToo small maximum heap.\n\tat x.Y\n"
        "Error: Could not create the Java Virtual Machine.",
    )
    assert log.last_words() == "Error occurred during initialization of VM; Too small maximum heap"


def test_emptying_leaves_nothing_of_either_file_and_the_writer_goes_on(tmp_path, monkeypatch):
    monkeypatch.setattr(sparklog, "FILE_BYTES_MAX", 10)
    log = SparkLog(log_file(tmp_path))
    say(log, "a value of a row\nanother value\nand one more")
    empty_log(tmp_path)
    assert [Path(file).read_bytes() for file in sorted(log_file(tmp_path).parent.iterdir())] == [b"", b""]
    say(SparkLog(log_file(tmp_path)), "later")
    assert log_file(tmp_path).read_text() == "later\n"
    empty_log(tmp_path / "nowhere")
