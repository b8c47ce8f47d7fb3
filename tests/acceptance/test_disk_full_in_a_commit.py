"""A disk that is full in the middle of a commit: a clear error, nothing acknowledged is lost, and it works again."""

from __future__ import annotations

import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.errors import Retryable
from floodmark.store import init

pytestmark = pytest.mark.spark


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A directory that holds one megabyte, and more when it is told so."""
    directory = tmp_path / "store" / "lake"
    directory.mkdir(parents=True)
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(directory)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        pytest.skip(f"mounting a small disk is not permitted here: {done.stderr.strip()}")
    yield directory
    subprocess.run(["umount", "-l", str(directory)], check=True)


def test_rows_wait_in_the_spool_until_there_is_room(spark, tmp_path: Path, small_disk: Path) -> None:
    chance = random.Random(1)
    with init(tmp_path / "store") as store:
        store.add_dataset("m", schema={"n": "long", "text": "string"})
        store.capture("m", [{"n": 0, "text": "fits"}])
        assert store.flush("m").rows == 1
        rows = [{"n": n, "text": chance.randbytes(150).hex()} for n in range(1, 10_001)]
        store.capture("m", rows)

        with pytest.raises(Retryable, match="No space left on device"):
            store.flush("m")
        assert store.horizon("m") == 1
        assert store.status().datasets[0].spool.segment_rows == 10_000

        subprocess.run(["mount", "-o", "remount,size=100m", str(small_disk)], check=True)
        store.flush("m")
        numbers = [row["n"] for batch in store.read_since("m") for row, _ in batch.pairs()]
        assert numbers == list(range(10_001))
