"""A store that sends, and a server that takes what it sends."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from floodmark.delivery.sinks.forward import ForwardSink
from scenarios.delivery.parcels import Sender
from scenarios.delivery.servers import KeyOnlyServer


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Sender]:
    made = Sender.make(tmp_path)
    yield made
    made.close()


@pytest.fixture
def server() -> Iterator[KeyOnlyServer]:
    with KeyOnlyServer() as started:
        yield started


@pytest.fixture
def sink(sender: Sender, server: KeyOnlyServer) -> ForwardSink:
    return sender.sink(server.url)
