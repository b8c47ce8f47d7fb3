"""Who is running: a process is told from every other, also from a later one with its number."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark import process
from floodmark.process import is_certainly_dead, process_identity


def test_this_process_lives_and_keeps_its_name() -> None:
    assert process_identity() == process_identity()
    assert not is_certainly_dead(process_identity())


def test_a_process_that_ended_is_dead() -> None:
    code = "from floodmark.process import process_identity as p; print(p(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        identity = child.stdout.readline().strip()
        assert identity != process_identity()
        assert not is_certainly_dead(identity)
        child.kill()
        child.wait()
        assert is_certainly_dead(identity)


def test_a_process_that_ended_and_that_nobody_has_taken_note_of_is_dead() -> None:
    """In a container whose first process does not reap, such a one is listed for ever."""
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os._exit(0)
    try:
        host, boot, _, _ = process_identity().split("/")
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        started = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[19]
        assert is_certainly_dead(f"{host}/{boot}/{child}/{started}")
    finally:
        os.waitpid(child, 0)


def test_another_process_with_the_same_number_is_another_process() -> None:
    host, boot, pid, started = process_identity().split("/")
    assert is_certainly_dead(f"{host}/{boot}/{pid}/{int(started) - 1}")


def test_a_restarted_machine_runs_none_of_its_former_processes() -> None:
    host, _, pid, started = process_identity().split("/")
    assert is_certainly_dead(f"{host}/another-boot/{pid}/{started}")


def test_a_process_of_another_host_may_live() -> None:
    """All that a lease or a clock could add here would be a guess."""
    _, boot, _, _ = process_identity().split("/")
    assert not is_certainly_dead(f"elsewhere/{boot}/1/1")
    assert not is_certainly_dead("elsewhere/another-boot/999999999/1")


def test_a_number_that_nobody_has_is_dead() -> None:
    host, boot, _, _ = process_identity().split("/")
    assert is_certainly_dead(f"{host}/{boot}/{2**22 + 5}/1")


def test_a_host_name_with_a_slash_is_still_one_part(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process.socket, "gethostname", lambda: "a/b")
    assert process_identity().startswith("a-b/")
    assert not is_certainly_dead(process_identity())


def test_a_child_has_a_name_of_its_own() -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        os.write(writer, process_identity().encode())
        os._exit(0)
    os.waitpid(child, 0)
    assert os.read(reader, 500).decode() != process_identity()
    os.close(reader)
    os.close(writer)
