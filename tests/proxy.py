"""A TCP proxy in front of a PostgreSQL server that cuts a connection at a chosen message."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

COMMIT = b"COMMIT"
BUFFER = 1 << 16


@dataclass
class Proxy:
    """Forwards every byte, until an armed message comes.

    `before`: the message is not forwarded. `after`: it is, and its answer is not.
    """

    target: int
    port: int = 0
    tripped: bool = False
    seen: int = 0
    """How many messages that count have passed since it was armed."""
    _at: int = 0
    _fate: str = ""
    _only: bytes = COMMIT
    _action: Callable[[], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _listener: socket.socket | None = None

    def arm(self, at: int, fate: str, *, only: bytes = COMMIT, action: Callable[[], None] | None = None) -> None:
        """Cut at the message of this number from now on, of those with these bytes. The action runs at that moment."""
        with self._lock:
            self._at, self._fate, self._action = at, fate, action
            self._only, self.tripped, self.seen = only, False, 0

    def disarm(self) -> None:
        with self._lock:
            self._at = 0

    def start(self) -> Proxy:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._accept, daemon=True, name="proxy").start()
        return self

    def stop(self) -> None:
        if self._listener is not None:
            self._listener.close()

    def _accept(self) -> None:
        assert self._listener is not None
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True, name="proxied").start()

    def _serve(self, client: socket.socket) -> None:
        try:
            server = socket.create_connection(("127.0.0.1", self.target))
        except OSError:
            client.close()
            return
        muted, answered = threading.Event(), threading.Event()
        threading.Thread(target=_answers, args=(server, client, muted, answered), daemon=True, name="answers").start()
        with contextlib.suppress(OSError):
            for data in _received(client):
                fate = self._judge(data)
                if fate == "before":
                    break
                if fate == "after":
                    muted.set()  # the server's answer is read, and reaches nobody
                server.sendall(data)
                if fate == "after":
                    answered.wait(10)  # what it was sent has happened by then
                    break
        for one in (client, server):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()

    def _judge(self, data: bytes) -> str:
        """What becomes of what a client sent."""
        if self._only not in data:
            return ""
        with self._lock:
            self.seen += 1
            if self._at == 0 or self.seen != self._at:
                return ""
            self.tripped = True
            fate, action = self._fate, self._action
        if action is not None:
            action()
        return fate


def _received(source: socket.socket) -> Iterator[bytes]:
    while data := source.recv(BUFFER):
        yield data


def _answers(server: socket.socket, client: socket.socket, muted: threading.Event, answered: threading.Event) -> None:
    with contextlib.suppress(OSError):
        for data in _received(server):
            if muted.is_set():
                break
            client.sendall(data)
    answered.set()
    with contextlib.suppress(OSError):
        client.shutdown(socket.SHUT_RDWR)
