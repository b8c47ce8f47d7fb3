"""uvicorn's HTTP protocol, with an end to patience: a client that never ends its headers is cut off."""

from __future__ import annotations

import asyncio
from typing import Any, ClassVar

from uvicorn.protocols.http.h11_impl import H11Protocol

from floodmark.hub.connections import Connections, connections_max, refusal

HEADER_SECONDS_MAX = 20.0


class BoundedProtocol(H11Protocol):
    """Between requests uvicorn's keep-alive limit counts; while a body comes, the hub's own. This is for headers."""

    counted: ClassVar[Connections | None] = None
    """Those of this worker, made with its first one."""
    _header_timer: asyncio.TimerHandle | None = None
    _address: str | None = None

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        kind = type(self)
        if kind.counted is None:
            kind.counted = Connections(connections_max())
        address = str((transport.get_extra_info("peername") or ("?",))[0])
        if not kind.counted.admit(address):
            transport.write(refusal())
            transport.close()
            return
        self._address = address
        self._expect_headers()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.cycle is not None and not self.cycle.response_complete:
            self._stop_timer()
        elif self._header_timer is None:
            self._expect_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_timer()
        if self._address is not None and self.counted is not None:
            self.counted.leave(self._address)
            self._address = None
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        self._stop_timer()
        super().on_response_complete()

    def _expect_headers(self) -> None:
        self._header_timer = self.loop.call_later(HEADER_SECONDS_MAX, self._give_up)

    def _stop_timer(self) -> None:
        if self._header_timer is not None:
            self._header_timer.cancel()
            self._header_timer = None

    def _give_up(self) -> None:
        self._header_timer = None
        if not self.transport.is_closing():
            self.transport.close()
