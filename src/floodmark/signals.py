"""SIGTERM and SIGINT (Ctrl-C) for a process that runs until it is stopped: `run` and `hub`.

- The first signal asks for an orderly stop. One that arrives before anything can be asked is kept until then.
- A second one ends the process at once, with `INTERRUPTED`, at any time until it has ended. Nothing is closed: what was
  in progress is found again by the next process, as after any other crash.

The handlers stay: what follows the command is the end of the process, and a signal in between must not have another
meaning. Only its last steps ignore signals, when all that is left is to return the exit code.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
from collections.abc import Callable
from queue import Empty, SimpleQueue
from types import FrameType

INTERRUPTED = 130
SIGNALS = (signal.SIGTERM, signal.SIGINT)


class StopSignals:
    """Handles the signals from now on."""

    def __init__(self) -> None:
        self._asked = False
        # A handler interrupts any line of the main thread, so it takes no lock: this queue has none that it could meet.
        self._first: SimpleQueue[str] = SimpleQueue()
        self._stop: Callable[[str], None] | None = None
        self._last_words: Callable[[], None] = lambda: say_now("Stopped by a second signal.")
        self.install()
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)  # see `keep_for_the_next_program`
        atexit.register(_ignore)

    def install(self) -> None:
        """Also again, after a library has installed its own handlers."""
        for number in SIGNALS:
            signal.signal(number, self._handle)

    def ask(self, stop: Callable[[str], None], *, last_words: Callable[[], None]) -> None:
        """From now on the first signal calls `stop` with its name: at once, if it has arrived.

        `last_words` says what is left, when a second one ends the process.
        """
        self._last_words = last_words
        self._stop = stop
        self._tell()

    def arrived(self, seconds: float) -> bool:
        """Whether the first signal has arrived, or arrives within this time; then it asks nobody else."""
        self._stop = None
        if not self._asked:
            with contextlib.suppress(Empty):
                self._first.get(timeout=seconds)
        return self._asked

    def _handle(self, number: int, _frame: FrameType | None) -> None:
        if self._asked:
            try:
                self._last_words()
            finally:
                os._exit(INTERRUPTED)
        self._asked = True
        self._first.put(signal.Signals(number).name)
        self._tell()

    def _tell(self) -> None:
        if self._stop is not None:
            with contextlib.suppress(Empty):  # taken once, whoever comes first: the handler, or what it interrupted
                self._stop(self._first.get_nowait())


def keep_for_the_next_program() -> None:
    """Block the signals before `exec`: the next program finds those that arrive before its handlers are installed."""
    signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)


def say_now(line: str, *, to_output: bool = False) -> None:
    """Write a line from a handler. A stream could be in the middle of another line, and refuse."""
    with contextlib.suppress(OSError):
        os.write(1 if to_output else 2, f"{line}\n".encode())


def _ignore() -> None:
    for number in SIGNALS:
        signal.signal(number, signal.SIG_IGN)
