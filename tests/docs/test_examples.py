"""Every Python example runs, and prints what its comments say."""

from __future__ import annotations

import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

from floodmark.store import init, open_store
from s3 import free_port
from waiting import wait_until

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
ALONE = ("archive", "exact_totals", "follow")
"""They need a directory and nothing else."""


def test_every_example_is_run_and_named_in_the_list():
    names = {path.stem for path in (EXAMPLES / "python").glob("*.py")}
    assert names == {*ALONE, "post_to_hub"}
    page = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    assert [name for name in names if f"(python/{name}.py)" not in page] == []


@pytest.mark.spark
@pytest.mark.parametrize("name", ALONE)
def test_an_example_prints_what_it_says(name: str, spark, tmp_path: Path, monkeypatch, capsys):
    monkeypatch.syspath_prepend(EXAMPLES / "python")
    importlib.import_module(name).main(str(tmp_path))
    promised = re.findall(r"# → (.*)", (EXAMPLES / "python" / f"{name}.py").read_text(encoding="utf-8"))
    assert capsys.readouterr().out.splitlines() == promised


def test_the_client_of_a_hub_stores_a_file_once_however_often_it_is_run(tmp_path: Path):
    rows = tmp_path / "orders.jsonl"
    rows.write_text("".join(f'{{"id": {number}}}\n' for number in range(1200)))
    with init(tmp_path / "central") as store:
        store.add_dataset("orders")
    port = free_port()
    command = [sys.executable, "-m", "floodmark.cli", "-s", str(tmp_path / "central"), "hub", "--port", str(port)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as hub:
        try:
            assert hub.stderr is not None
            wait_until(lambda: "Hub on" in hub.stderr.readline(), story=lambda: "The hub did not start.")
            for _ in range(2):
                client = [sys.executable, str(EXAMPLES / "python" / "post_to_hub.py")]
                done = subprocess.run(
                    [*client, f"http://127.0.0.1:{port}", "orders", str(rows)],
                    capture_output=True,
                    text=True,
                    check=False,
                    timeout=120,
                )
                assert done.stdout == "1200 rows are durable at the hub\n", done.stderr
        finally:
            hub.terminate()
    with open_store(tmp_path / "central") as store:
        assert store.status().datasets[0].spool.segment_rows == 1200
