"""Parts of a store are made on first use: by one thread of many, and not by a command that does not need them."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

from floodmark.engine import Engine
from floodmark.store import init
from floodmark.testing import MemoryLake

PROGRAM = """
import sys
from floodmark.store import open_store

with open_store(sys.argv[1]) as store:
    assert [item.name for item in store.status().datasets] == ["m"]
    assert store.sinks() == []
print(sorted({"pyarrow", "pyspark", "floodmark.lake.spark", "floodmark.maintenance.compact"} & set(sys.modules)))
"""


def test_many_threads_that_begin_at_once_share_one_spool(tmp_path: Path) -> None:
    """Each spool has a landing file of its own: a second one would stay open after the store is closed."""
    with init(tmp_path / "store", lake=MemoryLake()) as store:
        store.add_dataset("m", schema={"id": "long"})
        begin, found = threading.Barrier(16), []

        def first_use(number: int) -> None:
            begin.wait()
            store.capture("m", [{"id": number}])
            found.append(store.spool)

        threads = [threading.Thread(target=first_use, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len({id(spool) for spool in found}) == 1
        assert store.flush("m").rows == 16
    assert len(list((tmp_path / "store" / "spool" / "m" / "landing").glob("*.jsonl"))) == 1


def test_a_lake_that_is_opened_on_first_use_is_opened_once(tmp_path: Path) -> None:
    with init(tmp_path / "store", lake=MemoryLake()) as store:
        begin, opened = threading.Barrier(8), []

        def open_lake() -> MemoryLake:
            opened.append(MemoryLake())
            return opened[-1]

        engine = Engine(store.path, store.settings, store.engine.database, open_lake)
        found: list[object] = []

        def first_use() -> None:
            begin.wait()
            found.append(engine.lake)

        threads = [threading.Thread(target=first_use) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(opened) == 1
        assert all(lake is opened[0] for lake in found)


def test_status_imports_neither_arrow_nor_spark_nor_maintenance(tmp_path: Path) -> None:
    with init(tmp_path / "store", lake=MemoryLake()) as store:
        store.add_dataset("m", schema={"id": "long"})
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "store")], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout.strip()) == (0, "[]"), done.stderr
