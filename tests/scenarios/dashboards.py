"""What `run` serves, reached through ASGI."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

import httpx
from starlette.applications import Starlette

from floodmark.daemon.listen import Listener
from floodmark.store import Store
from scenarios.daemons import Stepped


@dataclass
class Pages:
    """A daemon that is stepped by hand, and a client of what it serves."""

    run: Stepped
    listener: Listener
    app: Starlette
    client: tuple[str, int] = ("127.0.0.1", 123)

    @property
    def store(self) -> Store:
        return self.run.store

    def get(self, path: str, **headers: str) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=self.client)
            async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
                return await client.get(path, headers={name.replace("_", "-"): text for name, text in headers.items()})

        return asyncio.run(ask())

    def fresh(self, path: str, **headers: str) -> httpx.Response:
        """After what was read a second ago is too old to be shown again."""
        self.run.clock.advance(11)
        return self.get(path, **headers)

    def capture(self, *numbers: int, dataset: str = "m", **columns: Any) -> None:
        self.store.capture(dataset, [{"n": number, **columns} for number in numbers])

    def deliver(self, *numbers: int, dataset: str = "m") -> None:
        """Capture rows, and let the daemon do everything that is due."""
        self.capture(*numbers, dataset=dataset)
        self.run.after(31)
        self.run.after(31)
