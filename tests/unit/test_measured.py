"""What a job of the tests took is told with everything that it started."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "scripts" / "measured.py"
BURNS = "import time; exec('while time.process_time() < 0.3: pass')"


def measured(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def test_a_command_s_code_comes_back_and_what_it_leaves_behind_is_counted(tmp_path: Path):
    notes = tmp_path / "notes"
    leaves = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BURNS!r}]); sys.exit(3)"
    assert measured("jvm", str(notes), sys.executable, "-c", leaves).returncode == 3
    assert measured("killed", str(notes), sys.executable, "-c", "import os; os.kill(os.getpid(), 9)").returncode == 137
    first, second = map(json.loads, notes.read_text().splitlines())
    assert first["cpu"] >= 0.3
    assert second["job"] == "killed"


def test_the_table_has_a_line_for_each_job_and_one_for_all(tmp_path: Path):
    notes = tmp_path / "notes"
    small = {"job": "small", "began": 0, "ended": 60, "cpu": 30}
    large = {"job": "large", "began": 30, "ended": 630, "cpu": 930}
    notes.write_text("".join(json.dumps(note) + "\n" for note in (small, large)))
    lines = measured("--table", str(notes)).stdout.splitlines()
    assert [line.split() for line in lines[1:]] == [
        ["large", "10.0", "15.5"],
        ["small", "1.0", "0.5"],
        ["all", "10.5", "16.0"],
    ]
