"""A hub in this process, reached through ASGI: everything but the sockets is real."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import httpx
import pytest
from starlette.applications import Starlette

from floodmark import wire
from floodmark.hub.app import Hub, build_app
from floodmark.hub.settings import HubSettings
from floodmark.store import Store
from sending import DATASET, Chunk


@dataclass
class Client:
    """Speaks HTTP to one worker."""

    hub: Hub
    app: Starlette
    client: tuple[str, int] = ("127.0.0.1", 123)
    """Where requests seem to come from."""

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        async def ask() -> httpx.Response:
            transport = httpx.ASGITransport(self.app, client=self.client)
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                return await client.request(method, path, **options)

        return asyncio.run(ask())

    def get(self, path: str, **headers: str) -> httpx.Response:
        return self.request("GET", path, headers=headers)

    def post(self, path: str, content: Any = b"", headers: Any = None) -> httpx.Response:
        return self.request("POST", path, content=content, headers=headers)

    def send(self, chunk: Chunk, *, token: str | None = None, **headers: str) -> httpx.Response:
        changed = {name.replace("_", "-"): text for name, text in headers.items()}
        return self.post(chunk.path, chunk.body, {**chunk.headers(token), **changed})

    def capture(
        self, content: Any, *, dataset: str = DATASET, key: str | None = None, **headers: str
    ) -> httpx.Response:
        found = {"Content-Type": "application/json", **{name.replace("_", "-"): text for name, text in headers.items()}}
        if key is not None:
            found["Idempotency-Key"] = key
        return self.post(f"/v1/datasets/{dataset}/capture", content, found)


StartHub = Callable[..., Client]


@pytest.fixture
def start_hub() -> Iterator[StartHub]:
    """Starts a worker on a store; several on one store are several workers."""
    started: list[Client] = []

    def start(store: Store, **limits: Any) -> Client:
        hub = Hub(store.engine, store.spool, HubSettings(**limits))
        started.append(Client(hub, build_app(hub)))
        return started[-1]

    yield start
    for client in started:
        client.hub.close()


@pytest.fixture
def hub(store: Store, start_hub: StartHub) -> Client:
    store.add_dataset(DATASET)
    return start_hub(store)


@pytest.fixture(params=[wire.LINES, wire.COLUMNS], ids=["lines", "columns"])
def media(request: pytest.FixtureRequest) -> str:
    """What bodies are made of."""
    found: str = request.param
    return found
