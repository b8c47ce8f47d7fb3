"""The demo's hub: a real process on a store of its own, which is killed in the middle and started again."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from dataclasses import dataclass, field
from pathlib import Path

import floodmark
from floodmark.cli.demo.rows import COLUMNS, DATASET, EVENT_TIME, IDENTITY, PARTITION_BY
from floodmark.errors import Permanent


@dataclass(slots=True)
class HubProcess:
    """`floodmark hub` on a store in a directory."""

    path: Path
    port: int = 0
    _process: subprocess.Popen[str] | None = field(default=None, init=False)

    def make_store(self) -> None:
        with floodmark.init(self.path) as store:
            store.add_dataset(DATASET, IDENTITY, event_time=EVENT_TIME, partition_by=PARTITION_BY, schema=COLUMNS)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> HubProcess:
        """Start it, on the same port as before if it ran already, and wait until it listens."""
        command = [sys.executable, "-m", "floodmark.cli", "-s", str(self.path), "hub", "--port", str(self.port)]
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, start_new_session=True)
        said = self._process.stderr.readline() if self._process.stderr else ""
        found = re.search(r"http://[^ ]+:(\d+)", said)
        if found is None:
            raise Permanent(f"The hub of the demo did not start: {said.strip()}")
        self.port = int(found[1])
        threading.Thread(target=self._drain, daemon=True).start()
        return self

    def kill(self) -> None:
        """As a power cut would: no request is finished, no worker is told."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        import os

        if self._process is not None:
            os.killpg(self._process.pid, number)
            self._process.wait(timeout=60)
            self._process = None

    def _drain(self) -> None:
        process = self._process
        if process is not None and process.stderr is not None:
            for _line in process.stderr:
                pass
