"""A hub on a real port of this machine, served by uvicorn in a thread, on a store that the test has open."""

from __future__ import annotations

import socket
import threading
from typing import Self

import uvicorn

from floodmark.hub.app import Hub, build_app
from floodmark.hub.serve import BoundedProtocol
from floodmark.hub.settings import HubSettings
from floodmark.store import Store


class RunningHub:
    """Serves one store; another one may take its place at the same address."""

    def __init__(self, store: Store, *, port: int = 0) -> None:
        self._hub = Hub(store.engine, store.spool, HubSettings())
        self._listening = socket.create_server(("127.0.0.1", port))
        self.port: int = self._listening.getsockname()[1]
        settings = HubSettings()
        self._server = uvicorn.Server(
            uvicorn.Config(
                build_app(self._hub),
                http=BoundedProtocol,
                lifespan="off",
                log_config=None,
                access_log=False,
                h11_max_incomplete_event_size=settings.header_bytes_max,
            )
        )
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [self._listening]}, daemon=True)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._listening.close()
        self._hub.close()
