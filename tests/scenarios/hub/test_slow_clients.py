"""A client that begins a request and never ends it is cut off, on a real socket; a patient one is not."""

from __future__ import annotations

import asyncio
import contextlib
import select
import socket
import threading
from collections.abc import Iterator

import httpx
import pytest
import uvicorn

from floodmark.hub import serve
from floodmark.hub.access import add_token
from floodmark.hub.serve import BoundedProtocol, Connections
from waiting import wait_until

REQUEST = b"GET /healthz HTTP/1.1\r\nHost: hub\r\n\r\n"


@pytest.fixture
def address(hub, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, int]]:
    monkeypatch.setattr(serve, "HEADER_SECONDS_MAX", 0.3)
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


def silent(connection: socket.socket, *, seconds: float) -> bool:
    """Whether the hub neither says anything nor closes the connection for so long."""
    return not select.select([connection], [], [], seconds)[0]


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
                silent(connection, seconds=0.05)
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
            assert silent(connection, seconds=0.6)


def test_a_body_has_its_own_time(address):
    body = b'[{"id":1}]'
    with socket.create_connection(address) as connection:
        connection.sendall(
            b"POST /v1/datasets/events/capture HTTP/1.1\r\nHost: hub\r\nContent-Type: application/json\r\n"
            + f"Content-Length: {len(body)}\r\n\r\n".encode()
        )
        for byte in body:
            assert silent(connection, seconds=0.06)
            connection.sendall(bytes([byte]))
        assert answered(connection)


# ── many at once ─────────────────────────────────────────────────────────────────────────────────────────────────────


def first_line(connection: socket.socket) -> bytes:
    connection.settimeout(20)
    said = b""
    while b"\r\n" not in said and (piece := connection.recv(65536)):
        said += piece
    return said.partition(b"\r\n")[0]


def is_let_in(address: tuple[str, int]) -> bool:
    with socket.create_connection(address) as another, contextlib.suppress(ConnectionError):
        another.sendall(REQUEST)
        return first_line(another).endswith(b"200 OK")
    return False


@pytest.mark.parametrize("limits", [Connections(all_max=100, address_max=3), Connections(all_max=3)], ids=str)
def test_idle_connections_are_counted_and_one_too_many_is_refused_in_words(address, monkeypatch, limits):
    """Before descriptors run out: then a worker could neither answer nor open a file, and would fill its log."""
    monkeypatch.setattr(serve, "HEADER_SECONDS_MAX", 20)
    monkeypatch.setattr(BoundedProtocol, "counted", limits)
    idle = [socket.create_connection(address) for _ in range(3)]
    try:
        idle[0].sendall(REQUEST)
        assert answered(idle[0])
        with socket.create_connection(address) as one_too_many:
            assert first_line(one_too_many) == b"HTTP/1.1 503 Service Unavailable"
        idle.pop().close()
        wait_until(lambda: is_let_in(address), story=lambda: "A connection that was closed still counts.")
    finally:
        for connection in idle:
            connection.close()


def test_a_hub_raises_its_limit_on_open_files():
    import resource

    from floodmark.hub.serve import raise_descriptors

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (256, hard))
        raise_descriptors()
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == min(hard, 65_536) > 256
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("same", ["token", "address"])
def test_a_client_that_sends_slowly_holds_up_itself_and_nobody_else(store, start_hub, same):
    store.add_dataset("events")
    hub = start_hub(store, client_requests_max=2, request_seconds_max=5)
    secrets = ["", ""]
    if same == "token":
        secrets = [add_token(store, name, rights=["capture"], any_dataset=True)[1] for name in ("a", "b")]

    async def exchange():
        release, on_their_way = asyncio.Event(), asyncio.Semaphore(0)

        async def send(secret: str, host: str, *, slow: bool) -> int:
            async def content():
                yield b"["
                if slow:  # asked for more: the body is being read
                    on_their_way.release()
                    await release.wait()
                yield b'{"id":1}]'

            transport = httpx.ASGITransport(hub.app, client=(host, 1))
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {secret or 'none'}"}
            async with httpx.AsyncClient(transport=transport, base_url="http://hub") as client:
                response = await client.post("/v1/datasets/events/capture", content=content(), headers=headers)
                return response.status_code

        def who(number: int) -> tuple[str, str]:
            if same == "token":
                return secrets[0], f"203.0.113.{number}"
            return secrets[number % 2], "203.0.113.1"

        slow = [asyncio.create_task(send(*who(number), slow=True)) for number in range(2)]
        for _ in slow:
            await on_their_way.acquire()
        crowded = await send(*who(3), slow=False)
        other = await send(secrets[1], "203.0.113.99", slow=False)
        release.set()
        return crowded, other, await asyncio.gather(*slow), await send(*who(3), slow=False)

    crowded, other, slow, later = asyncio.run(exchange())
    assert (crowded, other, slow, later) == (429, 200, [200, 200], 200)
    assert hub.hub.places.taken == 0
