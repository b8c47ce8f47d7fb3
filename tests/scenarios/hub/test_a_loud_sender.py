"""H6: a sender that sends as much as it can is held back, and no other is: each of them gets through at once."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

import httpx
import uvicorn

from engines import set_spool
from floodmark.hub.access import add_token
from floodmark.hub.serve import BoundedProtocol
from floodmark.store import Store
from sending import DATASET, Chunk, Sender, check
from waiting import wait_until

PLACES = 16
LOUD = 60
QUIET = 5


@contextlib.contextmanager
def listening(hub: Any) -> Iterator[tuple[str, int]]:
    """The hub on a real port."""
    config = uvicorn.Config(hub.app, http=BoundedProtocol, ws="none", lifespan="off", log_config=None, access_log=False)
    server = uvicorn.Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield listener.getsockname()
        finally:
            server.should_exit = True
            thread.join()


def begin(address: tuple[str, int], chunk: Chunk, token: str) -> socket.socket:
    """A request of which the last byte is kept back."""
    connection = socket.create_connection(address)
    lines = [f"POST {chunk.path} HTTP/1.1", "Host: hub", "Connection: close", f"Content-Length: {len(chunk.body)}"]
    lines += [f"{name}: {value}" for name, value in chunk.headers(token).items()]
    connection.sendall("\r\n".join([*lines, "", ""]).encode() + chunk.body[:-1])
    return connection


def end(connection: socket.socket, chunk: Chunk) -> int:
    """The last byte, and the status of the response."""
    with contextlib.suppress(ConnectionError):  # who was refused is not listened to any more
        connection.sendall(chunk.body[-1:])
    connection.settimeout(60)
    return int(connection.recv(65536).split()[1])


def token_of(store: Store, sender: Sender) -> str:
    return add_token(store, sender.origin, origins=[sender.origin], datasets=[DATASET])[1]


def senders(count: int, *, rows: int) -> list[Sender]:
    found = [Sender(f"quiet-{number}") for number in range(count)]
    for sender in found:
        sender.add(rows)
    return found


def test_a_sender_with_many_connections_takes_half_of_the_places_and_the_others_get_through_at_once(store, start_hub):
    store.add_dataset(DATASET)
    hub = start_hub(store, requests_max=PLACES, client_requests_max=PLACES)
    loud, quiet = Sender("loud"), senders(QUIET, rows=3)
    loud.add(4)
    secret, secrets = token_of(store, loud), {sender.origin: token_of(store, sender) for sender in quiet}
    chunk = loud.chunk(0, 4)
    with listening(hub) as address:
        held = [begin(address, chunk, secret) for _ in range(LOUD)]
        requests = hub.hub.metrics.requests.labels("chunks", "429")._value
        wait_until(
            lambda: requests.get() == LOUD - PLACES // 2,
            story=lambda: f"{requests.get():g} of {LOUD} requests were refused, {hub.hub.places.taken} are in memory.",
        )
        with httpx.Client(base_url=f"http://{address[0]}:{address[1]}", timeout=60) as client:
            for turn in range(3):
                for sender in quiet:
                    one = sender.chunk(turn, turn + 1)
                    answer = client.post(one.path, content=one.body, headers=one.headers(secrets[sender.origin]))
                    assert answer.status_code == 200, f"{sender.origin} had to try again: {answer.text}"
        statuses = [end(connection, chunk) for connection in held]
    assert sorted(set(statuses)) == [200, 429]
    assert statuses.count(200) == PLACES // 2
    assert hub.hub.places.taken == 0
    for sender in quiet:
        check(store, sender, through=3)
    check(store, loud, through=4)


def test_a_sender_that_fills_the_spool_leaves_room_for_the_others(store, start_hub, clock):
    store.add_dataset(DATASET)
    set_spool(store, backlog_bytes_max=100_000)
    workers = [start_hub(store) for _ in range(2)]
    loud, quiet = Sender("loud"), senders(QUIET, rows=1)
    loud.add(500)
    sent, refused = 0, 0
    while refused < len(workers):
        clock.advance(5)  # what waits is measured anew
        answer = workers[(sent + refused) % 2].send(loud.chunk(sent, sent + 1))
        sent, refused = (sent + 1, 0) if answer.status_code == 200 else (sent, refused + 1)
    assert sent < 500
    assert answer.status_code == 503
    assert answer.headers["retry-after"]
    assert "of this sender" in answer.json()["detail"]
    for number, sender in enumerate(quiet):
        clock.advance(5)
        assert workers[number % 2].send(sender.chunk(0, 1)).status_code == 200, f"{sender.origin} had to try again"
        check(store, sender, through=1)
    store.flush(DATASET)
    clock.advance(5)
    assert workers[0].send(loud.chunk(sent, sent + 1)).status_code == 200
