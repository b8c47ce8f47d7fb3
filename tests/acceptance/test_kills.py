"""Writers, the daemon with real Spark, a hub with two workers and an S3 server are killed at random for a while."""

from __future__ import annotations

from pathlib import Path

import pytest

from chaos.servers import may_mount
from chaos.stage import Stage

SEED = 4


@pytest.mark.timeout(900)
def test_every_acknowledged_row_arrives_once_whoever_is_killed(tmp_path: Path) -> None:
    """I4, D1, D4, H1, H2. `make soak` does this for longer, and with the records in PostgreSQL."""
    disk = {"disk"} if may_mount(tmp_path) is None else set()
    stage = Stage(tmp_path, SEED, 25, frozenset({"s3"} | disk), dict.fromkeys(("writer", "daemon", "hub"), 2), print)
    verdict = stage.run()
    assert verdict.findings == []
    assert verdict.drained, verdict.stuck
    assert verdict.unexercised == ()
    assert verdict.astray == ()
    killed = verdict.exercised.killed
    assert min(killed[kind] for kind in ("writer", "daemon", "hub", "s3")) >= 2
    assert verdict.exercised.rows_captured_again > 0
