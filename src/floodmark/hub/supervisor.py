"""The process that starts workers and replaces those that die or hang."""

from __future__ import annotations

import logging
import time
from socket import socket
from weakref import WeakKeyDictionary

from uvicorn.config import STARTUP_FAILURE, Config
from uvicorn.supervisors.multiprocess import Multiprocess, Process

log = logging.getLogger("floodmark.hub")


class Supervisor(Multiprocess):
    """uvicorn's, but a worker that dies is replaced at the next check, half a second later, whatever others do."""

    def __init__(self, config: Config, sockets: list[socket]) -> None:
        super().__init__(config, sockets)
        self._asked: WeakKeyDictionary[Process, float] = WeakKeyDictionary()
        """When each worker was pinged, if it has not responded yet."""

    def keep_subprocess_alive(self) -> None:
        for index, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            lives = worker.process.is_alive()
            if lives and self._answers(worker):
                continue
            self._end(worker, hangs=lives)
            if worker.exitcode == STARTUP_FAILURE:
                log.error("A worker could not start; the hub stops.")
                self.should_exit.set()
                return
            replacement = Process(self.config, self.sockets)
            replacement.start()
            self.processes[index] = replacement

    def _answers(self, worker: Process) -> bool:
        """Never waits: a worker that dies after its ping would block the supervision of all others."""
        now = time.monotonic()
        try:
            while worker.parent_conn.poll(0):
                worker.parent_conn.recv()
                self._asked.pop(worker, None)
            if worker not in self._asked:
                worker.parent_conn.send(b"ping")
                self._asked[worker] = now
        except (OSError, EOFError):
            return False
        return now - self._asked[worker] < self.config.timeout_worker_healthcheck

    @staticmethod
    def _end(worker: Process, *, hangs: bool) -> None:
        worker.kill()
        worker.join()
        log.warning(
            "Worker %s %s; a new one is started.",
            worker.pid,
            "did not respond and was killed" if hangs else f"exited with {worker.exitcode}",
        )
