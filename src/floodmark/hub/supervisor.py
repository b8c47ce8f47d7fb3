"""The process that starts workers and replaces those that die or hang."""

from __future__ import annotations

import logging
import time
from dataclasses import dataclass, field

from uvicorn.config import STARTUP_FAILURE
from uvicorn.supervisors.multiprocess import Multiprocess, Process

log = logging.getLogger("floodmark.hub")


@dataclass(slots=True)
class _Questions:
    """When each worker was asked whether it lives, as far as it has not answered yet."""

    asked: dict[int, float] = field(default_factory=dict)

    def has_answered(self, worker: Process, *, seconds_max: float) -> bool:
        """Never waits: a worker that dies after it was asked would hold up the supervision of all others."""
        now = time.monotonic()
        try:
            while worker.parent_conn.poll(0):
                worker.parent_conn.recv()
                self.asked.pop(id(worker), None)
            if id(worker) not in self.asked:
                worker.parent_conn.send(b"ping")
                self.asked[id(worker)] = now
        except (OSError, EOFError):
            return False
        return now - self.asked[id(worker)] < seconds_max

    def forget(self, worker: Process) -> None:
        self.asked.pop(id(worker), None)


class Supervisor(Multiprocess):
    """uvicorn's, but a worker that dies is replaced at the next look, half a second later, whatever others do."""

    _questions: _Questions | None = None

    def keep_subprocess_alive(self) -> None:
        if self._questions is None:
            self._questions = _Questions()
        for index, worker in enumerate(self.processes):
            if self.should_exit.is_set():
                return
            lives = worker.process.is_alive()
            if lives and self._questions.has_answered(worker, seconds_max=self.config.timeout_worker_healthcheck):
                continue
            self._questions.forget(worker)
            self._end(worker, hangs=lives)
            if worker.exitcode == STARTUP_FAILURE:
                log.error("A worker could not start; the hub stops.")
                self.should_exit.set()
                return
            replacement = Process(self.config, self.sockets)
            replacement.start()
            self.processes[index] = replacement

    @staticmethod
    def _end(worker: Process, *, hangs: bool) -> None:
        worker.kill()
        worker.join()
        log.warning(
            "Worker %s %s; another one is started.",
            worker.pid,
            "did not answer and was ended" if hangs else f"ended with {worker.exitcode}",
        )
