"""A client that begins a request and never ends it is cut off, on a real socket; a patient one is not."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator

import pytest
import uvicorn

from floodmark.hub import protocol
from floodmark.hub.protocol import BoundedProtocol

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n"


@pytest.fixture
def address(hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(protocol, "HEADER_SECONDS_MAX", 0.3)
    config = uvicorn.Config(hub.app, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        yield listener.getsockname()
        server.should_exit = True
        thread.join()


def cut_off(connection: socket.socket) -> bool:
    """Whether the hub closes the connection, rather than let us wait."""
    connection.settimeout(20)
    try:
        return connection.recv(100) == b""
    except ConnectionError:
        return True
    except TimeoutError:
        return False


def answered(connection: socket.socket) -> bool:
    connection.settimeout(20)
    answer = b""
    while not answer.endswith(b"}\n") and (piece := connection.recv(65536)):
        answer += piece
    return answer.startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize("begun", [b"", b"G", REQUEST[:-2]], ids=["nothing", "a letter", "all but the end"])
def test_headers_that_never_end_are_not_waited_for(address, begun):
    with socket.create_connection(address) as connection:
        connection.sendall(begun)
        assert cut_off(connection)


def test_headers_that_trickle_are_not_waited_for(address):
    with socket.create_connection(address) as connection:
        sent = 0
        with contextlib.suppress(ConnectionError):
            for _ in range(400):  # each letter comes in time, and all of them do not
                connection.sendall(b"G")
                sent += 1
                time.sleep(0.05)
        assert sent < 400


def test_the_next_request_of_a_connection_is_not_waited_for_either(address):
    with socket.create_connection(address) as connection:
        connection.sendall(REQUEST)
        assert answered(connection)
        connection.sendall(REQUEST[:10])
        assert cut_off(connection)


def test_a_connection_may_rest_between_requests(address):
    with socket.create_connection(address) as connection:
        for _ in range(3):
            connection.sendall(REQUEST)
            assert answered(connection)
            time.sleep(0.6)


def test_a_body_has_its_own_time(address):
    body = b'[{"id":1}]'
    with socket.create_connection(address) as connection:
        connection.sendall(
            b"POST /v1/datasets/events/capture HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        for byte in body:
            time.sleep(0.06)
            connection.sendall(bytes([byte]))
        assert answered(connection)
