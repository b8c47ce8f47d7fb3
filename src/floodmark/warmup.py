"""Making the class archive: Spark runs through what a store does, and the JVM keeps the classes that this took."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from floodmark.lake.jars import archive_file
from floodmark.store import init

_QUIET = "-Xlog:disable"
"""The JVM lists every class that it cannot archive."""


def make_archive(directory: Path) -> Path | None:
    """Make the archive if it is not there; None where this Java cannot. It takes about half a minute."""
    file = archive_file(directory)
    if file.is_file():
        return file
    unfinished = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    options = [os.environ.get("SPARK_SUBMIT_OPTS", ""), _QUIET, f"-XX:ArchiveClassesAtExit={unfinished}"]
    subprocess.run(
        [sys.executable, "-m", "floodmark.warmup"],
        env={**os.environ, "FLOODMARK_JARS": str(directory), "SPARK_SUBMIT_OPTS": " ".join(options).strip()},
        capture_output=True,
        check=False,
    )
    if not unfinished.is_file():
        return None
    unfinished.rename(file)
    return file


def main() -> None:
    """Touch what most commands touch: commit, dedup, compaction, reading."""
    from floodmark.lake.session import end_session

    with tempfile.TemporaryDirectory(prefix="floodmark-warmup-") as scratch, init(Path(scratch) / "store") as store:
        store.add_dataset("rows", identity=["id"], schema={"id": "string", "n": "long"})
        for turn in range(3):
            store.capture("rows", [{"id": f"{n}", "n": n} for n in range(turn, turn + 50)])
            store.flush("rows")
        store.compact("rows")
        store.sql("SELECT n, count(*) FROM rows GROUP BY n ORDER BY n").toArrow()
        end_session(store.spark)


if __name__ == "__main__":
    main()
