"""The table of the source's size and shape is made of the source, and by running it."""

from __future__ import annotations

import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

from floodmark.testing.memory.lake import MemoryLake

ROOT = Path(__file__).parents[2]


def test_the_table_counts_files_contract_and_the_modules_that_a_row_meets():
    script = [sys.executable, str(ROOT / "scripts" / "house.py"), "--json"]
    found = json.loads(subprocess.run(script, capture_output=True, text=True, check=True).stdout)
    assert found["source files"] == len(list((ROOT / "src" / "floodmark").rglob("*.py")))
    assert 0 < found["modules with exactly one importer"] < found["source files"]
    public = [name for name in dir(MemoryLake) if not name.startswith("_") and callable(getattr(MemoryLake, name))]
    assert 0 < found["public methods of the lake contract"] <= len(public)
    # Fewer would mean that a part of the way was not watched: capture, spool, flush, lake, delivery, its sink.
    assert 20 < found["modules that one row meets, capture to object"] < found["source files"]


def test_only_what_is_private_to_something_else_is_counted(tmp_path: Path):
    path = tmp_path / "test.py"
    text = "self._own = store._database._engine\nstate._replace(a=1).__class__\ncls._cached\n"
    path.write_text(text + "super()._begin()\nos._exit(1)\n")
    spec = importlib.util.spec_from_file_location("house", ROOT / "scripts" / "house.py")
    assert spec is not None
    house = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(house)
    assert house.private_attributes(path) == 2


def test_every_exception_to_a_rule_has_its_reason_in_the_same_line():
    bare = re.compile(r"#\s*(?:noqa(?::\s*[A-Z0-9, ]+)?|type:\s*ignore(?:\[[\w, -]+\])?)\s*$", re.MULTILINE)
    files = (ROOT / "src" / "floodmark").rglob("*.py")
    assert [f"{path.name}: {line}" for path in files for line in bare.findall(path.read_text())] == []
