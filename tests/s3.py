"""S3 for the tests: a real server process with buckets of its own, and a scripted one for what that never answers."""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
import threading
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from xml.etree import ElementTree as ET

import httpx
import pytest

from waiting import wait_until

SECRET = "hushhush/do+not=show"
"""The secret key in every place of the tests: no message may hold it."""


_SIGNED = {
    "Authorization": "AWS4-HMAC-SHA256 Credential=AKIDEXAMPLE/20260101/us-east-1/s3/aws4_request, "
    "SignedHeaders=host, Signature=0"
}
"""The server looks who asks, and takes any signature."""


@dataclass(frozen=True, slots=True)
class S3Server:
    """A running server that takes any credentials."""

    port: int

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def create_bucket(self) -> str:
        name = f"t{uuid.uuid4().hex}"
        httpx.put(f"{self.endpoint}/{name}").raise_for_status()
        return name

    def keys(self, bucket: str) -> list[str]:
        """The names of the bucket's objects, as the server itself writes them."""
        page = httpx.get(f"{self.endpoint}/{bucket}", params={"list-type": "2"}).raise_for_status()
        return [item.text or "" for item in ET.fromstring(page.text).iter() if item.tag.endswith("}Key")]

    def remove(self, place: str) -> None:
        """Remove an object, or an empty bucket."""
        httpx.delete(f"{self.endpoint}/{place.removeprefix('s3://')}", headers=_SIGNED).raise_for_status()

    def get(self, place: str) -> str:
        return httpx.get(f"{self.endpoint}/{place}", headers=_SIGNED).raise_for_status().text

    def put(self, place: str, content: bytes) -> None:
        url = f"{self.endpoint}/{place.removeprefix('s3://')}"
        httpx.put(url, content=content, headers=_SIGNED).raise_for_status()

    def settings(self, url: str) -> dict[str, str]:
        """What a blob sink needs to deliver to a url here."""
        return settings(url, self.endpoint)


def settings(url: str, endpoint: str) -> dict[str, str]:
    return {
        "url": url,
        "endpoint": endpoint,
        "region": "us-east-1",
        "access_key_id": "AKIDEXAMPLE",
        "secret_access_key": SECRET,
    }


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, __file__, str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_for(port, process)
        yield S3Server(port)
    finally:
        process.terminate()
        process.wait(timeout=30)


def serve(port: int) -> None:
    """Moto, one request at a time.

    It looks whether a key is taken and stores the object in two steps, and two threads of it can both find the key
    free. S3 does both at once, and that is what the tests are about.
    """
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, MotoRequestHandler, create_backend_app
    from werkzeug.serving import run_simple

    app, turn = DomainDispatcherApplication(create_backend_app), threading.Lock()

    def in_turn(environ, start_response):
        with turn:
            return app(environ, start_response)

    run_simple("127.0.0.1", port, in_turn, threaded=True, request_handler=MotoRequestHandler)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    def answers() -> bool:
        if process.poll() is not None:
            pytest.fail(f"a server of the tests ended with {process.returncode}")
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
        return False

    wait_until(answers, story=lambda: "A server of the tests does not answer.")


# ── scripted ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass
class Request:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What the server answers; a status of 0 closes the connection without a word."""

    status: int = 200
    body: bytes = b""
    headers: dict[str, str] = field(default_factory=dict)


def refusal(status: int, code: str, further: str = "") -> Reply:
    """An error as S3 writes it."""
    text = f"<Error><Code>{code}</Code><Message>{SECRET} was sent</Message>{further}<RequestId>1</RequestId></Error>"
    return Reply(status, f'<?xml version="1.0" encoding="UTF-8"?>\n{text}'.encode())


@dataclass
class ScriptedServer:
    port: int
    requests: list[Request]

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"


@contextmanager
def scripted(answer: Callable[[Request], Reply]) -> Iterator[ScriptedServer]:
    """A server that answers each request as a function says."""
    requests: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            requests.append(request)
            reply = answer(request)
            if reply.status == 0:
                self.close_connection = True
                self.connection.shutdown(socket.SHUT_RDWR)
                return
            self.send_response(reply.status)
            for name, value in {"Content-Length": str(len(reply.body)), **reply.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(reply.body)

        do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = answer  # noqa: N815 - as the base class has them

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    try:
        yield ScriptedServer(server.server_port, requests)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    serve(int(sys.argv[1]))
